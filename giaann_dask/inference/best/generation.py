"""Generation with profile ``best``: one prompt as a task of a cluster, or many in this process.

Covers: prompts that are continued in turn, and the task. Does not cover: one continuation
(`best.writing`), the tables of a commit (`best.opened`), and networks of columns (`generation`, `sessions`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from distributed import Client

from giaann_dask.cluster import result, task_key
from giaann_dask.device import one_thread
from giaann_dask.errors import PromptError
from giaann_dask.events import PromptsAdvanced
from giaann_dask.inference.best.continuation import TextContinuation
from giaann_dask.inference.best.handle import TablesHandle, submit_tables
from giaann_dask.inference.best.scores import BEST, PooledModel
from giaann_dask.inference.best.tables import PooledTables
from giaann_dask.inference.continuation import Continuation, GeneratedToken, GenerationOptions
from giaann_dask.inference.token_events import ContinuationStream, TokenEvent
from giaann_dask.store.network_store import CommitReader


class WordSessions(ContinuationStream):
    """Many prompts that are continued in turn, token by token; see `ContinuationStream`.

    Parameters
    ----------
    opened : TablesHandle
        The commit that answers.
    prompts : iterable of str
        Some words each; may be endless.
    options : GenerationOptions
        How much is generated.
    slots : int
        Prompts that are under way at once.

    Raises
    ------
    OptionError
        If options are set that only networks of columns have.
    """

    def __init__(
        self, opened: TablesHandle, prompts: Iterable[str], *, options: GenerationOptions, slots: int = 1
    ) -> None:
        options.require_words()
        self._opened, self._options, self._slots = opened, options, slots
        super().__init__(opened.commit, self._run(iter(prompts)))

    def _run(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        under: dict[int, TextContinuation] = {}
        try:
            yield from self._advance(prompts, under)
        finally:
            self._opened.observer(PromptsAdvanced(left=len(under)))

    def _advance(self, prompts: Iterator[str], under: dict[int, TextContinuation]) -> Generator[TokenEvent, None, None]:
        waiting, tell, more = enumerate(prompts), self._opened.observer, True
        while more or under:
            while more and len(under) < self._slots:
                number, prompt = next(waiting, (-1, ""))
                more = number >= 0
                if more:
                    try:
                        text = TextContinuation(self._opened.model, prompt, self._options.seeded())
                    except PromptError as error:
                        yield TokenEvent(number, None, True, error=error)
                        continue
                    self._words[number], under[number] = text.prompt, text
                    tell(PromptsAdvanced(entered=1))
            for number in [*under]:
                text = under[number]
                with one_thread():
                    token = next(text, None)
                if token is None:
                    del under[number]
                tell(PromptsAdvanced(left=int(token is None), tokens=int(token is not None)))
                yield TokenEvent(number, token, token is None, seed=text.seed)


def generate_words(client: Client, reader: CommitReader, prompt: str, options: GenerationOptions) -> Continuation:
    """Continue a prompt with a network of profile ``best``.

    Parameters
    ----------
    client : Client
        Where the network is held.
    reader : CommitReader
        The commit that answers.
    prompt : str
        Some words.
    options : GenerationOptions
        How much is generated.

    Raises
    ------
    PromptError
        If the prompt has no word.
    OptionError
        If options are set that only networks of columns have.
    """
    options.require_words()
    # Drawn here, because a task that is run again has to give the same words.
    options = options.seeded()
    key = task_key("write", str(reader.path), reader.commit, prompt, options)
    words, tokens = result(client.submit(continue_text, submit_tables(client, reader), prompt, options, key=key))
    return Continuation(words, tokens, None, reader.commit, seed=options.sampling.seed)


def continue_text(
    tables: PooledTables, prompt: str, options: GenerationOptions
) -> tuple[tuple[str, ...], tuple[GeneratedToken, ...]]:
    """Return the words of a prompt and what follows, as a task."""
    text = TextContinuation(PooledModel(tables, BEST), prompt, options)
    with one_thread():
        return text.prompt, tuple(text)
