"""Advance one sequence with the state beyond a memory budget on workers, by the rules of each profile.

Traces have the state as long as all of it is in this process, then its strongest columns. Results are those of the
undivided sessions (`giaann_dask.models.columns.v1.session.Session`, `giaann_dask.models.columns.v2.session.V2Session`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.keys import NEURON_MASK, Integers
from giaann_dask.models.columns.sharded_state import HeldState, Operation, ShardedState, by_part, pivot_of
from giaann_dask.models.columns.state.activation import (
    ActivationState,
    ActiveColumns,
    Candidates,
    Layout,
    Pulse,
    StateEntries,
    TokenTimes,
    burst,
    deactivate,
    propagate,
    score_candidates,
    source_activity,
)
from giaann_dask.models.columns.state.inference_options import InferenceOptions, LegacyOptions, LifOptions, V2Options
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.models.columns.v1.session import Stepper
from giaann_dask.models.columns.v2.dynamics import Clock, Floats, SegmentLayout
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.columns.v2.states import AdvancingState, SavedNeurons, new_state
from giaann_dask.models.generation_options import ENTRY_BYTES, StateOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import BRANCH_BITS, Specification

if TYPE_CHECKING:
    from distributed import Client


class V1Part:
    """Part of a state of profile ``v1``; see `giaann_dask.models.columns.sharded_state.StateShard`.

    Parameters
    ----------
    specification : Specification
        Of the network.
    options : InferenceOptions
        Rules of inference.
    """

    def __init__(self, specification: Specification, options: InferenceOptions) -> None:
        self._options, self._layout = options, Layout.of(specification)
        self._state = ActivationState()

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return ENTRY_BYTES * len(self._state)

    def put(self, content: StateEntries) -> None:
        """Take in what another part has given away."""
        self._state = ActivationState(content)

    def divide(self) -> tuple[int, StateEntries] | None:
        """Take away and return the upper half of the entries."""
        entries = self._state.entries()
        neuron = (entries.key >> BRANCH_BITS) & NEURON_MASK
        pivot = pivot_of(neuron)
        if pivot is None:
            return None
        self._state = ActivationState(entries.chosen(neuron < pivot))
        return pivot, entries.chosen(neuron >= pivot)

    def entries(self) -> StateEntries:
        """Return all entries."""
        return self._state.entries()

    def burst(self, neuron: int) -> None:
        """Burst a neuron."""
        burst(self._state, neuron, self._layout)

    def activity(self, neuron: int) -> int:
        """Return how many branches of a neuron are active."""
        return source_activity(self._state, neuron, self._layout)

    def propagate(self, target: Integers, pulse: Pulse) -> None:
        """Take in the targets of a row that belong to the part."""
        propagate(self._state, target, pulse, layout=self._layout, options=self._options)

    def deactivate(self, neuron: int) -> None:
        """Set the strongest branch of a neuron to 0."""
        deactivate(self._state, neuron, self._layout)

    def score(self, connected: Integers, times: TokenTimes) -> tuple[Integers, Floats] | None:
        """Return the neurons that can be predicted, and their values."""
        found = score_candidates(self._state, connected, times, layout=self._layout, options=self._options)
        return None if found is None else (found.neuron, found.value)


class ShardedSession(Stepper[HeldState]):
    """Advances one sequence of profile ``v1`` at a time, with the state beyond a budget on workers.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    client : Client
        Of the cluster whose computing workers may hold parts.
    options : InferenceOptions, optional
        Rules of inference.
    state : StateOptions, optional
        When the state is divided.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        client: Client,
        options: InferenceOptions | None = None,
        state: StateOptions | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options)
        new = partial(V1Part, specification, self.options)
        self.sharded = ShardedState(client, new, self._row_of, state or StateOptions())

    def _row_of(self, source: int) -> tuple[Integers]:
        return (self._targets(source),)

    def _begin(self) -> HeldState:
        return self.sharded.begin()

    def _burst(self, state: HeldState, neuron: int) -> None:
        self.sharded.change(state, Operation(what="burst", arguments=(neuron,), neurons=(neuron,)))

    def _activity(self, state: HeldState, neuron: int) -> int:
        (active,) = self.sharded.ask(state, "activity", {state.place(neuron): (neuron,)})
        return int(active)

    def _propagate(self, state: HeldState, source: int, target: Integers, pulse: Pulse) -> None:
        operation = Operation(what="propagate", arguments=(pulse,), row=source)
        self.sharded.change(state, operation, (target,))

    def _deactivate(self, state: HeldState, neuron: int) -> None:
        self.sharded.change(state, Operation(what="deactivate", arguments=(neuron,), neurons=(neuron,)))

    def _score(self, state: HeldState, connected: Integers, times: TokenTimes) -> Candidates | None:
        place = by_part(state, connected)
        wanted = {number: (connected[place == number], times) for number in np.unique(place).tolist()}
        found = [*filter(None, self.sharded.ask(state, "score", wanted))]
        if not found:
            return None
        neuron, value = (np.concatenate(each) for each in zip(*found, strict=True))
        return Candidates(neuron, value)

    def _entries(self, state: HeldState) -> StateEntries | None:
        return self.sharded.entries(state)

    def _active_columns(self, state: HeldState) -> ActiveColumns | None:
        return self.sharded.active_columns(state)


