"""Why a neuron was predicted under profile ``v2``: the connections that raised it.

Covers: replaying the steps of a sequence on the entries of one neuron, for both dynamics.
Does not cover: the steps themselves (`giaann_dask.inference.v2.dynamics`).

The history of a neuron depends on the sources of its sequence and never on another target, so that
its own entries are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from giaann_dask.inference.state.sequence import Contribution, StepResult
from giaann_dask.inference.v2.dynamics import squashed
from giaann_dask.inference.v2.layout import SegmentLayout
from giaann_dask.inference.v2.options import LegacyOptions, LifOptions
from giaann_dask.inference.v2.tables import NEVER, Floats
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.spec import FEATURE_BITS

# Target keys of a source and its strengths, float32.
RowOf = Callable[[int], tuple[Integers, Floats]]


@dataclass(frozen=True)
class _Sent:
    """Signal of a connection, its present location and what remains of it."""

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
            sent = [kept for s in sent if (kept := _faded(s, advanced, layout, options)).value > 0]
    return tuple(replace(s.origin, contribution=s.value) for s in sent if s.segment in (last, top))


def _faded(sent: _Sent, advanced: bool, layout: SegmentLayout, options: LifOptions) -> _Sent:
    """Return what is left of something at the end of a step, and where it is then."""
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
