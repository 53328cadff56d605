"""Continue the prompts of a server: one thread steps one batch of an open network of any profile.

The engine runs in the server's process or, behind `giaann_dask.serving.remote_engine`, on workers. Prompts are prepared
outside that thread, and those with concept columns, which need the whole activation, advance in threads of their own.
Does not cover: admission control (`giaann_dask.serving.request_queue`) and reopening (`giaann_dask.serving.models`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeVar

from giaann_dask.errors import ClusterError, PromptError
from giaann_dask.models.base import Predictor, PreparedText, PromptWords, TokenEvent
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, SamplingOptions
from giaann_dask.rows.regions import LOST

if TYPE_CHECKING:
    from giaann_dask.serving.models import ModelSource

# For a response of the cluster to a health check.
_HEALTH_S = 3.0
_CLOSE_S = 5.0
# Tagging is pure Python; more threads would only compete with the one that steps the batch.
_PREPARING = 2
# The name of this process among workers.
SERVER = "server"
SERVED_BATCH = BatchOptions(slots=32)
_LOG = logging.getLogger(__name__)


class EngineStoppedError(RuntimeError):
    """The thread that steps the batch has stopped because of a bug."""

    def __init__(self) -> None:
        super().__init__("the engine has stopped because of a bug; see its log")


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Requested extent of a continuation.

    Parameters
    ----------
    tokens : int
        Tokens to generate at most; 0 only prepares the prompt.
    candidates : int
        Candidates to report with every token, the chosen one included; 0 reports none.
    logprobs : int, optional
        Most probable words to report with every token and its log-probability; by default neither.
    score_prompt : bool
        Whether the words of the prompt are scored likewise.
    columns : int
        Concept columns to report with every token; 0 reports none.
    connections : int
        Connections that decided to report with every token, of a network with an index; 0 reports none.
    sampling : SamplingOptions
        How words are drawn, where they have probabilities.
    """

    tokens: int = 16
    candidates: int = 0
    logprobs: int | None = None
    score_prompt: bool = False
    columns: int = 0
    connections: int = 0
    sampling: SamplingOptions = field(default_factory=SamplingOptions)


Taken = TypeVar("Taken")
PromptEvent = PromptWords | TokenEvent
# Called from any thread with the words of the prompt, with every event and with an error that ends the generation; at
# last, and once, with None, when the generation has released its resources.
Report = Callable[[PromptEvent | Exception | None], None]


class EngineRequest:
    """A prompt that an engine continues.

    Parameters
    ----------
    prompt : str
        Some words.
    options : CompletionOptions
        How much is requested.
    report : callable
        Receives its events; must not raise.

    Attributes
    ----------
    source : ModelSource or None
        The network at the commit of the engine, noted by whoever serves several; None until then.
    """

    def __init__(self, prompt: str, options: CompletionOptions, report: Report) -> None:
        self.prompt, self.options, self.report = prompt, options, report
        self.cancelled = False
        self.source: ModelSource | None = None

    def cancel(self) -> None:
        """End the generation at the next boundary of two steps; may be called from any thread."""
        self.cancelled = True

    def end(self, error: Exception | None = None) -> None:
        """Report that this was the last of it."""
        if error is not None:
            self.report(error)
        self.report(None)


@dataclass(frozen=True)
class EngineStatistics:
    """Counts of an engine since it was opened.

    Attributes
    ----------
    steps : dict of str to int
        Steps of prompts, by the name of the worker that did them; `SERVER` stands for this process.
    regenerated : int
        Prompts whose tokens were generated again, because the worker that continued them was lost.
    """

    steps: dict[str, int] = field(default_factory=dict)
    regenerated: int = 0

    def __add__(self, other: EngineStatistics) -> EngineStatistics:
        """Return the counts of both."""
        steps = dict(Counter(self.steps) + Counter(other.steps))
        return EngineStatistics(steps, self.regenerated + other.regenerated)


