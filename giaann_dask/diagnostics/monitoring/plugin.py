"""Collect events on the scheduler, and add the page and the metrics there.

A scheduler plugin receives the messages of processes and samples the cluster every two seconds. It offers both as a
page of Dask's dashboard and on its ``/metrics``. `reporter` adds the plugin.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from giaann_dask.diagnostics.monitoring.board import Board, holder_of, memory_of, plain_message, rows_of, stages_of
from giaann_dask.diagnostics.monitoring.histories import SPANS

NAME = "giaann-watching"
TOPIC = "giaann"
PAGE = "giaann"


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
                logging.getLogger(__name__).warning("this cluster cannot be watched as a whole", exc_info=True)

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
