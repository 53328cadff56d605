"""Continue prompts of a server with a network of profile ``best``, word by word with probabilities.

Does not cover: one continuation (`giaann_dask.inference.best.continuation`) and the queue before the engine
(`giaann_dask.serving.request_queue`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator

from distributed import Client

from giaann_dask.diagnostics.monitoring.reporter import reporter_of
from giaann_dask.events import PromptsAdvanced
from giaann_dask.inference.best.continuation import TextContinuation
from giaann_dask.inference.best.handle import TablesHandle
from giaann_dask.inference.continuation import GenerationOptions
from giaann_dask.serving.engine import CompletionOptions, Ended, Given, Part, Token
from giaann_dask.serving.step_slots import with_step_slot
from giaann_dask.store.network_store import CommitReader


class WordEngine:
    """Engine over a commit of profile ``best``, whose tables are in this process.

    At most as many prompts do a step simultaneously as there are processors. There are no concept columns.

    Parameters
    ----------
    client : Client
        Where the tables are built; not needed after that.
    reader : CommitReader
        The commit that predicts.

    Raises
    ------
    ClusterError
        If the cluster does not build the tables in time.
    """

    def __init__(self, client: Client, reader: CommitReader) -> None:
        self._name, self._opened = (
            reader.path.resolve().name,
            TablesHandle(reader, client=client, observer=reporter_of(client)),
        )
        self._processors = threading.Semaphore(os.cpu_count() or 1)

    @property
    def name(self) -> str:
        """Name of the network's folder."""
        return self._name

    @property
    def commit(self) -> str:
        """Identity of the commit that predicts."""
        return self._opened.commit

    @property
    def draws(self) -> bool:
        """True: words have probabilities."""
        return True

    def trouble(self) -> str | None:
        """Return None: all tables are in this process."""
        return None

    def lost(self) -> bool:
        """Return False: all tables are in this process."""
        return False

    def close(self) -> None:
        """Do nothing: generations use no shared resources."""

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt; see `giaann_dask.serving.engine.Engine.complete`."""
        wanted = GenerationOptions(
            tokens=options.tokens, runners_up=max(options.candidates, 1), reasons=0, sampling=options.sampling
        )
        text = TextContinuation(self._opened.model, prompt, wanted)
        observe = self._opened.observer
        observe(PromptsAdvanced(entered=1))
        try:
            yield Given(text.prompt)
            for token in with_step_slot(iter(text), self._processors):
                if token is None:
                    yield None
                    continue
                observe(PromptsAdvanced(tokens=1))
                shown = token.candidates[: options.candidates]
                yield Token(token.word, "", token.candidates[0].value, token.candidate_count, shown)
            yield Ended(None)
        finally:
            observe(PromptsAdvanced(left=1))
