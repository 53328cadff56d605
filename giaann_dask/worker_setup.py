"""What a worker process of a cluster that we start does before its first task.

Covers: leaving Ctrl-C to the process that runs the command. A terminal sends it to all processes
at once; a worker that died of it would take with it what is to be committed. And giving memory
back near the limit, because our workers keep what they free (`giaann_dask.cluster.allocator`), and
spilling in time where the limit is small.
Does not cover: workers that were started by hand with ``dask worker``.
"""

from __future__ import annotations

import signal
import threading

from distributed import Worker

from giaann_dask.cluster.allocator import adopt_environment, trim_near_limit
from giaann_dask.cluster.heartbeat import report_device_memory
from giaann_dask.cluster.memory_budget import spill_within_budget


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C in this process and bound the memory it keeps; called by Dask as a preload."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_environment()
    trim_near_limit(worker)
    spill_within_budget(worker)
    report_device_memory(worker)
