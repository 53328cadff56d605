"""Keep the state of one sequence under the dynamics of profile ``v2``, or the part of it that some neurons have.

Each of the two dynamics has one class, which owns the memory of the compiled steps
(`giaann_dask.models.columns.v2.dynamics`) and looks up where neurons are in it. All that a step does to a neuron's
entries depends on the step's source and on these entries; so several states of which each is given its neurons' targets
have together the entries of one that is given all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, Integers, pack_target
from giaann_dask.models.columns.state.activation import StateEntries, pivot_of
from giaann_dask.models.columns.state.inference_options import LegacyOptions, LifOptions
from giaann_dask.models.columns.state.keyed_arrays import KeyedArrays
from giaann_dask.models.columns.v2 import dynamics
from giaann_dask.models.columns.v2.dynamics import (
    ABSENT,
    NEVER,
    Clock,
    EntryTable,
    Floats,
    LegacyRules,
    LifRules,
    SegmentLayout,
)
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS

# Neurons of a state with their entries, the steps after which columns moved on, and the last moment that has begun.
GivenNeurons: TypeAlias = "tuple[KeyedArrays, npt.NDArray[np.bool_], int]"
_FIRST_STEPS = 1 << 8
# Beyond it the weight of an entry has long been 0 in float32.
_LONGEST_TIME = 1 << 12


class AdvancingState(Protocol):
    """State of one sequence, changed in place by its steps."""

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """Send along a source's row; return the gate and the candidates.

        Parameters
        ----------
        source : int
            Neuron key.
        row : tuple of ndarray
            Its target keys, ascending, and their strengths, float32.
        clock : Clock
            Of the token to be predicted; not the first one.

        Returns
        -------
        gate : int
            1 if the source is active enough to send, else 0.
        neuron, score : ndarray
            Candidates, ascending, and their values; int64 and float32.
        """

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """End a step, of which `following` is the next source."""

    def entries(self) -> StateEntries | None:
        """Return a copy of the entries as they are after the last step, sorted, where all of them are here."""


class SequenceState(ABC):
    """Entries of one sequence in this process.

    Parameters
    ----------
    layout : SegmentLayout
        Of the network.
    branches : int
        For how many branches entries are kept apart.
    """

    def __init__(self, layout: SegmentLayout, branches: int) -> None:
        self._layout, self._branches = layout, branches
        row = branches, layout.segments
        # Stamps, values, and without a soma also marks of entries and times: the columns of an `EntryTable`.
        first: list[npt.NDArray[Any] | np.generic] = [np.int64(0), np.zeros(row, np.float32)]
        if not layout.soma:
            first += [np.zeros(row, np.bool_), np.full(row, NEVER, np.int32)]
        self._arrays, self._moment = KeyedArrays(*first), 1
        self._advanced = np.zeros(_FIRST_STEPS if layout.soma else 0, np.bool_)

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """See `AdvancingState.advance`."""
        gate = self.gate(source, clock)
        return gate, *self.send(*row, source, gate, clock)

    def send(self, target: Integers, strength: Floats, source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        """Send along a source's row, or the part of it that ends at this state's neurons; return the candidates."""
        # Arrays from Dask may be read-only, for which steps are not compiled.
        target, strength = np.require(target, requirements="W"), np.require(strength, requirements="W")
        return self._send((target, strength), source, gate, clock)

    @abstractmethod
    def gate(self, source: int, clock: Clock) -> int:
        """Return 1 if a source is active enough to send, else 0; the parameters are those of `advance`."""

    @abstractmethod
    def _send(self, row: tuple[Integers, Floats], source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        """Send along target keys and strengths, as `send`."""

    @abstractmethod
    def settle(self, source: int, following: int, clock: Clock, here: tuple[bool, bool] = (True, True)) -> None:
        """End a step, of which `following` is the next source; `here` is which of both are this state's neurons."""

    @abstractmethod
    def entries(self) -> StateEntries:
        """See `AdvancingState.entries`."""

    @property
    def neurons(self) -> int:
        """Number of neurons with entries."""
        return len(self._arrays)

    @property
    def neuron(self) -> Integers:
        """Keys of these neurons, int64, in the order in which they were reached."""
        return self._columns[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return sum(each.nbytes for each in self._columns)

    @property
    def _columns(self) -> list[npt.NDArray[Any]]:
        """The used part of the arrays of the `EntryTable`."""
        return [each[: self.neurons] for each in (self._arrays.keys, *self._arrays.columns)]

    def copy(self) -> Self:
        """Return a state with the same entries that is changed independently."""
        other = copy(self)
        other._arrays, other._advanced = self._arrays.copy(), self._advanced.copy()
        return other

    def put(self, content: GivenNeurons) -> None:
        """Continue with the neurons that another state has given away."""
        arrays, advanced, self._moment = content
        self._arrays, self._advanced = arrays.copy(), advanced.copy()

    def divide(self) -> tuple[int, GivenNeurons] | None:
        """Take away and return the upper half of the neurons, with the one it begins with; None for one neuron."""
        pivot = pivot_of(self.neuron)
        if pivot is None:
            return None
        high = self._arrays.select(self.neuron >= pivot)
        self._arrays = self._arrays.select(self.neuron < pivot)
        return pivot, (high, self._advanced, self._moment)

    @property
    def _table(self) -> EntryTable:
        """The entries for compiled steps."""
        columns = [self._arrays.keys, *self._arrays.columns]
        if self._layout.soma:
            columns += [np.zeros((1, 1, 1), np.bool_), np.zeros((1, 1, 1), np.int32)]
        return EntryTable(*columns)

    def _find(self, neurons: Integers) -> Integers:
        """Return the places of neurons, `ABSENT` for those without entries."""
        return self._arrays.find(neurons)

    def _place(self, neuron: int) -> int:
        return int(self._find(np.array([neuron], np.int64))[0])

    def _take(self, neurons: Integers) -> Integers:
        """Return the places of neurons, after appending those without entries, which begin at the present moment."""
        before, place = self.neurons, self._arrays.take(neurons)
        self._columns[1][before:] = self._moment
        return place

    def _take_one(self, neuron: int) -> int:
        return int(self._take(np.array([neuron], np.int64))[0])

    def _ending(self, target: Integers) -> Integers:
        """Return the neurons of the target keys in the segment of adjacent tokens, ascending."""
        return _neurons_of(target[int(np.searchsorted(target, self._layout.last << SEGMENT_SHIFT)) :])

    def _sorted(self, there: npt.NDArray[np.bool_], time: npt.NDArray[np.int32]) -> StateEntries:
        """Return the entries where `there` is true, with these times; both by neuron, branch and segment."""
        flat = np.flatnonzero(there)
        slot, place = np.divmod(flat, self._branches * self._layout.segments)
        branch, segment = np.divmod(place, self._layout.segments)
        key = pack_target(segment, self.neuron[slot], branch)
        order = np.argsort(key)
        taken = flat[order]
        return StateEntries(key[order], self._columns[2].reshape(-1)[taken], time.reshape(-1)[taken])


def _neurons_of(target: Integers) -> Integers:
    neurons: Integers = (target >> BRANCH_BITS) & NEURON_MASK
    return neurons


class LifState(SequenceState):
    """Entries under leaky integrate-and-fire (contract, section 7).

    Parameters
    ----------
    layout : SegmentLayout
        Of the network, with a soma.
    options : LifOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, options: LifOptions) -> None:
        # Connections of all branches add up at their segment: the soma is one.
        super().__init__(layout, 1)
        one = np.float32(1)
        self._rules = LifRules(
            columns=layout.columns,
            threshold=np.float32(options.threshold),
            keep_soma=one - np.float32(options.soma_decay),
            keep_column=one - np.float32(options.column_decay),
            burst=np.float32(options.burst),
            strengths=options.strengths,
            squash=options.squash,
            clear_source=options.clear_source,
        )

    def gate(self, source: int, clock: Clock) -> int:
        """See `SequenceState.gate`."""
        self._moment = 2 * clock.token
        own = self._take_one(source)
        return int(dynamics.lif_gate(self._table, own, clock.token, self._advanced, self._rules))

    def _send(self, row: tuple[Integers, Floats], source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        target, _ = row
        self._moment = 2 * clock.token
        history = clock.token, self._advanced, self._rules
        if gate:
            slots = self._take(_neurons_of(target))
            dynamics.lif_send(self._table, slots, row, *history)
        neuron, score = dynamics.lif_scores(
            self._table, self._place(source), self._find(self._ending(target)), *history
        )
        return neuron, score

    def settle(self, source: int, following: int, clock: Clock, here: tuple[bool, bool] = (True, True)) -> None:
        """Let columns move on where the next source is in another one, and burst it."""
        if clock.token == len(self._advanced):
            self._advanced = np.concatenate([self._advanced, np.zeros_like(self._advanced)])
        self._advanced[clock.token] = source >> FEATURE_BITS != following >> FEATURE_BITS
        self._moment = 2 * clock.token + 1
        if here[1]:
            slot = self._take_one(following)
            dynamics.lif_burst(self._table, slot, clock.token, self._advanced, self._rules)

    def entries(self) -> StateEntries:
        """Return the positive entries."""
        dynamics.lif_catch_up_all(self._table, self.neurons, self._moment, self._advanced, self._rules)
        positive = self._columns[2] > 0
        return self._sorted(positive, np.broadcast_to(np.int32(NEVER), positive.shape))


class LegacyState(SequenceState):
    """Entries without a soma (contract, section 8).

    Parameters
    ----------
    layout : SegmentLayout
        Of the network, without a soma.
    options : LegacyOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, options: LegacyOptions) -> None:
        super().__init__(layout, layout.branches)
        self._rules = LegacyRules(
            columns=layout.columns,
            decay=np.float32(options.decay),
            scale=np.float32(options.scale),
            burst=np.float32(options.burst),
            exact=options.timing == "exact",
            strengths=options.strengths,
            boolean=options.boolean,
            burst_all=options.burst_all,
        )
        # The power in float32, of the float32 factor.
        distances = np.arange(_LONGEST_TIME if options.timing == "biased" else 1, dtype=np.float64)
        self._powers = (np.float64(np.float32(options.penalty)) ** distances).astype(np.float32)

    def gate(self, source: int, clock: Clock) -> int:
        """See `SequenceState.gate`."""
        self._moment = 2 * clock.token
        own = self._place(source)
        return 0 if own == ABSENT else int(dynamics.legacy_gate(self._table, own, clock.token, self._rules))

    def _send(self, row: tuple[Integers, Floats], source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        target, _ = row
        self._moment = 2 * clock.token
        slots = self._take(_neurons_of(target))
        dynamics.legacy_send(self._table, slots, row, gate, clock, self._rules)
        self._moment = 2 * clock.token + 1
        own = self._place(source)
        if own != ABSENT:
            dynamics.legacy_clear(self._table, own, self._moment, self._rules)
        connected = self._find(np.unique(self._ending(target)))
        neuron, score = dynamics.legacy_scores(self._table, connected, clock, self._rules, self._powers)
        return neuron, score

    def settle(self, source: int, following: int, clock: Clock, here: tuple[bool, bool] = (True, True)) -> None:
        """Burst the next source; before the first step the source itself was burst, and silenced."""
        self._moment = 2 * clock.token + 1
        if clock.token == 0 and here[0]:
            slot = self._take_one(source)
            dynamics.legacy_burst(self._table, slot, self._moment, self._rules)
            dynamics.legacy_clear(self._table, slot, self._moment, self._rules)
        if here[1]:
            dynamics.legacy_burst(self._table, self._take_one(following), self._moment, self._rules)

    def entries(self) -> StateEntries:
        """Return all entries, those of value 0 too."""
        dynamics.legacy_catch_up_all(self._table, self.neurons, self._moment, self._rules)
        return self._sorted(*self._columns[3:])


def new_state(layout: SegmentLayout, dynamics: LifOptions | LegacyOptions) -> SequenceState:
    """Return the state before the first step.

    Raises
    ------
    OptionError
        If the dynamics are not those that the network was trained for.
    """
    layout.require_soma(isinstance(dynamics, LifOptions))
    if isinstance(dynamics, LifOptions):
        return LifState(layout, dynamics)
    return LegacyState(layout, dynamics)
