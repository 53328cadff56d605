"""Keep the tables of a commit in files of the user's cache folder, which later processes map into memory.

Building the tables reads every count of the network. Commits do not change, so the process that builds them first
stores them for all later ones, of which each reads only the pages that its contexts lie in. Only the user can read the
folder. It can be removed at any time, and tables of commits that were removed have to be (`remove_tables`), as they
have all words and counts. Tables are named by the place of the network, the commit and its content, so that another
network with a commit of that name has tables of its own. `giaann_dask.models.contexts.tables` builds the tables.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import StoreDamagedError
from giaann_dask.local_files import private_cache, user_cache
from giaann_dask.models.contexts.packed_counts import PackedCounts
from giaann_dask.models.contexts.tables import PackedTables, PooledTables, RowArrays
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.text.names import Names, pack_strings

# Changes with the meaning of any array, and with the names of folders.
_VERSION = 3
_FOLDER = "tables"
_INCOMPLETE = "incomplete-"
# Place, commit, content and version.
_NAME = re.compile(r"([0-9a-f]{16})-([^-]+)-([0-9a-f]+)-([0-9]+)")
# Smaller tables are built as fast as they are mapped.
_LEAST_BYTES = 1 << 22
# Bytes of all stored tables; those that have not been used for the longest time are removed.
_MOST_BYTES = 4 << 30
# Share of the free disk that the tables of one commit may take.
_DISK_SHARE = 0.25
_HEADER = "tables.json"
_WORDS = ("word_keys", "word_order", "base", "share", "spelled")
_COUNTS = tuple(field.name for field in fields(PackedCounts))


def open_tables(
    path: str, commit: str, fingerprint: Callable[[], str], build: Callable[[], PackedTables]
) -> PackedTables:
    """Return the tables of a commit: mapped from files, else built, and stored if they are large.

    Parameters
    ----------
    path, commit : str
        Place of the network, and identity of the commit.
    fingerprint : callable
        Returns a digest of the commit's content in hexadecimal digits; called where files are read or stored.
    build : callable
        Builds its tables.

    Returns
    -------
    PackedTables
        Arrays of files are mapped copy-on-write.
    """
    # Without the files the next process builds the tables again.
    with suppress(OSError):
        if has_tables(path, commit):
            found = _read(private_cache(_FOLDER) / _name(path, commit, fingerprint()))
            if found is not None:
                return found
    tables = build()
    with suppress(OSError):
        parent = private_cache(_FOLDER)
        arrays = _arrays_of(tables)
        if _is_stored(arrays, parent):
            folder = parent / _name(path, commit, fingerprint())
            _store(tables, arrays, folder)
            # What is mapped is shared with other processes.
            tables = _read(folder) or tables
    return tables


def has_tables(path: str, commit: str) -> bool:
    """Return whether tables of a commit are stored in files, of this content or another one."""
    begin = _name(path, commit, "")
    return any(each.name.startswith(begin) for each in _stored())


def remove_tables(path: str, kept: Collection[str], gone: Collection[str]) -> int:
    """Remove tables of a network in this user's cache, and return of how many commits.

    Parameters
    ----------
    path : str
        Place of the network.
    kept : collection of str
        Commits of it whose tables stay; those of all others are removed.
    gone : collection of str
        Commits whose tables are removed wherever their network is, as of a copy.

    Raises
    ------
    OSError
        If some cannot be removed.
    """
    place, removed = _place(path), 0
    for folder in _stored():
        name = _NAME.fullmatch(folder.name)
        # Earlier versions named tables by the commit alone; others are incomplete.
        if name is None or int(name[4]) != _VERSION or name[2] in gone or (name[1] == place and name[2] not in kept):
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.lexists(folder):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
            removed += name is not None or folder.name.rpartition("-")[0] in gone
    return removed


def tables_folder() -> Path:
    """Return the folder of all stored tables; it may not exist."""
    return user_cache() / _FOLDER


def _stored() -> list[Path]:
    """Return the folders of all stored tables; none where there are none."""
    try:
        return sorted(each for each in tables_folder().iterdir() if each.is_dir())
    except OSError:
        return []


def _place(path: str) -> str:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _name(path: str, commit: str, fingerprint: str) -> str:
    """Return the name of the folder of some tables, or its beginning where the fingerprint is not known."""
    return f"{_place(path)}-{commit}-{fingerprint}" + (f"-{_VERSION}" if fingerprint else "")


def _read(folder: Path) -> PackedTables | None:
    """Return the tables in a folder, or None where there are none that can be used."""
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        arrays = {name: _mapped(folder / f"{name}.npy", header["shapes"][name]) for name in header["shapes"]}
        names = list(Names.of_packed(arrays.pop("words_text"), arrays.pop("words_end")))
        spelling = Spelling(*(_levels(arrays, name) for name in ("keys", "counts")))
        os.utime(folder)
        counts = PackedCounts(**{name: arrays.pop(name) for name in _COUNTS})
        discounts, rows = arrays.pop("discounts"), RowArrays.empty()._asdict()
        unknown = float(header["unknown"])
        words = PooledTables(words=tuple(names), unknown=unknown, spelling=spelling, **arrays, **rows)
        return PackedTables(words, discounts, counts)
    except (OSError, ValueError, KeyError, TypeError, StoreDamagedError):
        return None


def _levels(arrays: dict[str, npt.NDArray[Any]], name: str) -> tuple[npt.NDArray[np.int64], ...]:
    """Remove and return the arrays of the spelling with numbered names, in order."""
    count = sum(key.startswith(f"spelling_{name}_") for key in arrays)
    return tuple(arrays.pop(f"spelling_{name}_{level}") for level in range(count))


def _mapped(path: Path, shape: list[int]) -> npt.NDArray[Any]:
    # Copy-on-write, because compiled code has other types for read-only arrays. Mapping fails for a truncated file.
    array: npt.NDArray[Any] = np.load(path, mmap_mode="c" if math.prod(shape) else None, allow_pickle=False)
    # Without it the system reads, and counts as memory of the process, many pages around each that is used.
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    if array.shape != tuple(shape):
        raise ValueError(f"{path} has the shape {array.shape}, expected {shape}")
    return array.view(np.ndarray)


def _arrays_of(tables: PackedTables) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of tables by name, those of words and spelling among them."""
    text, end = pack_strings(tables.words.words)
    arrays = {name: getattr(tables.counts, name) for name in _COUNTS} | {"discounts": tables.discounts}
    arrays |= {name: getattr(tables.words, name) for name in _WORDS} | {"words_text": text, "words_end": end}
    for name in ("keys", "counts"):
        levels: Sequence[npt.NDArray[Any]] = getattr(tables.words.spelling, name)
        arrays |= {f"spelling_{name}_{level}": array for level, array in enumerate(levels)}
    return arrays


