"""Store parts of the activation states of sequences on a worker and change them, as a Dask actor.

All that a step does to an entry depends on the step's source and on other entries of the same neuron, and these are in
one part. So each part does the step by itself, with the targets that lie in it, and the parts together have the
entries and values of the undivided state. `giaann_dask.models.columns.sharded.workers` decides which neurons belong to
which part, and where parts are; what a part does in a step is its profile's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from giaann_dask.errors import ClusterError
from giaann_dask.keys import Integers
from giaann_dask.models.columns.state.activation import ActiveColumns, StateEntries
from giaann_dask.spec import FEATURE_BITS


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
    """

    def __init__(self, new: Callable[[], StateShard]) -> None:
        self._new = new
        self._parts: dict[int, StateShard] = {}

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
            self._parts.pop(call.part, None)
            return None, 0
        if call.what == "begin":
            self._parts[call.part] = self._new()
        if call.part not in self._parts:
            raise ClusterError("a part of a state is lost", "workers that stay alive", "make the part again")
        part, found = self._parts[call.part], None
        if call.what == "columns":
            found = ActiveColumns.of(part.entries()).needed(*call.arguments)
        elif call.what != "begin":
            found = getattr(part, call.what)(*call.arguments)
        return found, part.nbytes


def pivot_of(neuron: Integers) -> int | None:
    """Return the neuron from which on a part's entries belong to another, or None when it is one neuron.

    The begin of a column where there are two, for a column's entries change together.

    Parameters
    ----------
    neuron : ndarray
        Neuron keys of the entries, one or more, int64.
    """
    lowest, middle, highest = np.sort(neuron)[[0, (len(neuron) - 1) // 2, -1]].tolist()
    column = middle >> FEATURE_BITS
    for pivot in (column << FEATURE_BITS, (column + 1) << FEATURE_BITS, middle, highest):
        if lowest < pivot <= highest:
            return int(pivot)
    return None
