"""Change the activation state of one sequence (burst, propagate, deactivate), and find what it predicts.

Sections 7.4 and 8.1 to 8.6b of the contract, in float32. The whole row of a source is pushed into the state, as the
contract says; this is the plain reference path. Ties go to the first maximum in the order of the network's neurons
(`giaann_dask.models.columns.state.name_order`), which is this package's rule.

The state is a sparse map that is changed in place: entries are appended, and found by their keys. So the cost of a step
depends on the length of its row, however many entries there are. What the contract does to all entries, booleanising,
changes only those that the step reached or that were burst since the last one: all others are 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification

Floats = npt.NDArray[np.float32]
Marks = npt.NDArray[np.bool_]
NEVER = -1
_ONE_SEGMENT = 1 << SEGMENT_SHIFT


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

    def chosen(self, places: Marks) -> StateEntries:
        """Return some of the entries."""
        return StateEntries(self.key[places], self.value[places], self.time[places])


class ActivationState:
    """Activation and time of the entries of one sequence, changed in place.

    An entry takes 24 to 48 bytes.

    Parameters
    ----------
    entries : StateEntries, optional
        The first entries; none by default.
    """

    def __init__(self, entries: StateEntries | None = None) -> None:
        self._arrays = KeyedArrays(np.float32(0), np.int32(NEVER))
        # Positions of entries that are neither 0 nor 1, maybe, since they were last booleanised.
        self._pending: list[Integers] = []
        if entries is not None:
            position = self._arrays.take(entries.key)
            self._values[position], self._times[position] = entries.value, entries.time
            self._pending.append(np.flatnonzero(entries.value != np.sign(entries.value)))

    @property
    def _values(self) -> Floats:
        return self._arrays.columns[0]

    @property
    def _times(self) -> npt.NDArray[np.int32]:
        return self._arrays.columns[1]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._arrays)

    def copy(self) -> Self:
        """Return a state with the same entries that is changed independently."""
        other = type(self)()
        other._arrays, other._pending = self._arrays.copy(), [*self._pending]
        return other

    def entries(self) -> StateEntries:
        """Return a copy of all entries, sorted."""
        key = self._arrays.keys[: len(self)]
        order = np.argsort(key)
        return StateEntries(key[order], self._values[order], self._times[order])

    def find(self, keys: Integers) -> tuple[Integers, Marks]:
        """Look up target keys.

        Parameters
        ----------
        keys : ndarray
            Target keys, int64, any shape.

        Returns
        -------
        position, found : ndarray
            Position of each key's entry, int64, and whether it has one; both of the shape of `keys`. The position of a
            key without an entry can be read, too.
        """
        position = self._arrays.find(keys)
        return np.maximum(position, 0), position >= 0

    def values(self, position: Integers, found: Marks) -> Floats:
        """Return the values of the entries that `find` found, 0 for missing entries."""
        return np.where(found, self._values[position], np.float32(0))

    def times(self, position: Integers, found: Marks) -> npt.NDArray[np.int32]:
        """Return the times of the entries that `find` found, 0 for missing entries and missing times."""
        return np.where(found, np.maximum(self._times[position], 0), np.int32(0))

    def add(self, keys: Integers, amount: float) -> Integers:
        """Add an amount to the entries of distinct keys, making those that are missing; return their positions."""
        position = self._arrays.take(keys)
        self._values[position] += np.float32(amount)
        return position

    def clear(self, position: Integers) -> None:
        """Set the values of entries to 0."""
        self._values[position] = 0

    def set_time(self, position: Integers, time: int) -> None:
        """Set the times of entries."""
        self._times[position] = time

    def mark_burst(self, position: Integers) -> None:
        """Remember entries that have to be booleanised, though no connection may reach them."""
        self._pending.append(position)

    def booleanise(self, position: Integers, first_key: int | None) -> None:
        """Set the values of reached entries, and of burst ones from a key on, to 1 where positive, else to 0.

        Without a key only forget the burst ones.
        """
        burst, self._pending = self._pending, []
        if first_key is None:
            return
        some = [each[self._arrays.keys[each] >= first_key] for each in burst]
        changed = np.concatenate([position, *some])
        self._values[changed] = np.sign(self._values[changed])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Signal that a source sends along its connections in one step.

    Attributes
    ----------
    drive : float
        Value that every connection carries; one of `Layout.drives`.
    column_time : int
        Number of noun tokens up to and including the source's token.
    feature_time : int
        Index of the source's token.
    """

    drive: float
    column_time: int
    feature_time: int


def source_activity(state: ActivationState, neuron: int, layout: Layout) -> int:
    """Return how many branches of a source are active (contract, section 8.4a).

    A branch counts when it has an entry in the last segment, of whatever value, and the sum over
    its segments is positive.
    """
    position, found = state.find(layout.entries(neuron))
    # Values are never negative: a sum is positive where any value is.
    positive = (state.values(position, found) > 0).any(0)
    return int((positive & found[-1]).sum())


