"""Read some rows of a packed run by source neuron, decoding only the chunks that have them.

`packing` has the arrays of a packed run, and decodes it as a whole or in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron, unpack_neuron
from giaann_dask.runs.packed_arrays import (
    GROUP_KEY,
    VERSION_GAPS,
    ArrayLayout,
    decode_array,
    decode_chunk,
    read_header,
    read_layout,
    require_intact,
)
from giaann_dask.runs.packing import TARGET_ARRAYS, decode_targets, target_key
from giaann_dask.runs.run import Run, join_ranges

# Rows of a run between two marks of `RowReader`.
_MARKED = 1 << 10
Segments: TypeAlias = npt.NDArray[np.uint32]
# Returns the encoded bytes of the entries with these names; entries that do not exist are left out.
ReadEntries: TypeAlias = Callable[[Sequence[str]], Mapping[str, bytes]]

_SOURCE_ARRAYS = ("source_column", "source_feature")


def read_sources(read: ReadEntries) -> Integers:
    """Return the source neurons of a run, ascending; int64, shape ``(rows,)``.

    Raises
    ------
    StoreDamagedError
        If they cannot be read.
    """
    column, feature = _decoded(read, _SOURCE_ARRAYS)
    require_intact(len(column) == len(feature), "the rows of a run contradict each other")
    return pack_neuron(column, feature)


def read_rows(read: ReadEntries, wanted: Integers) -> tuple[Integers, Integers, Integers, Segments]:
    """Return the rows of a run that belong to some source neurons, without their strengths.

    Parameters
    ----------
    read : callable
        Reads entries of the run.
    wanted : ndarray
        Source neurons, ascending; int64.

    Returns
    -------
    source : ndarray
        Those of them that the run has; int64, shape ``(rows,)``.
    pointer : ndarray
        Where the targets of each begin and, at the end, how many there are; int64, shape ``(rows + 1,)``.
    key, segments : ndarray
        See `giaann_dask.runs.target_sets.TargetSets`; int64 and uint32, shape ``(targets,)``.

    Raises
    ------
    StoreDamagedError
        As far as the arrays show it that are needed.
    """
    column, feature, counts = _decoded(read, (*_SOURCE_ARRAYS, "row_targets"))
    require_intact(len(column) == len(feature) == len(counts), "the rows of a run contradict each other")
    source, row_targets = pack_neuron(column, feature), counts.astype(np.int64)
    rows = np.flatnonzero(among(source, wanted))
    lengths, begins = row_targets[rows], (np.cumsum(row_targets) - row_targets)[rows]
    pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    *fields, segments = _values_at(read, TARGET_ARRAYS, join_ranges(begins, lengths))
    return source[rows], pointer, target_key(*fields), segments.astype(np.uint32)


class RowReader:
    """Read rows of a packed run by source neuron, decoding only the chunks of their targets.

    Sources and numbers of targets are read at once, and kept as narrow as they are stored. Of the segments, which also
    say where the changes of strength begin, all chunks up to the last row are read if there are any changes. Decoded
    chunks are kept until `release`.

    Parameters
    ----------
    read : callable
        Reads entries of the run.

    Raises
    ------
    StoreDamagedError
        As far as the arrays show it that are needed.
    """

    def __init__(self, read: ReadEntries) -> None:
        self._read = read
        header = read_header(read([GROUP_KEY]))
        self._strength = np.int32 if header["strength_bits"] == 32 else np.int64
        self._size, self._gaps = header["connections"], header["version"] == VERSION_GAPS
        column, feature, counts = _decoded(read, (*_SOURCE_ARRAYS, "row_targets"))
        require_intact(len(column) == len(feature) == len(counts), "the rows of a run contradict each other")
        self._column, self._feature, self._counts = column, feature, counts
        # Targets before every so many rows: few, because there may be more rows than can be kept as wide integers.
        whole = len(counts) - len(counts) % _MARKED
        sums = counts[:whole].reshape(-1, _MARKED).sum(axis=1, dtype=np.int64)
        self._marks = np.cumsum([0, *sums.tolist()])
        names = (*TARGET_ARRAYS, "strength", "strength_change")
        self._layouts = dict(zip(names, _layouts(read, names)[1], strict=True))
        self._chunks: dict[str, npt.NDArray[Any]] = {}
        # Connections before each chunk of the segments, as far as they are counted.
        self._connections = [0]

    def between(self, low: int, high: int) -> Run:
        """Return the rows whose source neurons lie between two keys, the second not included.

        Raises
        ------
        StoreDamagedError
            As far as the arrays show it that are needed.
        """
        from giaann_dask.runs.target_sets import spread_targets

        rows = slice(self._row_at(low), self._row_at(high))
        if rows.start >= rows.stop:
            return replace(Run.empty(), strength=np.zeros(0, self._strength))
        begin, end = self._targets_before(rows.start), self._targets_before(rows.stop)
        names = (*TARGET_ARRAYS, "strength")
        self._load([(self._layouts[name], number) for name in names for number in self._numbers(name, begin, end)])
        *fields, segments, strength = (self._values(name, begin, end) for name in names)
        size = int(np.bitwise_count(segments).sum(dtype=np.int64))
        changes = self._connections_before(begin) - begin if self._layouts["strength_change"].length else 0
        change = self._values("strength_change", changes, changes + size - (end - begin))
        row_targets = self._counts[rows].astype(np.int64)
        sets = decode_targets(row_targets, fields, (segments, strength, change), gaps=self._gaps)
        pointer = np.zeros(rows.stop - rows.start + 1, np.int64)
        source = pack_neuron(self._column[rows], self._feature[rows])
        run = Run(source, pointer, np.empty(size, np.int64), np.empty(size, self._strength))
        intact = spread_targets(sets, run.pointer, run.target, run.strength)
        require_intact(intact, "the targets, segments and strengths of a run contradict each other")
        return run

    @property
    def source(self) -> Integers:
        """Source neurons, ascending; int64, shape ``(rows,)``."""
        return pack_neuron(self._column, self._feature)

    @property
    def row_targets(self) -> Integers:
        """Numbers of distinct targets of the sources; int64, shape ``(rows,)``."""
        return self._counts.astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded chunks that are kept."""
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def release(self) -> None:
        """Let decoded chunks go; what is needed of them again is read again."""
        self._chunks.clear()

    def require_complete(self) -> None:
        """Check that the run has as many connections as it says, which reads its segments.

        Raises
        ------
        StoreDamagedError
            If it has not, or has targets of no row.
        """
        targets = self._targets_before(len(self._counts))
        found = self._layouts["target_segments"].length, self._connections_before(targets)
        require_intact(found == (targets, self._size), f"a run has {found} targets and connections")

    def _row_at(self, neuron: int) -> int:
        """Return the first row whose source is not below a neuron."""
        column, feature = (int(part) for part in unpack_neuron(neuron))
        rows = slice(*(_place(self._column, column + more) for more in (0, 1)))
        return int(rows.start) + _place(self._feature[rows], feature)

    def _targets_before(self, row: int) -> int:
        """Return the number of targets of the rows before one."""
        mark = row // _MARKED
        return int(self._marks[mark]) + int(self._counts[mark * _MARKED : row].sum(dtype=np.int64))

    def _values(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the values of an array from one place to another."""
        layout, numbers = self._layouts[name], self._numbers(name, begin, end)
        self._load([(layout, number) for number in numbers])
        parts = [self._chunks[layout.entry(number)] for number in numbers]
        if len(parts) == 1:
            return parts[0][begin - numbers.start * layout.chunk : end - numbers.start * layout.chunk]
        first = numbers.start * layout.chunk
        return np.concatenate([np.zeros(0, layout.dtype), *parts])[begin - first : end - first]

    def _numbers(self, name: str, begin: int, end: int) -> range:
        """Return the chunks of an array that have its values from one place to another."""
        layout = self._layouts[name]
        intact = 0 <= begin <= end <= layout.length
        require_intact(intact, f"{name} of a run has {layout.length} values", f"{end} or more")
        return range(begin // layout.chunk, -(-end // layout.chunk) if begin < end else 0)

    def _load(self, wanted: Sequence[tuple[ArrayLayout, int]]) -> None:
        """Read and decode chunks that are not kept yet."""
        missing = [(layout, number) for layout, number in wanted if layout.entry(number) not in self._chunks]
        entries = self._read([layout.entry(number) for layout, number in missing]) if missing else {}
        for layout, number in missing:
            self._chunks[layout.entry(number)] = decode_chunk(layout, number, entries)

    def _connections_before(self, target: int) -> int:
        """Return the number of connections before a target."""
        layout = self._layouts["target_segments"]
        whole = target // layout.chunk
        counted = len(self._connections) - 1
        self._load([(layout, number) for number in range(counted, whole)])
        for number in range(counted, whole):
            inside = np.bitwise_count(self._chunks[layout.entry(number)]).sum(dtype=np.int64)
            self._connections.append(self._connections[-1] + int(inside))
        rest = self._values("target_segments", whole * layout.chunk, target)
        return self._connections[whole] + int(np.bitwise_count(rest).sum(dtype=np.int64))


def _place(values: npt.NDArray[Any], wanted: int) -> int:
    """Return the first place of ascending unsigned values that is not below a wanted one, of any size."""
    if wanted > np.iinfo(values.dtype).max:
        return len(values)
    # A wider type would have the values copied.
    return int(np.searchsorted(values, values.dtype.type(wanted)))


def among(values: Integers, sorted_values: Integers) -> npt.NDArray[np.bool_]:
    """Return which values are among others, which ascend.

    Examples
    --------
    >>> among(np.array([1, 4, 9]), np.array([2, 4])).tolist()
    [False, True, False]
    """
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(sorted_values, values)
    return np.equal(sorted_values[np.minimum(places, len(sorted_values) - 1)], values)


def _decoded(read: ReadEntries, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Return whole arrays of a run."""
    entries, layouts = _layouts(read, names)
    chunks = [layout.entry(number) for layout in layouts for number in range(layout.chunks)]
    entries = {**entries, **read(chunks)}
    return [decode_array(name, entries)[0] for name in names]


def _values_at(read: ReadEntries, names: Sequence[str], places: Integers) -> list[npt.NDArray[Any]]:
    """Return the values of arrays of one length at ascending places, without reading chunks that have none of them."""
    _, layouts = _layouts(read, names)
    needed = [_chunks_of(layout, places) for layout in layouts]
    entries = read([layout.entry(each) for layout, parts in zip(layouts, needed, strict=True) for each in parts])
    found = []
    for layout, parts in zip(layouts, needed, strict=True):
        values = np.empty(len(places), layout.dtype)
        for number, part in parts.items():
            values[part] = decode_chunk(layout, number, entries)[places[part] - number * layout.chunk]
        found.append(values)
    return found


def _chunks_of(layout: ArrayLayout, places: Integers) -> dict[int, slice]:
    """Return the chunks of an array that have some ascending places, and which of the places each has."""
    end = int(places[-1]) + 1 if len(places) else 0
    require_intact(end <= layout.length, f"{layout.name} of a run has {layout.length} values", f"{end} or more")
    begins = np.searchsorted(places, np.arange(0, layout.length + layout.chunk, layout.chunk)).tolist()
    parts = {number: slice(*pair) for number, pair in enumerate(pairwise(begins))}
    return {number: part for number, part in parts.items() if part.start < part.stop}


def _layouts(read: ReadEntries, names: Sequence[str]) -> tuple[Mapping[str, bytes], list[ArrayLayout]]:
    """Return the stored metadata of arrays, and the layouts in it."""
    entries = read([f"{name}/zarr.json" for name in names])
    return entries, [read_layout(name, entries) for name in names]
