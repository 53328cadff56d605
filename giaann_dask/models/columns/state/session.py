"""Run sequences and continue prompts token by token: the loop that the sessions of the profiles share, and its values.

The values are prepared sequences, stored flags, steps, traces and results. A profile defines the state of a sequence
and one step of it (`giaann_dask.models.columns.v1.session`, `giaann_dask.models.columns.v2.session`). Does not cover:
many prompts at once (`giaann_dask.models.columns.batch`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError, PromptError, StateTooLargeError
from giaann_dask.keys import feature_of
from giaann_dask.models.columns.state.activation import Candidates, StateEntries, TokenTimes
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.word_rows import WordRows
from giaann_dask.models.generation_options import Feed
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import Specification
from giaann_dask.text.attachments import Attachments

Mode = Literal["delimiter", "internal"]
StopReason = Literal["no connections", "no candidates", "rejected"]
Choice = Callable[[int, Candidates], int]


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedSequence:
    """The tokens of one sentence or prompt, segmented into concept columns.

    Attributes
    ----------
    neuron : ndarray
        Target neuron key of each token, int64, shape ``(tokens,)``.
    noun : ndarray
        Whether each token is a noun, bool, shape ``(tokens,)``.
    number : int
        Sequence number, which decides the flags that hold (see `FlagTable`).

    Raises
    ------
    PromptError
        If there is no token, or the two arrays differ in length.
    """

    neuron: npt.NDArray[np.int64]
    noun: npt.NDArray[np.bool_]
    number: int

    def __post_init__(self) -> None:
        if len(self.neuron) == 0 or len(self.neuron) != len(self.noun):
            raise PromptError(
                f"a prepared sequence with {len(self.neuron)} neurons and {len(self.noun)} noun marks",
                "one of each per token and at least one token",
                "prepare it with the text layer",
            )

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.neuron)


@dataclass(frozen=True, eq=False)
class FlagTable:
    """The stored delimiter flags of all features, and since when they hold.

    Attributes
    ----------
    delimiter : ndarray
        D flag, fixed by a feature's first occurrence; bool, shape ``(features,)``.
    probable_since : ndarray
        Number of the first sequence for which the P flag is set, -1 for never; int64, shape
        ``(features,)``.
    delimiter_since : ndarray, optional
        The same of the D flag, where it can be set later than at the first occurrence, as that of
        subwords; then `delimiter` is not read.
    auxiliary : Attachments, optional
        Auxiliary source neurons of the features, where rules of inference ask for them.
    pooled : WordRows, optional
        What follows each word in all columns, where rules of inference ask for it.
    order : NameOrder
        Which of equally active neurons is the first: by name where the network does not depend on the order of its
        text.
    """

    delimiter: npt.NDArray[np.bool_]
    probable_since: npt.NDArray[np.int64]
    delimiter_since: npt.NDArray[np.int64] | None = None
    auxiliary: Attachments | None = None
    pooled: WordRows | None = None
    order: NameOrder = field(default_factory=NameOrder)

    def mode(self, feature: int, number: int) -> Mode | None:
        """Return the mode that a source's feature sets in a sequence (contract, section 8.2).

        Examples
        --------
        >>> FlagTable(np.array([False, False]), np.array([-1, 3])).mode(1, 2)
        'internal'
        """
        since = self.delimiter_since
        if self.delimiter[feature] if since is None else 0 <= since[feature] <= number:
            return "delimiter"
        return None if 0 <= self.probable_since[feature] <= number else "internal"

    def delimit(self, features: npt.NDArray[np.int64], number: int) -> npt.NDArray[np.bool_]:
        """Return which features have either flag in a sequence, bool, of the shape of `features`.

        Examples
        --------
        >>> FlagTable(np.array([False, False, True]), np.array([-1, 3, -1])).delimit(np.array([0, 1, 2]), 3)
        array([False,  True,  True])
        """
        since = self.probable_since[features]
        flagged: npt.NDArray[np.bool_] = (since >= 0) & (since <= number)
        if self.delimiter_since is None:
            return flagged | self.delimiter[features]
        since = self.delimiter_since[features]
        return flagged | ((since >= 0) & (since <= number))


def revise(result: StepResult, found: Candidates | None, flags: FlagTable) -> tuple[StepResult, Candidates | None]:
    """Add to a step the candidates that its word has in every column; return the step and all of its candidates.

    The step predicts the best of them. Without a table of words (`FlagTable.pooled`) it is as it was.
    """
    candidates = None if flags.pooled is None else flags.pooled.candidates(result.source, found, flags.order)
    if candidates is None:
        return result, found
    best = int(candidates.neuron[candidates.best])
    revised = replace(
        result,
        candidates=len(candidates),
        ties=len(candidates.ties),
        value=float(candidates.value[candidates.best]),
        predicted=best,
        stop=None,
        next=best,
    )
    return revised, candidates


@dataclass(frozen=True, eq=False, kw_only=True)
class PrefixColumns:
    """Columns of the first tokens of a sequence, as they are from one concept up to the next.

    Attributes
    ----------
    sequence : PreparedSequence
        The tokens up to the next concept, that included, which is in its own column, or up to the last token.
    begin : int
        First token whose neuron differs from that of the columns before; 0 for the first columns.
    first : int
        First token that these columns predict, of those after the concept and the seed.
    flags : FlagTable
        Stored flags that hold here.
    """

    sequence: PreparedSequence
    begin: int
    first: int
    flags: FlagTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Record of one step.

    Attributes
    ----------
    index : int
        Index of the token that the step predicts.
    seed : bool
        Whether the step belongs to the seed phase, which predicts nothing.
    source : int
        Neuron key of the source.
    column_time : int
        Number of noun tokens up to and including the source's token.
    activity : int or None
        Number of active branches of the source; None in the first step.
    mode : {"delimiter", "internal"} or None
        Of the prediction phase; None also when the step stopped before.
    candidates, ties : int
        Number of candidates, and of those with the largest value.
    value : float or None
        The largest value.
    predicted : int or None
        Neuron key that was predicted.
    stop : {"no connections", "no candidates", "rejected"} or None
        Why nothing was predicted. With fed predictions the sequence ends there.
    next : int or None
        Neuron key of the next source; None when the sequence ends at this step for lack of a
        prediction.
    """

    index: int
    seed: bool
    source: int
    column_time: int
    activity: int | None = None
    mode: Mode | None = None
    candidates: int = 0
    ties: int = 0
    value: float | None = None
    predicted: int | None = None
    stop: StopReason | None = None
    next: int | None = None

    @property
    def end(self) -> StopReason | None:
        """Why the sequence ends at this step; None where it goes on or is complete."""
        return self.stop if self.next is None else None


