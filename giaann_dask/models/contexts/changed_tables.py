"""Make the tables of a commit of profile ``contexts`` from those of another one and the counts that differ.

A small document changes some thousands of contexts, and building tables reads all counts. So the rows of these contexts
are computed again and looked up first; all others are read from the other commit's tables, with their words in the new
order. The words by themselves, on which every probability depends, are computed again from their counts. All results
are those of tables that are built from all counts, bit by bit.

In how many longer contexts a word follows a context changes where it enters one of these. The changed counts tell
whether a context has longer ones; else it reaches the beginning of its sentence. Where this does not hold, as in a
pruned network, or for two contexts with one key, all tables have to be built. The same applies where a count is smaller
than it was: tables of a commit from which text was removed must not be those of a commit that has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.models.contexts.context_rows import Numbers, RowCollector, Rows
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS
from giaann_dask.models.contexts.tables import (
    CountRows,
    PackedTables,
    RankedWords,
    WordTables,
    names_by_key,
    rank_words,
    small_counts,
)
from giaann_dask.models.words.stream import NONE, find_ascending, find_numbers
from giaann_dask.runs.run import Run, join_ranges, pointer_of


class ChangedRows(NamedTuple):
    """Rows of one kind of context that differ from those of other tables; none of them is empty.

    Attributes
    ----------
    keys : ndarray
        Source keys, ascending; int64, shape ``(rows,)``.
    pointer, word, counts
        See `Rows`.
    longer : ndarray
        See `giaann_dask.models.contexts.packed_counts.PackedCounts.rows`.
    """

    keys: Integers
    pointer: Integers
    word: Numbers
    counts: Integers
    longer: Integers


@dataclass(frozen=True, eq=False)
class ChangedCounts:
    """Counts of other tables with some changed rows and other numbers of words.

    Attributes
    ----------
    unchanged : CountRows
        Of the other tables.
    number_of : ndarray
        Number of each of their words; int64, shape ``(words,)``.
    changes : tuple of ChangedRows
        Of each kind of context from 1 on.
    """

    unchanged: CountRows
    number_of: Integers
    changes: tuple[ChangedRows, ...]

    @property
    def kinds(self) -> Integers:
        """See `PackedCounts.kinds`; of the other tables, which have rows of the same kinds."""
        return self.unchanged.kinds

    def rows(self, kind: int, wanted: Integers) -> tuple[Rows, Integers, Integers]:
        """See `PackedCounts.rows`."""
        change = self.changes[kind - 1]
        at = find_ascending(change.keys, wanted)
        rows, longer, row = self.unchanged.rows(kind, np.where(at == NONE, wanted, NONE))
        number = self.number_of[rows.word]
        # Most words have nearly the place that they had.
        order = np.argsort(rows.row << 32 | number, kind="stable")
        rows = rows._replace(word=number[order].astype(np.int32), counts=rows.counts[order])
        longer, chosen = longer[order], at[at != NONE]
        if not len(chosen):
            return rows, longer, row
        begins, lengths = change.pointer[chosen], np.diff(change.pointer)[chosen]
        # Rows of both in the order of their keys; entries of changed rows lie behind all others.
        keys = np.append(rows.keys, change.keys[chosen])
        by_key = np.argsort(keys)
        begins = np.append(rows.pointer[:-1], begins + len(rows.word))[by_key]
        lengths = np.append(np.diff(rows.pointer), lengths)[by_key]
        entries, keys = join_ranges(begins, lengths), keys[by_key]
        word = np.append(rows.word, change.word)[entries]
        counts = np.append(rows.counts, change.counts)[entries]
        longer = np.append(longer, change.longer)[entries]
        return Rows(keys, pointer_of(lengths), word, counts), longer, find_ascending(keys, wanted)

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays."""
        own = self.number_of.nbytes + sum(array.nbytes for change in self.changes for array in change)
        return object.__sizeof__(self) + own + sys.getsizeof(self.unchanged)


class _RenumberedWords(NamedTuple):
    """Words of a commit and of an earlier one, numbered as in the new one, those without counts last.

    Attributes
    ----------
    ranked : RankedWords
        Those of the new one.
    number : ndarray
        Number of each key of the collector, int64.
    number_of : ndarray
        Number of each word of the earlier one, int64.
    """

    ranked: RankedWords
    number: Integers
    number_of: Integers


class _ChangedEntries(NamedTuple):
    """Entries of the changed contexts of a kind, before and after the change.

    Attributes
    ----------
    keys : ndarray
        Source keys of the contexts, ascending, int64.
    code : ndarray
        Context (its place in `keys`) and word of each entry, as one number, ascending; int64.
    before, after : ndarray
        Counts, 0 where there is none; int64.
    link : ndarray
        Number of longer contexts before the change, 0 where there was no count; int64.
    """

    keys: Integers
    code: Integers
    before: Integers
    after: Integers
    link: Integers

    @property
    def entered(self) -> npt.NDArray[np.bool_]:
        """Words that follow their context for the first time."""
        entered: npt.NDArray[np.bool_] = self.before == 0
        return entered


