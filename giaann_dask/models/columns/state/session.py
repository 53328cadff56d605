"""Run sequences and continue prompts token by token: the loop that the sessions of the profiles share.

A profile defines the state of a sequence and one step of it (`giaann_dask.models.columns.v1.session`,
`giaann_dask.models.columns.v2.session`). Does not cover: many prompts at once (`giaann_dask.models.columns.batch`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from giaann_dask.keys import feature_of
from giaann_dask.models.columns.state.activation import ActiveColumns, StateEntries
from giaann_dask.models.columns.state.candidates import Candidates, TokenTimes
from giaann_dask.models.columns.state.sequence import (
    Contribution,
    FlagTable,
    Observer,
    PreparedSequence,
    SequenceResult,
    StateSnapshot,
    StepResult,
    StepTrace,
)
from giaann_dask.models.generation_options import Feed
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import Specification

Choice = Callable[[int, Candidates], int]


class FeedRules(Protocol):
    """The part of the rules of inference that the loop reads."""

    @property
    def feed(self) -> Feed:
        """Source of the next step of a given sequence: its own token or the prediction."""


State = TypeVar("State")
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
    """

    feed: Feed
    choose: Choice | None = None
    traced: bool = True


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
    """

    _rules_type: type[Rules]

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: Rules | None = None,
    ) -> None:
        self.specification, self.rows, self.flags = specification, rows, flags
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
                snapshot = StateSnapshot(partial(self._entries, state))
                observer(StepTrace(result, found, snapshot))
                snapshot.expire()
            if result.next is None:
                return SequenceResult(tuple(steps), result.stop)
            source = result.next
        return SequenceResult(tuple(steps), None)

    def stream(self, prompt: PreparedSequence, tokens: int, choose: Choice | None = None) -> Iterator[StepTrace]:
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
        """
        state, source, concepts = self._begin(), int(prompt.neuron[0]), 0
        decoding = DecodingStrategy(feed="prediction", choose=choose)
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
            snapshot = StateSnapshot(partial(self._entries, state))
            yield StepTrace(result, found, snapshot, None if given else self._active_columns(state))
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

    @abstractmethod
    def _begin(self) -> State:
        """Return the state before the first step of a sequence."""

    @abstractmethod
    def _advance(
        self, state: State, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Change the state by one step; return its record and its candidates."""

    @abstractmethod
    def _entries(self, state: State) -> StateEntries | None:
        """Return a copy of the state's entries, sorted, where all of them are in this process."""

    def _active_columns(self, state: State) -> ActiveColumns | None:
        """Return the strongest columns for the trace of a prediction, where only these are known of the state."""
        return None
