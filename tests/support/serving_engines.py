"""An engine for tests of the server: no network, but what an engine can do to it."""

from __future__ import annotations

import threading
from collections.abc import Generator

from giaann_dask.errors import ClusterError, PromptError
from giaann_dask.inference.continuation import Candidate
from giaann_dask.serving.engine import ActiveColumn, CompletionOptions, Ended, Given, Part, Token

WORDS = ["to", "the", "baker", "before", "the", "sun_rise", "and", "home"]


class ScriptedEngine:
    """Continues every prompt with the same words; some prompts make it slow or fail.

    A prompt with the word ``slow`` goes on for ever once it was read, without a token, until it is released or
    closed. What was begun and what was ended is counted.
    """

    name = "scripted"
    commit = "COMMIT"
    draws = False

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.released = threading.Event()
        self.at_once = self.most_at_once = 0
        self.reason: str | None = None
        self.is_lost = False
        self.looks = 0
        self.looking = threading.Event()
        self.looking.set()
        self._lock = threading.Lock()

    def trouble(self) -> str | None:
        self.looks += 1
        self.looking.wait(10)
        return self.reason

    def lost(self) -> bool:
        return self.is_lost

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.release()
        try:
            yield from self._parts(prompt, options)
        finally:
            with self._lock:
                self.at_once -= 1
            self.ended.release()

    def _parts(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        if "bad" in prompt:
            raise PromptError("the prompt is bad", "a good one")
        if "lost" in prompt:
            raise ClusterError("no worker answers", "workers")
        yield Given(tuple(prompt.split()))
        while "slow" in prompt and not self.released.wait(0.002):
            yield None
        for place, word in enumerate(WORDS[: options.tokens]):
            if "breaks" in prompt and place == 2:
                raise ClusterError("no worker answers", "workers")
            if "defect" in prompt and place == 2:
                raise ZeroDivisionError("private detail")
            candidates = (Candidate(word, "baker", 5.0), Candidate("other", "baker", 4.0))[: options.candidates]
            columns = (ActiveColumn("baker", 9.0), ActiveColumn("mill", 3.0))[: options.columns]
            yield Token(word, "baker", 5.0, 2, candidates, columns)
        yield Ended(None if options.tokens <= len(WORDS) else "no candidates")
