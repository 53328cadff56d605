"""Measure how long workers spend on each stage of the work, on the processor or on devices.

A stage is all tasks whose keys have the same prefix. The scheduler adds up their times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from distributed import Client, Scheduler

_LOG = logging.getLogger(__name__)
# How long a scheduler may take to answer.
_PATIENCE_S = 10.0

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
    for name, time in (pair for each in times for pair in each.items()):
        before = found[name].seconds if name in found else 0.0
        found[name] = time._replace(seconds=round(before + time.seconds, 3))
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


def task_averages(client: Client) -> dict[str, float]:
    """Return about how long the last tasks with each prefix took; none where the scheduler refuses to run code."""
    return _ask(client, average_seconds)


def _ask(client: Client, asked: Callable[..., dict[str, float]]) -> dict[str, float]:
    try:
        seconds: dict[str, float] = client.sync(client._run_on_scheduler, asked, callback_timeout=_PATIENCE_S)
    except Exception as error:
        # Whether the cluster is lost is found out by those who need it.
        _LOG.info("the scheduler does not say how long stages have taken: %s", error)
        return {}
    return seconds


def stage_seconds(dask_scheduler: Scheduler | None = None) -> dict[str, float]:
    """Return the seconds of all tasks of each stage so far, in the process of a scheduler."""
    prefixes: Mapping[str, Any] = {} if dask_scheduler is None else dask_scheduler.task_prefixes
    return {name: prefixes[name].all_durations.get("compute", 0.0) for name in STAGES if name in prefixes}


def average_seconds(dask_scheduler: Scheduler | None = None) -> dict[str, float]:
    """Return the average seconds of the last tasks with each prefix, in the process of a scheduler."""
    prefixes: Mapping[str, Any] = {} if dask_scheduler is None else dask_scheduler.task_prefixes
    return {name: prefix.duration_average for name, prefix in prefixes.items() if prefix.duration_average > 0}
