"""Advance one sequence with the state beyond a memory budget on workers, by the rules of each profile.

Traces have the state as long as all of it is in this process, then its strongest columns. Results are those of the
undivided sessions (`giaann_dask.models.columns.v1.session.Session`, `giaann_dask.models.columns.v2.session.V2Session`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from giaann_dask.keys import Integers
from giaann_dask.models.columns.sharded_state import HeldState, Operation, ShardedState, by_part
from giaann_dask.models.columns.state.activation import ActiveColumns, Candidates, Pulse, StateEntries, TokenTimes
from giaann_dask.models.columns.state.session import FlagTable, SequenceSession
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.dynamics import Clock, Floats
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.generation_options import StateOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import Specification

if TYPE_CHECKING:
    from distributed import Client


@dataclass(eq=False)
class _DividedState:
    """State of a sequence in parts.

    Attributes
    ----------
    sharded : ShardedState
        The states in parts, of which it is one.
    held : HeldState
        Locations of its parts.
    """

    sharded: ShardedState
    held: HeldState

    def entries(self) -> StateEntries | None:
        """Return a copy of the entries, sorted, where all of them are in this process."""
        return self.sharded.entries(self.held)


class _ColumnState(_DividedState):
    """See `giaann_dask.models.columns.v1.session.ColumnState`."""

    def burst(self, neuron: int) -> None:
        """Burst a neuron."""
        self.sharded.change(self.held, Operation(what="burst", arguments=(neuron,), neurons=(neuron,)))

    def activity(self, neuron: int) -> int:
        """Return how many branches of a neuron are active."""
        (active,) = self.sharded.ask(self.held, "activity", {self.held.place(neuron): (neuron,)})
        return int(active)

    def propagate(self, target: Integers, pulse: Pulse) -> None:
        """Push a source's row into the parts."""
        self.sharded.change(self.held, Operation(what="propagate", arguments=(pulse,), row=pulse.source), (target,))

    def deactivate(self, neuron: int) -> None:
        """Set the strongest branch of a neuron to 0."""
        self.sharded.change(self.held, Operation(what="deactivate", arguments=(neuron,), neurons=(neuron,)))

    def score(self, connected: Integers, times: TokenTimes) -> Candidates | None:
        """Return which connected neurons can be predicted, with their values."""
        place = by_part(self.held, connected)
        wanted = {number: (connected[place == number], times) for number in np.unique(place).tolist()}
        found = [part for part in self.sharded.ask(self.held, "score", wanted) if part is not None]
        if not found:
            return None
        return Candidates(
            np.concatenate([part.neuron for part in found]), np.concatenate([part.value for part in found])
        )


class _AdvancingState(_DividedState):
    """See `giaann_dask.models.columns.v2.states.AdvancingState`."""

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """Send along a source's row; return the gate and the candidates."""
        own = Operation(what="gate", arguments=(source, clock), neurons=(source,))
        (gate,) = self.sharded.change(self.held, own)
        found = self.sharded.change(self.held, Operation(what="send", arguments=(source, gate, clock), row=source), row)
        neuron, score = (np.concatenate(each) for each in zip(*found, strict=True))
        return gate, neuron, score

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """End a step."""
        neurons = source, following
        end = Operation(what="settle", arguments=(*neurons, clock), neurons=neurons, everywhere=True)
        self.sharded.change(self.held, end)


class _Sharded(SequenceSession[Any, Any]):
    """Session whose state is in parts, those beyond a budget on workers; the other base is that of its profile.

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
    options : InferenceOptions or V2Options, optional
        Rules of inference.
    state : StateOptions, optional
        When the state is divided.
    """

    _divided: ClassVar[type[_DividedState]]
    _row: Any

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        client: Client,
        options: Any = None,
        state: StateOptions | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options)
        self.sharded = ShardedState(client, self.new_state, self._row, state or StateOptions())

    def _begin(self) -> _DividedState:
        return self._divided(self.sharded, self.sharded.begin())

    def _active_columns(self, state: _DividedState) -> ActiveColumns | None:
        return self.sharded.active_columns(state.held)


class ShardedSession(_Sharded, Session):
    """Advances one sequence of profile ``v1`` at a time; the parameters are those of `_Sharded`."""

    _divided = _ColumnState


class ShardedV2Session(_Sharded, V2Session):
    """Advances one sequence of profile ``v2`` at a time; the parameters are those of `_Sharded`."""

    _divided = _AdvancingState
