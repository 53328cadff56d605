"""What Dask recorded of the tasks of a training run: stages, idle workers, and rounds side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Prefixes of task keys by stage; what is not named here stands for itself.
STAGES = {
    "tag": "read corpus",
    "read": "read corpus",
    "summarise": "encode",
    "encode": "encode",
    "count_block": "measure",
    "commit": "write",
    "ever_pos": "read corpus",
}


@dataclass
class Stage:
    """What the tasks of one stage took, over all workers, in seconds."""

    tasks: int = 0
    compute: float = 0.0
    transfer: float = 0.0
    disk: float = 0.0


def by_stage(tasks: Iterable[dict[str, Any]]) -> dict[str, Stage]:
    """Add up what Dask recorded of each task."""
    stages: dict[str, Stage] = defaultdict(Stage)
    for task in tasks:
        prefix = str(task["key"]).rsplit("-", 1)[0]
        stage = stages[STAGES.get(prefix, prefix)]
        stage.tasks += 1
        spent = Counter[str]()
        for each in task["startstops"]:
            spent[each["action"]] += each["stop"] - each["start"]
        stage.compute += spent["compute"]
        stage.transfer += spent["transfer"]
        stage.disk += spent["disk-read"] + spent["disk-write"]
    return dict(stages)


def idle_shares(tasks: Iterable[dict[str, Any]], span: tuple[float, float], workers: int) -> list[float]:
    """Return the share of a span in which each worker computed nothing."""
    busy: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for task in tasks:
        for each in task["startstops"]:
            if each["action"] == "compute":
                busy[task["worker"]].append((each["start"], each["stop"]))
    low, high = span
    shares = []
    for intervals in busy.values():
        total, end = 0.0, low
        for start, stop in sorted(intervals):
            total += max(min(stop, high) - max(start, end), 0.0)
            end = max(end, stop)
        shares.append(1 - total / (high - low))
    return sorted(shares) + [1.0] * (workers - len(shares))


def side_by_side(tasks: Iterable[dict[str, Any]], span: tuple[float, float]) -> float:
    """Return the share of the time in which counting ran beside the integration of another round.

    A round is integrated when all of its batches are there, so what runs beside is of another round:
    integrate and compact, and moving increments to them.
    """
    edges = []
    for name, begin, end in _intervals(tasks):
        kind = "count_batch" if name == "count_batch" else "integrate"
        edges += [(begin, kind, 1), (end, kind, -1)]
    running, beside, before = Counter[str](), 0.0, span[0]
    for moment, kind, change in sorted(edges):
        if running["count_batch"] and running["integrate"]:
            beside += moment - before
        running[kind] += change
        before = moment
    return beside / (span[1] - span[0])


def _intervals(tasks: Iterable[dict[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Yield when counting computed, and when integration and compaction computed or fetched."""
    for task in tasks:
        prefix = str(task["key"]).rsplit("-", 1)[0]
        for each in task["startstops"]:
            if prefix in ("integrate", "compact") or (prefix == "count_batch" and each["action"] == "compute"):
                yield prefix, each["start"], each["stop"]
