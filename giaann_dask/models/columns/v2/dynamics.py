"""Compute the effect of a source's row on the neurons that it reaches, by the compiled steps of profile ``v2``.

Implements sections 7a to 7e, 7h and 7i and sections 8.1 to 8.7 of the contract of profile ``v2`` for one sequence, as
numba kernels, in float32.

The entries of a neuron are contiguous in a row of a table. What a step does to all entries (moving to the next segment,
decay, becoming 0 or 1) depends on the entry alone, so it is deferred: a row has a stamp of the last moment that was
applied, and is brought up to date when it is read. Step w consists of two such moments, 2w at its beginning and 2w + 1
at its end. So the cost of a step depends on the length of its source's row, however many neurons are active.

`slot` is the row of a neuron in the table; who calls has looked it up (`giaann_dask.models.columns.v2.session`).

All kernels are in one module, because numba caches compiled code by module: a caller in another module would
keep using the old code of what it calls.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.keys import BRANCH_MASK, FEATURE_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.spec import Specification

ZERO, HALF, ONE, TWO, HUNDRED = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2), np.float32(100)
# The squash of 1 as the published implementation computes it; rounding the exact value at the end gives
# another number and with it other equal sums (contract, section 7d).
SQUASHED_ONE = np.float32(0.00499999523162841796875)
Floats = npt.NDArray[np.float32]
# Place of a neuron without entries.
ABSENT = -1
NEVER = -1


class EntryTable(NamedTuple):
    """Entries of the neurons of a sequence, in a row each; further rows are reserved.

    Attributes
    ----------
    neuron : ndarray
        Neuron keys; int64, shape ``(neurons or more,)``.
    stamp : ndarray
        Up to where each row is done; int64, the same shape.
    value : ndarray
        Activation; float32, shape ``(neurons or more, branches, segments)``.
    there : ndarray
        Whether it is an entry; bool, the same shape. Not used with a soma, where only positive values are.
    time : ndarray
        When a connection last reached it, or `NEVER`; int32, the same shape. Not used with a soma.
    """

    neuron: Integers
    stamp: Integers
    value: Floats
    there: npt.NDArray[np.bool_]
    time: npt.NDArray[np.int32]


class LifRules(NamedTuple):
    """Constants of the dynamics with a soma; see `giaann_dask.models.columns.state.inference_options.LifOptions`."""

    columns: int
    threshold: np.float32
    keep_soma: np.float32
    keep_column: np.float32
    burst: np.float32
    strengths: bool
    squash: bool
    clear_source: bool


class LegacyRules(NamedTuple):
    """Constants of the dynamics without one; see `giaann_dask.models.columns.state.inference_options.LegacyOptions`."""

    columns: int
    decay: np.float32
    scale: np.float32
    burst: np.float32
    exact: bool
    strengths: bool
    boolean: bool
    burst_all: bool


class Clock(NamedTuple):
    """The times of a step.

    Attributes
    ----------
    token : int
        Index of the token to be predicted.
    column : int
        Number of concept tokens up to and including it; when `open_concept` is set, before it.
    source_column : int
        Number of concept tokens up to and including the source's.
    open_concept : bool
        Whether it is unknown if the token is a concept. Then every candidate is timed as what it is.
    """

    token: int
    column: int
    source_column: int
    open_concept: bool


class SegmentLayout(NamedTuple):
    """Numbers of segments: first those of columns, then those of features, then the soma, if any.

    Attributes
    ----------
    columns : int
        Column segments, numbered from 0.
    segments : int
        All segments, the soma included; the last of them is that of adjacent tokens.
    branches : int
        Dendritic branches of a neuron.
    soma : bool
        Whether the last segment is a soma.
    """

    columns: int = 4
    segments: int = 9
    branches: int = 1
    soma: bool = True

    @property
    def last(self) -> int:
        """Number of the segment of adjacent tokens."""
        return self.segments - 1

    @classmethod
    def of(cls, specification: Specification) -> SegmentLayout:
        """Return the layout that a network was trained for."""
        columns, last = specification.column_segments, specification.last_segment
        soma = last == columns + specification.feature_segments
        return cls(columns=columns, segments=last + 1, branches=specification.branches, soma=soma)

    def require_soma(self, needed: bool) -> None:
        """Raise an OptionError if the requested dynamics are not those of these segments."""
        if self.soma != needed:
            has, takes = ("a soma", "LifOptions") if self.soma else ("no soma", "LegacyOptions")
            raise OptionError(f"dynamics for {self._other} with a network of {has}", takes, "choose the network's own")

    @property
    def _other(self) -> str:
        return "no soma" if self.soma else "a soma"


@jit
def squashed(x: np.float32) -> np.float32:
    """Return ``2 * (sigmoid(x / 100) - 0.5)``, every operation in float32."""
    if x == ONE:
        return SQUASHED_ONE
    # The exponential of doubles, rounded: the same on every processor, which that of float32 is not.
    power = np.float32(math.exp(-np.float64(x / HUNDRED)))
    return (ONE / (ONE + power) - HALF) * TWO


@jit_inner
def lif_catch_up(table: EntryTable, slot: int, moment: int, advanced: npt.NDArray[np.bool_], rules: LifRules) -> None:
    """Move a slot of the dynamics with a soma on to a moment (contract, sections 7b, 7h and 7i)."""
    value = table.value[slot, 0]
    last, top = len(value) - 1, rules.columns - 1
    for now in range(table.stamp[slot] + 1, moment + 1):
        if now % 2 == 0:
            if last > rules.columns:
                value[last] = value[last] + value[last - 1]
                for segment in range(last - 1, rules.columns, -1):
                    value[segment] = value[segment - 1]
                value[rules.columns] = ZERO
        else:
            if advanced[now // 2] and top >= 0:
                value[top] = value[top] * rules.keep_column
                if top > 0:
                    value[top] = value[top] + value[top - 1]
                    for segment in range(top - 1, 0, -1):
                        value[segment] = value[segment - 1]
                    value[0] = ZERO
            value[last] = value[last] * rules.keep_soma
    table.stamp[slot] = moment


@jit
def lif_catch_up_all(
    table: EntryTable, neurons: int, moment: int, advanced: npt.NDArray[np.bool_], rules: LifRules
) -> None:
    """Move all neurons on to a moment."""
    for slot in range(neurons):
        lif_catch_up(table, slot, moment, advanced, rules)


@jit
def lif_gate(table: EntryTable, own: int, token: int, advanced: npt.NDArray[np.bool_], rules: LifRules) -> int:
    """Return 1 if a source is active enough to send, else 0 (section 7c)."""
    last, top = table.value.shape[2] - 1, rules.columns - 1
    lif_catch_up(table, own, 2 * token, advanced, rules)
    fired = table.value[own, 0, last]
    if top >= 0:
        fired = fired + table.value[own, 0, top]
    return 1 if fired >= rules.threshold else 0


@jit
def lif_send(
    table: EntryTable,
    slots: Integers,
    row: tuple[Integers, Floats],
    token: int,
    advanced: npt.NDArray[np.bool_],
    rules: LifRules,
) -> None:
    """Send along a source's row to the neurons in `slots` (section 7d).

    `row` has target keys and strengths (none where they are not sent). Connections of all branches add up at
    their segment: what moves on is linear, so branches that join on the way have the same sum at the soma.
    """
    target, strength = row
    drive = squashed(ONE) if rules.squash else ONE
    for i in range(len(target)):
        segment = target[i] >> SEGMENT_SHIFT
        if rules.strengths:
            drive = squashed(strength[i]) if rules.squash else strength[i]
        lif_catch_up(table, slots[i], 2 * token, advanced, rules)
        table.value[slots[i], 0, segment] = table.value[slots[i], 0, segment] + drive


@jit
def lif_scores(
    table: EntryTable, own: int, slots: Integers, token: int, advanced: npt.NDArray[np.bool_], rules: LifRules
) -> tuple[Integers, Floats]:
    """Silence the source and return the candidates with their scores (sections 7e to 7g).

    `slots` are those of the neurons that the source has a connection to in their last segment, ascending by neuron.
    """
    last, top = table.value.shape[2] - 1, rules.columns - 1
    chosen = np.empty(len(slots), np.int64)
    count = 0
    for slot in slots:
        if slot == ABSENT or (count > 0 and chosen[count - 1] == slot):
            continue
        lif_catch_up(table, slot, 2 * token, advanced, rules)
        if table.value[slot, 0, last] > ZERO:
            chosen[count] = slot
            count += 1
    if own != ABSENT:
        table.value[own, 0, last] = ZERO
        if rules.clear_source and top >= 0:
            table.value[own, 0, top] = ZERO
    neuron, score, kept = np.empty(count, np.int64), np.empty(count, np.float32), 0
    for i in range(count):
        worth = table.value[chosen[i], 0, last]
        if top >= 0:
            worth = worth + table.value[chosen[i], 0, top]
        if worth >= rules.threshold:
            neuron[kept], score[kept] = table.neuron[chosen[i]], worth
            kept += 1
    return neuron[:kept], score[:kept]


@jit
def lif_burst(table: EntryTable, slot: int, token: int, advanced: npt.NDArray[np.bool_], rules: LifRules) -> None:
    """Burst the next source at the end of a step (section 7i)."""
    lif_catch_up(table, slot, 2 * token + 1, advanced, rules)
    last = table.value.shape[2] - 1
    table.value[slot, 0, last] = table.value[slot, 0, last] + rules.burst


@jit_inner
def legacy_catch_up(table: EntryTable, slot: int, moment: int, rules: LegacyRules) -> None:
    """Move a slot of the dynamics without a soma on to a moment (sections 8.2 and 8.4)."""
    value = table.value[slot]
    for now in range(table.stamp[slot] + 1, moment + 1):
        for branch in range(value.shape[0]):
            if now % 2 == 0:
                for segment in range(value.shape[1]):
                    value[branch, segment] = value[branch, segment] * rules.decay
            elif rules.boolean:
                for segment in range(rules.columns, value.shape[1]):
                    value[branch, segment] = ONE if value[branch, segment] > ZERO else ZERO
    table.stamp[slot] = moment


@jit
def legacy_catch_up_all(table: EntryTable, neurons: int, moment: int, rules: LegacyRules) -> None:
    """Move all neurons on to a moment."""
    for slot in range(neurons):
        legacy_catch_up(table, slot, moment, rules)


@jit_inner
def strongest(value: Floats) -> int:
    """Return the branch with the largest sum over segments, the lowest such branch."""
    best, most = 0, ZERO
    for branch in range(value.shape[0]):
        total = ZERO
        for segment in range(value.shape[1]):
            total = total + value[branch, segment]
        if total > most:
            best, most = branch, total
    return best


@jit
def legacy_burst(table: EntryTable, slot: int, moment: int, rules: LegacyRules) -> None:
    """Add the burst to the strongest branch of a neuron."""
    legacy_catch_up(table, slot, moment, rules)
    branch, last = strongest(table.value[slot]), table.value.shape[2] - 1
    for segment in range(0 if rules.burst_all else last, last + 1):
        table.value[slot, branch, segment] = table.value[slot, branch, segment] + rules.burst
        table.there[slot, branch, segment] = True


@jit
def legacy_clear(table: EntryTable, slot: int, moment: int, rules: LegacyRules) -> None:
    """Set the strongest branch of a source to 0; its entries stay (section 8.6)."""
    legacy_catch_up(table, slot, moment, rules)
    branch = strongest(table.value[slot])
    for segment in range(table.value.shape[2]):
        table.value[slot, branch, segment] = ZERO


@jit_inner
def _kept(table: EntryTable, slot: int, branch: int, segment: int, now: int, rules: LegacyRules) -> bool:
    """Return whether the entry before a connection's own lets it pass (section 8.3)."""
    if not rules.exact or segment <= rules.columns:
        return True
    before = table.time[slot, branch, segment - 1]
    return bool(before != NEVER and now - before == 1 and table.value[slot, branch, segment - 1] > ZERO)


