"""Report the figures of a training run and of its rounds, and join the reports of successive steps.

Of a round: bytes, messages, overlapping column touches and the share of the busiest region, which show how much the
links between workers carry.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster.stages import StageTime, add_times, time_rows
from giaann_dask.dask_types import register_arrays
from giaann_dask.events import MemoryMeasured, RoundIntegrated
from giaann_dask.keys import unpack_neuron
from giaann_dask.representations import Summarised, Summary, format_seconds
from giaann_dask.runs.pair_tables import PairRegionRun
from giaann_dask.runs.run import RegionRun
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.run_io import WrittenObjects

# Fields of a report that steps add to, and those of which the largest counts; the others are the last step's.
_ADDED = (
    *("sequences", "trained", "tokens", "seconds", "tasks", "messages", "increment_bytes"),
    *("column_touches", "shared_touches", "commit_requests", "commit_bytes", "lock_waits", "lock_seconds"),
)
# Least interval between two events with the contents of all regions.
_REGIONS_S = 5.0
_LARGEST = ("hot_bytes", "packed_bytes", "spilled_bytes")


@dataclass(frozen=True, repr=False)
class TrainingReport(Summarised):
    """Figures of a training run.

    Attributes
    ----------
    sequences, trained, tokens : int
        Counted sequences, those that were trained, and their merged tokens.
    skipped : dict of str to int
        Sequences that were counted and not trained, by reason.
    connections : int
        Distinct connections of the network.
    seconds : float
        Time from reading the text to the last commit, compiling included, without the start of workers.
    commit : str
        Identity of the last commit.
    stopped : bool
        Whether it was stopped before the end of the inputs.
    tasks : int
        Training tasks that were submitted.
    messages : int
        Increments of batches (or of accumulated batches) that were sent to a region which they touch.
    increment_bytes : int
        Bytes of these increments.
    column_touches, shared_touches : int
        Columns touched by increments and how many of these touches overlap within a round.
    busiest_region_share : float
        Share of the region with most column touches in all of them.
    regions : int
        Regions of the last commit.
    hot_bytes, packed_bytes : int
        Most bytes of decoded and of packed runs at the end of a round.
    spilled_bytes : int
        Most bytes that workers had written to their local disks to stay within their memory.
    index_bytes : int
        Bytes of the network's index of its sequences; 0 without one.
    commit_requests, commit_bytes : int
        Objects that commits wrote, a request each (in a folder files), and bytes of their chunks and manifests.
    lock_waits, lock_seconds : int, float
        Sequences that waited for locked columns, and how long, together; only in the mode ``published``.
    slow_workers : dict of str to str
        How each worker was judged last that was slower than its peers, by address.
    repeated : int
        Texts, or parts of long ones, that were left out because they occur again in the inputs.
    stages : dict of str to StageTime
        How long workers have spent on the tasks of each stage, and whether on the processor or on devices.
    """

    sequences: int
    trained: int
    skipped: dict[str, int]
    tokens: int
    connections: int
    seconds: float
    commit: str
    stopped: bool = field(default=False)
    tasks: int = field(default=0)
    messages: int = field(default=0)
    increment_bytes: int = field(default=0)
    column_touches: int = field(default=0)
    shared_touches: int = field(default=0)
    busiest_region_share: float = field(default=0.0)
    regions: int = field(default=0)
    hot_bytes: int = field(default=0)
    packed_bytes: int = field(default=0)
    spilled_bytes: int = field(default=0)
    index_bytes: int = field(default=0)
    commit_requests: int = field(default=0)
    commit_bytes: int = field(default=0)
    lock_waits: int = field(default=0)
    lock_seconds: float = field(default=0.0)
    slow_workers: dict[str, str] = field(default_factory=dict, compare=False)
    repeated: int = field(default=0)
    stages: dict[str, StageTime] = field(default_factory=dict, compare=False)

    @property
    def index_bytes_per_connection(self) -> float:
        """Bytes of the index for each connection."""
        return self.index_bytes / max(self.connections, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        per_connection = {"index_bytes_per_connection": self.index_bytes_per_connection} if self.index_bytes else {}
        stages = {name: time._asdict() for name, time in self.stages.items()}
        return {**vars(self), **per_connection, "stages": stages}

    def summary(self) -> Summary:
        """Return the lines that represent the training."""
        rows = (
            ("sequences", f"{self.trained:,} trained of {self.sequences:,}"),
            *((f"left out, {reason}", f"{count:,}") for reason, count in self.skipped.items() if count),
            *((("left out, repeated texts", f"{self.repeated:,}"),) if self.repeated else ()),
            ("tokens", f"{self.tokens:,}"),
            ("connections", f"{self.connections:,}"),
            *((("index", f"{self.index_bytes_per_connection:.3g} B per connection"),) if self.index_bytes else ()),
            ("seconds", format_seconds(self.seconds)),
            *((("waits for columns", f"{self.lock_waits}, {self.lock_seconds:.2f} s"),) if self.lock_waits else ()),
            *((f"slow worker {worker}", verdict) for worker, verdict in self.slow_workers.items()),
            *time_rows(self.stages, ["device"]),
            ("commit", self.commit),
        )
        return Summary("Training, stopped before the end" if self.stopped else "Training", rows)


def join_reports(reports: Sequence[TrainingReport]) -> TrainingReport:
    """Return the report of successive steps together."""
    added: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _ADDED}
    largest = {name: max(getattr(report, name) for report in reports) for name in _LARGEST}
    reasons = {reason for report in reports for reason in report.skipped}
    skipped = {reason: sum(report.skipped.get(reason, 0) for report in reports) for reason in sorted(reasons)}
    slow: dict[str, str] = {}
    for report in reports:
        slow |= report.slow_workers
    stages = add_times(*(report.stages for report in reports))
    return replace(reports[-1], skipped=skipped, slow_workers=slow, stages=stages, **added, **largest)


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class IncrementTouches:
    """Column touches and bytes of one increment.

    Attributes
    ----------
    region : ndarray
        Regions that it touches, ascending; int64.
    columns : ndarray
        Distinct columns that it touches in each of these regions; int64, the same shape.
    column : ndarray
        These columns, region by region; int32.
    nbytes : int
        Bytes of its connections and neurons.
    connections : int
        Its connections.
    """

    region: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    column: npt.NDArray[np.int32]
    nbytes: int
    connections: int = 0


@dataclass(frozen=True)
class RoundReport:
    """Figures of the increments of one or more rounds.

    Attributes
    ----------
    increment_bytes : int
        Bytes of their connections and neurons.
    messages : int
        Pairs of an increment and a region that it touches.
    shared_touches : int
        Column touches that overlap with another increment of the same round.
    region_touches : mapping of int to int
        Column touches by region: the distinct columns of each increment, summed over the increments.
    connections : int
        Connections of the increments, each counted once for each of them.
    touched : tuple of tuple of int
        Regions that each increment touches, of one round; empty of several.
    """

    increment_bytes: int = 0
    messages: int = 0
    shared_touches: int = 0
    region_touches: Mapping[int, int] = field(default_factory=dict)
    connections: int = 0
    touched: tuple[tuple[int, ...], ...] = ()

    @property
    def column_touches(self) -> int:
        """Column touches of all regions."""
        return sum(self.region_touches.values())

    @property
    def busiest_region_share(self) -> float:
        """Share of the region with most touches in all touches; 0 without any."""
        return max(self.region_touches.values(), default=0) / max(self.column_touches, 1)

    def plus(self, other: RoundReport) -> RoundReport:
        """Return the figures of the rounds of both.

        Examples
        --------
        >>> both = RoundReport(8, 1, 0, {0: 3}).plus(RoundReport(8, 2, 1, {0: 3, 4: 2}))
        >>> both.messages, both.column_touches, both.busiest_region_share
        (3, 8, 0.75)
        """
        return RoundReport(
            self.increment_bytes + other.increment_bytes,
            self.messages + other.messages,
            self.shared_touches + other.shared_touches,
            Counter(self.region_touches) + Counter(other.region_touches),
            self.connections + other.connections,
        )

    def event(
        self, number: int, sequences: int, rounds_in_flight: int = 0, rounds_counting: int = 0
    ) -> RoundIntegrated:
        """Return the event for observers of a round that has been integrated."""
        return RoundIntegrated(
            sequences,
            number,
            self.increment_bytes,
            self.messages,
            self.column_touches,
            self.shared_touches,
            self.busiest_region_share,
            self.connections,
            rounds_in_flight,
            rounds_counting,
        )


@dataclass
class TrainingFigures:
    """Figures that a training collects round by round and commit by commit.

    Attributes
    ----------
    moved : RoundReport
        Of all rounds so far.
    largest_round : int
        Most bytes of the increments of a round.
    peak : MemoryMeasured
        The largest of each figure.
    written : WrittenObjects
        By all commits so far.
    """

    moved: RoundReport = field(default_factory=RoundReport)
    largest_round: int = 0
    peak: MemoryMeasured = field(default_factory=MemoryMeasured)
    written: WrittenObjects = field(default_factory=WrittenObjects)
    _regions_shown: float = float("-inf")

    def add_round(self, report: RoundReport) -> None:
        """Add an integrated round."""
        self.moved = self.moved.plus(report)
        self.largest_round = max(self.largest_round, report.increment_bytes)

    def add_memory(self, **figures: int) -> MemoryMeasured:
        """Return the event of the workers' present memory, and record the maximum."""
        now = MemoryMeasured(**figures)
        self.peak = MemoryMeasured(*(max(pair) for pair in zip(astuple(now), astuple(self.peak), strict=True)))
        return now

    def shows_regions(self) -> bool:
        """Return whether the contents of all regions are to be shown again."""
        now = time.perf_counter()
        due = now - self._regions_shown > _REGIONS_S
        self._regions_shown = now if due else self._regions_shown
        return due

    def report(self, manifests: tuple[Manifest, Manifest], **others: Any) -> TrainingReport:
        """Return the report of a training from one manifest to another, given what these figures do not say."""
        before, now = manifests
        skipped = before.skipped()
        return TrainingReport(
            sequences=now.sequences - before.sequences,
            trained=now.trained - before.trained,
            skipped={reason: count - skipped.get(reason, 0) for reason, count in now.skipped().items()},
            tokens=now.tokens - before.tokens,
            connections=now.connections,
            messages=self.moved.messages,
            increment_bytes=self.moved.increment_bytes,
            column_touches=self.moved.column_touches,
            shared_touches=self.moved.shared_touches,
            busiest_region_share=self.moved.busiest_region_share,
            regions=now.regions,
            hot_bytes=self.peak.hot_bytes,
            packed_bytes=self.peak.packed_bytes,
            spilled_bytes=self.peak.spilled_bytes,
            index_bytes=sum(run.index_bytes for run in now.runs),
            commit_requests=self.written.requests,
            commit_bytes=self.written.nbytes,
            **others,
        )


