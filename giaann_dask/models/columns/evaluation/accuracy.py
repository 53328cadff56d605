"""Match predictions with tokens: top-k accuracy, overall, by position and by part of speech, and code length.

A prediction is right by the rule of section 8 of the contract, "Match". The steps of tasks are counted in integers,
so that any number of tasks in any order adds up to the same. `evaluation.evaluation` distributes the tasks;
`giaann_dask.diagnostics.evaluation_report` draws pictures.

Networks of columns activate neurons and define no probabilities. The probability that a step assigns to its token is
defined as the share that its neuron has of the positive activation of all candidates, and 0 where it is no candidate.
The code length of the tokens is the sum of the negative logarithms, which is infinite as soon as one token has
probability 0. The modified form takes the mean of the probabilities first and one logarithm of it. It is finite and
compares networks of columns with each other, but it is not the length of a code and never longer than the plain form:
do not compare it with bits per byte of other language models. Profile ``contexts`` has probabilities, which are never 0
(`giaann_dask.models.contexts.scores`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import FEATURE_MASK, feature_of, unpack_neuron
from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.representations import finite
from giaann_dask.rows.source import RowStatistics
from giaann_dask.spec import PARTS_OF_SPEECH
from giaann_dask.text.blocks import plain_name
from giaann_dask.text.vocabulary import Vocabulary

NO_PREDICTION = -1
Counts = npt.NDArray[np.int64]
UNKNOWN_PART = "unknown"
_PARTS = (UNKNOWN_PART, *PARTS_OF_SPEECH)
Floats = npt.NDArray[np.float64]


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions for the tokens of some sequences, as neuron keys.

    Attributes
    ----------
    sequence : ndarray
        Number of each step's sequence; int64, shape ``(steps,)``.
    position : ndarray
        Index of the predicted token in its sequence; int64.
    predicted : ndarray
        Predicted neuron key, -1 for none; int64.
    target : ndarray
        Neuron key of the token; int64.
    surface : tuple of str
        The token's word where it is a noun, else empty.
    part : ndarray
        Part of speech of the token: its place in `giaann_dask.spec.PARTS_OF_SPEECH` counted from 1, 0
        where it is not known; uint8.
    candidates : ndarray
        How many neurons could have been predicted; int64.
    runners_up : ndarray
        The next best of them, best first, -1 where there are fewer and where nothing was predicted;
        int64, shape ``(steps, ranks - 1)``.
    tokens : int
        Tokens of the sequences, seed tokens included.
    stopped : int
        Sequences that ended before their last token.
    rows : RowStatistics or None
        How rows were come by; None where all were here.
    probability : ndarray or None
        That of each token (see `CodeLength`), float64; None where it was not asked for.
    """

    sequence: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    surface: tuple[str, ...]
    part: npt.NDArray[np.uint8]
    candidates: npt.NDArray[np.int64]
    runners_up: npt.NDArray[np.int64]
    tokens: int
    stopped: int
    rows: RowStatistics | None = None
    probability: npt.NDArray[np.float64] | None = None


def match_ranks(predictions: Predictions, vocabulary: Vocabulary, *, by_name: bool = False) -> npt.NDArray[np.int64]:
    """Return the rank of the first right candidate of each step.

    A candidate's word is the lemma of its column for the prime concept neuron, else its feature's word. It is right if
    it equals the token's word; for a noun also if it is the concept itself, so that other inflections match through
    their lemma. The column of any other token does not have to be right.

    Parameters
    ----------
    predictions : Predictions
        Steps of the prediction phase, with the runners-up of each.
    vocabulary : Vocabulary
        Dictionaries, expanded by the sequences.
    by_name : bool
        Whether a noun's word is its concept, as in profile ``v2``, and not the form it has in the text.

    Returns
    -------
    ndarray of int64
        1 for a right prediction, 0 where none of the candidates kept is right; shape ``(steps,)``.
    """
    rank = _match(predictions.predicted, predictions, vocabulary, by_name).astype(np.int64)
    for place in range(predictions.runners_up.shape[1]):
        open_yet = np.where(rank == 0, predictions.runners_up[:, place], NO_PREDICTION)
        rank[_match(open_yet, predictions, vocabulary, by_name)] = place + 2
    return rank


