"""Send the events of processes to their cluster's scheduler, and collect them there.

A process aggregates its events into few and small messages. Counters in a message are totals since the process began to
send messages, so a lost message changes nothing. Messages are sent in batches, without waiting; the scheduler may have
been started by this package or otherwise.

A scheduler plugin receives the messages and samples the cluster every two seconds. It offers both as a page of Dask's
dashboard and on its ``/metrics``. `board` sums the messages.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Scheduler, SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from giaann_dask.cluster.resilience import add_scheduler_plugin
from giaann_dask.diagnostics.monitoring.board import (
    SPANS,
    Board,
    Message,
    holder_of,
    memory_of,
    plain_message,
    rows_of,
    stages_of,
)
from giaann_dask.events import (
    BlockEncoded,
    Committed,
    DataMoved,
    Event,
    MemoryMeasured,
    Observer,
    PromptsAdvanced,
    RegionMeasured,
    RegionsMeasured,
    RoundIntegrated,
    SequencesEvaluated,
    WorkerJudged,
    ignore,
    notify_all,
)

# Between two messages of a process at least.
PERIOD_S = 1.0
# The most that watching may delay the start and the end of work on a cluster whose scheduler does not answer.
_PATIENCE_S = 3.0
NAME = "giaann-watching"
TOPIC = "giaann"
PAGE = "giaann"
# Of a network with more regions, the largest and the busiest are told.
REGIONS_TOLD = 96
_COMMITS_TOLD = 16
# What became of the data of regions, as ``data_...`` in totals.
MOVED = tuple(each.name for each in fields(DataMoved) if each.name != "round")
_ROUND = ("sequences", "connections", "increment_bytes", "messages", "column_touches", "shared_touches")

_watched: WeakKeyDictionary[Client, bool] = WeakKeyDictionary()
_reporters: WeakKeyDictionary[Client, Reporter] = WeakKeyDictionary()


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


class MonitoringPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Scheduler plugin that keeps the board of its cluster.

    Attributes
    ----------
    board : Board
        All figures.
    """

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.board = Board()
        self._scheduler: Scheduler | None = None
        self._timer: PeriodicCallback | None = None
        self._withdrawals: list[Callable[[], None]] = []

    async def start(self, scheduler: Scheduler) -> None:
        """Start collecting; called by Dask."""
        self._scheduler = scheduler
        self._timer = PeriodicCallback(self.sample, 1000 * SPANS[0].period_s)
        self._timer.start()
        self.sample()
        for offer in (_offer_page, _offer_metrics):
            try:
                self._withdrawals += offer(self.board, scheduler)
            except Exception:
                # Nobody's training shall depend on whether it can be watched.
                logging.getLogger(__name__).warning("this cluster cannot be monitored completely", exc_info=True)

    async def close(self) -> None:
        """Stop collecting; called by Dask."""
        if self._timer is not None:
            self._timer.stop()
        while self._withdrawals:
            self._withdrawals.pop()()

    def log_event(self, topic: str, msg: Any) -> None:
        """Merge a process's message; called by Dask."""
        message = plain_message(msg) if topic == TOPIC else None
        if message is not None:
            self.board.take(message, time.time(), self._holder)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Drop the work in progress of a client that has disconnected; called by Dask."""
        self.board.forget(client)

    def sample(self) -> None:
        """Record the current figures."""
        assert self._scheduler is not None
        self.board.take_rows(rows_of(self._scheduler))
        self.board.stages = stages_of(self._scheduler)
        self.board.sample(time.time(), memory_of(self._scheduler))

    def _holder(self, task: str, owner: str) -> str:
        return "" if self._scheduler is None else holder_of(self._scheduler, task, owner)


def _offer_page(board: Board, scheduler: Scheduler) -> list[Callable[[], None]]:
    """Add a page to a scheduler's dashboard, if it has one; return a function that removes it."""
    # Where the scheduler has not loaded bokeh it shows no dashboard, and bokeh takes a second to load.
    if not any(type(each).__module__.startswith("distributed.dashboard") for each in _applications(scheduler)):
        return []
    from giaann_dask.diagnostics.monitoring.page import add_page

    return [add_page(board, scheduler, PAGE)]


