"""Open files, pipes, standard input and URLs, compressed or not, and read their lines with bounded memory.

Streams that can be read only once are read so that a stop event ends the wait for them. Errors of opening,
decompressing and decoding name the file and the line. URLs are those of web servers, object stores, archives and
whatever else fsspec has a file system for; credentials and endpoints of object stores are those that the URL carries
(`giaann_dask.object_urls`), or come from the environment, as those of networks do.

Does not cover: finding files on this machine (`inputs`), their formats (`formats`), and parsing lines (`reading`).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

from giaann_dask.errors import (
    GiaannError,
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    MissingDependencyError,
)
from giaann_dask.local_files import BYTE_ORDER_MARK, UTF16_MARKS, local_name
from giaann_dask.object_urls import ObjectUrl, options_of
from giaann_dask.text.formats import COMPRESSED, MOST_WINDOW_LOG, WINDOW_LOG

STANDARD_INPUT = "-"

_Read = TypeVar("_Read", bytes, int)
# Timeout of one poll, after which the event is checked.
_WAIT_MS = 100
_MARK = BYTE_ORDER_MARK.encode()
# Carriage returns before a newline belong to it; others end lines of their own (old Macintosh files).
_LINE_END = re.compile(rb"\r*\n|\r")
_BYTES_PER_CHARACTER = 4
_BLOCK_BYTES = 65_536
# Longest header of a zstd frame, in bytes.
_FRAME_HEADER = 18
# Protocols of object stores, which one client serves.
_OBJECT_STORES = ("s3", "gs", "az")
_SEPARATOR = "://"
# Answers of web servers that have no such file: "not found" and "gone".
_MISSING = (404, 410)
_CHAIN = "::"


@dataclass(frozen=True, slots=True)
class StandardInput:
    """Standard input, named ``-`` and read as plain text. A file of that name is named ``./-``."""

    @property
    def name(self) -> str:
        """Name of the input on the command line."""
        return STANDARD_INPUT

    def __str__(self) -> str:
        """Return the description for messages."""
        return "standard input"


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


@dataclass(frozen=True, slots=True, eq=False)
class BegunInput:
    """Stream that can be read only once, with the beginning that was read to find its format.

    Attributes
    ----------
    source : Path, StandardInput or RemoteInput
        Where it is from.
    head : bytes
        What was read.
    stream : BinaryIO
        The rest, decompressed.
    """

    source: Path | StandardInput | RemoteInput
    head: bytes
    stream: BinaryIO

    @property
    def name(self) -> str:
        """Name of the source."""
        return self.source.name

    def __str__(self) -> str:
        """Return the description of the source for messages."""
        return str(self.source)


Opened: TypeAlias = Path | StandardInput | RemoteInput | BegunInput
"""What bytes are read from."""


class ReadingStopped(KeyboardInterrupt):
    """Raised when the stop event is set while waiting for a pipe; unhandled, it interrupts the run like Ctrl-C."""


def is_pipe(path: Path) -> bool:
    """Return whether a path is a pipe, a terminal or a socket, which can be read only once.

    Raises
    ------
    OSError
        If the path cannot be examined.
    """
    mode = path.stat().st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _open_standard_input(stop: Event | None) -> BinaryIO:
    """Open standard input; closing the result leaves it open."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError) as error:
        raise InputMissingError(
            "standard input ('-') is closed", "text from a pipe or a file", "name a file"
        ) from error
    return _polled(descriptor, stop, owned=False)


def _polled(descriptor: int, stop: Event | None, *, owned: bool) -> BinaryIO:
    """Return a stream of a descriptor that polls with a timeout, so that it can be stopped."""
    return cast(BinaryIO, io.BufferedReader(_PipeBytes(descriptor, stop, owned=owned)))


