"""Set up a worker process of a cluster that we start, before its first task.

A worker ignores Ctrl-C, which a terminal sends to all processes: only the process that runs the command reacts, since
a worker that stopped would lose what is to be committed. It also returns memory to the system near the limit, because
our workers keep freed memory (`giaann_dask.cluster.memory_budget`), and spills earlier where the limit is small.
Workers that were started by hand with ``dask worker`` are not set up here.
"""

from __future__ import annotations

import signal
import threading

from distributed import Worker

from giaann_dask.cluster.heartbeat import report_device_memory
from giaann_dask.cluster.memory_budget import adopt_environment, spill_within_budget, trim_near_limit


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C in this process and bound the memory it keeps; called by Dask as a preload."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_environment()
    trim_near_limit(worker)
    spill_within_budget(worker)
    report_device_memory(worker)
