"""Run the command line as ``python -m giaann_dask``."""

from giaann_dask.cli import main

if __name__ == "__main__":
    main()
