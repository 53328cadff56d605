"""Iterate over all connections of a commit by source neuron, with a part of one region in memory at a time.

The runs of each region are read and merged in blocks of rows, and written to temporary files, which are then read in
blocks of one order that does not depend on regions. Source neurons are merged by ranges, a few of which are in memory;
so are the targets of rows that are divided among regions.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.keys import Integers
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_arrays import require_intact
from giaann_dask.runs.packed_rows import row_bounds
from giaann_dask.runs.renaming import Renaming, rename_run, rename_sources
from giaann_dask.runs.run import Run, select_rows
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import StoredRun

# Strengths that are converted in one go.
_WRITTEN = 1 << 16
# Connections that are read from the files in one go: every page that is touched counts as memory until it is let go.
_GATHERED = 1 << 17
# Of so many rows one says where ranges of source neurons begin.
_SAMPLED = 1 << 10
_TWICE = "two regions hold connections of the same neuron"
# Targets of the rows that are decoded in one go: some 50 bytes each, in each of the threads that read regions.
_READ, _THREADS = 1 << 19, 2


class _MappedArray:
    """Array of 64-bit integers in a file, whose pages do not count as memory of this process after each read.

    Parameters
    ----------
    file : file
        Holds the values, row by row; flushed.
    width : int
        Values of a row.
    """

    def __init__(self, file: IO[bytes], width: int = 1) -> None:
        file.flush()
        # No file of length 0 can be mapped.
        empty = os.fstat(file.fileno()).st_size == 0
        self._map = mmap.mmap(-1 if empty else file.fileno(), int(empty), access=mmap.ACCESS_READ)
        self.rows = np.frombuffer(self._map, np.int64, 0 if empty else -1).reshape(-1, width)

    def take(self, places: Integers | slice) -> Integers:
        """Return a copy of some rows; int64, shape ``(rows, width)``."""
        taken: Integers = self.rows[places].copy() if isinstance(places, slice) else self.rows.take(places, axis=0)
        # They stay in the page cache.
        self._map.madvise(mmap.MADV_DONTNEED)
        return taken


class OrderedConnections:
    """Connections in files, region after region, in the order of their source neurons.

    Parameters
    ----------
    rows : file
        Three values for each source neuron, ascending: its key, where its first connection lies in the other files,
        and the number of connections up to its last one in this order; int64.
    target, strength : file
        Target keys and strength units, int64.
    """

    def __init__(self, rows: IO[bytes], target: IO[bytes], strength: IO[bytes]) -> None:
        self._rows = _MappedArray(rows, 3)
        self._values = _MappedArray(target), _MappedArray(strength)

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._values[0].rows)

    def blocks(self, size: int) -> Iterator[Run]:
        """Yield the connections in order, in blocks of bounded size; may be iterated again.

        A row may be divided among blocks, so that no block is larger. Strengths are int64.
        """
        for low in range(0, len(self), size):
            high = min(low + size, len(self))
            # The rows of the first connection and of the last one.
            outer = np.searchsorted(self._rows.rows[:, 2], [low, high - 1], "right")
            source, start, last = self._rows.take(slice(int(outer[0]), int(outer[1]) + 1)).T
            end = np.minimum(last, high)
            begin = np.concatenate([np.full(1, low), end[:-1]])
            # Of the first row, connections may be in the block before; the others are whole or begin here.
            before = low - int(self._rows.rows[outer[0] - 1, 2]) if outer[0] else low
            pointer = np.concatenate([np.zeros(1, np.int64), end - low])
            place = np.repeat(start - pointer[:-1], end - begin)
            place[: pointer[1]] += before
            values = np.empty((2, high - low), np.int64)
            for at in range(0, high - low, _GATHERED):
                part = slice(at, min(at + _GATHERED, high - low))
                place[part] += np.arange(part.start, part.stop)
                for line, file in zip(values, self._values, strict=True):
                    line[part] = file.take(place[part])[:, 0]
            block = [Run(np.ascontiguousarray(source), pointer, values[0], values[1])]
            # Let go before the next block is made, and the block itself as soon as the caller does.
            del source, start, last, end, begin, place, pointer, values, line
            yield block.pop()


def read_runs(reader: CommitReader, runs: Sequence[StoredRun]) -> Run:
    """Return the connections of some runs as one run."""
    return merge_runs([reader.connections(run.identity) for run in runs])


def read_blocks(
    reader: CommitReader, runs: Sequence[StoredRun], table: str = "connections", size: int = _READ
) -> Iterator[Run]:
    """Yield the sum of some runs of one region in blocks of rows, without decoding more of them at a time.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    runs : sequence of StoredRun
        Runs of the commit.
    table : {"connections", "neurons"}
        Which of their tables.
    size : int
        Distinct targets of the rows of a block, about; a row is never divided.

    Yields
    ------
    Run
        Rows of ascending source neurons.

    Raises
    ------
    StoreDamagedError
        If they do not decode.
    """
    with reading(f"network {reader.path}"):
        readers = [reader.rows(run.identity, table) for run in runs]
        for low, high in row_bounds(readers, size):
            yield merge_runs([each.between(low, high) for each in readers])
            for each in readers:
                each.release()


@contextmanager
def ordered_connections(
    reader: CommitReader,
    folder: Path,
    observer: Observer = ignore,
    renaming: Renaming | None = None,
    table: str = "connections",
) -> Iterator[OrderedConnections]:
    """Lay all connections of a commit down in temporary files, while the context lasts.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    folder : Path
        Folder with free space for 16 bytes a connection, 32 of a divided row, and 48 bytes a source neuron.
    observer : callable, optional
        Notified of every run read.
    renaming : Renaming, optional
        New identifiers of the neurons, in whose order the connections are; the stored ones by default.
    table : {"connections", "neurons"}
        The neurons' own strengths instead, whose targets are segments and branches.

    Raises
    ------
    StoreDamagedError
        If the runs of a region do not decode, or a neuron belongs to two regions.
    """
    rename = rename_run if table == "connections" else rename_sources
    # Whatever else belongs to a neuron is in one region.
    divided = np.array(sorted(reader.placement().divided()) if table == "connections" else [], np.int64)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(5)]
        rows, target, strength, unordered, pieces = files
        blocks, parts = _BlockFiles(target, strength, unordered), _RowPieces(pieces)

        def read(runs: Sequence[StoredRun]) -> int:
            for block in read_blocks(reader, runs, table):
                for source in divided[np.isin(divided, block.source)]:
                    part = select_rows(block, np.flatnonzero(block.source == source))
                    parts.append(part if renaming is None else rename(part, renaming))
                if len(divided):
                    block = select_rows(block, np.flatnonzero(~np.isin(block.source, divided)))
                blocks.append(block if renaming is None else rename(block, renaming))
                # Let go before the next block is read.
                del block
            return len(runs)

        _read_regions(read, [runs for runs in reader.manifest().runs_by_region().values() if runs], observer)
        for source, joined in parts.rows():
            blocks.append_row(source, joined)
        pieces.close()
        _order_rows(unordered, rows, blocks.ends)
        unordered.close()
        yield OrderedConnections(rows, target, strength)


def _read_regions(
    read: Callable[[Sequence[StoredRun]], int], regions: Sequence[Sequence[StoredRun]], observer: Observer
) -> None:
    """Read regions, some of them simultaneously; notify an observer, in this thread, of every one."""
    total, done = sum(map(len, regions)), 0
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        reading_regions = [pool.submit(read, runs) for runs in regions]
        try:
            for region in as_completed(reading_regions):
                done += region.result()
                observer(StageAdvanced("read", done, total, "runs"))
        finally:
            pool.shutdown(cancel_futures=True)


class _BlockFiles:
    """Files of blocks of connections, which threads append in any order.

    Parameters
    ----------
    target, strength : file
        Target keys and strength units, int64.
    rows : file
        Source neuron, place of the first connection and number of connections of each row, ascending in a block; int64.

    Attributes
    ----------
    ends : list of int
        Where the rows of each block end.
    """

    def __init__(self, target: IO[bytes], strength: IO[bytes], rows: IO[bytes]) -> None:
        self._target, self._strength, self._rows = target, strength, rows
        self._lock, self._connections = Lock(), 0
        self.ends: list[int] = []

    def append(self, block: Run) -> None:
        """Append a block of rows."""
        with self._lock:
            lines = block.source, block.pointer[:-1] + self._connections, np.diff(block.pointer)
            self._write(block.target, block.strength)
            self._end(np.stack(lines, axis=1))

    def append_row(self, source: int, parts: Iterable[Integers]) -> None:
        """Append a row, given in parts of ascending targets and their strengths; int64, shape ``(connections, 2)``."""
        first = self._connections
        for part in parts:
            self._write(part[:, 0], part[:, 1])
        self._end(np.array([[source, first, self._connections - first]]))

    def _write(self, target: Integers, strength: npt.NDArray[np.signedinteger[Any]]) -> None:
        # Not `tofile`, whose error on a full disk does not say what it is.
        self._target.write(np.ascontiguousarray(target).data)
        for begin in range(0, len(strength), _WRITTEN):
            self._strength.write(strength[begin : begin + _WRITTEN].astype(np.int64).data)
        self._connections += len(target)

    def _end(self, lines: Integers) -> None:
        self._rows.write(lines.data)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(lines))


class _RowPieces:
    """File of the parts of divided rows, which threads append in any order.

    Parameters
    ----------
    file : file
        Target keys and strength units of the connections, part after part; int64.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._lock, self._written = file, Lock(), 0
        self._parts: dict[int, list[slice]] = {}

    def append(self, part: Run) -> None:
        """Append a part of one row, with ascending targets."""
        with self._lock:
            for begin in range(0, len(part), _WRITTEN):
                piece = slice(begin, begin + _WRITTEN)
                self._file.write(np.stack([part.target[piece], part.strength[piece]], axis=1, dtype=np.int64).data)
            begin, self._written = self._written, self._written + len(part)
            self._parts.setdefault(int(part.source[0]), []).append(slice(begin, self._written))

    def rows(self) -> Iterator[tuple[int, Iterator[Integers]]]:
        """Yield each row with its connections, a few of which are in memory at a time."""
        values = _MappedArray(self._file, 2)
        for source, parts in sorted(self._parts.items()):
            yield source, _merged(values, parts, "a connection is in two regions")


