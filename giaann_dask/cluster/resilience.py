"""Configure clusters that this package starts so that they run unattended for weeks.

This sets when a worker counts as hung, how many workers may die while running a task before it fails, and how long a
lost worker may take to be replaced; it retries the start of workers with backoff. Schedulers that were
started separately use Dask's own configuration, and get a plugin; timeouts of results are in `waiting`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import sys
from typing import Any

import dask
from dask.utils import key_split
from distributed import Client, Nanny, Scheduler, Status, Worker
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.nanny import WorkerProcess
from distributed.process import AsyncProcess
from distributed.protocol.pickle import dumps
from tornado.ioloop import PeriodicCallback

from giaann_dask.cluster.fork_server import begin_fork_server, default_method, forks
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.library_internals import prepare_worker_process

_LOG = logging.getLogger(__name__)
# How long a scheduler may take to add a plugin.
_PATIENCE_S = 10.0
# Backoff between attempts to start a worker again.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# How many collections of a span are kept, and how often the others are removed.
_KEPT_COLLECTIONS, _PRUNING_S = 100, 30.0

# The user's own configuration of Dask takes precedence over these.
DEFAULTS = {
    "distributed": {
        "scheduler": {
            # A worker without a heartbeat for so long is killed by its nanny and replaced.
            "worker-ttl": "2 minutes",
            # A task that has never finished fails after so many workers died while running it.
            "allowed-failures": 30,
            # Tasks fail after so long without any worker.
            "no-workers-timeout": "15 minutes",
        },
        # Dask never replaces a worker whose replacement did not start in time: 15 s by default,
        # which a busy machine can exceed.
        "deploy": {"lost-worker-timeout": "15 minutes"},
        "admin": {
            # Every connection keeps its last messages with their tasks: with Dask's default of 1,000 the driver
            # process grows for an hour before its size is stable.
            "low-level-log-length": 50,
            # How late an event loop is, is logged after seconds; measured 50 times a second, as by default, it takes
            # more than half of the processor time of an idle cluster.
            "tick": {"interval": "250ms"},
            # Process statistics, two samples a second: ten minutes instead of an hour.
            "system-monitor": {"log-length": 1200},
        },
    }
}


# Before Python 3.12 the garbage collector can start while another thread's frame is looked up, as Dask's profiler does
# every 10 ms, and then waits forever for a thread of Icechunk that ends at that moment (CPython issue 106883).
PROFILES = sys.version_info >= (3, 12)


@functools.cache
def set_defaults() -> None:
    """Set the defaults of Dask's configuration for long runs, once."""
    dask.config.update_defaults(DEFAULTS)
    dask.config.update_defaults({"distributed": {"worker": {**default_method(), "profile": {"enabled": PROFILES}}}})


class FailureCountReset(SchedulerPlugin):  # type: ignore[misc]
    """Reset a task's count of lost workers when it finishes, and its preferred workers when there is no worker.

    Dask counts lost workers over the whole lifetime of a task, and then fails the task. One that exists
    for weeks and is computed again after every loss, such as reading a large run, would fail because of
    workers that were killed for other reasons.

    A task with a preferred worker waits for that address while there is no worker at all, but a new worker
    has another address. So its preference is removed.
    """

    name = "giaann-failure-count-reset"

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Store the scheduler, whose tasks `transition` reads."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *arguments: Any, **options: Any) -> None:
        """Reset the failures of a task that has finished, and the preference of one without any worker."""
        task = self._scheduler.tasks.get(key) if self._scheduler is not None else None
        if task is not None and finish == "memory":
            task.suspicious = 0
        if task is not None and finish == "no-worker" and task.loose_restrictions:
            task.worker_restrictions = None


def add_scheduler_plugin(client: Client, plugin: SchedulerPlugin, seconds: float = _PATIENCE_S) -> None:
    """Add a plugin to the scheduler of a client, unless it has one of that name; it stays as long as the scheduler.

    Raises
    ------
    Exception
        If the scheduler refuses code, cannot import the plugin, or does not answer in time.
    """
    arguments = {"plugin": dumps(plugin), "name": plugin.name, "idempotent": True}
    client.sync(client.scheduler.register_scheduler_plugin, callback_timeout=seconds, **arguments)


def survive_losses(client: Client) -> None:
    """Let the scheduler of a client, if it was started separately, give tasks of lost workers to others.

    Otherwise a training would wait forever once all workers of a cluster that scales have been gone together.
    """
    try:
        add_scheduler_plugin(client, FailureCountReset())
    except Exception as error:
        _LOG.warning("this scheduler accepts no plugins, so work stops when all workers are lost at once: %s", error)


