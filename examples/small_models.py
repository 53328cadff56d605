"""Five small models: each does one thing that contexts of words alone do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import giaann_dask as gd

Floats = npt.NDArray[np.float64]


def mixed(seen: gd.SeenWords, weight: float) -> Floats:
    """Return the shares of words after each context, the first of them last and so the strongest."""
    chance = seen.counts / (seen.total + seen.once)
    for words, counts in reversed(seen.after):
        if len(words):
            chance = (1 - weight) * chance
            chance[words] += weight * counts / counts.sum()
    return chance


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Options of a mixture: the weight of each context."""

    weight: float = 0.7


def long_word(words: tuple[str, ...]) -> str | None:
    """Return the nearest word of six letters or more, which stands for what a sentence is about."""
    return next((word for word in reversed(words) if len(word) > 5), None)


class Topic(gd.CountedModel):
    """A view that is a function of the words so far: the word before, and the nearest long word before that."""

    options = Mixture

    def contexts(self, options: Mixture) -> Sequence[gd.Context]:
        """Return the pair, and the word before."""
        return [gd.Context("topic", (("word", 1), (long_word, 2))), gd.Context("1", (("word", 1),))]

    def probabilities(self, seen: gd.SeenWords, options: Mixture) -> Floats:
        """Return a mixture."""
        return mixed(seen, options.weight)


class Bag(gd.CountedModel):
    """Contexts of one name share a segment: words before, whatever their order."""

    options = Mixture

    def contexts(self, options: Mixture) -> Sequence[gd.Context]:
        """Return the word before, and a bag of five."""
        return [gd.Context("1", (("word", 1),)), *(gd.Context("bag", (("word", at),)) for at in range(1, 6))]

    def probabilities(self, seen: gd.SeenWords, options: Mixture) -> Floats:
        """Return the share after the word before, and the mean share after those of the bag."""
        bag = seen.counts / (seen.total + seen.once)
        known = [(words, counts / counts.sum()) for words, counts in seen.after[1:] if len(words)]
        for words, shares in known:
            bag[words] += options.weight * (shares - bag[words]) / len(known)
        words, counts = seen.after[0]
        chance = (1 - options.weight) * bag / max(float(bag.sum()), 1.0)
        chance[words] += options.weight * counts / max(float(counts.sum()), 1.0)
        return chance


def class_of(word: str) -> int:
    """Return the class of a word: one for each last letter."""
    return ord(word[-1]) % 64


def classes(words: tuple[str, ...], counts: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the class of each known word, and its share of the class."""
    found = np.array([class_of(word) for word in words], np.int64)
    return found, counts / np.bincount(found, counts, 64)[found]


class ClassBigram(gd.CountedModel):
    """Words themselves: the class after the word before, words of the class, and words that the text has had."""

    options = Mixture

    def contexts(self, options: Mixture) -> Sequence[gd.Context]:
        """Return the word before."""
        return [gd.Context("1", (("word", 1),))]

    def probabilities(self, seen: gd.SeenWords, options: Mixture) -> Floats:
        """Return the probability of the class times that of the word in it, and more for recent words."""
        classed, share = seen.kept(classes)
        words, counts = seen.after[0]
        every = np.bincount(classed, seen.counts, 64) / seen.total
        of_class = 0.1 * every + 0.9 * (np.bincount(classed[words], counts, 64) / counts.sum() if len(words) else every)
        recent = set(seen.text[-50:])
        chance = of_class[classed] * share * [1.5 if word in recent else 1.0 for word in seen.words]
        return options.weight * chance / chance.sum()


class SparseBigram(gd.CountedModel):
    """A sparse answer: words that followed the word before; all others in proportion to their frequency."""

    options = Mixture

    def contexts(self, options: Mixture) -> Sequence[gd.Context]:
        """Return the word before."""
        return [gd.Context("1", (("word", 1),))]

    def probabilities(self, seen: gd.SeenWords, options: Mixture) -> gd.SparseProbabilities:
        """Return the mixture of the two shares."""
        words, counts = seen.after[0]
        rest = (1 - options.weight if len(words) else 1.0) / (seen.total + seen.once)
        values = rest * seen.counts[words] + options.weight * counts / max(float(counts.sum()), 1.0)
        return seen.sparse(words, values, rest)


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Options of weights by distance."""

    half_life: float = 2.0


class DecayingColumns(gd.ColumnsModel):
    """Profile v1 with one branch, and weights that halve with every few tokens of distance."""

    base = "v1"
    defaults = {"branches": 1}  # noqa: RUF012 - read only
    options = Decay

    def weights(self, distances: npt.NDArray[np.int64], specification: gd.Specification) -> Floats:
        """Return the weight of each distance."""
        return 10.0 * 0.5 ** (distances / self.options_of(specification).half_life) + 0.01


TOPIC, BAG, CLASS_BIGRAM, SPARSE_BIGRAM, DECAYING = Topic(), Bag(), ClassBigram(), SparseBigram(), DecayingColumns()
