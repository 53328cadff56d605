"""One sequence whose state is larger than one device: spread over parts by target column.

Covers: dividing the pushed state of a sequence (`session`) into parts of neighbouring columns, each on a
device within a byte budget, and reducing over the parts what can be predicted. Does not cover: the
functions of one part (`activation`, `candidates`) and the order of the sub-steps (`steps`).

All that a step does to an entry depends on the step's source and on other entries of the same neuron, and
these are in one part. So each part does the step by itself, with the targets that lie in it, and the parts
together have the entries and values of the undivided state. Parts are in the order of their columns, so
that the first maximum over the parts is the first maximum of all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from giaann_dask.errors import OptionError, parameter
from giaann_dask.inference.rows.source import RowSource
from giaann_dask.inference.state.activation import (
    ActivationState,
    Layout,
    Pulse,
    burst,
    deactivate,
    propagate,
    source_activity,
)
from giaann_dask.inference.state.candidates import Candidates, TokenTimes, score_candidates
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import FlagTable
from giaann_dask.inference.v1.stepper import Stepper
from giaann_dask.keys import NEURON_MASK
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification

# Of a key, a value and a time.
ENTRY_BYTES = 16


@dataclass(frozen=True)
class SpreadState:
    """The state of a sequence in parts.

    Attributes
    ----------
    starts : tuple of int
        Smallest neuron key that belongs to each part, ascending from 0.
    parts : tuple of ActivationState
        The entries of the neurons from there to the next part, each on its own device.
    """

    starts: tuple[int, ...]
    parts: tuple[ActivationState, ...]

    def place(self, neuron: int) -> int:
        """Return which part a neuron belongs to."""
        return bisect_right(self.starts, neuron) - 1

    def divide(self, keys: Tensor, neuron: Tensor) -> list[Tensor]:
        """Return ascending keys by part, on the device of each; `neuron` has the neuron of every key."""
        if len(self.parts) == 1:
            return [keys.to(self.parts[0].key.device)]
        starts = torch.tensor(self.starts[1:], dtype=torch.int64, device=neuron.device)
        place = torch.bucketize(neuron, starts, right=True)
        return [keys[place == number].to(part.key.device) for number, part in enumerate(self.parts)]

    def whole(self) -> ActivationState:
        """Return the undivided state, on the device of the first part."""
        device = self.parts[0].key.device
        key, value, time = (
            torch.cat([getattr(part, name).to(device) for part in self.parts]) for name in ("key", "value", "time")
        )
        order = key.argsort()
        return ActivationState(key[order], value[order], time[order])


class SpreadSession(Stepper[SpreadState]):
    """Advances one sequence at a time with its state in parts; the answers are those of `Session`.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    budget_bytes : int
        Bytes of a part's entries above which it is divided, unless it is one neuron.
    devices : sequence of torch.device, optional
        Of the parts in turn; the CPU by default. A device may be named more than once.
    options : InferenceOptions, optional
        Rules of inference.

    Raises
    ------
    OptionError
        If the budget has no room for an entry, or there is no device.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        budget_bytes: int,
        devices: Sequence[torch.device] = (torch.device("cpu"),),
        options: InferenceOptions | None = None,
    ) -> None:
        if budget_bytes < ENTRY_BYTES:
            raise OptionError(
                f"{parameter('budget_bytes')} is {budget_bytes}", f"{ENTRY_BYTES} or more", "give room for an entry"
            )
        if not devices:
            raise OptionError("devices is empty", "one or more", "name a device")
        super().__init__(specification, rows, flags, options=options, device=devices[0])
        self._budget, self._devices = budget_bytes, tuple(devices)
        self._layouts = {device: Layout.of(specification, device) for device in self._devices}

    def _begin(self) -> SpreadState:
        return SpreadState((0,), (ActivationState.empty(self.device),))

    def _burst(self, state: SpreadState, neuron: int) -> SpreadState:
        place, part, layout = self._part(state, neuron)
        return self._within_budget(_replaced(state, place, burst(part, neuron, layout)))

    def _activity(self, state: SpreadState, neuron: int) -> int:
        _, part, layout = self._part(state, neuron)
        return source_activity(part, neuron, layout)

    def _propagate(self, state: SpreadState, target: Tensor, pulse: Pulse) -> SpreadState:
        divided = state.divide(target, (target >> BRANCH_BITS) & NEURON_MASK)
        parts = tuple(
            propagate(part, keys, pulse, layout=self._layouts[part.key.device], options=self.options)
            for part, keys in zip(state.parts, divided, strict=True)
        )
        return self._within_budget(replace(state, parts=parts))

    def _deactivate(self, state: SpreadState, neuron: int) -> SpreadState:
        place, part, layout = self._part(state, neuron)
        return _replaced(state, place, deactivate(part, neuron, layout))

    def _score(self, state: SpreadState, connected: Tensor, times: TokenTimes) -> Candidates | None:
        found = [
            score_candidates(part, keys, times, layout=self._layouts[part.key.device], options=self.options)
            for part, keys in zip(state.parts, state.divide(connected, connected), strict=True)
        ]
        return reduce_candidates([some for some in found if some is not None], self.device)

    def _shown(self, state: SpreadState) -> ActivationState:
        return state.whole()

    def _part(self, state: SpreadState, neuron: int) -> tuple[int, ActivationState, Layout]:
        place = state.place(neuron)
        part = state.parts[place]
        return place, part, self._layouts[part.key.device]

    def _within_budget(self, state: SpreadState) -> SpreadState:
        """Return the state with all parts divided that pass the budget."""
        starts, parts = list(state.starts), list(state.parts)
        place = 0
        while place < len(parts):
            pivot = pivot_of(parts[place]) if ENTRY_BYTES * len(parts[place]) > self._budget else None
            if pivot is None:
                place += 1
                continue
            above = (parts[place].key >> BRANCH_BITS) & NEURON_MASK >= pivot
            low, high = chosen_entries(parts[place], ~above), chosen_entries(parts[place], above)
            device = self._devices[len(parts) % len(self._devices)]
            high = ActivationState(*(x.to(device) for x in (high.key, high.value, high.time)))
            starts.insert(place + 1, pivot)
            parts[place : place + 1] = [low, high]
        return SpreadState(tuple(starts), tuple(parts))


