"""Continue one prompt with a network of any model: in this process, or as one task of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import result, task_key
from giaann_dask.models import model_of
from giaann_dask.models.base import Predictor, WorkerOpening
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.predict.continuation import Continuation
from giaann_dask.predict.sessions import Sessions
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client


class PromptOpening:
    """Opening of a persisted commit on workers, kept for later prompts, as it takes longer than a few tokens."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], WorkerOpening] | None = None

    def get(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """Return how tasks open the commit for one prompt; see `Model.open_for_prompt_on_workers`."""
        from giaann_dask.cluster.persistence import is_published

        what = (client.id, reader.commit, options.rows, options.reads_strengths, options.inference, options.tagger)
        persisted = is_published(client, str(reader.path))
        if persisted and self._kept is not None and self._kept[0] == what and not self._kept[1].lost():
            return self._kept[1]
        # Let go before the next one is made: it keeps runs on the workers.
        self._kept = None
        model = model_of(reader.manifest().specification)
        opening = model.open_for_prompt_on_workers(client, reader, options)
        if persisted:
            self._kept = what, opening
        return opening


def generate(
    client: Client | None,
    reader: CommitReader,
    prompt: str,
    options: GenerationOptions,
    opening: PromptOpening | None = None,
) -> Continuation:
    """Continue a prompt.

    Parameters
    ----------
    client : Client or None
        Of the cluster that holds the network; without one its rows are read into this process.
    reader : CommitReader
        The commit that predicts.
    prompt : str
        Some words. All of them are given; prediction starts after them.
    options : GenerationOptions
        How much is generated.
    opening : PromptOpening, optional
        That of earlier prompts.

    Raises
    ------
    PromptError
        If the prompt cannot be continued.
    OptionError
        If the options do not fit the network.
    """
    specification = reader.manifest().specification
    model = model_of(specification)
    model.require_fit(specification, options)
    # Drawn here, because a task that is run again has to give the same words.
    options = options.seeded()
    if client is None:
        found = continue_prompt(model.open_for_prompt(reader, options), prompt, options)
    else:
        opened = (opening or PromptOpening()).get(client, reader, options)
        key = task_key("generate", reader.commit, str(reader.path), prompt, options)
        task = (continue_in_task, opened.task, prompt, options, *opened.arguments)
        found = result(client.submit(*task, key=key, **opened.where, **opened.near(prompt)))
    return replace(found, network=str(reader.path))


def continue_in_task(
    opening: Callable[..., Predictor], prompt: str, options: GenerationOptions, *arguments: Any
) -> Continuation:
    """Open a commit and continue a prompt, as a task."""
    return continue_prompt(opening(*arguments), prompt, options)


def continue_prompt(opened: Predictor, prompt: str, options: GenerationOptions) -> Continuation:
    """Continue a prompt as a batch of one, with an opened commit."""
    before = opened.row_figures
    try:
        with Sessions(opened, [prompt], options=options, batch=BatchOptions(slots=1)) as session:
            found = next(session.continuations())
        rows = opened.row_figures
        return found if before is None or rows is None else replace(found, rows=rows - before)
    finally:
        opened.release()
