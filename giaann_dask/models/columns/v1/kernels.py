"""Advance many sequences on the CPU with compiled steps that replay the histories of the neurons that can win.

Implements sections 8.1 to 8.6 of the contract as numba kernels: the activity of a source, the connected neurons, their
state from the sequence's history, their values and the first largest of them.

The history of a neuron depends on the sources of its sequence and on its own bursts and deactivations, never on other
targets. A row is sorted by segment, then target, so that a search in a slice finds what a source sends to a neuron.
All searches of a slice advance together, one halving after the other, so that their memory accesses overlap; many
searches in a short slice walk through it.

Most searches are never made: an entry behind one that is not active is not reached, a boolean entry that is already 1
stays 1, and the column segments of a neuron whose last segment was not reached do not matter, because it is no
candidate. The remaining float32 operations are those of `activation`, in the same order.

All kernels are in one module, because numba caches compiled code by module: a caller in another module would
keep using the old code of what it calls.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from giaann_dask.keys import BRANCH_MASK, FEATURE_MASK, NEURON_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.columns.state.name_order import precedes
from giaann_dask.models.columns.v1.tables import (
    GOES_ON,
    INTERNAL,
    NO_CANDIDATES,
    NO_CONNECTIONS,
    NONE,
    REJECTED,
    Floats,
    KernelRules,
    RowTable,
    Slots,
)
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS

# A slice of at most so many entries for each search is walked through. An unsigned index needs no test for being
# negative. Both together: 93 instead of 104 microseconds a token in batches on 68 million connections.
_WALKED = 16

Entries: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(context: Any, address: Any) -> Any:
    """Return an address as a pointer to 64-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(address), generate


@jit
def advance(
    slots: Slots, which: Integers, until: Integers, table: RowTable, rules: KernelRules
) -> tuple[Integers, Integers, Floats]:
    """Do the steps of some slots up to those given, or to where a sequence ends for lack of a prediction.

    Parameters
    ----------
    slots : Slots
        Changed in place. Sources, rows and modes of the steps to do are filled in; with predictions fed
        this does the same for the source of the step after, but not for its row and mode.
    which, until : ndarray
        Slots, and the number of steps that each shall have done, int64.
    table : RowTable
        The rows.
    rules : KernelRules
        Of the network and of inference.

    Returns
    -------
    pointer, neuron, value : ndarray
        Candidates of each of the steps asked for, slot by slot: those of the i-th are
        ``pointer[i]:pointer[i + 1]``; int64, int64, float32.
    """
    room = steps = 0
    last = rules.segments - 1
    for i in range(len(which)):
        for w in range(slots.done[which[i]], until[i]):
            at, steps = slots.row[which[i], w], steps + 1
            if at >= 0 and w >= slots.seeds[which[i]]:
                room += table.bounds[at, last + 1] - table.bounds[at, last]
    neuron, value = np.empty(room, np.int64), np.empty(room, np.float32)
    pointer = np.zeros(steps + 1, np.int64)
    step = filled = 0
    for i in range(len(which)):
        begin, ended = slots.done[which[i]], False
        for w in range(begin, until[i]):
            if not ended:
                found, worth = _step(slots, which[i], w, table, rules)
                ended = slots.done[which[i]] == w
                for place in range(len(found)):
                    neuron[filled + place], value[filled + place] = found[place], worth[place]
                filled += len(found)
            step += 1
            pointer[step] = filled
    return pointer, neuron[:filled].copy(), value[:filled].copy()


@jit_inner
def _step(slots: Slots, slot: int, w: int, table: RowTable, rules: KernelRules) -> tuple[Integers, Floats]:
    """Do one step of a sequence (contract, section 8); where it is not completed, `done` stays."""
    found, worth = np.empty(0, np.int64), np.empty(0, np.float32)
    source = slots.source[slot, w]
    if w > 0:
        # Of a predicted neuron the step before has seen it.
        if slots.activity[slot, w] < 0:
            slots.activity[slot, w] = _activity(slots, slot, w, source, table, rules)
        slots.drive[slot, w] = rules.drives[slots.activity[slot, w]]
    if w == 0 or w < slots.seeds[slot]:
        slots.burst[slot, w] = slots.source[slot, w + 1]
        slots.done[slot] = w + 1
        return found, worth
    slots.burst[slot, w] = NONE
    connected = _connected(slots.row[slot, w], table, rules)
    stop, active = NO_CONNECTIONS, 0
    if len(connected) or not slots.feeds[slot]:
        stop = NO_CANDIDATES
        found, worth, best, active = _score(slots, slot, w, connected, table, rules)
    if len(found):
        slots.candidates[slot, w], slots.value[slot, w] = len(found), worth[best]
        slots.ties[slot, w] = (worth == worth[best]).sum()
        rejected = slots.mode[slot, w] == INTERNAL and found[best] >> FEATURE_BITS != source >> FEATURE_BITS
        stop = REJECTED if rejected else GOES_ON
        if not rejected:
            slots.predicted[slot, w] = found[best]
    slots.stop[slot, w] = stop
    if slots.feeds[slot]:
        if stop != GOES_ON:
            return found, worth
        following = slots.predicted[slot, w]
        slots.source[slot, w + 1], slots.activity[slot, w + 1] = following, active
        if w >= slots.given[slot]:
            slots.nouns[slot, w] = slots.nouns[slot, w - 1] + (1 if following & FEATURE_MASK == 0 else 0)
    if slots.bursts[slot]:
        slots.burst[slot, w] = slots.source[slot, w + 1]
    slots.done[slot] = w + 1
    return found, worth


