"""Evaluate a network, write a report, and check that it has not become worse: ``giaann-dask job weekly``."""

import sys

from giaann_dask.cli import run

if __name__ == "__main__":
    sys.exit(run(["job", "weekly", *sys.argv[1:]]))
