"""Compare profiles by the amount of text they were trained on: ``giaann-dask job compare``."""

import sys

from giaann_dask.cli import run

if __name__ == "__main__":
    sys.exit(run(["job", "compare", *sys.argv[1:]]))
