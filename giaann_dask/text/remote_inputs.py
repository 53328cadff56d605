"""Open text at URLs by fsspec: web servers, object stores, archives and whatever else it has a file system for.

Credentials and endpoints of object stores are those that the URL carries (`giaann_dask.object_urls`), or come from the
environment, as those of networks do.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from giaann_dask.errors import GiaannError, InputMissingError, MissingDependencyError
from giaann_dask.local_files import local_name
from giaann_dask.object_urls import ObjectUrl, options_of

# Protocols of object stores, which one client serves.
_OBJECT_STORES = ("s3", "gs", "az")
_SEPARATOR = "://"
# Answers of web servers that have no such file: "not found" and "gone".
_MISSING = (404, 410)
_CHAIN = "::"


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """File at a URL.

    Attributes
    ----------
    url : str
        As fsspec names it; a file of an archive as ``zip://FILE::URL``.
    """

    url: str
    _opened: tuple[Any, str] = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """Last part of the path, whose suffix tells the format."""
        return PurePosixPath(self._opened[1].partition("?")[0]).name

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    @property
    def has_ranges(self) -> bool:
        """Whether the file can be read from any byte on: it is neither in an archive nor compressed."""
        return _CHAIN not in self.url and PurePosixPath(self.name.lower()).suffix not in COMPRESSED

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file for reading bytes.

        Raises
        ------
        InputMissingError
            If it cannot be opened.
        """
        files, path = self._opened
        with _answering(self.url):
            stream = files.open(path, "rb")
        # Its own lines have no maximum length.
        with io.BufferedReader(stream) as buffered:
            yield cast(BinaryIO, buffered)


def names_url(text: str) -> bool:
    """Return whether a string without white space names a URL.

    Examples
    --------
    >>> names_url("https://example.org/book.txt"), names_url("zip://*.txt::books.zip"), names_url("books/a.txt")
    (True, True, False)
    """
    return _SEPARATOR in text and not any(map(str.isspace, text))


def find_files(url: str, suffixes: tuple[str, ...]) -> list[RemoteInput]:
    """Return the files at a URL, sorted: the file itself, those that a pattern matches, or those below a folder.

    Parameters
    ----------
    url : str
        URL of a file or folder, or with a pattern (``*``, ``?``, ``[a-z]``, ``**``) in its first part.
    suffixes : tuple of str
        Suffixes of the files that are taken from a folder, as `suffix_of` returns them.

    Raises
    ------
    InputMissingError
        If there is no such file, or it cannot be reached.
    MissingDependencyError
        If the package for the protocol is not installed.
    """
    with _answering(url):
        files, path = _file_system(url)
        protocol, _, rest = url.partition(_SEPARATOR)
        # A query of a web address is no pattern, and a page is no folder.
        lists = protocol not in ("http", "https")
        if lists and any(mark in rest.partition(_CHAIN)[0] for mark in "*?["):
            found = sorted(each for each in files.glob(path) if not files.isdir(each))
        elif lists and files.isdir(path):
            found = sorted(each for each in files.find(path) if suffix_of(each) in suffixes)
        elif not lists:
            # Whether it exists would be no for any answer but a good one.
            files.info(path)
            found = [path]
        else:
            found = [path] if files.exists(path) else []
    if not found:
        raise InputMissingError(f"there is no file at {url!r}", "a file, a folder of text or a pattern", "correct it")
    chain = _CHAIN + url.partition(_CHAIN)[2] if _CHAIN in url else ""
    return [
        RemoteInput(url if each == path else _named(f"{protocol}{_SEPARATOR}{each}{chain}", url), (files, each))
        for each in found
    ]


def open_url(url: str) -> RemoteInput:
    """Return the file at a URL that `find_files` has found.

    Raises
    ------
    InputMissingError, MissingDependencyError
        If it cannot be reached.
    """
    with _answering(url):
        return RemoteInput(url, _file_system(url))


def suffix_of(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of a compression.

    Examples
    --------
    >>> suffix_of("Dev.conllu.GZ"), suffix_of("books/a.txt.zst")
    ('.conllu', '.txt')
    """
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of files that are decompressed while they are read."""


def _named(url: str, found_at: str) -> str:
    """Return the URL of a file with the options of the URL that it was found at."""
    return ObjectUrl(url, found_at.options) if isinstance(found_at, ObjectUrl) else url


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system and the path of a URL; object stores are reached by obstore, also below an archive."""
    import fsspec.core

    protocol, _, path = url.partition(_SEPARATOR)
    below = [each.partition(_SEPARATOR)[0] for each in url.split(_CHAIN)]
    stores = {name: options_of(url).for_obstore(name) for name in below if name in _OBJECT_STORES}
    if stores:
        import obstore.fsspec

        if len(below) == 1:
            connect: Any = obstore.fsspec.FsspecStore
            return connect(protocol, **stores[protocol]), path
        obstore.fsspec.register(list(stores))
        files, archive = _file_system(_named(url.partition(_CHAIN)[2], url))
        # Files of obstore that could not be opened print a traceback when they are collected.
        if not files.exists(archive):
            raise FileNotFoundError(archive)
    # Archives on this machine; fsspec takes their paths as they are.
    links = [
        each if names_url(each) and not each.startswith("file:") else local_name(each) for each in url.split(_CHAIN)
    ]
    return cast(tuple[Any, str], fsspec.core.url_to_fs(_CHAIN.join(links), **stores))


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Translate the errors of file systems, whose types depend on the protocol."""
    try:
        yield
    except GiaannError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            f"{url!r} needs a package that is not installed ({error})",
            "the package for its protocol",
            "pip install 'giaann-dask[remote]', or the package that fsspec names",
        ) from error
    except FileNotFoundError as error:
        # What a web server answers, or why it does not.
        cause = error.__cause__
        if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) in _MISSING:
            raise InputMissingError(f"there is no file at {url!r}", "", "correct the address") from error
        raise _unreadable(url, cause) from error
    except Exception as error:
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: BaseException) -> InputMissingError:
    return InputMissingError(
        f"{url!r} cannot be read ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})",
        "an address that answers",
        "check the address, the network and the credentials, in the environment or in storage_options",
    )
