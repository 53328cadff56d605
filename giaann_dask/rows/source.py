"""Define the source of a neuron's outgoing connections, and read them from local runs.

Has the base class of what a session gets rows from, its implementation over merged runs in this process, rows merged
with those of auxiliary neurons, and the conversion of a row's array to a tensor without a copy. Rows of other workers
are in `giaann_dask.rows.remote`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import BRANCH_MASK, FEATURE_MASK, SEGMENT_SHIFT, Integers, pack_neuron
from giaann_dask.rows.cache import RowStatistics
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Row, Run
from giaann_dask.spec import FEATURE_BITS
from giaann_dask.text.attachments import Attachments

# Fewer rows than this are looked up faster one by one.
_MANY = 4


def require_layout(target: Integers, segments: int, branches: int) -> Integers:
    """Return the target keys of a row for compiled code, which does not check where it writes.

    Parameters
    ----------
    target : ndarray
        Ascending, int64.
    segments, branches : int
        Of the network.

    Raises
    ------
    StoreDamagedError
        If one is on another segment or branch.
    """
    return _require_layout(target, target[-1:], segments, branches)


def require_layouts(target: Integers, segments: int, branches: int) -> Integers:
    """Return the target keys of rows that follow one another, checked as those of one row (`require_layout`)."""
    return _require_layout(target, target.max(keepdims=True, initial=-1), segments, branches)


def _require_layout(target: Integers, largest: Integers, segments: int, branches: int) -> Integers:
    if len(target):
        segment, branch = int(largest[0]) >> SEGMENT_SHIFT, int((target & BRANCH_MASK).max())
        if segment >= segments or branch >= branches:
            raise StoreDamagedError(
                f"a row has connections up to segment {segment} and branch {branch}",
                f"segments below {segments} and branches below {branches}, as the network's specification says",
            )
    return target


class RowSource(ABC):
    """Rows of the neurons of a network that does not change."""

    @abstractmethod
    def row(self, neuron: int) -> Row | None:
        """Return the outgoing connections of a neuron, or None when it has none.

        Parameters
        ----------
        neuron : int
            Neuron key (see `giaann_dask.keys`).

        Returns
        -------
        Row or None
            Target keys ascending, so sorted by segment, column, feature and branch.

        Raises
        ------
        StoreDamagedError
            If it is read from a store and cannot be.
        """

    def rows(self, neurons: Sequence[int]) -> dict[int, Row | None]:
        """Return the rows of distinct neurons by neuron, as `row` does."""
        return {neuron: self.row(neuron) for neuron in neurons}

    def prefetch(self, neurons: Iterable[int]) -> None:  # noqa: B027  # most have nothing to request
        """Request rows that will be wanted soon, where they are elsewhere, without waiting for them."""

    @property
    def snapshot(self) -> str | None:
        """Identity of the rows, by which copies can be kept; None where it is that of arrays of this process."""
        return None

    @property
    def own_figures(self) -> RowStatistics | None:
        """Counts of the requests made through this object; None where no row is requested from another process."""
        return None


def join_row(parts: Iterable[Row | None]) -> Row | None:
    """Return the row of the parts that several regions have, or None where none has any."""
    return sum_rows([_as_run(part) for part in parts if part is not None]).row(0)


def sum_rows(parts: Sequence[Run]) -> Run:
    """Return the sum of rows, which may all be without strengths."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else Run.empty()
    if any(len(part.strength) for part in parts):
        return merge_runs(parts)
    merged = merge_runs([replace(part, strength=np.ones(len(part), np.int32)) for part in parts])
    return replace(merged, strength=merged.strength[:0])