def _is_stored(arrays: Mapping[str, npt.NDArray[Any]], parent: Path) -> bool:
    """Return whether tables are large, and the disk has space for them."""
    nbytes = sum(array.nbytes for array in arrays.values())
    return _LEAST_BYTES <= nbytes <= min(_MOST_BYTES, _DISK_SHARE * shutil.disk_usage(parent).free)


def _store(tables: PackedTables, arrays: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
    """Write tables into a folder in one step."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_INCOMPLETE, ignore_cleanup_errors=True) as name:
        written = Path(name, "tables")
        written.mkdir(mode=0o700)
        for key, array in arrays.items():
            with _opened(written / f"{key}.npy") as file:
                np.save(file, array, allow_pickle=False)
        shapes = {key: array.shape for key, array in arrays.items()}
        header = {"unknown": tables.words.unknown, "shapes": shapes}
        with _opened(written / _HEADER) as file:
            file.write(json.dumps(header).encode())
        # Fails where another process was faster; what cannot be read is replaced.
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)
    _remove_oldest(folder.parent)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that only this user can read, and write it to the disk at the end."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _remove_oldest(parent: Path) -> None:
    """Remove the tables that were not used for the longest time until the others fit the limit."""
    stored = sorted((path for path in parent.iterdir() if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    total = 0
    for path in stored:
        # Also what a process that was killed left.
        total += sum(file.stat().st_size for file in path.rglob("*.npy"))
        name = _NAME.fullmatch(path.name)
        earlier = not path.name.startswith(_INCOMPLETE) and (name is None or int(name[4]) != _VERSION)
        if total > _MOST_BYTES or earlier:
            shutil.rmtree(path, ignore_errors=True)
