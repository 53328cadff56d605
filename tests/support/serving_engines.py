"""Engines for tests of the server: over a scripted network that does all that one can do to an engine, and served."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

from giaann_dask.errors import ClusterError, PromptError
from giaann_dask.events import ignore
from giaann_dask.models.base import ActiveColumn, PreparedText, TokenEvent
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, SamplingOptions, StateOptions
from giaann_dask.models.results import Candidate, ConnectionKey, GeneratedToken, Reason
from giaann_dask.serving.engine import CompletionEngine, CompletionOptions, Engine, PromptEvent
from giaann_dask.serving.models import Models, ModelSource, ServedModel
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.ledger import IDENTITY_BYTES
from giaann_dask.tracing import TracedConnection, TracedSentence, Tracer

WORDS = ["to", "the", "baker", "before", "the", "sun_rise", "and", "home"]
STEP_S = 0.002


class ScriptedNetwork:
    """Continues every prompt with the same words; some prompts make it slow or fail.

    A prompt with the word ``slow`` is continued forever, without a token, until it is released or cancelled. What
    entered and what left is counted.
    """

    commit, profile = "COMMIT", "v1"
    has_probabilities = subwords = traced = False
    observer = staticmethod(ignore)

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.released = threading.Event()
        self.at_once = self.most_at_once = 0
        self.reason: str | None = None
        self.is_lost = False
        self.checks = 0
        self.checking = threading.Event()
        self.checking.set()
        self._lock = threading.Lock()
        # Of every prompt, in the order in which they were prepared.
        self.sampled: list[SamplingOptions] = []

    def health(self, within_s: float) -> str | None:
        self.checks += 1
        self.checking.wait(10)
        return self.reason

    def lost(self) -> bool:
        return self.is_lost

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> ScriptedBatch:
        return ScriptedBatch(self, (batch or BatchOptions()).slots)

    def begin(self) -> None:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.release()

    def end(self) -> None:
        with self._lock:
            self.at_once -= 1
        self.ended.release()

    def events(self, number: int, prompt: str, options: GenerationOptions) -> Iterator[TokenEvent | None]:
        while "slow" in prompt and not self.released.is_set():
            yield None
        for index, word in enumerate(WORDS[: options.max_tokens]):
            if "breaks" in prompt and index == 2:
                raise ClusterError("no worker answers", "workers")
            if "defect" in prompt and index == 2:
                raise ZeroDivisionError("private detail")
            column = "sun_rise" if word == "sun_rise" else "baker"
            candidates = (Candidate(word, column, 5.0), Candidate("other", "baker", 4.0))[: options.runners_up]
            key = ConnectionKey(1, index, 2, 0)
            reasons = (Reason("flour", "mill", 0, 2, 0, 3.0, 1.0, key),) if options.reasons else ()
            yield TokenEvent(
                number, GeneratedToken(word, column, candidates, 2, reasons), index + 1 == options.max_tokens
            )
        if options.max_tokens > len(WORDS):
            yield TokenEvent(number, None, True, "no candidates")


class DrawingNetwork(ScriptedNetwork):
    """Network of profile ``contexts``: words without columns; one is always drawn with the same probability."""

    profile, has_probabilities = "contexts", True

    def events(self, number: int, prompt: str, options: GenerationOptions) -> Iterator[TokenEvent | None]:
        for index, word in enumerate(WORDS[: options.max_tokens]):
            candidates = (Candidate(word, "", 0.625), Candidate("other", "", 0.25))[: options.runners_up]
            seed = options.sampling.seed
            yield TokenEvent(
                number, GeneratedToken(word, "", candidates, 700, ()), index + 1 == options.max_tokens, seed=seed
            )
        if options.max_tokens > len(WORDS):
            yield TokenEvent(number, None, True, "no candidates")


class ScriptedBatch:
    """Batch of a scripted network."""

    def __init__(self, network: ScriptedNetwork, slots: int) -> None:
        self._network, self._slots = network, slots
        self._texts: dict[int, Iterator[TokenEvent | None]] = {}
        self._entered = 0
        # Raised where a prompt with the word "stuck" leaves.
        self._stuck: set[int] = set()

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def free_slots(self) -> int:
        return self._slots - len(self._texts)

    def prepare(self, prompt: str, options: GenerationOptions) -> PreparedText:
        self._network.sampled.append(options.sampling)
        if "bad" in prompt:
            raise PromptError("the prompt is bad", "a good one")
        if "lost" in prompt:
            raise ClusterError("no worker answers", "workers")
        whole = partial(self._with_columns, prompt, options)
        return PreparedText(tuple(prompt.split()), partial(self._enter, prompt, options), whole)

    def _enter(self, prompt: str, options: GenerationOptions) -> int:
        if "refused" in prompt:
            raise PromptError("the prompt is refused", "another")
        self._network.begin()
        self._entered += 1
        self._texts[self._entered] = self._network.events(self._entered, prompt, options)
        if "stuck" in prompt:
            self._stuck.add(self._entered)
        return self._entered

    def step(self) -> list[TokenEvent]:
        found = [event for events in [*self._texts.values()] if (event := next(events)) is not None]
        for event in found:
            if event.finished:
                self.leave(event.number)
        if not found:
            time.sleep(STEP_S)
        return found

    def leave(self, number: int) -> None:
        if number in self._stuck:
            raise KeyError("the batch is inconsistent")
        if self._texts.pop(number, None) is not None:
            self._network.end()

    def _with_columns(
        self, prompt: str, options: GenerationOptions, state: StateOptions
    ) -> Generator[TokenEvent | None, None, None]:
        columns = (ActiveColumn("baker", 9.0), ActiveColumn("mill", 3.0))[: state.columns]
        self._network.begin()
        try:
            for event in self._network.events(0, prompt, options):
                if event is None:
                    time.sleep(STEP_S)
                    yield None
                else:
                    yield TokenEvent(0, event.token, event.finished, event.stop, columns=columns if event.token else ())
        finally:
            self._network.end()


class ScriptedEngine(Engine):
    """Engine over a scripted network."""

    def __init__(self, network: ScriptedNetwork | None = None, name: str = "scripted", slots: int = 32) -> None:
        self.network, self.name = network or ScriptedNetwork(), name
        super().__init__(self.network, batch=BatchOptions(slots=slots))

    def close(self) -> None:
        self.network.released.set()
        super().close()


class ScriptedTracer(Tracer):
    """Tracer that finds the same sentence for every connection."""

    def __init__(self) -> None:
        pass

    def connection(self, key: ConnectionKey, **named: Any) -> TracedConnection:
        found = TracedSentence(
            7, "books/<a>.txt", 1, 3, 1200, "The <b>miller</b> sings.", "", "ab" * IDENTITY_BYTES, 4, 0.5
        )
        return TracedConnection("", "", key.segment, key.branch, 0.0, 8, 2, (found,))


def source_of(engine: ScriptedEngine) -> ModelSource:
    """Return a scripted engine, which the caller closes, as a model of a server."""
    names = ("commit", "profile", "has_probabilities", "subwords")
    return ModelSource(
        name=engine.name,
        nbytes=0,
        opening=partial(nullcontext, engine),
        tracer=ScriptedTracer if engine.network.traced else None,
        **{name: getattr(engine.network, name) for name in names},
    )


def models_of(*engines: ScriptedEngine) -> Models:
    """Return scripted engines as the models of a server, the first of them open."""
    models = Models([source_of(engine) for engine in engines])
    models.open_default()
    return models


def served(reader: CommitReader, engine: Engine, name: str | None = None) -> Models:
    """Return an engine of a commit, which the caller closes, as the only model of a server."""
    return Models([ModelSource.of(reader, partial(nullcontext, engine), name)])


def parts_of(engine: CompletionEngine | ServedModel, prompt: str, options: CompletionOptions) -> list[PromptEvent]:
    """Return all parts of a generation; raise its error."""
    return Collected(engine, prompt, options).result()


class Collected:
    """A generation whose parts are collected."""

    def __init__(self, engine: CompletionEngine | ServedModel, prompt: str, options: CompletionOptions) -> None:
        self._parts: SimpleQueue[PromptEvent | Exception | None] = SimpleQueue()
        self.generation = engine.start(prompt, options, self._parts.put)

    def result(self, timeout_s: float = 60.0) -> list[PromptEvent]:
        found: list[PromptEvent] = []
        error: Exception | None = None
        while (part := self._parts.get(timeout=timeout_s)) is not None:
            if isinstance(part, Exception):
                error = part
            else:
                found.append(part)
        if error is not None:
            raise error
        return found
