"""Write and read archives of named bytes in the tar format, of which every byte is determined by names and contents.

Headers are those of POSIX ustar with fixed modes, owners and times. Reading refuses any byte that writing would not
have written, so that nothing can hide between members, and whatever is larger than a limit before it is read. `tar -tf`
lists such a file.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from giaann_dask.errors import BundleError, InputMissingError, OptionError
from giaann_dask.storage import replacing, writing

_BLOCK = 512
_END = bytes(2 * _BLOCK)
# Most bytes that a member may have: the widest number that a header holds is 8 GiB.
_LARGEST = 1 << 32
# Members of an archive, whose names and places are in memory while it is read: some 300 MB at most.
_MOST_MEMBERS = 1 << 20


class ArchiveWriter:
    """Append members to an archive; made by `writing_archive`.

    Attributes
    ----------
    digests : dict of str to str
        SHA-256 of every member so far, in hexadecimal digits.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digests: dict[str, str] = {}

    def add(self, name: str, content: bytes) -> None:
        """Append a member.

        Raises
        ------
        OptionError
            If there are as many as an archive can have.
        """
        assert name not in self.digests, "every name is there once"
        if len(self.digests) == _MOST_MEMBERS:
            raise OptionError(
                f"a bundle of more than {_MOST_MEMBERS:,} members",
                "fewer groups of text",
                "pack several bundles, or set group_characters to more",
            )
        self._file.write(_header(name, len(content)))
        self._file.write(content)
        self._file.write(bytes(-len(content) % _BLOCK))
        self.digests[name] = hashlib.sha256(content).hexdigest()


@contextmanager
def writing_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Provide a writer of an archive, which is at the path only when the context ends without an error."""
    with writing(f"the bundle {path}"), replacing(path) as partial, partial.open("wb") as file:
        yield ArchiveWriter(file)
        file.write(_END)


class Archive:
    """Read the members of an archive in any order.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    InputMissingError
        If it cannot be read.
    BundleError
        If a byte between its members is not what `ArchiveWriter` writes, or there are too many members.

    Attributes
    ----------
    names : tuple of str
        Members in the order in which they were written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self._places = dict(self._members(file))
        self.names = tuple(self._places)

    def size(self, name: str) -> int:
        """Return the bytes of a member, without reading it.

        Raises
        ------
        BundleError
            If there is no such member.
        """
        if name not in self._places:
            raise self._damage(f"has no {name}")
        return self._places[name][1]

    def read(self, name: str, most: int = _LARGEST) -> bytes:
        """Return a member.

        Parameters
        ----------
        name : str
            Of the member.
        most : int
            Bytes that it may have; a larger one is not read.

        Raises
        ------
        BundleError
            If there is no such member, it is larger, or the file has become shorter.
        """
        if (size := self.size(name)) > most:
            raise self._damage(f"has {size:,} bytes of {name}", f"{most:,} at most")
        with self._opened() as file:
            file.seek(self._places[name][0])
            content = file.read(size)
        if len(content) < size:
            raise self._damage("has become shorter")
        return content

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """Open the file, which has to be an ordinary one: others may have no end, or wait for a writer."""
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise InputMissingError(f"the bundle {self.path} is not a regular file", "a file")
            with self.path.open("rb") as file:
                yield file
        except InputMissingError:
            raise
        except OSError as error:
            raise InputMissingError(f"the bundle {self.path} cannot be read ({error.strerror})", "a file") from error

    def _members(self, file: IO[bytes]) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the names, places and sizes of the members."""
        total, known = os.fstat(file.fileno()).st_size, set[str]()
        while (header := file.read(_BLOCK)) != _END[:_BLOCK]:
            name, size = self._parse(header)
            begin = file.tell()
            if name in known or size > total - begin:
                raise self._damage(f"has the member {name!r} twice, or not completely")
            if len(known) == _MOST_MEMBERS:
                raise self._damage("has more members", f"{_MOST_MEMBERS:,} at most")
            known.add(name)
            file.seek(size, os.SEEK_CUR)
            if any(file.read(-size % _BLOCK)):
                raise self._damage(f"has bytes after the member {name!r}")
            yield name, (begin, size)
        # One byte more than the end has: what follows it may have none.
        if file.read(_BLOCK + 1) != _END[_BLOCK:]:
            raise self._damage("has bytes after its end, or none")

    def _parse(self, header: bytes) -> tuple[str, int]:
        """Return the name and size in a header that is what they determine."""
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            if info.size <= _LARGEST and _header(info.name, info.size) == header:
                return info.name, info.size
        except (tarfile.HeaderError, ValueError):
            pass
        raise self._damage("has a header that no bundle has")

    def _damage(self, what: str, expected: str = "a bundle that giaann-dask island pack has written") -> BundleError:
        return BundleError(f"{self.path} {what}", expected, "request it again")


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
