"""One sequence, step by step, however its state is kept.

Covers: section 8 of the contract for one sequence at a time: the order of the sub-steps, the modes,
the choice, what is fed to the next step, and the record of every step.
Does not cover: how the activation of neurons is known: by pushing whole rows into one state
(`session`), or by replaying the history of neurons that can win
(`v1.kernels`, which follows these rules in compiled code).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from giaann_dask.inference.rows.source import RowSource, as_tensor
from giaann_dask.inference.state.activation import ActivationState, ActiveColumns, Layout, Pulse
from giaann_dask.inference.state.candidates import Candidates, TokenTimes, connected_targets
from giaann_dask.inference.state.options import Feed, InferenceOptions
from giaann_dask.inference.state.sequence import (
    FlagTable,
    Generation,
    Mode,
    Observer,
    PreparedSequence,
    SequenceResult,
    StepResult,
    StepTrace,
)
from giaann_dask.keys import column_of, feature_of
from giaann_dask.spec import FEATURE_BITS, Specification

Choice = Callable[[int, Candidates], int]
State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """Known properties of the token that a step predicts."""

    times: TokenTimes
    seed: bool
    target: int | None
    source_column_time: int
    number: int


class Stepper(ABC, Generic[State]):
    """Advances one sequence at a time over a network that does not change.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    options : InferenceOptions, optional
        Rules of inference.
    device : torch.device, optional
        Where values are computed.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: InferenceOptions | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.specification = specification
        self.rows = rows
        self.flags = flags
        self.options = options or InferenceOptions()
        self.device = device or torch.device("cpu")
        self._layout = Layout.of(specification, self.device)

    @torch.inference_mode()
    def run_sequence(
        self, sequence: PreparedSequence, *, observer: Observer | None = None, choose: Choice | None = None
    ) -> SequenceResult:
        """Predict every token of a sentence after the seed tokens.

        Parameters
        ----------
        sequence : PreparedSequence
            The sentence. Sentences that do not go beyond the seed tokens have no prediction.
        observer : callable, optional
            Called with the `StepTrace` of every step.
        choose : callable, optional
            Called with a step's index and candidates, returns the position of the one to
            predict; for following a record that resolves ties in another way.

        Returns
        -------
        SequenceResult
        """
        column_times = np.cumsum(sequence.noun).tolist()
        seeds = self.specification.seed_tokens
        state, source = self._begin(), int(sequence.neuron[0])
        steps: list[StepResult] = []
        for index, target in enumerate(sequence.neuron.tolist()):
            token = _Token(
                times=TokenTimes(feature_time=index, column_time=column_times[index]),
                seed=index < seeds,
                target=target,
                source_column_time=column_times[index - 1] if index else 0,
                number=sequence.number,
            )
            result, found, state = self._advance(state, source, token, self.options.feed, choose)
            steps.append(result)
            if observer is not None:
                observer(StepTrace(result, found, self._shown(state)))
            if result.next is None:
                return SequenceResult(tuple(steps), result.stop)
            source = result.next
        return SequenceResult(tuple(steps), None)

    @torch.inference_mode()
    def generate(self, prompt: PreparedSequence, tokens: int, *, observer: Observer | None = None) -> Generation:
        """Predict tokens after a prompt, feeding each prediction to the next step.

        All tokens of the prompt are seed tokens, however many there are. The contract knows
        sentences only whose nouns are given; beyond the prompt we go on like this: a candidate
        that is a concept's own neuron is timed as a noun, any other as none, and the running
        number of columns grows with every concept that is predicted.

        Parameters
        ----------
        prompt : PreparedSequence
            The tokens given.
        tokens : int
            Number of tokens to predict.
        observer : callable, optional
            Called with the `StepTrace` of every step.

        Returns
        -------
        Generation
        """
        return Generation.of(prompt, self.stream(prompt, tokens), observer)

    @torch.inference_mode()
    def stream(self, prompt: PreparedSequence, tokens: int) -> Iterator[StepTrace]:
        """Yield the steps of `generate` one by one, those of the prompt included.

        Parameters
        ----------
        prompt : PreparedSequence
            The tokens given.
        tokens : int
            Number of tokens to predict. A step without a next source is the last one.
        """
        state, source = self._begin(), int(prompt.neuron[0])
        nouns = 0
        for index in range(len(prompt) + tokens):
            given = index < len(prompt)
            noun = given and bool(prompt.noun[index])
            token = _Token(
                times=TokenTimes(feature_time=index, column_time=nouns + noun, open_noun=not given),
                seed=given,
                target=int(prompt.neuron[index]) if given else None,
                source_column_time=nouns,
                number=prompt.number,
            )
            result, found, state = self._advance(state, source, token, "prediction", None)
            yield StepTrace(result, found, self._shown(state), None if result.seed else self._lit(state))
            if result.next is None:
                return
            source = result.next
            nouns += noun if given else feature_of(source) == 0

    @abstractmethod
    def _begin(self) -> State:
        """Return the state before the first step of a sequence."""

    @abstractmethod
    def _burst(self, state: State, neuron: int) -> State:
        """Return the state after a neuron was burst."""

    @abstractmethod
    def _activity(self, state: State, neuron: int) -> int:
        """Return how many branches of a neuron are active."""

    @abstractmethod
    def _propagate(self, state: State, target: Tensor, pulse: Pulse) -> State:
        """Return the state after a source's row."""

    @abstractmethod
    def _deactivate(self, state: State, neuron: int) -> State:
        """Return the state after the strongest branch of a neuron was set to 0."""

    @abstractmethod
    def _score(self, state: State, connected: Tensor, times: TokenTimes) -> Candidates | None:
        """Return which connected neurons can be predicted, with their values."""

    def _targets(self, source: int) -> Tensor:
        """Return the target keys of a source's row, ascending."""
        row = self.rows.row(source)
        if row is None:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        return as_tensor(row.target, self.device)

    def _shown(self, state: State) -> ActivationState | None:
        """Return the state for a trace, where all of it is known."""
        return None

    def _lit(self, state: State) -> ActiveColumns | None:
        """Return the strongest columns for a trace of a prediction, where the state is not known but they are."""
        return None

    def _advance(
        self, state: State, source: int, token: _Token, feed: Feed, choose: Choice | None
    ) -> tuple[StepResult, Candidates | None, State]:
        """Do one step, sub-steps 1 to 6 of section 8."""
        index = token.times.feature_time
        if index == 0:
            state = self._burst(state, source)
        # Nothing was a source before the first step, and the first token is given.
        target = self._targets(source) if index else None
        activity = self._activity(state, source) if index else None
        result = StepResult(
            index=index,
            seed=token.seed,
            source=source,
            column_time=token.source_column_time,
            activity=activity,
        )
        connected = None if token.seed or target is None else connected_targets(target, self._layout)
        if connected is not None and feed == "prediction" and not len(connected):
            return replace(result, stop="no connections"), None, state
        if activity is not None and target is not None:
            state = self._propagate(state, target, self._pulse(activity, result))
        state = self._deactivate(state, source)
        mode = self.flags.mode(feature_of(source), token.number)
        if connected is not None:
            found = self._score(state, connected, token.times)
            result = self._predict(replace(result, mode=mode), found, token, feed, choose)
            return result, found, state
        next_source = _next_target(source, token, mode)
        state = self._burst(state, next_source)
        return replace(result, next=next_source), None, state

    def _predict(
        self,
        result: StepResult,
        candidates: Candidates | None,
        token: _Token,
        feed: Feed,
        choose: Choice | None,
    ) -> StepResult:
        """Choose among the candidates and find the next source (contract, section 8.6b)."""
        if candidates is None:
            result = replace(result, stop="no candidates")
        else:
            best = candidates.best if choose is None else choose(result.index, candidates)
            top = int(candidates.neuron[best])
            rejected = result.mode == "internal" and column_of(top) != column_of(result.source)
            result = replace(
                result,
                candidates=len(candidates),
                ties=len(candidates.ties),
                value=float(candidates.value[candidates.best]),
                predicted=None if rejected else top,
                stop="rejected" if rejected else None,
            )
        next_source = result.predicted
        if feed == "target":
            next_source = _next_target(result.source, token, result.mode)
        return replace(result, next=next_source)

    def _pulse(self, activity: int, step: StepResult) -> Pulse:
        """Return what the source of a step sends."""
        return Pulse(drive=self._layout.drives[activity], column_time=step.column_time, feature_time=step.index - 1)


def _next_target(source: int, token: _Token, mode: Mode | None) -> int:
    """Return the sentence's own token as the next source.

    In internal mode it is taken in the source's column (contract, section 8.6a). A boundary's
    stored flag is never unset, so that this changes nothing for a sequence that was segmented
    with the flags of its number.
    """
    assert token.target is not None
    if mode == "internal" and column_of(token.target) != column_of(source):
        return (column_of(source) << FEATURE_BITS) | feature_of(token.target)
    return token.target
