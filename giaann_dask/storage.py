"""Create, append to and read compressed, checksummed one-dimensional Zarr arrays.

Corpora and networks share these codecs and chunk sizes, and the translation of a store's errors into those of
`giaann_dask.errors`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import (
    RESTORE,
    GiaannError,
    OptionError,
    StoreDamagedError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
)
from giaann_dask.growing_arrays import StoredArray
from giaann_dask.library_internals import sync
from giaann_dask.limits import causes_of, matches, resource_limit
from giaann_dask.local_files import BYTE_ORDER_MARK
from giaann_dask.object_urls import is_object_store, object_path

CHUNK = 262_144
# The attribute of a group with the checksums of the values of its arrays, where there is one.
CHECKSUMS = "checksums"

# What Icechunk and obstore say of a request that came to nothing.
_UNREACHABLE = (
    *("dispatch failure", "timed out", "connection refused", "connection reset"),
    *("error sending request", "error trying to connect"),
)
# What they say where they look for credentials in vain: the addresses are those of the services of virtual machines.
_CREDENTIALS = ("loading credentials", "credential provider", "169.254.169.254", "metadata.google.internal")
# What writing fails of, in the order in which it is looked for: exceptions, error numbers, and texts of libraries
# without these, such as Icechunk; the error that is raised instead, with what it expects and advises.
_WRITE_FAULTS: tuple[tuple[tuple[type, ...], tuple[int, ...], tuple[str, ...], type[GiaannError], str, str], ...] = (
    (
        (),
        (),
        ("snapshot timestamp is invalid", "invalid snapshot timestamp"),
        StoreRefusedError,
        "a clock that differs from that of the store, and of those who wrote before, by less than ten minutes",
        "set the clock of this machine, and run the same command again",
    ),
    (
        (),
        (errno.EROFS,),
        ("read-only file system", "read-only filesystem", "os error 30", "errno 30"),
        StoreRefusedError,
        "a file system that may be written to",
        "choose a path on another one, or mount this one for writing",
    ),
    (
        # The last one comes of making a folder where a file is.
        (PermissionError, NotADirectoryError, IsADirectoryError, FileNotFoundError, FileExistsError),
        (errno.ELOOP, errno.ENAMETOOLONG),
        (
            *("permission denied", "os error 13", "not permitted", "not a directory", "is a directory"),
            *("too many levels of symbolic links", "file name too long"),
        ),
        StoreRefusedError,
        "a path that may be written",
        "name such a path, or change who may write there",
    ),
    (
        (),
        (errno.EDQUOT,),
        ("disk quota", "quota exceeded", "os error 122", "errno 122"),
        StoreFullError,
        "room within the disk quota",
        "remove files of yours or have the quota raised, and run the same command again; everything committed before "
        "is intact",
    ),
    (
        (),
        (errno.ENOSPC, errno.EFBIG),
        ("no space left", "os error 28", "errno 28", "file too large", "os error 27", "errno 27"),
        StoreFullError,
        "room on the disk",
        "free some space and run the same command again; everything committed before is intact",
    ),
)


class _MissingArrayError(StoreDamagedError):
    """An array that a store should have; `reading` adds of which store."""


def create_array(group: zarr.Group, name: str, values: npt.NDArray[Any], chunk: int = CHUNK) -> zarr.Array[Any]:
    """Create an array in a group and write its first values.

    Parameters
    ----------
    group : zarr.Group
        Where to create it.
    name : str
        Its name.
    values : ndarray
        Integers or booleans; the first axis is the one that grows.
    chunk : int
        Length of a chunk along the first axis.

    Returns
    -------
    zarr.Array
        Compressed by zstd after a bit shuffle, each chunk closed by a CRC-32C checksum.
    """
    sync(StoredArray.create(_asynchronous(group), name, values, chunk))
    return cast("zarr.Array[Any]", group[name])


async def append_values(group: zarr.AsyncGroup, name: str, values: npt.NDArray[Any]) -> int:
    """Append values to an array of a group, creating it if it does not exist; return its length before."""
    array = await StoredArray.find(group, name)
    if array is None:
        await StoredArray.create(group, name, values)
        _record(group, name, values, after=0)
        return 0
    before = len(array)
    if len(values):
        await array.write(before, values)
        _record(group, name, values.astype(array.dtype), after=_recorded(group, name))
    return before


async def update_values(group: zarr.AsyncGroup, name: str, values: npt.NDArray[Any]) -> None:
    """Make an array of a group equal some values, at least as many as it has; create it if it does not exist.

    Written are those from the first that differs to the last, and those beyond the end.
    """
    array = await StoredArray.find(group, name)
    if array is None:
        await StoredArray.create(group, name, values)
        _record(group, name, values, after=0)
        return
    _record(group, name, values.astype(array.dtype), after=0)
    stored = len(array)
    differs = await array.read() != values[:stored]
    changed = np.flatnonzero(differs.any(axis=tuple(range(1, values.ndim))))
    if len(changed):
        first, last = int(changed[0]), int(changed[-1]) + 1
        await array.write(first, values[first:last])
    if len(values) > stored:
        await array.write(stored, values[stored:])


def _recorded(group: zarr.AsyncGroup, name: str) -> int:
    """Return the checksum of an array of a group whose arrays have some; see `seal_arrays`."""
    return int(group.metadata.attributes.get(CHECKSUMS, {}).get(name, 0))


def _record(group: zarr.AsyncGroup, name: str, values: npt.NDArray[Any], *, after: int) -> None:
    """Note the checksum of an array with new values after those of a checksum, in a group whose arrays have some."""
    if CHECKSUMS in group.metadata.attributes:
        group.metadata.attributes[CHECKSUMS][name] = int(google_crc32c.extend(after, values.tobytes()))


Write = Callable[[zarr.AsyncGroup], Awaitable[object]]
"""Write to arrays of a group: `append_values`, say, with all its arguments but the first."""


def write_concurrently(group: zarr.Group, writes: Iterable[Write]) -> None:
    """Write to arrays of a group concurrently; raise the first error after all have ended.

    Where the group has checksums of its arrays, the object of the group has those of the new values afterwards.

    Parameters
    ----------
    group : zarr.Group
        Where to write.
    writes : iterable of callable
        Each changes arrays of its own.
    """
    opened = _asynchronous(group)

    async def write_all() -> list[object]:
        return await asyncio.gather(*(write(opened) for write in writes), return_exceptions=True)

    for found in sync(write_all()):
        if isinstance(found, BaseException):
            raise found


def _asynchronous(group: zarr.Group) -> zarr.AsyncGroup:
    return zarr.AsyncGroup(metadata=group.metadata, store_path=group.store_path)


def read_array(group: zarr.Group, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
    """Read an array of a group, or a part of it along the first axis; see `read_arrays`."""
    return read_arrays(group, {name: (start, stop)})[name]


def read_arrays(
    group: zarr.Group, parts: Iterable[str] | Mapping[str, tuple[int, int | None]]
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of a group concurrently.

    Parameters
    ----------
    group : zarr.Group
        The group.
    parts : iterable of str, or mapping of str to tuple of (int, int or None)
        Names of the arrays, and which part of each is read along the first axis; by default as a whole.

    Raises
    ------
    StoreDamagedError
        If an array is missing or, read as a whole, is not the one whose checksum the group has.
    """
    spans = parts if isinstance(parts, Mapping) else dict.fromkeys(parts, (0, None))
    opened = _asynchronous(group)

    async def read(name: str, start: int, stop: int | None) -> tuple[npt.NDArray[Any], int]:
        array = await StoredArray.find(opened, name)
        if array is None:
            path = f"{group.path}/{name}".lstrip("/")
            raise _MissingArrayError(f"the array {path} is missing", "an intact store", RESTORE)
        return await array.read(start, stop), len(array)

    async def read_all() -> list[tuple[npt.NDArray[Any], int]]:
        return await asyncio.gather(*(read(name, *span) for name, span in spans.items()))

    checksums = cast(Mapping[str, int], group.attrs.get(CHECKSUMS, {}))
    found = {}
    for name, (values, length) in zip(spans, sync(read_all()), strict=True):
        expected = checksums.get(name)
        if expected is not None and len(values) == length and checksum_of(values.tobytes()) != expected:
            raise StoreDamagedError(f"array {name} of {group.store_path} is not what was written")
        found[name] = values
    return found


