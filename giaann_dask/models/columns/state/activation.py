"""Change the activation state of one sequence (burst, propagate, deactivate), and find what it predicts.

Sections 7.4 and 8.1 to 8.6b of the contract, in float32. The whole row of a source is pushed into the state, as the
contract says; this is the plain reference path. Ties go to the first maximum in the order of the network's neurons
(`giaann_dask.models.columns.state.name_order`), which is this package's rule.

The state is a sparse map that is changed in place: entries are appended, and found by their keys. So the cost of a step
depends on the length of its row, however many entries there are. What the contract does to all entries, booleanising,
changes only those that the step reached or that were burst since the last one: all others are 0 or 1.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import FEATURE_MASK, NEURON_MASK, SEGMENT_SHIFT, Integers
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.keyed_arrays import KeyedArrays
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.generation_options import ENTRY_BYTES
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification

Floats = npt.NDArray[np.float32]
NEVER = -1


@dataclass(frozen=True, eq=False)
class Layout:
    """Values of a specification that the functions of this package read.

    Attributes
    ----------
    column_segments, feature_segments, branches : int
        Sizes, as in the specification.
    grid : ndarray
        Target key of column 0, feature 0 by (segment, branch), int64,
        shape ``(segments, branches)``; a neuron's entries are at ``grid + (neuron << 7)``.
    starts : ndarray
        Smallest target key of every segment, int64, shape ``(segments,)``.
    drives : tuple of float
        Drive of a connection by the source's activity (0 to ``branches``): the float32 value
        ``2 * (sigmoid(activity / 100) - 0.5)``.
    """

    column_segments: int
    feature_segments: int
    branches: int
    grid: Integers
    starts: Integers
    drives: tuple[float, ...]

    @classmethod
    def of(cls, specification: Specification) -> Layout:
        """Lay out a specification."""
        starts = np.arange(specification.segments, dtype=np.int64) << SEGMENT_SHIFT
        return cls(
            specification.column_segments,
            specification.feature_segments,
            specification.branches,
            starts[:, None] | np.arange(specification.branches, dtype=np.int64),
            starts,
            drives_of(specification.branches),
        )

    @property
    def last_segment(self) -> int:
        """Number of the last feature segment."""
        return self.column_segments + self.feature_segments - 1

    def entries(self, neuron: int) -> Integers:
        """Return the target keys of a neuron, int64, shape ``(segments, branches)``."""
        return self.grid + (neuron << BRANCH_BITS)


def drives_of(branches: int) -> tuple[float, ...]:
    """Return the drive of a connection by the source's activity, 0 to a number of branches; see `Layout.drives`."""
    one, half = np.float32(1), np.float32(0.5)
    power = np.exp(-(np.arange(branches + 1, dtype=np.float32) / np.float32(100)).astype(np.float64)).astype(np.float32)
    return tuple((np.float32(2) * (one / (one + power) - half)).tolist())


