"""Find folders for files that can be made again: cached files of this package, and compiled code.

Cached files hold words of networks, so their folder is the user's alone.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

_NUMBA = "NUMBA_CACHE_DIR"
_PACKAGE = Path(__file__).parent
# Name of the folder that is made where no other one can be written.
_TEMPORARY = "giaann-dask-"


def user_cache() -> Path:
    """Return the folder for cached files of this package, ``XDG_CACHE_HOME/giaann_dask``; it may not exist.

    Without ``XDG_CACHE_HOME`` it is in ``~/.cache``.
    """
    return _cache_home() / "giaann_dask"


def private_cache(name: str) -> Path:
    """Return a folder in `user_cache` that only this user can read, made where it is missing.

    Parameters
    ----------
    name : str
        Of the folder; empty for `user_cache` itself.

    Raises
    ------
    OSError
        If it cannot be made, or belongs to somebody else, whose files would be taken for cached ones.
    """
    folders = [user_cache(), *([user_cache() / name] if name else [])]
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if {folder.lstat().st_uid, folder.stat().st_uid} != {os.getuid()}:
            raise PermissionError(errno.EPERM, "another user's folder", str(folder))
        if folder.stat().st_mode & 0o077:
            # As earlier versions made it.
            folder.chmod(0o700)
    return folders[-1]


def provide_code_cache() -> None:
    """Name a temporary folder for compiled code where neither the package's folder nor the user's can be written.

    Numba refuses to compile there. Called when the package is imported, before Numba reads its environment.
    """
    if _NUMBA in os.environ or _is_writable(_PACKAGE) or _is_writable(_cache_home() / "numba"):
        return
    folder = Path(tempfile.gettempdir(), f"{_TEMPORARY}{os.getuid()}")
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        if not _is_private(folder):
            folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    os.environ[_NUMBA] = str(folder)


def code_cache() -> Path:
    """Return the folder in which this process caches compiled code; it may not exist.

    Where it is that of the package, numba writes beside each module.
    """
    if _NUMBA in os.environ:
        return Path(os.environ[_NUMBA])
    return _PACKAGE / "__pycache__" if _is_writable(_PACKAGE) else _cache_home() / "numba"


def is_temporary(folder: Path) -> bool:
    """Return whether a folder is one that `provide_code_cache` makes, which systems remove when they start."""
    return folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(_TEMPORARY)


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _is_writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, which may have to be made itself."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _is_private(folder: Path) -> bool:
    """Return whether a folder is this user's alone: compiled code of others would be run."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
