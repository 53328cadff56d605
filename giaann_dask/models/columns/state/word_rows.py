"""Pool the connections of a word over all columns that have it, and let what follows it there be candidates.

From left to right the column of a word after the last noun is not known. In its provisional column its neuron often has
no connections, though the word was followed by many others in other columns. With `sources` ``"every"`` the source of a
step is its word in every column that has it, weighted by the strengths of its connections between adjacent tokens, and
no longer its own neuron alone. What such a source reaches counts by word: strengths to neurons of one word in several
columns are added up.

The value of a candidate is its activation divided by the largest, and `WEIGHT` times the pooled strength of its word
divided by the largest. A word that no activated neuron has is stood for by the neuron that its strongest connections
end at. Sums of strengths are integers, so a table is the same for any division of the network into regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import FEATURE_MASK, NEURON_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.runs.run import Run, join_ranges, pointer_of
from giaann_dask.spec import BRANCH_BITS

# Weight of the pooled strength beside the activation, each as a share of its largest. Chosen on EWT dev and a novel
# among 0.25 to 16: 1 is worse, more is as good.
WEIGHT = np.float32(2)
# Words that are kept after a word, the most frequent ones.
MOST_WORDS = 64
Floats = npt.NDArray[np.float32]


def source_word(neuron: Integers) -> Integers:
    """Return what stands for a neuron in all columns: its feature, or for a concept, which has one column, its key."""
    feature = neuron & FEATURE_MASK
    return np.where(feature > 0, feature, neuron)


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class WordPairs:
    """Connections between adjacent tokens of a region, pooled over the columns of their sources.

    Attributes
    ----------
    word, target : ndarray
        `source_word` of the sources, and target neurons; ascending together, int64.
    units : ndarray
        Sum of the strengths, int64.
    source : ndarray
        The source of the strongest of the connections, int64.
    largest : ndarray
        Strength of that one, int64.
    """

    word: Integers
    target: Integers
    units: Integers
    source: Integers
    largest: Integers


def pool_region(run: Run, last_segment: int) -> WordPairs:
    """Return the pooled connections of a region's run that end in the last segment."""
    target = run.target
    # Rows are sorted by segment.
    ends = np.cumsum(target >> SEGMENT_SHIFT == last_segment, dtype=np.int64)
    lengths = np.diff(np.append(0, ends)[run.pointer])
    at = join_ranges(run.pointer[1:] - lengths, lengths)
    source = np.repeat(run.source, lengths)
    reached = (target[at] >> BRANCH_BITS) & NEURON_MASK
    return merge_pairs([_pairs(source_word(source), reached, run.strength[at].astype(np.int64), source)])


def _pairs(word: Integers, target: Integers, units: Integers, source: Integers) -> WordPairs:
    return WordPairs(word, target, units, source, units)


