"""Build the tables from which profile ``best`` predicts words: the evidence of each context for each word.

Counts are read run by run into one table. The probability of a word without context is its share of the distinct
contexts that it was seen after, not of the tokens (Kneser and Ney 1995). The discounted mass goes to unknown words as
far as words seen once predict them, and to all known words equally. The chain interpolates the counts after 4, 3, 2
and 1 neighbours in the same way, with three discounts for each length (Chen and Goodman 1998). All of this is derived
from sums when the table is built, so networks can still be added and subtracted.

`best.kernel` sums the evidence with the weights of `best.scores`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import EmptyInputError
from giaann_dask.increments.contexts import CHAIN, CONTEXTS, EXTENDS, NONE, TokenStream, word_key
from giaann_dask.inference.best.spelling import Spelling
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.runs.run import Run

Floats = npt.NDArray[np.float64]

# Counts that a context is given in advance, spread as the words are by themselves.
PRIOR_COUNTS = 5.0


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
        at = np.minimum(np.searchsorted(self.word_keys, keys), len(self.word_keys) - 1)
        return np.where(self.word_keys[at] == keys, self.word_order[at], NONE)

    def find_rows(self, stream: TokenStream) -> Integers:
        """Return the row of every context before every token, `NONE` where there is none.

        Returns
        -------
        ndarray
            int64, shape ``(tokens, kinds)``; column k is the kind k + 1 of `CONTEXTS`.
        """
        rows = np.full((len(stream), self.kinds), NONE, np.int64)
        for kind in range(self.kinds):
            keys = self.keys[self.kind_begin[kind] : self.kind_begin[kind + 1]]
            if len(keys):
                wanted = stream.sources(kind + 1)
                at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
                rows[:, kind] = np.where(keys[at] == wanted, at + self.kind_begin[kind], NONE)
        return rows


class _Kind(NamedTuple):
    """Rows of one kind of context, with words by number."""

    keys: Integers
    pointer: Integers
    word: Integers
    counts: Integers

    @property
    def row(self) -> Integers:
        """Row of each entry."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.pointer))


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
    parts: list[list[_Kind]] = [[] for _ in range(EXTENDS + 1)]
    for run in runs:
        for segment, part in _by_segment(run):
            parts[segment].append(part)
    kinds = [_joined(part) for part in parts]
    if not len(kinds[0].word):
        raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
    return _built(kinds, words)


def _built(kinds: list[_Kind], words: Sequence[str]) -> PooledTables:
    """Build the tables of kinds whose words are still keys."""
    key, count = kinds[0].word, kinds[0].counts
    ranked = np.lexsort((key, -count))
    order = np.empty(len(key), np.int64)
    order[ranked] = np.arange(len(key))
    name = {word_key(word): word for word in words}
    named = tuple(name[key] for key in key[ranked].tolist())
    contexts = [_numbered(kind, key, order) for kind in kinds[1 : len(CONTEXTS)]]
    share, _ = _unigram_shares(count[ranked])
    base, unknown = _unigram_shares(np.bincount(contexts[0].word, minlength=len(key)).astype(np.int64))
    chain = [_chain_shares(_followed(contexts, kinds[EXTENDS], length)) for length in range(CHAIN)]
    once = [word for word, seen in zip(named, count[ranked].tolist(), strict=True) if seen == 1]
    evidence = [np.log1p(kind.counts / (PRIOR_COUNTS * share[kind.word])).astype(np.float32) for kind in contexts]
    entries = np.cumsum([0] + [len(kind.word) for kind in contexts])
    begins = [kind.pointer[:-1] + first for kind, first in zip(contexts, entries[:-1], strict=True)]
    return PooledTables(
        words=named,
        word_keys=key,
        word_order=order,
        base=base,
        share=share,
        unknown=unknown,
        spelling=Spelling.learn(once or named),
        kind_begin=np.cumsum([0] + [len(kind.keys) for kind in contexts]),
        keys=np.concatenate([kind.keys for kind in contexts]),
        pointer=np.append(np.concatenate(begins), entries[-1]),
        word=np.concatenate([kind.word for kind in contexts]).astype(np.int32),
        evidence=np.concatenate(evidence),
        discounted=np.concatenate([shares for shares, _ in chain]),
        freed=np.concatenate([freed for _, freed in chain]),
    )


