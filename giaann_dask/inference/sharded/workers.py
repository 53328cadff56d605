"""Advance one sequence whose activation state exceeds the memory budget of this process, with the rest on workers.

The pushed state of a sequence is divided by target column as soon as it exceeds the budget, the upper parts are given
to workers in turn, and the candidates are reduced over the parts. Parts are in the order of their columns, so that the
first maximum over the parts is the first maximum of all. `giaann_dask.inference.sharded.state_actor` changes a part,
and says why the results are those of the undivided state.

For the same reason a part can be made again by itself: when a worker is lost, another one is sent the operations of the
sequence so far, with the part's targets of the rows, and the sequence goes on with the same values.
"""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.device import torch
from giaann_dask.errors import ClusterError, OptionError, parameter, require_option
from giaann_dask.inference.rows.source import RowSource, as_tensor
from giaann_dask.inference.sharded.holders import HERE, Holders, by_holder
from giaann_dask.inference.sharded.state_actor import Call, StateActor
from giaann_dask.inference.state.activation import ActiveColumns, Pulse, StateEntries
from giaann_dask.inference.state.candidates import Candidates, TokenTimes
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import FlagTable
from giaann_dask.inference.v1.session import Stepper
from giaann_dask.keys import NEURON_MASK
from giaann_dask.spec import BRANCH_BITS, Specification

if TYPE_CHECKING:
    from distributed import Client
    from torch import Tensor

# Of a key, a value and a time.
ENTRY_BYTES = 16
# How often parts are asked in one step, and made again on other workers before the next time.
_ATTEMPTS = 4
# Targets that are sent together to make a part again.
_CALLED_AT_ONCE = 1 << 20
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """Options of the size of a sequence's state in this process.

    Parameters
    ----------
    state_bytes : int
        Bytes of entries, 16 each, of a part; what passes that goes to workers, divided until no part is
        larger, unless it is one neuron.
    timeout_s : float
        Seconds after which a worker that does not respond is lost; its parts are made again on others.
    columns : int
        Of how many concept columns the activation is asked for at every step of a divided state.

    Raises
    ------
    OptionError
        If there is no room for an entry, no time, or fewer than no columns.
    """

    state_bytes: int = 1 << 30
    timeout_s: float = 60.0
    columns: int = 0

    def __post_init__(self) -> None:
        if self.state_bytes < ENTRY_BYTES:
            raise OptionError(
                f"{parameter('state_bytes')} is {self.state_bytes}", f"{ENTRY_BYTES} or more", "give room for an entry"
            )
        require_option(self.timeout_s > 0, "timeout_s", self.timeout_s, "more than 0")
        require_option(self.columns >= 0, "columns", self.columns, "0 or more")


class Operation(NamedTuple):
    """Operation that was done on a whole state.

    Attributes
    ----------
    what : str
        A method of `StateActor`.
    neuron : int
        Neuron key that was changed, or the source of the row that was pushed.
    pulse : Pulse or None
        Signal of the source.
    """

    what: str
    neuron: int
    pulse: Pulse | None = None


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
        Entries of each part.
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