@jit
def legacy_gate(table: EntryTable, own: int, token: int, rules: LegacyRules) -> int:
    """Return 1 if a source is active enough to send, else 0 (section 8.2)."""
    legacy_catch_up(table, own, 2 * token, rules)
    gate, last = 0, table.value.shape[2] - 1
    for branch in range(table.value.shape[1]):
        for segment in range(last + 1):
            # Values are never negative: a sum is positive where any value is.
            if table.there[own, branch, last] and table.value[own, branch, segment] > ZERO:
                gate = 1
    return gate


@jit
def legacy_send(
    table: EntryTable, slots: Integers, row: tuple[Integers, Floats], gate: int, clock: Clock, rules: LegacyRules
) -> None:
    """Send along a source's row to the neurons in `slots` (sections 8.2 to 8.5)."""
    target, strength = row
    kept = np.empty(len(target), np.bool_)
    # All are tested before any is reached.
    for i in range(len(target)):
        segment, branch = target[i] >> SEGMENT_SHIFT, target[i] & BRANCH_MASK
        legacy_catch_up(table, slots[i], 2 * clock.token, rules)
        kept[i] = _kept(table, slots[i], branch, segment, clock.token - 1, rules)
    drive = squashed(ONE) if gate else ZERO
    for i in range(len(target)):
        if not kept[i]:
            continue
        segment, branch = target[i] >> SEGMENT_SHIFT, target[i] & BRANCH_MASK
        if rules.strengths:
            drive = strength[i] * rules.scale if gate else ZERO
        table.value[slots[i], branch, segment] = table.value[slots[i], branch, segment] + drive
        table.there[slots[i], branch, segment] = True
        table.time[slots[i], branch, segment] = clock.source_column if segment < rules.columns else clock.token - 1


