"""Advance one sequence by one step of profile ``v1``.

Follows section 8 of the contract: the order of the sub-steps, the modes, the selection and what is fed to the next
step. `giaann_dask.models.columns.v1.kernels` follows the same rules in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from giaann_dask.keys import BRANCH_MASK, SEGMENT_SHIFT, Integers, column_of, feature_of
from giaann_dask.models.columns.state.activation import (
    ActivationState,
    Candidates,
    Layout,
    Pulse,
    connected_targets,
)
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import (
    Contribution,
    DecodingStrategy,
    Mode,
    SequenceSession,
    StepResult,
    Token,
    revise,
)
from giaann_dask.models.columns.v1.history import NeuronHistory
from giaann_dask.runs.run import Row
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS

_NO_ROW = Row(np.zeros(0, np.int64), np.zeros(0, np.int32))


class Session(SequenceSession[ActivationState, InferenceOptions]):
    """Advances one sequence at a time by pushing whole rows into a state, the reference implementation.

    The parameters are those of `SequenceSession`.

    Examples
    --------
    >>> from giaann_dask.rows.source import RunRows
    >>> from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence
    >>> from giaann_dask.runs.run import Run
    >>> from giaann_dask.spec import Specification
    >>> flags = FlagTable(np.zeros(1, bool), np.full(1, -1))
    >>> session = Session(Specification(), RunRows([Run.empty()], lambda neuron: 0), flags)
    >>> prompt = PreparedSequence(neuron=np.array([0]), noun=np.array([True]), number=0)
    >>> list(session.stream(prompt, 3))[-1].result.end
    'no connections'
    """

    _rules_type = InferenceOptions

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.specification)

    @property
    def new_state(self) -> Callable[[], ActivationState]:
        """See `SequenceSession.new_state`."""
        return partial(ActivationState, self._layout, self.options)

    def _row(self, source: int) -> tuple[Integers]:
        """Return the target keys of a source's row, ascending."""
        return ((self.rows.row(source) or _NO_ROW).target,)

    def _advance(
        self, state: ActivationState, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Do one step, sub-steps 1 to 6 of section 8."""
        index = token.times.feature_time
        if index == 0:
            state.burst(source)
        # Nothing was a source before the first step, and the first token is given.
        target = self._row(source)[0] if index else None
        activity = state.activity(source) if index else None
        result = StepResult(
            index=index,
            seed=token.seed,
            source=source,
            column_time=token.source_column,
            activity=activity,
        )
        connected = None if token.seed or target is None else connected_targets(target, self._layout)
        if connected is not None and decoding.feed == "prediction" and not (len(connected) or decoding.pooled):
            return replace(result, stop="no connections"), None
        if activity is not None and target is not None:
            state.propagate(target, self._pulse(activity, result))
        state.deactivate(source)
        mode = self.flags.mode(feature_of(source), token.number)
        if connected is not None:
            found = state.score(connected, token.times)
            found = None if found is None else replace(found, order=self.flags.order)
            result = self._predict(replace(result, mode=mode), found, token, decoding)
            if decoding.pooled:
                result, found = revise(result, found, self.flags)
                if result.next is not None:
                    # As a token of a prompt.
                    state.burst(result.next)
            return result, found
        next_source = _next_target(source, token, mode)
        state.burst(next_source)
        return replace(result, next=next_source), None

    def _predict(
        self,
        result: StepResult,
        candidates: Candidates | None,
        token: Token,
        decoding: DecodingStrategy,
    ) -> StepResult:
        """Choose among the candidates and find the next source (contract, section 8.6b)."""
        if candidates is None:
            result = replace(result, stop="no candidates")
        else:
            best = candidates.best if decoding.choose is None else decoding.choose(result.index, candidates)
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
        if decoding.feed == "target":
            next_source = _next_target(result.source, token, result.mode)
        return replace(result, next=next_source)

    def _pulse(self, activity: int, step: StepResult) -> Pulse:
        """Return the pulse of the source of a step."""
        drive = self._layout.drives[activity]
        return Pulse(source=step.source, drive=drive, column_time=step.column_time, feature_time=step.index - 1)

    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised the predicted neuron; see `SequenceSession.explain`.

        The history of one neuron does not depend on any other target, so it is replayed with the steps of the
        session, on this neuron's own entries only. A connection to an entry already at its largest value raises
        nothing.
        """
        neuron = steps[index].predicted
        if neuron is None:
            return ()
        history, done = NeuronHistory(self._layout, self.options), steps[: index + 1]
        rows = self.rows.rows(list(dict.fromkeys(step.source for step in done if step.index)))
        found: list[Contribution] = []
        for step in done:
            if step.index:
                found.extend(self._replay(history, neuron, step, rows[step.source] or _NO_ROW))
            elif step.source == neuron:
                history.burst()
            if step.source == neuron:
                history.deactivate()
                found = [item for item in found if history.value((item.segment, item.branch)) > 0]
            if step.seed and step.next == neuron:
                history.burst()
        return tuple(found)

    def _replay(self, history: NeuronHistory, neuron: int, step: StepResult, row: Row) -> list[Contribution]:
        """Push the part of a step's row that ends at one neuron; return the contributions."""
        first = self._layout.entries(neuron)[:, 0]
        begins, ends = row.target.searchsorted(np.stack([first, first + (1 << BRANCH_BITS)])).tolist()
        at = [place for begin, end in zip(begins, ends, strict=True) for place in range(begin, end)]
        entries = [(key >> SEGMENT_SHIFT, key & BRANCH_MASK) for key in row.target[at].tolist()] if at else []
        rises = history.propagate(entries, self._pulse(step.activity or 0, step))
        raised = [(place, *entry, rise) for place, entry, rise in zip(at, entries, rises, strict=True) if rise > 0]
        if not raised:
            return []
        strengths = self.specification.strengths(row.strength[[place for place, *_ in raised]]).tolist()
        return [
            Contribution(step.index, step.source, segment, branch, strength, rise)
            for (_, segment, branch, rise), strength in zip(raised, strengths, strict=True)
        ]


def _next_target(source: int, token: Token, mode: Mode | None) -> int:
    """Return the sentence's own token as the next source.

    In internal mode it is taken in the source's column (contract, section 8.6a). A boundary's
    stored flag is never unset, so that this changes nothing for a sequence that was segmented
    with the flags of its number.
    """
    assert token.target is not None
    if mode == "internal" and column_of(token.target) != column_of(source):
        return (column_of(source) << FEATURE_BITS) | feature_of(token.target)
    return token.target
