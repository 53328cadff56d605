"""Spread the activation state of a sequence over workers when it exceeds the memory budget of this process.

The pushed state of a sequence is divided by target column as soon as it exceeds the budget, the upper parts are given
to workers in turn, and the candidates are joined over the parts, which are in the order of their columns.
`giaann_dask.models.columns.sharded.state_actor` changes a part, and says why the results are those of the undivided
state; `giaann_dask.models.columns.sharded.sessions` has the sessions of the profiles.

For the same reason a part can be made again by itself: when a worker is lost, another one is sent the operations of the
sequence so far, with the part's targets of the rows, and the sequence goes on with the same values.
"""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import ClusterError
from giaann_dask.keys import NEURON_MASK
from giaann_dask.models.columns.sharded.shard_actors import HERE, ShardActors, by_actor
from giaann_dask.models.columns.sharded.state_actor import Call, StateActor, StateShard
from giaann_dask.models.columns.state.activation import ActiveColumns, StateEntries
from giaann_dask.models.generation_options import StateOptions
from giaann_dask.spec import BRANCH_BITS

if TYPE_CHECKING:
    from distributed import Client

# How often parts are asked in one step, and made again on other workers before the next time.
_ATTEMPTS = 4
# Targets that are sent together to make a part again.
_CALLED_AT_ONCE = 1 << 20
_numbers = itertools.count()

