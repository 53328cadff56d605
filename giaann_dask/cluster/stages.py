"""Measure how long workers spend on each stage of the work, on the processor or on devices.

A stage is all tasks whose keys have the same prefix. The scheduler adds up their times. Plans are made of the
processor seconds of whole processes, which other work on the same machine changes less.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.library_internals import call_within

if TYPE_CHECKING:
    from distributed import Client, Scheduler, Worker

_LOG = logging.getLogger(__name__)
# How long a scheduler may take to answer.
_PATIENCE_S = 10.0
# Begins the names of processes.
_PROCESS = "process "

Place = Literal["processor", "device"]
PLACES: tuple[Place, ...] = get_args(Place)

# Stages of encoding, training and inference in the order of the work, by the prefixes of their tasks' keys.
STAGES = (
    *("tag", "read", "encode", "select", "place", "count_batch", "accumulate", "offer", "route", "integrate", "pairs"),
    *("sum", "compact", "split", "pack", "count", "derive", "commit", "open", "open_run", "open_region", "infer"),
    *("infer_together", "predict", "score", "generate"),
)
# Those that devices compute; on the processor they are a part of others (``compact`` and ``pack``), or ``infer``.
SUM, INFER_TOGETHER = "sum", "infer_together"
DEVICE_STAGES = (SUM, INFER_TOGETHER)


class StageTime(NamedTuple):
    """Time that workers have spent on the tasks of a stage.

    Attributes
    ----------
    seconds : float
        Of all tasks, which may have run at the same time.
    place : {"processor", "device"}
        Where they ran.
    """

    seconds: float
    place: Place


class StageClock:
    """Times of stages of a cluster since this was made, those of other clients included.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before = _ask(client, stage_seconds)

    def times(self) -> dict[str, StageTime]:
        """Return the times of the stages that have had tasks; none where the scheduler refuses to run code."""
        now = _ask(self._client, stage_seconds)
        spent = {name: now.get(name, 0.0) - self._before.get(name, 0.0) for name in STAGES}
        return {
            name: StageTime(round(seconds, 3), "device" if name in DEVICE_STAGES else "processor")
            for name, seconds in spent.items()
            if seconds > 0
        }


def add_times(*times: Mapping[str, StageTime]) -> dict[str, StageTime]:
    """Return the times of successive steps together.

    Examples
    --------
    >>> add_times({"sum": StageTime(1.0, "device")}, {"sum": StageTime(0.5, "device")})["sum"].seconds
    1.5
    """
    found: dict[str, StageTime] = {}
    for name, spent in (pair for each in times for pair in each.items()):
        before = found[name].seconds if name in found else 0.0
        found[name] = spent._replace(seconds=round(before + spent.seconds, 3))
    return found


def time_rows(times: Mapping[str, StageTime], places: Sequence[Place] = PLACES) -> list[tuple[str, str]]:
    """Return what has been computed where, for a person; without places that have computed nothing.

    Examples
    --------
    >>> time_rows({"count_batch": StageTime(2.0, "processor"), "sum": StageTime(1.25, "device")}, ["device"])
    [('on devices', 'sum 1.25 s')]
    """
    names = {"processor": "on processors", "device": "on devices"}
    found = {
        place: ", ".join(f"{name} {time.seconds:.2f} s" for name, time in times.items() if time.place == place)
        for place in places
    }
    return [(names[place], line) for place, line in found.items() if line]


class ProcessorTimes(NamedTuple):
    """Processor seconds of processes until now, or between two such times.

    Attributes
    ----------
    driver : float
        Of this process and of the scheduler's; without tasks, where workers are threads of this process.
    workers : float
        Of the processes of all workers; of their tasks, where they are threads of this process.
    tasks : mapping of str to float
        Of the threads of tasks, by the prefix of their keys.
    counts : mapping of str to int
        Tasks that have ended, by this prefix.
    """

    driver: float
    workers: float
    tasks: Mapping[str, float]
    counts: Mapping[str, int]

    def since(self, before: ProcessorTimes) -> ProcessorTimes:
        """Return the times from others until these."""
        return ProcessorTimes(
            self.driver - before.driver,
            self.workers - before.workers,
            {name: value - before.tasks.get(name, 0.0) for name, value in self.tasks.items()},
            {name: value - before.counts.get(name, 0) for name, value in self.counts.items()},
        )


def processor_times(client: Client) -> ProcessorTimes:
    """Return the processor seconds of all processes of a cluster and of this one.

    Without those of the scheduler, and counts of tasks, where it refuses to run code.
    """
    processes: dict[str, float] = {}
    spent: Counter[str] = Counter()
    inside = 0.0
    mine, _ = process_time()
    for name, seconds, tasks in ask_workers(client, worker_time).values():
        processes[name] = seconds
        spent.update(tasks)
        inside += sum(tasks.values()) if name == mine else 0.0
    scheduler = _ask(client, scheduler_time)
    others = {name: seconds for name, seconds in scheduler.items() if name.startswith(_PROCESS)}
    driver = sum({**others, mine: process_time()[1]}.values()) - inside
    workers = sum(seconds for name, seconds in processes.items() if name != mine) + inside
    counts = {name: int(count) for name, count in scheduler.items() if not name.startswith(_PROCESS)}
    return ProcessorTimes(driver, workers, spent, counts)


def _ask(client: Client, asked: Callable[..., dict[str, float]]) -> dict[str, float]:
    try:
        seconds: dict[str, float] = call_within(_PATIENCE_S, client, "run_on_scheduler", asked)
    except Exception as error:
        # Whether the cluster is lost is found out by those who need it.
        _LOG.info("the scheduler does not say how long stages have taken: %s", error)
        return {}
    return seconds


def stage_seconds(dask_scheduler: Scheduler | None = None) -> dict[str, float]:
    """Return the seconds of all tasks of each stage so far, in the process of a scheduler."""
    prefixes: Mapping[str, Any] = {} if dask_scheduler is None else dask_scheduler.task_prefixes
    return {name: prefixes[name].all_durations.get("compute", 0.0) for name in STAGES if name in prefixes}


def process_time() -> tuple[str, float]:
    """Return a name of this process among those of a cluster, and its processor seconds so far."""
    return f"{_PROCESS}{socket.gethostname()} {os.getpid()}", time.process_time()


def worker_time(dask_worker: Worker | None = None) -> tuple[str, float, dict[str, float]]:
    """Return name and processor seconds of this process, and of the tasks of a worker in it, by their prefixes."""
    tasks: Counter[str] = Counter()
    for name, value in () if dask_worker is None else dask_worker.digests_total.items():
        if isinstance(name, tuple) and name[0] == "execute" and name[-2] == "thread-cpu":
            tasks[name[-3]] += value
    return (*process_time(), dict(tasks))


def scheduler_time(dask_scheduler: Scheduler | None = None) -> dict[str, float]:
    """Return the processor seconds of the scheduler's process by its name, and by prefix the tasks that have ended."""
    prefixes: Mapping[str, Any] = {} if dask_scheduler is None else dask_scheduler.task_prefixes
    name, seconds = process_time()
    return {name: seconds, **{prefix: found.state_counts["memory"] for prefix, found in prefixes.items()}}