def checksum_of(content: bytes) -> int:
    """Return the CRC-32C checksum of some bytes."""
    return int(google_crc32c.value(content))


def checksum_of_json(values: Any) -> int:
    """Return the checksum of values that JSON can hold, which does not depend on the order of keys."""
    return checksum_of(json.dumps(values, sort_keys=True).encode())


def seal_arrays(group: zarr.Group) -> dict[str, int]:
    """Return the checksums of the values of all arrays of a group, for its attribute `CHECKSUMS`.

    A chunk closes with its own checksum, which it keeps where it is taken for a chunk of another array.
    """

    async def read_all() -> dict[str, npt.NDArray[Any]]:
        arrays = dict(sorted([each async for each in _asynchronous(group).arrays()]))
        values = await asyncio.gather(*(array.getitem(slice(None)) for array in arrays.values()))
        return {name: np.asarray(each) for name, each in zip(arrays, values, strict=True)}

    return {name: checksum_of(values.tobytes()) for name, values in sync(read_all()).items()}


async def write_json(group: zarr.AsyncGroup, name: str, value: Any) -> None:
    """Create an array with a JSON document."""
    text = np.frombuffer(json.dumps(value, sort_keys=True).encode(), np.uint8)
    await StoredArray.create(group, name, text, len(text))
    _record(group, name, text, after=0)


def read_json(group: zarr.Group, name: str) -> Any:
    """Return the JSON document of an array."""
    return json.loads(read_array(group, name).tobytes())


