"""What a worker process of a cluster that we start does before its first task.

Covers: leaving Ctrl-C to the process that runs the command. A terminal sends it to all processes
at once; a worker that died of it would take with it what is to be committed. Does not cover:
workers that were started by hand with ``dask worker``.
"""

from __future__ import annotations

import signal
import threading

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C in this process; called by Dask as a preload."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
