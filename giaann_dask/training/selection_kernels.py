"""Run the compiled loops of selection: greedy rounds from a window of bits, and grouping into batches.

The rules are explained in `selection`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner

Bits = npt.NDArray[np.uint64]

# Overlaps of this many columns and more count as equally bad.
LEVELS = 4
# Sequences are ranked by their most frequent column: so many ranks, a factor of 2 apart.
RANKS = 6
HALVES = 0.5 ** np.arange(64)
# The position of the only set bit of x is that of the top 6 bits of x times a de Bruijn number.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_POSITIONS = np.empty(64, np.int64)
_POSITIONS[[(int(_DE_BRUIJN) << i & 0xFFFFFFFFFFFFFFFF) >> 58 for i in range(64)]] = np.arange(64)


class Sequences(NamedTuple):
    """Columns that sequences touch, by numbers from 0, and their costs or ranks."""

    offsets: Integers
    column: Integers
    value: Integers


class Window(NamedTuple):
    """The sequences that can be chosen now, a bit each."""

    holding: Bits  # per column: those that touch it
    touched: Integers  # per column: the last round that touched it
    ready: Bits  # per rank: those that are there
    overlap: Bits  # per level: those with more columns touched in this round than it
    sequence: Integers  # per bit: which sequence it is


class Batches(NamedTuple):
    """Batches while sequences are put into them."""

    batch: Integers  # per sequence: its batch, or -1
    counts: npt.NDArray[np.int32]  # per column and batch: touches
    load: Integers  # per batch: cost


@jit
def choose(sequences: Sequences, queue: Integers, width: int, size: int, window: Window) -> Integers:
    """Return the greedy order; sequences enter a window of some size in the order of the queue."""
    chosen = np.empty(len(queue), np.int64)
    for slot in range(size):
        _enter(sequences, queue[slot], slot, -2, window)
    for place in range(len(queue)):
        now = place // width
        if place % width == 0:
            window.overlap[:] = 0
        slot = _pick(window)
        chosen[place] = window.sequence[slot]
        _leave(sequences, chosen[place], slot, now, window)
        if place + size < len(queue):
            _enter(sequences, queue[place + size], slot, now, window)
    return chosen


@jit_inner
def _pick(window: Window) -> int:
    """Return the slot of least overlap, of the lowest rank among those."""
    for level in range(LEVELS + 1):
        for rank in range(RANKS):
            for word in range(window.ready.shape[1]):
                found = window.ready[rank, word]
                if level < LEVELS:
                    found &= ~window.overlap[level, word]
                if found:
                    lowest = found & (~found + np.uint64(1))
                    return int(word * 64 + _POSITIONS[(lowest * _DE_BRUIJN) >> np.uint64(58)])
    return -1


@jit_inner
def _enter(sequences: Sequences, sequence: int, slot: int, now: int, window: Window) -> None:
    """Put a sequence into a slot of the window."""
    word, bit = slot >> 6, np.uint64(1) << np.uint64(slot & 63)
    window.sequence[slot] = sequence
    window.ready[sequences.value[sequence], word] |= bit
    touched = 0
    for i in range(sequences.offsets[sequence], sequences.offsets[sequence + 1]):
        column = sequences.column[i]
        window.holding[column, word] |= bit
        touched += window.touched[column] == now
    for level in range(LEVELS):
        if level < touched:
            window.overlap[level, word] |= bit
        else:
            window.overlap[level, word] &= ~bit


@jit_inner
def _leave(sequences: Sequences, sequence: int, slot: int, now: int, window: Window) -> None:
    """Take a sequence out of its slot; whatever shares columns with it overlaps in this round."""
    word, bit = slot >> 6, np.uint64(1) << np.uint64(slot & 63)
    window.ready[sequences.value[sequence], word] ^= bit
    for i in range(sequences.offsets[sequence], sequences.offsets[sequence + 1]):
        column = sequences.column[i]
        window.holding[column, word] ^= bit
        if window.touched[column] != now:
            window.touched[column] = now
            for v, held in enumerate(window.holding[column]):
                if held:
                    for level in range(LEVELS - 1, 0, -1):
                        window.overlap[level, v] |= window.overlap[level - 1, v] & held
                    window.overlap[0, v] |= held


@jit
def group(sequences: Sequences, limit: int, passes: int, batches: Batches) -> None:
    """Put each sequence into the batch with most company, and move it there in later passes."""
    loss = np.empty(len(batches.load))
    for _ in range(passes):
        for sequence in range(len(sequences.value)):
            source = batches.batch[sequence]
            best = _best_batch(sequences, sequence, limit, batches, loss)
            if best == source:
                continue
            batches.batch[sequence] = best
            batches.load[best] += sequences.value[sequence]
            if source >= 0:
                batches.load[source] -= sequences.value[sequence]
            for i in range(sequences.offsets[sequence], sequences.offsets[sequence + 1]):
                batches.counts[sequences.column[i], best] += 1
                if source >= 0:
                    batches.counts[sequences.column[i], source] -= 1


@jit_inner
def _best_batch(
    sequences: Sequences, sequence: int, limit: int, batches: Batches, loss: npt.NDArray[np.float64]
) -> int:
    """Return the batch with the smallest loss; `assign_batches` defines it."""
    source, load = batches.batch[sequence], batches.load
    loss[:] = 0
    for i in range(sequences.offsets[sequence], sequences.offsets[sequence + 1]):
        counts = batches.counts[sequences.column[i]]
        for b in range(len(loss)):
            loss[b] += HALVES[min(counts[b] - (b == source), 63)]
    best = source if source >= 0 else int(np.argmin(load))
    for b in range(len(loss)):
        if load[b] + sequences.value[sequence] <= limit and loss[b] < loss[best]:
            best = b
    return best


@jit
def count_pairs(sequences: Sequences, batch: Integers, seen: npt.NDArray[np.bool_]) -> int:
    """Return the distinct columns of each batch, summed over the batches."""
    total = 0
    for sequence in range(len(batch)):
        for i in range(sequences.offsets[sequence], sequences.offsets[sequence + 1]):
            total += not seen[sequences.column[i], batch[sequence]]
            seen[sequences.column[i], batch[sequence]] = True
    return total
