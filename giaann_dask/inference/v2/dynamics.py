"""Compute the effect of a source's row on the neurons that it reaches, by the compiled steps of profile ``v2``.

Implements sections 7a to 7e, 7h and 7i and sections 8.1 to 8.7 of the contract of profile ``v2`` for one sequence, as
numba kernels, in float32.

The entries of a neuron are contiguous in a slot of an open-addressed table. What a step does to all entries (moving to
the next segment, decay, becoming 0 or 1) depends on the entry alone, so it is deferred: a slot has a stamp of the last
moment that was applied, and is brought up to date when it is read. Step w consists of two such moments, 2w at its
beginning and 2w + 1 at its end. So the cost of a step depends on the length of its row, however many neurons are
active.

All kernels are in one module, because numba caches compiled code by module: a caller in another module would
keep using the old code of what it calls.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.inference.v2.tables import FREE, MOVED, NEVER, Clock, EntryTable, Floats, LegacyRules, LifRules
from giaann_dask.keys import BRANCH_MASK, FEATURE_MASK, NEURON_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.spec import BRANCH_BITS

# 2 ** 64 divided by the golden ratio, as a signed number: spreads keys that differ little.
_SPREAD = -7046029254386353131

ZERO, HALF, ONE, TWO, HUNDRED = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2), np.float32(100)
# The squash of 1 as the published implementation computes it; rounding the exact value at the end gives
# another number and with it other equal sums (contract, section 7d).
SQUASHED_ONE = np.float32(0.00499999523162841796875)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def find(table: EntryTable, neuron: int) -> int:
    """Return the slot of a neuron, `FREE` where it has none."""
    mask = len(table.neuron) - 1
    slot = ((neuron * _SPREAD) >> 32) & mask
    while table.neuron[slot] != neuron:
        if table.neuron[slot] == FREE:
            return FREE
        slot = (slot + 1) & mask
    return slot


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def take(table: EntryTable, neuron: int, moment: int) -> int:
    """Return the slot of a neuron, a new one where it has none; there must be free ones left."""
    mask = len(table.neuron) - 1
    slot = ((neuron * _SPREAD) >> 32) & mask
    while table.neuron[slot] != neuron:
        if table.neuron[slot] == FREE:
            table.neuron[slot], table.stamp[slot] = neuron, moment
            table.used[0] += 1
            break
        slot = (slot + 1) & mask
    return slot


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _move_slot(old: EntryTable, new: EntryTable, slot: int) -> None:
    """Move a slot in use to another table."""
    to = take(new, old.neuron[slot], old.stamp[slot])
    for branch in range(old.value.shape[1]):
        for segment in range(old.value.shape[2]):
            new.value[to, branch, segment] = old.value[slot, branch, segment]
            if len(old.there) == len(old.neuron):
                new.there[to, branch, segment] = old.there[slot, branch, segment]
                new.time[to, branch, segment] = old.time[slot, branch, segment]
    old.neuron[slot] = MOVED
    old.used[0] -= 1


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def move(old: EntryTable, new: EntryTable, begin: int, end: int) -> None:
    """Move some of the slots of a table to a larger one."""
    for slot in range(begin, end):
        if old.neuron[slot] >= 0:
            _move_slot(old, new, slot)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def move_neurons(old: EntryTable, new: EntryTable, neurons: Integers) -> None:
    """Move the slots of neurons that have one to a larger table."""
    for i in range(len(neurons)):
        slot = find(old, neurons[i])
        if slot != FREE:
            _move_slot(old, new, slot)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def squashed(x: np.float32) -> np.float32:
    """Return ``2 * (sigmoid(x / 100) - 0.5)``, every operation in float32."""
    if x == ONE:
        return SQUASHED_ONE
    # The exponential of doubles, rounded: the same on every processor, which that of float32 is not.
    power = np.float32(math.exp(-np.float64(x / HUNDRED)))
    return (ONE / (ONE + power) - HALF) * TWO


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lif_catch_up_all(table: EntryTable, moment: int, advanced: npt.NDArray[np.bool_], rules: LifRules) -> None:
    """Move all slots on to a moment."""
    for slot in range(len(table.neuron)):
        if table.neuron[slot] != FREE:
            lif_catch_up(table, slot, moment, advanced, rules)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lif_advance(
    table: EntryTable,
    source: int,
    row: tuple[Integers, Floats],
    token: int,
    advanced: npt.NDArray[np.bool_],
    rules: LifRules,
) -> tuple[int, Integers, Floats]:
    """Send along a source's row and return the gate and the candidates with their scores (sections 7b to 7g).

    `row` has target keys and strengths (none where they are not sent). Connections of all branches add up at
    their segment: what moves on is linear, so branches that join on the way have the same sum at the soma.
    """
    target, strength = row
    moment, last, top = 2 * token, table.value.shape[2] - 1, rules.columns - 1
    own = take(table, source, moment)
    lif_catch_up(table, own, moment, advanced, rules)
    fired = table.value[own, 0, last]
    if top >= 0:
        fired = fired + table.value[own, 0, top]
    gate = 1 if fired >= rules.threshold else 0
    begin, drive = len(target), squashed(ONE) if rules.squash else ONE
    for i in range(len(target)):
        segment = target[i] >> SEGMENT_SHIFT
        if segment == last and begin == len(target):
            begin = i
        if gate == 0:
            continue
        if rules.strengths:
            drive = squashed(strength[i]) if rules.squash else strength[i]
        slot = take(table, (target[i] >> BRANCH_BITS) & NEURON_MASK, moment)
        lif_catch_up(table, slot, moment, advanced, rules)
        table.value[slot, 0, segment] = table.value[slot, 0, segment] + drive
    slots = np.empty(len(target) - begin, np.int64)
    count = 0
    for i in range(begin, len(target)):
        slot = find(table, (target[i] >> BRANCH_BITS) & NEURON_MASK)
        if slot == FREE or (count > 0 and slots[count - 1] == slot):
            continue
        lif_catch_up(table, slot, moment, advanced, rules)
        if table.value[slot, 0, last] > ZERO:
            slots[count] = slot
            count += 1
    table.value[own, 0, last] = ZERO
    if rules.clear_source and top >= 0:
        table.value[own, 0, top] = ZERO
    neuron, score, kept = np.empty(count, np.int64), np.empty(count, np.float32), 0
    for i in range(count):
        worth = table.value[slots[i], 0, last]
        if top >= 0:
            worth = worth + table.value[slots[i], 0, top]
        if worth >= rules.threshold:
            neuron[kept], score[kept] = table.neuron[slots[i]], worth
            kept += 1
    return gate, neuron[:kept], score[:kept]


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lif_settle(table: EntryTable, following: int, token: int, advanced: npt.NDArray[np.bool_], rules: LifRules) -> None:
    """End a step, and burst the next source (section 7i)."""
    slot = take(table, following, 2 * token + 1)
    lif_catch_up(table, slot, 2 * token + 1, advanced, rules)
    last = table.value.shape[2] - 1
    table.value[slot, 0, last] = table.value[slot, 0, last] + rules.burst


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def legacy_catch_up_all(table: EntryTable, moment: int, rules: LegacyRules) -> None:
    """Move all slots on to a moment."""
    for slot in range(len(table.neuron)):
        if table.neuron[slot] != FREE:
            legacy_catch_up(table, slot, moment, rules)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def legacy_burst(table: EntryTable, neuron: int, moment: int, rules: LegacyRules) -> None:
    """Add the burst to the strongest branch of a neuron."""
    slot = take(table, neuron, moment)
    legacy_catch_up(table, slot, moment, rules)
    branch, last = strongest(table.value[slot]), table.value.shape[2] - 1
    for segment in range(0 if rules.burst_all else last, last + 1):
        table.value[slot, branch, segment] = table.value[slot, branch, segment] + rules.burst
        table.there[slot, branch, segment] = True


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def legacy_clear(table: EntryTable, source: int, moment: int, rules: LegacyRules) -> None:
    """Set the strongest branch of a source to 0; its entries stay (section 8.6)."""
    slot = find(table, source)
    if slot != FREE:
        legacy_catch_up(table, slot, moment, rules)
        branch = strongest(table.value[slot])
        for segment in range(table.value.shape[2]):
            table.value[slot, branch, segment] = ZERO


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _kept(table: EntryTable, slot: int, branch: int, segment: int, now: int, rules: LegacyRules) -> bool:
    """Return whether the entry before a connection's own lets it pass (section 8.3)."""
    if not rules.exact or segment <= rules.columns:
        return True
    before = table.time[slot, branch, segment - 1]
    return bool(before != NEVER and now - before == 1 and table.value[slot, branch, segment - 1] > ZERO)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def legacy_advance(
    table: EntryTable, source: int, row: tuple[Integers, Floats], clock: Clock, rules: LegacyRules
) -> int:
    """Send along a source's row, silence the source and return the gate (sections 8.2 to 8.6)."""
    target, strength = row
    moment, last = 2 * clock.token, table.value.shape[2] - 1
    gate, own = 0, find(table, source)
    if own != FREE:
        legacy_catch_up(table, own, moment, rules)
        for branch in range(table.value.shape[1]):
            for segment in range(last + 1):
                # Values are never negative: a sum is positive where any value is.
                if table.there[own, branch, last] and table.value[own, branch, segment] > ZERO:
                    gate = 1
    slots = np.empty(len(target), np.int64)
    # All are tested before any is reached.
    for i in range(len(target)):
        segment, branch = target[i] >> SEGMENT_SHIFT, target[i] & BRANCH_MASK
        slots[i] = take(table, (target[i] >> BRANCH_BITS) & NEURON_MASK, moment)
        legacy_catch_up(table, slots[i], moment, rules)
        if not _kept(table, slots[i], branch, segment, clock.token - 1, rules):
            slots[i] = FREE
    drive = squashed(ONE) if gate else ZERO
    for i in range(len(target)):
        if slots[i] == FREE:
            continue
        segment, branch = target[i] >> SEGMENT_SHIFT, target[i] & BRANCH_MASK
        if rules.strengths:
            drive = strength[i] * rules.scale if gate else ZERO
        table.value[slots[i], branch, segment] = table.value[slots[i], branch, segment] + drive
        table.there[slots[i], branch, segment] = True
        table.time[slots[i], branch, segment] = clock.source_column if segment < rules.columns else clock.token - 1
    legacy_clear(table, source, moment + 1, rules)
    return gate


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _is_reached(table: EntryTable, slot: int) -> bool:
    """Return whether a neuron has an entry in its last segment, on any branch."""
    reached = False
    for branch in range(table.there.shape[1]):
        reached = reached or table.there[slot, branch, table.there.shape[2] - 1]
    return reached


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _weight(time: int, segment: int, segments: int, columns: int, times: tuple[int, int], powers: Floats) -> np.float32:
    """Return the factor of an entry for its distance from the expected time (section 8.7)."""
    column, token = times
    expected = column - (columns - segment) if segment < columns else token - (segments - segment)
    distance = abs(expected - max(time, 0))
    return np.float32(powers[min(distance, len(powers) - 1)])


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def legacy_scores(
    table: EntryTable, connected: Integers, clock: Clock, rules: LegacyRules, powers: Floats
) -> tuple[Integers, Floats]:
    """Return the connected neurons that can be predicted with their scores (section 8.7).

    `powers` are the weights by distance in time, 1 alone where times do not matter.
    """
    moment, columns, segments = 2 * clock.token + 1, rules.columns, table.value.shape[2]
    neuron, score, count = np.empty(len(connected), np.int64), np.empty(len(connected), np.float32), 0
    for i in range(len(connected)):
        slot = find(table, connected[i])
        if slot == FREE or not _is_reached(table, slot):
            continue
        legacy_catch_up(table, slot, moment, rules)
        concept = clock.open_concept and (connected[i] & FEATURE_MASK) == 0
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
        neuron[count], score[count] = connected[i], total
        count += 1
    return neuron[:count], score[:count]
