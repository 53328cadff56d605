"""Compile numba functions on the hosts of workers ahead of their first use.

Compiled code is cached on disk (`giaann_dask.local_files`), so one process on each host that has a cache of its own
compiles for all workers there: ``giaann-dask compile`` in a process of its own, since the event loop and the memory of
a worker are for its tasks. Nothing is compiled on the scheduler. As a preload of Dask (``dask worker --preload
giaann_dask.cluster.compilation``) this module does it before a worker joins its cluster.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster.waiting import ask_workers, results, timeout_s
from giaann_dask.errors import ClusterError
from giaann_dask.lazy import announce_compiling, count_compiled, load_compiled
from giaann_dask.library_internals import call_within, load_numba_registries
from giaann_dask.local_files import code_cache

if TYPE_CHECKING:
    from distributed import Client, Worker

_LOG = logging.getLogger(__name__)
_COMMAND = (sys.executable, "-m", "giaann_dask", "compile")
# Modules of tasks, by name: their folders are above this one.
_TASKS = ("giaann_dask.training.tasks", "giaann_dask.encoding.stream")
_LOCK = "giaann-compiling.lock"


def compile_on_workers(client: Client, profiles: Sequence[str]) -> dict[str, str]:
    """Compile for the workers of a cluster, once for each cache of compiled code; all import the modules of tasks.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    profiles : sequence of str
        Profiles to compile for; all of them where there are none.

    Returns
    -------
    dict of str to str
        By the address of a worker that compiled, its host and folder; workers that share these are not named.

    Raises
    ------
    ClusterError
        If a worker does not respond in time, or cannot compile.
    """
    chosen: dict[tuple[str, str], str] = {}
    found = ask_workers(client, cache_of_host)
    for worker, cache in sorted(found.items()):
        if not isinstance(cache, tuple):
            raise ClusterError(f"worker {worker} has no cache of compiled code ({cache})", "workers of this version")
        chosen.setdefault(cache, worker)
    # Another worker may have another cache, so that the tasks may run nowhere else.
    results([client.submit(compile_here, tuple(profiles), workers=[each], pure=False) for each in chosen.values()])
    results([client.submit(load_modules, workers=[each], pure=False) for each in found])
    return {worker: f"{host}:{folder}" for (host, folder), worker in chosen.items()}


def cache_of_host() -> tuple[str, str]:
    """Return the name of this host and the folder in which this process caches compiled code."""
    return socket.gethostname(), str(code_cache())


def compile_here(profiles: Sequence[str] = ()) -> bool:
    """Compile for this host in a process of its own, unless that was done before; one process at a time (a task).

    Parameters
    ----------
    profiles : sequence of str
        Profiles to compile for; all of them where there are none.

    Returns
    -------
    bool
        Whether anything was compiled.

    Raises
    ------
    ClusterError
        If that failed, or took longer than a task may.
    """
    folder = code_cache()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marks = [
            folder / f"giaann-compiled-{_version()}-{profile}"
            for profile in (*profiles, *(() if profiles else ("all",)))
        ]
        if all(mark.exists() for mark in marks):
            return False
        try:
            done = subprocess.run(
                [*_COMMAND, *profiles], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s()
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(f"takes longer than {timeout_s():.0f} s") from error
        if done.returncode:
            raise _failed((done.stderr.strip().splitlines() or ["no message"])[-1])
        for mark in marks:
            mark.touch()
    return True


def compile_beside(steps: Callable[[], None]) -> None:
    """Compile by two processes what needs no text for that, where nothing is compiled and there are two processors.

    This process begins with what only it compiles, the other one with the functions whose types are known, from the
    last to the first. Then this one does those from the first on, and loads what the other one has compiled.

    Parameters
    ----------
    steps : callable
        Compiles what only this process does.
    """
    from dask.system import CPU_COUNT

    if CPU_COUNT < 2 or count_compiled():
        return
    # Said here alone.
    announce_compiling()
    other = get_context("spawn").Process(target=_compile_last_first, daemon=True)
    other.start()
    load_modules()
    steps()
    load_compiled()
    other.join()


def _compile_last_first() -> None:
    load_modules()
    load_compiled(last_first=True)


def load_modules() -> None:
    """Import the modules of training tasks, which the first task of a worker would do (a task)."""
    for name in _TASKS:
        import_module(name)
    load_tables()


def load_tables() -> None:
    """Load what the first tasks read: numba's registries of types and the tagger's word lists, in half a second."""
    from giaann_dask.text.tagging import make_tagger

    load_numba_registries()
    make_tagger("lexicon")


def load_on_scheduler(client: Client) -> None:
    """Let a scheduler import the modules of training tasks, without waiting for it.

    It would import them when it is sent the first of these tasks, 0.4 s that a client waits for, while this one goes on
    with imports of its own.
    """
    try:
        call_within(timeout_s(), client, "run_on_scheduler", _import_tasks, wait=False)
    except Exception as error:
        _LOG.info("this scheduler imports the modules of tasks when it receives them: %s", error)


async def _import_tasks() -> None:
    # The scheduler first sends the answer that the client waits for.
    await asyncio.sleep(0.01)
    for name in _TASKS:
        import_module(name)


async def dask_setup(worker: Worker) -> None:
    """Compile and load compiled code before this worker joins its cluster; called by Dask as a preload."""
    try:
        compiled = await asyncio.to_thread(compile_here)
    except (ClusterError, OSError) as error:
        # A worker without compiled code works; its first tasks take longer.
        _LOG.warning("nothing was compiled ahead: %s", error)
        return
    await asyncio.to_thread(load_modules)
    await asyncio.to_thread(load_compiled)
    _LOG.info("compiled code is in %s%s", code_cache(), "" if compiled else " already")


def _failed(problem: str) -> ClusterError:
    return ClusterError(
        f"compiling on host {socket.gethostname()} failed: {problem}",
        "a host on which giaann-dask compile runs",
        "run it there, or name a folder that can be written in NUMBA_CACHE_DIR",
    )


def _version() -> str:
    """Return a hash of what compiled code depends on: the sources of this package, numba, and the processor."""
    import llvmlite.binding
    import numba

    package = Path(__file__).parents[1]
    files = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(package.rglob("*.py"))]
    found: tuple[Any, ...] = (files, numba.__version__, llvmlite.binding.get_host_cpu_name(), os.getuid())
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()
