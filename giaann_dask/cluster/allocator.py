"""How the memory allocator is set: workers keep what is freed and use it again, who directs them gives it back.

Covers: the environment that workers start with, giving kept memory back when a worker comes
near its limit, and the process that lives longest, which trains by them. Does not cover: what workers do with memory
(Dask spills and pauses by its own thresholds).

Tasks of training make and free arrays of many megabytes. By default each of them is mapped afresh
from the kernel and unmapped when freed, and touching new pages costs more than computing what is
written there, on a virtual machine several times more. So glibc's malloc is told to take large
arrays from its heap, too, and to give the heap's end back only beyond a share of the worker's limit.
Huge pages are not asked for, and NumPy is told not to: at best they halve the cost of new memory, but where a
virtual machine gives free memory back to its host, which does so by huge pages, they are nine times
dearer than small ones (0.9 s instead of 0.1 s for 200 MB), and training took 1.3 to 1.9 times as long.
Other allocators ignore these variables.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, Worker
from distributed.system import MEMORY_LIMIT
from tornado.ioloop import PeriodicCallback

_CONFIGURED = "distributed.nanny.pre-spawn-environ"
# What Dask itself sets: the opposite, small trims at once.
_REPLACED = {"MALLOC_TRIM_THRESHOLD_": "65536"}
# The heap's free end may be this share of a worker's limit.
_KEPT_SHARE = 4
# The heap grows by a share of the limit, so that it grows seldom where there is room.
_GROWTH_SHARE = 64
_LARGEST_GROWTH = 1 << 26
# Of mallopt(3), by the variables that say the same.
_PARAMETERS = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_MAX_": -4,
    "MALLOC_ARENA_MAX": -8,
}
_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_", -3
# Pieces from this size on are given back when they are freed; it is that of a block of text and of what workers
# are sent. Else glibc raises the size up to the other, by what it has seen freed.
_LARGE_PIECE, _LARGEST_KEPT = 1 << 18, 1 << 25
_LARGEST_INT = (1 << 31) - 1
# Below Dask's own thresholds (0.6 and up), so that nothing is spilled for memory that is free.
RELEASE_FRACTION = 0.5
RELEASE_INTERVAL_S = 0.2


def allocator_environment(memory_bytes: int) -> dict[str, str]:
    """Return the variables by which malloc keeps the memory that a worker process frees.

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
    """Let the worker processes that are started meanwhile keep the memory that they free.

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
    # A variable of the environment goes before these (Dask sees to it).
    with dask.config.set({_CONFIGURED: {**ours, **theirs}}):
        try:
            yield
        finally:
            # Dask leaves in this process what it sets for its children; the next cluster may have other limits.
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)


def _of_malloc(name: str) -> Any:
    """Return a function of the C library that only glibc has, else None."""
    return getattr(ctypes.CDLL(None), name, None)


def adopt_environment() -> None:
    """Let malloc of this process follow the variables above, also in a process that was forked.

    The C library reads them when a program begins; a fork began with those of another worker.
    """
    mallopt = _of_malloc("mallopt")
    for name, parameter in _PARAMETERS.items():
        value = os.environ.get(name, "")
        if mallopt is not None and value.isdecimal():
            # An int there; -1 stands for what is beyond, which `trim_near_limit` bounds.
            mallopt(parameter, int(value) if int(value) <= _LARGEST_INT else -1)


@contextmanager
def driver_allocator(client: Client) -> Iterator[None]:
    """Let malloc of this process give large pieces back at once, while it directs workers for a long time.

    Texts and messages otherwise leave holes between small things that stay, which become more and more (measured
    while a worker was killed three times a minute: 100 MB after a million sequences, 8 to 18 with this). Nothing is
    changed where workers compute in this process, or where the environment says otherwise.

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
    """Give memory of this process that is free back to the system, where the C library can do that.

    A process of many threads that lives long otherwise keeps a little more with each of them.
    """
    trim = _of_malloc("malloc_trim")
    if trim is not None:
        trim(0)


def trim_near_limit(worker: Worker) -> None:
    """Let a worker give kept memory back to the system whenever it nears its memory limit."""
    limit = worker.memory_manager.memory_limit
    if not limit:
        return

    def release() -> None:
        if worker.monitor.get_process_memory() > RELEASE_FRACTION * limit:
            trim_memory()

    worker.periodic_callbacks["release memory"] = PeriodicCallback(release, RELEASE_INTERVAL_S * 1000)
