"""Iterate over all connections of a commit by source neuron, with a part of one region in memory at a time.

The runs of each region are read and merged in blocks of rows, and written to a temporary file, which is then read in
blocks of one order that does not depend on regions.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.keys import Integers
from giaann_dask.runs.merging import merge_encoded, merge_runs
from giaann_dask.runs.packed_arrays import require_intact
from giaann_dask.runs.packing import RowReader, unpack
from giaann_dask.runs.renaming import Renaming, rename_run, rename_sources
from giaann_dask.runs.run import Run
from giaann_dask.storage import reading
from giaann_dask.store.manifest import StoredRun
from giaann_dask.store.network_store import CommitReader

# Strengths that are converted in one go.
_WRITTEN = 1 << 16
# Connections that are read from the files in one go: every page that is touched counts as memory until it is let go.
_GATHERED = 1 << 17
# Targets of the rows that are decoded in one go: some 50 bytes each.
_READ = 1 << 19


class OrderedConnections:
    """Connections in two files, region after region, in the order of their source neurons.

    Parameters
    ----------
    source, length, start : ndarray
        Source neuron keys, ascending; the number of connections of each, and where its first one lies in
        the files. int64, shape ``(rows,)``.
    target, strength : file
        Target keys and strength units, int64.
    """

    def __init__(
        self, source: Integers, length: Integers, start: Integers, target: IO[bytes], strength: IO[bytes]
    ) -> None:
        self._source, self._length, self._start = source, length, start
        self._end = np.cumsum(length)
        self._files = target, strength

    def __len__(self) -> int:
        """Return the number of connections."""
        return int(self._length.sum())

    def blocks(self, size: int) -> Iterator[Run]:
        """Yield the connections in order, in blocks of bounded size; may be iterated again.

        A row may be divided among blocks, so that no block is larger. Strengths are int64.
        """
        # No file of length 0 can be mapped.
        maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in self._files] if len(self) else []
        files = [np.frombuffer(each, np.int64) for each in maps]
        for low in range(0, len(self), size):
            high = min(low + size, len(self))
            # The rows of the first connection and of the last one.
            outer = np.searchsorted(self._end, [low, high - 1], "right")
            rows = slice(int(outer[0]), int(outer[1]) + 1)
            first = self._end[rows] - self._length[rows]
            begin, end = np.maximum(first, low), np.minimum(self._end[rows], high)
            pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(end - begin)])
            place = np.repeat(self._start[rows] + begin - first - pointer[:-1], end - begin)
            target, strength = np.empty(high - low, np.int64), np.empty(high - low, np.int64)
            for at in range(0, high - low, _GATHERED):
                part = slice(at, min(at + _GATHERED, high - low))
                place[part] += np.arange(part.start, part.stop)
                for values, file in zip((target, strength), files, strict=True):
                    np.take(file, place[part], out=values[part], mode="clip")
                for each in maps:
                    # The pages that were read would count as memory of this process; they stay in the page cache.
                    each.madvise(mmap.MADV_DONTNEED)
            yield Run(self._source[rows], pointer, target, strength)


def read_region(reader: CommitReader, region: int) -> Run:
    """Return all connections of a region as one run."""
    return read_runs(reader, reader.manifest().runs_by_region().get(region, []))


def read_runs(reader: CommitReader, runs: Sequence[StoredRun]) -> Run:
    """Return the connections of some runs as one run."""
    return merge_encoded([reader.connections(run.identity) for run in runs], unpack)


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
        for each in readers:
            each.require_complete()
            each.release()
        for low, high in pairwise(_block_bounds(readers, size)):
            yield merge_runs([each.between(low, high) for each in readers])
            for each in readers:
                each.release()


def _block_bounds(readers: Sequence[RowReader], size: int) -> list[int]:
    """Return source neurons where blocks begin that have about so many targets, and the end of the last one."""
    source = np.concatenate([np.zeros(0, np.int64), *(each.source for each in readers)])
    if not len(source):
        return []
    order = np.argsort(source, kind="stable")
    targets = np.cumsum(np.concatenate([each.row_targets for each in readers])[order])
    first = np.searchsorted(targets, np.arange(0, targets[-1], size))
    return [*np.unique(source[order[first]]).tolist(), int(source.max()) + 1]


@contextmanager
def ordered_connections(
    reader: CommitReader,
    folder: Path,
    observer: Observer = ignore,
    renaming: Renaming | None = None,
    table: str = "connections",
) -> Iterator[OrderedConnections]:
    """Lay all connections of a commit down in a temporary file, while the context lasts.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    folder : Path
        Folder with free space for 16 bytes a connection.
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
    stored = reader.manifest().runs
    rename = rename_run if table == "connections" else rename_sources
    sources, lengths, done = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    with tempfile.TemporaryFile(dir=folder) as target, tempfile.TemporaryFile(dir=folder) as strength:
        for runs in reader.manifest().runs_by_region().values():
            for block in read_blocks(reader, runs, table):
                total = block if renaming is None else rename(block, renaming)
                # Not `tofile`, whose error on a full disk does not say what it is.
                target.write(np.ascontiguousarray(total.target).data)
                for begin in range(0, len(total), _WRITTEN):
                    strength.write(total.strength[begin : begin + _WRITTEN].astype(np.int64).data)
                sources.append(total.source)
                lengths.append(np.diff(total.pointer))
            done += len(runs)
            observer(StageAdvanced("read", done, len(stored), "runs"))
        target.flush()
        strength.flush()
        source, length = np.concatenate(sources), np.concatenate(lengths)
        order = np.argsort(source)
        start = np.cumsum(length) - length
        require_intact(bool(np.all(np.diff(source[order]) > 0)), "two regions hold connections of the same neuron")
        yield OrderedConnections(source[order], length[order], start[order], target, strength)