def _lifetime_s(dask_worker: Worker) -> float | None:
    """Return the seconds after which a worker ends by its own option; None for none."""
    lifetime: float | None = dask_worker.lifetime
    return lifetime


def shortest_lifetime_s(client: Client) -> float:
    """Return the seconds after which the first of the workers ends by its own option; infinite where none does.

    Raises
    ------
    ClusterError
        If the client is closed, or a worker does not respond.
    """
    found = ask_workers(client, _lifetime_s).values()
    return min((each for each in found if isinstance(each, float) and each > 0), default=math.inf)


class HistoryPruning(SchedulerPlugin):  # type: ignore[misc]
    """Limit the history of collections and task names that a scheduler keeps in memory.

    Dask records the metadata of every collection for its reports on spans (`distributed.spans`) and never removes
    it, and it caches 100,000 prefixes of task keys: a scheduler that runs for weeks receives millions of tasks.
    """

    name = "giaann-history-pruning"

    async def start(self, scheduler: Scheduler) -> None:
        """Remove old entries periodically."""
        spans = scheduler.extensions.get("spans")

        def prune() -> None:
            key_split.cache_clear()
            for span in spans.spans.values() if spans is not None else ():
                if span.metadata is not None:
                    del span.metadata["collections"][:-_KEPT_COLLECTIONS]

        # The scheduler stops it together with its own callbacks.
        scheduler.periodic_callbacks[self.name] = callback = PeriodicCallback(prune, _PRUNING_S * 1000)
        callback.start()


class LoneWorkerProcess(WorkerProcess):  # type: ignore[misc]
    """Worker process that does not import the main module of the process that starts it.

    Attributes
    ----------
    spawns : bool
        Whether it is a new process, whatever method Dask is configured to use.
    """

    spawns: bool

    @property
    def process(self) -> AsyncProcess | None:
        """The process, None before it is made and after it has stopped."""
        return self._async_process

    @process.setter
    def process(self, made: AsyncProcess | None) -> None:
        if made is not None:
            prepare_worker_process(made, spawns=self.spawns)
        self._async_process = made


class RestartingNanny(Nanny):  # type: ignore[misc]
    """Nanny that retries when its worker has died and cannot be started again.

    Dask's own nanny closes then, and the worker is lost permanently: a cluster that runs for weeks on a busy machine
    would lose all of its workers one by one.
    """

    spawns = False
    env: dict[str, str]
    pre_spawn_env: dict[str, str]

    @property
    def process(self) -> WorkerProcess | None:
        """The worker process, None before it is made and after it has been closed."""
        return self._worker_process

    @process.setter
    def process(self, made: WorkerProcess | None) -> None:
        if made is not None:
            # Dask has no option for the class.
            made.__class__ = LoneWorkerProcess
            made.spawns = self.spawns
            made.process = None
        self._worker_process = made

    def _restarts(self) -> bool:
        """Return whether a worker of this nanny has run before, and is to be restarted."""
        return bool(self.status == Status.running)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> Any:
        """Close, except when the reason is that the worker could not be restarted."""
        if self._restarts() and reason.startswith("nanny-instantiate"):
            return "OK"
        return await super().close(timeout=timeout, reason=reason)

    async def instantiate(self) -> Any:
        """Start the worker process; retry with backoff if it has run before."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                if forks() and not self.spawns:
                    # Passed to the child, instead of left in the environment of this process as by Dask.
                    self.env, self.pre_spawn_env = {**begin_fork_server(self.env), **self.env}, {}
                return await super().instantiate()
            except Exception:
                if not self._restarts():
                    raise
                _LOG.warning("a worker could not be started; trying again in %g s", pause)
            failed = self.process
            if failed is not None and failed.is_alive():
                await failed.kill(timeout=pause)
            self.process = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


class SpawningNanny(RestartingNanny):
    """Nanny of a worker with a GPU, which is no fork, as CUDA cannot be used after one that has begun to use it."""

    spawns = True


def scheduler_arguments(hang_timeout_s: float | None = None) -> dict[str, Any]:
    """Return the arguments of a scheduler that runs for weeks.

    Parameters
    ----------
    hang_timeout_s : float, optional
        Seconds without a heartbeat after which a worker is replaced; by default that of Dask's configuration
        (``distributed.scheduler.worker-ttl``, 120 unless set).

    Examples
    --------
    >>> sorted(scheduler_arguments(60.0))
    ['plugins', 'worker_ttl']
    """
    set_defaults()
    arguments: dict[str, Any] = {"plugins": [FailureCountReset(), HistoryPruning()]}
    if hang_timeout_s is not None:
        arguments["worker_ttl"] = hang_timeout_s
    return arguments
