"""Find the neurons that can be predicted in a step, and their values.

Implements the connected set and the candidates of sections 8.3 and 8.6b of the contract, and this package's rule for
ties: the first maximum in the order of the network's neurons (`giaann_dask.models.columns.state.name_order`), on every
device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.device import torch
from giaann_dask.keys import FEATURE_MASK, NEURON_MASK, Integers
from giaann_dask.models.columns.state.activation import ActivationState, Layout, sum_segments
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.spec import BRANCH_BITS

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """The neurons that can be predicted in a step, at least one.

    Attributes
    ----------
    neuron : ndarray or Tensor
        Neuron keys, strictly ascending, thus in (column, feature) order; int64, shape
        ``(candidates,)``. Compiled steps return arrays.
    value : ndarray or Tensor
        Their values, float32, shape ``(candidates,)``; may be zero or negative.
    order : NameOrder
        Which of equal ones is the first.
    """

    neuron: Integers | Tensor
    value: npt.NDArray[np.float32] | Tensor
    order: NameOrder = field(default_factory=NameOrder)

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.neuron)

    @cached_property
    def best(self) -> int:
        """Position of the first maximum."""
        return self.order.first(*self.arrays)

    @property
    def ties(self) -> Integers:
        """Neuron keys of all candidates that share the largest value, ascending, int64."""
        neuron, value = self.arrays
        tied: Integers = neuron[value == value[self.best]]
        return tied

    @property
    def arrays(self) -> tuple[Integers, npt.NDArray[np.float32]]:
        """Neuron keys and values as arrays."""
        return on_host(self.neuron), on_host(self.value)

    def ranked(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the best candidates and their values.

        Parameters
        ----------
        count : int
            How many at most, 1 or more.

        Returns
        -------
        neuron, value : ndarray
            Largest value first, equal ones in the order of neurons, so that the first is `best`; int64
            and float32, shape ``(min(count, candidates),)``.
        """
        neuron, value = self.arrays
        places = self.order.best(neuron, value, count)
        return neuron[places], value[places]


def on_host(values: npt.NDArray[Any] | Tensor) -> npt.NDArray[Any]:
    """Return an array, or a tensor of any device, as an array."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """The times of the token to be predicted.

    Attributes
    ----------
    feature_time : int
        Index of the token.
    column_time : int
        Number of noun tokens up to and including the token; when `open_noun` is set, before it.
    open_noun : bool
        Whether it is unknown if the token is a noun. Then every candidate is timed as what it
        is: one more column for a concept's own neuron (feature 0), none for any other. This is
        ours; the contract knows evaluation only, where the sentence is given.
    """

    feature_time: int
    column_time: int
    open_noun: bool = False


def connected_targets(target: Tensor, layout: Layout) -> Tensor:
    """Return the connected set of a source (contract, section 8.3).

    Parameters
    ----------
    target : Tensor
        Target keys of the source's row, ascending, int64, shape ``(connections,)``.
    layout : Layout
        Of the network, on the row's device.

    Returns
    -------
    Tensor
        Neuron keys with a connection in the last segment on any branch, ascending, distinct,
        int64.
    """
    begin = int(torch.searchsorted(target, layout.starts[layout.last_segment]))
    neurons: Tensor = torch.unique_consecutive((target[begin:] >> BRANCH_BITS) & NEURON_MASK)
    return neurons


def score_candidates(
    state: ActivationState,
    connected: Tensor,
    times: TokenTimes,
    *,
    layout: Layout,
    options: InferenceOptions,
) -> Candidates | None:
    """Return the connected neurons that have an entry in the last segment, with their values.

    Parameters
    ----------
    state : ActivationState
        The state after the source was deactivated.
    connected : Tensor
        Neuron keys as `connected_targets` returns them.
    times : TokenTimes
        Of the token to be predicted; read with timing ``"biased"`` only.
    layout : Layout
        Of the network, on the state's device.
    options : InferenceOptions
        The timing.

    Returns
    -------
    Candidates or None
        None when there is no candidate.
    """
    base = connected << BRANCH_BITS
    _, found = state.find(base[:, None] + layout.grid[-1])
    chosen = found.any(1)
    neuron, base = connected[chosen], base[chosen]
    if not len(neuron):
        return None
    position, found = state.find(layout.grid[:, None, :] + base[None, :, None])
    entries = state.values(position, found), state.times(position, found), found
    return weigh_entries(neuron, entries, times, layout=layout, options=options)


def weigh_entries(
    neuron: Tensor,
    entries: tuple[Tensor, Tensor, Tensor],
    times: TokenTimes,
    *,
    layout: Layout,
    options: InferenceOptions,
) -> Candidates:
    """Return candidates with the values that their entries add up to.

    Parameters
    ----------
    neuron : Tensor
        Neuron keys of the candidates, one or more, strictly ascending, int64, shape ``(candidates,)``.
    entries : tuple of Tensor
        Value (float32) and time (int32) of their entries, 0 where there is none, and whether there
        is one; each of shape ``(segments, candidates, branches)``.
    times : TokenTimes
        Of the token to be predicted; read with timing ``"biased"`` only.
    layout : Layout
        Of the network, on the device of the entries.
    options : InferenceOptions
        The timing.
    """
    value, time, found = entries
    if options.timing == "biased":
        value = value - _penalty(time, neuron, times, layout)
    # A branch without an entry is no 0 beside one with a negative value; a segment without any is.
    value = torch.where(found, value, -torch.inf).amax(2)
    value = sum_segments(torch.where(found.any(2), value, 0.0))
    return Candidates(neuron, value)


def is_concept(neuron: Tensor) -> Tensor:
    """Return whether neuron keys are a concept's own neuron (feature 0), bool."""
    return (neuron & FEATURE_MASK) == 0


def _penalty(time: Tensor, neuron: Tensor, times: TokenTimes, layout: Layout) -> Tensor:
    """Return how far entries are from the time expected of their segment.

    `time` has shape ``(segments, candidates, branches)``, int32; so has the result, float32.
    """
    columns, features = layout.column_segments, layout.feature_segments
    device = time.device
    column_time = torch.full_like(neuron, times.column_time, dtype=torch.int32)
    if times.open_noun:
        column_time = column_time + is_concept(neuron).to(torch.int32)
    ago = torch.arange(columns, 0, -1, dtype=torch.int32, device=device)
    in_columns = column_time[None, :] - ago[:, None]
    ago = torch.arange(features, 0, -1, dtype=torch.int32, device=device)
    in_features = (times.feature_time - ago)[:, None].expand(-1, len(neuron))
    expected = torch.cat([in_columns, in_features])
    return (expected[:, :, None] - time).abs().to(torch.float32)
