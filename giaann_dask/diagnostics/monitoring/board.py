"""Aggregate, on the scheduler, the state of the networks that are trained and used on its cluster.

Sums the messages of processes that start and end, regions with their workers, commits, and the histories of all
figures, and reads tasks, memory and row services from the scheduler. `reporter` sends the messages; `page` and
`metrics` show the sums.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed import Scheduler

from giaann_dask.cluster.heartbeat import DEVICE_METRIC, ROWS_METRIC
from giaann_dask.cluster.stages import STAGES
from giaann_dask.diagnostics.monitoring.digest import Message
from giaann_dask.diagnostics.monitoring.histories import Histories, Sample

COMMITS_KEPT = 64
# The busiest regions are those of the last messages about regions, about so many times five seconds.
_TOUCHES_KEPT = 12
# A process that has told nothing for so long has no rounds or prompts under way.
SILENT_S = 600.0


class Commit(NamedTuple):
    """A commit of some network.

    Attributes
    ----------
    commit : str
        Its identity.
    sequences : int
        Sequences that the network holds as of it.
    seconds : float
        Time it took.
    time_s : float
        When it was written, in seconds since 1970, by the clock of the process that wrote it.
    """

    commit: str
    sequences: int
    seconds: float
    time_s: float


class RegionState(NamedTuple):
    """Last reported state of a region.

    Attributes
    ----------
    region : int
        Its number.
    connections, neurons, nbytes, runs : int
        See `giaann_dask.events.RegionMeasured`.
    touches : int
        Column touches of the training so far.
    share : float
        Of the column touches of all regions told, about in the last minute.
    worker : str
        Name of the worker that holds its largest run, or else of its owner; empty where it has none.
    """

    region: int
    connections: int
    neurons: int
    nbytes: int
    runs: int
    touches: int
    share: float = 0.0
    worker: str = ""


class Stage(NamedTuple):
    """Tasks of a stage.

    Attributes
    ----------
    name : str
        Prefix of their keys.
    waiting, running : int
        Tasks whose results are missing: those that cannot run yet or have no room, and those at a worker.
    seconds : float
        Time that workers have spent on it so far.
    """

    name: str
    waiting: int
    running: int
    seconds: float


@dataclass
class _Source:
    """State of a reporting process."""

    client: str
    heard: float
    totals: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)


class Board:
    """All figures of a cluster, as of its last messages.

    Attributes
    ----------
    totals : dict of str to float
        Counters by name, since the scheduler began.
    commits : deque of Commit
        The last ones.
    regions : list of RegionState
        Of the training that told last.
    region_count : int
        Of these regions and those that were too many to be told.
    stages : list of Stage
        At the last sample.
    histories : Histories
        Samples of all figures.
    """

    def __init__(self) -> None:
        self.totals: defaultdict[str, float] = defaultdict(int)
        self.commits: deque[Commit] = deque(maxlen=COMMITS_KEPT)
        self.regions: list[RegionState] = []
        self.region_count = 0
        self.stages: list[Stage] = []
        self.histories = Histories()
        self._sources: dict[str, _Source] = {}
        self._touches: deque[dict[int, int]] = deque(maxlen=_TOUCHES_KEPT)
        self._rows: dict[str, Mapping[str, float]] = {}
        self._source = ""

    def take(self, message: Message, now: float, holder: Callable[[str, str], str] = lambda task, owner: "") -> None:
        """Merge a message of `Digest`.

        Parameters
        ----------
        message : dict
            See `giaann_dask.diagnostics.monitoring.digest.Digest.message`.
        now : float
            Seconds since 1970.
        holder : callable, optional
            Says the name of the worker that holds the result of a task, or else of the one at an address; empty for
            none.
        """
        name = message["source"]
        source = self._sources.setdefault(name, _Source(message["client"], now))
        source.heard = now
        self._grow(source.totals, message["totals"])
        source.totals, source.gauges = dict(message["totals"]), dict(message["gauges"])
        self.commits.extend(Commit(*commit) for commit in message.get("commits", ()))
        if "regions" in message:
            self._take_regions(name, message, holder)
        if message["ended"]:
            del self._sources[name]

    def forget(self, client: str) -> None:
        """Drop the work in progress of a client that has disconnected; completed work is kept."""
        self._sources = {name: source for name, source in self._sources.items() if source.client != client}

    def take_rows(self, by_worker: Mapping[str, Mapping[str, float]]) -> None:
        """Merge the counters of the workers' row services; those of a restarted worker begin at 0."""
        for worker, counts in by_worker.items():
            self._grow(self._rows.get(worker, {}), counts)
        self._rows = {worker: dict(counts) for worker, counts in by_worker.items()}

    def gauges(self, now: float) -> dict[str, float]:
        """Return the sums of work in progress over all processes that have reported recently."""
        found: dict[str, float] = {}
        for source in self._sources.values():
            if now - source.heard < SILENT_S:
                found |= {name: found.get(name, 0) + value for name, value in source.gauges.items()}
        return found

    def sample(self, now: float, more: Mapping[str, float]) -> Sample:
        """Record all current figures, with others of the cluster, in the histories, and return them."""
        sample = Sample(now, {**self.totals, **self.gauges(now), **more})
        self.histories.add(sample)
        return sample

    def _grow(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Add the growth of counters; those that are smaller than before were restarted."""
        for name, value in after.items():
            old = before.get(name, 0)
            self.totals[name] += value - old if value >= old else value

    def _take_regions(self, source: str, message: Message, holder: Callable[[str, str], str]) -> None:
        if source != self._source:
            self._touches.clear()
            self._touches.append({})
            self._source = source
        before = self._touches[0]
        known = {state.region: state.worker for state in self.regions}
        grown = {told[0]: told[5] - before.get(told[0], 0) for told in message["regions"]}
        # Touches begin anew with every step of a training on misses.
        grown = {region: max(touches, 0) for region, touches in grown.items()}
        total = max(sum(grown.values()), 1)
        self.regions = [
            RegionState(*told[:6])._replace(
                share=grown[told[0]] / total, worker=holder(told[6], told[7]) or known.get(told[0], "")
            )
            for told in message["regions"]
        ]
        self.region_count = int(message["region_count"])
        self._touches.append({told[0]: told[5] for told in message["regions"]})


def plain_message(message: Any) -> Message | None:
    """Return an event of a topic as a message, None where it is none, as from another version of this package."""
    fits = isinstance(message, dict) and {"source", "client", "ended", "totals", "gauges"} <= message.keys()
    return message if fits else None


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
    """Return the bytes of all workers together: in processes, spilled, and on devices."""
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


def holder_of(scheduler: Scheduler, task: str, owner: str) -> str:
    """Return the name of a worker that holds the result of a task, or else of the one at an address; empty for none."""
    state: Any = scheduler.tasks.get(task)
    holders = sorted(name_of(worker) for worker in state.who_has or ()) if state is not None else []
    if holders:
        return holders[0]
    return name_of(scheduler.workers[owner]) if owner in scheduler.workers else ""


def name_of(worker: Any) -> str:
    """Return the display name of a worker: its name, as ``storage-0``, or its number or address."""
    name = str(worker.name)
    return f"worker {name}" if name.isdigit() else name.removeprefix("tcp://")