@dataclass(frozen=True, eq=False)
class StateEntries:
    """Entries of the state of one sequence at some moment, sorted; an entry of value 0 is an entry.

    Attributes
    ----------
    key : ndarray
        Target keys, strictly ascending, int64, shape ``(entries,)``.
    value : ndarray
        Activation, never negative, float32, shape ``(entries,)``.
    time : ndarray
        Time of the last connection that reached the entry, or `NEVER`; int32, shape
        ``(entries,)``. In columns for column segments, in tokens for feature segments.
    """

    key: Integers
    value: Floats
    time: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Signal that a source sends along its connections in one step.

    Attributes
    ----------
    source : int
        Neuron key of the source.
    drive : float
        Value that every connection carries; one of `Layout.drives`.
    column_time : int
        Number of noun tokens up to and including the source's token.
    feature_time : int
        Index of the source's token.
    """

    source: int
    drive: float
    column_time: int
    feature_time: int


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


class ActivationState:
    """Activation and time of the entries of one sequence, or of some of its neurons, changed in place.

    An entry takes 24 to 48 bytes.

    Parameters
    ----------
    layout : Layout
        Of the network.
    options : InferenceOptions
        Rules of inference.
    """

    def __init__(self, layout: Layout, options: InferenceOptions) -> None:
        self._layout, self._options = layout, options
        self._arrays = KeyedArrays(np.float32(0), np.int32(NEVER))
        # Positions of entries that are neither 0 nor 1, maybe, since they were last booleanised.
        self._pending: list[Integers] = []

    @property
    def _values(self) -> Floats:
        return self._arrays.columns[0]

    @property
    def _times(self) -> npt.NDArray[np.int32]:
        return self._arrays.columns[1]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return ENTRY_BYTES * len(self)

    def copy(self) -> Self:
        """Return a state with the same entries that is changed independently."""
        other = copy(self)
        other._arrays, other._pending = self._arrays.copy(), [*self._pending]
        return other

    def entries(self) -> StateEntries:
        """Return a copy of all entries, sorted."""
        key = self._arrays.keys[: len(self)]
        order = np.argsort(key)
        return StateEntries(key[order], self._values[order], self._times[order])

    def values(self, keys: Integers) -> Floats:
        """Return the values of the entries of target keys, 0 for missing entries; of the shape of the keys."""
        return self._values_at(self._arrays.find(keys))

    def activity(self, neuron: int) -> int:
        """Return how many branches of a source are active (contract, section 8.4a).

        A branch counts when it has an entry in the last segment, of whatever value, and the sum over
        its segments is positive.
        """
        position = self._arrays.find(self._layout.entries(neuron))
        # Values are never negative: a sum is positive where any value is.
        positive = (self._values_at(position) > 0).any(0)
        return int((positive & (position[-1] >= 0)).sum())

    def burst(self, neuron: int) -> None:
        """Add 1 to branch 0 of a neuron's last segment."""
        position = self._arrays.take(self._layout.entries(neuron)[-1, :1])
        self._values[position] += np.float32(1)
        self._pending.append(position)

    def deactivate(self, neuron: int) -> None:
        """Set the strongest branch of a neuron to 0 (section 8.5).

        The branch with the largest sum over segments, the lowest such branch. Its entries stay, as
        zeros, with their times. A neuron without entries changes nothing.
        """
        position = self._arrays.find(self._layout.entries(neuron))
        position = position[:, int(sum_segments(self._values_at(position)).argmax())]
        self._values[position[position >= 0]] = 0

    def propagate(self, target: Integers, pulse: Pulse) -> None:
        """Push a source's row into the state (contract, section 8.4).

        An entry is there afterwards for every connection that was kept, even when the drive is 0. Gating and timing
        read the state, for all connections at once, as it was before the step.

        Parameters
        ----------
        target : ndarray
            Target keys of the source's row, ascending, int64, shape ``(connections,)``.
        pulse : Pulse
            Drive and times of the source.
        """
        kept, columns = self._kept(target, pulse)
        touched = self._arrays.take(kept)
        self._values[touched] += np.float32(pulse.drive)
        self._booleanise(touched)
        if self._options.timing != "none":
            self._times[touched[:columns]] = pulse.column_time
            self._times[touched[columns:]] = pulse.feature_time

    def score(self, connected: Integers, times: TokenTimes) -> Candidates | None:
        """Return the connected neurons that have an entry in the last segment, with their values.

        Parameters
        ----------
        connected : ndarray
            Neuron keys as `connected_targets` returns them.
        times : TokenTimes
            Of the token to be predicted; read with timing ``"biased"`` only.

        Returns
        -------
        Candidates or None
            None when there is no candidate.
        """
        grid = self._layout.grid
        neuron = connected[(self._arrays.find((connected << BRANCH_BITS)[:, None] + grid[-1]) >= 0).any(1)]
        if not len(neuron):
            return None
        # By segment, candidate and branch.
        position = self._arrays.find(grid[:, None, :] + (neuron << BRANCH_BITS)[None, :, None])
        value, found = self._values_at(position), position >= 0
        if self._options.timing == "biased":
            value = value - _penalty(self._times_at(position), neuron, times, self._layout)
        # A branch without an entry is no 0 beside one with a negative value; a segment without any is.
        value = np.where(found, value, np.float32(-np.inf)).max(2)
        return Candidates(neuron, sum_segments(np.where(found.any(2), value, np.float32(0))))

    def _values_at(self, position: Integers) -> Floats:
        """Return the values at some positions, 0 for missing entries."""
        return np.where(position >= 0, self._values[position], np.float32(0))

    def _times_at(self, position: Integers) -> npt.NDArray[np.int32]:
        """Return the times at some positions, 0 for missing entries and missing times."""
        return np.where(position >= 0, np.maximum(self._times[position], 0), np.int32(0))

    def _booleanise(self, touched: Integers) -> None:
        """Set values of reached entries, and of those that were burst, to 1 where positive, else to 0."""
        first = self._options.boolean_from(self._layout.column_segments, len(self._layout.starts))
        changed = np.concatenate([touched, *self._pending])
        self._pending = []
        changed = changed[self._arrays.keys[changed] >> SEGMENT_SHIFT >= first]
        self._values[changed] = np.sign(self._values[changed])

    def _kept(self, target: Integers, pulse: Pulse) -> tuple[Integers, int]:
        """Return the target keys that pass timing and gating, and how many are in column segments."""
        columns = self._layout.column_segments
        bounds = [*np.searchsorted(target, self._layout.starts).tolist(), len(target)]
        edges = (0, bounds[1], bounds[columns], bounds[columns + 1], len(target))
        if self._options.timing != "exact" and not self._options.sequential:
            return target, edges[2]
        first_column, next_columns, first_feature, next_features = (target[a:b] for a, b in pairwise(edges))
        # The first segment of either kind has no segment before it and is never held back.
        next_columns = self._passing(next_columns, pulse.column_time)
        next_features = self._passing(next_features, pulse.feature_time)
        kept = np.concatenate([first_column, next_columns, first_feature, next_features])
        return kept, len(first_column) + len(next_columns)

    def _passing(self, target: Integers, now: int) -> Integers:
        """Return the target keys whose entry in the segment before allows them."""
        position = self._arrays.find(target - (1 << SEGMENT_SHIFT))
        allowed = np.ones(len(target), np.bool_)
        if self._options.sequential:
            allowed = self._values_at(position) > 0
        if self._options.timing == "exact":
            allowed = allowed & (self._times_at(position) == now - 1)
        return target[allowed]


