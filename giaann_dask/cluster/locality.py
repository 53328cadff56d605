"""Count on every worker what its tasks use and receive, how fast, and how its row service answers.

A task of a region counts what it uses; what Dask received for it from other workers, and what a worker has written to
its local disk, is read from the worker's own log when it is asked. `giaann_dask.training.slow_workers` asks after every
round and makes events of the sums; `giaann_dask.cluster.worker_speeds` compares how fast workers were.

Device memory and the counters of a row service are added to the heartbeats of a worker, which have a fixed rate, about
one a second and less in large clusters, so that their cost does not depend on the load. `giaann_dask.rows` counts, and
`giaann_dask.diagnostics.monitoring` displays.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from giaann_dask.cluster.worker_speeds import Work, received_work
from giaann_dask.device import device_bytes
from giaann_dask.lazy import LazyModule

if TYPE_CHECKING:
    import distributed
    from distributed import Worker
else:
    distributed = LazyModule("distributed")

_NAME = "giaann-locality"
# By the prefix of the key of what was received: increments on their way to regions, and runs of regions.
_RECEIVED = {
    **dict.fromkeys(("count_batch", "accumulate", "route"), "increment_bytes"),
    **dict.fromkeys(("integrate", "compact", "pack", "split", "open_run"), "run_bytes"),
}
COUNTS = ("used_bytes", "read_bytes", "increment_bytes", "run_bytes", "other_bytes", "spilled_bytes")
DEVICE_METRIC = "giaann-device-bytes"
ROWS_METRIC = "giaann-rows"
# Upper bounds of the buckets of response times, in seconds; one more bucket has no bound.
ROW_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Sized(Protocol):
    """Anything with a number of bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


@dataclass(eq=False)
class WorkerLocality:
    """Bytes that a worker has used and received since it began.

    Attributes
    ----------
    worker : Worker
        The worker.
    counts : dict of str to int
        ``used_bytes`` by tasks of regions, ``read_bytes`` of runs from the store; ``increment_bytes``, ``run_bytes``
        and ``other_bytes`` from other workers; ``spilled_bytes`` to the local disk.
    work : Work
        Since it began.
    """

    worker: Worker
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    work: Work = field(default_factory=Work)
    _last: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, nbytes: int) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[name] += nbytes

    def add_work(self, work: Work) -> None:
        """Add to the work; called by the tasks of all threads."""
        with self._lock:
            self.work = self.work.plus(work)

    def update(self) -> dict[str, Any]:
        """Add what the worker has received since the last time; return a copy of the counts, and ``work``."""
        with self._lock:
            log = list(self.worker.transfer_incoming_log)
            new = next((place for place in range(len(log), 0, -1) if log[place - 1] is self._last), 0)
            for received in log[new:]:
                for key, nbytes in received["keys"].items():
                    self.counts[_RECEIVED.get(str(key).partition("-")[0], "other_bytes")] += nbytes or 0
                self.work = self.work.plus(received_work(received["who"], received["total"], received["duration"]))
            self._last = log[-1] if log else self._last
            metrics = getattr(self.worker.data, "cumulative_metrics", {})
            self.counts["spilled_bytes"] = int(metrics.get(("disk-write", "bytes"), 0))
            return {**self.counts, "work": self.work}


def count_used(parts: Iterable[Sized]) -> None:
    """Count the bytes that the present task of a region uses, if it runs on a worker."""
    _count("used_bytes", sum(part.nbytes for part in parts))


def count_read(nbytes: int) -> None:
    """Count bytes of runs that the present task has read from the store, if it runs on a worker."""
    _count("read_bytes", nbytes)


def count_fetched(parts: Iterable[Sized], name: str = "other_bytes") -> None:
    """Count the bytes that the worker of the present task has received from other workers past Dask."""
    _count(name, sum(part.nbytes for part in parts))


def count_run_bytes(worker: Worker, nbytes: int) -> None:
    """Count bytes of runs that a worker has received from another one past Dask."""
    _on(worker).add("run_bytes", nbytes)


def count_increments(parts: Iterable[Sized], worker: Worker, sender: str, seconds: float) -> None:
    """Count the bytes of increments that a worker has received from another one past Dask, and how long it took."""
    nbytes = sum(part.nbytes for part in parts)
    _on(worker).add("increment_bytes", nbytes)
    _on(worker).add_work(received_work(sender, nbytes, seconds))


def count_work(increments: Iterable[Sized], seconds: float) -> None:
    """Count how long the present task, if it runs on a worker, has counted some increments."""
    try:
        worker = distributed.get_worker()
    except ValueError:
        return
    nbytes = sum(part.nbytes for part in increments)
    _on(worker).add_work(Work(nbytes, seconds / worker.state.nthreads))


def locality_of(dask_worker: Worker) -> dict[str, Any]:
    """Return the counts of a worker now, and its `Work` as ``work``; called on a worker."""
    return _on(dask_worker).update()


def total(by_worker: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of the counts of workers.

    Examples
    --------
    >>> total([{"used_bytes": 3}, {"used_bytes": 4, "read_bytes": 1}])["used_bytes"]
    7
    """
    found = dict.fromkeys(COUNTS, 0)
    for counts in by_worker:
        for name in COUNTS:
            found[name] += counts.get(name, 0)
    return found


def _count(name: str, nbytes: int) -> None:
    try:
        worker = distributed.get_worker()
    except ValueError:
        return
    _on(worker).add(name, nbytes)


def _on(worker: Worker) -> WorkerLocality:
    found: WorkerLocality = worker.extensions.setdefault(_NAME, WorkerLocality(worker))
    return found


def report_device_memory(worker: Worker) -> None:
    """Add the device memory of this process to the heartbeats of a worker."""
    worker.metrics[DEVICE_METRIC] = lambda _: device_bytes()


def bucket_names() -> list[str]:
    """Return the names of the counters of responses by their duration, the shortest first."""
    return [f"row_seconds_{number}" for number in range(len(ROW_BOUNDS_S) + 1)]


class RowServiceMetrics:
    """Counters of the row requests and row responses of a worker; safe to use from several threads.

    Attributes
    ----------
    counts : dict of str to float
        Responses with their rows, bytes and seconds, the same by duration (`bucket_names`), and row
        requests of this worker's own tasks, with the seconds until their response.

    Examples
    --------
    >>> times = RowServiceMetrics()
    >>> times.answered(rows=12, nbytes=4096, seconds=0.002)
    >>> times.counts["row_requests"], times.counts["row_seconds_2"]
    (1, 1)
    """

    def __init__(self) -> None:
        names = ("row_requests", "row_rows", "row_bytes", "row_seconds", "asked_requests", "asked_seconds")
        self.counts: dict[str, float] = dict.fromkeys((*names, *bucket_names()), 0)
        self._lock = threading.Lock()

    def answered(self, *, rows: int, nbytes: int, seconds: float) -> None:
        """Count a response to a row request."""
        bucket = f"row_seconds_{bisect_left(ROW_BOUNDS_S, seconds)}"
        with self._lock:
            for name, more in (("requests", 1), ("rows", rows), ("bytes", nbytes), ("seconds", seconds)):
                self.counts[f"row_{name}"] += more
            self.counts[bucket] += 1

    def asked(self, seconds: float) -> None:
        """Count a row request of this worker that has been answered."""
        with self._lock:
            self.counts["asked_requests"] += 1
            self.counts["asked_seconds"] += seconds
