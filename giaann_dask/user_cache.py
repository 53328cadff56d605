"""Find folders for files that can be made again: cached files of this package, and compiled code.

Cached files hold words of networks, so their folder is the user's alone. Where the user has no home folder, or one that
may not be entered, nothing is cached but compiled code, in a temporary folder.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from giaann_dask.local_files import is_there

_NUMBA = "NUMBA_CACHE_DIR"
_PACKAGE = Path(__file__).parent
_IN_PACKAGE = _PACKAGE / "__pycache__"
# Name of the folder that is made where no other one can be written.
_TEMPORARY = "giaann-dask-"
# No folder can be made below it.
_NOWHERE = Path(os.devnull)


def user_cache() -> Path:
    """Return the folder for cached files of this package, ``XDG_CACHE_HOME/giaann_dask``; it may not exist.

    Without ``XDG_CACHE_HOME`` it is in ``~/.cache``; a user without a home folder has one that cannot be made.
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
    """Name a folder for compiled code in ``NUMBA_CACHE_DIR`` where numba would find none or another one.

    Numba refuses to compile where neither the package's folder nor the user's can be written, and makes a folder in
    the working directory where the user has none. Called when the package is imported, before numba reads its
    environment; a folder that the user names there is left where it can be written.
    """
    folder = _writable_cache()
    if folder is None:
        # Without any, numba says so when it compiles.
        with suppress(OSError):
            folder = Path(tempfile.gettempdir(), f"{_TEMPORARY}{os.getuid()}")
            try:
                folder.mkdir(mode=0o700)
            except OSError:
                if not _is_private(folder):
                    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
            os.environ[_NUMBA] = str(folder)
    elif folder != _IN_PACKAGE:
        os.environ[_NUMBA] = str(folder)


def code_cache() -> Path:
    """Return the folder in which this process caches compiled code; it may not exist.

    Where it is that of the package, numba writes beside each module.
    """
    return _writable_cache() or Path(os.environ.get(_NUMBA) or _cache_home() / "numba")


def is_temporary(folder: Path) -> bool:
    """Return whether a folder is one that `provide_code_cache` makes, which systems remove when they start."""
    return folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(_TEMPORARY)


def _writable_cache() -> Path | None:
    """Return the first folder for compiled code that can be written: the one that is named, the package's, the user's.

    Numba looks in the same order.
    """
    named = os.environ.get(_NUMBA)
    if named and _is_writable(Path(named)):
        return Path(named)
    if _is_writable(_PACKAGE):
        return _IN_PACKAGE
    ours = _cache_home() / "numba"
    return ours if _is_writable(ours) else None


def _cache_home() -> Path:
    """Return the folder of a user's caches; paths that are not absolute name none, as for other programs."""
    with suppress(KeyError):
        for name, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
            if os.path.isabs(given := os.environ.get(name, "")):
                return Path(given, below)
        if os.path.isabs(home := pwd.getpwuid(os.getuid()).pw_dir):
            return Path(home, ".cache")
    return _NOWHERE


def _is_writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, which may have to be made itself."""
    try:
        while not is_there(folder) and folder != folder.parent:
            if folder.is_symlink():
                return False
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        # Such as one that may not be entered, or has too long a name.
        return False


def _is_private(folder: Path) -> bool:
    """Return whether a folder is this user's alone: compiled code of others would be run."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
