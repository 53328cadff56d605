"""An engine that continues prompts with a network of profile ``best``.

Covers: opening the commit's tables here, and words token by token with their probabilities. Does not cover:
one continuation (`giaann_dask.inference.best.continuation`) and who asks (`line`).
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
    """Continues prompts from a commit of profile ``best``, whose tables are held here.

    As many prompts are in the middle of a step as there are processors. There are no concept columns.

    Parameters
    ----------
    client : Client
        Where the tables are made; not needed any more after that.
    reader : CommitReader
        The commit that answers.

    Raises
    ------
    ClusterError
        If the cluster does not make the tables in time.
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
        """Identity of the commit that answers."""
        return self._opened.commit

    @property
    def draws(self) -> bool:
        """True: words have probabilities."""
        return True

    def trouble(self) -> str | None:
        """Return None: all that is needed is here."""
        return None

    def lost(self) -> bool:
        """Return False, for the same reason."""
        return False

    def close(self) -> None:
        """Do nothing: what is under way holds nothing of others."""

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt; see `giaann_dask.serving.engine.Engine.complete`."""
        wanted = GenerationOptions(
            tokens=options.tokens, runners_up=max(options.candidates, 1), reasons=0, sampling=options.sampling
        )
        text = TextContinuation(self._opened.model, prompt, wanted)
        tell = self._opened.observer
        tell(PromptsAdvanced(entered=1))
        try:
            yield Given(text.prompt)
            for token in with_step_slot(iter(text), self._processors):
                if token is None:
                    yield None
                    continue
                tell(PromptsAdvanced(tokens=1))
                shown = token.candidates[: options.candidates]
                yield Token(token.word, "", token.candidates[0].value, token.candidate_count, shown)
            yield Ended(None)
        finally:
            tell(PromptsAdvanced(left=1))
