"""Add up runs, or subtract some from others, in the order in which runs are packed, and count what a sum would have.

Any number of runs are added in one pass, in blocks of rows that fit a processor's caches: a target that only one run
has is copied with all its segments, and targets that several have are added segment by segment, as 64-bit integers. So
the result does not depend on the order or the grouping of the runs, which are never decoded as a whole. `merging` adds
decoded runs.

Distinct connections are counted without adding: the union of the target sets of packed runs needs neither their
strengths nor a table of all connections, and of stored runs only the rows that both have are read. A packed run names a
target of a row once, with a bit for every segment, so a connection that two runs share is a bit that both have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import Integers
from giaann_dask.lazy import compiled, jit_inner
from giaann_dask.lazy import numba_types as nb
from giaann_dask.runs.merging import block_edges
from giaann_dask.runs.packed_arrays import ReadEntries, require_intact
from giaann_dask.runs.packed_rows import RowReader, among, read_rows, read_sources
from giaann_dask.runs.packing import BlockReader, PackedRun, unpack_rows, unpack_targets
from giaann_dask.runs.run import BLOCK, Run, fold_smallest, pointer_of, readable, require_fits, rows_between
from giaann_dask.runs.target_sets import (
    TargetBlock,
    TargetSets,
    bit_position,
    block_of_run,
    count_bits,
    run_of_blocks,
)
from giaann_dask.spec import MAXIMUM_SEGMENTS

# Targets of a block for each of the runs at least, as taking a part of one has a cost of its own.
_LEAST = 1 << 12
_LARGEST = np.iinfo(np.int64).max
_NARROW = np.iinfo(np.int32).max
# Source neurons, the place of the first target of each and of the end, target keys, segments.
_Table: TypeAlias = tuple[Integers, Integers, Integers, npt.NDArray[np.uint32]]

_ARRAY = nb.types.Array(nb.int64, 1, "C", readonly=True)
_MASKS = nb.types.Array(nb.uint32, 1, "C", readonly=True)
_SUMS = nb.types.Tuple((nb.int64[::1], nb.uint32[::1], nb.int64[::1]))
_TABLE = nb.types.Tuple((_ARRAY, _ARRAY, _ARRAY, _MASKS))
_UNION = nb.types.Tuple((nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.uint32[::1]))


class _RowStream(Protocol):
    """Rows of a run that are read one block after the other."""

    @property
    def source(self) -> Integers:
        """Source neurons, ascending."""

    @property
    def row_targets(self) -> Integers:
        """Numbers of distinct targets of the sources, or of connections."""

    def take(self, rows: int) -> TargetBlock:
        """Return the next rows."""

    def finish(self) -> None:
        """Check that there is nothing left."""


class _DecodedRows:
    """Rows of a decoded run, which are collected by target when they are taken."""

    def __init__(self, run: Run) -> None:
        self._run, self._taken = run, 0
        self.source, self.row_targets = run.source, np.diff(run.pointer)

    def take(self, rows: int) -> TargetBlock:
        begin, self._taken = self._taken, self._taken + rows
        return block_of_run(rows_between(self._run, begin, self._taken))

    def finish(self) -> None:
        pass


def sum_in_blocks(
    runs: Sequence[PackedRun | Run], less: Sequence[PackedRun | Run] = (), *, block: int | None = None
) -> Iterator[TargetBlock]:
    """Yield the sum of runs without that of others, in blocks of rows.

    Parameters
    ----------
    runs : sequence of PackedRun or Run
        What is added, in any order.
    less : sequence of PackedRun or Run
        What is subtracted. Connections whose strengths become 0 are left out.
    block : int, optional
        Targets that are added at a time; some 64 thousand by default, and more of many runs.

    Yields
    ------
    TargetBlock
        At least one, of `block` targets or of one row; sources ascend from block to block.

    Raises
    ------
    StoreDamagedError
        If a run is damaged, or a strength would become negative.
    StrengthOverflowError
        If a sum does not fit into 64 bits.
    """
    parts = [(each, sign) for side, sign in ((runs, 1), (less, -1)) for each in side if each.rows]
    if not parts:
        yield block_of_run(Run.empty())
        return
    inputs: list[_RowStream] = [
        BlockReader(each) if isinstance(each, PackedRun) else _DecodedRows(each) for each, _ in parts
    ]
    signs = np.array([sign for _, sign in parts], np.int64)
    size = block or max(BLOCK, _LEAST * len(inputs))
    edges = block_edges([each.source for each in inputs], [each.row_targets for each in inputs], size)
    cuts = [np.concatenate([[0], np.searchsorted(each.source, edges), [len(each.source)]]) for each in inputs]
    for begin, end in pairwise(range(len(edges) + 2)):
        blocks = [each.take(int(cut[end] - cut[begin])) for each, cut in zip(inputs, cuts, strict=True)]
        yield _sum_blocks(blocks, signs)
    for each in inputs:
        each.finish()


def decode_blocks(tables: Sequence[PackedRun]) -> Iterator[Run]:
    """Yield the sum of runs in decoded blocks of rows; of a single run, these are only decoded."""
    if len(tables) != 1:
        yield from (run_of_blocks([block]) for block in sum_in_blocks(tables))
        return
    reader = BlockReader(tables[0])
    yield from (run_of_blocks([block]) for block in reader.blocks(BLOCK))
    reader.finish()


def _sum_blocks(blocks: Sequence[TargetBlock], signs: Integers) -> TargetBlock:
    """Return the sum of blocks of the same range of sources, with the signs of their strengths."""
    source = np.concatenate([block.source for block in blocks])
    order = _order_of(source)
    sets = [block.sets for block in blocks]
    given = (
        np.concatenate([each.key for each in sets]),
        np.concatenate([each.segments for each in sets]),
        np.concatenate([each.strength for each in sets]),
        np.concatenate([each.change for each in sets]).view(np.int64),
    )
    row_targets = np.concatenate([each.row_targets for each in sets])
    sign = np.repeat(signs, [len(block.source) for block in blocks])
    rows, targets, changes = len(source), len(given[0]), len(given[3])
    # Sums have no more targets and no more segments than what is added.
    made = (np.empty(rows, np.int64), np.empty(rows, np.int64))
    columns = (np.empty(targets, np.int64), np.empty(targets, np.uint32), np.empty(targets, np.int64))
    further, state = np.empty(changes + targets, np.int64), np.zeros(6, np.int64)
    _sum_rows((source, row_targets, sign, order), given, made, columns, further, state)
    rows, targets, changes, largest, negative, status = state.tolist()
    _require(status, negative)
    wide = largest > _NARROW or (len(blocks) == 1 and blocks[0].bits == 64 and signs[0] == 1)
    key, segments, strength = columns
    sums = TargetSets(
        made[1][:rows], key[:targets], segments[:targets], strength[:targets], further[:changes].view(np.uint64)
    )
    return TargetBlock(made[0][:rows], sums, 64 if wide else 32)


def _order_of(source: Integers) -> Integers:
    """Return the places of sources in their order, equal ones as they are.

    Where the difference of two sources and a place fit one number, sorting these takes a fifth of the time.
    """
    bits, lowest = len(source).bit_length(), int(source.min(initial=_LARGEST))
    if (int(source.max(initial=0)) - lowest) >> (63 - bits):
        return np.argsort(source, kind="stable")
    ordered = ((source - lowest) << bits) | np.arange(len(source))
    ordered.sort()
    ordered &= (1 << bits) - 1
    return ordered


def _require(status: int, negative: int) -> None:
    """Raise the error of a status of `_sum_rows`, or of negative strengths."""
    require_intact(status != 1, "the targets, segments and strengths of a run contradict each other")
    require_fits(status != 2)
    if negative:
        raise StoreDamagedError(
            f"{negative:,} connections would have a negative strength",
            "documents whose connections are all in the network",
            "check that the network was trained on all tokens of these documents",
        )


@jit_inner
def _copy_targets(
    given: Any, begin: int, end: int, limit: int, changed: int, columns: Any, further: Any, state: Any
) -> tuple[int, int]:
    """Copy the targets of a row below a key that one run alone has; return the target and the change after them."""
    key, segments, strength, change = given
    made, filled, largest = state[1], state[2], state[3]
    previous = np.int64(-1)
    intact = True
    item = begin
    while item < end and key[item] < limit:
        mask, value = np.int64(segments[item]), strength[item]
        intact &= key[item] > previous and mask != 0 and value > 0
        previous = key[item]
        columns[0][made], columns[1][made], columns[2][made] = key[item], segments[item], value
        made += 1
        largest = max(largest, value)
        mask &= mask - 1
        while mask:
            further[filled] = change[changed]
            value += ((change[changed] >> 1) & _LARGEST) ^ -(change[changed] & 1)
            intact &= value > 0
            largest = max(largest, value)
            filled += 1
            changed += 1
            mask &= mask - 1
        item += 1
    state[1], state[2], state[3] = made, filled, largest
    if not intact:
        state[5] = 1
    return item, changed


@jit_inner
def _add_target(mask: int, item: int, changed: int, sign: int, given: Any, sums: Any, state: Any) -> int:
    """Add the strengths of a target to sums by segment; return where the changes of the next target begin."""
    segments, strength, change = given[1], given[2], given[3]
    value, rest, first = strength[item], np.int64(segments[item]), True
    while rest:
        if not first:
            value += ((change[changed] >> 1) & _LARGEST) ^ -(change[changed] & 1)
            changed += 1
        first = False
        if value <= 0:
            state[5] = 1
        bit = rest & -rest
        segment = bit_position(bit)
        before = sums[segment] if mask & bit else np.int64(0)
        total = before + sign * value
        # Both differ in sign from their sum only where that has wrapped.
        if (before ^ total) & ((sign * value) ^ total) < 0:
            state[5] = 2
        sums[segment] = total
        rest &= rest - 1
    return changed


@jit_inner
def _write_target(key: int, mask: int, sums: Any, columns: Any, further: Any, state: Any) -> None:
    """Write a target with its sums, without the segments whose sum is 0."""
    made, filled = state[1], state[2]
    kept, last = np.int64(0), np.int64(0)
    while mask:
        bit = mask & -mask
        mask &= mask - 1
        value = sums[bit_position(bit)]
        if value == 0:
            continue
        if value < 0:
            state[4] += 1
        if kept:
            further[filled] = ((value - last) << 1) ^ ((value - last) >> 63)
            filled += 1
        else:
            columns[2][made] = value
        kept, last = kept | bit, value
        state[3] = max(state[3], value)
    if kept:
        columns[0][made], columns[1][made] = key, kept
        state[1] = made + 1
    state[2] = filled


@jit_inner
def _copy_plain(begin: int, end: int, given: Any, columns: Any, state: Any) -> None:
    """Copy the targets of a row that one run alone has, of a block without changes."""
    key, segments, strength = given[0], given[1], given[2]
    made, largest, previous = state[1], state[3], np.int64(-1)
    intact = True
    for item in range(begin, end):
        mask, value = np.int64(segments[item]), strength[item]
        intact &= (key[item] > previous) & (mask != 0) & (mask & (mask - 1) == 0) & (value > 0)
        previous = key[item]
        columns[0][made], columns[1][made], columns[2][made] = previous, mask, value
        made += 1
        largest = max(largest, value)
    state[1], state[3] = made, largest
    if not intact:
        state[5] = 1


@jit_inner
def _two_lowest(following: Any, parts: int) -> tuple[int, int, int]:
    """Return the lowest key of the first places, a place that has it, and the lowest key at all others of these."""
    lowest = second = _LARGEST
    place = 0
    for part in range(parts):
        key = following[part]
        if key < lowest:
            lowest, second, place = key, lowest, part
        elif key < second:
            second = key
    return lowest, place, second


@jit_inner
def _merge_rows(
    same: Any, bounds: Any, sign: Any, space: Any, given: Any, columns: Any, further: Any, state: Any
) -> None:
    """Add rows of one source neuron target by target, in space for as many rows."""
    key, segments = given[0], given[1]
    (begins, first_changes), (heads, ends, changes, signs, following, sums) = bounds, space
    parts = len(same)
    for part in range(parts):
        row = same[part]
        heads[part], ends[part] = begins[row], begins[row + 1]
        changes[part], signs[part] = first_changes[row], sign[row]
        following[part] = key[heads[part]] if heads[part] < ends[part] else _LARGEST
    previous = np.int64(-1)
    while True:
        lowest, place, second = _two_lowest(following, parts)
        if lowest == _LARGEST:
            break
        if lowest <= previous:
            state[5] = 1
        previous = lowest
        if lowest < second and signs[place] == 1:
            # Mostly several targets in a row, which are not compared with those of the other rows again.
            heads[place], changes[place] = _copy_targets(
                given, heads[place], ends[place], second, changes[place], columns, further, state
            )
            previous = key[heads[place] - 1]
            following[place] = key[heads[place]] if heads[place] < ends[place] else _LARGEST
            continue
        mask = np.int64(0)
        for part in range(parts):
            if following[part] == lowest:
                item = heads[part]
                changes[part] = _add_target(mask, item, changes[part], signs[part], given, sums, state)
                mask |= np.int64(segments[item])
                heads[part] = item + 1
                following[part] = key[item + 1] if item + 1 < ends[part] else _LARGEST
        if mask == 0:
            state[5] = 1
        _write_target(lowest, mask, sums, columns, further, state)


@compiled(
    nb.void(
        nb.types.UniTuple(_ARRAY, 4),
        nb.types.Tuple((_ARRAY, _MASKS, _ARRAY, _ARRAY)),
        nb.types.UniTuple(nb.int64[::1], 2),
        _SUMS,
        nb.int64[::1],
        nb.int64[::1],
    )
)
def _sum_rows(rows: Any, given: Any, made: Any, columns: Any, further: Any, state: Any) -> None:
    """Add the rows of several runs.

    Parameters
    ----------
    rows : tuple
        Source, number of targets and sign of each row, and the order of the rows by source.
    given : tuple
        Keys, segments, strengths and changes of all targets, row after row.
    made, columns, further : tuple of ndarray
        Filled: sources and numbers of targets of the sum; keys, segments and strengths; changes.
    state : ndarray
        Filled: numbers of rows, targets and changes of the sum; the largest strength; how many strengths are negative;
        1 where the arrays contradict each other and 2 where a sum has more than 64 bits.
    """
    source, counts, sign, order = rows
    segments, plain = given[1], len(given[3]) == 0
    begins, changes = np.empty(len(source) + 1, np.int64), np.zeros(len(source) + 1, np.int64)
    begins[0] = 0
    for row in range(len(source)):
        begins[row + 1] = begins[row] + counts[row]
    for row in range(0 if plain else len(source)):
        further_here = np.int64(0)
        for item in range(begins[row], begins[row + 1]):
            further_here += count_bits(np.int64(segments[item])) - 1
        changes[row + 1] = changes[row] + further_here
    space = _space(source, order)
    at = 0
    while at < len(source):
        end, least = at + 1, sign[order[at]]
        while end < len(source) and source[order[end]] == source[order[at]]:
            least = min(least, sign[order[end]])
            end += 1
        before, row = state[1], order[at]
        if end == at + 1 and sign[row] == 1:
            if plain:
                _copy_plain(begins[row], begins[row + 1], given, columns, state)
            else:
                _copy_targets(given, begins[row], begins[row + 1], _LARGEST, changes[row], columns, further, state)
        else:
            _merge_rows(order[at:end], (begins, changes), sign, space, given, columns, further, state)
        # A row without targets stays unless something was subtracted from it.
        if state[1] > before or least > 0:
            made[0][state[0]], made[1][state[0]] = source[row], state[1] - before
            state[0] += 1
        at = end


@jit_inner
def _space(source: Integers, order: Integers) -> Any:
    """Return space for the most rows of one source: their heads, ends, changes, signs and next keys; and for sums."""
    most = same = 0
    for at in range(len(order)):
        same = same + 1 if at and source[order[at]] == source[order[at - 1]] else 1
        most = max(most, same)
    made = np.empty((5, most), np.int64)
    return made[0], made[1], made[2], made[3], made[4], np.empty(MAXIMUM_SEGMENTS, np.int64)


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
    return _connections(_united(map(_table, filled))) if len(filled) > 1 else sum(map(len, filled))


def count_added(runs: Sequence[PackedRun], stored: Sequence[ReadEntries | RowReader]) -> int:
    """Return the number of distinct connections of some runs that no stored run has.

    Parameters
    ----------
    runs : sequence of PackedRun
        Any number of them.
    stored : sequence of callable or RowReader
        Read entries of the others, or their rows. Only chunks are read that have targets of the source neurons of
        `runs`.

    Returns
    -------
    int
        By how many connections their sum has more than that of the stored ones.

    Raises
    ------
    StoreDamagedError
        As far as the arrays show it that are needed.
    """
    filled = [run for run in runs if len(run)]
    if not filled:
        return 0
    added = _united(map(_table, filled))
    if not stored:
        return _connections(added)
    there = _united(_readable(read_rows(read, added[0])) for read in stored)
    return _connections(_unite(added, there)) - _connections(there)


def count_added_neurons(runs: Sequence[PackedRun], stored: Sequence[ReadEntries | RowReader]) -> int:
    """Return the number of distinct source neurons of some runs that no stored run has, see `count_added`."""
    neurons = np.sort(np.concatenate([np.zeros(0, np.int64), *(unpack_rows(run)[0] for run in runs)]))
    new = np.append(neurons[1:] != neurons[:-1], True)[: len(neurons)]
    for read in stored if len(neurons) else ():
        new &= ~among(neurons, read_sources(read))
    return int(new.sum())


def _united(tables: Iterable[_Table]) -> _Table:
    """Return the union of tables, at least one."""
    return fold_smallest(tables, lambda table: len(table[2]), _unite)


def _connections(table: _Table) -> int:
    return int(np.bitwise_count(table[3]).sum(dtype=np.int64))


def _table(packed: PackedRun) -> _Table:
    """Return the targets of a run in the form of the compiled code."""
    source, sets = unpack_targets(packed)
    return _readable((source, pointer_of(sets.row_targets), sets.key, sets.segments))


def _readable(table: _Table) -> _Table:
    source, pointer, key, segments = table
    return readable(source), readable(pointer), readable(key), readable(segments)


def _unite(first: _Table, second: _Table) -> _Table:
    """Return the union of two tables."""
    rows, targets = (len(first[place]) + len(second[place]) for place in (0, 2))
    source, pointer, key = (np.empty(size, np.int64) for size in (rows, rows + 1, targets))
    segments = np.empty(targets, np.uint32)
    rows, targets = _unite_tables(first, second, (source, pointer, key, segments))
    return readable(source[:rows]), readable(pointer[: rows + 1]), readable(key[:targets]), readable(segments[:targets])


@compiled(nb.types.UniTuple(nb.int64, 2)(_TABLE, _TABLE, _UNION))
def _unite_tables(first: _Table, second: _Table, result: _Table) -> tuple[int, int]:
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
