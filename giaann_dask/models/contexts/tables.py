"""Build the tables from which profile ``contexts`` predicts words: the evidence of each context for each word.

Counts are read run by run into one table. The probability of a word without context is its share of the distinct
contexts that it was seen after, not of the tokens (Kneser and Ney 1995). The discounted mass goes to unknown words as
far as words seen once predict them, and to all known words equally. The chain interpolates the counts after 4, 3, 2
and 1 neighbours in the same way, with three discounts for each length (Chen and Goodman 1998). All of this is derived
from sums when the table is built, so networks can still be added and subtracted.

`contexts.context_rows` sorts the counts, and `contexts.kernel` sums the evidence with the weights of `contexts.scores`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import Integers, word_key
from giaann_dask.models.contexts.context_rows import RowCollector, Rows, count_longer
from giaann_dask.models.contexts.continuation_counts import SMALL_COUNTS
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, context_sources
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import NONE, TokenStream, find_ascending
from giaann_dask.runs.run import Run

Floats = npt.NDArray[np.float64]

# Counts that a context is given in advance, spread as the words are by themselves.
PRIOR_COUNTS = 5.0
# Kinds of contexts that are sorted at a time.
_THREADS = 2


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class PooledTables:
    """Tables of evidence; words are numbered by falling count, then by their keys.

    Attributes
    ----------
    words : tuple of str
        The vocabulary.
    word_keys, word_order : ndarray
        Keys of the words, ascending, and the number of each; int64, shape ``(words,)``.
    base : ndarray
        Probability of each word by itself, without what unknown words have; float64, shape ``(words,)``.
    share : ndarray
        Share of each word among the tokens, smoothed likewise; float64, same shape.
    unknown : float
        Probability of all unknown words together.
    spelling : Spelling
        How it is dealt to them.
    kind_begin : ndarray
        Rows of each kind of context, int64, shape ``(kinds + 1,)``.
    keys : ndarray
        Source keys of the rows, ascending within a kind, int64, shape ``(rows,)``.
    pointer : ndarray
        Entries of each row, int64, shape ``(rows + 1,)``.
    word : ndarray
        Word of each entry, int32, shape ``(entries,)``.
    evidence : ndarray
        Of a context for a word: ``log(1 + count / (PRIOR_COUNTS * share))``; float32, same shape.
    discounted : ndarray
        Share that the chain gives a word directly; float32, for the entries of the chain.
    freed : ndarray
        What it leaves to shorter contexts; float64, for the rows of the chain.
    """

    words: tuple[str, ...]
    word_keys: Integers
    word_order: Integers
    base: Floats
    share: Floats
    unknown: float
    spelling: Spelling
    kind_begin: Integers
    keys: Integers
    pointer: Integers
    word: npt.NDArray[np.int32]
    evidence: npt.NDArray[np.float32]
    discounted: npt.NDArray[np.float32]
    freed: Floats

    @property
    def kinds(self) -> int:
        """Number of kinds of contexts."""
        return len(self.kind_begin) - 1

    def word_numbers(self, keys: Integers) -> Integers:
        """Return the numbers of words by their keys, `NONE` for unknown ones."""
        at = find_ascending(self.word_keys, keys)
        return np.where(at == NONE, NONE, self.word_order[at])

    def find_rows(self, stream: TokenStream, begin: int = 0, end: int | None = None) -> Integers:
        """Return the row of every context before every token of a span, `NONE` where there is none.

        Parameters
        ----------
        stream : TokenStream
            Tokens of a text.
        begin, end : int, optional
            The span; all tokens by default.

        Returns
        -------
        ndarray
            int64, shape ``(end - begin, kinds)``; column k is the kind k + 1 of `CONTEXTS`.
        """
        end = len(stream) if end is None else end
        rows = np.full((end - begin, self.kinds), NONE, np.int64)
        for kind in range(self.kinds):
            keys = self.keys[self.kind_begin[kind] : self.kind_begin[kind + 1]]
            if len(keys):
                # In their order and each once, so that a search reads what the one before has read.
                wanted, which = np.unique(context_sources(stream, kind + 1, begin, end), return_inverse=True)
                at = find_ascending(keys, wanted)
                rows[:, kind] = np.where(at == NONE, NONE, at + self.kind_begin[kind])[which]
        return rows


def build_tables(runs: Iterable[Run], words: Sequence[str]) -> PooledTables:
    """Make the tables from the counts of a network, reading one run at a time.

    Parameters
    ----------
    runs : iterable of Run
        Merged runs of distinct sources, one for each region, in any order.
    words : sequence of str
        Every word that was counted.

    Raises
    ------
    EmptyInputError
        If nothing was counted.
    """
    collector = RowCollector(words)
    for run in runs:
        collector.add(run)
    places = np.arange(len(collector.word_keys), dtype=np.int32)
    every = collector.take(0, places)
    if not len(every.word):
        raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
    return _built(collector, every, words)


def _built(collector: RowCollector, every: Rows, words: Sequence[str]) -> PooledTables:
    """Build the tables of collected rows, given the count of each word, by its place in the collector's keys."""
    ranked = rank_words(collector.word_keys[every.word], every.counts, words)
    number_of = np.full(len(collector.word_keys), NONE, np.int32)
    number_of[every.word] = ranked.order

    def take(kind: int) -> tuple[Rows, npt.NDArray[np.float32]]:
        rows = collector.take(kind, number_of)
        evidence = ranked.evidence(rows)
        # Counts of other kinds are not needed any more.
        return (rows if kind <= CHAIN else rows._replace(counts=np.zeros(0, np.int64))), evidence

    # The loops and NumPy release the GIL.
    with ThreadPoolExecutor(_THREADS) as pool:
        contexts, evidence = zip(*pool.map(take, range(1, len(CONTEXTS))), strict=True)
    preceding = np.bincount(contexts[0].word, minlength=len(ranked.words)).astype(np.int64)
    if not preceding.any():
        # Pruning may leave no context of the nearest word.
        preceding = ranked.counts
    extended = collector.take_extended()
    chain = [_followed(contexts, extended, length) for length in range(CHAIN)]
    shares = [chain_shares(link, discounts_of(small_counts(link.counts))) for link in chain]
    return ranked.tables(preceding, RowArrays.of(contexts, evidence, shares))


