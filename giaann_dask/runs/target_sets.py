"""Group the connections of a run by target, each with the set of its segments, and restore their order exactly.

`run` has the decoded order, and `packing` encodes either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.lazy import compiled, jit_inner, runs_plainly
from giaann_dask.lazy import numba_types as nb
from giaann_dask.runs.packed_arrays import require_intact
from giaann_dask.runs.run import Run, readable
from giaann_dask.spec import BRANCH_BITS, MAXIMUM_SEGMENTS

Strengths: TypeAlias = npt.NDArray[np.signedinteger[Any]]

_LOW = (1 << SEGMENT_SHIFT) - 1
_NO_TARGET = np.iinfo(np.int64).max
_LARGEST = np.iinfo(np.int64).max
# Positions of the only bit of 32-bit numbers, found by a multiplication with a De Bruijn sequence.
_DE_BRUIJN = 0x077CB531
_POSITION = np.zeros(32, np.int64)
_POSITION[[((_DE_BRUIJN << bit) & 0xFFFFFFFF) >> 27 for bit in range(32)]] = np.arange(32)


@dataclass(frozen=True, slots=True, eq=False)
class TargetSets:
    """The connections of a run, collected by target.

    Attributes
    ----------
    row_targets : ndarray
        Number of targets of each row, int64, shape ``(rows,)``.
    key : ndarray
        Target key without its segment, ascending within a row; int64, shape ``(targets,)``.
    segments : ndarray
        Bit s is set where there is a connection on segment s; uint32, shape ``(targets,)``.
    strength : ndarray
        Strength units on the lowest of these segments, int64, shape ``(targets,)``.
    change : ndarray
        For every further segment the difference from the one before, zigzag-coded (0, -1, 1, -2
        become 0, 1, 2, 3); uint64, shape ``(connections - targets,)``.
    """

    row_targets: Integers
    key: Integers
    segments: npt.NDArray[np.uint32]
    strength: Integers
    change: npt.NDArray[np.uint64]


class TargetBlock(NamedTuple):
    """Some rows of a run, collected by target.

    Attributes
    ----------
    source : ndarray
        Source neuron keys, ascending, int64, shape ``(rows,)``.
    sets : TargetSets
        Their connections.
    bits : int
        Width of the strengths, 32 or 64.
    """

    source: Integers
    sets: TargetSets
    bits: int

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self.sets.strength) + len(self.sets.change)


def block_of_run(run: Run) -> TargetBlock:
    """Return all rows of a run, collected by target."""
    return TargetBlock(run.source, collect_targets(run), 8 * run.strength.dtype.itemsize)


def run_of_blocks(blocks: Sequence[TargetBlock]) -> Run:
    """Return the run of blocks of rows, at least one, whose sources ascend from block to block."""
    rows, size = sum(len(block.source) for block in blocks), sum(block.connections for block in blocks)
    return fill_run(blocks, rows, size, max(block.bits for block in blocks))


def fill_run(blocks: Iterable[TargetBlock], rows: int, connections: int, bits: int) -> Run:
    """Return the run of blocks as `run_of_blocks` does, of which only one has to be there at a time.

    Raises
    ------
    StoreDamagedError
        If a block contradicts itself, or they have another number of connections in all.
    """
    made = Run(
        np.empty(rows, np.int64),
        np.zeros(rows + 1, np.int64),
        np.empty(connections, np.int64),
        np.empty(connections, np.int32 if bits == 32 else np.int64),
    )
    rows = size = 0
    for block in blocks:
        end, last = rows + len(block.source), size + block.connections
        made.source[rows:end] = block.source
        pointer = made.pointer[rows : end + 1]
        intact = last <= connections and spread_targets(
            block.sets, pointer, made.target[size:last], made.strength[size:last]
        )
        require_intact(intact, "the targets, segments and strengths of a run contradict each other")
        pointer += size
        rows, size = end, last
    require_intact(size == connections, f"a run has {size} connections", f"{connections}")
    return made


def row_part(block: TargetBlock, goes_on: Callable[[Integers], npt.NDArray[np.bool_]], upper: bool) -> TargetBlock:
    """Return the targets of a block of one row whose neurons go on, or the others; no row without any."""
    sets = block.sets
    kept = goes_on(sets.key >> BRANCH_BITS) == upper
    changes = np.repeat(kept, np.bitwise_count(sets.segments).astype(np.int64) - 1)
    part = sets.key[kept], sets.segments[kept], sets.strength[kept], sets.change[changes]
    rows = min(len(part[0]), 1)
    return TargetBlock(block.source[:rows], TargetSets(np.full(rows, len(part[0])), *part), block.bits if rows else 32)


def collect_targets(run: Run) -> TargetSets:
    """Collect the connections of a run by target.

    Examples
    --------
    >>> segment = np.int64(1) << SEGMENT_SHIFT
    >>> target, strength = np.array([5, segment + 5]), np.array([10, 9], np.int32)
    >>> sets = collect_targets(Run(np.array([7]), np.array([0, 2]), target, strength))
    >>> sets.key.tolist(), sets.segments.tolist(), sets.strength.tolist(), sets.change.tolist()
    ([5], [3], [10], [1])
    """
    rows, connections = len(run.source), len(run)
    row_targets, key = np.empty(rows, np.int64), np.empty(connections, np.int64)
    segments = np.empty(connections, np.uint32)
    strength, change = np.empty(connections, np.int64), np.empty(connections, np.int64)
    table = (readable(run.pointer), readable(run.target), readable(run.strength))
    targets = _collect(table, row_targets, key, segments, strength, change)
    further = change[: connections - targets].view(np.uint64)
    return TargetSets(row_targets, key[:targets], segments[:targets], strength[:targets], further)


def spread_targets(sets: TargetSets, pointer: Integers, target: Integers, strength: Strengths) -> bool:
    """Distribute the connections to the segments again.

    Parameters
    ----------
    sets : TargetSets
        What `collect_targets` returned.
    pointer, target, strength : ndarray
        Uninitialised, of the lengths of a run's arrays; filled in. Strengths are int32 or int64.

    Returns
    -------
    bool
        False if the arrays contradict each other, or a strength is not positive or does not fit.
    """
    change = readable(sets.change.view(np.int64))
    columns = (readable(sets.row_targets), readable(sets.key), readable(sets.segments))
    pointer[0] = 0
    spread = _spread_uncompiled if runs_plainly(len(target) // 3) else _spread
    return bool(spread(columns, (readable(sets.strength), change), pointer, target, strength))


def _spread_uncompiled(
    columns: tuple[Integers, Integers, npt.NDArray[np.uint32]],
    strengths: tuple[Integers, Integers],
    pointer: Integers,
    target: Integers,
    strength: Strengths,
) -> bool:
    """Do what `_spread` does with NumPy alone, for few connections."""
    row_targets, key, segments = columns
    first, change = strengths
    if not (row_targets >= 0).all() or not (row_targets <= len(key)).all() or row_targets.sum() != len(key):
        return False
    row = np.repeat(np.arange(len(row_targets)), row_targets)
    ascending = (key[1:] > key[:-1]) | (row[1:] != row[:-1])
    item, segment = np.nonzero((segments[:, np.newaxis] >> np.arange(MAXIMUM_SEGMENTS, dtype=np.uint32)) & 1)
    intact = ascending.all() and (key >= 0).all() and segments.all()
    if not intact or len(item) != len(target) or len(item) != len(key) + len(change):
        return False
    # The further segments of a target add their changes to the strength before.
    is_first = np.append(True, item[1:] != item[:-1])[: len(item)]
    added = np.zeros(len(item), np.int64)
    added[~is_first] = ((change >> 1) & _LARGEST) ^ -(change & 1)
    added = np.cumsum(added)
    value = first[item] + (added - added[is_first][item])
    order = np.argsort(row[item] * MAXIMUM_SEGMENTS + segment, kind="stable")
    target[:], strength[:] = ((segment << SEGMENT_SHIFT) | key[item])[order], value[order]
    pointer[1:] = np.cumsum(np.bincount(row[item], minlength=len(row_targets)))
    return bool((value > 0).all()) and np.array_equal(strength, value[order])


def _constant(kind: Any) -> Any:
    return nb.types.Array(kind, 1, "C", readonly=True)


_KEYS = _constant(nb.int64)
_COLUMNS = nb.types.Tuple((_KEYS, _KEYS, _constant(nb.uint32)))


@jit_inner
def _end_of_segment(target: Integers, begin: int, end: int, segment: int) -> int:
    """Return where the targets of a segment end that begin at ``begin``, by bisection."""
    while begin < end:
        middle = (begin + end) >> 1
        if target[middle] >> SEGMENT_SHIFT > segment:
            end = middle
        else:
            begin = middle + 1
    return end


@compiled(
    *(
        nb.int64(
            nb.types.Tuple((_KEYS, _KEYS, _constant(kind))),
            nb.int64[::1],
            nb.int64[::1],
            nb.uint32[::1],
            nb.int64[::1],
            nb.int64[::1],
        )
        for kind in (nb.int32, nb.int64)
    )
)
def _collect(
    table: tuple[Integers, Integers, Strengths],
    row_targets: Integers,
    key: Integers,
    segments: npt.NDArray[np.uint32],
    strength: Integers,
    change: Integers,
) -> int:
    """Merge the segments of every row by target; return the number of targets."""
    pointer, target, value = table
    # The slices of a row, one for each of its segments: next entry, end, segment, next target.
    heads, ends = np.empty(MAXIMUM_SEGMENTS, np.int64), np.empty(MAXIMUM_SEGMENTS, np.int64)
    bits, following = np.empty(MAXIMUM_SEGMENTS, np.int64), np.empty(MAXIMUM_SEGMENTS, np.int64)
    made = changed = 0
    for row in range(len(row_targets)):
        slices, position, before = 0, pointer[row], made
        if pointer[row + 1] - position == 1:
            key[made], segments[made] = target[position] & _LOW, np.int64(1) << (target[position] >> SEGMENT_SHIFT)
            strength[made] = value[position]
            made += 1
            row_targets[row] = 1
            continue
        while position < pointer[row + 1]:
            segment = target[position] >> SEGMENT_SHIFT
            heads[slices], bits[slices] = position, np.int64(1) << segment
            following[slices] = target[position] & _LOW
            position = _end_of_segment(target, position, pointer[row + 1], segment)
            ends[slices] = position
            slices += 1
        while slices:
            lowest = _NO_TARGET
            for part in range(slices):
                lowest = min(lowest, following[part])
            if lowest == _NO_TARGET:
                break
            mask = last = np.int64(0)
            for part in range(slices):
                if following[part] == lowest:
                    at = heads[part]
                    now = np.int64(value[at])
                    if mask == 0:
                        strength[made] = now
                    else:
                        change[changed] = ((now - last) << 1) ^ ((now - last) >> 63)
                        changed += 1
                    last = now
                    mask |= bits[part]
                    heads[part] = at + 1
                    following[part] = target[at + 1] & _LOW if at + 1 < ends[part] else _NO_TARGET
            key[made], segments[made] = lowest, mask
            made += 1
        row_targets[row] = made - before
    return made


@jit_inner
def bit_position(bit: int) -> int:
    """Return the position of the only bit of a 32-bit number, in compiled code."""
    position: int = _POSITION[((bit * _DE_BRUIJN) & 0xFFFFFFFF) >> 27]
    return position


@jit_inner
def count_bits(mask: int) -> int:
    """Return how many bits of a 32-bit number are set, in compiled code."""
    mask -= (mask >> 1) & 0x55555555
    mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333)
    mask = (mask + (mask >> 4)) & 0x0F0F0F0F
    return ((mask * 0x01010101) & 0xFFFFFFFF) >> 24


@jit_inner
def _place_segments(key: Integers, segments: npt.NDArray[np.uint32], first: int, end: int, places: Integers) -> bool:
    """Count the connections of a row by segment; return False if its targets do not ascend."""
    places[:] = 0
    previous = np.int64(-1)
    for item in range(first, end):
        mask = np.int64(segments[item])
        if key[item] <= previous or mask == 0:
            return False
        previous = key[item]
        while mask:
            places[bit_position(mask & -mask)] += 1
            mask &= mask - 1
    return True


@compiled(
    *(
        nb.boolean(_COLUMNS, nb.types.UniTuple(_KEYS, 2), nb.int64[::1], nb.int64[::1], kind[::1])
        for kind in (nb.int32, nb.int64)
    )
)
def _spread(
    columns: tuple[Integers, Integers, npt.NDArray[np.uint32]],
    strengths: tuple[Integers, Integers],
    pointer: Integers,
    target: Integers,
    strength: Strengths,
) -> bool:
    """Fill pointer, target and strength; return False where the arrays contradict each other."""
    row_targets, key, segments = columns
    first_strength, change = strengths
    places = np.empty(MAXIMUM_SEGMENTS, np.int64)
    item = changed = filled = 0
    for row in range(len(row_targets)):
        if row_targets[row] < 0 or row_targets[row] > len(key) - item:
            return False
        end = item + row_targets[row]
        if not _place_segments(key, segments, item, end, places):
            return False
        for segment in range(MAXIMUM_SEGMENTS):
            places[segment], filled = filled, filled + places[segment]
        pointer[row + 1] = filled
        if filled > len(target) or changed + filled - pointer[row] - row_targets[row] > len(change):
            return False
        while item < end:
            mask, value = np.int64(segments[item]), first_strength[item]
            while True:
                segment = bit_position(mask & -mask)
                at = places[segment]
                places[segment] = at + 1
                target[at] = (segment << SEGMENT_SHIFT) | key[item]
                strength[at] = value
                if value <= 0 or strength[at] != value:
                    return False
                mask &= mask - 1
                if mask == 0:
                    break
                value += ((change[changed] >> 1) & _LARGEST) ^ -(change[changed] & 1)
                changed += 1
            item += 1
    return item == len(key) and filled == len(target) and changed == len(change)