class StateSnapshot:
    """Copies the state of a sequence when it is asked for, until the next step changes the state.

    Parameters
    ----------
    take : callable
        Returns a copy of the state's entries.
    """

    def __init__(self, take: Callable[[], StateEntries]) -> None:
        self._take: Callable[[], StateEntries] | None = take

    def __call__(self) -> StateEntries:
        """Return a copy of the entries; see `StepTrace.state` for errors."""
        if self._take is None:
            raise OptionError(
                "the state of a step that others have followed",
                "a trace whose state is read before the next step",
                "read it in the observer, or before the next step is drawn",
            )
        return self._take()

    def expire(self) -> None:
        """Refuse all later requests."""
        self._take = None


@dataclass(frozen=True, eq=False, slots=True)
class StepTrace:
    """A step with its tensors: the candidates, if any, and on request the state after the step.

    Attributes
    ----------
    result : StepResult
        Record of the step.
    candidates : Candidates or None
        The neurons that could be predicted.
    snapshot : StateSnapshot or None
        Copies the state. None where no more of it is known than the step needed
        (`giaann_dask.models.columns.v1.pull_batch`).
    """

    result: StepResult
    candidates: Candidates | None
    snapshot: StateSnapshot | None = None

    @property
    def state(self) -> StateEntries | None:
        """Copy of the state after the step, made at every request; None where the trace has none.

        Raises
        ------
        OptionError
            If the next step was begun already: it changes the state in place.
        """
        return None if self.snapshot is None else self.snapshot()