def _by_segment(run: Run) -> Iterable[tuple[int, _Kind]]:
    """Yield the rows of each kind of context of a run; all connections of a source are of one kind, or extend it."""
    source = np.repeat(run.source, np.diff(run.pointer))
    segment, neuron, _ = unpack_target(run.target)
    for kind in np.unique(segment).tolist():
        chosen = segment == kind
        sources, counts = np.unique(source[chosen], return_counts=True)
        pointer = np.append(0, np.cumsum(counts))
        yield kind, _Kind(sources, pointer, neuron[chosen], run.strength[chosen].astype(np.int64))


def _joined(parts: Sequence[_Kind]) -> _Kind:
    """Return rows of distinct sources together, by source."""
    none = np.zeros(0, np.int64)
    keys = np.concatenate([none, *(part.keys for part in parts)])
    lengths = np.concatenate([none, *(np.diff(part.pointer) for part in parts)])
    word = np.concatenate([none, *(part.word for part in parts)])
    count = np.concatenate([none, *(part.counts for part in parts)])
    if len(parts) > 1:
        by_entry = np.argsort(np.repeat(keys, lengths), kind="stable")
        word, count = word[by_entry], count[by_entry]
        by_row = np.argsort(keys)
        keys, lengths = keys[by_row], lengths[by_row]
    return _Kind(keys, np.append(0, np.cumsum(lengths)), word, count)


def _numbered(kind: _Kind, word_keys: Integers, order: Integers) -> _Kind:
    """Return a kind with numbers instead of keys of words, ascending within a row."""
    word = order[np.searchsorted(word_keys, kind.word)]
    by_number = np.lexsort((word, kind.row))
    return _Kind(kind.keys, kind.pointer, word[by_number], kind.counts[by_number])


def _followed(contexts: Sequence[_Kind], extends: _Kind, length: int) -> _Kind:
    """Return the counts of a link of the chain: all tokens for the longest, else distinct longer contexts.

    Contexts that reach the beginning of a sentence have no longer ones and keep their counts.
    """
    own = contexts[length]
    if length == CHAIN - 1 or not len(own.keys):
        return own
    longer = contexts[length + 1]
    # Where two contexts share a key by chance, the first of those that it extends is taken for both.
    first = extends.pointer[np.searchsorted(extends.keys, longer.keys)]
    row = np.searchsorted(own.keys, extends.word[first])[longer.row]
    words = 1 + max(int(own.word.max()), int(longer.word.max(initial=0)))
    known, wanted = own.row * words + own.word, row * words + longer.word
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    count = np.bincount(at[known[at] == wanted], minlength=len(known)).astype(np.int64)
    return own._replace(counts=np.where(count > 0, count, own.counts))


def _discounts(count: Integers) -> Floats:
    """Return the discounts of counts of 0, 1, 2 and 3 or more (Chen and Goodman 1998)."""
    once, twice, thrice, often = (int((count == number).sum()) for number in (1, 2, 3, 4))
    if min(once, twice, thrice, often) == 0:
        return np.array([0.0, 0.5, 0.75, 0.9])
    scale = once / (once + 2 * twice)
    found = (1 - 2 * scale * twice / once, 2 - 3 * scale * thrice / twice, 3 - 4 * scale * often / thrice)
    return np.array([0.0, *(min(max(d, 0.05), number - 0.05) for number, d in enumerate(found, 1))])


def _unigram_shares(count: Integers) -> tuple[Floats, float]:
    """Return the smoothed shares of words, and that of unknown ones; together they are 1."""
    total = float(count.sum())
    loss = _discounts(count[count > 0])[np.minimum(count, 3)]
    freed = float(loss.sum()) / total
    # Half of a word as if there had been one more: a text in which no word occurs once has unknown ones, too.
    unknown = min(freed / 2, (int((count == 1).sum()) + 0.5) / (total + 0.5))
    return (count - loss) / total + (freed - unknown) / len(count), unknown


def _chain_shares(kind: _Kind) -> tuple[npt.NDArray[np.float32], Floats]:
    """Return the discounted share of each entry, and the mass that each row leaves to shorter contexts."""
    if not len(kind.keys):
        return np.zeros(0, np.float32), np.zeros(0)
    loss = _discounts(kind.counts)[np.minimum(kind.counts, 3)]
    total = np.add.reduceat(kind.counts, kind.pointer[:-1]).astype(np.float64)
    shares = ((kind.counts - loss) / total[kind.row]).astype(np.float32)
    # From the rounded shares, so that a distribution sums to 1 as exactly as can be.
    return shares, 1.0 - np.add.reduceat(shares.astype(np.float64), kind.pointer[:-1])
