"""Run the command line as ``giaann-dask`` or ``python -m giaann_dask``."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; an interruption while its modules are loaded shows no traceback."""
    try:
        from giaann_dask.cli import main
    except KeyboardInterrupt:
        sys.stderr.write("giaann-dask: interrupted\n")
        sys.exit(130)
    main()


if __name__ == "__main__":
    run()
