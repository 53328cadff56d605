"""Sort the counts of profile ``contexts`` into rows of each kind of context, with words by number (compiled loops).

Runs are read one at a time, in any order; several may have parts of a row. The connections of a source are those of one
kind of context, followed by the shorter contexts that it extends. `contexts.tables` makes probabilities of the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import RESTORE, StoreDamagedError
from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.models.words.stream import NONE
from giaann_dask.runs.run import Run, join_ranges
from giaann_dask.spec import BRANCH_BITS

# Rows of up to this many words are sorted by insertion.
_FEW = 24
_LOW = 2**32 - 1

Numbers = npt.NDArray[np.int32]


class Rows(NamedTuple):
    """Rows of one kind of context.

    Attributes
    ----------
    keys : ndarray
        Source key of each row, ascending; int64, shape ``(rows,)``.
    pointer : ndarray
        Row r has the entries ``pointer[r]:pointer[r + 1]``; int64, shape ``(rows + 1,)``.
    word : ndarray
        Number of the word of each entry, ascending within a row; int32, shape ``(entries,)``.
    counts : ndarray
        Count of each entry; int64, same shape.
    """

    keys: Integers
    pointer: Integers
    word: Numbers
    counts: Integers

    @property
    def row(self) -> Integers:
        """Row of each entry; int64, shape ``(entries,)``."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.pointer))


class _RowsOfPart(NamedTuple):
    """Rows of one kind of one run, with places of words in the collector's keys."""

    keys: Integers
    lengths: Integers
    word: Numbers
    counts: Integers


class RowCollector:
    """Collect the rows of the runs of a network.

    Parameters
    ----------
    word_keys : ndarray
        Keys of all words that were counted, ascending; int64.
    """

    def __init__(self, word_keys: Integers) -> None:
        self.word_keys = word_keys
        self._slots = np.full(2 << max(4, len(self.word_keys).bit_length()), -1, np.int32)
        fill: Any = _fill_slots
        fill(self.word_keys, self._slots)
        self._parts: list[list[_RowsOfPart]] = [[] for _ in range(EXTENDS)]
        self._extending: list[tuple[Integers, Integers]] = []

    def add(self, run: Run) -> None:
        """Add the rows of a run.

        Raises
        ------
        StoreDamagedError
            If a word of it is not known.
        """
        if not len(run):
            return
        count: Any = _count
        divide: Any = _divide
        rows, entries = count(run.pointer, run.target)
        row_ends, entry_ends = np.cumsum(rows), np.cumsum(entries)
        keys, lengths, shorter, word, counts = divide(
            (run.source, run.pointer, run.target, run.strength.astype(np.int64)),
            (self.word_keys, self._slots), row_ends - rows, entry_ends - entries, int(row_ends[-1]),
            int(entry_ends[-1]),
        )  # fmt: skip
        if int(word.min(initial=0)) < 0:
            raise StoreDamagedError("counts of words that a network does not name", "a name of each", RESTORE)
        for kind in np.flatnonzero(rows).tolist():
            of_rows = slice(int(row_ends[kind] - rows[kind]), int(row_ends[kind]))
            if kind == EXTENDS:
                self._extending.append((keys[of_rows], shorter))
                continue
            of_entries = slice(int(entry_ends[kind] - entries[kind]), int(entry_ends[kind]))
            self._parts[kind].append(_RowsOfPart(keys[of_rows], lengths[of_rows], word[of_entries], counts[of_entries]))

    def take(self, kind: int, number_of: Numbers) -> Rows:
        """Return the rows of a kind of context, and forget them.

        Parameters
        ----------
        kind : int
            Place in `giaann_dask.models.contexts.kinds.CONTEXTS`.
        number_of : ndarray
            Number of each word of `word_keys`; int32.
        """
        parts, self._parts[kind] = self._parts[kind], []
        none = np.zeros(0, np.int64)
        keys, lengths, word, counts = (
            np.concatenate([none.astype(dtype), *(part[field] for part in parts)])
            for field, dtype in enumerate((np.int64, np.int64, np.int32, np.int64))
        )
        order, begins = np.argsort(keys), np.cumsum(lengths) - lengths
        keys, begins, lengths = keys[order], begins[order], lengths[order]
        first = _first_of_each(keys)
        if len(first) < len(keys):
            # Parts of a row follow one another.
            at = join_ranges(begins, lengths)
            word, counts = word[at], counts[at]
            keys, lengths = keys[first], np.add.reduceat(lengths, first)
            begins = np.cumsum(lengths) - lengths
        gather: Any = _gather
        return Rows(keys, *gather(begins, lengths, word, counts, number_of))

    def take_extended(self) -> tuple[Integers, Integers]:
        """Return the keys of contexts, ascending, and the first shorter context that each extends; forget them.

        Returns
        -------
        tuple of (ndarray, ndarray)
            int64 each, of one shape.
        """
        none = np.zeros(0, np.int64)
        keys, shorter = (np.concatenate([none, *parts]) for parts in zip(*self._extending, (none, none), strict=True))
        self._extending = []
        order = np.argsort(keys)
        keys, shorter = keys[order], shorter[order]
        first = _first_of_each(keys)
        return keys[first], np.minimum.reduceat(shorter, first) if len(first) < len(keys) else shorter


def _first_of_each(keys: Integers) -> Integers:
    """Return the places of values that differ from the one before; they ascend."""
    return np.flatnonzero(np.diff(keys, prepend=NONE))


