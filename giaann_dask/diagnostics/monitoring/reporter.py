"""Add monitoring to a client's cluster, and send the client's events to its scheduler.

The scheduler may have been started by this package or otherwise. Events are sent in batches, without waiting.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client

from giaann_dask.cluster.resilience import add_scheduler_plugin
from giaann_dask.diagnostics.monitoring.digest import Digest
from giaann_dask.diagnostics.monitoring.plugin import TOPIC, MonitoringPlugin
from giaann_dask.events import Event, Observer, ignore, notify_all

# Between two messages of a process at least.
PERIOD_S = 1.0
# The most that watching may delay the start and the end of work on a cluster whose scheduler does not answer.
_PATIENCE_S = 3.0

_watched: WeakKeyDictionary[Client, bool] = WeakKeyDictionary()
_reporters: WeakKeyDictionary[Client, Reporter] = WeakKeyDictionary()


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
        logging.getLogger(__name__).info("this cluster cannot be watched: %s", error)
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
