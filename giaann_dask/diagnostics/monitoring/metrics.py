"""Export the board's figures to Prometheus, on the ``/metrics`` of Dask's scheduler.

The server has metrics of its own (`giaann_dask.serving.metrics`). Dask exports the metrics of the whole process, so
if several schedulers are open in one process, as in tests, those of the last one are exported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from giaann_dask.cluster.locality import ROW_BOUNDS_S, bucket_names
from giaann_dask.diagnostics.monitoring.board import Board

Metric = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

# Name on the board, name of the metric, and what it counts.
COUNTERS = (
    ("sequences", "giaann_trained_sequences", "Sequences whose increments are part of their regions"),
    ("connections", "giaann_strengthened_connections", "Connections strengthened, once for each increment"),
    ("rounds", "giaann_rounds", "Rounds of training that are part of their regions"),
    ("increment_bytes", "giaann_increment_bytes", "Bytes of increments that went to regions"),
    ("messages", "giaann_messages", "Pairs of an increment and a region that it touches"),
    ("data_stayed_bytes", "giaann_region_bytes_stayed", "Bytes that tasks of regions used where they were"),
    ("data_increment_bytes", "giaann_region_bytes_sent", "Bytes of increments sent to the owners of their regions"),
    ("data_stolen_bytes", "giaann_region_bytes_stolen", "Bytes of runs sent to workers that had less to do"),
    ("data_reassigned_bytes", "giaann_region_bytes_reassigned", "Bytes of runs moved to or read by new owners"),
    ("data_read_bytes", "giaann_region_bytes_read", "Bytes of runs read from the store otherwise"),
    ("data_spilled_bytes", "giaann_region_bytes_spilled", "Bytes of results that workers wrote to their disks"),
    ("column_touches", "giaann_column_touches", "Columns touched by increments"),
    ("shared_touches", "giaann_shared_touches", "Column touches that overlap with another increment of their round"),
    ("commits", "giaann_commits", "Commits written"),
    ("commit_seconds", "giaann_commit_seconds", "Seconds that commits took"),
    ("encoded_sequences", "giaann_encoded_sequences", "Sequences divided into columns"),
    ("encoded_characters", "giaann_encoded_characters", "Characters of the text that they came from"),
    ("evaluated_sequences", "giaann_evaluated_sequences", "Sequences whose tokens were predicted"),
    ("evaluated_steps", "giaann_evaluated_steps", "Tokens that were predicted"),
    ("evaluated_matches", "giaann_evaluated_matches", "Tokens that were predicted rightly"),
    ("prompts", "giaann_prompts", "Prompts that have been continued to their end"),
    ("generated_tokens", "giaann_generated_tokens", "Tokens generated after prompts"),
    ("row_requests", "giaann_row_requests", "Requests for rows that workers have answered"),
    ("row_rows", "giaann_rows", "Rows in these answers"),
    ("row_bytes", "giaann_row_bytes", "Bytes of these answers"),
    ("asked_requests", "giaann_asked_row_requests", "Requests for rows that tasks have made of workers"),
    ("asked_seconds", "giaann_asked_row_seconds", "Seconds from these requests to their answers"),
)
GAUGES = (
    ("rounds_in_flight", "giaann_rounds_in_flight", "Rounds submitted and not yet part of their regions"),
    ("rounds_counting", "giaann_rounds_counting", "Of these, rounds whose increments are not all computed"),
    ("slow_workers", "giaann_slow_workers", "Workers that were slower than their peers and have not recovered"),
    ("prompts_in_flight", "giaann_prompts_in_flight", "Prompts that are being continued together"),
)
TIERS = ("decoded", "packed", "spilled", "device", "process")


class MonitoringCollector(Collector):
    """Prometheus collector of a board's figures.

    Attributes
    ----------
    boards : list of Board
        Of the schedulers of this process that are open.
    """

    def __init__(self) -> None:
        self.boards: list[Board] = []

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the last scheduler that is open."""
        if self.boards:
            yield from metrics_of(self.boards[-1])


_COLLECTOR = MonitoringCollector()


def offer(board: Board) -> None:
    """Register the figures of a board in this process's metrics."""
    if not _COLLECTOR.boards:
        prometheus_client.REGISTRY.register(_COLLECTOR)
    _COLLECTOR.boards.append(board)


def withdraw(board: Board) -> None:
    """Unregister the figures of a board; nothing happens when they are not registered."""
    if board in _COLLECTOR.boards:
        _COLLECTOR.boards.remove(board)
        if not _COLLECTOR.boards:
            prometheus_client.REGISTRY.unregister(_COLLECTOR)


def metrics_of(board: Board) -> Iterator[Metric]:
    """Yield the metrics of a board's present figures."""
    samples = board.histories.of(board.histories.spans[0].name)
    last, now = samples[-1] if samples else None, board.gauges(time.time())
    for name, metric, meaning in COUNTERS:
        yield CounterMetricFamily(metric, meaning, value=board.totals.get(name, 0))
    for name, metric, meaning in GAUGES:
        yield GaugeMetricFamily(metric, meaning, value=now.get(name, 0))
    yield GaugeMetricFamily("giaann_regions", "Regions of the network that is trained", value=board.region_count)
    written = board.commits[-1].time_s if board.commits else 0
    yield GaugeMetricFamily("giaann_last_commit_timestamp_seconds", "When the last commit was written", value=written)
    yield _row_seconds(board)
    memory = GaugeMetricFamily("giaann_memory_bytes", "Memory of the cluster by tier", labels=["tier"])
    for tier in TIERS:
        value = now.get(f"{tier}_bytes") if last is None else last[f"{tier}_bytes"]
        memory.add_metric([tier], value or 0)
    yield memory
    yield from _stages(board)
    yield from _regions(board)


def _row_seconds(board: Board) -> HistogramMetricFamily:
    totals = board.totals
    counted = accumulate(totals.get(name, 0) for name in bucket_names())
    bounds = (*(f"{bound:g}" for bound in ROW_BOUNDS_S), "+Inf")
    return HistogramMetricFamily(
        "giaann_row_answer_seconds",
        "Time that a worker took to answer a request for rows",
        buckets=list(zip(bounds, counted, strict=True)),
        sum_value=totals.get("row_seconds", 0),
    )


def _stages(board: Board) -> Iterator[Metric]:
    tasks = GaugeMetricFamily("giaann_tasks", "Tasks of a stage whose results are missing", labels=["stage", "state"])
    seconds = CounterMetricFamily("giaann_stage_seconds", "Time that workers spent on a stage", labels=["stage"])
    for stage in board.stages:
        tasks.add_metric([stage.name, "waiting"], stage.waiting)
        tasks.add_metric([stage.name, "running"], stage.running)
        seconds.add_metric([stage.name], stage.seconds)
    yield tasks
    yield seconds


def _regions(board: Board) -> Iterator[Metric]:
    labels = ["region", "worker"]
    nbytes = GaugeMetricFamily("giaann_region_bytes", "Bytes of a region's runs as they are held", labels=labels)
    connections = GaugeMetricFamily("giaann_region_connections", "Connections of a region's runs", labels=labels)
    share = GaugeMetricFamily(
        "giaann_region_touch_share", "Share of a region in the column touches of about the last minute", labels=labels
    )
    for region in board.regions:
        where = [str(region.region), region.worker]
        nbytes.add_metric(where, region.nbytes)
        connections.add_metric(where, region.connections)
        share.add_metric(where, region.share)
    yield from (nbytes, connections, share)