def burst(state: ActivationState, neuron: int, layout: Layout) -> None:
    """Add 1 to branch 0 of a neuron's last segment."""
    state.mark_burst(state.add(layout.entries(neuron)[-1, :1], 1.0))


def deactivate(state: ActivationState, neuron: int, layout: Layout) -> None:
    """Set the strongest branch of a neuron to 0 (section 8.5).

    The branch with the largest sum over segments, the lowest such branch. Its entries stay, as
    zeros, with their times. A neuron without entries changes nothing.
    """
    position, found = state.find(layout.entries(neuron))
    branch = int(sum_segments(state.values(position, found)).argmax())
    state.clear(position[:, branch][found[:, branch]])


def propagate(
    state: ActivationState, target: Integers, pulse: Pulse, *, layout: Layout, options: InferenceOptions
) -> None:
    """Push a source's row into the state (contract, section 8.4).

    An entry is there afterwards for every connection that was kept, even when the drive is 0.

    Parameters
    ----------
    state : ActivationState
        Gating and timing read it, for all connections at once, as it was before the step.
    target : ndarray
        Target keys of the source's row, ascending, int64, shape ``(connections,)``.
    pulse : Pulse
        Drive and times of the source.
    layout : Layout
        Of the network.
    options : InferenceOptions
        Timing, activations and sequential gating.
    """
    kept, columns = _kept(state, target, pulse, layout, options)
    touched = state.add(kept, pulse.drive)
    if options.activations == "boolf":
        state.booleanise(touched[columns:], int(layout.starts[layout.column_segments]))
    else:
        state.booleanise(touched, 0 if options.activations == "boolf+c" else None)
    if options.timing != "none":
        state.set_time(touched[:columns], pulse.column_time)
        state.set_time(touched[columns:], pulse.feature_time)


def sum_segments(values: Floats) -> Floats:
    """Sum float32 values over the first axis, in its order, as the contract's sums are defined."""
    total: Floats = values[0]
    for row in values[1:]:
        total = total + row
    return total


def _kept(
    state: ActivationState, target: Integers, pulse: Pulse, layout: Layout, options: InferenceOptions
) -> tuple[Integers, int]:
    """Return the target keys that pass timing and gating, and how many are in column segments."""
    columns = layout.column_segments
    bounds = [*np.searchsorted(target, layout.starts).tolist(), len(target)]
    edges = (0, bounds[1], bounds[columns], bounds[columns + 1], len(target))
    if options.timing != "exact" and not options.sequential:
        return target, edges[2]
    first_column, next_columns, first_feature, next_features = (target[a:b] for a, b in pairwise(edges))
    # The first segment of either kind has no segment before it and is never held back.
    next_columns = _passing(state, next_columns, pulse.column_time, options)
    next_features = _passing(state, next_features, pulse.feature_time, options)
    kept = np.concatenate([first_column, next_columns, first_feature, next_features])
    return kept, len(first_column) + len(next_columns)


def _passing(state: ActivationState, target: Integers, now: int, options: InferenceOptions) -> Integers:
    """Return the target keys whose entry in the segment before allows them."""
    position, found = state.find(target - _ONE_SEGMENT)
    allowed = np.ones_like(found)
    if options.sequential:
        allowed = state.values(position, found) > 0
    if options.timing == "exact":
        allowed = allowed & (state.times(position, found) == now - 1)
    return target[allowed]


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
        return cls._summed(column[order], value[order])

    @classmethod
    def joined(cls, parts: Sequence[ActiveColumns]) -> ActiveColumns:
        """Return the columns of several parts, ascending; one that is in several parts has their sum."""
        return cls._summed(
            np.concatenate([part.column for part in parts]), np.concatenate([part.activation for part in parts])
        )

    @classmethod
    def _summed(cls, column: npt.NDArray[np.int64], activation: npt.NDArray[np.float64]) -> ActiveColumns:
        found, place = np.unique(column, return_inverse=True)
        total = np.bincount(place, weights=activation, minlength=len(found)).astype(np.float64, copy=False)
        return cls(found[total > 0], total[total > 0])

    def strongest(self, count: int, order: NameOrder) -> ActiveColumns:
        """Return those with the largest activation, the largest first, ties in the order of their own neurons."""
        return self._chosen(order.best(self.column << FEATURE_BITS, self.activation, count))

    def needed(self, count: int) -> ActiveColumns:
        """Return the columns of a part that suffice to choose the strongest of all: its strongest, first and last.

        Of equal ones none is left out. Parts follow each other, so that only the first and last column can be in
        another one, too.
        """
        last = len(self.column) - 1
        if last < count:
            return self
        strong = self.activation >= np.partition(self.activation, -count)[-count] if count else self.activation < 0
        strong[[0, last]] = True
        return self._chosen(np.flatnonzero(strong))

    def _chosen(self, places: npt.NDArray[np.int64]) -> ActiveColumns:
        return ActiveColumns(self.column[places], self.activation[places])


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
