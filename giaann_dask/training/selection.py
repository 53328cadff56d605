"""Select which sequences train at the same time and which share a batch, so that they touch different columns.

There are two ways: an order in which sequences that train simultaneously, one per compute worker, touch different
columns (the published scheme: greedy rounds from a window of bits), and the division of a round's sequences into
balanced batches. All functions are pure functions of arrays, with compiled loops; `rounds` submits the tasks.

A round is integrated as a whole and strengths are integers, so selection changes which bytes are sent
between workers, and never a byte of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import require_option
from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.runs.run import pointer_of
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.training_options import SelectionOptions

# A batch may cost so much more than the mean (and the heaviest sequence more than that).
BALANCE_SLACK = 0.02
# Batches times passes of improvement: bounds the cost of a sequence for any number of batches.
_EFFORT, _PASSES = 512, 4
# A column this many times as frequent as there are batches is in all of them in any division.
_EVERYWHERE = 16
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


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class ColumnTouches:
    """The distinct concept columns of each trained sequence.

    Attributes
    ----------
    offsets : ndarray
        Sequence q touches ``column[offsets[q]:offsets[q + 1]]``; int64, shape ``(sequences + 1,)``.
    column : ndarray
        Concept columns, ascending and distinct within a sequence; int32.
    length : ndarray
        Merged tokens of each sequence; int32, shape ``(sequences,)``.
    """

    offsets: Integers
    column: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of trained sequences."""
        return len(self.length)

    @property
    def cost(self) -> Integers:
        """Cost of training of each sequence: its n (n - 1) / 2 pairs and n tokens; int64."""
        tokens = self.length.astype(np.int64)
        return tokens * (tokens + 1) // 2


def touches_of(blocks: Sequence[EncodedBlock]) -> ColumnTouches:
    """Return the distinct concept columns of the trained sequences of blocks, in their order.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sequences that are not divided into columns train nothing and are left out; sequence q of
        the result is the q-th with the status ``CANDIDATE``.

    Returns
    -------
    ColumnTouches
    """
    return join_touches([_touches_of_block(block) for block in blocks])


def _touches_of_block(block: EncodedBlock) -> ColumnTouches:
    trained = block.status == CANDIDATE
    length = np.diff(block.offsets)
    # Each column occurrence has exactly one noun, and nouns alone have feature 0.
    noun = np.flatnonzero(block.feature == 0)
    sequence = np.repeat(np.arange(len(length)), length)[noun]
    noun, sequence = noun[trained[sequence]], sequence[trained[sequence]]
    # Every column of a trained sequence is assigned, so none is negative.
    key = np.unique((sequence << 32) | block.column[noun])
    counts = np.bincount(key >> 32, minlength=len(length))[trained]
    return ColumnTouches(pointer_of(counts), (key & 0xFFFFFFFF).astype(np.int32), length[trained].astype(np.int32))


def join_touches(parts: Sequence[ColumnTouches]) -> ColumnTouches:
    """Return the touches of several groups of sequences as one, in order.

    Examples
    --------
    >>> one = ColumnTouches(np.array([0, 2]), np.array([3, 5], np.int32), np.array([9], np.int32))
    >>> join_touches([one, one]).offsets.tolist()
    [0, 2, 4]
    """
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets) for part in parts)])
    empty = np.zeros(0, np.int32)
    column = np.concatenate([empty, *(part.column for part in parts)])
    return ColumnTouches(pointer_of(counts), column, np.concatenate([empty, *(part.length for part in parts)]))


