"""Count on every worker which bytes the tasks of regions used where they were, and which were moved to them.

A task of a region counts what it uses; what Dask received for it from other workers, and what a worker has written to
its local disk, is read from the worker's own log when it is asked. `giaann_dask.training.data_moves` asks after every
round and makes events of the sums.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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
    """

    worker: Worker
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    _last: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, nbytes: int) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[name] += nbytes

    def update(self) -> dict[str, int]:
        """Add what the worker has received since the last time, and return a copy of the counts."""
        with self._lock:
            log = list(self.worker.transfer_incoming_log)
            new = next((place for place in range(len(log), 0, -1) if log[place - 1] is self._last), 0)
            for received in log[new:]:
                for key, nbytes in received["keys"].items():
                    self.counts[_RECEIVED.get(str(key).partition("-")[0], "other_bytes")] += nbytes or 0
            self._last = log[-1] if log else self._last
            metrics = getattr(self.worker.data, "cumulative_metrics", {})
            self.counts["spilled_bytes"] = int(metrics.get(("disk-write", "bytes"), 0))
            return dict(self.counts)


def count_used(parts: Iterable[Sized]) -> None:
    """Count the bytes that the present task of a region uses, if it runs on a worker."""
    _count("used_bytes", sum(part.nbytes for part in parts))


def count_read(nbytes: int) -> None:
    """Count bytes of runs that the present task has read from the store, if it runs on a worker."""
    _count("read_bytes", nbytes)


def count_fetched(parts: Iterable[Sized], name: str = "other_bytes", worker: Worker | None = None) -> None:
    """Count the bytes that a worker has received from other workers past Dask; by default that of the present task."""
    nbytes = sum(part.nbytes for part in parts)
    if worker is None:
        _count(name, nbytes)
    else:
        _on(worker).add(name, nbytes)


def locality_of(dask_worker: Worker) -> dict[str, int]:
    """Return the counts of a worker now; called on a worker."""
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
