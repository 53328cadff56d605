"""One sequence, step by step: evaluation of a given sentence and generation after a prompt.

Covers: section 8 of the contract for one sequence at a time, its record of every step, and the
explanation of a generated token by the connections that raised it.
Does not cover: the values that go in and come out (`giaann_dask.inference.sequence`), the
sentence's preparation (section 7; `giaann_dask.text`), whether a prediction counts as a match and
accuracy (`giaann_dask.inference.evaluation`), or many prompts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from giaann_dask.inference.activation import (
    ActivationState,
    Layout,
    Pulse,
    burst,
    deactivate,
    propagate,
    source_activity,
)
from giaann_dask.inference.candidates import Candidates, TokenTimes, connected_targets, score_candidates
from giaann_dask.inference.options import Feed, InferenceOptions
from giaann_dask.inference.rows import RowSource, as_tensor
from giaann_dask.inference.sequence import (
    Contribution,
    FlagTable,
    Generation,
    Mode,
    PreparedSequence,
    SequenceResult,
    StepResult,
    StepTrace,
    StopReason,
)
from giaann_dask.network.keys import unpack_target
from giaann_dask.spec import FEATURE_BITS, MAXIMUM_FEATURES, Specification

__all__ = [
    "Contribution",
    "FlagTable",
    "Generation",
    "Mode",
    "PreparedSequence",
    "SequenceResult",
    "Session",
    "StepResult",
    "StepTrace",
    "StopReason",
]

Observer = Callable[[StepTrace], None]
Choice = Callable[[int, Candidates], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """What a step is told about the token it predicts."""

    times: TokenTimes
    seed: bool
    target: int | None
    source_column_time: int
    number: int


class Session:
    """Advances one sequence at a time over a network that does not change.

    A session holds no state of a sequence: every method is a function of its arguments, so one
    session may serve any number of sequences.

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
        Where the state lives.

    Examples
    --------
    >>> from giaann_dask.inference.rows import RunRows
    >>> from giaann_dask.network.run import Run
    >>> flags = FlagTable(np.zeros(1, bool), np.full(1, -1))
    >>> session = Session(Specification(), RunRows([Run.empty()], lambda neuron: 0), flags)
    >>> prompt = PreparedSequence(neuron=np.array([0]), noun=np.array([True]), number=0)
    >>> session.generate(prompt, 3).stop
    'no connections'
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
        self._no_row = torch.zeros(0, dtype=torch.int64, device=self.device)

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
        state, source = ActivationState.empty(self.device), int(sequence.neuron[0])
        steps: list[StepResult] = []
        for index, target in enumerate(sequence.neuron.tolist()):
            token = _Token(
                times=TokenTimes(feature_time=index, column_time=column_times[index]),
                seed=index < self.specification.seed_tokens,
                target=target,
                source_column_time=column_times[index - 1] if index else 0,
                number=sequence.number,
            )
            trace = self._advance(state, source, token, self.options.feed, choose)
            steps.append(trace.result)
            if observer is not None:
                observer(trace)
            if trace.result.next is None:
                return SequenceResult(tuple(steps), trace.result.stop)
            state, source = trace.state, trace.result.next
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
        state, source = ActivationState.empty(self.device), int(prompt.neuron[0])
        steps: list[StepResult] = []
        candidates: list[Candidates | None] = []
        nouns, stop = 0, None
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
            trace = self._advance(state, source, token, "prediction", None)
            steps.append(trace.result)
            candidates.append(trace.candidates)
            if observer is not None:
                observer(trace)
            if trace.result.next is None:
                stop = trace.result.stop
                break
            state, source = trace.state, trace.result.next
            nouns += noun if given else _feature(source) == 0
        return Generation(prompt, tuple(steps), tuple(candidates), stop)

    @torch.inference_mode()
    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised what a step predicted, as far as they still counted.

        The history of one neuron does not depend on any other target, so it is replayed with the
        steps of the session, on this neuron's own entries only.

        Parameters
        ----------
        steps : tuple of StepResult
            Of a `SequenceResult` or a `Generation` of this session.
        index : int
            Index of the step to explain.

        Returns
        -------
        tuple of Contribution
            In the order of the steps; empty when the step predicted nothing. A connection that
            reached an entry already at its largest value raised nothing and is left out, and so
            is one to a branch that was deactivated later.
        """
        neuron = steps[index].predicted
        if neuron is None:
            return ()
        state = ActivationState.empty(self.device)
        found: list[Contribution] = []
        for step in steps[: index + 1]:
            if step.index == 0:
                state = burst(state, step.source, self._layout) if step.source == neuron else state
            else:
                raised, state = self._replay(state, neuron, step)
                found.extend(raised)
            if step.source == neuron:
                state = deactivate(state, neuron, self._layout)
                found = [item for item in found if self._counts(state, neuron, item)]
            if step.seed and step.next == neuron:
                state = burst(state, neuron, self._layout)
        return tuple(found)

    def _replay(
        self, state: ActivationState, neuron: int, step: StepResult
    ) -> tuple[list[Contribution], ActivationState]:
        """Push the part of a step's row that ends at one neuron; return what it raised."""
        row = self.rows.row(step.source)
        if row is None:
            return [], state
        entries = self._layout.entries(neuron).reshape(-1).sort().values.cpu().numpy()
        at = np.searchsorted(row.target, entries)
        at = at[row.target[np.minimum(at, len(row.target) - 1)] == entries]
        target = as_tensor(row.target[at], self.device)
        after = propagate(
            state, target, self._pulse(step.activity or 0, step), layout=self._layout, options=self.options
        )
        rise = (after.values(*after.find(target)) - state.values(*state.find(target))).tolist()
        segment, _, branch = unpack_target(row.target[at])
        strength = self.specification.strengths(row.strength[at])
        columns = zip(segment.tolist(), branch.tolist(), strength.tolist(), rise, strict=True)
        return [Contribution(step.index, step.source, *item) for item in columns if item[-1] > 0], after

    def _counts(self, state: ActivationState, neuron: int, item: Contribution) -> bool:
        """Return whether the entry that a contribution raised still has a value."""
        key = self._layout.entries(neuron)[item.segment, item.branch].reshape(1)
        return bool(state.values(*state.find(key)) > 0)

    def _advance(
        self, state: ActivationState, source: int, token: _Token, feed: Feed, choose: Choice | None
    ) -> StepTrace:
        """Do one step, sub-steps 1 to 6 of section 8."""
        index, layout, options = token.times.feature_time, self._layout, self.options
        if index == 0:
            state = burst(state, source, layout)
        activity = source_activity(state, source, layout) if index else None
        result = StepResult(
            index=index,
            seed=token.seed,
            source=source,
            column_time=token.source_column_time,
            activity=activity,
        )
        target = self._targets(source) if index else self._no_row
        connected = self._no_row if token.seed else connected_targets(target, layout)
        if not token.seed and feed == "prediction" and not len(connected):
            return StepTrace(replace(result, stop="no connections"), None, state)
        if activity is not None:
            pulse = self._pulse(activity, result)
            state = propagate(state, target, pulse, layout=layout, options=options)
        state = deactivate(state, source, layout)
        mode = self.flags.mode(_feature(source), token.number)
        if not token.seed:
            found = score_candidates(state, connected, token.times, layout=layout, options=options)
            return self._predict(replace(result, mode=mode), state, found, token, feed, choose)
        next_source = _next_target(source, token, mode)
        state = burst(state, next_source, layout)
        return StepTrace(replace(result, next=next_source), None, state)

    def _predict(
        self,
        result: StepResult,
        state: ActivationState,
        candidates: Candidates | None,
        token: _Token,
        feed: Feed,
        choose: Choice | None,
    ) -> StepTrace:
        """Choose among the candidates and find the next source (contract, section 8.6b)."""
        if candidates is None:
            result = replace(result, stop="no candidates")
        else:
            best = candidates.best if choose is None else choose(result.index, candidates)
            top = int(candidates.neuron[best])
            rejected = result.mode == "internal" and _column(top) != _column(result.source)
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
        return StepTrace(replace(result, next=next_source), candidates, state)

    def _targets(self, neuron: int) -> Tensor:
        """Return the target keys of a neuron's row on this session's device."""
        row = self.rows.row(neuron)
        return self._no_row if row is None else as_tensor(row.target, self.device)

    def _pulse(self, activity: int, step: StepResult) -> Pulse:
        """Return what the source of a step sends."""
        return Pulse(drive=self._layout.drives[activity], column_time=step.column_time, feature_time=step.index - 1)


def _feature(neuron: int) -> int:
    """Return the feature of a neuron key."""
    return neuron & (MAXIMUM_FEATURES - 1)


def _column(neuron: int) -> int:
    """Return the column of a neuron key."""
    return neuron >> FEATURE_BITS


def _next_target(source: int, token: _Token, mode: Mode | None) -> int:
    """Return the sentence's own token as the next source.

    In internal mode it is taken in the source's column (contract, section 8.6a). A boundary's
    stored flag is never unset, so that this changes nothing for a sequence that was segmented
    with the flags of its number.
    """
    assert token.target is not None
    if mode == "internal" and _column(token.target) != _column(source):
        return (_column(source) << FEATURE_BITS) | _feature(token.target)
    return token.target
