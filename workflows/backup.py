"""Copy a commit to a folder or an S3 bucket, and compare the copy with it byte by byte: ``giaann-dask job backup``."""

import sys

from giaann_dask.cli import run

if __name__ == "__main__":
    sys.exit(run(["job", "backup", *sys.argv[1:]]))
