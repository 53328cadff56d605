"""Advance one sequence step by step under profile ``v2``, select its predictions and explain them.

Follows the order of the sub-steps of sections 7 and 8 of the contract of profile ``v2``: the modes, the candidate that
is selected, the token that is fed to the next step, and the record of every step, for a given sequence or after a
prompt. `giaann_dask.models.columns.v2.states` has the effect of a row on the neurons that it reaches;
`giaann_dask.models.columns.v1.session` has the same methods for profile ``v1``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.keys import SEGMENT_SHIFT, Integers, feature_of, unpack_neuron, unpack_target
from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.models.columns.state.inference_options import CandidateSelection, LegacyOptions, LifOptions, V2Options
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import (
    Contribution,
    DecodingStrategy,
    FlagTable,
    Mode,
    SequenceSession,
    StepResult,
    Token,
)
from giaann_dask.models.columns.v2.dynamics import NEVER, Clock, Floats, SegmentLayout, squashed
from giaann_dask.models.columns.v2.states import AdvancingState, new_state
from giaann_dask.rows.source import AuxiliaryRows, RowSource, require_layout
from giaann_dask.runs.run import Row
from giaann_dask.spec import FEATURE_BITS, Specification


class Selected(NamedTuple):
    """The candidates that were left, and the best of them.

    Attributes
    ----------
    neuron, score : ndarray
        Neuron keys, ascending, int64, and their values, float32. There may be none.
    best : int or None
        Place of the one to predict; None where there is none, or it does not pass.
    """

    neuron: Integers
    score: Floats
    best: int | None


def passing(
    neuron: Integers, source: int, mode: Mode | None, flags: FlagTable, number: int, options: CandidateSelection
) -> npt.NDArray[np.bool_] | None:
    """Return which neurons a mode lets follow a source, None for all.

    Parameters
    ----------
    neuron : ndarray
        Neuron keys, int64.
    source : int
        Neuron key of the source.
    mode : {"delimiter", "internal"} or None
        What the source's feature asks for.
    flags : FlagTable
        Stored flags, read where delimiters are enforced.
    number : int
        Of the sequence.
    options : CandidateSelection
        Which test.
    """
    if not len(neuron) or mode is None or (mode == "delimiter" and not options.enforce_delimiter):
        return None
    column, feature = unpack_neuron(neuron)
    own: npt.NDArray[np.bool_] = column == source >> FEATURE_BITS
    if mode == "delimiter":
        return ~own | flags.delimit(feature, number)
    return own if options.test == "column" else own | (feature == 0)


def select(
    neuron: Integers,
    score: Floats,
    passes: npt.NDArray[np.bool_] | None,
    options: CandidateSelection,
    order: NameOrder,
) -> Selected:
    """Return the best of the candidates that pass the test of the options, if there is one.

    Examples
    --------
    >>> neuron, score, passes = np.array([3, 5, 7]), np.float32([1, 2, 2]), np.array([True, False, True])
    >>> select(neuron, score, passes, CandidateSelection(), NameOrder()).best, select(
    ...     neuron, score, passes, CandidateSelection.reference(), NameOrder()
    ... ).best
    (1, None)
    """
    if options.filtered and passes is not None:
        neuron, score = neuron[passes], score[passes]
    if not len(neuron):
        return Selected(neuron, score, None)
    best = order.first(neuron, score)
    return Selected(neuron, score, best if options.filtered or passes is None or passes[best] else None)


# Target keys of a source and its strengths, float32.
RowOf = Callable[[int], tuple[Integers, Floats]]


@dataclass(frozen=True)
class _Sent:
    """Signal of a connection, its present location and its remaining value."""

    origin: Contribution
    segment: int
    value: float


def explain_lif(
    steps: Sequence[StepResult], neuron: int, row_of: RowOf, *, layout: SegmentLayout, options: LifOptions
) -> tuple[Contribution, ...]:
    """Return the connections that a neuron's value consists of after some steps of a sequence.

    Parameters
    ----------
    steps : sequence of StepResult
        From the first one to the one that predicted.
    neuron : int
        Neuron key.
    row_of : callable
        Returns target keys and strengths of a source.
    layout : SegmentLayout
        Of the network.
    options : LifOptions
        Constants.

    Returns
    -------
    tuple of Contribution
        In the order of the steps, each with the segment that it ends at and what is left of what it sent.
    """
    last, top = layout.last, layout.columns - 1
    sent: list[_Sent] = []
    for step in steps:
        # Nothing comes out of the last column segment but by a change of columns.
        sent = [replace(s, segment=min(s.segment + (s.segment > top), last)) for s in sent]
        if step.activity:
            for segment, branch, strength in _links(row_of(step.source), neuron):
                value = _drive(strength if options.strengths else 1.0, options.squash)
                origin = Contribution(step.index, step.source, segment, branch, strength, value)
                sent.append(_Sent(origin, segment, value))
        if step.source == neuron:
            cleared = (last, top) if options.clear_source else (last,)
            sent = [s for s in sent if s.segment not in cleared]
        if step is not steps[-1] and step.next is not None:
            advanced = step.source >> FEATURE_BITS != step.next >> FEATURE_BITS
            sent = [kept for s in sent if (kept := _decayed(s, advanced, layout, options)).value > 0]
    return tuple(replace(s.origin, contribution=s.value) for s in sent if s.segment in (last, top))


def _decayed(sent: _Sent, advanced: bool, layout: SegmentLayout, options: LifOptions) -> _Sent:
    """Return a signal at the end of a step: its remaining value and its segment."""
    if sent.segment == layout.last:
        return replace(sent, value=sent.value * (1 - options.soma_decay))
    if not advanced or sent.segment >= layout.columns:
        return sent
    if sent.segment == layout.columns - 1:
        return replace(sent, value=sent.value * (1 - options.column_decay))
    return replace(sent, segment=sent.segment + 1)


def explain_legacy(
    steps: Sequence[StepResult], neuron: int, row_of: RowOf, *, layout: SegmentLayout, options: LegacyOptions
) -> tuple[Contribution, ...]:
    """Return the connections that raised a neuron without a soma; the parameters are those of `explain_lif`.

    What was raised is the value at the time; a connection to an entry that is boolean and was 1 already
    raised nothing and is left out, and so is one to a branch that was silenced later.
    """
    value = np.zeros((layout.branches, layout.segments), np.float32)
    time = np.full(value.shape, NEVER)
    found: list[Contribution] = []
    for step in steps:
        if step.index:
            value *= np.float32(options.decay)
            before = value.copy()
            for segment, branch, strength in _links(row_of(step.source), neuron):
                # Times of columns are read by no test.
                if segment > layout.columns and options.timing == "exact":
                    age = step.index - 1 - time[branch, segment - 1]
                    if age != 1 or before[branch, segment - 1] <= 0:
                        continue
                drive = strength * options.scale if options.strengths else _drive(1.0, True)
                drive = drive if step.activity else 0.0
                value[branch, segment] += np.float32(drive)
                time[branch, segment] = step.index - 1
                full = options.boolean and segment >= layout.columns and before[branch, segment] > 0
                if drive > 0 and not full:
                    found.append(Contribution(step.index, step.source, segment, branch, strength, drive))
            if options.boolean:
                value[:, layout.columns :] = value[:, layout.columns :] > 0
        if step.source == neuron:
            silenced = int(value.sum(1).argmax())
            value[silenced] = 0
            found = [item for item in found if item.branch != silenced]
        if step is not steps[-1] and step.next == neuron:
            first = 0 if options.burst_all else layout.last
            value[int(value.sum(1).argmax()), first:] += np.float32(options.burst)
    return tuple(found)


def _links(row: tuple[Integers, Floats], neuron: int) -> list[tuple[int, int, float]]:
    """Return segment, branch and strength of the connections of a row to a neuron."""
    segment, target, branch = unpack_target(row[0])
    at = np.flatnonzero(target == neuron)
    return list(zip(segment[at].tolist(), branch[at].tolist(), row[1][at].tolist(), strict=True))


def _drive(strength: float, squash: bool) -> float:
    return float(squashed(np.float32(strength))) if squash else strength


_NO_TARGETS: Integers = np.zeros(0, np.int64)
_NO_STRENGTHS: Floats = np.zeros(0, np.float32)


class V2Session(SequenceSession[AdvancingState, V2Options]):
    """Advances one sequence at a time over a network of profile ``v2`` that does not change.

    The parameters are those of `SequenceSession`.

    Raises
    ------
    OptionError
        If the dynamics are not those of the network, or auxiliary neurons are asked
        for that the flags do not have.
    """

    _rules_type = V2Options

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: V2Options | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options)
        if self.options.auxiliary:
            if flags.auxiliary is None:
                raise OptionError("auxiliary neurons without attachments", "flags that have them", "attach features")
            self.rows = AuxiliaryRows(rows, flags.auxiliary)
        self._layout = SegmentLayout.of(specification)
        self._layout.require_soma(self.options.lif)

    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised the predicted neuron; see `SequenceSession.explain`."""
        neuron = steps[index].predicted
        if neuron is None:
            return ()
        done, dynamics = steps[: index + 1], self.options.dynamics
        if isinstance(dynamics, LifOptions):
            return explain_lif(done, neuron, self._whole_row, layout=self._layout, options=dynamics)
        return explain_legacy(done, neuron, self._whole_row, layout=self._layout, options=dynamics)

    @property
    def new_state(self) -> Callable[[], AdvancingState]:
        """See `SequenceSession.new_state`."""
        return partial(new_state, self._layout, self.options.dynamics)

    def _can_send(self, target: Integers) -> bool:
        """Return whether a source with these target keys can lead to a prediction at all."""
        return len(target) > 0 and (self._layout.soma or int(target[-1] >> SEGMENT_SHIFT) == self._layout.last)

    def _advance(
        self, state: AdvancingState, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Do one step of section 7 or 8."""
        times = token.times
        clock = Clock(times.feature_time, times.column_time, token.source_column, times.open_noun)
        known: dict[str, Any] = {
            "index": clock.token,
            "seed": token.seed,
            "source": source,
            "column_time": token.source_column,
        }
        neuron, score = _NO_TARGETS, _NO_STRENGTHS
        if clock.token:
            row = self._row(source)
            if decoding.feed == "prediction" and not token.seed and not self._can_send(row[0]):
                return StepResult(**known, stop="no connections"), None
            known["activity"], neuron, score = state.advance(source, row, clock)
        found = None
        if token.seed:
            result = StepResult(**known, next=token.target)
        else:
            result, found = self._predict(known, (neuron, score), token, decoding)
        if result.next is not None:
            state.settle(source, result.next, clock)
        return result, found

    def _predict(
        self,
        known: dict[str, Any],
        scored: tuple[Integers, Floats],
        token: Token,
        decoding: DecodingStrategy,
    ) -> tuple[StepResult, Candidates | None]:
        """Choose among the candidates and find the next source (sections 7f and 7g)."""
        rules, source, choose = self.options.selection, known["source"], decoding.choose
        mode = self.flags.mode(feature_of(source), token.number)
        passes = passing(scored[0], source, mode, self.flags, token.number, rules)
        neuron, score, best = select(*scored, passes, rules, self.flags.order)
        found, count = None, len(neuron)
        if count and (decoding.traced or choose is not None):
            found = Candidates(neuron, score, self.flags.order)
        if choose is not None and found is not None:
            best = choose(token.times.feature_time, found)
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
            next=token.target if decoding.feed == "target" else predicted,
        )
        return result, found

    def _row(self, source: int) -> tuple[Integers, Floats]:
        """Return the target keys of a source and, where they are sent, its strengths."""
        if self.options.dynamics.strengths:
            return self._whole_row(source)
        row = self.rows.row(source)
        return (_NO_TARGETS if row is None else self._targets(row)), _NO_STRENGTHS

    def _whole_row(self, source: int) -> tuple[Integers, Floats]:
        row = self.rows.row(source)
        if row is None:
            return _NO_TARGETS, _NO_STRENGTHS
        return self._targets(row), self.specification.strengths(row.strength).astype(np.float32)

    def _targets(self, row: Row) -> Integers:
        return require_layout(row.target, self.specification.last_segment + 1, self.specification.branches)