@jit_inner
def _targets(at: int, table: RowTable) -> Integers:
    target: Integers = nb.carray(_pointer(table.address[at]), (table.bounds[at, -1],), np.int64)
    return target


@jit_inner
def _connected(at: int, table: RowTable, rules: KernelRules) -> Integers:
    """Return the neurons that a row reaches in the last segment, ascending, distinct."""
    if at < 0:
        return np.empty(0, np.int64)
    target = _targets(at, table)
    begin, end = table.bounds[at, rules.segments - 1], table.bounds[at, rules.segments]
    neuron = np.empty(end - begin, np.int64)
    count, before = 0, -1
    for entry in range(begin, end):
        its = (target[entry] >> BRANCH_BITS) & NEURON_MASK
        if its != before:
            neuron[count] = its
            before = its
            count += 1
    return neuron[:count]


@jit_inner
def _activity(slots: Slots, slot: int, steps: int, neuron: int, table: RowTable, rules: KernelRules) -> int:
    """Return how many branches of a neuron are active after some steps (contract, section 8.4a)."""
    one, place = np.array([neuron]), np.zeros(1, np.int64)
    acted = 0
    for step in range(steps):
        acted += (slots.source[slot, step] == neuron) + (slots.burst[slot, step] == neuron)
    fresh = acted == 1 and slots.burst[slot, steps - 1] == neuron
    if acted == 0 or fresh:
        # A burst that nothing followed makes branch 0 active, whatever else has reached it.
        others = 1 if fresh else 0
        if not len(_reachable(slots, slot, steps, (one, place), np.array([rules.segments, others]), table, rules)):
            return others
    state = _empty_entries(1, rules)
    _replay(slots, slot, steps, (one, place), np.array([0, rules.segments, 1]), state, table, rules)
    active: int = _active_branches(state, 0, rules)
    return active


@jit_inner
def _active_branches(state: Entries, place: int, rules: KernelRules) -> int:
    active = 0
    for branch in range(rules.branches):
        positive = False
        for s in range(rules.segments):
            positive |= state[0][s, place, branch] > 0
        active += positive and state[2][-1, place, branch]
    return active


@jit_inner
def _score(
    slots: Slots, slot: int, w: int, connected: Integers, table: RowTable, rules: KernelRules
) -> tuple[Integers, Floats, int, int]:
    """Score the connected neurons in step w (contract, section 8.6b).

    Returns those that can be predicted, their values, the place of the first largest, and how many of its
    branches are active.
    """
    state = _empty_entries(len(connected), rules)
    acted = np.zeros(len(connected), np.bool_)
    for step in range(w + 1):
        for neuron in (slots.source[slot, step], slots.burst[slot, step]):
            place = _place(connected, neuron)
            if place >= 0:
                acted[place] = True
    # One that was a source or burst has to be followed whole, because of what it is deactivated by.
    whole, others = np.flatnonzero(acted), np.flatnonzero(~acted)
    steps, columns, segments = w + 1, rules.columns, rules.segments
    # The source's own row reaches the last segment of all of them.
    others = _reachable(slots, slot, w, (connected, others), np.array([segments - 1, 0]), table, rules)
    if len(whole):
        _replay(slots, slot, steps, (connected, whole), np.array([0, segments, 1]), state, table, rules)
    _replay(slots, slot, steps, (connected, others), np.array([columns, segments, 0]), state, table, rules)
    reached = np.zeros(len(connected), np.bool_)
    for place in range(len(connected)):
        reached[place] = state[2][-1, place].any()
    left = np.flatnonzero(reached & ~acted)
    _replay(slots, slot, steps, (connected, left), np.array([0, columns, 0]), state, table, rules)
    places = np.flatnonzero(reached)
    value = np.empty(len(places), np.float32)
    given = w < slots.given[slot]
    nouns = slots.nouns[slot, w] if given else slots.nouns[slot, w - 1]
    best = 0
    for i in range(len(places)):
        concept = connected[places[i]] & FEATURE_MASK == 0
        column_time = nouns + 1 if concept and not given else nouns
        value[i] = _worth(state, places[i], (column_time, w), rules)
        tied = value[i] == value[best]
        if value[i] > value[best] or (tied and precedes(connected[places[i]], connected[places[best]], rules.names)):
            best = i
    active = _active_branches(state, places[best], rules) if len(places) else 0
    return connected[places], value, best, active


