"""Start worker processes by forking a server process that has imported all modules already.

This configures the fork server of `multiprocessing` (its imports and its environment) and starts workers without
importing the main module. Workers with a GPU are spawned instead (`resilience.SpawningNanny`).

Dask, zarr and numba take seconds to import and 150 MB that no process changes. A
fork starts in a tenth of a second, also as the replacement of a worker that was killed, and shares that
memory with the others. The fork server only imports and forks, so it has one thread.

`multiprocessing` makes every process that it starts import the main module again. A script that
connects outside ``if __name__ == "__main__":`` would then start a cluster in each worker, so workers
do not import the main module. They do not need it: Dask sends its functions and classes by value.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

import dask

from giaann_dask.library_internals import keep_fork_server_modules

METHOD = "forkserver"
METHOD_KEY = "distributed.worker.multiprocessing-method"
# Dask's environment variable for the key above.
METHOD_VARIABLE = "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"
# Imports what the tasks of this package import.
MODULES = ("giaann_dask.cluster.forked_modules",)
# As in Dask, so that hash(str) is the same in all workers.
HASHING = {"PYTHONHASHSEED": "6640"}

# The environment with which the fork server of this process was started.
_started_with: dict[str, str] = {}


def default_method() -> dict[str, str]:
    """Return the default start method of Dask's worker processes, empty where the user has configured one.

    Examples
    --------
    >>> set(default_method()) <= {"multiprocessing-method"}
    True
    """
    if METHOD_VARIABLE in os.environ or METHOD not in multiprocessing.get_all_start_methods():
        return {}
    return {"multiprocessing-method": METHOD}


def environment_of_workers() -> dict[str, str]:
    """Return the variables that Dask sets for workers; those of this process take precedence."""
    configured = dask.config.get("distributed.nanny.pre-spawn-environ", {})
    chosen = {name: str(value) for name, value in configured.items() if value is not None}
    return {**HASHING, **chosen, **{name: os.environ[name] for name in (*HASHING, *chosen) if name in os.environ}}


def forks() -> bool:
    """Return whether workers are started by the fork server."""
    return bool(dask.config.get(METHOD_KEY) == METHOD)


def begin_fork_server(variables: Mapping[str, str]) -> dict[str, str]:
    """Start the fork server unless it is running.

    Parameters
    ----------
    variables : mapping of str to str
        Variables that its environment has in addition to that of this process, if it is started now.

    Returns
    -------
    dict of str to str
        Variables of this process that differ from the server's, and so from those of a new worker.
    """
    keep_fork_server_modules()
    multiprocessing.get_context(METHOD).set_forkserver_preload(list(MODULES))
    with _environment(variables) as whole:
        if not _started_with:
            _started_with.update(whole)
        with _not_interrupted():
            forkserver.ensure_running()
    return {name: value for name, value in os.environ.items() if _started_with.get(name) != value}


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Block SIGINT and SIGHUP while the server is started, which inherits the mask: a terminal sends them to all.

    This process handles what is pending afterwards, and stops its workers itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        # Starting the resource tracker unblocks SIGINT, so it is started first; if it is running, nothing happens.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Set variables of this process while the server is started, which inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield dict(os.environ)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
