"""Aggregate, on the scheduler, the state of the networks that are trained and used on its cluster.

Sums the messages of processes that start and end, regions with their workers, commits, and the histories of all
figures, and reads tasks, memory and row services from the scheduler. Histories are bounded: the last minutes at a fine
resolution, days and weeks at coarser ones. `reporter` sends the messages; `page` and `metrics` show the sums.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from distributed import Scheduler

from giaann_dask.cluster.locality import DEVICE_METRIC, ROWS_METRIC
from giaann_dask.cluster.stages import STAGES

COMMITS_KEPT = 64
# The busiest regions are those of the last messages about regions, about so many times five seconds.
_TOUCHES_KEPT = 12
# A process that has told nothing for so long has no rounds or prompts under way.
SILENT_S = 600.0
# Rates are those of the last seconds, so that single rounds do not make them jump.
SMOOTHED_S = 10.0
# Counters that change seldom, as those of long rounds, are looked at over some changes.
_CHANGES = 2.0
Floats = npt.NDArray[np.float64]
# Of a `giaann_dask.diagnostics.monitoring.reporter.Digest`.
Message = dict[str, Any]


class Span(NamedTuple):
    """Time span and resolution of a history.

    Attributes
    ----------
    name : str
        As people call it.
    period_s : float
        Seconds between samples.
    samples : int
        How many are kept.
    """

    name: str
    period_s: float
    samples: int


SPANS = (Span("20 minutes", 2.0, 600), Span("2 days", 120.0, 1440), Span("8 weeks", 3600.0, 1344))


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures at one moment.

    Attributes
    ----------
    time_s : float
        Seconds since 1970.
    values : mapping of str to float
        Counters, which only grow, and gauges, by name; those that are left out are 0.
    """

    time_s: float
    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        """Return a figure."""
        return self.values.get(name, 0.0)


@dataclass
class Histories:
    """The same figures over several spans, each of bounded length.

    Attributes
    ----------
    spans : tuple of Span
        From the shortest to the longest.

    Examples
    --------
    >>> histories = Histories()
    >>> for second in range(5):
    ...     histories.add(Sample(float(second), {"sequences": 10.0 * second}))
    >>> [sample.time_s for sample in histories.of("20 minutes")]
    [0.0, 2.0, 4.0]
    """

    spans: tuple[Span, ...] = SPANS
    _samples: dict[str, deque[Sample]] = field(init=False)

    def __post_init__(self) -> None:
        self._samples = {span.name: deque(maxlen=span.samples) for span in self.spans}

    def add(self, sample: Sample) -> None:
        """Append a sample at every resolution whose interval has passed."""
        for span in self.spans:
            kept = self._samples[span.name]
            # Timers are late or early by a little.
            if not kept or sample.time_s - kept[-1].time_s >= 0.9 * span.period_s:
                kept.append(sample)

    def of(self, name: str) -> list[Sample]:
        """Return the samples of a span, the oldest first."""
        return list(self._samples[name])


def rates(
    samples: Sequence[Sample], name: str, per: str | None = None, *, smoothed_s: float = SMOOTHED_S
) -> list[float]:
    """Return how fast a counter grew up to each sample: per second, or per unit of another counter.

    Parameters
    ----------
    samples : sequence of Sample
        The oldest first.
    name : str
        Of the counter.
    per : str, optional
        Of the other counter, such as rounds.
    smoothed_s : float
        Each rate is that of so many seconds before the sample, and of at least two changes of a counter
        that changes less often.

    Returns
    -------
    list of float
        One for each sample; 0 for the first, and where the other counter did not grow.

    Examples
    --------
    >>> samples = [Sample(0.0, {"n": 0, "m": 0}), Sample(2.0, {"n": 6, "m": 1}), Sample(4.0, {"n": 8, "m": 4})]
    >>> rates(samples, "n", smoothed_s=2.0), rates(samples, "n", per="m", smoothed_s=2.0)
    ([0.0, 3.0, 2.0], [0.0, 6.0, 2.0])
    """
    times = np.array([sample.time_s for sample in samples])
    values = np.array([sample[name] for sample in samples])
    under = times if per is None else np.array([sample[per] for sample in samples])
    window = max(smoothed_s, _CHANGES * _seconds_of_a_change(times, values))
    # The first sample of a window that lasts longer than the history is its oldest one.
    before = np.maximum(np.searchsorted(times, times - window, side="right") - 1, 0)
    grown, over = np.maximum(values - values[before], 0.0), under - under[before]
    found: list[float] = np.divide(grown, over, out=np.zeros(len(times)), where=over > 0).tolist()
    return found


def _seconds_of_a_change(times: Floats, values: Floats) -> float:
    """Return the median seconds between changes of a counter; 0 without changes."""
    changed = times[1:][np.diff(values) != 0]
    return float(np.median(np.diff(changed))) if len(changed) > 1 else 0.0


def quantile(counts: Sequence[float], bounds: Sequence[float], share: float) -> float:
    """Estimate a quantile of measurements from a histogram.

    Parameters
    ----------
    counts : sequence of float
        Measurements in each bucket, the last one without an upper bound.
    bounds : sequence of float
        Upper bounds of all buckets but the last, ascending.
    share : float
        From 0 to 1.

    Returns
    -------
    float
        Linear within a bucket; the largest bound for what is beyond it; 0 without measurements.

    Examples
    --------
    >>> quantile([0, 10, 0], [1.0, 3.0], 0.5)
    2.0
    """
    total, below, lower = share * sum(counts), 0.0, 0.0
    if not sum(counts) > 0:
        return 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count and below + count >= total:
            return lower + (upper - lower) * (total - below) / count
        below, lower = below + count, upper
    return float(bounds[-1])


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
            See `giaann_dask.diagnostics.monitoring.reporter.Digest.message`.
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
