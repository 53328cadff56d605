"""Define the results of prediction: tokens with their candidates and reasons, and the report of an evaluation.

Does not cover: a whole continuation (`giaann_dask.predict.generation`) and tracing (`giaann_dask.tracing`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from giaann_dask.representations import Summarised

if TYPE_CHECKING:
    from giaann_dask.models.columns.evaluation.accuracy import Accuracy

BEGINNING = -1
# Contributions, natural logarithms of factors, below which a reason made no difference, and above which all of it.
LEAST_GAIN, MOST_GAIN = 1e-9, 600.0
"""Key of the beginning of a sentence as part of a context."""


class ContextPart(NamedTuple):
    """A word of a context of profile ``contexts``.

    Attributes
    ----------
    key : int
        Key of the word or of the ending; `BEGINNING` for the beginning of the sentence.
    distance : int
        Tokens from it to the target.
    is_ending : bool
        Whether the key is that of an ending.
    """

    key: int
    distance: int
    is_ending: bool


class ConnectionKey(NamedTuple):
    """Identity of a connection in a network.

    Attributes
    ----------
    source, target : int
        Neuron keys; of profile ``contexts`` those of a context and of a word.
    segment, branch : int
        Where it ends; of profile ``contexts`` the kind of context, and 0.
    context : tuple of ContextPart
        Words of the context, of profile ``contexts``.
    """

    source: int
    target: int
    segment: int
    branch: int
    context: tuple[ContextPart, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A neuron that could have been predicted.

    Attributes
    ----------
    word, column : str
        Its word, and the concept of its column; of profile ``contexts`` an empty string.
    value : float
        Its activation; of profile ``contexts`` its probability.
    """

    word: str
    column: str
    value: float


@dataclass(frozen=True, slots=True)
class ScoredWord:
    """A word of a given text with its probability after the words before it.

    Attributes
    ----------
    begin, end : int
        Where it is in the text, in characters.
    log_probability : float
        Natural logarithm of its probability.
    most_probable : bool
        Whether no other word was more probable.
    candidates : tuple of Candidate
        The most probable words at its place, best first; as many as requested.
    """

    begin: int
    end: int
    log_probability: float
    most_probable: bool
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Reason:
    """A connection that raised the chosen neuron.

    Attributes
    ----------
    word, column : str
        Its source neuron. Of profile ``contexts``, its context, and an empty string.
    position : int
        Index of the source in the prompt and its continuation; the nearest where there are several.
    segment, branch : int
        Where it ends; of profile ``contexts`` the kind of context, -1 for what was read lately.
    strength, contribution : float
        Its trained strength, and by how much it raised the neuron: of profile ``contexts`` a count, and the
        natural logarithm of the factor.
    connection : ConnectionKey or None
        The connection in the network, by which it is traced; None for what the text itself contributed.
    """

    word: str
    column: str
    position: int
    segment: int
    branch: int
    strength: float
    contribution: float
    connection: ConnectionKey | None = field(default=None, repr=False, compare=False)


class _Contributing(Protocol):
    @property
    def contribution(self) -> float: ...


_Contribution = TypeVar("_Contribution", bound=_Contributing)


def largest_contributions(reasons: Iterable[_Contribution], most: int) -> list[_Contribution]:
    """Return the reasons for a token that raised it most, the largest contribution first; equal ones in their order.

    Examples
    --------
    >>> reasons = [Reason(word, "", 0, 0, 0, 1.0, gain) for word, gain in (("a", 1.0), ("b", 2.0), ("c", 1.0))]
    >>> [reason.word for reason in largest_contributions(reasons, 2)]
    ['b', 'a']
    """
    return sorted(reasons, key=lambda reason: -reason.contribution)[:most]


class EvaluationReport(Summarised):
    """Report of how well a network predicts a text, of any model; user interfaces read nothing else.

    Models derive dataclasses from it, which add what they measure.

    Attributes
    ----------
    sequences : int
        Sentences of the text that were read.
    top1 : float
        Share of the predicted tokens that are right.
    prediction_tokens : int
        The predicted tokens.
    seconds : float
        Time from reading the text to the result, compiling included, without the start of workers.
    commit : str
        The commit that was evaluated.
    """

    sequences: int
    seconds: float
    commit: str
    if TYPE_CHECKING:
        # Not at run time: a dataclass takes a property of its base for the default of a field.
        @property
        def top1(self) -> float:
            """See the attributes."""

        @property
        def prediction_tokens(self) -> int:
            """See the attributes."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""

    @abstractmethod
    def shown(self, verbose: bool = False) -> dict[str, Any]:
        """Return the figures that a command prints, in order; when verbose, also those of interest for its speed."""

    @abstractmethod
    def lines(self) -> list[str]:
        """Return what a command prints below the figures."""

    def groups(self) -> Accuracy | None:
        """Return accuracy by groups of steps, which a picture shows; None where none was measured."""
        return None

    def rules(self) -> Mapping[str, Any]:
        """Return the rules of inference; empty where there is no choice."""
        return {}

    def omitted(self) -> Mapping[str, int]:
        """Return how many sequences were left out, by reason."""
        return {}


@dataclass(frozen=True)
class GeneratedToken:
    """A generated token with its runners-up and reasons.

    Attributes
    ----------
    word, column : str
        The word, and the concept of its column.
    candidates : tuple of Candidate
        The chosen one, then the others, best first; a chosen one that beam search preferred to them
        replaces the last of them.
    candidate_count : int
        How many there were.
    reasons : tuple of Reason
        Largest contribution first.
    """

    word: str
    column: str
    candidates: tuple[Candidate, ...]
    candidate_count: int
    reasons: tuple[Reason, ...]

    def lines(self) -> list[str]:
        """Return the token, its runners-up and its reasons for a person; without columns, values are probabilities."""
        if not self.column:
            best = ", ".join(f"{c.word} {c.value:.4f}" for c in self.candidates)
            reasons = [f"  {r.word}: seen {r.strength:,.0f} times{_raised(r.contribution)}" for r in self.reasons]
            return [self.word, f"  of {self.candidate_count} words: {best}", *reasons]
        best = ", ".join(f"{c.word} [{c.column}] {c.value:.4g}" for c in self.candidates)
        reasons = [
            f"  from {r.word} [{r.column}] at {r.position}: segment {r.segment}, branch {r.branch}, "
            f"strength {r.strength:.4g}, raised it by {r.contribution:.4g}"
            for r in self.reasons
        ]
        return [f"{self.word} [{self.column}]", f"  of {self.candidate_count} candidates: {best}", *reasons]

    def reasons_line(self) -> str:
        """Return what raised the token, largest contribution first, as one line."""
        if self.column:
            return ", ".join(f"{r.word} [{r.column}] {r.contribution:.3g}" for r in self.reasons)
        return ", ".join(f"{r.word} seen {r.strength:,.0f} times" for r in self.reasons)


def _raised(contribution: float) -> str:
    """Return how many times as probable a context made a word; nothing where it made no difference.

    Examples
    --------
    >>> _raised(0.0), _raised(0.7), _raised(706.0)
    ('', ', made it 2.01 times as probable', ', and without that it had no probability')
    """
    if abs(contribution) < LEAST_GAIN:
        return ""
    if contribution > MOST_GAIN:
        return ", and without that it had no probability"
    return f", made it {math.exp(contribution):,.3g} times as probable"