class V2Part:
    """Part of a state of profile ``v2``; see `giaann_dask.models.columns.sharded_state.StateShard`.

    Parameters
    ----------
    layout : SegmentLayout
        Of the network.
    dynamics : LifOptions or LegacyOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, dynamics: LifOptions | LegacyOptions) -> None:
        self._new = partial(new_state, layout, dynamics)
        self._state = self._new()

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return self._state.nbytes

    def put(self, content: SavedNeurons) -> None:
        """Take in what another part has given away."""
        self._state.restore(content)

    def divide(self) -> tuple[int, SavedNeurons] | None:
        """Take away and return the upper half of the neurons."""
        neuron = self._state.neuron
        pivot = pivot_of(neuron)
        if pivot is None:
            return None
        low, high = self._state.save(neuron < pivot), self._state.save(neuron >= pivot)
        self._state = self._new()
        self._state.restore(low)
        return pivot, high

    def entries(self) -> StateEntries:
        """Return all entries."""
        return self._state.entries()

    def gate(self, source: int, clock: Clock) -> int:
        """Return whether a source sends."""
        return self._state.gate(source, clock)

    def send(self, target: Integers, strength: Floats, source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        """Take in the targets of a row that belong to the part; return the candidates among its neurons."""
        # Arrays from Dask may be read-only, for which steps are not compiled.
        target, strength = np.require(target, requirements="W"), np.require(strength, requirements="W")
        return self._state.send(target, strength, source, gate, clock)

    def settle(self, source: int, following: int, clock: Clock, here: tuple[bool, bool]) -> None:
        """End a step."""
        self._state.settle(source, following, clock, here)


@dataclass(eq=False)
class V2HeldState(AdvancingState):
    """State of profile ``v2`` in parts.

    Attributes
    ----------
    sharded : ShardedState
        The states in parts, of which it is one.
    held : HeldState
        Locations of its parts.
    empty : AdvancingState
        One of the same rules.
    """

    sharded: ShardedState
    held: HeldState
    empty: AdvancingState

    def can_send(self, target: Integers) -> bool:
        """See `AdvancingState.can_send`."""
        return self.empty.can_send(target)

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """See `AdvancingState.advance`."""
        own = Operation(what="gate", arguments=(source, clock), neurons=(source,))
        (gate,) = self.sharded.change(self.held, own)
        found = self.sharded.change(self.held, Operation(what="send", arguments=(source, gate, clock), row=source), row)
        neuron, score = (np.concatenate(each) for each in zip(*found, strict=True))
        return gate, neuron, score

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """See `AdvancingState.settle`."""
        neurons = source, following
        end = Operation(what="settle", arguments=(*neurons, clock), neurons=neurons, everywhere=True)
        self.sharded.change(self.held, end)

    def entries(self) -> StateEntries | None:
        """Return a copy of the entries, sorted, where all of them are in this process."""
        return self.sharded.entries(self.held)


class ShardedV2Session(V2Session):
    """Advances one sequence of profile ``v2`` at a time, with the state beyond a budget on workers.

    The parameters are those of `ShardedSession`.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        client: Client,
        options: V2Options | None = None,
        state: StateOptions | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options)
        self._client, self._limits = client, state or StateOptions()

    @cached_property
    def sharded(self) -> ShardedState:
        """The states in parts."""
        new = partial(V2Part, self._layout, self.options.dynamics)
        return ShardedState(self._client, new, self._row, self._limits)

    def _begin(self) -> V2HeldState:
        return V2HeldState(self.sharded, self.sharded.begin(), super()._begin())

    def _active_columns(self, state: AdvancingState) -> ActiveColumns | None:
        return state.sharded.active_columns(state.held) if isinstance(state, V2HeldState) else None