def _match(
    predicted: npt.NDArray[np.int64], predictions: Predictions, vocabulary: Vocabulary, by_name: bool
) -> npt.NDArray[np.bool_]:
    """Return which of some neurons, one for each step or -1 for none, are right."""
    found_column, found_feature = unpack_neuron(np.maximum(predicted, 0))
    column, feature = unpack_neuron(predictions.target)
    made = predicted != NO_PREDICTION
    noun, prime = feature == 0, found_feature == 0
    # A word is one feature, and a lemma one column; only a word of the one kind and one of the other are compared.
    right: npt.NDArray[np.bool_] = made & np.where(noun, prime & (found_column == column), found_feature == feature)
    for i in np.flatnonzero(made & ~right & (noun | prime)).tolist():
        word = plain_name(vocabulary.concepts[found_column[i]]) if prime[i] else vocabulary.features[found_feature[i]]
        concept = vocabulary.concepts[column[i]] if by_name else predictions.surface[i]
        right[i] = word == (plain_name(concept) if noun[i] else vocabulary.features[feature[i]])
    return right


def target_names(predictions: Predictions, vocabulary: Vocabulary) -> list[str]:
    """Return the word of each step's token: the form that a noun has in the text, or a feature's name."""
    column, feature = unpack_neuron(predictions.target)
    pairs = zip(column.tolist(), feature.tolist(), predictions.surface, strict=True)
    # Subwords are named by their bytes.
    name = plain_name if vocabulary.delimiter_since is None else str
    return [vocabulary.features[f] if f else name(surface or vocabulary.concepts[c]) for c, f, surface in pairs]


