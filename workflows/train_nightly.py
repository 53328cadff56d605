"""Train new files of a folder, evaluate, and delete old commits: ``giaann-dask job nightly``."""

import sys

from giaann_dask.cli import run

if __name__ == "__main__":
    sys.exit(run(["job", "nightly", *sys.argv[1:]]))