def reduce_candidates(found: Sequence[Candidates], device: torch.device) -> Candidates | None:
    """Return the candidates of all parts, whose neurons follow each other; the first of equal maxima wins.

    Parameters
    ----------
    found : sequence of Candidates
        Of the parts that have any, in the order of their neurons.
    device : torch.device
        Where the result shall be.
    """
    if not found:
        return None
    tops = [float(some.value[some.best]) for some in found]
    winner = tops.index(max(tops))
    return Candidates(
        torch.cat([some.neuron.to(device) for some in found]),
        torch.cat([some.value.to(device) for some in found]),
        sum(map(len, found[:winner])) + found[winner].best,
    )


def _replaced(state: SpreadState, place: int, part: ActivationState) -> SpreadState:
    return replace(state, parts=(*state.parts[:place], part, *state.parts[place + 1 :]))


def chosen_entries(part: ActivationState, chosen: Tensor) -> ActivationState:
    """Return the entries of a part for which a boolean is true."""
    return ActivationState(part.key[chosen], part.value[chosen], part.time[chosen])


def pivot_of(part: ActivationState) -> int | None:
    """Return the neuron from which on a part's entries belong to another, or None when it is one neuron.

    The begin of a column where there are two, for a column's entries change together.
    """
    neuron = (part.key >> BRANCH_BITS) & NEURON_MASK
    lowest, middle, highest = int(neuron.min()), int(neuron.median()), int(neuron.max())
    column = middle >> FEATURE_BITS
    for pivot in (column << FEATURE_BITS, (column + 1) << FEATURE_BITS, middle, highest):
        if lowest < pivot <= highest:
            return pivot
    return None
