"""Import optional dependencies where they are used.

If one is missing, a single error says how to install it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from giaann_dask.errors import MissingDependencyError


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
