"""Name and read files of this machine, and find folders for files that can be made again.

Every path that a user gives, as an option, in a file of settings or in Python, is passed through `local_name` where it
is received; other names, such as URLs of object stores, stay as they are. Small files of a user, such as settings, are
read by `read_utf8`.

Files that can be made again are cached files of this package and compiled code. Cached files hold words of networks, so
their folder is the user's alone. Where the user has no home folder, or one that may not be entered, nothing is cached
but compiled code, in a temporary folder.

Does not cover: places in object stores (`giaann_dask.object_urls`), text to train on (`giaann_dask.text`), and writing
files (`giaann_dask.storage`).
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote_to_bytes

from giaann_dask.errors import InputEncodingError, OptionError

BYTE_ORDER_MARK = "\ufeff"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_FILE_URL = "file:/"
_THIS_HOST = ("", "localhost")
_NUMBA = "NUMBA_CACHE_DIR"
_PACKAGE = Path(__file__).parent
_IN_PACKAGE = _PACKAGE / "__pycache__"
# Name of the folder that is made where no other one can be written.
_TEMPORARY = "giaann-dask-"
# No folder can be made below it.
_NOWHERE = Path(os.devnull)


def is_there(path: Path) -> bool:
    """Return whether a file or folder is there.

    Raises
    ------
    OSError
        If that cannot be known: a folder above may not be entered, or the name is too long. ``Path.exists`` hides this
        since Python 3.14.

    Examples
    --------
    >>> is_there(Path("/")), is_there(Path("/not/there"))
    (True, False)
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def local_name(name: str | os.PathLike[str]) -> str:
    """Return a name of a file, folder or other place, with the home folder and ``file://`` resolved.

    Parameters
    ----------
    name : str or path
        ``~/PATH`` and ``~USER/PATH`` begin at a home folder, as in a shell. ``file:///PATH`` is a path whose bytes may
        be written as ``%20`` (RFC 8089), as ``Path.as_uri()`` does.

    Raises
    ------
    OptionError
        If a URL names a file of another machine or holds a NUL byte, or a home folder is not known.

    Examples
    --------
    >>> local_name("file:///books/old%20miller.txt"), local_name("books/*.txt"), local_name("s3://bucket/village")
    ('/books/old miller.txt', 'books/*.txt', 's3://bucket/village')
    """
    text = os.fspath(name)
    if text[: len(_FILE_URL)].lower() == _FILE_URL:
        return _path_of_url(text)
    return _in_home(text) if text.startswith("~") else text


def local_path(name: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder and ``file://`` resolved; see `local_name`."""
    text = local_name(name)
    return name if isinstance(name, Path) and text == os.fspath(name) else Path(text)


def _path_of_url(url: str) -> str:
    """Return the path of a ``file:`` URL."""
    rest = url[len(_FILE_URL) - 1 :]
    # Paths of the standard library write two slashes as one.
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in _THIS_HOST or not slash:
            raise OptionError(
                f"the URL {url!r} names the host {host!r}", "a file of this machine", "name it as file:///PATH"
            )
        rest = slash + path
    path_bytes = unquote_to_bytes(rest)
    if b"\0" in path_bytes:
        raise OptionError(f"the URL {url!r} holds a NUL byte", "a file of this machine", "name it as file:///PATH")
    return os.fsdecode(path_bytes)


def _in_home(name: str) -> str:
    """Return a name that begins with ``~`` as a path, where it names a home folder."""
    found = os.path.expanduser(name)
    user, slash, _ = name.partition("/")
    # What a shell would leave, too; a folder of that name would hardly be meant.
    if found == name and (slash or user == "~") and not os.path.lexists(user):
        raise OptionError(
            f"the home folder in {name!r} is not known", "~ or ~USER of a user of this machine", "write the whole path"
        )
    return found


def read_utf8(path: str | os.PathLike[str]) -> str:
    """Return the text of a small file, without byte order marks.

    Raises
    ------
    OSError
        If it cannot be read.
    InputEncodingError
        If it is not UTF-8.
    """
    return decode_utf8(Path(path).read_bytes(), str(path))


def decode_utf8(data: bytes, place: str) -> str:
    r"""Return bytes as text, without byte order marks, also those within files that were joined.

    Parameters
    ----------
    data : bytes
        Text in UTF-8.
    place : str
        Where it is from, for the error.

    Raises
    ------
    InputEncodingError
        If it is not UTF-8.

    Examples
    --------
    >>> decode_utf8(b"\xef\xbb\xbfseed_tokens = 4", "settings")
    'seed_tokens = 4'
    """
    try:
        return data.decode("utf-8").replace(BYTE_ORDER_MARK, "")
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if data.startswith(UTF16_MARKS) else "LATIN1"
        raise InputEncodingError(
            f"{place} is not UTF-8: byte 0x{data[error.start]:02x} at byte {error.start}",
            "text in UTF-8",
            f"convert it, for example with: iconv -f {encoding} -t UTF-8",
        ) from error


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
