"""Name and read files of this machine: home folders, ``file://`` URLs and byte order marks.

Every path that a user gives, as an option, in a file of settings or in Python, is passed through `local_name` where it
is received; other names, such as URLs of object stores, stay as they are. Small files of a user, such as settings, are
read by `read_utf8`.

Does not cover: places in object stores (`giaann_dask.object_urls`), text to train on (`giaann_dask.text`), and writing
files (`giaann_dask.storage`).
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

from giaann_dask.errors import InputEncodingError, OptionError

BYTE_ORDER_MARK = "\ufeff"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_FILE_URL = "file:/"
_THIS_HOST = ("", "localhost")


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
