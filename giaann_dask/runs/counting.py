"""Count the distinct connections of several runs without merging them.

The union of the target sets of packed runs needs neither their strengths nor a table of all connections; of stored
runs, only the rows that both have are read. A packed run names a target of a row once, with a bit for every segment,
so a connection that two runs share is a bit that both have: one comparison mostly covers two to three connections.
`merging` merges runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeAlias

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import compiled
from giaann_dask.runs.packed_arrays import ReadEntries
from giaann_dask.runs.packed_rows import among, read_rows, read_sources
from giaann_dask.runs.packing import PackedRun, unpack_rows, unpack_targets
from giaann_dask.runs.run import readable
from giaann_dask.runs.target_sets import count_bits

Segments: TypeAlias = npt.NDArray[np.uint32]
# Source neurons, the place of the first target of each and of the end, target keys, segments.
Table: TypeAlias = tuple[Integers, Integers, Integers, Segments]

_WIDE = nb.types.Array(nb.int64, 1, "C", readonly=True)
_TABLE = nb.types.Tuple((_WIDE, _WIDE, _WIDE, nb.types.Array(nb.uint32, 1, "C", readonly=True)))
_RESULT = nb.types.Tuple((*(nb.types.Array(nb.int64, 1, "C"),) * 3, nb.types.Array(nb.uint32, 1, "C")))


def count_union(runs: Sequence[PackedRun]) -> int:
    """Return the number of distinct connections of several runs.

    Parameters
    ----------
    runs : sequence of PackedRun
        Any number of them, in any order.

    Returns
    -------
    int
        What their sum would have.

    Raises
    ------
    StoreDamagedError, StoreFormatError
        As `giaann_dask.runs.packing.unpack`, as far as the arrays show it that are needed.

    Examples
    --------
    >>> from giaann_dask.runs.packing import pack
    >>> from giaann_dask.runs.run import Run
    >>> one = Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([10, 20], np.int32))
    >>> two = Run(np.array([5]), np.array([0, 2]), np.array([2, 3]), np.array([10, 20], np.int32))
    >>> count_union([pack(one), pack(two)])
    3
    """
    filled = [run for run in runs if len(run)]
    if len(filled) <= 1:
        return sum(map(len, filled))
    tables = _united([_table(run) for run in filled], 2)
    # For the last two, counting the shared connections is enough.
    return sum(map(_connections, tables)) - int(_count_shared(*tables))


def count_added(runs: Sequence[PackedRun], stored: Sequence[ReadEntries]) -> int:
    """Return the number of distinct connections of some runs that no stored run has.

    Parameters
    ----------
    runs : sequence of PackedRun
        Any number of them.
    stored : sequence of callable
        Read entries of the others. Only chunks are read that have targets of the source neurons of `runs`.

    Returns
    -------
    int
        By how many connections their sum has more than that of the stored ones.

    Raises
    ------
    StoreDamagedError
        As far as the arrays show it that are needed.
    """
    added = _united([_table(run) for run in runs if len(run)], 1)
    if not added:
        return 0
    (table,) = added
    there = _united([_readable(read_rows(read, table[0])) for read in stored], 1)
    return _connections(table) - (int(_count_shared(table, there[0])) if there else 0)


def count_added_neurons(runs: Sequence[PackedRun], stored: Sequence[ReadEntries]) -> int:
    """Return the number of distinct source neurons of some runs that no stored run has, see `count_added`."""
    neurons = np.sort(np.concatenate([np.zeros(0, np.int64), *(unpack_rows(run)[0] for run in runs)]))
    new = np.append(neurons[1:] != neurons[:-1], True)[: len(neurons)]
    for read in stored if len(neurons) else ():
        new &= ~among(neurons, read_sources(read))
    return int(new.sum())


def _united(tables: Sequence[Table], left: int) -> list[Table]:
    """Unite the two smallest tables repeatedly until at most ``left`` remain."""
    heap = [(len(table[2]), number, table) for number, table in enumerate(tables)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > left:
        both = _unite(heapq.heappop(heap)[2], heapq.heappop(heap)[2])
        heapq.heappush(heap, (len(both[2]), number, both))
        number += 1
    return [table for _, _, table in heap]


def _connections(table: Table) -> int:
    return int(np.bitwise_count(table[3]).sum(dtype=np.int64))


def _table(packed: PackedRun) -> Table:
    """Return the targets of a run in the form of the compiled code."""
    source, sets = unpack_targets(packed)
    pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(sets.row_targets)])
    return _readable((source, pointer, sets.key, sets.segments))


def _readable(table: Table) -> Table:
    source, pointer, key, segments = table
    return readable(source), readable(pointer), readable(key), readable(segments)


def _unite(first: Table, second: Table) -> Table:
    """Return the union of two tables."""
    rows, targets = (len(first[place]) + len(second[place]) for place in (0, 2))
    source, pointer, key = (np.empty(size, np.int64) for size in (rows, rows + 1, targets))
    segments = np.empty(targets, np.uint32)
    rows, targets = _unite_tables(first, second, (source, pointer, key, segments))
    return readable(source[:rows]), readable(pointer[: rows + 1]), readable(key[:targets]), readable(segments[:targets])


@compiled(nb.int64(_TABLE, _TABLE))
def _count_shared(first: Table, second: Table) -> int:
    """Count the connections that both tables have."""
    source_1, pointer_1, key_1, segments_1 = first
    source_2, pointer_2, key_2, segments_2 = second
    row_1 = row_2 = shared = 0
    while row_1 < len(source_1) and row_2 < len(source_2):
        neuron_1, neuron_2 = source_1[row_1], source_2[row_2]
        if neuron_1 == neuron_2:
            i, j = pointer_1[row_1], pointer_2[row_2]
            while i < pointer_1[row_1 + 1] and j < pointer_2[row_2 + 1]:
                left, right = key_1[i], key_2[j]
                both = np.int64(segments_1[i] & segments_2[j])
                shared += count_bits(both) * (left == right)
                i += left <= right
                j += right <= left
        row_1 += neuron_1 <= neuron_2
        row_2 += neuron_2 <= neuron_1
    return shared


@compiled(nb.types.UniTuple(nb.int64, 2)(_TABLE, _TABLE, _RESULT))
def _unite_tables(first: Table, second: Table, result: Table) -> tuple[int, int]:
    """Write the union of two tables into arrays that are long enough; return its rows and targets."""
    source_1, pointer_1, key_1, segments_1 = first
    source_2, pointer_2, key_2, segments_2 = second
    source, pointer, key, segments = result
    row_1 = row_2 = rows = filled = 0
    pointer[0] = 0
    while row_1 < len(source_1) or row_2 < len(source_2):
        in_1 = row_2 == len(source_2) or (row_1 < len(source_1) and source_1[row_1] <= source_2[row_2])
        in_2 = row_1 == len(source_1) or (row_2 < len(source_2) and source_2[row_2] <= source_1[row_1])
        i, end_1 = (pointer_1[row_1], pointer_1[row_1 + 1]) if in_1 else (0, 0)
        j, end_2 = (pointer_2[row_2], pointer_2[row_2 + 1]) if in_2 else (0, 0)
        while i < end_1 or j < end_2:
            take_1 = j == end_2 or (i < end_1 and key_1[i] <= key_2[j])
            take_2 = i == end_1 or (j < end_2 and key_2[j] <= key_1[i])
            key[filled] = key_1[i] if take_1 else key_2[j]
            segments[filled] = (segments_1[i] if take_1 else 0) | (segments_2[j] if take_2 else 0)
            filled += 1
            i += take_1
            j += take_2
        source[rows] = source_1[row_1] if in_1 else source_2[row_2]
        rows += 1
        pointer[rows] = filled
        row_1 += in_1
        row_2 += in_2
    return rows, filled
