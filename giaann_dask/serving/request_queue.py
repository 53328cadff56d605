"""Queue prompts before an engine: admission control, timeouts, and delivery of events to the event loop.

Everything but `RequestQueue._report` runs on the event loop, so that no lock is needed. Does not cover: generation
(`giaann_dask.serving.engine`) and responses (`giaann_dask.serving.completions`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from giaann_dask.serving.engine import CompletionOptions, EngineRequest, PromptEvent
from giaann_dask.serving.models import ModelSource, ServedModel
from giaann_dask.serving.requests import HttpError, busy
from giaann_dask.serving.serving_options import QueueOptions

# Weight of the newest generation in the moving average of their times.
_NEWEST_SHARE = 0.1
_LONGEST_ADVICE_S = 60.0
_CLOSE_S = 5.0


class _QueuedPrompt:
    """One prompt in the queue or in the engine."""

    def __init__(self, ticket: Ticket, model: ServedModel, index: int, prompt: str, options: CompletionOptions) -> None:
        self.ticket, self.model, self.index, self.prompt, self.options = ticket, model, index, prompt, options
        self.expiry: asyncio.TimerHandle | None = None
        self.generation: EngineRequest | None = None
        self.started = 0.0


class Ticket:
    """The prompts of one request in the queue; made by `RequestQueue.enter`, given up with `leave`."""

    def __init__(
        self, queue: RequestQueue, model: ServedModel, prompts: Sequence[tuple[str, CompletionOptions]]
    ) -> None:
        self.jobs = [_QueuedPrompt(self, model, index, *prompt) for index, prompt in enumerate(prompts)]
        self._queue, self._model = queue, model
        self._events: asyncio.Queue[tuple[int, PromptEvent | Exception]] = asyncio.Queue()

    @property
    def commit(self) -> str:
        """Commit that continues the first of the prompts that have begun, or would begin now."""
        begun = (job.generation.source for job in self.jobs if job.generation is not None)
        return next((source for source in begun if source is not None), self._model.source).commit

    @property
    def sources(self) -> list[ModelSource]:
        """The network at the commit that continues each prompt; where it has not begun, at the one that would."""
        begun = [None if job.generation is None else job.generation.source for job in self.jobs]
        return [self._model.source if source is None else source for source in begun]

    async def next(self) -> tuple[int, PromptEvent]:
        """Return the next event of any of the prompts, with the prompt's index.

        Raises
        ------
        HttpError
            If a prompt has waited for too long.
        Exception
            What the engine raised.
        """
        index, event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return index, event

    def put(self, index: int, event: PromptEvent | Exception) -> None:
        """Add an event of a prompt."""
        self._events.put_nowait((index, event))

    def leave(self, index: int | None = None) -> None:
        """Remove one prompt or all from the queue and end their generations; finished ones stay as they are."""
        for job in self.jobs if index is None else [self.jobs[index]]:
            self._queue.remove(job)


class RequestQueue:
    """Bounded queue of the prompts of all networks; continues some concurrently and rejects those beyond the limit.

    Created and closed on the event loop of the server.

    Parameters
    ----------
    options : QueueOptions
        How many run concurrently, how many wait.
    observe : callable, optional
        Called with the seconds that the engine worked on a prompt.
    """

    def __init__(self, options: QueueOptions, observe: Callable[[float], None] | None = None) -> None:
        self.options, self._observe = options, observe
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_QueuedPrompt] = deque()
        self._running: set[_QueuedPrompt] = set()
        self._mean_s = 1.0

    @property
    def running(self) -> int:
        """Number of prompts that are continued."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of prompts that wait for a free slot."""
        return len(self._waiting)

    def enter(self, model: ServedModel, prompts: Sequence[tuple[str, CompletionOptions]]) -> Ticket:
        """Add all prompts of a request, or none.

        Parameters
        ----------
        model : ServedModel
            Continues them; has to stay open until all have ended or are removed.
        prompts : sequence of (str, CompletionOptions)
            The prompts, each with how much is requested.

        Raises
        ------
        HttpError
            With status 429 and a Retry-After header, if the queue is full; with 400, if it is too small for all.
        """
        room = self.options.slots + self.options.waiting
        if len(prompts) > room:
            message = f"the request has {len(prompts)} choices; expected at most {room}, as this server takes at once"
            raise HttpError(400, message, param="prompt", code="invalid_value")
        free = room - self.running - self.waiting
        if len(prompts) > free:
            raise busy(f"{self.running} prompts are continued and {self.waiting} wait", self._advice())
        ticket = Ticket(self, model, prompts)
        for job in ticket.jobs:
            job.expiry = self._loop.call_later(self.options.wait_s, self._expire, job)
            self._waiting.append(job)
        self._fill()
        return ticket

    def remove(self, job: _QueuedPrompt) -> None:
        """Remove a waiting job, or end its generation after the current step."""
        if job.generation is not None:
            job.generation.cancel()
        if job.expiry is not None:
            job.expiry.cancel()
        with suppress(ValueError):
            self._waiting.remove(job)

    async def close(self) -> None:
        """End all generations, waiting for a bounded time."""
        for job in [*self._waiting, *self._running]:
            self.remove(job)
        deadline = self._loop.time() + _CLOSE_S
        while self._running and self._loop.time() < deadline:
            await asyncio.sleep(0.01)

    def _fill(self) -> None:
        """Start the jobs that have waited longest in free slots."""
        while self._waiting and self.running < self.options.slots:
            job = self._waiting.popleft()
            # What waits for other prompts of its own request is limited by the request's time alone.
            for each in job.ticket.jobs:
                if each.expiry is not None:
                    each.expiry.cancel()
            self._running.add(job)
            job.started = time.monotonic()
            job.generation = job.model.start(job.prompt, job.options, partial(self._report, job))

    def _expire(self, job: _QueuedPrompt) -> None:
        with suppress(ValueError):
            self._waiting.remove(job)
            message = f"no slot was free for {self.options.wait_s:g} seconds"
            job.ticket.put(job.index, busy(message, self._advice()))

    def _advice(self) -> float:
        """Return the seconds until a slot will probably be free, for Retry-After."""
        return min((self.waiting + 1) / self.options.slots * self._mean_s, _LONGEST_ADVICE_S)

    def _report(self, job: _QueuedPrompt, event: PromptEvent | Exception | None) -> None:
        """Deliver an event of a generation to the event loop, from any thread."""
        # The loop is closed where the server has stopped without waiting for this generation.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, job, event)

    def _receive(self, job: _QueuedPrompt, event: PromptEvent | Exception | None) -> None:
        if event is not None:
            job.ticket.put(job.index, event)
            return
        self._running.discard(job)
        seconds = time.monotonic() - job.started
        self._mean_s += _NEWEST_SHARE * (seconds - self._mean_s)
        if self._observe is not None:
            self._observe(seconds)
        self._fill()
