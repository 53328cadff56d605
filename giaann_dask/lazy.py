"""Import the public names of a package on first use, so that importing the package is fast.

Provides the ``__getattr__`` and ``__dir__`` of such a package. `optional` imports packages that may not be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its full name.
    homes : mapping of str to str
        The module that each public name comes from.

    Returns
    -------
    tuple of callable
        The first loads a name and keeps it in the package; the second lists all names that are public, loaded
        or not, so that a notebook completes them.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return load, names
