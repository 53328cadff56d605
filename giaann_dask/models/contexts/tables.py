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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import Integers, word_keys
from giaann_dask.lazy import jit, runs_plainly
from giaann_dask.models.contexts.context_rows import RowCollector, Rows, count_longer
from giaann_dask.models.contexts.kernel import Evidence, Text
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, SMALL_COUNTS, context_sources
from giaann_dask.models.contexts.packed_counts import PackedCounts
from giaann_dask.models.contexts.uncompiled import add_evidence, divide
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import NONE, TokenStream, find_numbers
from giaann_dask.runs.run import Run

Floats = npt.NDArray[np.float64]

# Counts that a context is given in advance, spread as the words are by themselves.
PRIOR_COUNTS = 5.0
# Kinds of contexts that are sorted at a time.
_THREADS = 2
_NO_KEYS = np.zeros(0, np.int64)


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class WordTables:
    """Tables of words by themselves, which are numbered by falling count, then by their keys.

    Attributes
    ----------
    words : sequence of str
        The vocabulary; stored tables decode a word when it is asked for.
    word_keys, word_order : ndarray
        Keys of the words, ascending, and the number of each; int64, shape ``(words,)``.
    base : ndarray
        Probability of each word by itself, without what unknown words have; float64, shape ``(words,)``.
    share : ndarray
        Share of each word among the tokens, smoothed likewise; float64, same shape.
    counts, preceding : ndarray
        How often each word occurs, and after how many distinct words; int64, same shape.
    unknown : float
        Probability of all unknown words together.
    spelling : Spelling
        How it is dealt to them.
    spelled : ndarray
        Natural logarithm of the probability that each word has by its spelling alone; float64, shape ``(words,)``.
    """

    words: Sequence[str]
    word_keys: Integers
    word_order: Integers
    base: Floats
    share: Floats
    counts: Integers
    preceding: Integers
    unknown: float
    spelling: Spelling
    spelled: Floats

    def word_numbers(self, keys: Integers) -> Integers:
        """Return the numbers of words by their keys, `NONE` for unknown ones."""
        return find_numbers(self.word_keys, self.word_order, keys)

    def names_with(self, unknown: Sequence[str]) -> Sequence[str]:
        """Return the names of all known words and some unknown ones, numbered in this order."""
        return JoinedNames(self.words, unknown) if unknown else self.words

    def with_unknown(self, unknown: Sequence[str]) -> Text:
        """Return a text without tokens: all known words and some unknown ones, numbered in this order."""
        other = self.spelling.log_probability(unknown) + math.log(self.unknown) if unknown else np.zeros(0)
        spelled, nothing = np.concatenate([self.spelled, other]), np.zeros(len(unknown))
        # A known word could be spelled, too: so all strings together have a probability of 1.
        base = np.concatenate([self.base, nothing]) + np.exp(spelled)
        log_base = np.concatenate([np.log(base[: len(self.words)]), spelled[len(self.words) :]])
        share = np.concatenate([self.share, nothing])
        none, rows = np.zeros(0, np.int64), np.zeros((0, len(CONTEXTS) - 1), np.int64)
        ranked = np.argsort(-base, kind="stable")
        return Text(none, none, rows, base, share, log_base, ranked, np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class JoinedNames(Sequence[str]):
    """Names of known words, followed by those of unknown ones, without a list of all.

    Attributes
    ----------
    known, unknown : sequence of str
        The names.
    """

    known: Sequence[str]
    unknown: Sequence[str]

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self.known) + len(self.unknown)

    def __getitem__(self, at: Any) -> Any:
        """Return a name; slices are lists."""
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        number, known = range(len(self))[at], len(self.known)
        return self.known[number] if number < known else self.unknown[number - known]


class RowTables(Protocol):
    """Words, and rows of counts, of which the evidence before some tokens is made."""

    @property
    def words(self) -> WordTables:
        """The words."""

    def of_tokens(self, stream: TokenStream, begin: int, end: int) -> tuple[Evidence, Integers]:
        """Return the evidence before the tokens of a span of a stream; see `evidence_of_tokens`."""


