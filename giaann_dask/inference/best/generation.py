"""Continue a prompt with profile ``best`` as a task of a cluster.

Does not cover: one continuation (`giaann_dask.inference.best.continuation`), many prompts in this process
(`giaann_dask.inference.best.handle`), and networks of columns (`giaann_dask.inference.generation`).
"""

from __future__ import annotations

from distributed import Client

from giaann_dask.cluster import result, task_key
from giaann_dask.device import one_thread
from giaann_dask.inference.best.continuation import TextContinuation
from giaann_dask.inference.best.handle import submit_tables
from giaann_dask.inference.best.scores import BEST, PooledModel
from giaann_dask.inference.best.tables import PooledTables
from giaann_dask.inference.continuation import Continuation, GeneratedToken, GenerationOptions
from giaann_dask.store.network_store import CommitReader


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
