"""Count on every worker which bytes the tasks of regions used where they were, which were moved to them, and how fast.

A task of a region counts what it uses; what Dask received for it from other workers, and what a worker has written to
its local disk, is read from the worker's own log when it is asked. `giaann_dask.training.data_moves` asks after every
round and makes events of the sums; `giaann_dask.cluster.worker_speeds` compares how fast workers were.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from giaann_dask.cluster.worker_speeds import Work, received_work
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
