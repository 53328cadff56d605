"""Continue prompts of a server on a worker of its cluster, as a Dask actor around an engine.

The server starts prompts and takes their events by requests that wait for the next ones. Does not cover: the choice of
workers and what happens when one is lost (`giaann_dask.serving.remote_engine`).
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from distributed import get_worker

from giaann_dask.cluster import trim_memory
from giaann_dask.models.base import Predictor, TokenEvent
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.serving.engine import CompletionOptions, Engine, EngineRequest, PromptEvent

# Events that wait to be taken; the engine pauses while there are more.
_MOST_EVENTS = 4096
# A server that takes nothing for so long has ended.
_ABANDONED_S = 60.0


@dataclass(frozen=True)
class EngineProgress:
    """Events and steps of an engine on a worker since the last request.

    Attributes
    ----------
    worker : str
        Name of the worker, which a process that replaces it has, too.
    events : tuple
        Number of a prompt, and its next event, an error that ends it, or None after its last event.
    steps : int
        Steps of prompts since the engine was opened.
    failure : str or None
        Why the engine continues no prompts any more.
    """

    worker: str
    events: tuple[tuple[int, PromptEvent | Exception | None], ...]
    steps: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the server about one prompt.

    Attributes
    ----------
    number : int
        Number of the prompt.
    prompt : str or None
        The prompt to start; None to cancel it.
    options : CompletionOptions
        How much is requested.
    """

    number: int
    prompt: str | None = None
    options: CompletionOptions = field(default_factory=CompletionOptions)


class _Outbox:
    """Bounded queue of events, from the threads of an engine to the event loop of a worker."""

    def __init__(self) -> None:
        self._events: list[tuple[int, PromptEvent | Exception | None]] = []
        self._changed = threading.Condition()
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.closed = False

    def put(self, number: int, event: PromptEvent | Exception | None) -> None:
        """Add an event; wait while there are too many tokens, and close if nobody takes them."""
        with self._changed:
            # The event loop, which must not wait, reports no tokens.
            if isinstance(event, TokenEvent):
                has_room = self._changed.wait_for(lambda: self.closed or len(self._events) < _MOST_EVENTS, _ABANDONED_S)
                self.closed = self.closed or not has_room
            if self.closed:
                return
            self._events.append((number, event))
            if self._waiting is not None:
                loop, arrived = self._waiting
                loop.call_soon_threadsafe(arrived.set)
                self._waiting = None

    async def take(self, wait_s: float) -> tuple[tuple[int, PromptEvent | Exception | None], ...]:
        """Return all events; if there are none, wait for some time."""
        arrived = asyncio.Event()
        with self._changed:
            if not self._events:
                self._waiting = (asyncio.get_running_loop(), arrived)
        if self._waiting is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(arrived.wait(), wait_s)
        with self._changed:
            self._waiting = None
            events, self._events = tuple(self._events), []
            self._changed.notify_all()
        return events

    def close(self) -> None:
        """Accept no more events, and let no thread wait."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class PromptWorker:
    """Actor that continues prompts with an engine over a commit that it opens on its worker.

    Parameters
    ----------
    options : GenerationOptions
        Of the engine.
    batch : BatchOptions
        Of the engine.
    task : callable
        `WorkerOpening.task`.
    *arguments
        `WorkerOpening.arguments`.
    """

    def __init__(
        self, options: GenerationOptions, batch: BatchOptions, task: Callable[..., Predictor], *arguments: object
    ) -> None:
        self._name = str(get_worker().name)
        self._engine = Engine(task(*arguments), options, batch)
        self._outbox = _Outbox()
        self._generations: dict[int, EngineRequest] = {}
        # Dask releases the actor when its future is, as with a client that is gone.
        weakref.finalize(self, _end, self._engine, self._outbox).atexit = False

    async def order(self, orders: Sequence[Order]) -> None:
        """Start prompts, whose events are reported with their numbers, or cancel them between two steps."""
        for order in orders:
            if order.prompt is not None:
                report = partial(self._outbox.put, order.number)
                self._generations[order.number] = self._engine.start(order.prompt, order.options, report)
            elif order.number in self._generations:
                self._generations[order.number].cancel()

    async def take(self, wait_s: float) -> EngineProgress:
        """Return what is new; if nothing is, wait for some time."""
        events = await self._outbox.take(wait_s)
        for number, event in events:
            if event is None:
                self._generations.pop(number, None)
        return EngineProgress(self._name, events, self._engine.steps, self._engine.failure())


def _end(engine: Engine, outbox: _Outbox) -> None:
    """Close an engine, in a thread of its own: this may run on the event loop of the worker."""
    outbox.close()
    threading.Thread(target=_close, args=[engine], name="close-engine", daemon=True).start()


def _close(engine: Engine) -> None:
    engine.close()
    # The engine and its threads refer to each other, and memory that Python has freed need not be the system's yet.
    del engine
    gc.collect()
    trim_memory()