class _PipeBytes(io.RawIOBase):
    """Raw stream of a file descriptor that polls with a timeout, so that it can be stopped."""

    def __init__(self, descriptor: int, stop: Event | None, *, owned: bool) -> None:
        self._descriptor, self._stop, self._owned = descriptor, stop, owned
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Wait for at least one byte; return the number of bytes read, 0 at the end."""
        while self._stop is None or not self._stop.is_set():
            # Another reader of the same pipe may have taken the bytes since the poll.
            with suppress(BlockingIOError):
                if self._poll.poll(_WAIT_MS):
                    return os.readv(self._descriptor, [buffer])
        raise ReadingStopped

    def close(self) -> None:
        """Close the descriptor if this object owns it."""
        if self._owned and not self.closed:
            os.close(self._descriptor)
        super().close()


class _JoinedBytes(io.RawIOBase):
    """Raw stream of bytes that were read, and of the stream that they are from."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head, self._stream = head, cast(io.BufferedIOBase, stream)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read at least one byte; return the number of bytes read, 0 at the end."""
        size = len(buffer)
        found, self._head = self._head[:size], self._head[size:]
        found = found or self._stream.read1(size)
        buffer[: len(found)] = found
        return len(found)


class LineReader:
    """Iterate over the lines of a file, without line ends, and without byte order marks at their beginning.

    Lines end with a newline, a carriage return, or both; also in one file. A byte order mark is at the beginning of a
    line in the middle of a file where files were joined. In memory are those of some 64 KiB, or one line, and
    at most four bytes per allowed character of a line that is too long.

    Parameters
    ----------
    path : Path, StandardInput, RemoteInput or BegunInput
        File; decompressed when its name ends in ``.gz``, ``.bz2``, ``.xz`` or ``.zst``.
    line_characters : int
        Maximum length of a line.
    stop : threading.Event, optional
        When it is set, waiting for a pipe or standard input ends with `ReadingStopped`.
    start : int
        First byte to read, that of a line; other than 0 only for files that are not compressed.
    window_log : int
        See `open_bytes`.
    block_bytes : int
        Bytes that are read at a time at most.

    Attributes
    ----------
    path : Path, StandardInput, RemoteInput or BegunInput
        The file.
    number : int
        Number of the current line, from 1 for the first one that is read.
    offset : int
        First byte of the current line.

    Raises
    ------
    InputMissingError
        If the file cannot be opened.
    InputFormatError
        If a line is too long, or compressed data is damaged.
    InputEncodingError
        If a line is not UTF-8 or holds a NUL byte.
    """

    def __init__(
        self,
        path: Opened,
        line_characters: int,
        stop: Event | None = None,
        start: int = 0,
        *,
        window_log: int = WINDOW_LOG,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        self.path = path
        self._block_bytes, self._window_log = block_bytes, window_log
        self._stop = stop
        self._start = start
        self.number = 0
        self.offset = start
        self._limit = line_characters
        # Three bytes for the byte order mark and two for the line ending.
        self._size = _BYTES_PER_CHARACTER * line_characters + 5

    @property
    def place(self) -> str:
        """Description of the current line for error messages."""
        return f"line {self.number} of {str(self.path)!r}"

    def __iter__(self) -> Iterator[str]:
        """Yield the lines."""
        following = self._start
        with open_bytes(self.path, self._stop, self._window_log) as stream:
            if following:
                _read_bytes(stream.seek, following, self.place)
            for block in self._whole_lines(stream):
                pieces, ends = _divide(block)
                lines = self._decode_lines(block, pieces, following)
                begin = following
                for at, raw in enumerate(pieces):
                    self.number += 1
                    self.offset, following = following, begin + ends[at]
                    yield self._decode(raw, self.offset) if lines is None else lines[at]

    def _whole_lines(self, stream: BinaryIO) -> Iterator[bytes]:
        """Yield the bytes of one or more lines as soon as they are read; only the last ones may have no line end."""
        rest, read = b"", cast(io.BufferedIOBase, stream).read1
        while block := _read_bytes(read, self._block_bytes, f"line {self.number + 1} of {str(self.path)!r}"):
            end = block.rfind(b"\n") + 1
            if end:
                rest, whole = block[end:], rest + block[:end]
            else:
                rest += block
                # A newline may follow the last carriage returns.
                end = rest.rstrip(b"\r").rfind(b"\r") + 1
                rest, whole = rest[end:], rest[:end]
            if whole:
                yield whole
            if len(rest) >= self._size:
                # Ends with an error, unless it is carriage returns.
                yield rest
                rest = b""
        if rest:
            yield rest

    def _decode_lines(self, block: bytes, pieces: list[bytes], offset: int) -> list[str] | None:
        """Decode lines together, which takes a fraction of the time; None where they have to be looked at one by one.

        These begin the file, or one of them is too long or is not text.
        """
        if offset == 0 or b"\0" in block or max(map(len, pieces)) > self._limit:
            return None
        try:
            lines = b"\n".join(pieces).decode("utf-8").split("\n")
        except UnicodeDecodeError:
            return None
        if b"\r" in block:
            lines = [line.rstrip("\r") for line in lines]
        return [line.lstrip(BYTE_ORDER_MARK) for line in lines] if _MARK in block else lines

    def _decode(self, raw: bytes, offset: int) -> str:
        """Decode a line without its newline; `offset` is the position of its first byte in the file."""
        if b"\0" in raw and not raw.startswith(UTF16_MARKS):
            raise InputEncodingError(
                f"{self.place} holds a NUL byte, at byte {offset + raw.index(0)}", "text", "remove it"
            )
        if len(raw) >= self._size:
            raise self._too_long()
        try:
            line = raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise InputEncodingError(
                f"{self.place} is not UTF-8: byte 0x{raw[error.start]:02x} at byte {offset + error.start}",
                "text in UTF-8",
                "convert it, for example with: iconv -f "
                + ("UTF-16" if offset == 0 and raw.startswith(UTF16_MARKS) else "LATIN1")
                + " -t UTF-8",
            ) from error
        line = line.lstrip(BYTE_ORDER_MARK)
        if len(line) > self._limit:
            raise self._too_long()
        return line

    def _too_long(self) -> InputFormatError:
        """Return the error for a line that is too long."""
        return InputFormatError(
            f"{self.place} is too long",
            f"at most {self._limit} characters in a line",
            "break the line, or in Python raise line_characters of ReadOptions",
        )


def _divide(block: bytes) -> tuple[list[bytes], list[int]]:
    """Return the lines of a block, some with carriage returns at their end, and the byte after the line end of each."""
    if block.count(b"\r") == block.count(b"\r\n"):
        pieces = block.removesuffix(b"\n").split(b"\n")
        return pieces, list(accumulate(len(piece) + 1 for piece in pieces))
    ends = [found.span() for found in _LINE_END.finditer(block)]
    if not ends or ends[-1][1] < len(block):
        ends.append((len(block), len(block)))
    begins = [0, *(end for _, end in ends[:-1])]
    return [block[begin:end] for begin, (end, _) in zip(begins, ends, strict=True)], [end for _, end in ends]


def read_head(path: Path | RemoteInput, window_log: int = WINDOW_LOG) -> bytes:
    """Return the first bytes of a file, decompressed, from the first block on that is not white space.

    Returns
    -------
    bytes
        Nothing where the file holds white space alone.

    Raises
    ------
    InputMissingError
        If the file cannot be opened.
    InputFormatError
        If it is not compressed as its name says.
    """
    with open_bytes(path, None, window_log) as stream:
        while block := _read_bytes(stream.read, _BLOCK_BYTES, repr(str(path))):
            if block.replace(_MARK, b"").strip():
                return block
    return b""


@contextmanager
def begin_stream(
    path: Path | StandardInput, stop: Event | None = None, window_log: int = WINDOW_LOG
) -> Iterator[BegunInput]:
    """Open a pipe or standard input and read its beginning: a line that is not blank, or a block of 64 KiB.

    Raises
    ------
    InputMissingError, InputFormatError
        As of `read_head`.
    """
    with open_bytes(path, stop, window_log) as stream:
        head, read = b"", cast(io.BufferedIOBase, stream).read1
        while block := _read_bytes(read, _BLOCK_BYTES, f"line 1 of {str(path)!r}"):
            head += block
            if len(head) >= _BLOCK_BYTES or b"\n" in head.replace(_MARK, b"").lstrip():
                break
        yield BegunInput(path, head, stream)


@contextmanager
def open_bytes(path: Opened, stop: Event | None = None, window_log: int = WINDOW_LOG) -> Iterator[BinaryIO]:
    """Open a file or standard input for reading bytes; decompress a file by the suffix of its name.

    Parameters
    ----------
    path : Path, StandardInput, RemoteInput or BegunInput
        Input to open; a pipe is opened without waiting for a writer.
    stop : threading.Event, optional
        When it is set, waiting for a pipe or standard input ends with `ReadingStopped`.
    window_log : int
        Base-two logarithm of the bytes that decompressing zstd may look back, which it keeps in memory.

    Raises
    ------
    InputMissingError
        If it cannot be opened.
    """
    if isinstance(path, BegunInput):
        with io.BufferedReader(_JoinedBytes(path.head, path.stream)) as joined:
            yield cast(BinaryIO, joined)
        return
    if isinstance(path, StandardInput):
        with _open_standard_input(stop) as stream:
            yield stream
        return
    with _opened(path, stop) as raw:
        decompress = _DECOMPRESSORS.get(Path(path.name.lower()).suffix)
        if decompress is None:
            yield raw
            return
        with decompress(raw, window_log) as unpacked:
            yield cast(BinaryIO, unpacked)


@contextmanager
def _opened(path: Path | RemoteInput, stop: Event | None) -> Iterator[BinaryIO]:
    """Open a file as it is stored."""
    if isinstance(path, RemoteInput):
        with path.open() as stream:
            yield stream
        return
    try:
        if is_pipe(path):
            # Without waiting for a writer.
            raw = _polled(os.open(path, os.O_RDONLY | os.O_NONBLOCK), stop, owned=True)
        else:
            raw = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with raw:
        yield raw


class _LongWindowError(Exception):
    """A zstd frame looks back more bytes than is allowed; its argument is their base-two logarithm."""


class _ZstdBytes(io.RawIOBase):
    """Raw stream of what a zstd stream of one or more frames holds; its end inside a frame is an error."""

    def __init__(self, raw: BinaryIO, window_log: int) -> None:
        from zstandard import ZstdDecompressor

        self._raw, self._window = raw, 1 << window_log
        self._decompressor = ZstdDecompressor(max_window_size=self._window)
        self._frame: Any = None
        self._packed = self._unpacked = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Decompress at least one byte; return the number of bytes, 0 at the end."""
        while not self._unpacked:
            self._packed = self._packed or self._raw.read(_BLOCK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or self._begin()
            self._unpacked = self._frame.decompress(self._packed)
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._unpacked))
        buffer[:count], self._unpacked = self._unpacked[:count], self._unpacked[count:]
        return count

    def _begin(self) -> Any:
        """Return what decompresses the frame that begins here."""
        import zstandard

        if len(self._packed) < _FRAME_HEADER:
            self._packed += self._raw.read(_FRAME_HEADER)
        with suppress(zstandard.ZstdError):
            window = zstandard.get_frame_parameters(self._packed).window_size
            if window > self._window:
                raise _LongWindowError((window - 1).bit_length())
        return self._decompressor.decompressobj()


_DECOMPRESSORS: dict[str, Callable[[BinaryIO, int], Any]] = {
    ".gz": lambda raw, _: gzip.GzipFile(fileobj=raw, mode="rb"),
    ".bz2": lambda raw, _: bz2.BZ2File(raw),
    ".xz": lambda raw, _: lzma.LZMAFile(raw),  # noqa: SIM115
    ".zst": lambda raw, window_log: io.BufferedReader(_ZstdBytes(raw, window_log)),
}


def unreadable(path: Path, error: OSError) -> InputMissingError:
    """Return the error for a file or folder that cannot be opened."""
    return InputMissingError(
        f"{str(path)!r} cannot be read ({error.strerror or error})",
        "",
        "check that it exists and that you have permission to read it",
    )


def _read_bytes(read: Callable[[int], _Read], size: int, place: str) -> _Read:
    """Read up to `size` bytes, or go to that byte; errors name the place."""
    try:
        return read(size)
    except (GiaannError, MemoryError):
        raise
    except _LongWindowError as error:
        (needed,) = error.args
        raise InputFormatError(
            f"{place}: the data is compressed by zstd with a window of {1 << (needed - 20)} MiB",
            "one of at most 128 MiB, or the one that window_log allows",
            f"set window_log to {needed}" if needed <= MOST_WINDOW_LOG else "compress it with a smaller window",
        ) from error
    except Exception as error:
        # bz2 raises an OSError without a number, and zstandard an error of its own.
        numbered = isinstance(error, OSError) and error.errno is not None
        packed = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
        if isinstance(error, packed) or type(error).__module__.startswith("zstandard") or _is_bz2(error, place):
            raise InputFormatError(
                f"{place}: the compressed data is damaged or cut short ({error})",
                "data as the suffix of the name says",
                "compress the file again, or give it a name without that suffix",
            ) from error
        said = error.strerror if numbered and isinstance(error, OSError) else error
        remedy = "check the disk" if numbered else "check disk and network"
        raise InputFormatError(f"{place} cannot be read ({said})", "", remedy) from error


def _is_bz2(error: Exception, place: str) -> bool:
    """Return whether an error of reading a place comes of damaged bz2 data."""
    return isinstance(error, OSError) and error.errno is None and ".bz2" in place.lower()


def names_url(text: str) -> bool:
    """Return whether a string without white space names a URL.

    Examples
    --------
    >>> names_url("https://example.org/book.txt"), names_url("zip://*.txt::books.zip"), names_url("books/a.txt")
    (True, True, False)
    """
    return _SEPARATOR in text and not any(map(str.isspace, text))


def find_files(url: str) -> tuple[list[RemoteInput], bool]:
    """Return the files at a URL, sorted, and whether it names one: else it is a pattern or a folder.

    Files that are hidden, as those of folders on this machine are, are left out.

    Parameters
    ----------
    url : str
        URL of a file or folder, or with a pattern (``*``, ``?``, ``[a-z]``, ``**``) in its first part.

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
        named = False
        if lists and any(mark in rest.partition(_CHAIN)[0] for mark in "*?["):
            found = sorted(each for each in files.glob(path) if not (files.isdir(each) or _is_hidden(each)))
        elif lists and files.isdir(path):
            below = len(str(path).strip("/"))
            found = sorted(each for each in files.find(path) if not _is_hidden(each.strip("/")[below:]))
        else:
            named = True
            if not lists:
                # Whether it exists would be no for any answer but a good one.
                files.info(path)
            found = [path] if not lists or files.exists(path) else []
    if not found:
        raise InputMissingError(f"there is no file at {url!r}", "a file, a folder of text or a pattern", "correct it")
    chain = _CHAIN + url.partition(_CHAIN)[2] if _CHAIN in url else ""
    inputs = [
        RemoteInput(url if each == path else _named(f"{protocol}{_SEPARATOR}{each}{chain}", url), (files, each))
        for each in found
    ]
    return inputs, named


def _is_hidden(path: str) -> bool:
    """Return whether a file, or a folder that it is in, is hidden."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))


def open_url(url: str) -> RemoteInput:
    """Return the file at a URL that `find_files` has found.

    Raises
    ------
    InputMissingError, MissingDependencyError
        If it cannot be reached.
    """
    with _answering(url):
        return RemoteInput(url, _file_system(url))


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
        "an address that responds",
        "check the address, the network and the credentials, in the environment or in storage_options",
    )