class CompletionEngine(Protocol):
    """Continues prompts from one commit of a network; used from several threads simultaneously."""

    def health(self) -> str | None:
        """Return why prompts cannot be continued now, None if they can; takes some seconds at most.

        The reason is shown without authentication, and so contains nothing confidential.
        """

    def failure(self) -> str | None:
        """Return why the network has to be opened again, None as long as the engine works or may recover."""

    def statistics(self) -> EngineStatistics:
        """Return how many steps were done so far, and where."""

    def start(self, prompt: str, options: CompletionOptions, report: Report) -> EngineRequest:
        """Start to continue a prompt; returns immediately, and reports errors instead of raising them."""

    def close(self) -> None:
        """End all generations after their current steps, waiting for a bounded time; none can be started after that."""


class Engine:
    """Engine over an open network; later training does not change its commit.

    When a step fails, as when rows cannot be fetched any more, all prompts in the batch fail with its error; later ones
    start normally.

    Parameters
    ----------
    network : Predictor
        The commit that predicts, of any profile.
    options : GenerationOptions, optional
        Rules of inference, tagger and device.
    batch : BatchOptions, optional
        Prompts that share a step at most, and the memory of the whole activation of a prompt with concept columns.

    Raises
    ------
    OptionError
        If the options do not fit the network.
    """

    def __init__(
        self, network: Predictor, options: GenerationOptions | None = None, batch: BatchOptions | None = None
    ) -> None:
        self._network = network
        self._options = replace(options or GenerationOptions(), reasons=0)
        self._state = (batch or SERVED_BATCH).state
        self._batch = network.open_batch(self._options, batch or SERVED_BATCH)
        # Taggers load their words when first used; here, so that no request waits for it.
        with suppress(PromptError):
            self._batch.prepare("the word", self._options)
        self._arriving: SimpleQueue[tuple[EngineRequest, PreparedText] | None] = SimpleQueue()
        self._waiting: deque[tuple[EngineRequest, PreparedText]] = deque()
        self._running: dict[int, EngineRequest] = {}
        self._steps, self._counting = 0, threading.Lock()
        # Why no more prompts are accepted; under the lock, so that no queue gets a prompt after its last reader ended.
        self._stopped: Exception | None = None
        self._stopping = threading.Lock()
        self._preparing = _ThreadPool("prepare", _PREPARING)
        # More would only compete for processors in the middle of their steps, and be slower in total.
        self._whole = _ThreadPool("columns", os.cpu_count() or 1)
        self._thread = threading.Thread(target=self._work, name="batch", daemon=True)
        self._thread.start()

    def health(self) -> str | None:
        """Return why prompts cannot be continued now; see `CompletionEngine.health`."""
        return self._network.health(_HEALTH_S) if self._stopped is None else str(self._stopped)

    def failure(self) -> str | None:
        """Return that the cluster that held the rows is lost, or that a defect has stopped the batch."""
        if isinstance(self._stopped, EngineStoppedError):
            return str(self._stopped)
        return LOST if self._network.lost() else None

    @property
    def steps(self) -> int:
        """Steps of prompts so far."""
        return self._steps

    def statistics(self) -> EngineStatistics:
        """Return how many steps were done so far; see `CompletionEngine.statistics`."""
        return EngineStatistics({SERVER: self._steps})

    def start(self, prompt: str, options: CompletionOptions, report: Report) -> EngineRequest:
        """Start to continue a prompt; see `CompletionEngine.start`."""
        generation = EngineRequest(prompt, options, report)
        self._pass(generation, lambda: self._preparing.submit(lambda: self._prepare(generation)))
        return generation

    def close(self) -> None:
        """End all generations; see `CompletionEngine.close`."""
        self._stop(closed_error(self.failure()))
        self._arriving.put(None)
        for pool in (self._preparing, self._whole):
            pool.close()
        self._thread.join(_CLOSE_S)

    def _stop(self, reason: Exception) -> None:
        """Accept no more prompts."""
        with self._stopping:
            self._stopped = self._stopped or reason

    def _prepare(self, generation: EngineRequest) -> None:
        """Divide a prompt and pass it on, in a thread of its own."""
        if self._stopped is not None or generation.cancelled:
            generation.end(self._stopped)
            return
        options = generation.options
        # One more, because a drawn token takes the place of the last.
        runners_up = max(options.candidates, 1 if options.logprobs is None else options.logprobs + 1)
        sampled = replace(self._options, runners_up=runners_up, reasons=options.connections, sampling=options.sampling)
        try:
            text = self._batch.prepare(generation.prompt, replace(sampled, max_tokens=max(options.tokens, 1)))
            scored = options.score_prompt and text.score is not None
            words = PromptWords(text.words, text.score(options.logprobs or 0) if scored and text.score else ())
        except Exception as error:
            generation.end(error)
            return
        generation.report(words)
        if not options.tokens:
            generation.end()
        elif options.columns and text.with_columns is not None:
            self._pass(generation, lambda: self._whole.submit(lambda: self._continue_alone(generation, text)))
        else:
            self._pass(generation, lambda: self._arriving.put((generation, text)))

    def _pass(self, generation: EngineRequest, put: Callable[[], None]) -> None:
        """Pass a prompt to other threads, or end it where none of them would take it any more."""
        with self._stopping:
            if self._stopped is None:
                put()
                return
        generation.end(self._stopped)

    def _continue_alone(self, generation: EngineRequest, text: PreparedText) -> None:
        """Continue a prompt with concept columns, in a thread of its own."""
        assert text.with_columns is not None
        state = replace(self._state, columns=generation.options.columns)
        try:
            with closing(text.with_columns(state)) as events:
                for event in events:
                    self._count(1)
                    if self._stopped is not None:
                        raise self._stopped
                    if event is not None:
                        generation.report(event)
                    if generation.cancelled:
                        break
        except Exception as error:
            generation.end(error)
        else:
            generation.end()

    def _work(self) -> None:
        """Step the batch until the engine is closed; the target of its thread."""
        try:
            while self._stopped is None:
                self._admit()
                self._step()
        except Exception as error:
            _LOG.exception("the thread that steps the batch has stopped")
            failure: Exception = error
            self._stop(EngineStoppedError())
        else:
            failure = self._stopped
        # Nothing arrives after `_stop`.
        self._take_all()
        for generation in [*self._running.values(), *(generation for generation, _ in self._waiting)]:
            generation.end(failure)

    def _admit(self) -> None:
        """Remove cancelled prompts and admit new ones; wait for one if the batch is empty."""
        self._take_all(wait=not self._running and not self._waiting)
        for number in [number for number, generation in self._running.items() if generation.cancelled]:
            self._batch.leave(number)
            self._running.pop(number).end()
        while self._waiting and self._batch.free_slots:
            generation, text = self._waiting.popleft()
            if generation.cancelled:
                generation.end()
                continue
            try:
                self._running[text.enter()] = generation
            except Exception as error:
                generation.end(error)

    def _take_all(self, *, wait: bool = False) -> None:
        """Let all prompts that have arrived wait for a slot; wait for one, or for the end, if requested."""
        self._waiting.extend(each for each in taken(self._arriving, wait=wait) if each is not None)

    def _count(self, steps: int) -> None:
        with self._counting:
            self._steps += steps

    def _step(self) -> None:
        self._count(len(self._running))
        try:
            events = self._batch.step() if self._running else []
        except Exception as error:
            for number in [*self._running]:
                self._batch.leave(number)
                self._running.pop(number).end(error)
            return
        for event in events:
            generation = self._running[event.number]
            generation.report(event)
            if event.finished:
                self._running.pop(event.number).end(event.error)


def taken(queue: SimpleQueue[Taken], *, wait: bool) -> list[Taken]:
    """Return all items of a queue; wait for the first one if requested."""
    found = [queue.get()] if wait else []
    with suppress(Empty):
        while True:
            found.append(queue.get_nowait())
    return found


def closed_error(failure: str | None) -> ClusterError:
    """Return the error that ends prompts when an engine is closed, given why it has to be opened again."""
    if failure is None:
        return ClusterError("the engine is closed", "an open one", "open the network again")
    return ClusterError(failure, "an open network", "retry when /healthz says ok")


class _ThreadPool:
    """Threads that call functions in the order of submission.

    They are daemon threads, which do not keep the process alive: a step may wait long for a lost worker.
    """

    def __init__(self, name: str, count: int) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], None]) -> None:
        """Call a function, which must not raise, as soon as a thread is free."""
        self._work.put(function)

    def close(self) -> None:
        """End the threads after the submitted work, without waiting."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (function := self._work.get()) is not None:
            function()
            # Or a thread that waits would keep the last prompt, and with it an engine that is being closed.
            del function
