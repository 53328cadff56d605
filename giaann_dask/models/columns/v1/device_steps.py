"""Advance all sequences of a batch on a GPU with one kernel: the steps of `v1.kernels`, with the same values.

A block of threads does the steps of one sequence. In a step every thread takes some of the connected neurons and
follows each through the history of the sequence; then the block chooses the most active one. Floats are only added and
subtracted, in float32 and in the order of `v1.kernels`; no product can be contracted, and fast math is off.

Target keys of rows are in device memory, up to a limit. Others stay in the memory of the processor, and come when a
step needs them. The module is imported where a device is chosen, because it imports numba's compiler for GPUs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from giaann_dask.device import free_device_bytes, gpu
from giaann_dask.keys import BRANCH_MASK, FEATURE_MASK, NEURON_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.v1.tables import (
    GOES_ON,
    INTERNAL,
    NO_CANDIDATES,
    NO_CONNECTIONS,
    NONE,
    REJECTED,
    Floats,
    KernelRules,
    Slots,
    step_pairs,
)
from giaann_dask.rows.source import RowSource, RunRows, require_layout
from giaann_dask.runs.run import Run, pointer_of
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS

Found: TypeAlias = tuple[Integers, Integers, Floats]
# Threads of a block.
BLOCK_THREADS = 128
# Entries of candidates that one launch may return; 12 bytes each.
_MOST_RETURNED = 1 << 26
# All rows of a network are brought together where at least one in so many is wanted.
_PART = 8
# Target keys that are checked in one go, so that they stay in the processor's caches.
_CHECKED = 1 << 16
# Of the free memory of a device; batches and the sums of training need the rest.
_SHARE = 0.5

# What a launch reads and writes of every step, and of every sequence.
_SOURCE, _BURST, _PREDICTED, _ROW = range(4)
_NOUNS, _ACTIVITY, _MODE, _CANDIDATES, _TIES, _STOP = range(6)
_DONE, _UNTIL, _SEEDS, _GIVEN, _FEEDS, _BURSTS = range(6)


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _lower_bound(keys: Any, begin: int, end: int, key: int) -> int:
    """Return the place of the first of ascending keys that is not before one."""
    while begin < end:
        middle = (begin + end) >> 1
        if keys[middle] < key:
            begin = middle + 1
        else:
            end = middle
    return begin


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _precedes(one: int, other: int, concept_rank: Any, feature_rank: Any) -> bool:
    """Return whether a neuron is before another one, as `name_order.precedes` does."""
    column, feature = one >> FEATURE_BITS, one & FEATURE_MASK
    its_column, its_feature = other >> FEATURE_BITS, other & FEATURE_MASK
    if max(column, its_column) >= concept_rank.shape[0] or max(feature, its_feature) >= feature_rank.shape[0]:
        return one < other
    if column != its_column:
        return concept_rank[column] < concept_rank[its_column]  # type: ignore[no-any-return]
    return feature_rank[feature] < feature_rank[its_feature]  # type: ignore[no-any-return]


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _take(target: Any, entry: int, end: int, s: int, pulse: Any, state: Any, rules: Any) -> None:
    """Apply the connections of a row to a neuron in one segment, from the first of them on (contract, section 8.4)."""
    drive, now = pulse
    value, time, found = state
    columns, timing, boolean_from, sequential = rules
    gated, base = s != 0 and s != columns, target[entry] >> BRANCH_BITS
    while entry < end and target[entry] >> BRANCH_BITS == base:
        branch = target[entry] & BRANCH_MASK
        entry += 1
        if gated and sequential and not value[s - 1, branch] > 0:
            continue
        if gated and timing == 2 and time[s - 1, branch] != now - 1:
            continue
        total = value[s, branch] + drive
        if s >= boolean_from:
            total = np.float32(1) if total > 0 else np.float32(0)
        value[s, branch] = total
        found[s, branch] = 1
        if timing > 0:
            time[s, branch] = now


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _act(step: int, acting: Any, state: Any, boolean: bool) -> None:
    """End a step of a neuron: deactivate it where it was the source, and burst it where that was said."""
    source, burst = acting
    value, _, found = state
    last = value.shape[0] - 1
    if boolean and value[last, 0] > 1:
        value[last, 0] = np.float32(1)
    if source:
        if step == 0:
            value[last, 0] += np.float32(1)
            found[last, 0] = 1
        best, most = 0, np.float32(-1)
        for branch in range(value.shape[1]):
            total = np.float32(0)
            for s in range(last + 1):
                total += value[s, branch]
            if total > most:
                best, most = branch, total
        for s in range(last + 1):
            value[s, best] = np.float32(0)
    if burst:
        value[last, 0] += np.float32(1)
        found[last, 0] = 1


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _worth(state: Any, times: Any, columns: int, timing: int) -> np.float32:
    """Return the sum over segments of the largest value over branches that have an entry."""
    value, time, found = state
    total, segments = np.float32(0), value.shape[0]
    for s in range(segments):
        expected = times[0] - (columns - s) if s < columns else times[1] - (segments - s)
        largest, some = np.float32(0), False
        for branch in range(value.shape[1]):
            if found[s, branch] != 0:
                its = value[s, branch]
                if timing == 1:
                    its -= np.float32(abs(expected - time[s, branch]))
                if not some or its > largest:
                    largest, some = its, True
        total += largest
    return total


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _active(state: Any) -> int:
    """Return how many branches of a neuron are active (contract, section 8.4a)."""
    value, _, found = state
    active, last = 0, value.shape[0] - 1
    for branch in range(value.shape[1]):
        positive = False
        for s in range(last + 1):
            positive = positive or value[s, branch] > 0
        if positive and found[last, branch] != 0:
            active += 1
    return active


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _empty(state: Any) -> None:
    """Set the entries of a neuron to those before the first step."""
    value, time, found = state
    for s in range(value.shape[0]):
        for branch in range(value.shape[1]):
            value[s, branch] = np.float32(0)
            time[s, branch] = 0
            found[s, branch] = 0


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _can_change(s: int, state: Any, rules: Any) -> bool:
    """Return whether a connection in a segment could change anything."""
    value = state[0]
    columns, timing, boolean_from, sequential = rules
    gated, stays = sequential and s != 0 and s != columns, timing == 0 and s >= boolean_from
    reachable, changes = not gated, not stays
    for branch in range(value.shape[1]):
        reachable = reachable or (gated and value[s - 1, branch] > 0)
        changes = changes or (stays and value[s, branch] != 1)
    return reachable and changes


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _follow(
    neuron: int, steps: int, part: Any, tables: Any, sequence: Any, drives: Any, state: Any, rules: Any
) -> None:
    """Do some steps for one neuron, in the segments from the first to before the last that `part` names.

    `part` also says whether it is deactivated and burst.
    """
    target, bounds = tables
    wide, narrow, i = sequence
    low, high, acts = part
    for step in range(steps):
        row = wide[_ROW, i, step] if step > 0 else NONE
        if row >= 0:
            drive = drives[narrow[_ACTIVITY, i, step]]
            for back in range(high - low):
                s = high - 1 - back
                if not _can_change(s, state, rules):
                    continue
                key = (s << SEGMENT_SHIFT) | (neuron << BRANCH_BITS)
                end = bounds[row, 1]
                entry = _lower_bound(target, bounds[row, 0], end, key)
                if entry < end and target[entry] >> BRANCH_BITS == key >> BRANCH_BITS:
                    now = narrow[_NOUNS, i, step - 1] if s < rules[0] else step - 1
                    _take(target, entry, end, s, (drive, now), state, rules)
        if acts:
            acting = (wide[_SOURCE, i, step] == neuron, wide[_BURST, i, step] == neuron)
            _act(step, acting, state, rules[2] < state[0].shape[0])


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _find_rows(source: Any, wide: Any, i: int, until: int, block: Any) -> None:
    """Find the rows of the sources of a sequence, each thread of the block those of some steps."""
    thread, threads = block
    for step in range(1 + thread, until, threads):
        at = _lower_bound(source, 0, source.shape[0], wide[_SOURCE, i, step])
        there = at < source.shape[0] and source[at] == wide[_SOURCE, i, step]
        wide[_ROW, i, step] = at if there else NONE


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _activate(
    neuron: int, w: int, tables: Any, sequence: Any, drives: Any, state: Any, rules: Any, entries: Any, block: Any
) -> None:
    """Do the steps before one for its source, in the state of the first thread.

    Searches do not depend on each other, and threads share them; what they find, in `entries`, is applied in the order
    of the steps.
    """
    target, bounds = tables
    wide, narrow, i = sequence
    thread, threads = block
    segments = state[0].shape[0]
    if thread == 0:
        _empty(state)
    for first in range(0, w * segments, threads):
        at = first + thread
        step, s = at // segments, segments - 1 - at % segments
        entries[thread] = NONE
        row = wide[_ROW, i, step] if 0 < step < w else NONE
        if row >= 0:
            key = (s << SEGMENT_SHIFT) | (neuron << BRANCH_BITS)
            entry = _lower_bound(target, bounds[row, 0], bounds[row, 1], key)
            if entry < bounds[row, 1] and target[entry] >> BRANCH_BITS == key >> BRANCH_BITS:
                entries[thread] = entry
        gpu.syncthreads()
        for k in range(min(threads, w * segments - first) if thread == 0 else 0):
            step, s = (first + k) // segments, segments - 1 - (first + k) % segments
            if entries[k] >= 0:
                now = narrow[_NOUNS, i, step - 1] if s < rules[0] else step - 1
                pulse = (drives[narrow[_ACTIVITY, i, step]], now)
                _take(target, entries[k], bounds[wide[_ROW, i, step], 1], s, pulse, state, rules)
            if s == 0:
                acting = (wide[_SOURCE, i, step] == neuron, wide[_BURST, i, step] == neuron)
                _act(step, acting, state, rules[2] < segments)
        gpu.syncthreads()


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _reach(candidate: int, w: int, tables: Any, sequence: Any, drives: Any, state: Any, rules: Any) -> bool:
    """Do the steps up to one for a candidate, each segment once; return whether the last segment was reached."""
    wide, _, i = sequence
    segments, columns = state[0].shape[0], rules[0]
    acted = False
    for step in range(w + 1):
        if wide[_SOURCE, i, step] == candidate or wide[_BURST, i, step] == candidate:
            acted = True
    _empty(state)
    # One that acted is followed whole, because of what it is deactivated by.
    part = (0, segments, True) if acted else (columns, segments, False)
    _follow(candidate, w + 1, part, tables, sequence, drives, state, rules)
    reached = False
    for branch in range(state[0].shape[1]):
        reached = reached or state[2][segments - 1, branch] != 0
    if reached and not acted:
        _follow(candidate, w + 1, (0, columns, False), tables, sequence, drives, state, rules)
    return reached


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _choose(
    w: int, span: Any, given: Any, tables: Any, sequence: Any, drives: Any, state: Any, rules: Any, ranks: Any,
    found: Any, block: Any,
) -> Any:  # fmt: skip
    """Return the best of the candidates that a thread follows: neuron, value, ties, count, activity.

    Candidates are the targets of the last segment, at the places of `span` in the row; all that are reached are written
    to `found`, where that is asked for.
    """
    target, (first, end), (thread, threads) = tables[0], span, block
    begins, found_neuron, found_value = found
    is_given, nouns = given
    i = sequence[2]
    best, most, ties, count, active = NONE, np.float32(0), 0, 0, 0
    for k in range(first + thread, end, threads):
        candidate = (target[k] >> BRANCH_BITS) & NEURON_MASK
        if begins[i, w] >= 0:
            found_neuron[begins[i, w] + k - first] = NONE
        if k > first and (target[k - 1] >> BRANCH_BITS) & NEURON_MASK == candidate:
            continue
        if not _reach(candidate, w, tables, sequence, drives, state, rules):
            continue
        later = nouns + 1 if candidate & FEATURE_MASK == 0 and not is_given else nouns
        value = _worth(state, (later, w), rules[0], rules[1])
        count += 1
        if begins[i, w] >= 0:
            found_neuron[begins[i, w] + k - first], found_value[begins[i, w] + k - first] = candidate, value
        if count > 1 and value == most:
            ties += 1
        if count == 1 or value > most:
            best, most, ties, active = candidate, value, 1, _active(state)
        elif value == most and _precedes(candidate, best, ranks[0], ranks[1]):
            best, active = candidate, _active(state)
    return best, most, ties, count, active


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _combine(mine: Any, shared: Any, threads: int, ranks: Any) -> Any:
    """Return the best candidate of all threads, given that of the first one: neuron, value, ties, count, activity."""
    best, most, ties, count, active = mine
    its_neuron, its_value, its_counts = shared
    for k in range(1, threads):
        if its_counts[k, 1] == 0:
            continue
        if count > 0 and its_value[k] == most:
            ties += its_counts[k, 0]
        if count == 0 or its_value[k] > most:
            best, most, ties, active = its_neuron[k], its_value[k], its_counts[k, 0], its_counts[k, 2]
        elif its_value[k] == most and _precedes(its_neuron[k], best, ranks[0], ranks[1]):
            best, active = its_neuron[k], its_counts[k, 2]
        count += its_counts[k, 1]
    return best, most, ties, count, active


@gpu.jit(device=True)  # type: ignore[untyped-decorator]
def _end_step(w: int, chosen: Any, given: Any, some: bool, sequence: Any, largest: Any, line: Any) -> None:
    """Write what a step has found, and whether the sequence goes on."""
    best, most, ties, count, active = chosen
    is_given, nouns = given
    wide, narrow, i = sequence
    feeds = line[_FEEDS, i] != 0
    stop = NO_CANDIDATES if some or not feeds else NO_CONNECTIONS
    if count > 0:
        narrow[_CANDIDATES, i, w], narrow[_TIES, i, w], largest[i, w] = count, ties, most
        leaves = best >> FEATURE_BITS != wide[_SOURCE, i, w] >> FEATURE_BITS
        stop = REJECTED if narrow[_MODE, i, w] == INTERNAL and leaves else GOES_ON
        if stop == GOES_ON:
            wide[_PREDICTED, i, w] = best
    narrow[_STOP, i, w] = stop
    if feeds and stop == GOES_ON:
        wide[_SOURCE, i, w + 1], narrow[_ACTIVITY, i, w + 1] = best, active
        if not is_given:
            narrow[_NOUNS, i, w] = nouns + (1 if best & FEATURE_MASK == 0 else 0)
    if line[_BURSTS, i] != 0:
        wide[_BURST, i, w] = wide[_SOURCE, i, w + 1]
    if not feeds or stop == GOES_ON:
        line[_DONE, i] = w + 1


@lru_cache(maxsize=8)
def step_kernel(shape: tuple[int, int], rules: tuple[int, int, int, bool], threads: int) -> Any:
    """Return the kernel of networks of a shape (segments, branches) and of some rules.

    The rules are column segments, timing, the first segment whose entries are 0 or 1, and whether an entry needs the
    one before it, as in `KernelRules`.
    """
    segments, branches = shape

    @gpu.jit(fastmath=False, cache=True)  # type: ignore[untyped-decorator]
    def advance(
        target: Any, source: Any, bounds: Any, wide: Any, narrow: Any, largest: Any, line: Any, drives: Any,
        concept_rank: Any, feature_rank: Any, begins: Any, found_neuron: Any, found_value: Any,
    ) -> None:  # fmt: skip
        i, thread = gpu.blockIdx.x, gpu.threadIdx.x
        state = (
            gpu.local.array((segments, branches), np.float32),
            gpu.local.array((segments, branches), np.int32),
            gpu.local.array((segments, branches), np.int8),
        )
        # Numba's simulator tells arrays that threads share apart by their lines.
        its_neuron = gpu.shared.array(threads, np.int64)
        its_value = gpu.shared.array(threads, np.float32)
        its_counts = gpu.shared.array((threads, 3), np.int64)
        tables, sequence, block = (target, bounds), (wide, narrow, i), (thread, threads)
        ranks, found = (concept_rank, feature_rank), (begins, found_neuron, found_value)
        # Before the first thread changes them.
        begin, until = line[_DONE, i], line[_UNTIL, i]
        _find_rows(source, wide, i, until, block)
        gpu.syncthreads()
        for w in range(begin, until):
            if w > 0 and narrow[_ACTIVITY, i, w] < 0:
                _activate(wide[_SOURCE, i, w], w, tables, sequence, drives, state, rules, its_neuron, block)
                if thread == 0:
                    narrow[_ACTIVITY, i, w] = _active(state)
                gpu.syncthreads()
            seed = w == 0 or w < line[_SEEDS, i]
            if thread == 0:
                wide[_BURST, i, w] = wide[_SOURCE, i, w + 1] if seed else NONE
                line[_DONE, i] = w + 1 if seed else w
            gpu.syncthreads()
            if seed:
                continue
            row = wide[_ROW, i, w]
            first, end = 0, 0
            if row >= 0:
                end = bounds[row, 1]
                first = _lower_bound(target, bounds[row, 0], end, (segments - 1) << SEGMENT_SHIFT)
            is_given = w < line[_GIVEN, i]
            given = (is_given, narrow[_NOUNS, i, w] if is_given else narrow[_NOUNS, i, w - 1])
            mine = _choose(w, (first, end), given, tables, sequence, drives, state, rules, ranks, found, block)
            its_neuron[thread], its_value[thread] = mine[0], mine[1]
            its_counts[thread, 0], its_counts[thread, 1], its_counts[thread, 2] = mine[2], mine[3], mine[4]
            gpu.syncthreads()
            if thread == 0:
                chosen = _combine(mine, (its_neuron, its_value, its_counts), threads, ranks)
                _end_step(w, chosen, given, end > first, sequence, largest, line)
            gpu.syncthreads()
            if line[_DONE, i] == w:
                break

    return advance


class DeviceRows:
    """Target keys of rows in device memory.

    Parameters
    ----------
    segments, branches : int
        Of the network.
    limit_bytes : float, optional
        Bytes of target keys at most; by default half of what is free on the device.

    Attributes
    ----------
    lock : Lock
        Held while rows are brought and read.
    fetched : int
        Rows asked of sources so far.
    tables : tuple of arrays of the device
        Target keys, source neurons, and where the rows of these begin and end, shape ``(rows, 2)``; int64.
    """

    def __init__(self, segments: int, branches: int, limit_bytes: float | None = None) -> None:
        self.lock, self.fetched = Lock(), 0
        self._layout = segments, branches
        self._limit = (free_device_bytes() * _SHARE if limit_bytes is None else limit_bytes) // 8
        self._last = (segments - 1) << SEGMENT_SHIFT
        self._target = gpu.device_array(1, np.int64)
        self._clear()

    def _clear(self) -> None:
        """Forget all rows; their memory is used again."""
        self._size = 0
        self._source, self._ends = np.zeros((2, 0), np.int64)
        self._bounds = np.zeros((0, 2), np.int64)
        self._upload()

    def missing(self, neurons: Integers) -> Integers:
        """Return which of some distinct neurons have not been brought."""
        return neurons[~np.isin(neurons, self._source, assume_unique=True)]

    def bring(self, rows: RowSource, neurons: Integers) -> bool:
        """Copy the rows of distinct neurons to the device that are not there.

        Others make way where there is no room beside them. Returns False where these alone do not fit.
        """
        wanted = self.missing(neurons)
        if not len(wanted):
            return True
        if self._takes_all(rows, len(wanted)):
            self._add_runs(rows.runs)
            wanted = self.missing(neurons)
        counts, found = self._fetch(rows, wanted)
        if self._size + len(found) > self._limit:
            if len(self._source):
                self._clear()
                wanted, (counts, found) = neurons, self._fetch(rows, neurons)
            if len(found) > self._limit:
                return False
        self._add(wanted, counts, found)
        return True

    def _takes_all(self, rows: RowSource, wanted: int) -> TypeGuard[RunRows]:
        """Return whether all rows come at once: each by itself takes as long as thousands of connections."""
        if not isinstance(rows, RunRows) or rows.divided or self._size:
            return False
        return (
            wanted * _PART >= sum(map(len, (run.source for run in rows.runs)))
            and sum(map(len, rows.runs)) <= self._limit
        )

    def _add_runs(self, runs: Sequence[Run]) -> None:
        """Copy all rows of some runs to the device, each run in one transfer."""
        for run in runs:
            for begin in range(0, len(run), _CHECKED):
                require_layout(run.target[begin : begin + _CHECKED], *self._layout, ordered=False)
            bounds = np.stack([run.pointer[:-1], run.pointer[1:]], axis=1)
            self._hold(run.source, bounds, bounds[:, 1] - _lower_bounds(run.target, bounds, self._last), run.target)
            self.fetched += len(run.source)

    def _fetch(self, rows: RowSource, neurons: Integers) -> tuple[Integers, Integers]:
        """Return how many connections neurons have, and their target keys, row after row."""
        self.fetched += len(neurons)
        found = rows.rows(neurons.tolist())
        each = [np.zeros(0, np.int64) if (row := found[neuron]) is None else row.target for neuron in neurons.tolist()]
        joined = np.concatenate([np.zeros(0, np.int64), *each])
        return np.array(list(map(len, each)), np.int64), require_layout(joined, *self._layout, ordered=False)

    def _add(self, neurons: Integers, counts: Integers, target: Integers) -> None:
        """Copy rows that follow one another to the device."""
        ends = np.cumsum(counts)
        bounds = np.stack([ends - counts, ends], axis=1)
        self._hold(neurons, bounds, ends - _lower_bounds(target, bounds, self._last), target)

    def _hold(self, neurons: Integers, bounds: Integers, last: Integers, target: Integers) -> None:
        """Append target keys to those of the device, with where the rows of neurons are among them."""
        end = self._size + len(target)
        if end > len(self._target):
            grown = gpu.device_array(int(min(2 * end, max(self._limit, end))), np.int64)
            if self._size:
                grown[: self._size].copy_to_device(self._target[: self._size])
            self._target = grown
        if len(target):
            self._target[self._size : end].copy_to_device(target)
        source = np.concatenate([self._source, neurons])
        order = np.argsort(source)
        self._source = source[order]
        self._bounds = np.concatenate([self._bounds, bounds + self._size])[order]
        self._ends = np.concatenate([self._ends, last])[order]
        self._size = end
        self._upload()

    def _upload(self) -> None:
        self.tables = self._target, gpu.to_device(self._source), gpu.to_device(self._bounds)

    def last_entries(self, neurons: Integers) -> Integers:
        """Return how many connections neurons that were brought have in the last segment."""
        return self._ends[self._source.searchsorted(neurons)]


def _lower_bounds(target: Integers, bounds: Integers, key: int) -> Integers:
    """Return the place in each row of the first target key that is not before one; rows are between the bounds."""
    begin, end = bounds[:, 0].copy(), bounds[:, 1].copy()
    while (open_ := begin < end).any():
        middle = (begin + end) >> 1
        before = open_ & (target[np.minimum(middle, len(target) - 1)] < key)
        begin = np.where(before, middle + 1, begin)
        end = np.where(open_ & ~before, middle, end)
    return begin


KEPT_ROWS: dict[tuple[object, ...], DeviceRows] = {}


def kept_rows(rows: RowSource, segments: int, branches: int) -> DeviceRows:
    """Return the copies of rows on the device, which stay for later tasks; those of arrays here while the arrays do.

    Those of other networks make way.
    """
    arrays = [run.target for run in rows.runs] if isinstance(rows, RunRows) else []
    identity = (rows.snapshot,) if rows.snapshot is not None else tuple(map(id, arrays))
    key = (segments, branches, *identity)
    kept = KEPT_ROWS.get(key) if identity else DeviceRows(segments, branches)
    if kept is None:
        KEPT_ROWS.clear()
        kept = KEPT_ROWS[key] = DeviceRows(segments, branches)
        for array in arrays:
            weakref.finalize(array, KEPT_ROWS.pop, key, None).atexit = False
    return kept


class DeviceSteps:
    """Advances sequences in the slots of a batch on a device.

    Parameters
    ----------
    rules : KernelRules
        Of the network and of inference.
    rows : RowSource
        Rows of the network.
    traced : bool
        Whether candidates come back, or what was predicted alone.

    Attributes
    ----------
    held : DeviceRows
        The rows in the memory of the device.
    """

    def __init__(self, rules: KernelRules, rows: RowSource, *, traced: bool = True) -> None:
        self._rules, self._rows, self._traced = rules, rows, traced
        self.held = kept_rows(rows, rules.segments, rules.branches)
        self._drives = gpu.to_device(rules.drives)
        self._order: NameOrder | None = None

    def ask_ahead(self, neurons: Iterable[int]) -> None:
        """Request the rows of neurons that are not on the device, without waiting for them."""
        self._rows.prefetch(self.held.missing(np.unique(np.array(list(neurons), np.int64))).tolist())

    def advance(
        self, slots: Slots, which: Integers, until: Integers, order: NameOrder, compiled: Callable[..., Found]
    ) -> Found:
        """Do the steps of some slots up to those given; everything is as in `v1.kernels.advance`.

        Parameters
        ----------
        slots, which, until
            As there.
        order : NameOrder
            Which of equal candidates is the first.
        compiled : callable
            Does the same on the processor, given `which` and `until`, for a sequence whose rows alone do not fit.
        """
        slot, step = step_pairs(which, np.ones_like(until), until)
        with self.held.lock:
            if self.held.bring(self._rows, np.unique(slots.source[slot, step])):
                slot, step = step_pairs(which, slots.done[which], until)
                ends = np.zeros(len(slot), np.int64)
                later = (step > 0) & (step >= slots.seeds[slot])
                if self._traced:
                    ends[later] = self.held.last_entries(slots.source[slot[later], step[later]])
                if ends.sum() <= _MOST_RETURNED or len(which) == 1:
                    return self.launch(slots, which, until, order, ends)
            elif len(which) == 1:
                return compiled(which, until)
        half = len(which) // 2
        first, second = (
            self.advance(slots, which[part], until[part], order, compiled) for part in (slice(half), slice(half, None))
        )
        pointer = np.concatenate([first[0], second[0][1:] + first[0][-1]])
        return pointer, np.concatenate([first[1], second[1]]), np.concatenate([first[2], second[2]])

    def launch(self, slots: Slots, which: Integers, until: Integers, order: NameOrder, ends: Integers) -> Found:
        """Do the steps of slots whose rows are on the device, of which each has `ends` entries at most."""
        number, width = len(which), int(until.max()) + 1
        wide, narrow = np.full((4, number, width), NONE, np.int64), np.zeros((6, number, width), np.int32)
        wide[_SOURCE], narrow[_ACTIVITY] = slots.source[which, :width], slots.activity[which, :width]
        narrow[_MODE] = slots.mode[which, :width]
        wide[_BURST, :, :-1], narrow[_NOUNS, :, :-1] = slots.burst[which, : width - 1], slots.nouns[which, : width - 1]
        begin = slots.done[which]
        fixed = slots.seeds, slots.given, slots.feeds, slots.bursts
        line = np.stack([begin, until, *(each[which] for each in fixed)]).astype(np.int64)
        at, step = step_pairs(np.arange(number), begin, until)
        begins, total = np.full((number, width), NONE, np.int64), int(ends.sum())
        if self._traced:
            begins[at, step] = np.cumsum(ends) - ends
        there = [gpu.to_device(each) for each in (wide, narrow, np.zeros((number, width), np.float32), line)]
        found = gpu.device_array(max(total, 1), np.int64), gpu.device_array(max(total, 1), np.float32)
        rules = self._rules
        shape, kinds = (rules.segments, rules.branches), (rules.columns, rules.timing, rules.boolean_from)
        kernel = step_kernel(shape, (*kinds, bool(rules.sequential)), BLOCK_THREADS)
        kernel[number, BLOCK_THREADS](
            *self.held.tables, *there, self._drives, *self._ranks(order), gpu.to_device(begins), *found
        )
        wide, narrow, largest, line = (each.copy_to_host() for each in there)
        done = line[_DONE]
        ran = step < (done + (done < until))[at]
        self._write_back(slots, (which[at[ran]], step[ran]), (wide, narrow, largest), (at[ran], step[ran]))
        slots.done[which] = done
        counts = np.zeros(len(at), np.int64)
        if not self._traced:
            return np.zeros(len(at) + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
        counts[ran] = narrow[_CANDIDATES, at[ran], step[ran]]
        neuron, value = (each.copy_to_host()[:total] for each in found)
        kept = (neuron >= 0) & np.repeat(ran, ends)
        return pointer_of(counts), neuron[kept], value[kept]

    def _write_back(self, slots: Slots, into: Any, found: Any, places: Any) -> None:
        """Write what a launch has found for some steps into the slots."""
        (slot, step), (at, _), (wide, narrow, largest) = into, places, found
        slots.burst[slot, step], slots.predicted[slot, step] = wide[_BURST, at, step], wide[_PREDICTED, at, step]
        slots.source[slot, step + 1] = wide[_SOURCE, at, step + 1]
        for later in (step, step + 1):
            slots.activity[slot, later] = narrow[_ACTIVITY, at, later]
        slots.nouns[slot, step], slots.value[slot, step] = narrow[_NOUNS, at, step], largest[at, step]
        for array, its in ((slots.candidates, _CANDIDATES), (slots.ties, _TIES), (slots.stop, _STOP)):
            array[slot, step] = narrow[its, at, step]
        # Where compiled code does later steps of the sequence.
        after = step > 0
        slots.drive[slot[after], step[after]] = self._rules.drives[narrow[_ACTIVITY, at[after], step[after]]]

    def _ranks(self, order: NameOrder) -> tuple[Any, Any]:
        """Return the ranks of names on the device, of one element where neurons are in the order of their keys."""
        if order is not self._order:
            self._order = order
            self._on_device = tuple(map(gpu.to_device, order.ranks))
        concepts, features = self._on_device
        return concepts, features