class ShardedSession(Stepper[HeldState]):
    """Advances one sequence at a time, with the state beyond a budget on workers; results equal those of `Session`.

    Until the budget is passed nothing is asked of the cluster. Traces have the state as long as all of it is here, then
    its strongest columns.

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
    device : torch.device, optional
        Of the part that is here.
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
        device: torch.device | None = None,
        state: StateOptions | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options, device=device)
        self._limits = state or StateOptions()
        here = StateActor(specification, self.options, str(self.device))
        self._holders = Holders(client, here, (specification, self.options), self._limits.timeout_s)

    def _begin(self) -> HeldState:
        state = HeldState(parts=[(HERE, next(_numbers))])
        self._ask(state, {0: ()}, "begin")
        # Whoever stops in the middle of a sequence says nothing; the lists of parts are the state's own.
        weakref.finalize(state, _drop, self._holders, state.parts, state.abandoned).atexit = False
        return state

    def _burst(self, state: HeldState, neuron: int) -> None:
        self._change(state, "burst", neuron)

    def _activity(self, state: HeldState, neuron: int) -> int:
        (active,) = self._ask(state, {state.place(neuron): (neuron,)}, "activity")
        return int(active)

    def _propagate(self, state: HeldState, source: int, target: Tensor, pulse: Pulse) -> None:
        keys = target.cpu().numpy()
        divided = _divided(state, keys, (keys >> BRANCH_BITS) & NEURON_MASK)
        wanted = {place: (some, pulse) for place, some in enumerate(divided)}
        state.sizes[:] = self._ask(state, wanted, "propagate")
        state.history.append(Operation("propagate", source, pulse))
        self._within_budget(state)

    def _deactivate(self, state: HeldState, neuron: int) -> None:
        self._change(state, "deactivate", neuron)

    def _score(self, state: HeldState, connected: Tensor, times: TokenTimes) -> Candidates | None:
        keys = connected.cpu().numpy()
        wanted = {place: (some, times) for place, some in enumerate(_divided(state, keys, keys)) if len(some)}
        found = [
            Candidates(as_tensor(neuron, self.device), as_tensor(value, self.device), best)
            for neuron, value, best in filter(None, self._ask(state, wanted, "score"))
        ]
        return reduce_candidates(found, self.device)

    def _entries(self, state: HeldState) -> StateEntries | None:
        if len(state.parts) > 1:
            return None
        (entries,) = self._ask(state, {0: ()}, "entries")
        return StateEntries(*(as_tensor(array, self.device) for array in entries))

    def _active_columns(self, state: HeldState) -> ActiveColumns | None:
        if len(state.parts) == 1 or not self._limits.columns:
            return None
        wanted = dict.fromkeys(range(len(state.parts)), (self._limits.columns,))
        return ActiveColumns.joined(self._ask(state, wanted, "columns")).strongest(self._limits.columns)

    def _change(self, state: HeldState, what: str, neuron: int) -> None:
        place = state.place(neuron)
        (state.sizes[place],) = self._ask(state, {place: (neuron,)}, what)
        state.history.append(Operation(what, neuron))
        self._within_budget(state)

    def _within_budget(self, state: HeldState) -> None:
        """Divide all parts that pass the budget."""
        place = 0
        while place < len(state.parts):
            large = ENTRY_BYTES * state.sizes[place] > self._limits.state_bytes
            (upper,) = self._ask(state, {place: ()}, "divide") if large else (None,)
            if upper is None:
                place += 1
                continue
            pivot, entries = upper
            holder = self._holders.choose(len(state.parts))
            state.starts.insert(place + 1, pivot)
            state.parts.insert(place + 1, (holder, next(_numbers)))
            state.sizes.insert(place + 1, 0)
            (size,) = self._ask(state, {place + 1: entries}, "put")
            state.sizes[place : place + 2] = [state.sizes[place] - size, size]

    def _ask(self, state: HeldState, wanted: dict[int, tuple[Any, ...]], what: str) -> list[Any]:
        """Call a method on parts, one request for each holder; return the answers in the order of the parts.

        Parts of lost holders are made again on others, and asked there.
        """
        answers: dict[int, Any] = {}
        for _ in range(_ATTEMPTS):
            places = [place for place in wanted if place not in answers]
            asked = by_holder([(state.parts[p][0], Call(what, state.parts[p][1], wanted[p])) for p in places])
            found = {holder: its if its is None else iter(its) for holder, its in self._holders.ask(asked).items()}
            for place in places:
                its = found[state.parts[place][0]]
                if its is not None:
                    answers[place] = next(its)
            lost = [place for place in places if place not in answers]
            if not lost:
                return [answers[place] for place in wanted]
            self._make_again(state, lost)
        raise ClusterError(
            f"parts of a state were lost {_ATTEMPTS} times in one step",
            "workers that stay alive",
            "look at the workers' logs and memory, then begin the sequence again",
        )

    def _make_again(self, state: HeldState, places: Sequence[int]) -> None:
        """Make lost parts on other holders, as they were before the operation that failed."""
        for place in places:
            state.abandoned.append(state.parts[place])
            state.parts[place] = self._holders.choose(place), next(_numbers)
        calls: list[tuple[int, Call]] = [
            (state.parts[place][0], Call("begin", state.parts[place][1])) for place in places
        ]
        waiting = 0
        for operation in state.history:
            for place, arguments in self._arguments_of(state, operation, places):
                holder, part = state.parts[place]
                calls.append((holder, Call(operation.what, part, arguments)))
                waiting += len(arguments[0]) if operation.pulse is not None else 1
            if waiting > _CALLED_AT_ONCE:
                self._holders.ask(by_holder(calls))
                calls, waiting = [], 0
        # A holder that is lost now, too, is noticed by who asks it next.
        self._holders.ask(by_holder(calls))

    def _arguments_of(
        self, state: HeldState, operation: Operation, places: Sequence[int]
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield some parts that an operation of the past concerns, with the arguments of the method."""
        if operation.pulse is None:
            place = state.place(operation.neuron)
            if place in places:
                yield place, (operation.neuron,)
            return
        keys = self._targets(operation.neuron).cpu().numpy()
        divided = _divided(state, keys, (keys >> BRANCH_BITS) & NEURON_MASK)
        for place in places:
            yield place, (divided[place], operation.pulse)


def _divided(
    state: HeldState, keys: npt.NDArray[np.int64], neuron: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Return ascending keys by part; `neuron` has the neuron of every key."""
    if len(state.parts) == 1:
        return [keys]
    place = np.searchsorted(np.array(state.starts[1:], np.int64), neuron, side="right")
    return [keys[place == number] for number in range(len(state.parts))]


def _drop(holders: Holders, *parts: Sequence[tuple[int, int]]) -> None:
    """Let holders forget parts, without waiting."""
    holders.drop(itertools.chain(*parts))


def reduce_candidates(found: Sequence[Candidates], device: torch.device) -> Candidates | None:
    """Concatenate the candidates of all parts, in the order of neurons; the first of equal maxima wins.

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
        torch.cat([torch.as_tensor(some.neuron, device=device) for some in found]),
        torch.cat([torch.as_tensor(some.value, device=device) for some in found]),
        sum(map(len, found[:winner])) + found[winner].best,
    )