def _order_rows(unordered: IO[bytes], ordered: IO[bytes], ends: Sequence[int]) -> None:
    """Merge rows of source neuron, first connection and number of connections into those of `OrderedConnections`.

    The rows lie in blocks, each ascending, that end at the given places.
    """
    count = 0
    for part in _merged(_MappedArray(unordered, 3), [slice(*each) for each in pairwise((0, *ends))], _TWICE):
        part[:, 2] = np.cumsum(part[:, 2]) + count
        count = int(part[-1, 2])
        ordered.write(part.data)


def _merged(rows: _MappedArray, blocks: Sequence[slice], otherwise: str) -> Iterator[Integers]:
    """Yield the rows of blocks, each ascending by its first values, in one order, some at a time.

    Raises
    ------
    StoreDamagedError
        If two have the same first value, with the text that says what that means.
    """
    samples = [rows.take(np.arange(block.start, block.stop, _SAMPLED))[:, 0] for block in blocks]
    sample = np.sort(np.concatenate([np.zeros(0, np.int64), *samples]))
    # Merged by ranges of about so many rows.
    bounds = np.unique(sample[:: _GATHERED // _SAMPLED])
    cuts = [[*(np.searchsorted(rows.rows[block, 0], bounds) + block.start).tolist(), block.stop] for block in blocks]
    last = -1
    for at in range(len(bounds)):
        part = np.concatenate([rows.take(slice(cut[at], cut[at + 1])) for cut in cuts])
        part = part[np.argsort(part[:, 0])]
        require_intact(part[0, 0] > last and bool(np.all(part[1:, 0] > part[:-1, 0])), otherwise)
        last = int(part[-1, 0])
        yield part
