"""Aggregate the events of a process into few and small messages for the scheduler.

`reporter` sends the messages, and `board` sums them. Counters in a message are totals since the process began to send
messages, so a lost message changes nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import astuple, fields
from typing import Any

from giaann_dask.events import (
    BlockEncoded,
    Committed,
    DataMoved,
    Event,
    MemoryMeasured,
    PromptsAdvanced,
    RegionMeasured,
    RegionsMeasured,
    RoundIntegrated,
    SequencesEvaluated,
    WorkerJudged,
)

# Of a network with more regions, the largest and the busiest are told.
REGIONS_TOLD = 96
_COMMITS_TOLD = 16
# What became of the data of regions, as ``data_...`` in totals.
MOVED = tuple(each.name for each in fields(DataMoved) if each.name != "round")
_ROUND = ("sequences", "connections", "increment_bytes", "messages", "column_touches", "shared_touches")

Message = dict[str, Any]


class Digest:
    """Aggregated events of one process.

    Parameters
    ----------
    source : str
        Whose they are; unique.
    client : str
        Identity of its Dask client, so that the scheduler knows when it is gone.

    Examples
    --------
    >>> digest = Digest("a", "client-1")
    >>> digest.add(RoundIntegrated(40, increment_bytes=1000, connections=700))
    >>> digest.message()["totals"]["connections"]
    700
    """

    def __init__(self, source: str, client: str) -> None:
        self._who = {"source": source, "client": client}
        self._totals: defaultdict[str, float] = defaultdict(int)
        self._gauges: dict[str, float] = {}
        self._commits: deque[list[Any]] = deque(maxlen=_COMMITS_TOLD)
        self._regions: list[list[Any]] | None = None
        self._region_count = 0
        self._slow: set[str] = set()

    def add(self, event: Event) -> None:
        """Count an event."""
        match event:
            case RoundIntegrated():
                self._totals["rounds"] += 1
                for name in _ROUND:
                    self._totals[name] += getattr(event, name)
                self._gauges |= {name: getattr(event, name) for name in ("rounds_in_flight", "rounds_counting")}
            case DataMoved():
                for name in MOVED:
                    self._totals[f"data_{name}"] += getattr(event, name)
            case WorkerJudged():
                (self._slow.add if event.cause else self._slow.discard)(event.worker)
                self._gauges["slow_workers"] = len(self._slow)
            case MemoryMeasured():
                self._gauges |= {"decoded_bytes": event.hot_bytes, "packed_bytes": event.packed_bytes}
            case RegionsMeasured():
                self._region_count = len(event.regions)
                self._regions = [list(astuple(region)) for region in told(event.regions)]
            case Committed():
                self._totals["commits"] += 1
                self._totals["commit_seconds"] += event.seconds
                self._commits.append([event.commit, event.sequences, event.seconds, time.time()])
            case BlockEncoded():
                self._totals["encoded_sequences"] += event.sequences
                self._totals["encoded_characters"] += event.characters
            case SequencesEvaluated():
                self._totals["evaluated_sequences"] += event.sequences
                self._totals["evaluated_steps"] += event.steps
                self._totals["evaluated_matches"] += event.matches
            case PromptsAdvanced():
                self._totals["generated_tokens"] += event.tokens
                self._totals["prompts"] += event.left
                under_way = self._gauges.get("prompts_in_flight", 0) + event.entered - event.left
                self._gauges["prompts_in_flight"] = under_way

    def message(self, *, ended: bool = False) -> Message:
        """Return the aggregate so far as values that msgpack can write, with new commits and regions only.

        Parameters
        ----------
        ended : bool
            Whether nothing more will be told.
        """
        message: Message = {**self._who, "ended": ended, "totals": dict(self._totals), "gauges": dict(self._gauges)}
        if self._commits:
            message["commits"] = list(self._commits)
            self._commits.clear()
        if self._regions is not None:
            message["regions"], message["region_count"] = self._regions, self._region_count
            self._regions = None
        return message


def told(regions: tuple[RegionMeasured, ...]) -> list[RegionMeasured]:
    """Return the regions to report: all, or the largest and the busiest of many, in the order of their numbers."""
    if len(regions) <= REGIONS_TOLD:
        return list(regions)
    half = REGIONS_TOLD // 2
    largest = sorted(regions, key=lambda region: -region.nbytes)[:half]
    busiest = sorted(regions, key=lambda region: -region.touches)[:half]
    return sorted({*largest, *busiest}, key=lambda region: region.region)