Observer: TypeAlias = Callable[[StepTrace], None]


@dataclass(frozen=True, eq=False)
class SequenceResult:
    """All steps of one sequence; the last one may have ended it early.

    Attributes
    ----------
    steps : tuple of StepResult
        In order, the seed phase included.
    stop : {"no connections", "no candidates", "rejected"} or None
        Why the sequence ended before its last token; None when it did not.
    """

    steps: tuple[StepResult, ...]
    stop: StopReason | None


@dataclass(frozen=True, slots=True)
class Contribution:
    """A connection that raised a neuron's value.

    Attributes
    ----------
    step : int
        Index of the step in which it did.
    source : int
        Neuron key of the step's source.
    segment, branch : int
        Where the connection ends.
    strength : float
        Its trained strength, which inference does not weigh.
    contribution : float
        By how much it raised the entry there, before any penalty for time.
    """

    step: int
    source: int
    segment: int
    branch: int
    strength: float
    contribution: float


class ChangingState(Protocol):
    """State of one sequence, changed in place by its steps."""

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""

    def entries(self) -> StateEntries:
        """Return a copy of the entries, sorted."""


class FeedRules(Protocol):
    """The part of the rules of inference that the loop reads."""

    @property
    def feed(self) -> Feed:
        """Source of the next step of a given sequence: its own token or the prediction."""


