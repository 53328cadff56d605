"""The state of some neurons of one sequence, for which alone what reaches them is computed.

Covers: burst, propagation and deactivation (sections 8.1, 8.4 and 8.5 of the contract) of chosen
neurons, with dense arrays instead of a sparse map. The history of a neuron depends on the sources
of the sequence and on its own bursts and deactivations, never on other targets, so that any choice
of neurons gives each the state it would have among all others.
Does not cover: which neurons are chosen and when (`pull`), their values (`candidates`), or the
state of all neurons (`activation`).

The same float32 operations are done in the same order as in `activation`, with one exception that
changes no value: where boolean activations make every entry 0 or 1 in each step, only those can
change that were touched since, and only those are visited.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from giaann_dask.inference.activation import Layout, Pulse
from giaann_dask.inference.options import InferenceOptions
from giaann_dask.network.keys import SEGMENT_SHIFT, unpack_target
from giaann_dask.spec import BRANCH_BITS

Integers = npt.NDArray[np.int64]

# 2 ** 64 divided by the golden ratio: multiples of it spread over all 64 bits (Knuth).
_SPREAD = 0x9E3779B97F4A7C15
# Places in the filter per neuron: at most one target in 16 that is not wanted passes.
_PLACES = 16
# A row is searched for all entries instead of filtered when it has more than this many times as many.
_SEARCH_COST = 4


class _Filter:
    """Tells fast of most target keys that their neuron is not among some; never errs otherwise."""

    def __init__(self, neuron: Integers) -> None:
        bits = max(10, (_PLACES * len(neuron)).bit_length())
        # Segments stand above the 51 bits of a neuron key; this shift drops them from the product.
        self._spread = np.uint64((_SPREAD << (64 - SEGMENT_SHIFT + BRANCH_BITS)) & (2**64 - 1))
        self._shift = np.uint64(64 - bits)
        self._taken = np.zeros(1 << bits, np.bool_)
        self._taken[self._place(neuron << BRANCH_BITS)] = True

    def passing(self, target: Integers) -> Integers:
        """Return the target keys whose neuron may be among them, in their order."""
        return target[self._taken[self._place(target)]]

    def _place(self, target: Integers) -> Integers:
        place = target.view(np.uint64) >> np.uint64(BRANCH_BITS)
        place *= self._spread
        place >>= self._shift
        return place.view(np.int64)


class PulledNeurons:
    """Activation and time of all entries of some neurons; changed in place.

    Parameters
    ----------
    neuron : ndarray
        Neuron keys, strictly ascending, int64, shape ``(neurons,)``.
    layout : Layout
        Of the network, on the CPU.
    options : InferenceOptions
        Timing, activations and sequential gating.

    Attributes
    ----------
    value : ndarray
        Activation, never negative, float32, shape ``(segments, neurons, branches)``.
    time : ndarray
        Time of the last connection that reached an entry, 0 where none did; int32, same shape.
    found : ndarray
        Whether there is an entry, if only of value 0; bool, same shape.
    """

    def __init__(self, neuron: Integers, layout: Layout, options: InferenceOptions) -> None:
        self.neuron = neuron
        self._layout, self._options = layout, options
        self._segments = layout.last_segment + 1
        shape = (self._segments, len(neuron), layout.branches)
        self.value = np.zeros(shape, np.float32)
        self.time = np.zeros(shape, np.int32)
        self.found = np.zeros(shape, np.bool_)
        # Flat views: their indices ascend as the target keys do.
        self._value, self._time, self._found = (x.reshape(-1) for x in (self.value, self.time, self.found))
        self._filter: _Filter | None = None
        self._burst: list[int] = []

    def places(self, neuron: Integers) -> Integers | None:
        """Return the places of neurons, or None when not all are among these."""
        place = np.searchsorted(self.neuron, neuron)
        if len(place) and (int(place[-1]) == len(self.neuron) or not np.array_equal(self.neuron[place], neuron)):
            return None
        return place

    def place(self, neuron: int) -> int | None:
        """Return the place of a neuron, or None when it is not among these."""
        place = int(self.neuron.searchsorted(neuron))
        return place if place < len(self.neuron) and int(self.neuron[place]) == neuron else None

    def activity(self, place: int) -> int:
        """Return how many branches of a neuron are active (see `activation.source_activity`)."""
        positive = (self.value[:, place] > 0).any(0)
        return int((positive & self.found[-1, place]).sum())

    def burst(self, neuron: int) -> None:
        """Add 1 to branch 0 of a neuron's last segment."""
        place = self.place(neuron)
        if place is not None:
            self.value[-1, place, 0] += 1
            self.found[-1, place, 0] = True
            self._burst.append(place)

    def deactivate(self, neuron: int) -> None:
        """Set the strongest branch of a neuron to 0; its entries stay."""
        place = self.place(neuron)
        if place is not None:
            # A running sum adds in the order of the segments; the first largest is the lowest branch.
            self.value[:, place, self.value[:, place].cumsum(0)[-1].argmax()] = 0

    def propagate(self, target: Integers, pulse: Pulse) -> None:
        """Take in what a source's row sends to these neurons (see `activation.propagate`)."""
        touched = self._reached(target)
        if len(touched):
            touched, columns = self._kept(touched, pulse)
            self._value[touched] += np.float32(pulse.drive)
            self._found[touched] = True
            if self._options.activations != "intf+c":
                boolean = touched if self._options.activations == "boolf+c" else touched[columns:]
                self._value[boolean] = self._value[boolean] > 0
            if self._options.timing != "none":
                self._time[touched[:columns]] = pulse.column_time
                self._time[touched[columns:]] = pulse.feature_time
        if self._burst and self._options.activations != "intf+c":
            last = self.value[-1, self._burst, 0]
            self.value[-1, self._burst, 0] = last > 0
        self._burst.clear()

    def entries(self, place: Integers) -> tuple[Tensor, Tensor, Tensor]:
        """Return value, time and existence of the entries of some neurons, for `candidates.weigh_entries`."""
        value, time, found = (torch.from_numpy(x[:, place]) for x in (self.value, self.time, self.found))
        return value, time, found

    def _reached(self, target: Integers) -> Integers:
        """Return the flat indices that a row's target keys reach, ascending."""
        if not len(target) or not len(self.neuron):
            return np.zeros(0, np.int64)
        if len(self._value) * _SEARCH_COST < len(target):
            base = self._layout.grid.numpy()[:, None, :] + (self.neuron << BRANCH_BITS)[None, :, None]
            keys = base.reshape(-1)
            at = np.minimum(np.searchsorted(target, keys), len(target) - 1)
            return np.flatnonzero(target[at] == keys)
        if self._filter is None:
            self._filter = _Filter(self.neuron)
        segment, neuron, branch = unpack_target(self._filter.passing(target))
        place = np.searchsorted(self.neuron, neuron)
        here = self.neuron[np.minimum(place, len(self.neuron) - 1)] == neuron
        flat = (segment * len(self.neuron) + place) * self._layout.branches + branch
        reached: Integers = flat[here]
        return reached

    def _kept(self, touched: Integers, pulse: Pulse) -> tuple[Integers, int]:
        """Return the flat indices that pass timing and gating, and how many lie in column segments."""
        one_segment = len(self.neuron) * self._layout.branches
        columns = self._layout.column_segments
        edges = [one_segment, columns * one_segment, (columns + 1) * one_segment]
        bounds = touched.searchsorted(edges).tolist()
        if self._options.timing != "exact" and not self._options.sequential:
            return touched, bounds[1]
        # The first segment of either kind has no segment before it and is never held back.
        allowed = np.ones(len(touched), np.bool_)
        gated = ((bounds[0], bounds[1], pulse.column_time), (bounds[2], len(touched), pulse.feature_time))
        for begin, end, now in gated:
            before = touched[begin:end] - one_segment
            if self._options.sequential:
                allowed[begin:end] = self._value[before] > 0
            if self._options.timing == "exact":
                allowed[begin:end] &= self._time[before] == now - 1
        return touched[allowed], int(np.count_nonzero(allowed[: bounds[1]]))


Change = Callable[[PulledNeurons], None]
