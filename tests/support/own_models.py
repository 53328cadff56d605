"""Models of one's own that do what they should not, and one that does everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import giaann_dask as gd


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options: which fault a model has."""

    fault: str = ""
    smoothing: float = 0.1
    reach: int = 3


def last_vowel(words: tuple[str, ...]) -> str | None:
    """Return the last vowel of the words so far."""
    return next((letter for letter in reversed("".join(words)) if letter in "aeiou"), None)


def failing(words: tuple[str, ...]) -> str:
    """Fail."""
    raise LookupError("no such word")


class Model(gd.CountedModel):
    """Words after a word, after a bag of words, and after a vowel."""

    options = Options

    def contexts(self, options: Options) -> Sequence[gd.Context]:
        """Return contexts of three segments."""
        if options.fault == "contexts":
            raise KeyError("contexts")
        bag = [gd.Context("bag", (("word", distance),)) for distance in range(1, options.reach + 1)]
        vowel = failing if options.fault == "view" else last_vowel
        return [gd.Context("1", (("word", 1),)), *bag, gd.Context("vowel", ((vowel, 1), ("ending", 2)))]

    def probabilities(self, seen: gd.SeenWords, options: Options) -> Any:
        """Return shares of counts, smoothed."""
        if options.fault == "probabilities":
            return {}["nothing"]
        if options.fault == "writes":
            seen.after[0][1][:] /= 2
        if options.fault == "zero":
            return np.zeros(len(seen.counts))
        if options.fault == "ignores":
            return seen.counts / (seen.total + seen.once)
        chance = options.smoothing * seen.counts / (seen.total + seen.once)
        total = sum(counts.sum() for _, counts in seen.after)
        for words, counts in seen.after:
            chance[words] += (1 - options.smoothing) * counts / total
        return chance


class NoContexts(gd.CountedModel):
    """The most frequent word."""

    def contexts(self, options: Any) -> Sequence[gd.Context]:
        """Return none."""
        return []

    def probabilities(self, seen: gd.SeenWords, options: Any) -> Any:
        """Return shares of counts."""
        return seen.counts / (seen.total + seen.once)


MODEL, NO_CONTEXTS, NO_MODEL = Model(), NoContexts(), object()
