"""Define the source of a neuron's outgoing connections, read them from local runs, and keep those of other processes.

Has the base class of what a session gets rows from, its implementation over merged runs in this process, and rows
merged with those of auxiliary neurons. Rows that were fetched
from other workers (`giaann_dask.rows.remote`) are cached within a byte budget, and requests counted; the threads of a
process share the cache and the requests that are in progress.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any

import numpy as np

from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import BRANCH_MASK, FEATURE_MASK, SEGMENT_SHIFT, Integers, pack_neuron
from giaann_dask.representations import format_bytes
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Row, Run
from giaann_dask.spec import FEATURE_BITS
from giaann_dask.text.attachments import Attachments

# Fewer rows than this are looked up faster one by one.
_MANY = 4
# A row that is known not to be there costs its place in the cache too.
_ENTRY_BYTES = 256
# Connections of auxiliary neurons that a process keeps, about; 16 bytes each.
_KEPT = 1 << 22

Name = tuple[str, int]
Rows = dict[int, Row | None]


def require_layout(target: Integers, segments: int, branches: int, *, ordered: bool = True) -> Integers:
    """Return the target keys of rows for compiled code, which does not check where it writes.

    Parameters
    ----------
    target : ndarray
        Keys of one row or of several that follow one another, int64.
    segments, branches : int
        Of the network.
    ordered : bool
        Whether they ascend, as those of one row do.

    Raises
    ------
    StoreDamagedError
        If one is on another segment or branch.
    """
    if len(target):
        largest = target[-1] if ordered else target.max()
        segment, branch = int(largest) >> SEGMENT_SHIFT, int((target & BRANCH_MASK).max())
        if segment >= segments or branch >= branches:
            raise StoreDamagedError(
                f"a row has connections up to segment {segment} and branch {branch}",
                f"segments below {segments} and branches below {branches}, as the network's specification says",
            )
    return target


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """Counts of row requests and cache hits in one process.

    Attributes
    ----------
    requests : int
        Requests answered by owners of regions.
    rows : int
        Rows that they were asked for.
    received_bytes : int
        Bytes of the arrays in their answers; those of the worker itself, which cross no network, included.
    local_bytes : int
        Bytes of the arrays in the answers of the worker itself.
    retries : int
        Regions asked for again, because their owner was gone, busy for too long, or no longer had them.
    hits : int
        Rows wanted that were in the cache.
    awaited : int
        Rows wanted that were under way, asked for ahead.
    misses : int
        Rows wanted that had to be asked for.
    """

    requests: int = 0
    rows: int = 0
    received_bytes: int = 0
    local_bytes: int = 0
    retries: int = 0
    hits: int = 0
    awaited: int = 0
    misses: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the rows wanted that were in the cache; 0 when none was wanted."""
        wanted = self.hits + self.awaited + self.misses
        return self.hits / wanted if wanted else 0.0

    @property
    def moved_bytes(self) -> int:
        """Bytes of the arrays that other workers have sent."""
        return self.received_bytes - self.local_bytes

    def __add__(self, other: RowStatistics) -> RowStatistics:
        """Return the figures of both."""
        return RowStatistics(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: RowStatistics) -> RowStatistics:
        """Return what was counted since other figures."""
        return RowStatistics(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, the hit rate and the bytes moved among them."""
        return {**asdict(self), "moved_bytes": self.moved_bytes, "hit_rate": self.hit_rate}

    def line(self) -> str:
        """Return the figures for a person.

        Examples
        --------
        >>> RowStatistics(requests=2, rows=30, received_bytes=4096, local_bytes=1024, hits=3, misses=1).line()
        '30 in 2 requests, 1.0 KiB stayed, 3.0 KiB moved, 75.0 % of those wanted were kept here'
        """
        kept = f"{100 * self.hit_rate:.1f} % of those wanted were kept here"
        stayed, moved = format_bytes(self.local_bytes), format_bytes(self.moved_bytes)
        return f"{self.rows:,} in {self.requests:,} requests, {stayed} stayed, {moved} moved, {kept}"


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


class RowCounter:
    """Adds up figures; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys((each.name for each in fields(RowStatistics)), 0)

    @property
    def figures(self) -> RowStatistics:
        """Counts so far."""
        with self._lock:
            return RowStatistics(**self._counts)

    def count(self, **more: int) -> None:
        """Add to the figures of these names."""
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count


class RowCache:
    """The rows used last, within a byte budget; safe to use from several threads.

    Its bytes are not a result of a task, so Dask sees them only in the size of the process: keep the
    budget small beside a worker's memory limit.

    Parameters
    ----------
    budget : int
        Bytes of the rows kept; 0 keeps none.

    Attributes
    ----------
    counter : RowCounter
        Of this process.
    """

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._rows: OrderedDict[Name, Row | None] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[Name, Future[Rows]] = {}
        self.counter = RowCounter()

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept now."""
        return self._bytes

    def look_up(self, snapshot: str, neurons: Iterable[int], *, ahead: bool) -> tuple[Rows, dict[int, Future[Rows]]]:
        """Return the cached rows and, by neuron, the responses in flight.

        Parameters
        ----------
        snapshot : str
            What the rows are of; rows of different snapshots are different rows.
        neurons : iterable of int
            Distinct neuron keys; those in neither result have to be asked for.
        ahead : bool
            Whether the rows are only wanted later, so that this counts as no use.
        """
        found: Rows = {}
        coming: dict[int, Future[Rows]] = {}
        misses = 0
        with self._lock:
            for neuron in neurons:
                name = (snapshot, neuron)
                if name in self._rows:
                    self._rows.move_to_end(name)
                    found[neuron] = self._rows[name]
                elif name in self._under_way:
                    coming[neuron] = self._under_way[name]
                else:
                    misses += 1
        if not ahead:
            self.counter.count(hits=len(found), awaited=len(coming), misses=misses)
        return found, coming

    def expect(self, snapshot: str, neurons: Iterable[int], answer: Future[Rows]) -> None:
        """Register a response in flight; its rows are cached when it arrives."""
        names = [(snapshot, neuron) for neuron in neurons]
        with self._lock:
            self._under_way.update(dict.fromkeys(names, answer))

        def take(done: Future[Rows]) -> None:
            rows = {} if done.cancelled() or done.exception() is not None else done.result()
            with self._lock:
                for name in names:
                    if self._under_way.get(name) is done:
                        del self._under_way[name]
                self._keep(snapshot, rows)

        answer.add_done_callback(take)

    def keep(self, snapshot: str, rows: Rows) -> None:
        """Keep rows that were read here."""
        with self._lock:
            self._keep(snapshot, rows)

    def _keep(self, snapshot: str, rows: Rows) -> None:
        for neuron, row in rows.items():
            name = (snapshot, neuron)
            if name in self._rows:
                continue
            self._rows[name] = row
            self._bytes += _size(row)
        while self._bytes > self.budget and self._rows:
            self._bytes -= _size(self._rows.popitem(last=False)[1])


def _size(row: Row | None) -> int:
    return _ENTRY_BYTES + (0 if row is None else row.target.nbytes + row.strength.nbytes)
