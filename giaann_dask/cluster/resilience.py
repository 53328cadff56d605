"""What a cluster that we start is told, so that it can be left alone for weeks.

Covers: when a worker counts as hung, how often workers may die of a task before the task is
blamed, how long a dead worker's place is kept, workers that cannot be started again at once, and
workers that do not import the main module.
Does not cover: how results are awaited
(`waiting`), and schedulers that were started by hand, which read Dask's own configuration.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import dask
from dask.utils import key_split
from distributed import Nanny, Scheduler, Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.nanny import WorkerProcess
from distributed.process import AsyncProcess
from tornado.ioloop import PeriodicCallback

from giaann_dask.cluster.fork_server import begin_fork_server, default_method, forks, leave_main_out

# Between attempts to start a worker again.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# How many things of a span are remembered, and how often the others are forgotten.
_REMEMBERED, _FORGETTING_S = 100, 30.0

# Where the user's own configuration of Dask says otherwise, that is followed.
DEFAULTS = {
    "distributed": {
        "scheduler": {
            # A worker without a sign of life for so long is killed by its nanny and replaced.
            "worker-ttl": "2 minutes",
            # A task that has never finished and lost so many workers is taken to be what kills them.
            "allowed-failures": 30,
            # Without any worker for so long, tasks fail instead of waiting.
            "no-workers-timeout": "15 minutes",
        },
        # Dask gives a place up for good when its new worker is not there in time: 15 s by default,
        # which a busy machine can take to start one.
        "deploy": {"lost-worker-timeout": "15 minutes"},
        # Every connection remembers its last messages, tasks and all: with Dask's 1,000 the process that trains
        # grows for an hour before it stays as it is.
        "admin": {
            "low-level-log-length": 50,
            # Figures of the process, twice a second: for ten minutes instead of an hour.
            "system-monitor": {"log-length": 1200},
        },
    }
}


@functools.cache
def set_defaults() -> None:
    """Let Dask's configuration begin, once, from values for long runs."""
    dask.config.update_defaults(DEFAULTS)
    dask.config.update_defaults({"distributed": {"worker": default_method()}})


class FailureCountReset(SchedulerPlugin):  # type: ignore[misc]
    """Forgets how many workers died holding a task, when the task finishes, and whom it preferred, when all are gone.

    Dask counts that over the whole life of a task, and blames the task in the end. One that lives
    for weeks and is computed again after every loss, such as the reading of a large run, would be
    blamed for what happened to be killed around it.

    A task that prefers a worker and finds none at all waits for the address that it preferred, which
    does not come back: a new worker has another one. So it is let go to any.
    """

    name = "giaann-failure-count-reset"

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Keep the scheduler whose tasks are watched."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *arguments: Any, **options: Any) -> None:
        """Forget past failures of a task that has finished, and the preference of one without any worker."""
        task = self._scheduler.tasks.get(key) if self._scheduler is not None else None
        if task is not None and finish == "memory":
            task.suspicious = 0
        if task is not None and finish == "no-worker" and task.loose_restrictions:
            task.worker_restrictions = None


class HistoryPruning(SchedulerPlugin):  # type: ignore[misc]
    """Lets a scheduler forget the names and kinds of what it was asked for long ago.

    Dask writes the kind of every single thing down for its reports on spans of work (`distributed.spans`) and never
    forgets it, and it remembers 100,000 names of tasks with what they are short for: a scheduler that lives for weeks
    is asked millions of times.
    """

    name = "giaann-history-pruning"

    async def start(self, scheduler: Scheduler) -> None:
        """Begin to forget, once in a while."""
        spans = scheduler.extensions.get("spans")

        def forget() -> None:
            key_split.cache_clear()
            for span in spans.spans.values() if spans is not None else ():
                if span.metadata is not None:
                    del span.metadata["collections"][:-_REMEMBERED]

        # The scheduler stops it with its own.
        scheduler.periodic_callbacks[self.name] = callback = PeriodicCallback(forget, _FORGETTING_S * 1000)
        callback.start()


class LoneWorkerProcess(WorkerProcess):  # type: ignore[misc]
    """A worker process that does not import the main module of the process that starts it."""

    @property
    def process(self) -> AsyncProcess | None:
        """The process, None before it is made and after it has stopped."""
        return self._async_process

    @process.setter
    def process(self, made: AsyncProcess | None) -> None:
        if made is not None:
            leave_main_out(made._process)
        self._async_process = made


class RestartingNanny(Nanny):  # type: ignore[misc]
    """A nanny that tries again when its worker, having died, cannot be started.

    Dask's own closes then, and the place of the worker is lost for good: with one worker less after
    every busy moment of the machine, a cluster of weeks ends without any.
    """

    env: dict[str, str]
    pre_spawn_env: dict[str, str]

    @property
    def process(self) -> WorkerProcess | None:
        """The worker process, None before it is made and after it has been closed."""
        return self._worker_process

    @process.setter
    def process(self, made: WorkerProcess | None) -> None:
        if made is not None:
            # Dask offers no way to name another class.
            made.__class__ = LoneWorkerProcess
            made.process = None
        self._worker_process = made

    def _lasts(self) -> bool:
        """Return whether a worker of this nanny has been there, and is wanted again."""
        return bool(self.status == Status.running)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> Any:
        """Close, unless it is only that the worker could not be started again."""
        if self._lasts() and reason.startswith("nanny-instantiate"):
            return "OK"
        return await super().close(timeout=timeout, reason=reason)

    async def instantiate(self) -> Any:
        """Start the worker process, again and again where it was there before."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                if forks():
                    # These hold what Dask would leave in the environment of this process for its child.
                    self.env, self.pre_spawn_env = {**begin_fork_server(self.env), **self.env}, {}
                return await super().instantiate()
            except Exception:
                if not self._lasts():
                    raise
                logging.getLogger(__name__).warning("a worker could not be started; trying again in %g s", pause)
            failed = self.process
            if failed is not None and failed.is_alive():
                await failed.kill(timeout=pause)
            self.process = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def scheduler_arguments(hang_timeout_s: float | None = None) -> dict[str, Any]:
    """Return the arguments of a scheduler that survives what happens in weeks.

    Parameters
    ----------
    hang_timeout_s : float, optional
        Seconds without a sign of life after which a worker is replaced; that of Dask's configuration
        (``distributed.scheduler.worker-ttl``), which begins as 120, by default.

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