@jit_inner
def _is_reached(table: EntryTable, slot: int) -> bool:
    """Return whether a neuron has an entry in its last segment, on any branch."""
    reached = False
    for branch in range(table.there.shape[1]):
        reached = reached or table.there[slot, branch, table.there.shape[2] - 1]
    return reached


@jit_inner
def _weight(time: int, segment: int, segments: int, columns: int, times: tuple[int, int], powers: Floats) -> np.float32:
    """Return the factor of an entry for its distance from the expected time (section 8.7)."""
    column, token = times
    expected = column - (columns - segment) if segment < columns else token - (segments - segment)
    distance = abs(expected - max(time, 0))
    return np.float32(powers[min(distance, len(powers) - 1)])


@jit
def legacy_scores(
    table: EntryTable, connected: Integers, clock: Clock, rules: LegacyRules, powers: Floats
) -> tuple[Integers, Floats]:
    """Return which of the neurons in the slots `connected` can be predicted, with their scores (section 8.7).

    `powers` are the weights by distance in time, 1 alone where times do not matter.
    """
    moment, columns, segments = 2 * clock.token + 1, rules.columns, table.value.shape[2]
    neuron, score, count = np.empty(len(connected), np.int64), np.empty(len(connected), np.float32), 0
    for slot in connected:
        if not _is_reached(table, slot):
            continue
        legacy_catch_up(table, slot, moment, rules)
        concept = clock.open_concept and (table.neuron[slot] & FEATURE_MASK) == 0
        times, total = (clock.column + (1 if concept else 0), clock.token), ZERO
        for segment in range(segments):
            best, any_there = ZERO, False
            for branch in range(table.value.shape[1]):
                if table.there[slot, branch, segment]:
                    worth = table.value[slot, branch, segment]
                    if len(powers) > 1:
                        time = table.time[slot, branch, segment]
                        worth = worth * _weight(time, segment, segments, columns, times, powers)
                    best = worth if not any_there else max(best, worth)
                    any_there = True
            total = total + best
        neuron[count], score[count] = table.neuron[slot], total
        count += 1
    return neuron[:count], score[:count]