State = TypeVar("State", bound=ChangingState)
Rules = TypeVar("Rules", bound=FeedRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Known properties of the token that a step predicts.

    Attributes
    ----------
    times : TokenTimes
        Times of the token.
    source_column : int
        Number of concept tokens up to and including the source's.
    seed : bool
        Whether the token is given and not predicted.
    target : int or None
        Neuron key of the token; None after a prompt.
    number : int
        Number of the sequence, which decides the flags that hold.
    """

    times: TokenTimes
    source_column: int
    seed: bool
    target: int | None
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingStrategy:
    """Rules by which a step chooses the candidate to predict and the next source.

    Attributes
    ----------
    feed : {"prediction", "target"}
        What is fed to the next step.
    choose : callable, optional
        Returns the position of the candidate to predict, given a step's index and candidates; by default the best.
    traced : bool
        Whether the candidates are needed in the trace.
    pooled : bool
        Whether a source is its word in every column, too (`revise`).
    """

    feed: Feed
    choose: Choice | None = None
    traced: bool = True
    pooled: bool = False


class SequenceSession(ABC, Generic[State, Rules]):
    """Advances one sequence at a time over a network that does not change.

    A session holds no state of a sequence: its methods are given the state, and change it in place, so one session may
    serve any number of sequences.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key, with their strengths where the rules read them.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    options : InferenceOptions or V2Options, optional
        Rules of inference; by default those of the profile.
    state_bytes : int, optional
        Largest state of a sequence, in bytes; by default there is no limit.
    """

    _rules_type: type[Rules]

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: Rules | None = None,
        state_bytes: int | None = None,
    ) -> None:
        self.specification, self.rows, self.flags = specification, rows, flags
        self._state_bytes = state_bytes
        self.options = options or self._rules_type()

    def run_sequence(
        self, sequence: PreparedSequence, *, observer: Observer | None = None, choose: Choice | None = None
    ) -> SequenceResult:
        """Predict every token of a sequence after the seed tokens.

        Parameters
        ----------
        sequence : PreparedSequence
            The sequence. One that does not go beyond the seed tokens has no prediction.
        observer : callable, optional
            Called with the `StepTrace` of every step.
        choose : callable, optional
            Called with a step's index and candidates, returns the position of the one to predict, for following a
            record that resolves ties in another way.

        Returns
        -------
        SequenceResult
        """
        columns = [0, *np.cumsum(sequence.noun).tolist()]
        decoding = DecodingStrategy(feed=self.options.feed, choose=choose, traced=observer is not None)
        state, source = self._begin(), int(sequence.neuron[0])
        steps: list[StepResult] = []
        for index, target in enumerate(sequence.neuron.tolist()):
            token = Token(
                times=TokenTimes(feature_time=index, column_time=columns[index + 1]),
                source_column=columns[index],
                seed=index < self.specification.seed_tokens,
                target=target,
                number=sequence.number,
            )
            result, found = self._advance(state, source, token, decoding)
            steps.append(result)
            if observer is not None:
                snapshot = StateSnapshot(state.entries)
                observer(StepTrace(result, found, snapshot))
                snapshot.expire()
            if result.next is None:
                return SequenceResult(tuple(steps), result.stop)
            source = result.next
        return SequenceResult(tuple(steps), None)

    def stream(
        self, prompt: PreparedSequence, tokens: int, choose: Choice | None = None, *, pooled: bool = False
    ) -> Iterator[StepTrace]:
        """Yield the steps of a prompt and of tokens after it, feeding each prediction to the next step.

        All tokens of the prompt are seed tokens, however many there are. The contract defines steps of sequences
        whose concept tokens are given. Beyond the prompt a candidate that is a concept's own neuron is timed as a
        concept token, any other is not, and the number of concept tokens grows with every concept that is predicted.

        Parameters
        ----------
        prompt : PreparedSequence
            The tokens given.
        tokens : int
            Number of tokens to predict. A step without a next source is the last one.
        choose : callable, optional
            As in `run_sequence`.
        pooled : bool
            Whether sources after the prompt are their words in every column, too.

        Raises
        ------
        StateTooLargeError
            If the state exceeds its limit.
        """
        state, source, concepts = self._begin(), int(prompt.neuron[0]), 0
        decoding = DecodingStrategy(feed="prediction", choose=choose, pooled=pooled)
        for index in range(len(prompt) + tokens):
            given = index < len(prompt)
            concept = given and bool(prompt.noun[index])
            token = Token(
                times=TokenTimes(feature_time=index, column_time=concepts + concept, open_noun=not given),
                source_column=concepts,
                seed=given,
                target=int(prompt.neuron[index]) if given else None,
                number=prompt.number,
            )
            result, found = self._advance(state, source, token, decoding)
            self._require_size(state)
            snapshot = StateSnapshot(state.entries)
            yield StepTrace(result, found, snapshot)
            snapshot.expire()
            if result.next is None:
                return
            source = result.next
            concepts += concept if given else feature_of(source) == 0

    @abstractmethod
    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised the neuron predicted by a step and were not deactivated since.

        Parameters
        ----------
        steps : tuple of StepResult
            Of a `SequenceResult` or a stream of this session.
        index : int
            Index of the step to explain.

        Returns
        -------
        tuple of Contribution
            In the order of the steps; empty when the step predicted nothing. A connection that raised nothing is
            left out, and so is one to a branch that was deactivated later.
        """

    @property
    @abstractmethod
    def new_state(self) -> Callable[[], State]:
        """Called without arguments, returns the state before the first step of a sequence."""

    def _begin(self) -> State:
        return self.new_state()

    @abstractmethod
    def _advance(
        self, state: State, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Change the state by one step; return its record and its candidates."""

    def _require_size(self, state: State) -> None:
        if self._state_bytes is not None and state.nbytes > self._state_bytes:
            raise StateTooLargeError(
                f"the activation of the prompt takes {state.nbytes:,} bytes",
                f"at most {self._state_bytes:,}",
                "give a shorter prompt, raise state_bytes, or prune the network",
                names=("state_bytes",),
            )
