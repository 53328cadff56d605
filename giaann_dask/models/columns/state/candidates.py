"""Find the neurons that can be predicted in a step, and their values.

Implements the connected set and the candidates of sections 8.3 and 8.6b of the contract, and this package's rule for
ties: the first maximum in the order of the network's neurons (`giaann_dask.models.columns.state.name_order`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import FEATURE_MASK, NEURON_MASK, Integers
from giaann_dask.models.columns.state.activation import ActivationState, Floats, Layout, sum_segments
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.spec import BRANCH_BITS


@dataclass(frozen=True, eq=False)
class Candidates:
    """The neurons that can be predicted in a step, at least one.

    Attributes
    ----------
    neuron : ndarray
        Neuron keys, strictly ascending, thus in (column, feature) order; int64, shape
        ``(candidates,)``.
    value : ndarray
        Their values, float32, shape ``(candidates,)``; may be zero or negative.
    order : NameOrder
        Which of equal ones is the first.
    """

    neuron: Integers
    value: Floats
    order: NameOrder = field(default_factory=NameOrder)

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.neuron)

    @cached_property
    def best(self) -> int:
        """Position of the first maximum."""
        return self.order.first(self.neuron, self.value)

    @property
    def ties(self) -> Integers:
        """Neuron keys of all candidates that share the largest value, ascending, int64."""
        tied: Integers = self.neuron[self.value == self.value[self.best]]
        return tied

    def ranked(self, count: int) -> tuple[Integers, Floats]:
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
        places = self.order.best(self.neuron, self.value, count)
        return self.neuron[places], self.value[places]


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


def connected_targets(target: Integers, layout: Layout) -> Integers:
    """Return the connected set of a source (contract, section 8.3).

    Parameters
    ----------
    target : ndarray
        Target keys of the source's row, ascending, int64, shape ``(connections,)``.
    layout : Layout
        Of the network.

    Returns
    -------
    ndarray
        Neuron keys with a connection in the last segment on any branch, ascending, distinct,
        int64.
    """
    begin = int(np.searchsorted(target, layout.starts[layout.last_segment]))
    return np.unique((target[begin:] >> BRANCH_BITS) & NEURON_MASK)


def score_candidates(
    state: ActivationState,
    connected: Integers,
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
    connected : ndarray
        Neuron keys as `connected_targets` returns them.
    times : TokenTimes
        Of the token to be predicted; read with timing ``"biased"`` only.
    layout : Layout
        Of the network.
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
    # By segment, candidate and branch.
    position, found = state.find(layout.grid[:, None, :] + base[None, :, None])
    value = state.values(position, found)
    if options.timing == "biased":
        value = value - _penalty(state.times(position, found), neuron, times, layout)
    # A branch without an entry is no 0 beside one with a negative value; a segment without any is.
    value = np.where(found, value, np.float32(-np.inf)).max(2)
    return Candidates(neuron, sum_segments(np.where(found.any(2), value, np.float32(0))))


def _penalty(time: npt.NDArray[np.int32], neuron: Integers, times: TokenTimes, layout: Layout) -> Floats:
    """Return how far entries are from the time expected of their segment.

    `time` has shape ``(segments, candidates, branches)``, int32; so has the result, float32.
    """
    columns, features = layout.column_segments, layout.feature_segments
    later = times.open_noun & ((neuron & FEATURE_MASK) == 0)
    in_columns = times.column_time + later - np.arange(columns, 0, -1)[:, None]
    in_features = np.broadcast_to(times.feature_time - np.arange(features, 0, -1)[:, None], (features, len(neuron)))
    expected = np.concatenate([in_columns, in_features])
    return np.abs(expected[:, :, None] - time).astype(np.float32)
