"""Predict words by skip-bigrams: counts of each word after the words 1, 2, 3 or more tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import giaann_dask as gd


@dataclass(frozen=True, kw_only=True)
class SkipBigramOptions:
    """Options of skip-bigrams.

    Parameters
    ----------
    reach : int
        Distance of the farthest word that counts.
    backoff : float
        Share of the probability that each distance leaves to those farther away.
    """

    reach: int = 3
    backoff: float = 0.1

    def __post_init__(self) -> None:
        if not (1 <= self.reach <= 30 and 0 < self.backoff < 1):
            raise ValueError(f"reach {self.reach}, backoff {self.backoff}; expected 1 to 30, and between 0 and 1")


class SkipBigrams(gd.CountedModel):
    """Skip-bigrams, the nearest word first, with one backoff to the next distance and to the counts of words."""

    options = SkipBigramOptions

    def contexts(self, options: SkipBigramOptions) -> Sequence[gd.Context]:
        """Return a context for each distance."""
        return [gd.Context(str(distance), (("word", distance),)) for distance in range(1, options.reach + 1)]

    def probabilities(self, seen: gd.SeenWords, options: SkipBigramOptions) -> npt.NDArray[np.float64]:
        """Return the probability of each known word; an unknown one has the share of words that occur once."""
        once = max(int((seen.counts == 1).sum()), 1)
        chance = seen.counts / (seen.counts.sum() + once)
        for words, counts in reversed(seen.after):
            if len(words):
                chance = options.backoff * chance
                chance[words] += (1 - options.backoff) * counts / counts.sum()
        return chance


MODEL = SkipBigrams()
