"""Set up a worker process before its first task, as a preload of Dask.

A worker ignores Ctrl-C and SIGHUP, which a terminal sends to all processes: only the process that runs the command
reacts, since a worker that stopped would lose what is to be committed. It also returns memory to the system near the
limit, because our workers keep freed memory (`giaann_dask.cluster.memory_budget`), spills earlier where the limit is
small, and compresses what it sends to workers on other hosts. Workers that `giaann_dask` starts have it; others with
``dask worker --preload giaann_dask.worker_setup``.
"""

from __future__ import annotations

import signal
import threading

import dask
from distributed import Worker

from giaann_dask.cluster.locality import report_device_memory
from giaann_dask.cluster.memory_budget import adopt_allocator, spill_within_budget, trim_near_limit

# False by default; None turns it off.
_COMPRESSION = "distributed.comm.compression"


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C and SIGHUP in this process and bound the memory it keeps; called by Dask as a preload."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _compress_between_hosts()
    adopt_allocator(worker)
    trim_near_limit(worker)
    spill_within_budget(worker)
    report_device_memory(worker)


def _compress_between_hosts() -> None:
    """Let Dask compress by Zstandard what goes to other hosts, unless its configuration names another way.

    Increments take 2.5 to 3 times as many bytes without it. Dask compresses nothing between processes of one host. Both
    ends need the setting, else they do without.
    """
    if dask.config.get(_COMPRESSION) is False:
        dask.config.set({_COMPRESSION: "zstd"})