def changed_tables(
    tables: PackedTables, added: Iterable[Run], removed: Iterable[Run], words: Sequence[str]
) -> PackedTables | None:
    """Return the tables of a commit, given those of another one and what distinguishes both.

    Parameters
    ----------
    tables : PackedTables
        Of the other commit; neither is pruned.
    added, removed : iterable of Run
        Runs that only this commit has, and runs that only the other one has.
    words : sequence of str
        Every word that this commit counts.

    Returns
    -------
    PackedTables or None
        The same as `build_tables` makes; None where it has to make them, as a count is smaller than it was, or these
        counts do not suffice.
    """
    names = _names_of(tables.words, words)
    collector = RowCollector(np.array(sorted(names), np.int64))
    for run in added:
        collector.add(run)
    for run in removed:
        collector.add(Run(run.source, run.pointer, run.target, -run.strength.astype(np.int64)))
    known = _words_of(tables.words, collector, names)
    if known is None:
        return None
    size, number = len(known.number), known.number.astype(np.int32)
    entries = [
        _entries_of(tables.counts, kind, collector.take(kind, number), known.number_of, size)
        for kind in range(1, len(CONTEXTS))
    ]
    extended = collector.take_extended()
    if not all(((each.after >= each.before) & (each.after > 0)).all() for each in entries):
        return None
    links = [each.after for each in entries]
    for kind in range(CHAIN - 1):
        link = _link(entries[kind], entries[kind + 1], extended, size)
        if link is None:
            return None
        links[kind] = link
    had = tables.counts.kinds[:, 0] > 0
    if not had[0] or any(len(each.keys) for each, its in zip(entries, had.tolist(), strict=True) if not its):
        return None
    small = tables.small.copy()
    for kind in range(CHAIN):
        small[kind] += small_counts(links[kind]) - small_counts(entries[kind].link)
    words_now = known.ranked.tables(_preceding(tables.words, known, entries[0], size))
    changes = tuple(_rows_of(each, link, size) for each, link in zip(entries, links, strict=True))
    return PackedTables(words_now, small, ChangedCounts(tables.counts, known.number_of, changes))


def _names_of(before: WordTables, words: Sequence[str]) -> dict[int, str]:
    """Return the names of the words of both commits by their keys, which are computed for new words only."""
    known = list(before.words)
    names = {
        key: known[number] for key, number in zip(before.word_keys.tolist(), before.word_order.tolist(), strict=True)
    }
    new = sorted(set(words).difference(known))
    return names | names_by_key(new)


def _words_of(before: WordTables, collector: RowCollector, names: Mapping[int, str]) -> _RenumberedWords | None:
    """Return the words by their counts in both commits; None where counts contradict each other."""
    keys = collector.word_keys
    own = find_ascending(keys, before.word_keys)
    counts = np.zeros(len(keys), np.int64)
    counts[own] = former = before.counts[before.word_order]
    every = collector.take(0, np.arange(len(keys), dtype=np.int32))
    np.add.at(counts, every.word, every.counts)
    if int(counts.min(initial=0)) < 0 or (counts[own] < former).any():
        return None
    present = counts > 0
    ranked = rank_words(keys[present], counts[present], names)
    number = np.empty(len(keys), np.int64)
    number[present] = ranked.order
    number[~present] = len(ranked.words) + np.arange(int((~present).sum()))
    number_of = np.empty(len(before.words), np.int64)
    number_of[before.word_order] = number[own]
    return _RenumberedWords(ranked, number, number_of)


def _entries_of(counts: CountRows, kind: int, change: Rows, number_of: Integers, size: int) -> _ChangedEntries:
    """Return the entries of contexts whose counts change, given the changes and the number of words."""
    rows, longer, _ = counts.rows(kind, change.keys)
    place = np.searchsorted(change.keys, rows.keys)[rows.row]
    code, which = np.unique(
        np.append(place * size + number_of[rows.word], change.row * size + change.word), return_inverse=True
    )
    before, link = np.zeros(len(code), np.int64), np.zeros(len(code), np.int64)
    had, changed = which[: len(rows.word)], which[len(rows.word) :]
    before[had], link[had] = rows.counts, longer
    after = before.copy()
    np.add.at(after, changed, change.counts)
    return _ChangedEntries(change.keys, code, before, after, link)


def _link(
    own: _ChangedEntries, longer: _ChangedEntries, extended: tuple[Integers, Integers], size: int
) -> Integers | None:
    """Return in how many longer contexts each entry of a kind is counted after a change; see `tables.count_longer`.

    None where that does not follow from the contexts that change.
    """
    shorter = find_numbers(*extended, longer.keys)
    context = find_ascending(own.keys, shorter)
    if (context == NONE).any():
        return None
    at = find_ascending(own.code, context[longer.code // size] * size + longer.code % size)
    if (at == NONE).any():
        return None
    entered, through = np.zeros(len(own.code), np.int64), np.zeros(len(own.code), np.int64)
    np.add.at(entered, at, longer.entered)
    np.add.at(through, at, longer.after - longer.before)
    extends = np.zeros(len(own.keys), np.bool_)
    extends[context] = True
    followed = extends[own.code // size]
    link = np.where(followed, own.link + entered, own.after)
    is_known = np.where(followed, through == own.after - own.before, own.link == own.before)
    is_known &= (link > 0) & (link <= own.after)
    return link if is_known.all() else None


def _preceding(before: WordTables, known: _RenumberedWords, nearest: _ChangedEntries, size: int) -> Integers:
    """Return how many distinct words there are before each word."""
    found = np.zeros(size, np.int64)
    found[known.number_of] = before.preceding
    np.add.at(found, nearest.code % size, nearest.entered)
    return found[: len(known.ranked.words)]


def _rows_of(entries: _ChangedEntries, link: Integers, size: int) -> ChangedRows:
    """Return the rows of contexts after a change."""
    pointer = pointer_of(np.bincount(entries.code // size, minlength=len(entries.keys)))
    return ChangedRows(entries.keys, pointer, (entries.code % size).astype(np.int32), entries.after, link)