class RankedWords(NamedTuple):
    """Words by falling count, then by their keys.

    Attributes
    ----------
    words : tuple of str
        The words.
    keys, order : ndarray
        See `PooledTables.word_keys` and `PooledTables.word_order`.
    counts, share : ndarray
        How often each word occurs, int64, and its smoothed share, float64; shape ``(words,)``.
    """

    words: tuple[str, ...]
    keys: Integers
    order: Integers
    counts: Integers
    share: Floats

    def evidence(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return the evidence of each entry of some rows."""
        evidence: npt.NDArray[np.float32] = np.log1p(rows.counts / (PRIOR_COUNTS * self.share[rows.word])).astype(
            np.float32
        )
        return evidence

    def tables(self, preceding: Integers, rows: RowArrays) -> PooledTables:
        """Return the tables of some rows, given the number of distinct words before each word."""
        base, unknown = _unigram_shares(preceding)
        once = [word for word, seen in zip(self.words, self.counts.tolist(), strict=True) if seen == 1]
        return PooledTables(
            words=self.words,
            word_keys=self.keys,
            word_order=self.order,
            base=base,
            share=self.share,
            unknown=unknown,
            spelling=Spelling.learn(once or self.words),
            **rows._asdict(),
        )


class RowArrays(NamedTuple):
    """The arrays of `PooledTables` that are made of rows."""

    kind_begin: Integers
    keys: Integers
    pointer: Integers
    word: npt.NDArray[np.int32]
    evidence: npt.NDArray[np.float32]
    discounted: npt.NDArray[np.float32]
    freed: Floats

    @classmethod
    def empty(cls) -> RowArrays:
        """Return the arrays of no rows."""
        begin, none, numbers = np.zeros(len(CONTEXTS), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32)
        shares = np.zeros(0, np.float32)
        return cls(begin, none, begin[:1], numbers, shares, shares, np.zeros(0))

    @classmethod
    def of(
        cls,
        contexts: Sequence[Rows],
        evidence: Sequence[npt.NDArray[np.float32]],
        chain: Sequence[tuple[npt.NDArray[np.float32], Floats]],
    ) -> RowArrays:
        """Join the rows of all kinds of contexts, with the shares and freed masses of those of the chain."""
        entries = np.cumsum([0] + [len(rows.word) for rows in contexts])
        begins = [rows.pointer[:-1] + first for rows, first in zip(contexts, entries[:-1], strict=True)]
        return cls(
            kind_begin=np.cumsum([0] + [len(rows.keys) for rows in contexts]),
            keys=np.concatenate([rows.keys for rows in contexts]),
            pointer=np.append(np.concatenate(begins), entries[-1]),
            word=np.concatenate([rows.word for rows in contexts]),
            evidence=np.concatenate(evidence),
            discounted=np.concatenate([shares for shares, _ in chain]),
            freed=np.concatenate([freed for _, freed in chain]),
        )


def rank_words(key: Integers, count: Integers, words: Sequence[str]) -> RankedWords:
    """Return words numbered by falling count.

    Parameters
    ----------
    key, count : ndarray
        Keys of the words, ascending, and how often each occurs; int64, shape ``(words,)``.
    words : sequence of str
        These words, and maybe others.
    """
    ranked = np.lexsort((key, -count))
    order = np.empty(len(key), np.int64)
    order[ranked] = np.arange(len(key))
    name = {word_key(word): word for word in words}
    named = tuple(name[key] for key in key[ranked].tolist())
    return RankedWords(named, key, order, count[ranked], _unigram_shares(count[ranked])[0])


def _followed(contexts: Sequence[Rows], extended: tuple[Integers, Integers], length: int) -> Rows:
    """Return the counts of a link of the chain: all tokens for the longest, else distinct longer contexts.

    Contexts that reach the beginning of a sentence have no longer ones and keep their counts.
    """
    own = contexts[length]
    if length == CHAIN - 1 or not len(own.keys):
        return own
    count = count_longer(own, contexts[length + 1], extended)
    return own._replace(counts=np.where(count > 0, count, own.counts))


def small_counts(count: Integers) -> Integers:
    """Return how many counts are 1, 2, 3 and 4; int64, shape ``(SMALL_COUNTS,)``."""
    return np.array([int((count == number).sum()) for number in range(1, SMALL_COUNTS + 1)], np.int64)


def discounts_of(small: Integers) -> Floats:
    """Return the discounts of counts of 0, 1, 2 and 3 or more (Chen and Goodman 1998) by how many are small."""
    once, twice, thrice, often = small.tolist()
    if min(once, twice, thrice, often) == 0:
        return np.array([0.0, 0.5, 0.75, 0.9])
    scale = once / (once + 2 * twice)
    found = (1 - 2 * scale * twice / once, 2 - 3 * scale * thrice / twice, 3 - 4 * scale * often / thrice)
    return np.array([0.0, *(min(max(d, 0.05), number - 0.05) for number, d in enumerate(found, 1))])


def _unigram_shares(count: Integers) -> tuple[Floats, float]:
    """Return the smoothed shares of words, and that of unknown ones; together they are 1."""
    total = float(count.sum())
    loss = discounts_of(small_counts(count))[np.minimum(count, 3)]
    freed = float(loss.sum()) / total
    # Half of a word as if there had been one more: a text in which no word occurs once has unknown ones, too.
    unknown = min(freed / 2, (int((count == 1).sum()) + 0.5) / (total + 0.5))
    return (count - loss) / total + (freed - unknown) / len(count), unknown


def chain_shares(link: Rows, discounts: Floats) -> tuple[npt.NDArray[np.float32], Floats]:
    """Return the discounted share of each entry, and the mass that each row leaves to shorter contexts."""
    if not len(link.keys):
        return np.zeros(0, np.float32), np.zeros(0)
    loss = discounts[np.minimum(link.counts, 3)]
    total = np.add.reduceat(link.counts, link.pointer[:-1]).astype(np.float64)
    shares = ((link.counts - loss) / total[link.row]).astype(np.float32)
    # From the rounded shares, so that a distribution sums to 1 as exactly as can be.
    return shares, 1.0 - np.add.reduceat(shares.astype(np.float64), link.pointer[:-1])
