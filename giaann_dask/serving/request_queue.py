"""Queue prompts before an engine: admission control, timeouts, and the threads in which the engine runs.

Generations run in threads; their parts are delivered to the event loop, and abandoned ones are ended. Does not cover:
generation (`giaann_dask.serving.engine`) and responses (`giaann_dask.serving.completions`).

Everything but `RequestQueue._work` runs on the event loop, so that no lock is needed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from queue import SimpleQueue

from giaann_dask.serving.engine import CompletionOptions, Engine, Part
from giaann_dask.serving.http_errors import busy
from giaann_dask.serving.options import QueueOptions

# Weight of the newest generation in the moving average of their times.
_NEWEST_SHARE = 0.1
_LONGEST_ADVICE_S = 60.0
_CLOSE_S = 5.0


class _Job:
    """One prompt in the queue or in the engine."""

    def __init__(self, ticket: Ticket, index: int, prompt: str, options: CompletionOptions) -> None:
        self.ticket, self.index, self.prompt, self.options = ticket, index, prompt, options
        # Set on the event loop, checked by the thread between two steps.
        self.gone = threading.Event()
        self.expiry: asyncio.TimerHandle | None = None


class Ticket:
    """The prompts of one request in the queue; made by `RequestQueue.enter`, given up with `leave`."""

    def __init__(self, queue: RequestQueue, asked: Sequence[tuple[str, CompletionOptions]]) -> None:
        self.jobs = [_Job(self, index, prompt, options) for index, (prompt, options) in enumerate(asked)]
        self._queue = queue
        self._parts: asyncio.Queue[tuple[int, Part | BaseException]] = asyncio.Queue()

    async def next(self) -> tuple[int, Part]:
        """Return the next part of any of the prompts, with the prompt's index.

        Raises
        ------
        HttpError
            If a prompt has waited for too long.
        Exception
            What the engine raised.
        """
        index, part = await self._parts.get()
        if isinstance(part, BaseException):
            raise part
        return index, part

    def put(self, index: int, part: Part | BaseException) -> None:
        """Add a part of a prompt."""
        self._parts.put_nowait((index, part))

    def leave(self, index: int | None = None) -> None:
        """Remove one prompt or all from the queue and end their generations; finished ones stay as they are."""
        for job in self.jobs if index is None else [self.jobs[index]]:
            self._queue.remove(job)


class RequestQueue:
    """Bounded queue of prompts; continues some concurrently and rejects those that exceed the limit.

    Created and closed on the event loop of the server.

    Parameters
    ----------
    engine : Engine
        Continues the prompts.
    options : QueueOptions
        How many run concurrently, how many wait.
    observe : callable, optional
        Called with the seconds that the engine worked on a prompt.
    """

    def __init__(self, engine: Engine, options: QueueOptions, observe: Callable[[float], None] | None = None) -> None:
        self.options = options
        self.running = 0
        self._engine = engine
        self.draws = engine.draws
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._ready: SimpleQueue[_Job | None] = SimpleQueue()
        self._mean_s = 1.0
        self._threads = [
            # Daemon threads do not keep the process alive: a step may wait long for a lost worker.
            threading.Thread(target=self._work, name=f"place-{number}", daemon=True)
            for number in range(options.places)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of prompts that wait for a free slot."""
        return len(self._waiting)

    def enter(self, asked: Sequence[tuple[str, CompletionOptions]]) -> Ticket:
        """Add all prompts of a request, or none.

        Parameters
        ----------
        asked : sequence of (str, CompletionOptions)
            The prompts, each with how much is wanted.

        Raises
        ------
        HttpError
            With status 429 and a Retry-After header, if the queue is full.
        """
        room = self.options.places + self.options.waiting - self.running - self.waiting
        if len(asked) > room:
            raise busy(f"{self.running} prompts are continued and {self.waiting} wait", self._advice())
        ticket = Ticket(self, asked)
        for job in ticket.jobs:
            job.expiry = self._loop.call_later(self.options.wait_s, self._expire, job)
            self._waiting.append(job)
        self._fill()
        return ticket

    def remove(self, job: _Job) -> None:
        """Remove a waiting job, or make its thread end it after the current step."""
        job.gone.set()
        if job.expiry is not None:
            job.expiry.cancel()
        with suppress(ValueError):
            self._waiting.remove(job)

    async def close(self) -> None:
        """End all generations and stop the threads, waiting for a bounded time."""
        for job in list(self._waiting):
            self.remove(job)
        for _ in self._threads:
            self._ready.put(None)
        deadline = time.monotonic() + _CLOSE_S
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _fill(self) -> None:
        """Start the jobs that have waited longest in free slots."""
        while self._waiting and self.running < self.options.places:
            job = self._waiting.popleft()
            if job.expiry is not None:
                job.expiry.cancel()
            self.running += 1
            self._ready.put(job)

    def _expire(self, job: _Job) -> None:
        with suppress(ValueError):
            self._waiting.remove(job)
            message = f"no place was free for {self.options.wait_s:g} seconds"
            job.ticket.put(job.index, busy(message, self._advice()))

    def _finished(self, seconds: float) -> None:
        self.running -= 1
        self._mean_s += _NEWEST_SHARE * (seconds - self._mean_s)
        if self._observe is not None:
            self._observe(seconds)
        self._fill()

    def _advice(self) -> float:
        """Return the seconds until a slot will probably be free, for Retry-After."""
        return min((self.waiting + 1) / self.options.places * self._mean_s, _LONGEST_ADVICE_S)

    def _work(self) -> None:
        """Continue prompts one after the other; the target of a thread."""
        while (job := self._ready.get()) is not None:
            started = time.monotonic()
            try:
                with closing(self._engine.complete(job.prompt, job.options)) as parts:
                    for part in parts:
                        if job.gone.is_set():
                            break
                        if part is not None:
                            self._deliver(job.ticket.put, job.index, part)
            except Exception as error:
                self._deliver(job.ticket.put, job.index, error)
            self._deliver(self._finished, time.monotonic() - started)

    def _deliver(self, function: Callable[..., None], *arguments: object) -> None:
        # The loop is closed where the server has stopped without waiting for this thread.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