def sum_segments(values: Floats) -> Floats:
    """Sum float32 values over the first axis, in its order, as the contract's sums are defined."""
    total: Floats = values[0]
    for row in values[1:]:
        total = total + row
    return total


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


@dataclass(frozen=True, slots=True, eq=False)
class ActiveColumns:
    """Concept columns with some activation.

    Attributes
    ----------
    column : ndarray of int64
        Numbers of the columns, each once.
    activation : ndarray of float64
        Sum over all entries of each.
    """

    column: npt.NDArray[np.int64]
    activation: npt.NDArray[np.float64]

    @classmethod
    def of(cls, state: StateEntries) -> ActiveColumns:
        """Return all active columns of a state, ascending."""
        if not len(state):
            return cls(np.zeros(0, np.int64), np.zeros(0))
        column = ((state.key >> BRANCH_BITS) & NEURON_MASK) >> FEATURE_BITS
        value = state.value.astype(np.float64)
        # Added up in an order that does not depend on how features are numbered.
        order = np.argsort(value)
        found, place = np.unique(column[order], return_inverse=True)
        total = np.bincount(place, weights=value[order], minlength=len(found)).astype(np.float64, copy=False)
        return cls(found[total > 0], total[total > 0])

    def strongest(self, count: int, order: NameOrder) -> ActiveColumns:
        """Return the columns with the largest activation, the largest first, ties in the order of their own neurons."""
        places = order.best(self.column << FEATURE_BITS, self.activation, count)
        return ActiveColumns(self.column[places], self.activation[places])
