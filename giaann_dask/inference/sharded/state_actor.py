"""Store parts of the activation states of sequences on a worker and change them, as a Dask actor.

All that a step does to an entry depends on the step's source and on other entries of the same neuron, and these are in
one part. So each part does the step by itself, with the targets that lie in it, and the parts together have the
entries and values of the undivided state. `giaann_dask.inference.sharded.workers` decides which neurons belong to
which part, and where parts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.device import torch, without_gradients
from giaann_dask.errors import ClusterError
from giaann_dask.inference.rows.source import as_tensor
from giaann_dask.inference.state.activation import (
    ActivationState,
    ActiveColumns,
    Layout,
    Pulse,
    StateEntries,
    burst,
    deactivate,
    propagate,
    source_activity,
)
from giaann_dask.inference.state.candidates import TokenTimes, score_candidates
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.keys import NEURON_MASK, Integers
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification

if TYPE_CHECKING:
    from torch import Tensor

# Keys, values and times of entries.
Entries = tuple[Integers, npt.NDArray[np.float32], Integers]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Operation on a part of the state.

    Attributes
    ----------
    what : str
        A method of `StateActor`.
    part : int
        Number of the part, chosen by who asks; different for every part of every sequence.
    arguments : tuple
        More arguments of the method.
    """

    what: str
    part: int
    arguments: tuple[Any, ...] = ()


class StateActor:
    """Holds parts of states and changes them in the order of the requests.

    Parameters
    ----------
    specification : Specification
        Of the network.
    options : InferenceOptions
        Rules of inference.
    device : {"auto", "cpu", "cuda"}
        Where the parts are.
    """

    def __init__(self, specification: Specification, options: InferenceOptions, device: str = "cpu") -> None:
        self._options, self._device = options, torch.device(device)
        self._layout = Layout.of(specification, self._device)
        self._parts: dict[int, ActivationState] = {}

    @without_gradients
    def act(self, calls: Sequence[Call]) -> list[Any]:
        """Execute calls; return their results.

        Raises
        ------
        ClusterError
            If a part is not here, as after this process was started again.
        """
        return [getattr(self, call.what)(call.part, *call.arguments) for call in calls]

    def begin(self, part: int) -> None:
        """Add a part without entries."""
        self._parts[part] = ActivationState(self._device)

    def put(self, part: int, key: Integers, value: npt.NDArray[np.float32], time: Integers) -> int:
        """Add a part with these entries; return their number."""
        entries = StateEntries(*(as_tensor(array, self._device) for array in (key, value, time)))
        self._parts[part] = ActivationState(self._device, entries)
        return len(key)

    def drop(self, part: int) -> None:
        """Forget a part, if it is here."""
        self._parts.pop(part, None)

    def burst(self, part: int, neuron: int) -> int:
        """Burst a neuron; return the number of entries."""
        burst(self._part(part), neuron, self._layout)
        return len(self._part(part))

    def activity(self, part: int, neuron: int) -> int:
        """Return how many branches of a neuron are active."""
        return source_activity(self._part(part), neuron, self._layout)

    def propagate(self, part: int, target: Integers, pulse: Pulse) -> int:
        """Take in the targets of a row that belong to the part; return the number of entries."""
        keys = as_tensor(target, self._device)
        propagate(self._part(part), keys, pulse, layout=self._layout, options=self._options)
        return len(self._part(part))

    def deactivate(self, part: int, neuron: int) -> int:
        """Set the strongest branch of a neuron to 0; return the number of entries."""
        deactivate(self._part(part), neuron, self._layout)
        return len(self._part(part))

    def score(
        self, part: int, connected: Integers, times: TokenTimes
    ) -> tuple[Integers, npt.NDArray[np.float32], int] | None:
        """Return the neurons that can be predicted, their values and the place of the first maximum."""
        keys = as_tensor(connected, self._device)
        found = score_candidates(self._part(part), keys, times, layout=self._layout, options=self._options)
        return None if found is None else (*found.arrays, found.best)

    def divide(self, part: int) -> tuple[int, Entries] | None:
        """Take away and return the upper half of the entries, with the neuron it begins with; None for one neuron."""
        entries = self._part(part).entries()
        pivot = pivot_of(entries)
        if pivot is None:
            return None
        above = (entries.key >> BRANCH_BITS) & NEURON_MASK >= pivot
        low, high = chosen_entries(entries, ~above), chosen_entries(entries, above)
        self._parts[part] = ActivationState(self._device, low)
        return pivot, (high.key.cpu().numpy(), high.value.cpu().numpy(), high.time.cpu().numpy())

    def columns(self, part: int, count: int) -> ActiveColumns:
        """Return the entries from which the strongest columns of the whole state can be determined."""
        return ActiveColumns.of(self._part(part).entries()).needed(count)

    def entries(self, part: int) -> Entries:
        """Return all entries."""
        state = self._part(part).entries()
        return state.key.cpu().numpy(), state.value.cpu().numpy(), state.time.cpu().numpy()

    def _part(self, part: int) -> ActivationState:
        if part not in self._parts:
            raise ClusterError("a part of a state is lost", "workers that stay alive", "make the part again")
        return self._parts[part]


def chosen_entries(part: StateEntries, chosen: Tensor) -> StateEntries:
    """Return the entries of a part for which a boolean is true."""
    return StateEntries(part.key[chosen], part.value[chosen], part.time[chosen])


def pivot_of(part: StateEntries) -> int | None:
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