@dataclass(frozen=True)
class StepGroup:
    """Completed steps of the prediction phase of one group.

    Attributes
    ----------
    name : str
        What that is: indices of the predicted token as ``"10-11"``, a part of speech, or ``"all"``.
    steps : int
        How many there are.
    without_candidates : int
        Those at which no neuron could be predicted.
    matches : dict of int to int
        For every k, the steps at which one of the k best candidates was right.
    """

    name: str
    steps: int
    without_candidates: int
    matches: dict[int, int]

    def share(self, k: int) -> float:
        """Return the top-k accuracy; 0 without steps."""
        return self.matches[k] / self.steps if self.steps else 0.0

    @property
    def share_without_candidates(self) -> float:
        """Share of the steps at which no neuron could be predicted; 0 without steps."""
        return self.without_candidates / self.steps if self.steps else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, counts and shares."""
        return {
            "name": self.name,
            "steps": self.steps,
            "without_candidates": self.without_candidates,
            "share_without_candidates": self.share_without_candidates,
            "matches": {str(k): count for k, count in self.matches.items()},
            "top": {str(k): self.share(k) for k in self.matches},
        }


@dataclass(frozen=True)
class Accuracy:
    """Top-k accuracy of an evaluation.

    Attributes
    ----------
    top_k : tuple of int
        Every k, ascending; the first is 1.
    overall : StepGroup
        All completed steps.
    by_position : tuple of StepGroup
        By the index of the predicted token in its sequence, counted from 0: the first one after the
        seed tokens, the second, then twice as many in each group as in the one before. Without those
        that no step reached.
    by_part : tuple of StepGroup
        By the part of speech of the token, as tagged, most frequent first; a merged noun has that of its
        first word. Text that was encoded without parts of speech is one group, ``"unknown"``.
    """

    top_k: tuple[int, ...]
    overall: StepGroup
    by_position: tuple[StepGroup, ...]
    by_part: tuple[StepGroup, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "top_k": self.overall.as_dict()["top"],
            "without_candidates": self.overall.without_candidates,
            "share_without_candidates": self.overall.share_without_candidates,
            "by_position": [group.as_dict() for group in self.by_position],
            "by_part_of_speech": [group.as_dict() for group in self.by_part],
        }

    def lines(self) -> list[str]:
        """Return both tables for a person, aligned; a column for every k."""
        heads = [*(f"top-{k}" for k in self.top_k), "no candidates", "steps"]
        lines = []
        for title, groups in (("token", self.by_position), ("part of speech", self.by_part)):
            width = max(len(title), *(len(group.name) for group in groups)) if groups else len(title)
            lines.append(f"{title:<{width}}" + "".join(f"  {head:>{max(len(head), 7)}}" for head in heads))
            for group in groups:
                shares = [*(group.share(k) for k in self.top_k), group.share_without_candidates]
                cells = [*(f"{share:.4f}" for share in shares), f"{group.steps:,}"]
                shown = (f"  {cell:>{max(len(head), 7)}}" for cell, head in zip(cells, heads, strict=True))
                lines.append(f"{group.name:<{width}}" + "".join(shown))
        return lines


@dataclass(frozen=True, eq=False)
class StepCounts:
    """Integer counts of steps; those of all tasks are added up.

    Attributes
    ----------
    by_position, by_part : ndarray
        By the index of the token, and by the number of its part of speech; int64, shape
        ``(groups, ranks + 2)``: steps without a right candidate among the best, those whose first right
        one is at each rank, and at last those without candidates, which the first counts too.
    """

    by_position: Counts
    by_part: Counts

    @classmethod
    def empty(cls, ranks: int) -> StepCounts:
        """Return the counts of no step."""
        return cls(np.zeros((0, ranks + 2), np.int64), np.zeros((len(_PARTS), ranks + 2), np.int64))

    @classmethod
    def of(cls, predictions: Predictions, rank: Counts) -> StepCounts:
        """Return the counts of some steps.

        Parameters
        ----------
        predictions : Predictions
            The steps.
        rank : ndarray
            Where the first right candidate is, 0 for none (see `match_ranks`); int64.
        """
        ranks, position = predictions.runners_up.shape[1] + 1, predictions.position
        bare = predictions.candidates == 0
        return cls(
            _count(position, int(position.max(initial=-1)) + 1, rank, bare, ranks),
            _count(predictions.part.astype(np.int64), len(_PARTS), rank, bare, ranks),
        )

    def __add__(self, other: StepCounts) -> StepCounts:
        """Return the counts of both."""
        longer, shorter = sorted((self.by_position, other.by_position), key=len, reverse=True)
        by_position = longer.copy()
        by_position[: len(shorter)] += shorter
        return StepCounts(by_position, self.by_part + other.by_part)

    def accuracy(self, top_k: Sequence[int], seed_tokens: int) -> Accuracy:
        """Return the report of these counts.

        Parameters
        ----------
        top_k : sequence of int
            Every k, ascending, none above the ranks that were counted.
        seed_tokens : int
            Tokens at the beginning of a sequence that are not predicted.
        """
        positions = [
            (str(first) if last == first + 1 else f"{first}-{last - 1}", self.by_position[first:last].sum(0))
            for first, last in position_groups(seed_tokens, len(self.by_position))
        ]
        order = np.argsort(-self.by_part[:, :-1].sum(1), kind="stable").tolist()
        parts = [(_PARTS[part], self.by_part[part]) for part in order]
        return Accuracy(
            tuple(top_k),
            _group("all", self.by_part.sum(0), top_k),
            tuple(_group(name, row, top_k) for name, row in positions if row[:-1].any()),
            tuple(_group(name, row, top_k) for name, row in parts if row[:-1].any()),
        )


def position_groups(seed_tokens: int, positions: int) -> Iterator[tuple[int, int]]:
    """Yield the first index of every group of predicted tokens and the one after its last.

    Examples
    --------
    >>> list(position_groups(8, 20))
    [(8, 9), (9, 10), (10, 12), (12, 16), (16, 24)]
    """
    first, size = seed_tokens, 1
    while first < positions:
        yield first, first + size
        first += size
        size = first - seed_tokens


def _count(group: Counts, groups: int, rank: Counts, bare: npt.NDArray[np.bool_], ranks: int) -> Counts:
    """Return a table of `StepCounts`."""
    cells = np.bincount(group * (ranks + 1) + rank, minlength=groups * (ranks + 1)).reshape(groups, ranks + 1)
    return np.column_stack([cells, np.bincount(group[bare], minlength=groups)]).astype(np.int64)


def _group(name: str, row: Counts, top_k: Sequence[int]) -> StepGroup:
    right = row[1:-1].cumsum()
    return StepGroup(name, int(row[:-1].sum()), int(row[-1]), {k: int(right[k - 1]) for k in top_k})


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


def token_probability(candidates: Candidates, target: int, *, by_word: bool = False) -> float:
    """Return the share that a neuron has of the positive activation of all candidates of a step.

    Parameters
    ----------
    candidates : Candidates
        Neurons ascending, with their values.
    target : int
        Neuron key of the token.
    by_word : bool
        Whether the neurons of its word in other columns count, too.

    Examples
    --------
    >>> word = Candidates(np.array([7, (2 << 25) | 7]), np.float32([1, 3]))
    >>> token_probability(word, 7), token_probability(word, 7, by_word=True)
    (0.25, 1.0)
    """
    neuron, value = candidates.neuron, np.maximum(candidates.value.astype(np.float64), 0.0)
    feature = feature_of(target)
    right = neuron & FEATURE_MASK == feature if by_word and feature else neuron == target
    # Sums of exact terms, so that they do not depend on how an array is summed.
    total = math.fsum(value)
    return math.fsum(value[right]) / total if total else 0.0


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
