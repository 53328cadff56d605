"""Keep the tables of a commit in files of the user's cache folder, which later processes map into memory.

Building the tables reads every count of the network. Commits do not change, so the process that builds them first
stores them for all later ones, of which each reads only the pages that its contexts lie in. The folder can be removed
at any time; `giaann_dask.inference.best.tables` builds the tables.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import StoreDamagedError
from giaann_dask.inference.best.spelling import Spelling
from giaann_dask.inference.best.tables import PooledTables
from giaann_dask.text.strings import pack_strings, unpack_strings
from giaann_dask.user_cache import user_cache

# Changes with the meaning of any array.
_VERSION = 1
# Smaller tables are built as fast as they are mapped.
_LEAST_BYTES = 1 << 24
# Bytes of all stored tables; those that have not been used for the longest time are removed.
_MOST_BYTES = 4 << 30
# Share of the free disk that the tables of one commit may take.
_DISK_SHARE = 0.25
_HEADER = "tables.json"
_ARRAYS = tuple(field.name for field in fields(PooledTables) if field.name not in ("words", "unknown", "spelling"))


def open_tables(commit: str, build: Callable[[], PooledTables]) -> PooledTables:
    """Return the tables of a commit: mapped from files, else built, and stored if they are large.

    Parameters
    ----------
    commit : str
        Identifier of the commit.
    build : callable
        Builds its tables.

    Returns
    -------
    PooledTables
        Arrays of files are mapped copy-on-write.
    """
    folder = _folder(commit)
    tables = _read(folder)
    if tables is None:
        tables = build()
        # Without the files the next process builds the tables again.
        with suppress(OSError):
            _store(tables, folder)
        # What is mapped is shared with other processes.
        tables = _read(folder) or tables
    return tables


def has_tables(commit: str) -> bool:
    """Return whether tables of a commit are stored in files."""
    return (_folder(commit) / _HEADER).exists()


def _folder(commit: str) -> Path:
    return user_cache() / "tables" / f"{commit}-{_VERSION}"


def _read(folder: Path) -> PooledTables | None:
    """Return the tables in a folder, or None where there are none that can be used."""
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        arrays = {name: _mapped(folder / f"{name}.npy", header["lengths"][name]) for name in header["lengths"]}
        words = unpack_strings(arrays.pop("words_text"), arrays.pop("words_end"))
        spelling = Spelling(*(_levels(arrays, name) for name in ("keys", "counts")))
        os.utime(folder)
        return PooledTables(words=tuple(words), unknown=float(header["unknown"]), spelling=spelling, **arrays)
    except (OSError, ValueError, KeyError, TypeError, StoreDamagedError):
        return None


def _levels(arrays: dict[str, npt.NDArray[Any]], name: str) -> tuple[npt.NDArray[np.int64], ...]:
    """Remove and return the arrays of the spelling with numbered names, in order."""
    count = sum(key.startswith(f"spelling_{name}_") for key in arrays)
    return tuple(arrays.pop(f"spelling_{name}_{level}") for level in range(count))


def _mapped(path: Path, length: int) -> npt.NDArray[Any]:
    # Copy-on-write, because compiled code has other types for read-only arrays. Mapping fails for a truncated file.
    array: npt.NDArray[Any] = np.load(path, mmap_mode="c" if length else None, allow_pickle=False)
    # Without it the system reads, and counts as memory of the process, many pages around each that is used.
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    if array.shape != (length,):
        raise ValueError(f"{path} has the shape {array.shape}, expected {length}")
    return array.view(np.ndarray)


def _store(tables: PooledTables, folder: Path) -> None:
    """Write tables into a folder in one step, if they are large and the disk has space for them."""
    text, end = pack_strings(tables.words)
    arrays = {name: getattr(tables, name) for name in _ARRAYS} | {"words_text": text, "words_end": end}
    for name in ("keys", "counts"):
        levels: Sequence[npt.NDArray[Any]] = getattr(tables.spelling, name)
        arrays |= {f"spelling_{name}_{level}": array for level, array in enumerate(levels)}
    nbytes = sum(array.nbytes for array in arrays.values())
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not _LEAST_BYTES <= nbytes <= min(_MOST_BYTES, _DISK_SHARE * shutil.disk_usage(folder.parent).free):
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="incomplete-", ignore_cleanup_errors=True) as name:
        written = Path(name, "tables")
        written.mkdir()
        for key, array in arrays.items():
            _write(written / f"{key}.npy", array)
        lengths = {key: len(array) for key, array in arrays.items()}
        header = {"unknown": tables.unknown, "lengths": lengths}
        (written / _HEADER).write_text(json.dumps(header), encoding="utf-8")
        # Fails where another process was faster; what cannot be read is replaced.
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)
    _remove_oldest(folder.parent)


def _write(path: Path, array: npt.NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _remove_oldest(parent: Path) -> None:
    """Remove the tables that were not used for the longest time until the others fit the limit."""
    stored = sorted((path for path in parent.iterdir() if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    total = 0
    for path in stored:
        # Also what a process that was killed left.
        total += sum(file.stat().st_size for file in path.rglob("*.npy"))
        if total > _MOST_BYTES:
            shutil.rmtree(path, ignore_errors=True)