def merge_pairs(parts: Sequence[WordPairs]) -> WordPairs:
    """Return pooled connections of several regions together, whatever their order."""
    none = np.zeros(0, np.int64)
    word, target, units, source, largest = (
        np.concatenate([none, *(getattr(part, name) for part in parts)])
        for name in ("word", "target", "units", "source", "largest")
    )
    # The strongest first, then the lowest source.
    order = np.lexsort((source, -largest, target, word))
    word, target = word[order], target[order]
    firsts = np.flatnonzero((np.diff(word, prepend=-1) != 0) | (np.diff(target, prepend=-1) != 0))
    total = np.add.reduceat(units[order], firsts) if len(firsts) else none
    return WordPairs(word[firsts], target[firsts], total, source[order][firsts], largest[order][firsts])


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class WordRows:
    """The words that follow each word in all columns, the most frequent ones.

    Attributes
    ----------
    word : ndarray
        `source_word` of the sources, ascending, int64, shape ``(words,)``.
    pointer : ndarray
        Those that follow the i-th are ``pointer[i]:pointer[i + 1]`` of the others, int64, shape ``(words + 1,)``.
    target : ndarray
        The neuron that most of the strength to each word ends at, int64; strongest word first.
    share : ndarray
        Pooled strength of the word, as a share of the largest of the row; float32.
    source : ndarray
        The source of the strongest connection to the neuron, int64.
    """

    word: Integers
    pointer: Integers
    target: Integers
    share: Floats
    source: Integers

    @classmethod
    def of(cls, parts: Sequence[WordPairs]) -> WordRows:
        """Return the rows of the pooled connections of all regions.

        Examples
        --------
        >>> one = np.array([7, 7, 7]), np.array([9, 1 << 25 | 9, 5]), np.array([4, 3, 5]), np.array([7, 7, 7])
        >>> rows = WordRows.of([WordPairs(*one, one[2])])
        >>> rows.target.tolist(), rows.share.astype(float).round(2).tolist()
        ([9, 5], [1.0, 0.71])
        """
        pairs = merge_pairs(parts)
        follows = source_word(pairs.target)
        # Of each word that follows, the neuron with most of the strength.
        order = np.lexsort((pairs.target, -pairs.units, follows, pairs.word))
        word, follows = pairs.word[order], follows[order]
        firsts = np.flatnonzero((np.diff(word, prepend=-1) != 0) | (np.diff(follows, prepend=-1) != 0))
        total = np.add.reduceat(pairs.units[order], firsts) if len(firsts) else firsts
        word, best = word[firsts], order[firsts]
        order = np.lexsort((pairs.target[best], -total, word))
        word, best, total = word[order], best[order], total[order]
        starts = np.flatnonzero(np.diff(word, prepend=-1))
        counts = np.minimum(np.diff(np.append(starts, len(word))), MOST_WORDS)
        kept, most = join_ranges(starts, counts), np.repeat(total[starts], counts)
        share = (total[kept] / np.maximum(most, 1)).astype(np.float32)
        return cls(word[starts], pointer_of(counts), pairs.target[best[kept]], share, pairs.source[best[kept]])

    def row(self, source: int) -> slice:
        """Return where the words are that follow a source's word."""
        word = source & FEATURE_MASK or source
        at = int(np.searchsorted(self.word, word))
        if at == len(self.word) or self.word[at] != word:
            return slice(0, 0)
        return slice(int(self.pointer[at]), int(self.pointer[at + 1]))

    def candidates(self, source: int, found: Candidates | None, order: NameOrder) -> Candidates | None:
        """Return the candidates of a step with the neurons that its source's word reaches in every column.

        Parameters
        ----------
        source : int
            Neuron key of the step's source.
        found : Candidates or None
            Neurons that its own connections reach, with their activation.
        order : NameOrder
            Which of equal candidates is the first.
        """
        here = self.row(source)
        target, share = self.target[here], self.share[here] * WEIGHT
        if not len(target):
            return found
        neuron: Integers = np.zeros(0, np.int64)
        value: npt.NDArray[np.floating] = np.zeros(0, np.float32)
        if found is not None:
            largest = max(found.value.max(), np.float32(0))
            neuron, value = found.neuron, np.maximum(found.value, np.float32(0)) / (largest or np.float32(1))
        words, follows = source_word(neuron), source_word(target)
        by_word = np.argsort(follows)
        place = np.minimum(np.searchsorted(follows[by_word], words), len(follows) - 1)
        known = follows[by_word][place] == words
        value = value + np.where(known, share[by_word][place], np.float32(0))
        fresh = ~np.isin(follows, words)
        every, values = np.concatenate([neuron, target[fresh]]), np.concatenate([value, share[fresh]])
        ascending = np.argsort(every)
        return Candidates(every[ascending], values[ascending].astype(np.float32), order)

    def strongest(self, source: int, target: int) -> tuple[int | None, float]:
        """Return the neuron of a source's word with the strongest connection to a target, and what it raised it by.

        None and 0.0 where the target does not stand for its word.
        """
        here = self.row(source)
        at = np.flatnonzero(self.target[here] == target)
        if not len(at):
            return None, 0.0
        return int(self.source[here][at[0]]), float(self.share[here][at[0]] * WEIGHT)
