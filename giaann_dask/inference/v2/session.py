"""One sequence, step by step, under profile ``v2``.

Covers: the order of the sub-steps of sections 7 and 8 of the contract of profile ``v2``, the modes,
the choice, what is fed to the next step, and the record of every step; evaluation of a given
sequence and generation after a prompt.
Does not cover: what a row does to the neurons it reaches (`giaann_dask.inference.v2.states`), which
candidate is taken (`giaann_dask.inference.v2.selection`), and profile ``v1``
(`giaann_dask.inference.v1.push_session`, whose methods these are).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from giaann_dask.errors import OptionError, parameter
from giaann_dask.inference.rows.auxiliary import AuxiliaryRows
from giaann_dask.inference.rows.source import RowSource
from giaann_dask.inference.state.activation import ActivationState
from giaann_dask.inference.state.candidates import Candidates
from giaann_dask.inference.state.options import Feed
from giaann_dask.inference.state.sequence import (
    Contribution,
    FlagTable,
    Generation,
    Observer,
    PreparedSequence,
    SequenceResult,
    StepResult,
    StepTrace,
)
from giaann_dask.inference.v1.stepper import Choice
from giaann_dask.inference.v2.explaining import explain_legacy, explain_lif
from giaann_dask.inference.v2.layout import SegmentLayout
from giaann_dask.inference.v2.options import LifOptions, V2Options
from giaann_dask.inference.v2.selection import passing, select
from giaann_dask.inference.v2.states import SequenceState, new_state
from giaann_dask.inference.v2.tables import Clock, Floats
from giaann_dask.keys import Integers, feature_of
from giaann_dask.spec import Specification

_NO_TARGETS: Integers = np.zeros(0, np.int64)
_NO_STRENGTHS: Floats = np.zeros(0, np.float32)


class _Token(NamedTuple):
    """Known properties of the token that a step predicts."""

    clock: Clock
    seed: bool
    target: int | None
    number: int


class V2Session:
    """Advances one sequence at a time over a network of profile ``v2`` that does not change.

    A session holds no state of a sequence: one session may serve any number of sequences.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key, with their strengths where these are sent.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    options : V2Options, optional
        Rules of inference.
    device : torch.device, optional
        Only the CPU.
    states : bool
        Whether traces have the state after the step, which takes longer than the step.

    Raises
    ------
    OptionError
        If the device is not the CPU, the dynamics are not those of the network, or auxiliary neurons are asked
        for that the flags do not have.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: V2Options | None = None,
        device: torch.device | None = None,
        states: bool = False,
    ) -> None:
        self.specification, self.rows, self.flags = specification, rows, flags
        self.options = options or V2Options()
        if self.options.auxiliary:
            if flags.auxiliary is None:
                raise OptionError("auxiliary neurons without attachments", "flags that have them", "attach features")
            self.rows = AuxiliaryRows(rows, flags.auxiliary)
        if device is not None and device.type != "cpu":
            raise OptionError(
                f"{parameter('device')} is {device}", "cpu for networks of profile v2", "leave the device out"
            )
        self._layout = SegmentLayout.of(specification)
        self._layout.require_soma(self.options.lif)
        self._states = states

    def run_sequence(
        self, sequence: PreparedSequence, *, observer: Observer | None = None, choose: Choice | None = None
    ) -> SequenceResult:
        """Predict every token of a sequence after the seed tokens; see `Session.run_sequence`."""
        columns = [0, *np.cumsum(sequence.noun).tolist()]
        state, source = new_state(self._layout, self.options.dynamics), int(sequence.neuron[0])
        steps: list[StepResult] = []
        for index, target in enumerate(sequence.neuron.tolist()):
            clock = Clock(index, columns[index + 1], columns[index], False)
            token = _Token(clock, index < self.specification.seed_tokens, target, sequence.number)
            trace = self._advance(state, source, token, self.options.feed, choose, observer is not None)
            steps.append(trace.result)
            if observer is not None:
                observer(trace)
            if trace.result.next is None:
                return SequenceResult(tuple(steps), trace.result.stop)
            source = trace.result.next
        return SequenceResult(tuple(steps), None)

    def generate(self, prompt: PreparedSequence, tokens: int, *, observer: Observer | None = None) -> Generation:
        """Predict tokens after a prompt, feeding each to the next step; see `Session.generate`."""
        return Generation.of(prompt, self.stream(prompt, tokens), observer)

    def stream(self, prompt: PreparedSequence, tokens: int) -> Iterator[StepTrace]:
        """Yield the steps of `generate` one by one, those of the prompt included."""
        state, source = new_state(self._layout, self.options.dynamics), int(prompt.neuron[0])
        concepts = 0
        for index in range(len(prompt) + tokens):
            given = index < len(prompt)
            known = given and bool(prompt.noun[index])
            clock = Clock(index, concepts + known, concepts, not given)
            token = _Token(clock, given, int(prompt.neuron[index]) if given else None, prompt.number)
            trace = self._advance(state, source, token, "prediction", None, True)
            yield trace
            if trace.result.next is None:
                return
            source = trace.result.next
            concepts += known if given else feature_of(source) == 0

    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised what a step predicted (see `Session.explain`)."""
        neuron = steps[index].predicted
        if neuron is None:
            return ()
        done, dynamics = steps[: index + 1], self.options.dynamics
        if isinstance(dynamics, LifOptions):
            return explain_lif(done, neuron, self._whole_row, layout=self._layout, options=dynamics)
        return explain_legacy(done, neuron, self._whole_row, layout=self._layout, options=dynamics)

    def _advance(
        self, state: SequenceState, source: int, token: _Token, feed: Feed, choose: Choice | None, traced: bool
    ) -> StepTrace:
        """Do one step of section 7 or 8."""
        clock = token.clock
        known: dict[str, Any] = {
            "index": clock.token,
            "seed": token.seed,
            "source": source,
            "column_time": clock.source_column,
        }
        neuron, score = _NO_TARGETS, _NO_STRENGTHS
        if clock.token:
            row = self._row(source)
            if feed == "prediction" and not token.seed and not state.can_send(row[0]):
                return StepTrace(StepResult(**known, stop="no connections"), None, self._shown(state))
            known["activity"], neuron, score = state.advance(source, row, clock)
        found = None
        if token.seed:
            result = StepResult(**known, next=token.target)
        else:
            result, found = self._predict(known, (neuron, score), token, feed, choose, traced)
        if result.next is not None:
            state.settle(source, result.next, clock)
        return StepTrace(result, found, self._shown(state))

    def _predict(
        self,
        known: dict[str, Any],
        scored: tuple[Integers, Floats],
        token: _Token,
        feed: Feed,
        choose: Choice | None,
        traced: bool,
    ) -> tuple[StepResult, Candidates | None]:
        """Choose among the candidates and find the next source (sections 7f and 7g)."""
        rules, source = self.options.selection, known["source"]
        mode = self.flags.mode(feature_of(source), token.number)
        passes = passing(scored[0], source, mode, self.flags, token.number, rules)
        neuron, score, best = select(*scored, passes, rules)
        found, count = None, len(neuron)
        if count and (traced or choose is not None):
            found = Candidates(torch.from_numpy(neuron), torch.from_numpy(score), int(score.argmax()))
        if choose is not None and found is not None:
            best = choose(token.clock.token, found)
            best = best if rules.filtered or passes is None or passes[best] else None
        predicted = None if best is None else int(neuron[best])
        largest = score.max() if count else None
        result = StepResult(
            **known,
            mode=mode,
            candidates=count,
            ties=int(np.count_nonzero(score == largest)) if count else 0,
            value=None if largest is None else float(largest),
            predicted=predicted,
            stop=None if predicted is not None else "rejected" if len(scored[0]) else "no candidates",
            next=token.target if feed == "target" else predicted,
        )
        return result, found

    def _row(self, source: int) -> tuple[Integers, Floats]:
        """Return the target keys of a source and, where they are sent, its strengths."""
        if self.options.dynamics.strengths:
            return self._whole_row(source)
        row = self.rows.row(source)
        return (_NO_TARGETS if row is None else _writeable(row.target)), _NO_STRENGTHS

    def _whole_row(self, source: int) -> tuple[Integers, Floats]:
        row = self.rows.row(source)
        if row is None:
            return _NO_TARGETS, _NO_STRENGTHS
        return _writeable(row.target), self.specification.strengths(row.strength).astype(np.float32)

    def _shown(self, state: SequenceState) -> ActivationState | None:
        return state.shown() if self._states else None


def _writeable(target: Integers) -> Integers:
    """Return an array that kernels take without being compiled again for memory that came through Dask."""
    return target if target.flags.writeable else target.copy()
