"""Read from the scheduler: tasks by stage, and the memory and row services of its workers.

Covers: reading these from a scheduler's state, as plain values. Reads only what distributed documents (task
prefixes and their states, workers with their metrics). Does not cover: what processes tell (`board`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Scheduler

from giaann_dask.cluster.heartbeat import DEVICE_METRIC, ROWS_METRIC
from giaann_dask.diagnostics.monitoring.board import Stage

# Stages of encoding, training and inference in the order of the work, by the prefixes of their tasks' keys.
STAGES = (
    *("tag", "read", "encode", "select", "place", "connect", "accumulate", "route", "integrate", "compact"),
    *("split", "pack", "commit", "open", "open_region", "infer", "predict", "score", "generate"),
)


def stages_of(scheduler: Scheduler) -> list[Stage]:
    """Return the stages that a cluster has seen so far, in the order of the work."""
    found = []
    for name in STAGES:
        prefix = scheduler.task_prefixes.get(name)
        if prefix is not None:
            states = prefix.states
            waiting = sum(states.get(state, 0) for state in ("waiting", "queued", "no-worker"))
            found.append(Stage(name, waiting, states.get("processing", 0), prefix.all_durations.get("compute", 0.0)))
    return found


def memory_of(scheduler: Scheduler) -> dict[str, float]:
    """Return the bytes of all workers together: their processes, what they have spilled, and on devices."""
    totals = {"process_bytes": 0.0, "spilled_bytes": 0.0, "device_bytes": 0.0}
    for worker in scheduler.workers.values():
        metrics = worker.metrics
        spilled = metrics.get("spilled_bytes", 0)
        totals["process_bytes"] += metrics.get("memory", 0)
        totals["spilled_bytes"] += spilled.get("disk", 0) if isinstance(spilled, Mapping) else spilled
        totals["device_bytes"] += metrics.get(DEVICE_METRIC) or 0
    return totals


def rows_of(scheduler: Scheduler) -> dict[str, dict[str, float]]:
    """Return the counters of each worker's row service, by address, where it has one."""
    found = {address: worker.metrics.get(ROWS_METRIC) for address, worker in scheduler.workers.items()}
    return {address: counts for address, counts in found.items() if counts}


def holder_of(scheduler: Scheduler, task: str) -> str:
    """Return the name of a worker that holds the result of a task; empty where none does."""
    state: Any = scheduler.tasks.get(task)
    holders = sorted(name_of(worker) for worker in state.who_has or ()) if state is not None else []
    return holders[0] if holders else ""


def name_of(worker: Any) -> str:
    """Return the display name of a worker: its name, as ``storage-0``, or its number or address."""
    name = str(worker.name)
    return f"worker {name}" if name.isdigit() else name.removeprefix("tcp://")
