"""Provide the Python interface for notebooks and scripts, in a line for each step.

Its public names are listed in `giaann_dask`. Importing them from here works as well.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    package = import_module("giaann_dask")
    if name not in package.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(package, name)
