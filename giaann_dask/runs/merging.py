"""Merge sorted runs into one run, and plan which runs of a region are merged.

Any number of runs are merged in one pass, in blocks of rows that fit a processor's caches. Within a block, two sorted
tables at a time are merged by two pointers: rows that only one side has are copied, and rows that both have are
merged by target key, with their strengths added as 64-bit integers. So the result does not depend on the order or the
grouping of the runs. Runs are compacted by the logarithmic method. `summing` adds runs that
are packed again, and counts connections without merging.

The arrays of a run may be read-only, as those deserialised from network messages are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import compiled, jit_inner
from giaann_dask.lazy import numba_types as nb
from giaann_dask.runs.packing import PackedRun, unpack
from giaann_dask.runs.run import BLOCK, Run, fold_smallest, narrow_strength, readable, require_fits

Table: TypeAlias = tuple[Integers, Integers, Integers, npt.NDArray[np.signedinteger[Any]]]


# Rows of a table by which the ends of a block are found, about.
_STEPS = 1 << 8
_WIDE = nb.types.Array(nb.int64, 1, "C", readonly=True)
_NARROW = nb.types.Array(nb.int32, 1, "C", readonly=True)
_OUTPUT = nb.types.Array(nb.int64, 1, "C")
_TABLE_32 = nb.types.Tuple((_WIDE, _WIDE, _WIDE, _NARROW))
_TABLE_64 = nb.types.UniTuple(_WIDE, 4)
_RESULT_64 = nb.types.UniTuple(_OUTPUT, 4)
_RESULT_32 = nb.types.Tuple((_OUTPUT, _OUTPUT, _OUTPUT, nb.types.Array(nb.int32, 1, "C")))


def merge_runs(runs: Sequence[Run | PackedRun], *, block: int = BLOCK) -> Run:
    """Return the sum of runs; of packed ones, only two are decoded at a time.

    Parameters
    ----------
    runs : sequence of Run or PackedRun
        Any number of them, in any order; they are not changed.
    block : int
        Connections that are merged at a time; a row is never divided.

    Returns
    -------
    Run
        All connections of the runs with their strengths added. A single run, and a run beside
        which all others are empty, is returned as it is.

    Raises
    ------
    StrengthOverflowError
        If a sum does not fit into 64 bits.

    Examples
    --------
    >>> one = Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([10, 20], np.int32))
    >>> merge_runs([one, Run.empty(), one]).strength
    array([20, 40], dtype=int32)
    """
    if len(runs) == 1:
        return _decoded(runs[0])
    filled = [run for run in runs if run.rows]
    parts = [run for run in filled if isinstance(run, Run)]
    packed: list[Run | PackedRun] = [run for run in filled if isinstance(run, PackedRun)]
    if packed:
        parts.append(_decoded(fold_smallest(packed, len, lambda *both: merge_runs([*map(_decoded, both)]))))
    if len(parts) < 2:
        return parts[0] if parts else Run.empty()
    return _join(_merge_by_blocks(parts, block), parts)


def _decoded(run: Run | PackedRun) -> Run:
    return unpack(run) if isinstance(run, PackedRun) else run


def _join(blocks: Iterable[Run], runs: Sequence[Run]) -> Run:
    """Return the run of the merged blocks of some runs."""
    rows, size = sum(run.rows for run in runs), sum(map(len, runs))
    source, pointer, target = (np.empty(length, np.int64) for length in (rows, rows + 1, size))
    strength: npt.NDArray[np.signedinteger[Any]] = np.empty(size, np.int32 if _are_narrow(runs) else np.int64)
    pointer[0] = rows = size = 0
    for block in blocks:
        end, last = rows + block.rows, size + len(block)
        source[rows:end] = block.source
        np.add(block.pointer[1:], size, out=pointer[rows + 1 : end + 1])
        target[size:last], strength[size:last] = block.target, block.strength
        rows, size = end, last
    # Shrinking does not move the used part.
    for array, length in ((source, rows), (pointer, rows + 1), (target, size), (strength, size)):
        array.resize(length, refcheck=False)
    return Run(source, pointer, target, strength if strength.dtype == np.int32 else narrow_strength(strength))


def _are_narrow(runs: Sequence[Run]) -> bool:
    """Return whether all strengths have 32 bits, and so do all sums: none is larger than that of the largest."""
    if any(run.strength.dtype != np.int32 for run in runs):
        return False
    return sum(int(run.strength.max(initial=0)) for run in runs) <= np.iinfo(np.int32).max


def _merge_by_blocks(runs: Sequence[Run], size: int) -> Iterator[Run]:
    """Yield the sum of runs in blocks of rows."""
    narrow = len(runs) == 1 or _are_narrow(runs)
    edges = block_edges([run.source for run in runs], [np.diff(run.pointer) for run in runs], size)
    cuts = [[0, *np.searchsorted(run.source, edges).tolist(), run.rows] for run in runs]
    for block in range(len(edges) + 1):
        pieces = [
            _piece(run, ends[block], ends[block + 1], narrow=narrow)
            for run, ends in zip(runs, cuts, strict=True)
            if ends[block] < ends[block + 1]
        ]
        source, pointer, target, strength = fold_smallest(pieces or [_table(runs[0], 0, 0)], _connections, _merge_two)
        first, end = int(pointer[0]), int(pointer[-1])
        yield Run(
            source,
            pointer - first,
            target[first:end],
            strength[first:end] if narrow else narrow_strength(strength[first:end].astype(np.int64, copy=False)),
        )


def block_edges(sources: Sequence[Integers], counts: Sequence[Integers], size: int) -> Integers:
    """Return the source neurons at which blocks of rows of several tables end, without the last one.

    Parameters
    ----------
    sources : sequence of ndarray
        Source neurons of each table, ascending, int64.
    counts : sequence of ndarray
        Numbers of entries of their rows.
    size : int
        Entries of a block, about.
    """
    entries = sum(int(count.sum()) for count in counts)
    if entries <= size:
        return np.zeros(0, np.int64)
    # Of long tables some rows stand for those that follow them: sorting all would take as long as adding them up.
    step = max(sum(map(len, sources)) * size // (entries * _STEPS), 1)
    source = np.concatenate([each[::step] for each in sources])
    order = np.argsort(source, kind="stable")
    steps = [np.add.reduceat(each, np.arange(0, len(each), step)) if len(each) else each for each in counts]
    before = np.cumsum(np.concatenate(steps)[order])
    # Rows of one source may lie on both sides of an edge; all of them belong to the block that begins there.
    return np.unique(source[order[np.searchsorted(before, np.arange(size, entries, size), "right")]])


def _piece(run: Run, begin: int, end: int, *, narrow: bool) -> Table:
    """Return some rows of a run for compiled code; their pointers lead into the whole run if it is narrow."""
    if narrow:
        return _table(run, begin, end)
    first, last = int(run.pointer[begin]), int(run.pointer[end])
    wide = run.strength[first:last].astype(np.int64, copy=False)
    return _table(Run(run.source[begin:end], run.pointer[begin : end + 1] - first, run.target[first:last], wide))


def _table(run: Run, begin: int = 0, end: int | None = None) -> Table:
    """Return the arrays of some rows of a run for compiled code."""
    end = run.rows if end is None else end
    kind = np.int32 if run.strength.dtype == np.int32 else np.int64
    return (
        readable(run.source[begin:end], np.int64),
        readable(run.pointer[begin : end + 1], np.int64),
        readable(run.target, np.int64),
        readable(run.strength, kind),
    )


def _connections(table: Table) -> int:
    return int(table[1][-1] - table[1][0])


def _merge_two(first: Table, second: Table) -> Table:
    """Return the sum of two tables of one width."""
    size = _connections(first) + _connections(second)
    rows = len(first[0]) + len(second[0])
    source, pointer, target = (np.empty(length, np.int64) for length in (rows, rows + 1, size))
    strength = np.empty(size, first[3].dtype)
    rows, intact = _merge_tables(first, second, (source, pointer, target, strength))
    require_fits(intact)
    used = pointer[rows]
    return readable(source[:rows]), readable(pointer[: rows + 1]), readable(target[:used]), readable(strength[:used])


@jit_inner
def _copy_row(table: Table, result: Table, begin: int, end: int, filled: int) -> int:
    """Copy connections of a row that only one side has; return the entries filled."""
    for entry in range(begin, end):
        result[2][filled] = table[2][entry]
        result[3][filled] = table[3][entry]
        filled += 1
    return filled


@jit_inner
def _merge_row(
    first: Table, second: Table, result: Table, bounds: tuple[int, int, int, int], filled: int
) -> tuple[int, int]:
    """Merge a row that both have; return the entries filled, and a negative number on overflow.

    Which side is next cannot be predicted, so the loop computes with comparisons instead of
    branching on them.
    """
    target_1, strength_1 = first[2], first[3]
    target_2, strength_2 = second[2], second[3]
    target, strength = result[2], result[3]
    i, end_1, j, end_2 = bounds
    overflow = 0
    while i < end_1 and j < end_2:
        left, right = target_1[i], target_2[j]
        take_1, take_2 = left <= right, right <= left
        gain_1, gain_2 = np.int64(strength_1[i]) * take_1, np.int64(strength_2[j]) * take_2
        total = gain_1 + gain_2
        # Both differ in sign from their sum only where that has wrapped.
        overflow |= (gain_1 ^ total) & (gain_2 ^ total)
        target[filled] = min(left, right)
        strength[filled] = total
        filled += 1
        i += take_1
        j += take_2
    filled = _copy_row(first, result, i, end_1, filled)
    return _copy_row(second, result, j, end_2, filled), overflow


@compiled(
    nb.types.Tuple((nb.int64, nb.boolean))(_TABLE_32, _TABLE_32, _RESULT_32),
    nb.types.Tuple((nb.int64, nb.boolean))(_TABLE_64, _TABLE_64, _RESULT_64),
)
def _merge_tables(first: Table, second: Table, result: Table) -> tuple[int, bool]:
    """Merge two tables into arrays that are long enough; return the rows, and False on overflow."""
    source_1, pointer_1 = first[0], first[1]
    source_2, pointer_2 = second[0], second[1]
    source, pointer = result[0], result[1]
    i = j = rows = filled = overflow = 0
    pointer[0] = 0
    while i < len(source_1) or j < len(source_2):
        in_first = j == len(source_2) or (i < len(source_1) and source_1[i] <= source_2[j])
        in_second = i == len(source_1) or (j < len(source_2) and source_2[j] <= source_1[i])
        if in_first and in_second:
            bounds = (pointer_1[i], pointer_1[i + 1], pointer_2[j], pointer_2[j + 1])
            filled, carry = _merge_row(first, second, result, bounds, filled)
            overflow |= carry
        elif in_first:
            filled = _copy_row(first, result, pointer_1[i], pointer_1[i + 1], filled)
        else:
            filled = _copy_row(second, result, pointer_2[j], pointer_2[j + 1], filled)
        source[rows] = source_1[i] if in_first else source_2[j]
        rows += 1
        pointer[rows] = filled
        i += in_first
        j += in_second
    return rows, overflow >= 0


class Ranked(Protocol):
    """A run of a region, or a reference to one, that sums up about ``2 ** rank`` rounds."""

    @property
    def rank(self) -> int:
        """Its rank."""
        ...


AnyRun = TypeVar("AnyRun", bound=Ranked)


@dataclass(frozen=True)
class Compaction(Generic[AnyRun]):
    """Plan for adding a run to a region.

    Attributes
    ----------
    kept : tuple
        Runs that stay as they are, of falling rank.
    merged : tuple
        Runs to be added up into one, oldest first; a single one needs no work.
    rank : int
        Rank of the result.
    """

    kept: tuple[AnyRun, ...]
    merged: tuple[AnyRun, ...]
    rank: int


def plan_compaction(
    runs: tuple[AnyRun, ...], added: AnyRun, together: int = 2, sums_together: int | None = None
) -> Compaction[AnyRun]:
    """Plan the merges when a region gets one more run: as soon as there are enough runs of a rank, they are merged.

    Parameters
    ----------
    runs : tuple
        The region's runs, of falling rank.
    added : Ranked
        The new run; runs of lower ranks are added up with it.
    together : int
        So many runs of a rank become one, 2 or a larger power of two: the more, the more runs a region has, and
        the less often a connection is rewritten (a third less with 4). It may differ from call to call.
    sums_together : int, optional
        The same for runs of a rank above 0, which are sums; as many by default.

    Returns
    -------
    Compaction

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Named(NamedTuple):
    ...     rank: int
    ...     name: str
    >>> plan = plan_compaction((Named(2, "a"), Named(1, "b"), Named(0, "c")), Named(0, "d"))
    >>> plan.kept, [run.name for run in plan.merged], plan.rank
    ((), ['a', 'b', 'c', 'd'], 3)
    >>> plan_compaction((Named(0, "a"), Named(0, "b")), Named(0, "c"), together=4).merged
    (Named(rank=0, name='c'),)
    """
    sums_together = together if sums_together is None else sums_together
    assert together.bit_count() == sums_together.bit_count() == 1 < min(together, sums_together), "powers of two"
    rank = added.rank
    kept = sum(run.rank >= rank for run in runs)
    while True:
        same = sum(run.rank <= rank for run in runs[:kept])
        # The result of the merges so far counts as one run of its rank.
        most = sums_together if rank else together
        if same + 1 < most:
            return Compaction(runs[:kept], (*runs[kept:], added), rank)
        rank += most.bit_length() - 1
        # Also the runs of ranks between, which another number of runs has left there.
        kept = sum(run.rank >= rank for run in runs[:kept])
