"""Add metrics of workers to their heartbeats: device memory, and the counters of a row service.

Heartbeats have a fixed rate, about one a second and less in large clusters, so the cost of these metrics does not
depend on the load. `giaann_dask.rows` counts, and `giaann_dask.diagnostics.monitoring` displays.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from distributed import Worker

from giaann_dask.device import device_bytes

DEVICE_METRIC = "giaann-device-bytes"
ROWS_METRIC = "giaann-rows"
# Upper bounds of the buckets of response times, in seconds; one more bucket has no bound.
ROW_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


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