def _applications(scheduler: Scheduler) -> list[Any]:
    return list(getattr(scheduler.http_application, "applications", ()))


def _offer_metrics(board: Board, scheduler: Scheduler) -> list[Callable[[], None]]:
    """Add metrics to a scheduler's process, if it has any; return a function that removes them."""
    if importlib.util.find_spec("prometheus_client") is None:
        return []
    from giaann_dask.diagnostics.monitoring.metrics import offer, withdraw

    offer(board)
    return [lambda: withdraw(board)]


def add_monitoring(client: Client) -> bool:
    """Add monitoring to the cluster of a client, once.

    Parameters
    ----------
    client : Client
        Of any cluster.

    Returns
    -------
    bool
        Whether it is watched now. It is not where the scheduler's Python has no giaann-dask, or another version of
        it, or refuses code; training does not depend on it.
    """
    if client not in _watched and client.scheduler is not None and not client.asynchronous:
        _watched[client] = _add_plugin(client)
    return _watched.get(client, False)


def _add_plugin(client: Client) -> bool:
    try:
        add_scheduler_plugin(client, MonitoringPlugin(), _PATIENCE_S)
    except Exception as error:
        logging.getLogger(__name__).info("this cluster cannot be monitored: %s", error)
        return False
    return True


@contextmanager
def report_events(client: Client, observer: Observer) -> Iterator[Observer]:
    """Send the events of an observer to a cluster's scheduler, too.

    Parameters
    ----------
    client : Client
        Of the cluster; it is watched from now on.
    observer : callable
        Told of every event.

    Yields
    ------
    callable
        The observer to use instead.
    """
    if not add_monitoring(client):
        yield observer
        return
    reporter = Reporter(client)
    try:
        yield notify_all(reporter, observer)
    finally:
        reporter.close()


def reporter_of(client: Client) -> Observer:
    """Return an observer that sends events to a client's scheduler for as long as the client is open."""
    if not add_monitoring(client):
        return ignore
    if client not in _reporters:
        _reporters[client] = Reporter(client)
    return _reporters[client]


class Reporter:
    """Observer that forwards events to the scheduler, at most once a second and without waiting.

    Parameters
    ----------
    client : Client
        Of a cluster that is watched.
    period_s : float
        Seconds between two messages at least.
    """

    def __init__(self, client: Client, period_s: float = PERIOD_S) -> None:
        self._client, self._period_s = client, period_s
        self._digest = Digest(uuid.uuid4().hex, client.id)
        self._lock = threading.Lock()
        self._due = self._closed = False

    def __call__(self, event: Event) -> None:
        """Queue an event to be sent."""
        with self._lock:
            self._digest.add(event)
            if self._due or self._closed:
                return
            self._due = True
        self._begin(self._send_later())

    def close(self) -> None:
        """Send queued events within a bounded time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        last = self._begin(self._send(ended=True))
        if last is not None:
            with suppress(Exception):
                last.result(_PATIENCE_S)

    def _begin(self, work: Any) -> Future[None] | None:
        """Run a function on the client's event loop; nothing is done when it is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._client.loop.asyncio_loop)
        except RuntimeError:
            work.close()
            return None

    async def _send_later(self) -> None:
        # What comes meanwhile goes with it.
        await asyncio.sleep(self._period_s)
        await self._send()

    async def _send(self, *, ended: bool = False) -> None:
        with self._lock:
            if self._closed and not ended:
                return
            self._due = False
            message = self._digest.message(ended=ended)
        # A scheduler that is gone is noticed by whoever needs it.
        with suppress(Exception):
            if self._client.scheduler is not None and self._client.status == "running":
                await asyncio.wait_for(self._client.scheduler.log_event(topic=TOPIC, msg=message), _PATIENCE_S)
