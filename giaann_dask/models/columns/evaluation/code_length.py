"""Compute the code length of a text by a network of columns, in bits per byte.

Networks of columns activate neurons and define no probabilities. The probability that a step assigns to its token is
defined as the share that its neuron has of the positive activation of all candidates, and 0 where it is no candidate.
The code length of the tokens is the sum of the negative logarithms, which is infinite as soon as one token has
probability 0. The modified form takes the mean of the probabilities first and one logarithm of it. It is finite and
compares networks of columns with each other, but it is not the length of a code and never longer than the plain form:
do not compare it with bits per byte of other language models.

Profile ``best`` has probabilities, which are never 0 (`giaann_dask.models.contexts.scores`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.models.columns.state.candidates import Candidates
from giaann_dask.representations import finite

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CodeLength:
    """Bits per byte of some tokens.

    Attributes
    ----------
    tokens, impossible : int
        How many there are, and how many of them had probability 0.
    nbytes : int
        UTF-8 bytes of the tokens; words are counted with a space each.
    mean_probability : float
        Mean of the probabilities.
    bits_per_byte, modified_bits_per_byte : float
        The plain and the modified form; infinite where a logarithm of 0 takes part, 0 without tokens.

    Examples
    --------
    >>> found = CodeLength.of(np.array([0.5, 0.125]), 2)
    >>> found.mean_probability, found.bits_per_byte, round(found.modified_bits_per_byte, 3)
    (0.3125, 2.0, 1.678)
    >>> CodeLength.of(np.array([0.5, 0.0]), 2).line()
    'inf (1 of 2 tokens had probability 0); modified 2.000, no code length'
    """

    tokens: int
    impossible: int
    nbytes: int
    mean_probability: float
    bits_per_byte: float
    modified_bits_per_byte: float

    @classmethod
    def of(cls, probability: Floats, nbytes: int) -> CodeLength:
        """Return the bits per byte of tokens with these probabilities; the same in any order."""
        tokens, impossible = len(probability), int((probability == 0).sum())
        if not tokens:
            return cls(0, 0, nbytes, 0.0, 0.0, 0.0)
        mean = math.fsum(probability) / tokens
        plain = math.inf if impossible else math.fsum(-np.log2(probability)) / nbytes
        modified = -math.log2(mean) * tokens / nbytes if mean else math.inf
        return cls(tokens, impossible, nbytes, mean, plain, modified)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, with None for infinity."""
        return {name: finite(value) for name, value in asdict(self).items()}

    def line(self) -> str:
        """Return one line for a person."""
        impossible = f"{self.impossible:,} of {self.tokens:,} tokens had probability 0"
        return f"{self.bits_per_byte:.3f} ({impossible}); modified {self.modified_bits_per_byte:.3f}, no code length"


def token_probability(candidates: Candidates, target: int) -> float:
    """Return the share that a neuron has of the positive activation of all candidates of a step.

    Parameters
    ----------
    candidates : Candidates
        Neurons ascending, with their values.
    target : int
        Neuron key of the token.
    """
    neuron, weight = candidates.neuron, candidates.value
    place = int(np.searchsorted(neuron, target))
    if place == len(neuron) or neuron[place] != target:
        return 0.0
    value = np.maximum(weight.astype(np.float64), 0.0)
    # A sum of exact terms, so that it does not depend on how an array is summed.
    total = math.fsum(value)
    return float(value[place] / total) if total else 0.0


def token_bytes(names: Sequence[str], subwords: bool) -> int:
    """Return the UTF-8 bytes of tokens by their names in the dictionaries.

    Parameters
    ----------
    names : sequence of str
        Words, or subwords as `giaann_dask.text.tokenizer` names them.
    subwords : bool
        Subwords hold their spaces; a word is counted with one, and so is each part of a merged noun.

    Examples
    --------
    >>> token_bytes(["the", "pine_tree"], False), token_bytes([" the", "<byte:e282>"], True)
    (14, 6)
    """
    if not subwords:
        return sum(len(name.encode("utf-8", "surrogatepass")) + 1 for name in names)
    return sum(_subword_bytes(name) for name in names)


def _subword_bytes(name: str) -> int:
    """Return the bytes of a subword, which is named in hexadecimal where it is no text by itself."""
    if name.startswith("<byte:") and name.endswith(">"):
        return (len(name) - len("<byte:>")) // 2
    return len(name.encode("utf-8", "surrogatepass"))
