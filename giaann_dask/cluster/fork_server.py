"""Worker processes begin as copies of one process that has imported everything already.

Covers: that process (the fork server of `multiprocessing`): what it imports, the environment it
has, and what has changed in the environment since; and worker processes that do not import the main
module. Does not cover: workers with a GPU, which start from nothing because a CUDA context does not
survive a fork, and workers started by hand.

PyTorch, Dask, zarr, numba and spaCy take seconds to import and 150 MB that no process changes. A
copy is there in a tenth of a second, also in the place of a worker that was killed, and shares that
memory with the others. The fork server itself does nothing but import and fork, so it has one thread.

`multiprocessing` lets every process that it starts import the main module again. A script that
connects outside ``if __name__ == "__main__":`` would start a cluster in each worker then, so workers
leave the main module out. They do not need it: Dask sends functions and classes of it by value.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.process import BaseProcess
from typing import Any

import dask
from distributed.utils import get_mp_context

METHOD = "forkserver"
METHOD_KEY = "distributed.worker.multiprocessing-method"
# By the name that Dask gives to the variable for the key above.
METHOD_VARIABLE = "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"
# What the tasks of this project import sooner or later.
MODULES = (
    "giaann_dask.api.training",
    "giaann_dask.inference.sessions",
    "giaann_dask.inference.evaluation.evaluation",
    "giaann_dask.worker_setup",
    "spacy.lang.en",
    "distributed.nanny",
)
# As Dask has it, so that hash(str) is the same in all workers.
HASHING = {"PYTHONHASHSEED": "6640"}

# What `multiprocessing` tells a new process of the main module.
_MAIN_MODULE = ("init_main_from_name", "init_main_from_path")

# Whether this thread starts a process that leaves the main module out.
_thread = threading.local()
# The environment with which the one fork server of this process was started, as far as it is still like that.
_started_with: dict[str, str] = {}


def default_method() -> dict[str, str]:
    """Return how Dask is to start worker processes, as far as the user has not said.

    Examples
    --------
    >>> set(default_method()) <= {"multiprocessing-method"}
    True
    """
    if METHOD_VARIABLE in os.environ or METHOD not in multiprocessing.get_all_start_methods():
        return {}
    return {"multiprocessing-method": METHOD}


def environment_of_workers() -> dict[str, str]:
    """Return the variables that Dask is configured to start workers with; those of this process go before them."""
    configured = dask.config.get("distributed.nanny.pre-spawn-environ", {})
    chosen = {name: str(value) for name, value in configured.items() if value is not None}
    return {**HASHING, **chosen, **{name: os.environ[name] for name in (*HASHING, *chosen) if name in os.environ}}


def forks() -> bool:
    """Return whether workers are to begin as copies."""
    return bool(dask.config.get(METHOD_KEY) == METHOD)


def begin_fork_server(variables: Mapping[str, str]) -> dict[str, str]:
    """See to it that the fork server runs.

    Parameters
    ----------
    variables : mapping of str to str
        What its environment has beside that of this process, if it is to be started.

    Returns
    -------
    dict of str to str
        Variables of this process that are not as the server, and so a new worker, has them.
    """
    # Dask names what the server imports when it asks for the first time; ours comes after that.
    get_mp_context().set_forkserver_preload(list(MODULES))
    with _environment(variables) as whole:
        if not _started_with:
            _started_with.update(whole)
        with _not_interrupted():
            forkserver.ensure_running()
    return {name: value for name, value in os.environ.items() if _started_with.get(name) != value}


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Hold Ctrl-C back, which the server takes over: a terminal sends it to all, while it imports, too.

    What this process is to do about it, it does afterwards; its workers stop when it says so.
    """
    # When this starts something, it lets Ctrl-C through again; where it runs already, it does nothing.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Set variables of this process while the server is started, which takes them over."""
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


def leave_main_out(process: BaseProcess) -> None:
    """Let a process that has not been started yet begin without importing the main module of this one.

    Other processes that `multiprocessing` starts here, also at the same time, are as they were.

    Parameters
    ----------
    process : multiprocessing.process.BaseProcess
        To be started by the method ``forkserver`` or ``spawn``.
    """
    _filter_preparation_data()
    # `start` asks the process for what starts it; the attribute goes before the method of its class.
    vars(process)["_Popen"] = _start_without_main


def imports_main() -> bool:
    """Return whether this process is a child of `multiprocessing` that imports the main module of its parent now."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _start_without_main(process: Any) -> Any:
    """Start a process as its class does, but without the main module."""
    # The process is sent to the child, which must have the method of its class.
    del vars(process)["_Popen"]
    _thread.leaves_main_out = True
    try:
        return process._Popen(process)
    finally:
        _thread.leaves_main_out = False


@functools.cache
def _filter_preparation_data() -> None:
    """Let `multiprocessing` leave the main module out of what it tells a child, where a thread asks for it."""
    complete = spawn.get_preparation_data

    def preparation_data(name: str) -> dict[str, Any]:
        data = complete(name)
        if getattr(_thread, "leaves_main_out", False):
            return {key: value for key, value in data.items() if key not in _MAIN_MODULE}
        return data

    spawn.get_preparation_data = preparation_data
