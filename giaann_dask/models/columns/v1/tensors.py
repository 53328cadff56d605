"""Advance many sequences with tensors on any device; `kernels` does the same one sequence after the other.

Implements sections 8.1 to 8.6 of the contract, vectorised over sequences, over the neurons that can win and over the
steps of their histories. On the CPU, `v1.kernels` is faster, because it waits for memory less.

A pair is a neuron and the sequence whose history it is followed through. All pairs of a step are followed together:
first all connections that any step of their sequences sends to them are searched, all halvings at once, then the
steps are done one after the other. The float32 operations are those of `activation`, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.device import torch, without_gradients
from giaann_dask.keys import FEATURE_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.v1.cached_rows import BatchRows
from giaann_dask.models.columns.v1.device_rows import DeviceRows
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
)
from giaann_dask.rows.source import as_tensor
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS

if TYPE_CHECKING:
    from torch import Tensor

# Searches that are made at once, so that they fit into the memory of a device.
_SEARCHES = 1 << 23

Found = tuple[Integers, Floats]
_NOTHING: Found = (np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class _History:
    """History of the sequences of some pairs, by step and sequence; shape ``(steps, sequences)``.

    Attributes
    ----------
    row : Tensor
        Place of the row that a step sent, `NONE` for none; int64.
    drive : Tensor
        What its connections carried, float32.
    nouns : Tensor
        Time of its connections to column segments, int32.
    source, burst : Tensor
        Neuron that was deactivated, and the one that was burst, or `NONE`; int64.
    """

    row: Tensor
    drive: Tensor
    nouns: Tensor
    source: Tensor
    burst: Tensor

    @classmethod
    def of(
        cls, slots: Slots, which: Integers, steps: Integers, device: torch.device, *others: Integers
    ) -> tuple[_History, tuple[Tensor, ...]]:
        """Take the first steps of some slots to a device, and other arrays of the same slots, in one transfer.

        Slots that have fewer steps did nothing after them.
        """
        every = np.arange(int(steps.max(initial=0)))
        history = np.zeros((5, len(every), len(which)), np.int64)
        for place, array in zip(history, (slots.row, slots.source, slots.burst), strict=False):
            place[:] = np.where(every[:, None] < steps, array[which, : len(every)].T, NONE)
        # Nothing was a source before the first step.
        history[0, :1] = NONE
        history[3, 1:] = slots.nouns[which, : max(len(every) - 1, 0)].T
        history[4] = slots.drive[which, : len(every)].T.view(np.int32)
        moved = as_tensor(np.concatenate([history.reshape(-1, len(which)), *(each[None] for each in others)]), device)
        row, source, burst, nouns, drive = moved[: 5 * len(every)].reshape(history.shape).unbind(0)
        bits = drive.to(torch.int32).view(torch.float32)
        return cls(row, bits, nouns.to(torch.int32), source, burst), moved[5 * len(every) :].unbind(0)


@dataclass(eq=False)
class _Entries:
    """Entries of some pairs: value, time and existence; shape ``(segments, pairs, branches)``."""

    value: Tensor
    time: Tensor
    found: Tensor

    @classmethod
    def empty(cls, pairs: int, rules: KernelRules, device: torch.device) -> _Entries:
        """Return the entries before the first step."""
        value = torch.zeros((rules.segments, pairs, rules.branches), dtype=torch.float32, device=device)
        return cls(value, value.to(torch.int32), value.to(torch.bool))

    def active(self) -> Tensor:
        """Return how many branches of each neuron are active (contract, section 8.4a)."""
        return ((self.value > 0).any(0) & self.found[-1]).sum(1)


class TensorSteps:
    """Advances sequences in the slots of a batch, all a step further at a time.

    Parameters
    ----------
    rules : KernelRules
        Of the network and of inference.
    device : torch.device
        Where rows and entries live.
    """

    def __init__(self, rules: KernelRules, device: torch.device) -> None:
        self._rules, self._device = rules, device
        self._rows = DeviceRows(device, rules.segments)
        self._segment = torch.arange(rules.segments, dtype=torch.int64, device=device)
        self._branch = torch.arange(rules.branches, dtype=torch.int64, device=device)

    @without_gradients
    def advance(
        self, slots: Slots, which: Integers, until: Integers, held: BatchRows, order: NameOrder
    ) -> tuple[Integers, Integers, Floats]:
        """Do the steps of some slots up to those given; everything is as in `v1.kernels.advance`."""
        self._rows.follow(held)
        begin, limit = slots.done[which], dict(zip(which.tolist(), until.tolist(), strict=True))
        found: dict[tuple[int, int], Found] = {}
        going = which[begin < until]
        while len(going):
            before = slots.done[going]
            for slot, step, its in zip(going.tolist(), before.tolist(), self._step(slots, going, order), strict=True):
                found[slot, step] = its
            going = np.array(
                [s for s, w in zip(going.tolist(), before.tolist(), strict=True) if w < slots.done[s] < limit[s]],
                np.int64,
            )
        asked = [
            found.get((slot, step), _NOTHING)
            for slot, first in zip(which.tolist(), begin.tolist(), strict=True)
            for step in range(first, limit[slot])
        ]
        pointer = np.zeros(len(asked) + 1, np.int64)
        np.cumsum([len(neuron) for neuron, _ in asked], out=pointer[1:])
        neurons, values = zip(*(asked or [_NOTHING]), strict=True)
        return pointer, np.concatenate(neurons), np.concatenate(values)

    def _step(self, slots: Slots, which: Integers, order: NameOrder) -> list[Found]:
        """Do one step of each of some sequences (contract, section 8); where it is not completed, `done` stays."""
        now = slots.done[which]
        self._record_activity(slots, which, now)
        seed = (now == 0) | (now < slots.seeds[which])
        slots.burst[which, now] = np.where(seed, slots.source[which, now + 1], NONE)
        slots.done[which[seed]] += 1
        found = [_NOTHING] * len(which)
        predicting = np.flatnonzero(~seed)
        if len(predicting):
            connected, some = self._score(slots, which[predicting], now[predicting])
            for at, its, any_connected in zip(predicting.tolist(), some, connected, strict=True):
                slot, step = int(which[at]), int(now[at])
                without = NO_CANDIDATES if any_connected or not slots.feeds[slot] else NO_CONNECTIONS
                best = order.first(*its) if len(its[0]) else NONE
                found[at] = its
                _record(slots, (slot, step), its, best, without)
        return found

    def _record_activity(self, slots: Slots, which: Integers, now: Integers) -> None:
        """Record the activity of the sources of some steps, and their pulses."""
        asked = (now > 0) & (slots.activity[which, now] < 0)
        slot, step = which[asked], now[asked]
        if len(slot):
            sequence = torch.arange(len(slot), device=self._device)
            history, (neuron,) = _History.of(slots, slot, step, self._device, slots.source[slot, step])
            slots.activity[slot, step] = self._replay(history, sequence, neuron).active().cpu().numpy()
        later = now > 0
        slots.drive[which[later], now[later]] = self._rules.drives[slots.activity[which[later], now[later]]]

    def _score(self, slots: Slots, which: Integers, now: Integers) -> tuple[list[bool], list[Found]]:
        """Return whether anything is connected in some steps, and the candidates with their values."""
        given = now < slots.given[which]
        nouns = np.where(given, slots.nouns[which, now], slots.nouns[which, now - 1]).astype(np.int64)
        others = slots.row[which, now], nouns, (~given).astype(np.int64), now
        history, (row, *times) = _History.of(slots, which, now + 1, self._device, *others)
        sequence, neuron = self._rows.connected(row)
        state = self._replay(history, sequence, neuron)
        value = self._worth(state, neuron, *(each[sequence] for each in times))
        can = state.found[-1].any(1).nonzero()[:, 0]
        bounds = torch.arange(len(which) + 1, device=self._device)
        ends = torch.searchsorted(sequence, bounds), torch.searchsorted(sequence[can], bounds)
        moved = torch.cat([*ends, neuron[can], value[can].view(torch.int32).to(torch.int64)]).cpu().numpy()
        every, its = moved[: len(bounds)], moved[len(bounds) : 2 * len(bounds)]
        candidate, worth = moved[2 * len(bounds) :].reshape(2, -1)
        worth = worth.astype(np.int32).view(np.float32)
        some = [(candidate[a:b], worth[a:b]) for a, b in zip(its[:-1].tolist(), its[1:].tolist(), strict=True)]
        return (every[1:] > every[:-1]).tolist(), some

    def _worth(self, state: _Entries, neuron: Tensor, nouns: Tensor, open_noun: Tensor, now: Tensor) -> Tensor:
        """Return the sum over segments of the largest value over branches that have an entry."""
        rules, value = self._rules, state.value
        if rules.timing == 1:
            nouns = nouns + open_noun * ((neuron & FEATURE_MASK) == 0)
            in_columns = nouns[None, :] - (rules.columns - self._segment[:, None])
            in_features = now[None, :] - (rules.segments - self._segment[:, None])
            expected = torch.where(self._segment[:, None] < rules.columns, in_columns, in_features)
            value = value - (expected[:, :, None] - state.time).abs().to(torch.float32)
        largest = torch.where(state.found, value, -torch.inf).amax(2)
        total = torch.zeros(len(neuron), dtype=torch.float32, device=self._device)
        for segment in torch.where(state.found.any(2), largest, 0.0):
            total = total + segment
        return total

    def _replay(self, history: _History, sequence: Tensor, neuron: Tensor) -> _Entries:
        """Follow neurons through the steps of their sequences.

        Parameters
        ----------
        history : _History
            Of the sequences.
        sequence, neuron : Tensor
            Of each pair: its place among the sequences, and its neuron key; int64, shape ``(pairs,)``.
        """
        state = _Entries.empty(len(neuron), self._rules, self._device)
        if not len(neuron):
            return state
        key = (self._segment[:, None] << SEGMENT_SHIFT) | (neuron << BRANCH_BITS)[None, :]
        steps = len(history.row)
        together = max(1, _SEARCHES // key.numel())
        for first in range(0, steps, together):
            # Every search of a segment behind one that cannot be active is in vain, but none waits for another.
            reached = self._rows.reached(history.row[first : first + together][:, sequence], key, self._branch)
            for step in range(first, min(first + together, steps)):
                if step:
                    pulse = history.drive[step][sequence], history.nouns[step][sequence], step - 1
                    self._take(state, reached[step - first], pulse)
                self._act(state, neuron, (history.source[step][sequence], history.burst[step][sequence]), step == 0)
        return state

    def _take(self, state: _Entries, kept: Tensor, pulse: tuple[Tensor, Tensor, int]) -> None:
        """Apply the connections of one step (contract, section 8.4); gating and timing read the state before it."""
        rules, (drive, nouns, index) = self._rules, pulse
        now = torch.where(self._segment[:, None] < rules.columns, nouns[None, :], index).to(torch.int32)[:, :, None]
        for begin, end in ((1, rules.columns), (rules.columns + 1, rules.segments)):
            # The first segment of either kind has no segment before it and is never held back.
            if rules.sequential:
                kept[begin:end] &= state.value[begin - 1 : end - 1] > 0
            if rules.timing == 2:
                kept[begin:end] &= state.time[begin - 1 : end - 1] == now[begin:end] - 1
        state.value = torch.where(kept, state.value + drive[None, :, None], state.value)
        state.value[rules.boolean_from :] = state.value[rules.boolean_from :].sign()
        state.found = state.found | kept
        if rules.timing > 0:
            state.time = torch.where(kept, now, state.time)

    def _act(self, state: _Entries, neuron: Tensor, acting: tuple[Tensor, Tensor], begins: bool) -> None:
        """Deactivate the source of a step and burst a neuron, where they are among the pairs."""
        source, burst = (neuron == each for each in acting)
        if begins:
            _burst(state, source)
        total = torch.zeros_like(state.value[0])
        for segment in state.value:
            total = total + segment
        most = total == total.amax(1, keepdim=True)
        # The lowest of equal branches.
        strongest = most & (most.cumsum(1) == 1)
        state.value = torch.where((source[:, None] & strongest)[None], 0.0, state.value)
        _burst(state, burst)


def _burst(state: _Entries, chosen: Tensor) -> None:
    """Add 1 to branch 0 of the last segment of some neurons."""
    state.value[-1, :, 0] += chosen.to(torch.float32)
    state.found[-1, :, 0] |= chosen


def _record(slots: Slots, place: tuple[int, int], found: Found, best: int, without: int) -> None:
    """Record the prediction of a step of a slot (contract, section 8.6b), or why there is none."""
    (slot, step), (neuron, value) = place, found
    source, stop, following = int(slots.source[slot, step]), without, NONE
    if len(neuron):
        slots.candidates[slot, step], slots.value[slot, step] = len(neuron), value[best]
        slots.ties[slot, step] = int((value == value[best]).sum())
        top = int(neuron[best])
        rejected = slots.mode[slot, step] == INTERNAL and top >> FEATURE_BITS != source >> FEATURE_BITS
        stop = REJECTED if rejected else GOES_ON
        if not rejected:
            slots.predicted[slot, step] = following = top
    slots.stop[slot, step] = stop
    if slots.feeds[slot]:
        if stop != GOES_ON:
            return
        slots.source[slot, step + 1], slots.activity[slot, step + 1] = following, NONE
        if step >= slots.given[slot]:
            slots.nouns[slot, step] = slots.nouns[slot, step - 1] + (following & FEATURE_MASK == 0)
    slots.done[slot] = step + 1
