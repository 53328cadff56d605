"""Find the user's folder for files that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return the folder for cached files of this package, ``XDG_CACHE_HOME/giaann_dask``; it may not exist.

    Without ``XDG_CACHE_HOME`` it is in ``~/.cache``.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "giaann_dask"
