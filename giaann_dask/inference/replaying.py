"""Compiled steps of many sequences on the CPU: replaying what has reached the neurons that can win.

Covers: sections 8.1 to 8.6 of the contract for sequences whose rows are here, as numba kernels: the
activity of a source, the connected neurons, their state from the sequence's history, their values
and the first largest of them.
Does not cover: which sequences advance, where rows come from and what is fed (`batch`), the same on
other devices (`dense`), or the state of all neurons (`activation`).

The history of a neuron depends on the sources of its sequence and on its own bursts and
deactivations, never on other targets (`pulled`). A row is sorted by segment, then target, so that what
a source sends to a neuron is found by a search in a slice. All searches of a slice go down together, one
halving after the other, so that the memory is waited for once and not once for each.

Most searches are never made: an entry behind one that is not active is not reached, a boolean entry
that is already 1 stays 1, and the column segments of a neuron whose last segment was not reached do
not matter, because it is no candidate. The float32 operations that are left are those of
`activation`, in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from giaann_dask.inference.activation import Layout
from giaann_dask.inference.options import InferenceOptions
from giaann_dask.network.keys import SEGMENT_SHIFT
from giaann_dask.spec import BRANCH_BITS, MAXIMUM_FEATURES, NEURON_BITS

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float32]
Small: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.int8]
Entries: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]

NONE = -1
INTERNAL = 2
GOES_ON, NO_CONNECTIONS, NO_CANDIDATES, REJECTED = range(4)

_NEURON_MASK = (1 << NEURON_BITS) - 1
_BRANCH_MASK = (1 << BRANCH_BITS) - 1
_FEATURE_MASK = MAXIMUM_FEATURES - 1
_FEATURE_BITS = MAXIMUM_FEATURES.bit_length() - 1


class Rules(NamedTuple):
    """What the kernels read of a specification and of options, as integers.

    Attributes
    ----------
    segments, columns, branches : int
        All segments, the column segments among them, and branches.
    timing : int
        0 none, 1 biased, 2 exact.
    boolean_from : int
        First segment whose entries are 0 or 1; `segments` for none.
    sequential : bool
        Whether an entry needs the one before it.
    drives : ndarray
        Drive by activity, float32, shape ``(branches + 1,)``.
    """

    segments: int
    columns: int
    branches: int
    timing: int
    boolean_from: int
    sequential: bool
    drives: Floats

    @classmethod
    def of(cls, layout: Layout, options: InferenceOptions) -> Rules:
        """Return the rules of a network and of options."""
        segments = layout.last_segment + 1
        boolean = {"boolf": layout.column_segments, "boolf+c": 0, "intf+c": segments}
        return cls(
            segments,
            layout.column_segments,
            layout.branches,
            ("none", "biased", "exact").index(options.timing),
            boolean[options.activations],
            options.sequential,
            np.array(layout.drives, np.float32),
        )


class RowTable(NamedTuple):
    """Where rows are in memory, by a row's place in the table.

    Attributes
    ----------
    address : ndarray
        Of the first target key, int64, shape ``(rows,)``; who fills it in keeps the arrays.
    bounds : ndarray
        Where each segment begins, and the end, int64, shape ``(rows, segments + 1)``.
    """

    address: Integers
    bounds: Integers


class Slots(NamedTuple):
    """All steps of the sequences of a batch, a line for each; step w predicts token w.

    Attributes
    ----------
    source : ndarray
        Source neuron of step w, int64, shape ``(slots, steps + 1)``.
    row : ndarray
        Its row's place in the table, `NONE` without connections; int64, the same shape.
    mode : ndarray
        Its mode, 0 none, 1 delimiter, 2 internal; int8, the same shape.
    nouns : ndarray
        Concepts among tokens 0 to w, int32, shape ``(slots, steps)``, as all that follow.
    drive, activity : ndarray
        What the source of step w sent, float32, and its active branches, int8.
    burst : ndarray
        Neuron burst at the end of step w, or `NONE`; int64.
    predicted, stop : ndarray
        Neuron predicted or `NONE`, int64, and why none was, int8.
    candidates, ties, value : ndarray
        How many candidates, how many with the largest value, and this value; int32, int32, float32.
    done : ndarray
        Steps done, int64, shape ``(slots,)``, as both that follow.
    seeds, given : ndarray
        Steps of the seed phase, and tokens that are known.
    feeds : ndarray
        Whether predictions are fed, bool, shape ``(slots,)``.
    """

    source: Integers
    row: Integers
    mode: Bytes
    nouns: Small
    drive: Floats
    activity: Bytes
    burst: Integers
    predicted: Integers
    stop: Bytes
    candidates: Small
    ties: Small
    value: Floats
    done: Integers
    seeds: Integers
    given: Integers
    feeds: npt.NDArray[np.bool_]


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(context: Any, address: Any) -> Any:
    """Return an address as a pointer to 64-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(address), generate


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def advance(
    slots: Slots, which: Integers, until: Integers, table: RowTable, rules: Rules
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
    rules : Rules
        Of the network and of inference.

    Returns
    -------
    pointer, neuron, value : ndarray
        Candidates of the last step of each of them: those of the i-th are ``pointer[i]:pointer[i + 1]``;
        int64, int64, float32.
    """
    room = 0
    last = rules.segments - 1
    for i in range(len(which)):
        at = slots.row[which[i], until[i] - 1]
        if at >= 0:
            room += table.bounds[at, last + 1] - table.bounds[at, last]
    neuron, value = np.empty(room, np.int64), np.empty(room, np.float32)
    pointer = np.zeros(len(which) + 1, np.int64)
    for i in range(len(which)):
        slot = which[i]
        filled = pointer[i]
        pointer[i + 1] = filled
        for w in range(slots.done[slot], until[i]):
            found, worth = _step(slots, slot, w, table, rules)
            if w == until[i] - 1:
                neuron[filled : filled + len(found)] = found
                value[filled : filled + len(found)] = worth
                pointer[i + 1] = filled + len(found)
            if slots.done[slot] == w:
                break
    return pointer, neuron[: pointer[-1]].copy(), value[: pointer[-1]].copy()


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _step(slots: Slots, slot: int, w: int, table: RowTable, rules: Rules) -> tuple[Integers, Floats]:
    """Do one step of a sequence (contract, section 8); where it is not completed, `done` stays."""
    nothing, worthless = np.empty(0, np.int64), np.empty(0, np.float32)
    source = slots.source[slot, w]
    if w > 0:
        active = _activity(slots, slot, w, source, table, rules)
        slots.activity[slot, w], slots.drive[slot, w] = active, rules.drives[active]
    if w == 0 or w < slots.seeds[slot]:
        slots.burst[slot, w] = slots.source[slot, w + 1]
        slots.done[slot] = w + 1
        return nothing, worthless
    slots.burst[slot, w] = NONE
    connected = _connected(slots.row[slot, w], table, rules)
    stop = NO_CONNECTIONS
    if len(connected) or not slots.feeds[slot]:
        stop = NO_CANDIDATES
        nothing, worthless = _score(slots, slot, w, connected, table, rules)
    if len(nothing):
        best = 0
        for i in range(1, len(nothing)):
            if worthless[i] > worthless[best]:
                best = i
        slots.candidates[slot, w], slots.value[slot, w] = len(nothing), worthless[best]
        slots.ties[slot, w] = (worthless == worthless[best]).sum()
        rejected = slots.mode[slot, w] == INTERNAL and nothing[best] >> _FEATURE_BITS != source >> _FEATURE_BITS
        stop = REJECTED if rejected else GOES_ON
        if not rejected:
            slots.predicted[slot, w] = nothing[best]
    slots.stop[slot, w] = stop
    if slots.feeds[slot]:
        if stop != GOES_ON:
            return nothing, worthless
        following = slots.predicted[slot, w]
        slots.source[slot, w + 1] = following
        if w >= slots.given[slot]:
            slots.nouns[slot, w] = slots.nouns[slot, w - 1] + (1 if following & _FEATURE_MASK == 0 else 0)
    slots.done[slot] = w + 1
    return nothing, worthless


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _targets(at: int, table: RowTable) -> Integers:
    return nb.carray(_pointer(table.address[at]), (table.bounds[at, -1],), np.int64)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _connected(at: int, table: RowTable, rules: Rules) -> Integers:
    """Return the neurons that a row reaches in the last segment, ascending, distinct."""
    if at < 0:
        return np.empty(0, np.int64)
    target = _targets(at, table)
    begin, end = table.bounds[at, rules.segments - 1], table.bounds[at, rules.segments]
    neuron = np.empty(end - begin, np.int64)
    count, before = 0, -1
    for entry in range(begin, end):
        its = (target[entry] >> BRANCH_BITS) & _NEURON_MASK
        if its != before:
            neuron[count] = its
            before = its
            count += 1
    return neuron[:count]


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _activity(slots: Slots, slot: int, steps: int, neuron: int, table: RowTable, rules: Rules) -> int:
    """Return how many branches of a neuron are active after some steps (contract, section 8.4a)."""
    one, place = np.array([neuron]), np.zeros(1, np.int64)
    state = _empty_entries(1, rules)
    _replay(slots, slot, steps, (one, place), (0, rules.segments, True), state, table, rules)
    active = 0
    for branch in range(rules.branches):
        positive = False
        for s in range(rules.segments):
            positive |= state[0][s, 0, branch] > 0
        active += positive and state[2][-1, 0, branch]
    return active


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _score(
    slots: Slots, slot: int, w: int, connected: Integers, table: RowTable, rules: Rules
) -> tuple[Integers, Floats]:
    """Return which connected neurons can be predicted in step w, and their values (section 8.6b)."""
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
    if len(whole):
        _replay(slots, slot, steps, (connected, whole), (0, segments, True), state, table, rules)
    _replay(slots, slot, steps, (connected, others), (columns, segments, False), state, table, rules)
    reached = np.zeros(len(connected), np.bool_)
    for place in range(len(connected)):
        reached[place] = state[2][-1, place].any()
    left = np.flatnonzero(reached & ~acted)
    _replay(slots, slot, steps, (connected, left), (0, columns, False), state, table, rules)
    places = np.flatnonzero(reached)
    value = np.empty(len(places), np.float32)
    given = w < slots.given[slot]
    nouns = slots.nouns[slot, w] if given else slots.nouns[slot, w - 1]
    for i in range(len(places)):
        concept = connected[places[i]] & _FEATURE_MASK == 0
        column_time = nouns + 1 if concept and not given else nouns
        value[i] = _worth(state, places[i], (column_time, w), rules)
    return connected[places], value


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _worth(state: Entries, place: int, times: tuple[int, int], rules: Rules) -> np.float32:
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


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _empty_entries(neurons: int, rules: Rules) -> Entries:
    """Return the entries of some neurons before the first step, shape ``(segments, neurons, branches)``."""
    shape = (rules.segments, neurons, rules.branches)
    return np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.zeros(shape, np.bool_)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _place(neurons: Integers, neuron: int) -> int:
    """Return where a neuron is among ascending ones, or `NONE`."""
    place = np.searchsorted(neurons, neuron)
    return place if place < len(neurons) and neurons[place] == neuron else NONE


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _replay(
    slots: Slots,
    slot: int,
    steps: int,
    chosen: tuple[Integers, Integers],
    part: tuple[int, int, bool],
    state: Entries,
    table: RowTable,
    rules: Rules,
) -> None:
    """Do some steps for some neurons and for a range of segments.

    `chosen` are neurons and the places among them of those that are followed, `part` the first
    segment, the one after the last, and whether they are burst and deactivated.
    """
    neurons, places = chosen
    low, high, acts = part
    if not len(places):
        return
    search = np.empty((3, len(places)), np.int64)
    waiting = False
    for step in range(steps):
        if step > 0:
            row = slots.row[slot, step]
            for s in range(high - 1, low - 1, -1):
                if row >= 0 and table.bounds[row, s] < table.bounds[row, s + 1]:
                    now = slots.nouns[slot, step - 1] if s < rules.columns else step - 1
                    pulse = (slots.drive[slot, step], np.int32(now))
                    bounds = (table.bounds[row, s], table.bounds[row, s + 1])
                    _take(_targets(row, table), bounds, s, pulse, chosen, search, state, rules)
            if waiting and rules.boolean_from < rules.segments:
                state[0][-1, :, 0] = np.sign(state[0][-1, :, 0])
            waiting = False
        if not acts:
            continue
        source = _place(neurons, slots.source[slot, step])
        if source >= 0:
            if step == 0:
                _burst(state, source)
            _deactivate(state, source, rules)
        burst = _place(neurons, slots.burst[slot, step])
        if burst >= 0:
            _burst(state, burst)
            waiting = True


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _burst(state: Entries, place: int) -> None:
    """Add 1 to branch 0 of a neuron's last segment."""
    state[0][-1, place, 0] += np.float32(1)
    state[2][-1, place, 0] = True


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _deactivate(state: Entries, place: int, rules: Rules) -> None:
    """Set the strongest branch of a neuron to 0; the lowest of equal ones."""
    best, most = 0, np.float32(-1)
    for branch in range(rules.branches):
        total = np.float32(0)
        for s in range(rules.segments):
            total += state[0][s, place, branch]
        if total > most:
            best, most = branch, total
    state[0][:, place, best] = np.float32(0)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _take(
    target: Integers,
    bounds: tuple[int, int],
    s: int,
    pulse: tuple[np.float32, np.int32],
    chosen: tuple[Integers, Integers],
    search: Integers,
    state: Entries,
    rules: Rules,
) -> None:
    """Take in what one segment of a row sends to some neurons (contract, section 8.4)."""
    drive, now = pulse
    value, time, found = state
    gated = s != 0 and s != rules.columns
    # Without times an entry of value 0 matters in the last segment only, where it makes a candidate.
    if drive == 0 and rules.timing == 0 and s != rules.segments - 1:
        return
    count = 0
    for place in chosen[1]:
        if _can_change(state, s, place, gated, rules):
            search[0, count] = place
            search[1, count] = (s << SEGMENT_SHIFT) | (chosen[0][place] << BRANCH_BITS)
            search[2, count] = bounds[0]
            count += 1
    _lower_bounds(target, bounds, search[1, :count], search[2, :count])
    for i in range(count):
        place, entry, base = search[0, i], search[2, i], search[1, i] >> BRANCH_BITS
        while entry < bounds[1] and target[entry] >> BRANCH_BITS == base:
            branch = target[entry] & _BRANCH_MASK
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


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _can_change(state: Entries, s: int, place: int, gated: bool, rules: Rules) -> bool:
    """Return whether a connection to a neuron in a segment could change anything."""
    if rules.sequential and gated:
        reachable = False
        for branch in range(rules.branches):
            reachable |= state[0][s - 1, place, branch] > 0
        if not reachable:
            return False
    if rules.timing > 0 or s < rules.boolean_from:
        return True
    for branch in range(rules.branches):
        if state[0][s, place, branch] != 1:
            return True
    return False


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _lower_bounds(target: Integers, bounds: tuple[int, int], keys: Integers, at: Integers) -> None:
    """Move places, all at the begin of a slice, to the first entry that is not before each key."""
    size = bounds[1] - bounds[0]
    while size > 1:
        half = size // 2
        for i in range(len(keys)):
            at[i] += half if target[at[i] + half - 1] < keys[i] else 0
        size -= half
    for i in range(len(keys)):
        at[i] += target[at[i]] < keys[i]