@jit_inner
def _worth(state: Entries, place: int, times: tuple[int, int], rules: KernelRules) -> np.float32:
    """Return the sum over segments of the largest value over branches that have an entry."""
    value, time, found = state
    total = np.float32(0)
    for s in range(rules.segments):
        expected = times[0] - (rules.columns - s) if s < rules.columns else times[1] - (rules.segments - s)
        largest, some = np.float32(0), False
        for branch in range(rules.branches):
            if found[s, place, branch]:
                its = value[s, place, branch]
                if rules.timing == 1:
                    its -= np.float32(abs(expected - time[s, place, branch]))
                if not some or its > largest:
                    largest, some = its, True
        total += largest
    return total


@jit_inner
def _empty_entries(neurons: int, rules: KernelRules) -> Entries:
    """Return the entries of some neurons before the first step, shape ``(segments, neurons, branches)``."""
    shape = (rules.segments, neurons, rules.branches)
    return np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.zeros(shape, np.bool_)


@jit_inner
def _place(neurons: Integers, neuron: int) -> int:
    """Return where a neuron is among ascending ones, or `NONE`."""
    low, high = 0, len(neurons)
    while low < high:
        middle = (low + high) // 2
        if neurons[middle] < neuron:
            low = middle + 1
        else:
            high = middle
    return low if low < len(neurons) and neurons[low] == neuron else NONE


@jit_inner
def _reachable(
    slots: Slots,
    slot: int,
    steps: int,
    chosen: tuple[Integers, Integers],
    last: Integers,
    table: RowTable,
    rules: KernelRules,
) -> Integers:
    """Return the positions of neurons whose segments can have been reached in order, from the first to the last.

    From the last of the segments before ``last[0]`` back to the first feature segment, with a step before that
    of the segment after it for each; in the last segment of all, branches before ``last[1]`` do not count.
    The segments far from the first are small, so that most neurons are given up after few searches.
    """
    neurons, places = chosen
    if not rules.sequential or not len(places):
        return places
    alive, before = places.copy(), np.full(len(places), steps, np.int64)
    search = np.empty((3, len(places)), np.int64)
    missing, hit = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    for s in range(last[0] - 1, rules.columns - 1, -1):
        hit[: len(alive)] = NONE
        for step in range(steps - 1, 0, -1):
            row = slots.row[slot, step]
            if row < 0 or table.bounds[row, s] == table.bounds[row, s + 1]:
                continue
            count = 0
            for i in range(len(alive)):
                if hit[i] < 0 and before[i] > step:
                    missing[count] = i
                    search[1, count] = (s << SEGMENT_SHIFT) | (neurons[alive[i]] << BRANCH_BITS)
                    count += 1
            target, end = _targets(row, table), table.bounds[row, s + 1]
            _find(target, table.bounds[row, s], end, search, count)
            for i in range(count):
                entry, least = search[2, i], last[1] if s == rules.segments - 1 else 0
                while entry < end and target[entry] < search[1, i] + least:
                    entry += 1
                if entry < end and target[entry] >> BRANCH_BITS == search[1, i] >> BRANCH_BITS:
                    hit[missing[i]] = step
        count = 0
        for i in range(len(alive)):
            if hit[i] >= 0:
                alive[count], before[count] = alive[i], hit[i]
                count += 1
        alive = alive[:count]
        if count == 0:
            break
    return alive