def count_longer(own: Rows, longer: Rows, extended: tuple[Integers, Integers]) -> Integers:
    """Return in how many distinct longer contexts each word of a context was counted.

    Parameters
    ----------
    own, longer : Rows
        Rows of a kind of context and of the next longer one.
    extended : tuple of (ndarray, ndarray)
        Result of `RowCollector.take_extended`.

    Returns
    -------
    ndarray
        int64, one for each entry of `own`; 0 where no longer context is known.
    """
    count: Any = _count_longer
    found: Integers = count(own.keys, own.pointer, own.word, longer.keys, longer.pointer, longer.word, *extended)
    return found


@jit_inner
def _slot(key, slots):  # type: ignore[no-untyped-def]
    """Return where the search for a key begins; word keys are hashes already."""
    return key & (len(slots) - 1)


@jit
def _fill_slots(keys, slots):  # type: ignore[no-untyped-def]
    """Enter keys into a hash table with twice as many places or more."""
    for number in range(len(keys)):
        at = _slot(keys[number], slots)
        while slots[at] >= 0:
            at = (at + 1) & (len(slots) - 1)
        slots[at] = number


@jit
def _count(pointer, target):  # type: ignore[no-untyped-def]
    """Return the rows and the entries of each kind of context; of what extends contexts the rows only."""
    rows, entries = np.zeros(EXTENDS + 1, np.int64), np.zeros(EXTENDS + 1, np.int64)
    for source in range(len(pointer) - 1):
        before = -1
        for at in range(pointer[source], pointer[source + 1]):
            kind = target[at] >> SEGMENT_SHIFT
            rows[kind] += kind != before
            entries[kind] += kind != EXTENDS
            before = kind
    return rows, entries


@jit
def _divide(run, words, row_begins, entry_begins, row_total, entry_total):  # type: ignore[no-untyped-def]
    """Return keys and lengths of all rows, first shorter contexts, and words and counts of all entries, by kind.

    Words that are not known are negative.
    """
    source, pointer, target, strength = run
    word_keys, slots = words
    next_row, next_entry = row_begins.copy(), entry_begins.copy()
    keys, lengths = np.empty(row_total, np.int64), np.zeros(row_total, np.int64)
    shorter = np.empty(row_total - row_begins[EXTENDS], np.int64)
    word, counts = np.empty(entry_total, np.int32), np.empty(entry_total, np.int64)
    for each in range(len(source)):
        before, row = -1, -1
        for at in range(pointer[each], pointer[each + 1]):
            kind = target[at] >> SEGMENT_SHIFT
            neuron = (target[at] >> BRANCH_BITS) & NEURON_MASK
            if kind != before:
                row, before = next_row[kind], kind
                next_row[kind] += 1
                keys[row] = source[each]
                if kind == EXTENDS:
                    shorter[row - row_begins[EXTENDS]] = neuron
            if kind == EXTENDS:
                continue
            slot = _slot(neuron, slots)
            while slots[slot] >= 0 and word_keys[slots[slot]] != neuron:
                slot = (slot + 1) & (len(slots) - 1)
            word[next_entry[kind]], counts[next_entry[kind]] = slots[slot], strength[at]
            next_entry[kind] += 1
            lengths[row] += 1
    return keys, lengths, shorter, word, counts


@jit
def _gather(begins, lengths, word, counts, number_of):  # type: ignore[no-untyped-def]
    """Return pointer, words by number and counts of rows in another order, sorted by number within each."""
    pointer = np.zeros(len(begins) + 1, np.int64)
    words, sorted_counts = np.empty(len(word), np.int32), np.empty(len(word), np.int64)
    for row in range(len(begins)):
        first, begin, length = pointer[row], begins[row], lengths[row]
        pointer[row + 1] = first + length
        if length > _FEW:
            # Sorted as one number, as `counting` sorts: numba takes 2.5 s to compile an indirect sort.
            pairs = np.empty(length, np.int64)
            for at in range(length):
                pairs[at] = np.int64(number_of[word[begin + at]]) << 32 | at
            pairs.sort()
            for at in range(length):
                words[first + at] = pairs[at] >> 32
                sorted_counts[first + at] = counts[begin + (pairs[at] & _LOW)]
            continue
        for at in range(length):
            number, count, to = number_of[word[begin + at]], counts[begin + at], first + at
            while to > first and words[to - 1] > number:
                words[to], sorted_counts[to] = words[to - 1], sorted_counts[to - 1]
                to -= 1
            words[to], sorted_counts[to] = number, count
    return pointer, words, sorted_counts


@jit_inner
def _place(values, begin, end, wanted):  # type: ignore[no-untyped-def]
    """Return the first place of ascending values in a range that is not below the wanted one."""
    while begin < end:
        middle = (begin + end) >> 1
        if values[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@jit
def _count_longer(  # type: ignore[no-untyped-def]
    keys, pointer, word, longer_keys, longer_pointer, longer_word, extending, shorter
):
    found = np.zeros(len(word), np.int64)
    at = 0
    for long in range(len(longer_keys)):
        while at < len(extending) and extending[at] < longer_keys[long]:
            at += 1
        if at == len(extending):
            break
        # Where two contexts share a key by chance, the first of those that it extends is taken for both.
        row = _place(keys, 0, len(keys), shorter[at])
        if row == len(keys):
            continue
        place, end = pointer[row], pointer[row + 1]
        for entry in range(longer_pointer[long], longer_pointer[long + 1]):
            place = _place(word, place, end, longer_word[entry])
            if place < end and word[place] == longer_word[entry]:
                found[place] += 1
    return found
