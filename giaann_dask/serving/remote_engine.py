"""Forward the prompts of a server to engines on the compute workers of its cluster.

Each worker has an engine of its own over the same commit, in a Dask actor: the server starts prompts and takes their
events by requests that wait for the next ones. A prompt goes to the worker with the fewest. When a worker is lost, its
prompts begin again on another one: words are predicted, or drawn with the same seed, in the same way, so the tokens
that were passed on already come again and are left out. Does not cover: reopening after the scheduler was lost
(`giaann_dask.serving.models`).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from distributed import get_worker

from giaann_dask.cluster import result, roles_of, timeout_s, trim_memory
from giaann_dask.errors import ClusterError, OptionError
from giaann_dask.events import Observer, PromptsAdvanced, ignore
from giaann_dask.models.base import Predictor, PromptWords, TokenEvent, WorkerOpening
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.rows.regions import LOST
from giaann_dask.serving.engine import (
    CompletionOptions,
    Engine,
    EngineRequest,
    EngineStatistics,
    PromptEvent,
    Report,
    closed_error,
    taken,
)

if TYPE_CHECKING:
    from distributed import Client, Future

# How long a worker waits for the next event before it says that there is none.
_POLL_S = 1.0
# Between two looks at the workers of the cluster, and before a worker that failed is tried again.
_LOOK_S, _RETRY_S = 1.0, 10.0
_HEALTH_S = 3.0
_LOG = logging.getLogger(__name__)
# Events that wait to be taken; the engine pauses while there are more.
_MOST_EVENTS = 4096
# From the end of an engine until its memory is given back.
_COLLECT_S = 10.0
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
    _COLLECTION.request()


class _Collection:
    """Collection of garbage after engines were closed, which takes as long as a small change of a network."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s, self._lock, self._due = pause_s, threading.Lock(), False

    def request(self) -> None:
        """Collect garbage some time from now; further requests until then are the same one."""
        with self._lock:
            if self._due:
                return
            self._due = True
        timer = threading.Timer(self._pause_s, self._collect)
        timer.daemon = True
        timer.start()

    def _collect(self) -> None:
        with self._lock:
            self._due = False
        gc.collect()
        trim_memory()


_COLLECTION = _Collection(_COLLECT_S)


class RemoteSession(EngineRequest):
    """A prompt that a worker continues, which can begin again on another one."""

    def __init__(self, number: int, prompt: str, options: CompletionOptions, report: Report) -> None:
        super().__init__(prompt, options, report)
        self.number = number
        self.worker: _Worker | None = None
        self.waiting_since = time.monotonic()
        self.entered = False
        # Words that were passed on, and how many of them have come again since the prompt began again.
        self._passed: list[str | None] = []
        self._repeated = 0

    def cancel(self) -> None:
        """End the generation at the next boundary of two steps; may be called from any thread."""
        super().cancel()
        worker = self.worker
        if worker is not None:
            worker.cancel(self.number)

    def begin_again(self) -> None:
        """Expect all events from the first one on."""
        self.worker, self._repeated, self.waiting_since = None, 0, time.monotonic()

    def receive(self, event: PromptEvent) -> bool:
        """Pass an event on, unless it was passed on before; return whether it was new.

        Raises
        ------
        ClusterError
            If an event that comes again differs.
        """
        word = event.token.word if isinstance(event, TokenEvent) and event.token is not None else None
        if self._repeated < len(self._passed):
            if self._passed[self._repeated] != word:
                raise ClusterError(
                    "another worker continues the prompt differently",
                    "workers with the same versions",
                    "retry; compare the workers with giaann-dask doctor",
                )
            self._repeated += 1
            return False
        self._passed.append(word)
        self._repeated += 1
        self.report(event)
        return True


class _Worker:
    """An engine on one worker of the cluster, and the prompts that it continues."""

    def __init__(self, address: str, future: Future) -> None:
        self.address, self.future = address, future
        self.actor: Any = None
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self.steps = 0
        self.sessions: dict[int, RemoteSession] = {}
        # Set when it is open or has failed.
        self.settled = threading.Event()
        # Set when it is not used any more.
        self.left = threading.Event()
        self.error: Exception | None = None

    def begin(self, session: RemoteSession) -> None:
        """Start a prompt, without waiting for the worker."""
        self.sessions[session.number] = session
        session.worker = self
        self._orders.put(Order(session.number, session.prompt, session.options))
        if session.cancelled:
            self.cancel(session.number)

    def cancel(self, number: int) -> None:
        """End a prompt, without waiting for the worker."""
        self._orders.put(Order(number))

    def leave(self) -> None:
        """Use the worker no longer."""
        self.left.set()
        self._orders.put(None)

    def send(self, limit_s: float) -> None:
        """Send all orders that wait in one message, then those that came meanwhile, until the worker is left."""
        while not self.left.is_set():
            orders = taken(self._orders, wait=True)
            if not self.left.is_set():
                self.actor.order([order for order in orders if order is not None]).result(timeout=limit_s)

    def open(self) -> bool:
        """Wait until the network is open; return False if the worker has left the cluster meanwhile."""
        done = threading.Event()
        # Waiting for the result with short timeouts instead would cancel Dask's own work again and again.
        self.future.add_done_callback(lambda _: done.set())
        while not self.left.is_set():
            if done.wait(_POLL_S):
                self.actor = result(self.future)
                return True
        return False

    def take(self, limit_s: float) -> EngineProgress:
        """Return events and steps of the worker since the last request."""
        progress: EngineProgress = self.actor.take(_POLL_S).result(timeout=_POLL_S + limit_s)
        return progress


