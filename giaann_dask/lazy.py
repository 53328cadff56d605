"""Import lazily: the public names of a package, and optional dependencies where they are used.

Provides the ``__getattr__`` and ``__dir__`` of a package whose names are imported on first use, so that importing it
is fast, modules that are imported on first use, and imports of packages that may not be installed, with an error that
says how to install them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from giaann_dask.errors import MissingDependencyError


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


class LazyModule(ModuleType):
    """Module that is imported when one of its names is first used.

    Examples
    --------
    >>> LazyModule("json").loads("[1]")
    [1]
    """

    def __getattr__(self, name: str) -> Any:
        """Import the module, and keep the name here, so that it is found at once from then on."""
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def import_optional(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
        Full name of the module.
    extra : str
        Name of the extra of giaann-dask that installs it.

    Returns
    -------
    ModuleType
        The module.

    Raises
    ------
    MissingDependencyError
        If it cannot be imported.

    Examples
    --------
    >>> import_optional("json", "hub").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"the package {module.partition('.')[0]!r} cannot be imported ({error})",
            "",
            f"install it with: pip install 'giaann-dask[{extra}]'",
        ) from error