class CountRows(Protocol):
    """Rows of counts by kind of context, in memory or in files."""

    @property
    def kinds(self) -> Integers:
        """See `PackedCounts.kinds`."""

    def rows(self, kind: int, wanted: Integers) -> tuple[Rows, Integers, Integers]:
        """See `PackedCounts.rows`."""


@register_arrays
@dataclass(frozen=True, eq=False)
class PackedTables:
    """Tables of evidence whose rows are packed as counts, a sixth of their bytes.

    Attributes
    ----------
    words : WordTables
        The words.
    small : ndarray
        How many counts of each length of the chain are small, see `small_counts`; int64, shape
        ``(CHAIN, SMALL_COUNTS)``.
    counts : CountRows
        The counts.
    """

    words: WordTables
    small: Integers
    counts: CountRows

    def of_tokens(self, stream: TokenStream, begin: int, end: int) -> tuple[Evidence, Integers]:
        """See `RowTables.of_tokens`."""
        kinds = {*(np.flatnonzero(self.counts.kinds[:, 0]) + 1).tolist()}
        rules = self.words.share, self.discounts, self._known
        return evidence_of_tokens(self.counts.rows, kinds, (stream, begin, end), *rules)

    @cached_property
    def discounts(self) -> Floats:
        """Discounts of the counts of each length of the chain, see `discounts_of`; float64, shape ``(CHAIN, 4)``."""
        return np.array([discounts_of(small) for small in self.small])

    @cached_property
    def _known(self) -> npt.NDArray[np.float32]:
        return np.zeros((len(self.words.words), SMALL_COUNTS + 1), np.float32)


