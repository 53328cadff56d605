"""Define what a model of one's own is given to predict with, and its answers: one number per word, or a sparse one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import read_only
from giaann_dask.keys import Integers

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

# Words of the text so far that a model gets at most.
RECENT_WORDS = 1000


@dataclass(frozen=True, eq=False)
class SparseProbabilities:
    """Probabilities of some words; all others have theirs in proportion to their frequency.

    Made by `SeenWords.sparse`. What a step costs depends on the words that are listed, not on all that are known.

    Attributes
    ----------
    counts : ndarray
        Frequency of each known word, in decreasing order; float64, shape ``(words,)``.
    words : ndarray
        Places in `counts` of the listed words, ascending; int64, shape ``(listed,)``.
    values : ndarray
        Their probabilities; float64, same shape.
    rest : float
        Probability of each other word, divided by its frequency.
    counted : float
        Sum of `counts`.
    """

    counts: Floats
    words: Integers
    values: Floats
    rest: float
    counted: float

    @cached_property
    def total(self) -> float:
        """Sum of all probabilities."""
        return float(self.values.sum() + self.rest * (self.counted - self.counts[self.words].sum()))

    def __len__(self) -> int:
        """Return the number of known words."""
        return len(self.counts)

    def __getitem__(self, word: int) -> float:
        """Return the probability of the word at a place."""
        at = int(np.searchsorted(self.words, word))
        listed = at < len(self.words) and self.words[at] == word
        return float(self.values[at] if listed else self.rest * self.counts[word])

    def valid(self) -> bool:
        """Return whether places are those of different words, and probabilities are finite and not negative."""
        words, values = self.words, self.values
        if words.ndim != 1 or words.shape != values.shape or not np.isfinite(values).all():
            return False
        within = not len(words) or (words[0] >= 0 and words[-1] < len(self) and bool((np.diff(words) > 0).all()))
        return bool(within and (values >= 0).all() and 0 <= self.rest < np.inf)

    def best(self, count: int) -> Integers:
        """Return the places of the most probable words, best first, equal ones by place.

        Examples
        --------
        >>> chance = SparseProbabilities(np.array([4.0, 2.0, 1.0]), np.array([0]), np.array([0.1]), 0.1, 7.0)
        >>> chance.best(2).tolist(), chance.above(0), chance.above(1)
        ([1, 0], 1, 0)
        """
        # Of the others, which are in order, the first ones.
        others = np.setdiff1d(np.arange(min(count + len(self.words), len(self))), self.words, assume_unique=True)[
            :count
        ]
        places = np.concatenate([self.words, others])
        values = np.concatenate([self.values, self.rest * self.counts[others]])
        return places[np.lexsort((places, -values))][:count]

    def above(self, word: int) -> int:
        """Return how many words are more probable than the one at a place; of equals the first is."""
        value, places = self[word], range(len(self))
        listed = int((self.values > value).sum() + (self.words[self.values == value] < word).sum())
        # The others descend: first all above the value, then all that equal it.
        higher = bisect_left(places, True, key=lambda at: self.rest * self.counts[at] <= value)
        equal = bisect_left(places, True, key=lambda at: self.rest * self.counts[at] < value)
        end = max(higher, min(equal, word))
        return listed + end - int(np.searchsorted(self.words, end))

    def without(self, words: Sequence[int]) -> SparseProbabilities:
        """Return the same with probability 0 for some words."""
        places = np.union1d(self.words, words)
        values = np.zeros(len(places))
        values[np.searchsorted(places, self.words)] = self.values
        values[np.searchsorted(places, words)] = 0.0
        return replace(self, words=places, values=values)

    def dense(self) -> Floats:
        """Return the probability of each known word; float64, shape ``(words,)``."""
        found = self.rest * self.counts
        found[self.words] = self.values
        return found


@dataclass(frozen=True, eq=False)
class SeenWords:
    """Counts and words that predict the next word of a text. Arrays cannot be written to.

    Attributes
    ----------
    counts : ndarray
        Frequency of each known word, in decreasing order; float64, shape ``(words,)``.
    after : tuple of (ndarray, ndarray)
        For each context of the model the places in `counts` of the words that followed it, int64, and how often each
        did, float64; both are empty where it was never seen.
    words : tuple of str
        The known words, lower-cased, in the order of `counts`.
    sentence : tuple of str
        Words of the sentence so far, lower-cased.
    text : tuple of str
        Words of the text so far, those of the sentence last; 1,000 at most.
    total : float
        Sum of `counts`.
    once : int
        Number of known words that occur once.
    """

    counts: Floats
    after: tuple[tuple[Integers, Floats], ...]
    words: tuple[str, ...] = ()
    sentence: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    total: float = 0.0
    once: int = 0
    _kept: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    def kept(self, function: Callable[[tuple[str, ...], Floats], T]) -> T:
        """Return what a function makes of all words and their counts, computed once for an opened network.

        Parameters
        ----------
        function : callable
            Of a module; called with `words` and `counts`.
        """
        if function not in self._kept:
            self._kept[function] = read_only(function(self.words, self.counts))
        found: T = self._kept[function]
        return found

    def sparse(
        self, words: Integers | Sequence[int], values: Floats | Sequence[float], rest: float
    ) -> SparseProbabilities:
        """Return an answer that lists some words.

        Parameters
        ----------
        words : ndarray of int
            Places of different words in `counts`.
        values : ndarray of float
            Their probabilities.
        rest : float
            Every other word has this, times its frequency.
        """
        places, found = np.asarray(words, np.int64), np.asarray(values, np.float64)
        if places.ndim == 1 and places.shape == found.shape and not (np.diff(places) > 0).all():
            order = np.argsort(places, kind="stable")
            places, found = places[order], found[order]
        return SparseProbabilities(self.counts, places, found, float(rest), self.total)

    def without(self, context: int) -> SeenWords:
        """Return the same as if one of the contexts had never been seen."""
        none = (np.zeros(0, np.int64), np.zeros(0))
        return replace(self, after=(*self.after[:context], none, *self.after[context + 1 :]))
