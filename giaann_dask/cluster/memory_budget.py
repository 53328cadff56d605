"""Configure the memory of workers: the budget of task results, spill thresholds and glibc's malloc.

Dask lets data take 0.6 of the limit, however much the process itself takes. With a small limit that leaves no memory
for the running task: the imported modules take 270 MB, and compaction of a region decodes it twice. Such a worker
was killed by its nanny repeatedly, each time with all that was not committed, and training did not finish.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, Worker, get_worker
from distributed.spill import SpillBuffer
from distributed.system import MEMORY_LIMIT
from tornado.ioloop import PeriodicCallback

# Of a worker that has not run a task yet, 267 MiB were measured.
PROCESS_BYTES = 300 << 20
# Dask's own share of data, where the limit is large enough.
_DATA_SHARE = 0.6
# For the running task: it decodes the halves of a region, adds them up into as much again, and packs that.
_TASK_SHARE = 0.3
_LARGEST_TASK = 5 << 28
_REGION_SHARE = 1 / 20
# A nanny kills the worker beyond 0.95; memory grows between two checks.
_USED_SHARE = 0.9
# Data always gets this share, or nothing could stay in memory.
_LEAST_SHARE = 0.05
# By the resident size of the process: when to stop spilling, to start spilling, and to pause.
_NARROW = {"memory_target_fraction": 0.75, "memory_spill_fraction": 0.85, "memory_pause_fraction": 0.9}


def data_budget(limit: int, process_bytes: int = PROCESS_BYTES) -> int:
    """Return how many bytes of a worker's memory limit results of tasks may take.

    Parameters
    ----------
    limit : int
        Memory limit of the worker, in bytes.
    process_bytes : int
        Memory of the process without any data.

    Examples
    --------
    >>> data_budget(16 << 30) == int(0.6 * (16 << 30)), data_budget(700 << 20) >> 20
    (True, 120)
    """
    remaining = _USED_SHARE * limit - min(_TASK_SHARE * limit, _LARGEST_TASK) - process_bytes
    return int(max(min(_DATA_SHARE * limit, remaining), _LEAST_SHARE * limit))


def region_budget(limit: int) -> int:
    """Return how many bytes the decoded runs of a region may take, so that a worker can add them up.

    Parameters
    ----------
    limit : int
        Memory limit of the worker, in bytes.

    Examples
    --------
    >>> region_budget(5 << 30) >> 20
    256
    """
    return int(_REGION_SHARE * limit)


def worker_memory_limit() -> int | None:
    """Return the memory limit of the worker that runs this task, in bytes; None without a limit or outside of tasks."""
    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:
        return None
    return int(limit) if limit else None


def spill_within_budget(worker: Worker) -> None:
    """Lower the spill thresholds of a worker with less memory for data than Dask assumes.

    A configured ``distributed.worker.memory.target`` is not changed.
    """
    manager, data = worker.memory_manager, worker.data
    limit = manager.memory_limit
    if not limit or not isinstance(data, SpillBuffer) or data.n != int(_DATA_SHARE * limit):
        return
    budget = data_budget(limit, worker.monitor.get_process_memory())
    if budget < data.n:
        data.n = budget
        for name, share in _NARROW.items():
            setattr(manager, name, share)


_CONFIGURED = "distributed.nanny.pre-spawn-environ"
# Dask's own setting does the opposite: it trims early and in small amounts.
_REPLACED = {"MALLOC_TRIM_THRESHOLD_": "65536"}
# The free top of the heap may take this share (1 / 4) of a worker's limit.
_KEPT_SHARE = 4
# The heap grows by a share of the limit, so that it rarely grows where the limit is large.
_GROWTH_SHARE = 64
_LARGEST_GROWTH = 1 << 26
# Parameters of mallopt(3), by the environment variables of the same meaning.
_PARAMETERS = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_MAX_": -4,
    "MALLOC_ARENA_MAX": -8,
}
_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_", -3
# Allocations from this size on are unmapped when they are freed: the size of a block of text and of messages to
# workers. By default glibc raises this threshold up to the second value, as larger allocations are freed.
_LARGE_PIECE, _LARGEST_KEPT = 1 << 18, 1 << 25
_LARGEST_INT = (1 << 31) - 1
# Below Dask's own thresholds (0.6 and up), so that nothing is spilled for memory that is free.
RELEASE_FRACTION = 0.5
RELEASE_INTERVAL_S = 0.2


def allocator_environment(memory_bytes: int) -> dict[str, str]:
    """Return environment variables with which malloc keeps the memory that a worker process frees.

    Parameters
    ----------
    memory_bytes : int
        Memory limit of the worker.

    Returns
    -------
    dict of str to str
        Variables that glibc reads when a process starts.

    Examples
    --------
    >>> allocator_environment(1 << 32)["MALLOC_TRIM_THRESHOLD_"]
    '1073741824'
    """
    return {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(memory_bytes // _KEPT_SHARE),
        "MALLOC_TOP_PAD_": str(min(memory_bytes // _GROWTH_SHARE, _LARGEST_GROWTH)),
        "NUMPY_MADVISE_HUGEPAGE": "0",
    }


@contextmanager
def worker_allocator(memory_bytes: int | None, workers: int) -> Iterator[None]:
    """Set the allocator of worker processes that are started in this context, so that they keep freed memory.

    Parameters
    ----------
    memory_bytes : int or None
        Memory limit of a worker; None for its share of the machine.
    workers : int
        Number of workers, for that share.

    Notes
    -----
    Variables that the environment or Dask's configuration already set are left as they are.
    """
    ours = allocator_environment(memory_bytes or MEMORY_LIMIT // max(workers, 1))
    configured: Mapping[str, Any] = dask.config.get(_CONFIGURED, {})
    theirs = {name: value for name, value in configured.items() if _REPLACED.get(name) != str(value)}
    before = {name: os.environ.get(name) for name in ours}
    # Variables of the environment take precedence over these in Dask, which leaves its own there.
    for name, value in _REPLACED.items():
        if before[name] == value:
            del os.environ[name]
    with dask.config.set({_CONFIGURED: {**ours, **theirs}}):
        try:
            yield
        finally:
            # Dask leaves the variables of its child processes in this process; the next cluster may have other limits.
            for name, earlier in before.items():
                if earlier is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = earlier


def _of_malloc(name: str) -> Any:
    """Return a function of glibc, or None where the C library does not have it."""
    return getattr(ctypes.CDLL(None), name, None)


def adopt_allocator(worker: Worker) -> None:
    """Apply the environment variables above to malloc in the process of a worker, in which Dask's may count.

    The C library reads them only when a program starts: a worker that was forked began with those of another one, and
    one that was started by hand with Dask's own.

    Parameters
    ----------
    worker : distributed.Worker
        Its memory limit decides about variables that the environment does not set.
    """
    mallopt = _of_malloc("mallopt")
    ours = allocator_environment(worker.memory_manager.memory_limit or MEMORY_LIMIT)
    for name, parameter in _PARAMETERS.items():
        value = os.environ.get(name, "")
        value = ours[name] if value in ("", _REPLACED.get(name)) else value
        if mallopt is not None and value.isdecimal():
            # mallopt takes an int; -1 means no limit, and `trim_near_limit` bounds the heap then.
            mallopt(parameter, int(value) if int(value) <= _LARGEST_INT else -1)


@contextmanager
def driver_allocator(client: Client) -> Iterator[None]:
    """Unmap large allocations of the driver process as soon as they are freed, in this context.

    Otherwise freed texts and messages fragment the heap between small long-lived objects, and the process grows
    (measured while a worker was killed three times a minute: 100 MB after a million sequences, 8 to 18 with this).
    Nothing is changed where workers run in this process, or where the environment sets the threshold.

    Parameters
    ----------
    client : Client
        Of the workers.
    """
    mallopt = _of_malloc("mallopt")
    name, parameter = _MMAP_THRESHOLD
    workers = getattr(client.cluster, "workers", {}).values()
    computes_here = any(isinstance(worker, Worker) for worker in workers)
    if mallopt is None or computes_here or name in os.environ:
        yield
        return
    mallopt(parameter, _LARGE_PIECE)
    try:
        yield
    finally:
        mallopt(parameter, _LARGEST_KEPT)


def trim_memory() -> None:
    """Release free memory of this process to the system, where the C library supports it.

    Otherwise each thread of a long-running process keeps some free memory in its arena.
    """
    trim = _of_malloc("malloc_trim")
    if trim is not None:
        trim(0)


def trim_near_limit(worker: Worker) -> None:
    """Trim the heap of a worker periodically while its resident size is near its memory limit."""
    limit = worker.memory_manager.memory_limit
    if not limit:
        return

    def release() -> None:
        if worker.monitor.get_process_memory() > RELEASE_FRACTION * limit:
            trim_memory()

    worker.periodic_callbacks["release memory"] = PeriodicCallback(release, RELEASE_INTERVAL_S * 1000)
