"""Cache rows that were fetched from other workers, within a byte budget, and count requests.

The threads of a process share the cache and the requests that are in progress. `rows.remote` makes the requests.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from giaann_dask.representations import format_bytes
from giaann_dask.runs.run import Row

# A row that is known not to be there costs its place in the cache too.
_ENTRY_BYTES = 256

Name = tuple[str, int]
Rows = dict[int, Row | None]


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
    """

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._rows: OrderedDict[Name, Row | None] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[Name, Future[Rows]] = {}
        self._counter = RowCounter()

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept now."""
        return self._bytes

    @property
    def figures(self) -> RowStatistics:
        """Counts so far."""
        return self._counter.figures

    def count(self, **more: int) -> None:
        """Add to the figures of these names."""
        self._counter.count(**more)

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
            self.count(hits=len(found), awaited=len(coming), misses=misses)
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