@dataclass(frozen=True, eq=False)
class RunRows(RowSource):
    """Rows of a network whose regions are held here, one merged run each.

    Parameters
    ----------
    runs : sequence of Run
        One for each region.
    place_of : callable
        Returns which of them a neuron key belongs to.
    places_of : callable, optional
        Returns the same for an array of neuron keys at once.
    divided : mapping of int to tuple of int
        Which of them have a part of a row, for rows that are divided.

    Examples
    --------
    >>> RunRows([Run.empty()], lambda neuron: 0).row(5) is None
    True
    """

    runs: Sequence[Run]
    place_of: Callable[[int], int]
    places_of: Callable[[Integers], Integers] | None = None
    divided: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def placed(cls, placement: Placement, runs: Sequence[Run]) -> RunRows:
        """Return the rows of a network whose live regions have these runs, in the order of `Placement.live`."""
        live = np.array(placement.live(), np.int64)

        def places_of(neurons: Integers) -> Integers:
            return live.searchsorted(placement.regions_of(neurons))

        divided = {neuron: live.searchsorted(its).tolist() for neuron, its in placement.divided().items()}
        return cls(runs, lambda neuron: int(live.searchsorted(placement.region_of(neuron))), places_of, divided)

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron as views of its region's run, or None without connections."""
        if neuron in self.divided:
            return join_row(self.runs[place].row(neuron) for place in self.divided[neuron])
        return self.runs[self.place_of(neuron)].row(neuron)

    def rows(self, neurons: Sequence[int]) -> dict[int, Row | None]:
        """Return the rows of distinct neurons by neuron, as `row` does."""
        keys = np.array(neurons, np.int64)
        if self.places_of is None or len(keys) < _MANY:
            return {neuron: self.row(neuron) for neuron in neurons}
        place = self.places_of(keys)
        found: dict[int, Row | None] = dict.fromkeys(neurons)
        for number in np.unique(place).tolist():
            run, its = self.runs[number], keys[place == number]
            at = np.minimum(run.source.searchsorted(its), max(len(run.source) - 1, 0))
            there = run.source[at] == its if len(run.source) else np.zeros(len(its), np.bool_)
            named, at = its[there].tolist(), at[there]
            for neuron, begin, end in zip(named, run.pointer[at].tolist(), run.pointer[at + 1].tolist(), strict=True):
                found[neuron] = Row(run.target[begin:end], run.strength[begin:end])
        return found | {neuron: self.row(neuron) for neuron in self.divided.keys() & found.keys()}


# Connections of auxiliary neurons that a process keeps, about; 16 bytes each.
_KEPT = 1 << 22


class AuxiliaryRows(RowSource):
    """Rows with the connections of auxiliary neurons added.

    Parameters
    ----------
    rows : RowSource
        Connections of the network, with their strengths.
    attachments : Attachments
        Auxiliary neurons of its features; they sum up neurons of the source's own column.
    """

    def __init__(self, rows: RowSource, attachments: Attachments) -> None:
        self._rows, self._attachments = rows, attachments
        self._sums: OrderedDict[tuple[int, int], Row] = OrderedDict()
        self._kept = 0

    def row(self, neuron: int) -> Row | None:
        """Return a row as `RowSource.row` does; added strengths are rounded to units of strength."""
        column, feature = neuron >> FEATURE_BITS, neuron & FEATURE_MASK
        own, groups = self._rows.row(neuron), self._attachments.groups_of(feature)
        if not groups:
            return own
        runs = [] if own is None else [_as_run(own)]
        for group in groups:
            total = self._sum(column, group)
            units = np.rint(total.strength * self._attachments.weight[group]).astype(np.int64)
            # What is less than half a unit is nothing.
            runs.append(_as_run(Row(total.target[units > 0], units[units > 0])))
        return merge_runs(runs).row(0)

    def prefetch(self, neurons: Iterable[int]) -> None:
        """Request the network's rows of neurons; those of members are not among them."""
        self._rows.prefetch(neurons)

    def _sum(self, column: int, group: int) -> Row:
        """Return the sum of the rows of an auxiliary neuron's members in a column."""
        known = self._sums.get((column, group))
        if known is not None:
            self._sums.move_to_end((column, group))
            return known
        members: list[int] = pack_neuron(column, self._attachments.members_of(group)).tolist()
        found = self._rows.rows(members).values()
        total = merge_runs([_as_run(row) for row in found if row is not None]).row(0)
        total = Row(np.zeros(0, np.int64), np.zeros(0, np.int64)) if total is None else total
        self._sums[column, group] = total
        self._kept += len(total.target)
        while self._kept > _KEPT and len(self._sums) > 1:
            self._kept -= len(self._sums.popitem(last=False)[1].target)
        return total


def _as_run(row: Row) -> Run:
    """Return a row as a run of one source."""
    if not len(row.target):
        return Run.empty()
    return Run(np.zeros(1, np.int64), np.array([0, len(row.target)], np.int64), row.target, row.strength)