def bytes_on_disk(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    found, folders = 0, [str(folder)]
    # A network of many commits has tens of thousands of files, of which Path would make objects.
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file():
                    found += entry.stat().st_size
    return found


def require_local(path: Path) -> None:
    """Raise an `OptionError` if what is to be a file or folder of this machine is named by a URL."""
    if is_object_store(path):
        raise OptionError(
            f"a file at {object_path(str(path))}", "a path on this machine", "write it here, then copy it"
        )


def require_writable(path: Path) -> None:
    """Make the folder of a file that will be written, and raise a `StoreRefusedError` if it cannot be.

    Better before hours of work than after them.
    """
    require_local(path)
    with writing(str(path)):
        _require_end(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = errno.EROFS if os.statvfs(path.parent).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(reason, os.strerror(reason), str(path))


def _require_end(path: Path) -> None:
    """Raise the system's error where the links of a path lead in a circle; one of them would be replaced."""
    with suppress(FileNotFoundError):
        path.stat()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside a file, which takes its place when the context ends without an error.

    So there is never half a file, and an older one stays as it was until the new one is complete. What is no ordinary
    file, such as a pipe, or lies in a folder that may not be written to, is written directly. The folder is made where
    it is missing; errors are those of the system, for `writing`.

    Parameters
    ----------
    path : Path
        The file that is to be there in the end; a link to it stays a link.
    """
    require_local(path)
    _require_end(path)
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        if not target.is_file() or not os.access(target.parent, os.W_OK):
            yield target
            return
    partial = target.with_name(target.name + ".partial")
    try:
        yield partial
        with partial.open("rb") as file:
            # Some file systems report a full disk only here.
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    finally:
        # On a read-only file system even this fails, which would hide what has been raised.
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_file(path: Path, content: bytes | str, what: str = "") -> Path:
    """Write a whole file, which is there only when it is complete (see `replacing`).

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.
    content : bytes or str
        What it shall hold; text is written as UTF-8.
    what : str
        What kind of file it is, for errors, such as "the picture".

    Raises
    ------
    StoreFullError, StoreRefusedError
        If it cannot be written.
    """
    with writing(f"{what} {path}".lstrip()), replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_limited(path: Path, most: int) -> bytes:
    """Return the content of a file that others may have sent.

    Raises
    ------
    OSError
        If it cannot be read, or has more than so many bytes, of which no more are read.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes")
    return content


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines, without truncated lines; empty if there is no file."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").replace(BYTE_ORDER_MARK, "").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Translate errors of writing into a `StoreFullError` or a `StoreRefusedError`."""
    try:
        yield
    except GiaannError:
        raise
    except Exception as error:
        if is_unreachable(error):
            raise unreachable(what, error) from error
        if (limit := resource_limit(error)) is not None:
            raise limit from error
        for kinds, numbers, signs, raised, expected, remedy in _WRITE_FAULTS:
            if any(isinstance(seen, kinds) for seen in causes_of(error)) or matches(error, numbers, signs):
                raise raised(f"{what} could not be written: {first_line(error)}", expected, remedy) from error
        raise


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn the failures of a store that cannot be decoded into a `StoreDamagedError`."""
    try:
        yield
    except _MissingArrayError as error:
        raise StoreDamagedError(f"{what} cannot be read: {error.received}", error.expected, error.remedy) from error
    except GiaannError:
        raise
    except Exception as error:
        if is_unreachable(error):
            raise unreachable(what, error) from error
        if (limit := resource_limit(error)) is not None:
            raise limit from error
        raise StoreDamagedError(
            f"{what} cannot be read: {first_line(error)}",
            "an intact store",
            "restore it from a copy",
        ) from error


def is_unreachable(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, says that an object store did not respond."""
    return _says(error, (*_UNREACHABLE, *_CREDENTIALS))


def _says(error: BaseException, signs: Sequence[str]) -> bool:
    """Return whether an error of Icechunk or obstore, or one that caused it, has one of some texts."""
    return any(
        type(seen).__module__.partition(".")[0] in ("icechunk", "obstore")
        and any(sign in str(seen).lower() for sign in signs)
        and not isinstance(seen, GiaannError)
        for seen in causes_of(error)
    )


def unreachable(what: str, error: BaseException) -> StoreUnreachableError:
    """Return the error for an object store that does not respond, or for which there are no credentials."""
    if _says(error, _CREDENTIALS):
        return StoreUnreachableError(
            f"{what} without credentials for its object store",
            "credentials in the environment of this process",
            "set them (of s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or give them by "
            "storage_options; anonymous=true reads public buckets",
        )
    return StoreUnreachableError(
        f"the object store of {what} does not respond",
        "",
        "check network and endpoint (of s3:// in AWS_ENDPOINT_URL, or in storage_options), then run it again",
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without what its library puts before it."""
    # Icechunk puts a cross before its messages.
    lines = [line.strip().removeprefix("x ").strip("× ") for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
