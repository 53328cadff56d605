"""Build the tables from which profile ``contexts`` predicts words: the evidence of each context for each word.

Counts are read run by run into one table. The probability of a word without context is its share of the distinct
contexts that it was seen after, not of the tokens (Kneser and Ney 1995). The discounted mass goes to unknown words as
far as words seen once predict them, and to all known words equally. The chain interpolates the counts after 4, 3, 2
and 1 neighbours in the same way, with three discounts for each length (Chen and Goodman 1998). All of this is derived
from sums when the table is built, so networks can still be added and subtracted.

`contexts.context_rows` sorts the counts, `contexts.packed_counts` packs them, and `contexts.kernel` sums the evidence
with the weights of `contexts.scores`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import Integers, word_key
from giaann_dask.lazy import jit
from giaann_dask.models.contexts.context_rows import RowCollector, Rows, count_longer
from giaann_dask.models.contexts.continuation_counts import SMALL_COUNTS
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, context_sources
from giaann_dask.models.contexts.packed_counts import PackedCounts
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import NONE, TokenStream, find_ascending
from giaann_dask.runs.run import Run

Floats = npt.NDArray[np.float64]

# Counts that a context is given in advance, spread as the words are by themselves.
PRIOR_COUNTS = 5.0
# Kinds of contexts that are sorted at a time.
_THREADS = 2
_NO_KEYS = np.zeros(0, np.int64)
_NOTHING_KNOWN = np.zeros((0, 0), np.float32)


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
    spelled : ndarray
        Natural logarithm of the probability that each word has by its spelling alone; float64, shape ``(words,)``.
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
    spelled: Floats
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


class RowTables(Protocol):
    """Words and rows, of which the tables of the contexts before some tokens are made."""

    @property
    def words(self) -> PooledTables:
        """Tables with all words and without rows."""

    def of_tokens(self, stream: TokenStream, begin: int = 0, end: int | None = None) -> tuple[PooledTables, Integers]:
        """Return the tables of the contexts before the tokens of a span of a stream, and the row of each.

        Parameters
        ----------
        stream : TokenStream
            Tokens of a text.
        begin, end : int, optional
            The span; all tokens by default.

        Returns
        -------
        tables : PooledTables
            With these rows only.
        rows : ndarray
            See `PooledTables.find_rows`.
        """


@register_arrays
@dataclass(frozen=True, eq=False)
class PackedTables:
    """Tables of evidence whose rows are packed as counts, a sixth of their bytes; those of a text are made of them.

    Attributes
    ----------
    words : PooledTables
        Tables with all words and without rows.
    discounts : ndarray
        Of the counts of each length of the chain, see `discounts_of`; float64, shape ``(CHAIN, 4)``.
    counts : PackedCounts
        The counts.
    """

    words: PooledTables
    discounts: Floats
    counts: PackedCounts

    def of(self, stream: TokenStream, begin: int = 0, end: int | None = None) -> PooledTables:
        """Return the tables of the contexts before the tokens of a span of a stream; all tokens by default."""
        return self.of_tokens(stream, begin, end)[0]

    def of_tokens(self, stream: TokenStream, begin: int = 0, end: int | None = None) -> tuple[PooledTables, Integers]:
        """See `RowTables.of_tokens`."""
        rows = np.full(((len(stream) if end is None else end) - begin, len(CONTEXTS) - 1), NONE, np.int64)

        def read() -> Iterator[tuple[Rows, Integers]]:
            begun = 0
            for kind in range(1, len(CONTEXTS)):
                wanted, which = _NO_KEYS, _NO_KEYS
                if self.counts.kinds[kind - 1, 0]:
                    # In their order and each once, so that a search reads what the one before has read.
                    wanted, which = np.unique(context_sources(stream, kind, begin, end), return_inverse=True)
                found, longer, row = self.counts.rows(kind, wanted)
                if len(which):
                    rows[:, kind - 1] = np.where(row == NONE, NONE, row + begun)[which]
                begun += len(found.keys)
                yield found, longer

        arrays = row_arrays(read(), self.words.share, self.discounts, self._known)
        return replace(self.words, **arrays._asdict()), rows

    @cached_property
    def _known(self) -> npt.NDArray[np.float32]:
        return np.zeros((len(self.words.words), SMALL_COUNTS + 1), np.float32)


class CountedRows(NamedTuple):
    """Counts of a network, in the order of its tables.

    Attributes
    ----------
    ranked : RankedWords
        Its words.
    contexts : list of Rows
        Counts after the contexts of each kind from 1 on.
    links : list of Rows
        Those of the chain, with the numbers of distinct longer contexts as counts.
    """

    ranked: RankedWords
    contexts: list[Rows]
    links: list[Rows]

    def tables(self) -> PooledTables:
        """Return the tables with all rows."""
        longer = [link.counts for link in self.links] + [_NO_KEYS] * (len(self.contexts) - CHAIN)
        contexts = zip(self.contexts, longer, strict=True)
        rows = row_arrays(contexts, self.ranked.share, self._discounts())
        return self.ranked.tables(self._preceding(), rows)

    def packed(self) -> PackedTables:
        """Return the tables with packed rows."""
        words = self.ranked.tables(self._preceding(), RowArrays.empty())
        return PackedTables(words, self._discounts(), PackedCounts.pack(self.contexts, self.links))

    def _preceding(self) -> Integers:
        """Return after how many distinct words each word came."""
        preceding = np.bincount(self.contexts[0].word, minlength=len(self.ranked.words)).astype(np.int64)
        # Pruning may leave no context of the nearest word.
        return preceding if preceding.any() else self.ranked.counts

    def _discounts(self) -> Floats:
        return np.array([discounts_of(small_counts(link.counts)) for link in self.links])


def collect_counts(runs: Iterable[Run], words: Sequence[str]) -> CountedRows:
    """Collect the counts of a network, reading one run at a time.

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
    every = collector.take(0, np.arange(len(collector.word_keys), dtype=np.int32))
    if not len(every.word):
        raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
    ranked = rank_words(collector.word_keys[every.word], every.counts, words)
    number_of = np.full(len(collector.word_keys), NONE, np.int32)
    number_of[every.word] = ranked.order
    # The loops and NumPy release the GIL.
    with ThreadPoolExecutor(_THREADS) as pool:
        contexts = list(pool.map(lambda kind: collector.take(kind, number_of), range(1, len(CONTEXTS))))
    extended = collector.take_extended()
    return CountedRows(ranked, contexts, [_followed(contexts, extended, length) for length in range(CHAIN)])


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

    def tables(self, preceding: Integers, rows: RowArrays) -> PooledTables:
        """Return the tables of some rows, given the number of distinct words before each word."""
        base, unknown = _unigram_shares(preceding)
        once = [word for word, seen in zip(self.words, self.counts.tolist(), strict=True) if seen == 1]
        spelling = Spelling.learn(once or self.words)
        return PooledTables(
            words=self.words,
            word_keys=self.keys,
            word_order=self.order,
            base=base,
            share=self.share,
            unknown=unknown,
            spelling=spelling,
            spelled=spelling.log_probability(self.words) + math.log(unknown),
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


def row_arrays(
    contexts: Iterable[tuple[Rows, Integers]],
    share: Floats,
    discounts: Sequence[Floats] | Floats,
    known: npt.NDArray[np.float32] = _NOTHING_KNOWN,
) -> RowArrays:
    """Return the arrays of the rows of all kinds of contexts.

    Parameters
    ----------
    contexts : iterable of (Rows, ndarray)
        Of each kind from 1 on its rows, and for those of the chain after how many longer contexts each entry came.
    share : ndarray
        Of each word, smoothed; float64.
    discounts : sequence of ndarray
        Of each length of the chain, see `discounts_of`.
    known : ndarray
        Evidence of small counts by word, 0 where it was not computed yet, which is computed once for each;
        float32, shape ``(words, SMALL_COUNTS + 1)``.
    """
    keys, pointers, words, evidence = [], [], [], []
    chain: list[tuple[npt.NDArray[np.float32], Floats]] = []
    entries, prior, add_evidence = 0, PRIOR_COUNTS * share, cast(Any, _add_evidence)
    # Counts are not needed any more when the next kind is read.
    for rows, longer in contexts:
        if len(chain) < CHAIN:
            chain.append(chain_shares(rows._replace(counts=longer), discounts[len(chain)]))
        evidence.append(np.empty(len(rows.word), np.float32))
        add_evidence(rows.word, rows.counts, prior, known, evidence[-1])
        keys.append(rows.keys)
        pointers.append(rows.pointer[:-1] + entries)
        words.append(rows.word)
        entries += len(rows.word)
    return RowArrays(
        kind_begin=np.cumsum([0] + [len(each) for each in keys]),
        keys=np.concatenate(keys),
        pointer=np.append(np.concatenate(pointers), entries),
        word=np.concatenate(words),
        evidence=np.concatenate(evidence),
        discounted=np.concatenate([shares for shares, _ in chain]),
        freed=np.concatenate([freed for _, freed in chain]),
    )


def chain_shares(link: Rows, discounts: Floats) -> tuple[npt.NDArray[np.float32], Floats]:
    """Return the discounted share of each entry, and the mass that each row leaves to shorter contexts."""
    shares, freed = np.empty(len(link.word), np.float32), np.empty(len(link.keys))
    divide: Any = _divide
    divide(link.pointer, link.counts, discounts, shares, freed)
    return shares, freed


@jit
def _add_evidence(words, counts, prior, known, evidence):  # type: ignore[no-untyped-def]
    """Compute the evidence of each entry."""
    for entry in range(len(words)):
        word, count = words[entry], counts[entry]
        value = known[word, count] if count < known.shape[1] else np.float32(0)
        if value == 0:
            value = np.float32(math.log1p(count / prior[word]))
            if count < known.shape[1]:
                known[word, count] = value
        evidence[entry] = value


@jit
def _divide(pointer, counts, discounts, shares, freed):  # type: ignore[no-untyped-def]
    """Compute what `chain_shares` returns."""
    for row in range(len(pointer) - 1):
        total, given = 0, 0.0
        for entry in range(pointer[row], pointer[row + 1]):
            total += counts[entry]
        for entry in range(pointer[row], pointer[row + 1]):
            count = counts[entry]
            shares[entry] = np.float32((count - discounts[min(count, 3)]) / total)
            # Rounded, so that a distribution sums to 1 as exactly as can be.
            given += np.float64(shares[entry])
        freed[row] = 1.0 - given


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
