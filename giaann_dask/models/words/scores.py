"""Add up the scores of the tokens of a text: accuracy, perplexity and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import Integers
from giaann_dask.representations import finite, format_float

Floats = npt.NDArray[np.float64]

# Words that were more probable than the one that came are counted so far.
MOST_RANK = 1000


@register_arrays
@dataclass(frozen=True, eq=False)
class TextScores:
    """Scores of the tokens of a text.

    Attributes
    ----------
    log_probability : ndarray
        Natural logarithm of each token's probability, float64, shape ``(tokens,)``.
    matches : ndarray
        Whether the most probable word came, bool, same shape.
    nbytes : ndarray
        UTF-8 bytes of each token and of one space, int64, same shape.
    place : ndarray
        Place of each token in its sentence, int64, same shape.
    document : ndarray
        Number of each token's record, or of its file where that has no records; int64, same shape.
    known : ndarray
        Whether the word is in the vocabulary, bool, same shape.
    rank : ndarray
        How many words were more probable, `MOST_RANK` at most; int64, same shape.
    """

    log_probability: Floats
    matches: npt.NDArray[np.bool_]
    nbytes: Integers
    place: Integers
    document: Integers
    known: npt.NDArray[np.bool_]
    rank: Integers

    def top_k(self, k: int, seed_tokens: int = 0) -> float:
        """Return the share of tokens, after the first ones of each sentence, among the k most probable words."""
        return float((self.rank[self.place >= seed_tokens] < k).mean())

    def summary(self, seed_tokens: int = 0) -> ScoreSummary:
        """Return the sums over the tokens after the first ones of each sentence.

        Raises
        ------
        EmptyInputError
            If there is no such token.
        """
        chosen = self.place >= seed_tokens
        tokens = int(chosen.sum())
        if not tokens:
            raise EmptyInputError("no token to score", f"sentences of more than {seed_tokens} tokens", "add some text")
        return ScoreSummary(
            tokens=tokens,
            matches=int(self.matches[chosen].sum()),
            unknown=int((~self.known[chosen]).sum()),
            nats=math.fsum(-self.log_probability[chosen]),
            nbytes=int(self.nbytes[chosen].sum()),
        )

    def by_record(self, records: int, seed_tokens: int = 0) -> dict[str, Any]:
        """Return the sums of `summary` for each record, by name, each of shape ``(records,)``; 0 without a token."""
        chosen = self.place >= seed_tokens
        values = {
            "tokens": np.ones(len(self.place)),
            "matches": self.matches,
            "unknown": ~self.known,
            "nbytes": self.nbytes,
        }
        document = self.document[chosen]
        found = {name: np.bincount(document, each[chosen], records).astype(np.int64) for name, each in values.items()}
        return {**found, "nats": np.bincount(document, -self.log_probability[chosen], records)}


@dataclass(frozen=True)
class ScoreSummary:
    """Sums over scored tokens.

    Attributes
    ----------
    tokens, matches, unknown : int
        All tokens, those predicted right, and those that are not in the vocabulary.
    nats : float
        Sum of the negative natural logarithms of their probabilities, spelling included.
    nbytes : int
        UTF-8 bytes of the tokens, and a space for each.
    """

    tokens: int
    matches: int
    unknown: int
    nats: float
    nbytes: int

    @property
    def log_probability(self) -> float:
        """Natural logarithm of the probability of all tokens."""
        return -self.nats

    @property
    def top1(self) -> float:
        """Share of tokens predicted right."""
        return self.matches / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity per token; unknown words cost their spelling, so it is comparable.

        Infinite where a token costs more nats than a float has room for, 709.7, as very long words do.
        """
        try:
            return math.exp(self.nats / self.tokens)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the scored tokens, a space counted for each."""
        return self.nats / math.log(2) / self.nbytes

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, with None for an infinite perplexity."""
        counts = {name: getattr(self, name) for name in ("tokens", "matches", "unknown", "top1")}
        return {**counts, "perplexity": finite(self.perplexity), "bits_per_byte": self.bits_per_byte}

    @property
    def shown_perplexity(self) -> str:
        """Perplexity for a person.

        Examples
        --------
        >>> [ScoreSummary(1, 0, 0, nats, 100).shown_perplexity for nats in (6.0, 1000.0)]
        ['403.4', 'infinite (1,000 nats per token)']
        """
        shown = format_float(self.perplexity)
        return f"{shown} ({self.nats / self.tokens:,.0f} nats per token)" if math.isinf(self.perplexity) else shown

    @property
    def costs(self) -> str:
        """Perplexity and bits per byte for a person, as one phrase."""
        return f"perplexity {self.shown_perplexity}, {self.bits_per_byte:.3f} bits per byte"


def join_scores(parts: Sequence[TextScores]) -> TextScores:
    """Return the scores of the stretches of a text, in order, as those of the whole."""
    no, none = np.zeros(0, np.bool_), np.zeros(0, np.int64)
    every = (TextScores(np.zeros(0), no, none, none, none, no, none), *parts)
    return TextScores(*(np.concatenate([getattr(part, each.name) for part in every]) for each in fields(TextScores)))


def token_bytes(words: Sequence[str]) -> Integers:
    """Return the UTF-8 bytes of each word and of one space; int64."""
    return np.array([len(word.encode("utf-8", "surrogatepass")) + 1 for word in words], np.int64)