def measure_touches(increments: Mapping[int, RegionRun | PairRegionRun]) -> IncrementTouches:
    """Measure the column touches and bytes of an increment.

    Parameters
    ----------
    increments : mapping of int to RegionRun or PairRegionRun
        By region, touched regions only. Every neuron that an increment touches has a strength of its
        own, so the sources of its neurons name all columns that it touches.

    Returns
    -------
    IncrementTouches
    """
    regions = sorted(increments)
    columns = [_distinct_columns(increments[region].neurons.source) for region in regions]
    return IncrementTouches(
        np.array(regions, np.int64),
        np.array([len(column) for column in columns], np.int64),
        np.concatenate([np.zeros(0, np.int32), *columns]),
        sum(run.nbytes for run in increments.values()),
        sum(len(run.connections) for run in increments.values()),
    )


def report_round(*parts: IncrementTouches) -> RoundReport:
    """Join the figures of the increments of a round."""
    return RoundReport(
        sum(part.nbytes for part in parts),
        sum(len(part.region) for part in parts),
        _shared_touches(parts),
        _region_touches(parts),
        sum(part.connections for part in parts),
        tuple(tuple(part.region.tolist()) for part in parts),
    )


def _distinct_columns(source: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return the distinct columns of ascending neuron keys, ascending."""
    column, _ = unpack_neuron(source)
    first = np.ones(len(column), np.bool_)
    np.not_equal(column[1:], column[:-1], out=first[1:])
    return column[first].astype(np.int32)


def _shared_touches(parts: Sequence[IncrementTouches]) -> int:
    """Return how many touches of a region's column are not the first one of the round."""
    keys = np.concatenate(
        [np.zeros(0, np.int64), *((np.repeat(part.region, part.columns) << 32) | part.column for part in parts)]
    )
    return len(keys) - len(np.unique(keys))


def _region_touches(parts: Sequence[IncrementTouches]) -> dict[int, int]:
    """Return the touches of each region."""
    touches: Counter[int] = Counter()
    for part in parts:
        touches.update(dict(zip(part.region.tolist(), part.columns.tolist(), strict=True)))
    return dict(sorted(touches.items()))
