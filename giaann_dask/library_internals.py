"""Use private names of other libraries, all of them here, each with the reason.

A version of a library may change such a name without notice. `tests/test_architecture.py` finds private names in any
other module. Libraries are imported when one of their names is first used, because most commands need few of them.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing import spawn
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dask._task_spec import Alias, Task, TaskRef
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from zarr.core.sync import sync
else:

    def __getattr__(name: str) -> Any:
        """Import a private name when it is first used, and keep it."""
        if name not in _PLACES:
            raise AttributeError(name)
        value = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return value


__all__ = [
    "Alias",
    "H11Protocol",
    "Task",
    "TaskRef",
    "add_cache_stamp",
    "before_thread_pools_end",
    "call_within",
    "compile_events",
    "foreign_frames",
    "imports_main",
    "keep_fork_server_modules",
    "keep_result",
    "load_numba_registries",
    "new_task",
    "prepare_worker_process",
    "skip_main_import",
    "sync",
    "tiktoken_ranks",
]

_PLACES = {
    # A graph of several tasks in one message, with keys that are hashes of all that determines a task: Dask's public
    # graphs are hashed again and joined by optimisations. A message costs scheduler and client as much as a small task.
    **dict.fromkeys(("Alias", "Task", "TaskRef"), "dask._task_spec"),
    # Limits of time for each phase of a connection, which uvicorn has for keep-alive alone.
    "H11Protocol": "uvicorn.protocols.http.h11_impl",
    # Coroutines of Zarr's asynchronous stores, on the event loop on which Zarr runs them: 32 chunks of a run are read
    # or written at the same time. Public functions of Zarr read or write one array at a time.
    "sync": "zarr.core.sync",
}
# Entries of the preparation data of `multiprocessing` that name the main module.
_MAIN_MODULE = ("init_main_from_name", "init_main_from_path")
# Whether this thread is starting a process that does not import the main module.
_thread = threading.local()

ClientMethod = Literal["get_versions", "publish_dataset", "run", "run_on_scheduler", "unpublish_dataset"]


def call_within(limit_s: float, client: Any, method: ClientMethod, *arguments: Any, **named: Any) -> Any:
    """Call a method of a Dask client within a limit of time; its public methods wait without one.

    Parameters
    ----------
    limit_s : float
        Seconds.
    client : distributed.Client
        Connected to a scheduler.
    method : str
        Name of the public method.
    *arguments, **named
        Of the method.

    Raises
    ------
    TimeoutError
        If there is no answer in time.
    """
    return client.sync(getattr(client, f"_{method}"), *arguments, callback_timeout=limit_s, **named)


def keep_result(client: Any, key: str) -> None:
    """Tell the scheduler that a client wants the result of a key; a future that is made of a key does not."""
    client._send_to_scheduler({"op": "client-desires-keys", "keys": [key]})


def keep_fork_server_modules() -> None:
    """Let Dask keep the modules of the fork server; it would import pandas and others for a list of its own."""
    import distributed.utils

    distributed.utils._forkserver_preload_set = True


def before_thread_pools_end(function: Callable[[], None]) -> None:
    """Call a function when the interpreter ends, before its thread pools do; those of `atexit` are called later."""
    threading._register_atexit(function)  # type: ignore[attr-defined]


def foreign_frames() -> list[FrameType]:
    """Return the outermost frame of each thread that a library of machine code has started."""
    started = {each.ident for each in threading.enumerate() if not isinstance(each, threading._DummyThread)}
    return [_outermost(frame) for thread, frame in sys._current_frames().items() if thread not in started]


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def new_task(key: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Task:
    """Return a Dask task with a key that is a hash of all that determines it.

    Dask would hash all arguments once more for a token of its own.
    """
    from dask._task_spec import Task, parse_input

    task = Task(key, function, *map(parse_input, arguments), **{name: parse_input(named[name]) for name in named})
    task._token = key
    return task


def tiktoken_ranks(encoding: Any) -> tuple[dict[bytes, int], str]:
    """Return the merge ranks and the split pattern of an encoding of tiktoken, which has no public names for them."""
    return encoding._mergeable_ranks, encoding._pat_str


def compile_events() -> ModuleType:
    """Return numba's module of events, among them the compilation of a function."""
    return import_module("numba.core.event")


def add_cache_stamp(dispatcher: Any, stamp: str) -> None:
    """Make numba's cached code of a function depend on more than the file of that function alone."""
    cache = dispatcher._cache._cache_file
    cache._source_stamp = (cache._source_stamp, stamp)


def load_numba_registries() -> None:
    """Load numba's registries of types and functions, which it needs to compile a function or to read its cached code.

    Numba would import SciPy there, if it is installed, only to learn that BLAS can be linked. This takes longer than
    all the rest, so it is left to the first function that needs BLAS.
    """
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    # Registries are read by one thread at a time; numba holds this lock whenever it compiles.
    with global_compiler_lock:
        if "numba.np.arraymath" not in sys.modules and importlib.util.find_spec("scipy") is not None:
            from numba.np import linalg

            check, linalg.ensure_blas = linalg.ensure_blas, lambda: None
            try:
                import numba.np.arraymath
            finally:
                linalg.ensure_blas = check
            numba.np.arraymath.ensure_blas = check
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


def imports_main() -> bool:
    """Return whether this process is a child of `multiprocessing` that imports the main module of its parent now."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def skip_main_import(process: BaseProcess) -> None:
    """Make a process that has not been started yet skip the import of this process's main module.

    Other processes that `multiprocessing` starts here, also at the same time, are not affected.

    Parameters
    ----------
    process : multiprocessing.process.BaseProcess
        To be started by the method ``forkserver`` or ``spawn``.
    """
    _filter_preparation_data()
    # `start` calls `_Popen` of the process; the instance attribute takes precedence over the method of the class.
    vars(process)["_Popen"] = _start_without_main


def prepare_worker_process(process: Any, *, spawns: bool) -> None:
    """Make a worker's process, before it starts, skip the import of the main module.

    Parameters
    ----------
    process : distributed.process.AsyncProcess
        Which Dask has made.
    spawns : bool
        Whether it is a new process, whatever method Dask is configured to use.
    """
    own = process._process
    if spawns:
        own.__class__ = SpawnProcess
    skip_main_import(own)


def _start_without_main(process: Any) -> Any:
    """Start a process as its class does, without the import of the main module."""
    # The process is pickled for the child, which needs the method of the class.
    del vars(process)["_Popen"]
    _thread.skips_main_import = True
    try:
        return process._Popen(process)
    finally:
        _thread.skips_main_import = False


@functools.cache
def _filter_preparation_data() -> None:
    """Patch `multiprocessing` to omit the main module from the preparation data where a thread has requested it."""
    complete = spawn.get_preparation_data

    def preparation_data(name: str) -> dict[str, Any]:
        data = complete(name)
        if getattr(_thread, "skips_main_import", False):
            return {key: value for key, value in data.items() if key not in _MAIN_MODULE}
        return data

    spawn.get_preparation_data = preparation_data
