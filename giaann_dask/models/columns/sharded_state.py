"""Spread the activation state of a sequence over workers when it exceeds the memory budget of this process.

The pushed state of a sequence is divided by target column as soon as it exceeds the budget, the upper parts are given
to workers in turn, and the candidates are joined over the parts, which are in the order of their columns. Traces have
the state as long as all of it is in this process, then its strongest columns. Results are those of the undivided
sessions (`giaann_dask.models.columns.v1.session.Session`, `giaann_dask.models.columns.v2.session.V2Session`).

All that a step does to an entry depends on the step's source and on other entries of the same neuron, and these are in
one part. So each part does the step by itself, in a Dask actor, with the targets that lie in it, and the parts together
have the entries and values of the undivided state.

For the same reason a part can be made again by itself: when a worker is lost, another one is sent the operations of the
sequence so far, with the part's targets of the rows, and the sequence goes on with the same values. A worker that is
gone, or that does not respond in time, is asked nothing any more; workers that join are found when a part has to be
placed.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import roles_of
from giaann_dask.errors import ClusterError
from giaann_dask.keys import NEURON_MASK, Integers
from giaann_dask.models.columns.state.activation import ActiveColumns, Candidates, Pulse, StateEntries, TokenTimes
from giaann_dask.models.columns.state.session import FlagTable, SequenceSession
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.dynamics import Clock, Floats
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.generation_options import StateOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import BRANCH_BITS, Specification

if TYPE_CHECKING:
    from distributed import Client, Future

# How often parts are asked in one step, and made again on other workers before the next time.
_ATTEMPTS = 4
# Targets that are sent together to make a part again.
_CALLED_AT_ONCE = 1 << 20
_numbers = itertools.count()
# A source's target keys, ascending, and other arrays with a value of each, or without any.
RowArrays = tuple[npt.NDArray[Any], ...]
# The holder in this process.
HERE = 0
_LOOK_S = 0.2
# For an actor to be created on a worker that has imported nothing yet.
_OPEN_S = 60.0
_LOG = logging.getLogger(__name__)


class StateShard(Protocol):
    """State of some neurons; its methods for the operations of a step are called by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of its entries."""

    def put(self, content: Any) -> None:
        """Take in what `divide` of another part has returned; called once, of a part without entries."""

    def divide(self) -> tuple[int, Any] | None:
        """Take away and return the upper half of the entries, with the neuron it begins with; None for one neuron."""

    def entries(self) -> StateEntries:
        """Return a copy of all entries, sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Operation on a part of the state.

    Attributes
    ----------
    what : str
        ``"begin"``, ``"drop"``, ``"columns"``, or a method of the `StateShard`.
    part : int
        Number of the part, chosen by who asks; different for every part of every sequence.
    arguments : tuple
        Of the method.
    """

    what: str
    part: int
    arguments: tuple[Any, ...] = ()


class StateActor:
    """Holds parts of states and changes them in the order of the requests.

    Parameters
    ----------
    new : callable
        Returns a part without entries.

    Attributes
    ----------
    parts : dict of int to StateShard
        The parts that it holds, by number.
    """

    def __init__(self, new: Callable[[], StateShard]) -> None:
        self._new = new
        self.parts: dict[int, StateShard] = {}

    def act(self, calls: Sequence[Call]) -> list[tuple[Any, int]]:
        """Execute calls; return the result of each, and the bytes of its part after it.

        Raises
        ------
        ClusterError
            If a part is not here, as after this process was started again.
        """
        return [self._answer(call) for call in calls]

    def _answer(self, call: Call) -> tuple[Any, int]:
        if call.what == "drop":
            self.parts.pop(call.part, None)
            return None, 0
        if call.what == "begin":
            self.parts[call.part] = self._new()
        if call.part not in self.parts:
            raise ClusterError("a part of a state is lost", "workers that stay alive", "recompute the part")
        part, found = self.parts[call.part], None
        if call.what == "columns":
            found = ActiveColumns.of(part.entries()).needed(*call.arguments)
        elif call.what != "begin":
            found = getattr(part, call.what)(*call.arguments)
        return found, part.nbytes


class ShardActors:
    """Actors that hold parts, by number; the one in this process has the number `HERE`.

    Parameters
    ----------
    client : Client
        Of the cluster whose computing workers may hold parts.
    here : StateActor
        Holder in this process.
    arguments : tuple
        Of the `StateActor` of each worker.
    timeout_s : float
        Seconds after which a worker that does not respond is lost.

    Attributes
    ----------
    futures : list of Future
        Those of the actors on workers.
    """

    def __init__(self, client: Client, here: StateActor, arguments: tuple[Any, ...], timeout_s: float) -> None:
        self._client, self._arguments, self._timeout_s = client, arguments, timeout_s
        self._actors: list[Any] = [here]
        # By the address of the worker; a process that is started again has another address.
        self._numbers: dict[str, int] = {}
        self._lost: set[int] = set()
        self.futures: list[Future] = []
        # Nobody else, in this process or another, may find these actors by their keys.
        self._name = f"part-holder-{uuid.uuid4().hex}"

    @property
    def on_workers(self) -> bool:
        """Whether any worker has been asked to hold parts."""
        return len(self._actors) > 1

    def choose(self, place: int) -> int:
        """Return the holder for a part, in turn by its place.

        Raises
        ------
        ClusterError
            If no computing worker responds in time.
        """
        usable = self._usable()
        if not usable:
            self._look()
            usable = self._usable()
        deadline = time.monotonic() + self._timeout_s
        while not usable and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self._look()
            usable = self._usable()
        if not usable:
            raise ClusterError(
                f"no worker holds parts of a state within {self._timeout_s:g} seconds",
                "computing workers that stay alive",
                "check the workers' logs and memory, then begin the sequence again",
            )
        return usable[place % len(usable)]

    def ask(self, calls: dict[int, list[Call]]) -> dict[int, list[Any] | None]:
        """Send each holder its calls, all at once; return their results.

        None stands for a holder that is lost, or that has lost any of the parts, whatever it has done with the others.
        """
        found: dict[int, list[Any] | None] = dict.fromkeys(calls)
        sent = {}
        for number, its in calls.items():
            if number not in self._lost and number != HERE:
                try:
                    sent[number] = self._actors[number].act(its)
                except (OSError, RuntimeError) as error:
                    self._lose(number, error)
        if HERE in calls:
            found[HERE] = self._actors[HERE].act(calls[HERE])
        for number, answer in sent.items():
            try:
                found[number] = answer.result(timeout=self._timeout_s)
            except ClusterError:
                # The worker is there and does not have the part.
                _LOG.warning("a worker no longer holds a part of a state")
            except (OSError, RuntimeError) as error:
                self._lose(number, error)
        return found

    def drop(self, parts: Iterable[tuple[int, int]]) -> None:
        """Let actors forget parts, without waiting; those of a lost cluster have forgotten them."""
        for number, part in parts:
            with suppress(Exception):
                self._actors[number].act([Call("drop", part)])

    def _usable(self) -> list[int]:
        return [number for number in range(1, len(self._actors)) if number not in self._lost]

    def _lose(self, number: int, error: Exception) -> None:
        _LOG.warning("a worker that holds parts of a state does not respond (%s)", error or type(error).__name__)
        self._lost.add(number)

    def _look(self) -> None:
        """Create an actor on each computing worker that has none."""
        new = [address for address in roles_of(self._client).compute if address not in self._numbers]
        futures = [
            self._client.submit(
                StateActor, *self._arguments, actor=True, workers=[address], key=f"{self._name}-{uuid.uuid4().hex}"
            )
            for address in new
        ]
        for address, future in zip(new, futures, strict=True):
            number = self._numbers[address] = len(self._actors)
            self.futures.append(future)
            self._actors.append(None)
            limit_s = max(self._timeout_s, _OPEN_S)
            try:
                actor = future.result(timeout=limit_s)
                # The first part imports what parts need; later calls are answered at once, or the worker is lost.
                actor.act([Call("begin", HERE), Call("drop", HERE)]).result(timeout=limit_s)
                self._actors[number] = actor
            except Exception as error:  # Dask has several for a worker that is lost meanwhile.
                self._lose(number, error)


def by_actor(calls: Sequence[tuple[int, Call]]) -> dict[int, list[Call]]:
    """Return calls by the actors that have their parts, in order."""
    found: dict[int, list[Call]] = {}
    for number, call in calls:
        found.setdefault(number, []).append(call)
    return found


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
            See `Call`.
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
            "check the workers' logs and memory, then begin the sequence again",
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


class _ShardedColumns(_DividedState):
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


class _ShardedAdvancing(_DividedState):
    """See `giaann_dask.models.columns.v2.session.AdvancingState`."""

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

    _divided = _ShardedColumns


class ShardedV2Session(_Sharded, V2Session):
    """Advances one sequence of profile ``v2`` at a time; the parameters are those of `_Sharded`."""

    _divided = _ShardedAdvancing