# A source's target keys, ascending, and other arrays with a value of each, or without any.
RowArrays = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Operation on a whole state, which its parts do.

    Attributes
    ----------
    what : str
        A method of the parts.
    arguments : tuple
        Its arguments; those that the other attributes add are before and after them.
    row : int, optional
        Source of a row: each part is first given the targets that lie in it.
    neurons : tuple of int
        Neuron keys that are changed; without a row only the parts that they are in do it.
    everywhere : bool
        Whether all parts do it, and are last told which of these neurons they have, a bool each.
    """

    what: str
    arguments: tuple[Any, ...] = ()
    row: int | None = None
    neurons: tuple[int, ...] = ()
    everywhere: bool = False


@dataclass(eq=False)
class HeldState:
    """Locations of the parts of a sequence's state; updated every step.

    Attributes
    ----------
    starts : list of int
        Smallest neuron key that belongs to each part, ascending from 0.
    parts : list of tuple of int
        Holder and number of each part.
    sizes : list of int
        Bytes of the entries of each part.
    history : list of Operation
        All operations so far, from which lost parts are made again.
    abandoned : list of tuple of int
        Holder and number of parts that were made again elsewhere.
    """

    starts: list[int] = field(default_factory=lambda: [0])
    parts: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])
    history: list[Operation] = field(default_factory=list)
    abandoned: list[tuple[int, int]] = field(default_factory=list)

    def place(self, neuron: int) -> int:
        """Return which part a neuron belongs to."""
        return bisect_right(self.starts, neuron) - 1


class ShardedState:
    """States of sequences in parts, of which those beyond a budget are on workers.

    Until the budget is passed nothing is asked of the cluster.

    Parameters
    ----------
    client : Client
        Of the cluster whose computing workers may hold parts.
    new_part : callable
        Returns a part without entries; sent to the workers.
    row_of : callable
        Returns the row of a source again.
    limits : StateOptions
        When states are divided.
    """

    def __init__(
        self,
        client: Client,
        new_part: Callable[[], StateShard],
        row_of: Callable[[int], RowArrays],
        limits: StateOptions,
    ) -> None:
        self._row_of, self._limits = row_of, limits
        self.actors = ShardActors(client, StateActor(new_part), (new_part,), limits.timeout_s)

    def begin(self) -> HeldState:
        """Return a state without entries."""
        state = HeldState(parts=[(HERE, next(_numbers))])
        self.ask(state, "begin", {0: ()})
        # Whoever stops in the middle of a sequence says nothing; the lists of parts are the state's own.
        weakref.finalize(state, _drop, self.actors, state.parts, state.abandoned).atexit = False
        return state

    def change(self, state: HeldState, operation: Operation, row: RowArrays | None = None) -> list[Any]:
        """Do an operation; return the results of the parts that did it, in their order.

        Parameters
        ----------
        state : HeldState
            Where the parts are.
        operation : Operation
            Operation of the parts.
        row : tuple of ndarray, optional
            The operation's row.
        """
        wanted = dict(self._arguments_of(state, operation, range(len(state.parts)), row))
        found = self.ask(state, operation.what, wanted)
        state.history.append(operation)
        self._within_budget(state)
        return found

    def entries(self, state: HeldState) -> StateEntries | None:
        """Return a copy of all entries, sorted, where all of them are here."""
        if len(state.parts) > 1:
            return None
        (entries,) = self.ask(state, "entries", {0: ()})
        found: StateEntries = entries
        return found

    def active_columns(self, state: HeldState) -> ActiveColumns | None:
        """Return the strongest columns of a divided state, if any are asked for."""
        if len(state.parts) == 1 or not self._limits.columns:
            return None
        wanted = dict.fromkeys(range(len(state.parts)), (self._limits.columns,))
        return ActiveColumns.joined(self.ask(state, "columns", wanted))

    def ask(self, state: HeldState, what: str, wanted: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Call a method of parts, one request for each holder; return the results in the order of the parts.

        Parts of lost actors are made again on others, and asked there.

        Parameters
        ----------
        state : HeldState
            Where the parts are.
        what : str
            See `giaann_dask.models.columns.sharded.state_actor.Call`.
        wanted : mapping of int to tuple
            The arguments, by the place of the part.

        Raises
        ------
        ClusterError
            If parts are lost again and again, or no worker can hold them.
        """
        answers: dict[int, Any] = {}
        for _ in range(_ATTEMPTS):
            places = [place for place in wanted if place not in answers]
            asked = by_actor([(state.parts[p][0], Call(what, state.parts[p][1], wanted[p])) for p in places])
            found = {holder: its if its is None else iter(its) for holder, its in self.actors.ask(asked).items()}
            for place in places:
                its = found[state.parts[place][0]]
                if its is not None:
                    answers[place], state.sizes[place] = next(its)
            lost = [place for place in places if place not in answers]
            if not lost:
                return [answers[place] for place in wanted]
            self._make_again(state, lost)
        raise ClusterError(
            f"parts of a state were lost {_ATTEMPTS} times in one step",
            "workers that stay alive",
            "look at the workers' logs and memory, then begin the sequence again",
        )

    def _within_budget(self, state: HeldState) -> None:
        """Divide all parts that pass the budget."""
        place = 0
        while place < len(state.parts):
            large = state.sizes[place] > self._limits.state_bytes
            (upper,) = self.ask(state, "divide", {place: ()}) if large else (None,)
            if upper is None:
                place += 1
                continue
            pivot, content = upper
            holder = self.actors.choose(len(state.parts))
            state.starts.insert(place + 1, pivot)
            state.parts.insert(place + 1, (holder, next(_numbers)))
            state.sizes.insert(place + 1, 0)
            self.actors.ask(by_actor([(holder, Call("begin", state.parts[place + 1][1]))]))
            self.ask(state, "put", {place + 1: (content,)})

    def _make_again(self, state: HeldState, places: Sequence[int]) -> None:
        """Make lost parts on other actors, as they were before the operation that failed."""
        for place in places:
            state.abandoned.append(state.parts[place])
            state.parts[place] = self.actors.choose(place), next(_numbers)
        calls: list[tuple[int, Call]] = [
            (state.parts[place][0], Call("begin", state.parts[place][1])) for place in places
        ]
        waiting = 0
        for operation in state.history:
            for place, arguments in self._arguments_of(state, operation, places):
                holder, part = state.parts[place]
                calls.append((holder, Call(operation.what, part, arguments)))
                waiting += 1 if operation.row is None else len(arguments[0])
            if waiting > _CALLED_AT_ONCE:
                self.actors.ask(by_actor(calls))
                calls, waiting = [], 0
        # A holder that is lost now, too, is noticed by who asks it next.
        self.actors.ask(by_actor(calls))

    def _arguments_of(
        self, state: HeldState, operation: Operation, places: Sequence[int], row: RowArrays | None = None
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield those of some parts that do an operation, with the arguments of the method."""
        owners = [state.place(neuron) for neuron in operation.neurons]
        if operation.row is not None:
            divided = _divided(state, self._row_of(operation.row) if row is None else row)
            for place in places:
                yield place, (*divided[place], *operation.arguments)
        elif operation.everywhere:
            for place in places:
                yield place, (*operation.arguments, tuple(owner == place for owner in owners))
        else:
            for place in dict.fromkeys(owners):
                if place in places:
                    yield place, operation.arguments


def by_part(state: HeldState, neuron: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the place of the part that each neuron is in."""
    return np.searchsorted(np.array(state.starts[1:], np.int64), neuron, side="right")


def _divided(state: HeldState, row: RowArrays) -> list[RowArrays]:
    """Return the arrays of a row by part."""
    if len(state.parts) == 1:
        return [row]
    target = row[0]
    place = by_part(state, (target >> BRANCH_BITS) & NEURON_MASK)
    chosen = [place == number for number in range(len(state.parts))]
    return [tuple(each[its] if len(each) == len(target) else each for each in row) for its in chosen]


def _drop(actors: ShardActors, *parts: Sequence[tuple[int, int]]) -> None:
    """Let actors forget parts, without waiting."""
    actors.drop(itertools.chain(*parts))
