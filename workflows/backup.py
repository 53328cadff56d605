"""Copy a commit to a folder or an object store, and compare the two byte by byte: ``giaann-dask job backup``."""

import sys

from giaann_dask.cli import run

if __name__ == "__main__":
    sys.exit(run(["job", "backup", *sys.argv[1:]]))