class RemoteEngine:
    """Proxy of the engines on the compute workers of a cluster; see `CompletionEngine`.

    Parameters
    ----------
    client : Client
        Of the cluster; has to stay connected as long as the engine is used.
    opening : WorkerOpening
        How workers open the commit that predicts.
    options : GenerationOptions
        Of the engine of each worker.
    batch : BatchOptions
        Of the engine of each worker.
    workers : int, optional
        Most workers to use; by default all that compute.
    observer : callable, optional
        Called when prompts begin, advance and end.

    Raises
    ------
    ClusterError
        If no worker opens the network in time.
    OptionError
        If the options do not fit the network, or `workers` is below 1.
    """

    def __init__(
        self,
        client: Client,
        opening: WorkerOpening,
        options: GenerationOptions,
        batch: BatchOptions,
        *,
        workers: int | None = None,
        observer: Observer = ignore,
    ) -> None:
        if workers is not None and workers < 1:
            raise OptionError(
                f"compute_workers is {workers}",
                "1 or more",
                "leave compute_workers out to use all workers",
            )
        self._client, self._opening, self._observer = client, opening, observer
        self._options, self._batch, self._most = options, batch, workers
        self._numbers, self._identity = itertools.count(), uuid.uuid4().hex
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._waiting: deque[RemoteSession] = deque()
        self._failed: dict[str, float] = {}
        self._steps: Counter[str] = Counter()
        self._regenerated = 0
        self._closed = threading.Event()
        try:
            self._open_first()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="workers", daemon=True).start()

    def health(self) -> str | None:
        """Return why prompts cannot be continued now; see `CompletionEngine.health`."""
        if self.failure() is not None:
            return LOST
        reason = self._opening.health(_HEALTH_S)
        if reason is None and not any(worker.actor is not None for worker in self.present()):
            return "no worker has the network open"
        return reason

    def failure(self) -> str | None:
        """Return that the cluster is lost; workers that are lost are replaced."""
        # A client that has lost its scheduler forgets its futures at once, also when it finds another one.
        forgotten = any(worker.future.key not in self._client.futures for worker in self.present())
        return LOST if self._client.status != "running" or forgotten or self._opening.lost() else None

    def statistics(self) -> EngineStatistics:
        """Return how many steps were done so far; see `CompletionEngine.statistics`."""
        with self._lock:
            return EngineStatistics(dict(self._steps), self._regenerated)

    def start(self, prompt: str, options: CompletionOptions, report: Report) -> EngineRequest:
        """Start to continue a prompt; see `CompletionEngine.start`."""
        # Drawn here, because another worker has to give the same words.
        seeded = replace(options, sampling=options.sampling.seeded())
        session = RemoteSession(next(self._numbers), prompt, seeded, report)
        self._assign([session])
        return session

    def close(self) -> None:
        """End all generations, and let the workers close the network; none can be started after that."""
        self._closed.set()
        for worker in self.present():
            self._leave(worker)
        self._assign([])

    def present(self) -> list[_Worker]:
        """Return the workers that are used."""
        with self._lock:
            return [*self._workers.values()]

    def _open_first(self) -> None:
        """Open the network on the workers that are there, and wait until they have done so or failed."""
        self._look()
        deadline = time.monotonic() + timeout_s()
        workers = self.present()
        for worker in workers:
            worker.settled.wait(max(0.0, deadline - time.monotonic()))
        if any(worker.actor is not None for worker in workers):
            return
        errors = [worker.error for worker in workers if worker.error is not None]
        raise errors[0] if errors else _no_worker(timeout_s() if workers else 0)

    def _watch(self) -> None:
        """Add workers that have joined, remove those that have left, until the engine is closed."""
        while not self._closed.wait(_LOOK_S):
            self._expire()
            try:
                self._look()
            except Exception as error:
                # This thread has to go on; what is lost with the scheduler is opened again by others.
                _LOG.info("the workers of the cluster are unknown: %r", error)

    def _look(self) -> None:
        """Open the network on workers that have joined, and leave those that are not there any more."""
        present = set(roles_of(self._client).compute)
        now = time.monotonic()
        for worker in self.present():
            if worker.address not in present:
                self._leave(worker)
        with self._lock:
            self._failed = {address: at for address, at in self._failed.items() if now - at < _RETRY_S}
            free = sorted(present - self._workers.keys() - self._failed.keys())
            for address in free[: None if self._most is None else max(self._most - len(self._workers), 0)]:
                self._workers[address] = worker = _Worker(address, self._submit(address))
                threading.Thread(target=self._run, args=(worker,), name=f"take-{address}", daemon=True).start()

    def _submit(self, address: str) -> Future:
        key = f"{PromptWorker.__name__}-{self._identity}-{next(self._numbers)}"
        arguments = (self._options, self._batch, self._opening.task, *self._opening.arguments)
        return self._client.submit(PromptWorker, *arguments, key=key, workers=[address], actor=True)

    def _run(self, worker: _Worker) -> None:
        """Take the events of one worker's prompts until it has left; the target of a thread."""
        limit_s = self._options.rows.request_s
        try:
            if not worker.open():
                return
            threading.Thread(
                target=self._send, args=(worker, limit_s), name=f"send-{worker.address}", daemon=True
            ).start()
            worker.settled.set()
            self._assign([])
            while not worker.left.is_set():
                progress = worker.take(limit_s)
                self._receive(worker, progress)
                if progress.failure is not None:
                    raise ClusterError(progress.failure, "an engine that works", "check the log of the worker")
        except Exception as error:
            self._fail(worker, error)
        finally:
            worker.settled.set()
            self._leave(worker)

    def _send(self, worker: _Worker, limit_s: float) -> None:
        """Send orders to one worker until it has left; the target of a thread."""
        try:
            worker.send(limit_s)
        except Exception as error:
            self._fail(worker, error)
            self._leave(worker)

    def _fail(self, worker: _Worker, error: Exception) -> None:
        """Record why a worker is not used any more."""
        worker.error = worker.error or error
        if not worker.left.is_set():
            _LOG.warning("a worker no longer continues prompts (%s): %s", worker.address, error)

    def _receive(self, worker: _Worker, progress: EngineProgress) -> None:
        with self._lock:
            self._steps[progress.worker] += progress.steps - worker.steps
            worker.steps = progress.steps
        for number, event in progress.events:
            session = worker.sessions.get(number)
            if session is None:
                continue
            if event is None:
                self._end(worker, session)
            elif isinstance(event, Exception):
                session.report(event)
            else:
                self._pass(worker, session, event)

    def _pass(self, worker: _Worker, session: RemoteSession, event: PromptEvent) -> None:
        """Pass an event of a prompt on; end the prompt if it cannot be continued as before."""
        try:
            new = session.receive(event)
        except ClusterError as error:
            worker.cancel(session.number)
            session.report(error)
            self._end(worker, session)
            return
        if new and isinstance(event, PromptWords):
            session.entered = True
            self._observer(PromptsAdvanced(entered=1))
        elif new and isinstance(event, TokenEvent):
            self._observer(PromptsAdvanced(tokens=int(event.token is not None)))

    def _end(self, worker: _Worker, session: RemoteSession) -> None:
        with self._lock:
            worker.sessions.pop(session.number, None)
        self._finish(session)

    def _finish(self, session: RemoteSession, error: Exception | None = None) -> None:
        if session.entered:
            self._observer(PromptsAdvanced(left=1))
        session.end(error)

    def _leave(self, worker: _Worker) -> None:
        """Use a worker no longer, and let others continue its prompts."""
        with self._lock:
            if self._workers.get(worker.address) is not worker:
                return
            del self._workers[worker.address]
            worker.leave()
            if worker.error is not None:
                self._failed[worker.address] = time.monotonic()
            sessions = [*worker.sessions.values()]
            worker.sessions.clear()
            self._regenerated += len(sessions)
        # Dask lets the actor go, and it closes its engine.
        worker.future.release()
        for session in sessions:
            session.begin_again()
        self._assign(sessions)

    def _assign(self, sessions: Iterable[RemoteSession]) -> None:
        """Give prompts, and those that wait for a worker, to the workers with the fewest."""
        ended = []
        with self._lock:
            self._waiting.extend(sessions)
            workers = [worker for worker in self._workers.values() if worker.actor is not None]
            while self._waiting and (workers or self._closed.is_set()):
                session = self._waiting.popleft()
                if self._closed.is_set() or session.cancelled:
                    ended.append(session)
                else:
                    min(workers, key=lambda worker: len(worker.sessions)).begin(session)
        for session in ended:
            self._finish(session, None if session.cancelled else closed_error(self.failure()))

    def _expire(self) -> None:
        """End prompts that were cancelled, or have waited too long, while there was no worker."""
        rows = self._options.rows
        limit_s = rows.timeout_s + rows.request_s
        with self._lock:
            waited = time.monotonic() - limit_s
            over = [session for session in self._waiting if session.cancelled or session.waiting_since < waited]
            for session in over:
                self._waiting.remove(session)
        for session in over:
            self._finish(session, None if session.cancelled else _no_worker(limit_s))


def _no_worker(seconds: float) -> ClusterError:
    """Return the error for workers that have not opened a network in time; with 0 seconds there are none."""
    within = f"no worker has opened the network within {seconds:g} seconds"
    return ClusterError(
        within if seconds else "the cluster has no compute workers",
        "compute workers that stay alive",
        "check the workers' logs and memory, then retry",
    )
