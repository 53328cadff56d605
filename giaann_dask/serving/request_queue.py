"""A bounded waiting line before an engine, and the threads in which the engine works.

Covers: who is let in, who waits and for how long, who is refused; running generations in threads and
bringing their parts to the event loop; ending those that nobody waits for any more. Does not cover:
what is generated (`engine`) and how it is answered (`completions`).

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

# Of the time that a generation takes, the last ones count most.
_NEWEST_SHARE = 0.1
_LONGEST_ADVICE_S = 60.0
_CLOSE_S = 5.0


class _Job:
    """One prompt on its way."""

    def __init__(self, visit: Ticket, index: int, prompt: str, options: CompletionOptions) -> None:
        self.visit, self.index, self.prompt, self.options = visit, index, prompt, options
        # Set on the event loop, seen by the thread between two steps.
        self.gone = threading.Event()
        self.expiry: asyncio.TimerHandle | None = None


class Ticket:
    """The prompts of one request in the line; made by `RequestQueue.enter`, to be left with `leave`."""

    def __init__(self, line: RequestQueue, asked: Sequence[tuple[str, CompletionOptions]]) -> None:
        self.jobs = [_Job(self, index, prompt, options) for index, (prompt, options) in enumerate(asked)]
        self._line = line
        self._parts: asyncio.Queue[tuple[int, Part | BaseException]] = asyncio.Queue()

    async def next(self) -> tuple[int, Part]:
        """Return the next part of any of the prompts, with the prompt's index.

        Raises
        ------
        Refusal
            If a prompt has waited for too long.
        Exception
            What the engine raised.
        """
        index, part = await self._parts.get()
        if isinstance(part, BaseException):
            raise part
        return index, part

    def put(self, index: int, part: Part | BaseException) -> None:
        """Take a part from the line."""
        self._parts.put_nowait((index, part))

    def leave(self, index: int | None = None) -> None:
        """Give up what waits and end what is under way, of one prompt or of all; what has ended stays so."""
        for job in self.jobs if index is None else [self.jobs[index]]:
            self._line.remove(job)


class RequestQueue:
    """Lets so many prompts in, continues some at once, and refuses the others.

    To be made and closed on the event loop that serves.

    Parameters
    ----------
    engine : Engine
        Who continues prompts.
    options : QueueOptions
        How many at once, how many wait.
    observe : callable, optional
        Told how many seconds the engine worked on a prompt.
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
            # Threads that do not hold the process: a step may wait long for a lost worker.
            threading.Thread(target=self._work, name=f"place-{number}", daemon=True)
            for number in range(options.places)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many prompts wait for a place."""
        return len(self._waiting)

    def enter(self, asked: Sequence[tuple[str, CompletionOptions]]) -> Ticket:
        """Let all prompts of a request in, or none.

        Parameters
        ----------
        asked : sequence of (str, CompletionOptions)
            The prompts, each with how much is wanted.

        Raises
        ------
        Refusal
            With status 429 and the seconds after which to ask again, when there is no room.
        """
        room = self.options.places + self.options.waiting - self.running - self.waiting
        if len(asked) > room:
            raise busy(f"{self.running} prompts are continued and {self.waiting} wait", self._advice())
        visit = Ticket(self, asked)
        for job in visit.jobs:
            job.expiry = self._loop.call_later(self.options.wait_s, self._expire, job)
            self._waiting.append(job)
        self._fill()
        return visit

    def remove(self, job: _Job) -> None:
        """Forget a job that waits, or let its thread end it after the step under way."""
        job.gone.set()
        if job.expiry is not None:
            job.expiry.cancel()
        with suppress(ValueError):
            self._waiting.remove(job)

    async def close(self) -> None:
        """End what is under way and stop the threads, waiting for a bounded time."""
        for job in list(self._waiting):
            self.remove(job)
        for _ in self._threads:
            self._ready.put(None)
        deadline = time.monotonic() + _CLOSE_S
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _fill(self) -> None:
        """Give free places to those that wait longest."""
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
            job.visit.put(job.index, busy(message, self._advice()))

    def _finished(self, seconds: float) -> None:
        self.running -= 1
        self._mean_s += _NEWEST_SHARE * (seconds - self._mean_s)
        if self._observe is not None:
            self._observe(seconds)
        self._fill()

    def _advice(self) -> float:
        """Return after how many seconds the line will probably have moved on."""
        return min((self.waiting + 1) / self.options.places * self._mean_s, _LONGEST_ADVICE_S)

    def _work(self) -> None:
        """Continue prompts, one after the other, in a thread."""
        while (job := self._ready.get()) is not None:
            started = time.monotonic()
            try:
                with closing(self._engine.complete(job.prompt, job.options)) as parts:
                    for part in parts:
                        if job.gone.is_set():
                            break
                        if part is not None:
                            self._tell(job.visit.put, job.index, part)
            except Exception as error:
                self._tell(job.visit.put, job.index, error)
            self._tell(self._finished, time.monotonic() - started)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        # The loop is closed when the server has left without waiting any longer.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