def evidence_of_tokens(
    rows_of: Callable[[int, Integers], tuple[Rows, Integers, Integers]],
    kinds: Collection[int],
    span: tuple[TokenStream, int, int],
    share: Floats,
    discounts: Sequence[Floats] | Floats,
    known: npt.NDArray[np.float32],
) -> tuple[Evidence, Integers]:
    """Return the evidence of the contexts before the tokens of a span of a stream.

    Parameters
    ----------
    rows_of : callable
        Called with a kind of context and source keys, ascending; returns what `PackedCounts.rows` does.
    kinds : collection of int
        Places in `CONTEXTS` of the kinds that have rows.
    span : (TokenStream, int, int)
        The stream, and the first and the last token, exclusive.
    share : ndarray
        Of each word, smoothed; float64.
    discounts : sequence of ndarray
        Of each length of the chain, see `discounts_of`.
    known : ndarray
        Evidence of small counts by word, 0 where it was not computed yet, which is computed once for each;
        float32, shape ``(words, SMALL_COUNTS + 1)``.

    Returns
    -------
    evidence : Evidence
        With the rows of these contexts only.
    rows : ndarray
        Row of every context before every token, `NONE` where there is none; int64, shape ``(end - begin, kinds)``.
        Column k is the kind k + 1 of `CONTEXTS`.
    """
    stream, begin, end = span
    place = np.full((end - begin, len(CONTEXTS) - 1), NONE, np.int64)
    pointers, words, evidence = [], [], []
    chain: list[tuple[npt.NDArray[np.float32], Floats]] = []
    rows, entries, prior = 0, 0, PRIOR_COUNTS * share
    for kind in range(1, len(CONTEXTS)):
        wanted, which = _NO_KEYS, _NO_KEYS
        if kind in kinds:
            # In their order and each once, so that a search reads what the one before has read.
            wanted, which = np.unique(context_sources(stream, kind, begin, end), return_inverse=True)
        found, longer, row = rows_of(kind, wanted)
        if len(which):
            place[:, kind - 1] = np.where(row == NONE, NONE, row + rows)[which]
        if kind <= CHAIN:
            chain.append(chain_shares(found._replace(counts=longer), discounts[kind - 1]))
        evidence.append(np.empty(len(found.word), np.float32))
        add: Any = add_evidence if runs_plainly(len(found.word) // 5) else compute_evidence
        add(found.word, found.counts, prior, known, evidence[-1])
        pointers.append(found.pointer[:-1] + entries)
        words.append(found.word)
        rows, entries = rows + len(found.keys), entries + len(found.word)
    shares, freed = (np.concatenate(part) for part in zip(*chain, strict=True))
    pointer = np.append(np.concatenate(pointers), entries)
    return Evidence(pointer, np.concatenate(words), np.concatenate(evidence), shares, freed, CHAIN), place


def build_tables(runs: Iterable[Run], words: Sequence[str]) -> PackedTables:
    """Build the tables of a network, reading one run at a time.

    Parameters
    ----------
    runs : iterable of Run
        Runs of distinct connections in any order, such as blocks of rows of regions.
    words : sequence of str
        Every word that was counted.

    Raises
    ------
    EmptyInputError
        If nothing was counted.
    """
    names = names_by_key(words)
    collector = RowCollector(np.array(sorted(names), np.int64))
    for run in runs:
        collector.add(run)
    every = collector.take(0, np.arange(len(collector.word_keys), dtype=np.int32))
    if not len(every.word):
        raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
    ranked = rank_words(collector.word_keys[every.word], every.counts, names)
    number_of = np.full(len(collector.word_keys), NONE, np.int32)
    number_of[every.word] = ranked.order
    # The loops and NumPy release the GIL.
    with ThreadPoolExecutor(_THREADS) as pool:
        contexts = list(pool.map(lambda kind: collector.take(kind, number_of), range(1, len(CONTEXTS))))
    extended = collector.take_extended()
    links = [_followed(contexts, extended, length) for length in range(CHAIN)]
    preceding = np.bincount(contexts[0].word, minlength=len(ranked.words)).astype(np.int64)
    # Pruning may leave no context of the nearest word.
    tables = ranked.tables(preceding if preceding.any() else ranked.counts)
    small = np.array([small_counts(link.counts) for link in links])
    return PackedTables(tables, small, PackedCounts.pack(contexts, links))


class RankedWords(NamedTuple):
    """Words by falling count, then by their keys.

    Attributes
    ----------
    words : tuple of str
        The words.
    keys, order : ndarray
        See `WordTables.word_keys` and `WordTables.word_order`.
    counts, share : ndarray
        How often each word occurs, int64, and its smoothed share, float64; shape ``(words,)``.
    """

    words: tuple[str, ...]
    keys: Integers
    order: Integers
    counts: Integers
    share: Floats

    def tables(self, preceding: Integers) -> WordTables:
        """Return the tables of the words, given the number of distinct words before each."""
        base, unknown = _unigram_shares(preceding)
        once = [word for word, seen in zip(self.words, self.counts.tolist(), strict=True) if seen == 1]
        spelling = Spelling.learn(once or self.words)
        spelled = spelling.log_probability(self.words) + math.log(unknown)
        return WordTables(
            *(self.words, self.keys, self.order, base, self.share, self.counts, preceding),
            *(unknown, spelling, spelled),
        )


def chain_shares(link: Rows, discounts: Floats) -> tuple[npt.NDArray[np.float32], Floats]:
    """Return the discounted share of each entry, and the mass that each row leaves to shorter contexts."""
    shares, freed = np.empty(len(link.word), np.float32), np.empty(len(link.keys))
    compute: Any = divide if runs_plainly(len(link.word) // 20) else _divide
    compute(link.pointer, link.counts, discounts, shares, freed)
    return shares, freed


@jit
def compute_evidence(words, counts, prior, known, evidence):  # type: ignore[no-untyped-def]
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


def names_by_key(words: Sequence[str]) -> dict[int, str]:
    """Return words by their keys."""
    return dict(zip(word_keys(words).tolist(), words, strict=True))


def rank_words(key: Integers, count: Integers, names: Mapping[int, str]) -> RankedWords:
    """Return words numbered by falling count.

    Parameters
    ----------
    key, count : ndarray
        Keys of the words, ascending, and how often each occurs; int64, shape ``(words,)``.
    names : mapping of int to str
        Names of these words, and maybe others, by their keys.
    """
    ranked = np.lexsort((key, -count))
    order = np.empty(len(key), np.int64)
    order[ranked] = np.arange(len(key))
    named = tuple(map(names.__getitem__, key[ranked].tolist()))
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