@jit_inner
def _replay(
    slots: Slots,
    slot: int,
    steps: int,
    chosen: tuple[Integers, Integers],
    part: Integers,
    state: Entries,
    table: RowTable,
    rules: KernelRules,
) -> None:
    """Do some steps for some neurons and for a range of segments.

    `chosen` are neurons and the places among them of those that are followed, `part` the first
    segment, the one after the last, and 1 if they are burst and deactivated, else 0.
    """
    neurons, places = chosen
    low, high, acts = part
    search = np.empty((3, len(places)), np.int64)
    waiting = False
    for step in range(steps if len(places) else 0):
        row = slots.row[slot, step] if step > 0 else NONE
        drive = slots.drive[slot, step]
        # Without times an entry of value 0 matters in the last segment only, where it makes a candidate.
        first = rules.segments - 1 if drive == 0 and rules.timing == 0 else low
        for s in range(high - 1, first - 1 if row >= 0 else high - 1, -1):
            begin, end = table.bounds[row, s], table.bounds[row, s + 1]
            if begin == end:
                continue
            count = _select(s, neurons, places, search, state[0], rules)
            if count == 0:
                continue
            target = _targets(row, table)
            _find(target, begin, end, search, count)
            now = slots.nouns[slot, step - 1] if s < rules.columns else step - 1
            _take(target, end, s, (drive, now), search, count, state, rules)
        if waiting:
            for place in range(len(neurons)):
                if rules.boolean_from < rules.segments and state[0][-1, place, 0] > 0:
                    state[0][-1, place, 0] = np.float32(1)
        waiting = False
        if acts == 1:
            waiting = _act(slots.source[slot, step], slots.burst[slot, step], step, neurons, state, rules)


@jit_inner
def _act(source: int, burst: int, step: int, neurons: Integers, state: Entries, rules: KernelRules) -> bool:
    """Deactivate a source and burst a neuron, where they are among some; return whether one was burst."""
    place = _place(neurons, source)
    if place >= 0:
        if step == 0:
            _burst(state, place)
        _deactivate(state, place, rules)
    place = _place(neurons, burst)
    if place >= 0:
        _burst(state, place)
    return bool(place >= 0)


@jit_inner
def _burst(state: Entries, place: int) -> None:
    """Add 1 to branch 0 of a neuron's last segment."""
    state[0][-1, place, 0] += np.float32(1)
    state[2][-1, place, 0] = True


@jit_inner
def _deactivate(state: Entries, place: int, rules: KernelRules) -> None:
    """Set the strongest branch of a neuron to 0; the lowest of equal ones."""
    best, most = 0, np.float32(-1)
    for branch in range(rules.branches):
        total = np.float32(0)
        for s in range(rules.segments):
            total += state[0][s, place, branch]
        if total > most:
            best, most = branch, total
    state[0][:, place, best] = np.float32(0)


@jit_inner
def _select(s: int, neurons: Integers, places: Integers, search: Integers, value: Floats, rules: KernelRules) -> int:
    """Write down the neurons of which a connection in a segment could change anything; return how many.

    In `search`: their places, their keys, and where their search begins.
    """
    gated = rules.sequential and s != 0 and s != rules.columns
    stays = rules.timing == 0 and s >= rules.boolean_from
    count = 0
    for i in range(len(places)):
        place = places[i]
        reachable, changes = not gated, not stays
        for branch in range(rules.branches):
            reachable |= gated and value[s - 1, place, branch] > 0
            changes |= stays and value[s, place, branch] != 1
        if reachable and changes:
            search[0, count] = place
            search[1, count] = (s << SEGMENT_SHIFT) | (neurons[place] << BRANCH_BITS)
            count += 1
    return count


@jit_inner
def _find(target: Integers, begin: int, end: int, search: Integers, count: int) -> None:
    """Write down the first entry of a slice that is not before each key; the keys ascend."""
    size = end - begin
    if size <= _WALKED * count:
        # Keys ascend, so both are walked through once.
        at = begin
        for i in range(count):
            key = search[1, i]
            while at < end and target[np.uint64(at)] < key:
                at += 1
            search[2, i] = at
        return
    for i in range(count):
        search[2, i] = begin
    while size > 1:
        half = size >> 1
        for i in range(count):
            at = search[2, i]
            search[2, i] = at + half * (target[np.uint64(at + half - 1)] < search[1, i])
        size -= half
    for i in range(count):
        search[2, i] += target[np.uint64(search[2, i])] < search[1, i]


@jit_inner
def _take(
    target: Integers,
    end: int,
    s: int,
    pulse: tuple[np.float32, int],
    search: Integers,
    count: int,
    state: Entries,
    rules: KernelRules,
) -> None:
    """Apply the connections of one segment of a row to the neurons found (contract, section 8.4)."""
    drive, now = pulse
    value, time, found = state
    gated = s != 0 and s != rules.columns
    for i in range(count):
        place, entry, base = search[0, i], search[2, i], search[1, i] >> BRANCH_BITS
        while entry < end and target[entry] >> BRANCH_BITS == base:
            branch = target[entry] & BRANCH_MASK
            entry += 1
            if gated and rules.sequential and not value[s - 1, place, branch] > 0:
                continue
            if gated and rules.timing == 2 and time[s - 1, place, branch] != now - 1:
                continue
            total = value[s, place, branch] + drive
            if s >= rules.boolean_from:
                total = np.float32(1) if total > 0 else np.float32(0)
            value[s, place, branch] = total
            found[s, place, branch] = True
            if rules.timing > 0:
                time[s, place, branch] = now
