"""Compare rules of training and prediction on one slice of text: ``giaann-dask job research``."""

import sys

from giaann_dask.cli import run

if __name__ == "__main__":
    sys.exit(run(["job", "research", *sys.argv[1:]]))