def choose_rounds(touches: ColumnTouches, width: int, options: SelectionOptions) -> Integers:
    """Order sequences so that those that train at the same time touch different columns.

    Least overlap is a greedy choice from a window over the shuffled sequences: always one with the
    fewest columns that the round has touched already, and among those one whose most frequent column
    is most frequent, since such columns need a place in nearly every round. The window is a set of
    bits per column, so a choice costs a few words whatever the window holds.

    Parameters
    ----------
    touches : ColumnTouches
        Columns of each sequence.
    width : int
        Sequences that train at the same time, one per compute worker.
    options : SelectionOptions
        Order, window and seed.

    Returns
    -------
    ndarray of int64
        A permutation of the sequences; each consecutive `width` of them are a round.

    Raises
    ------
    OptionError
        If `width` is less than 1.
    """
    require_option(width >= 1, "width", width, "1 or more")
    count = len(touches)
    if options.order in (None, "corpus") or count == 0:
        return np.arange(count)
    queue = np.random.default_rng(options.seed).permutation(count)
    if options.order == "random":
        return queue
    index, frequency = _index(touches)
    # Eighths of the rounds that need the sequence's most frequent column; each has at least one.
    need = np.maximum.reduceat(frequency[index], touches.offsets[:-1]) * 8 // -(-count // width)
    last = RANKS - 1
    rank = last - np.ceil(np.log2(np.minimum(need, (1 << last) - 1) + 1)).astype(np.int64)
    size = min(options.window, count)
    words = -(-size // 64)
    window = Window(
        np.zeros((len(frequency), words), np.uint64),
        np.full(len(frequency), -1, np.int64),
        np.zeros((RANKS, words), np.uint64),
        np.zeros((LEVELS, words), np.uint64),
        np.zeros(size, np.int64),
    )
    chosen: Integers = choose(Sequences(touches.offsets, index, rank), queue, width, size, window)
    return chosen


def assign_batches(touches: ColumnTouches, batches: int, options: SelectionOptions) -> Integers:
    """Divide a round's sequences into batches that cost the same.

    ``corpus`` cuts stretches, ``random`` shuffles first. ``least-overlap`` puts sequences that share
    columns into one batch: each joins the batch where its columns have most company, then passes over
    all of them move those that have more company elsewhere. A column with k other touches in a batch
    counts 2 ** -k against joining it, which lets rare columns gather before they are all together
    (the probabilistic fanout of Kabiljo et al., 2017). Where stretches touch less, they are taken.

    Parameters
    ----------
    touches : ColumnTouches
        Columns and lengths of the sequences.
    batches : int
        Number of batches. Grouping needs 5 bytes per batch and distinct column of the round.
    options : SelectionOptions
        Order and seed.

    Returns
    -------
    ndarray of int64
        Batch of each sequence. No batch costs more than the mean by 2 % (`BALANCE_SLACK`) and one
        sequence.

    Raises
    ------
    OptionError
        If `batches` is less than 1.
    """
    require_option(batches >= 1, "batches", batches, "1 or more")
    count, cost = len(touches), touches.cost
    if options.order == "random":
        order = np.random.default_rng(options.seed).permutation(count)
        shuffled = np.empty(count, np.int64)
        shuffled[order] = _consecutive_batches(cost[order], batches)
        return shuffled
    stretches = _consecutive_batches(cost, batches)
    if options.order in (None, "corpus") or batches == 1 or count == 0:
        return stretches
    index, frequency = _index(touches)
    # A column that occurs once is no reason to move; leaving out the ubiquitous halves the work.
    tells = (frequency > 1) & (frequency <= _EVERYWHERE * batches)
    kept = tells[index]
    notify_all = Sequences(pointer_of(kept)[touches.offsets], (np.cumsum(tells) - 1)[index[kept]], cost)
    grouped = Batches(
        np.full(count, -1, np.int64),
        np.zeros((np.count_nonzero(tells), batches), np.int32),
        np.zeros(batches, np.int64),
    )
    limit = int(cost.sum() * (1 + BALANCE_SLACK) / batches) + int(cost.max())
    group(notify_all, limit, 1 + max(1, min(_PASSES, _EFFORT // batches)), grouped)
    every, shape = Sequences(touches.offsets, index, cost), (len(frequency), batches)
    better = count_pairs(every, grouped.batch, np.zeros(shape, np.bool_)) < count_pairs(
        every, stretches, np.zeros(shape, np.bool_)
    )
    return grouped.batch if better else stretches


def _index(touches: ColumnTouches) -> tuple[Integers, Integers]:
    """Return each touch as the number of its column, and how many touches each number has."""
    _, index, counts = np.unique(touches.column, return_inverse=True, return_counts=True)
    return index.astype(np.int64), counts.astype(np.int64)


def _consecutive_batches(cost: Integers, batches: int) -> Integers:
    """Cut sequences into consecutive batches: each belongs to the batch that contains the midpoint of its cost."""
    ends = np.cumsum(cost)
    return (2 * ends - cost) * batches // (2 * ends[-1:])


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
