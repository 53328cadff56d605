"""Advance prompts in a batch by itself; predictors and evaluations have loops of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from giaann_dask.models.columns.batch import Advance, Batch, Prompt


def run_prompts(batch: Batch, prompts: Iterable[Prompt]) -> Iterator[Advance]:
    """Advance prompts to their ends; each enters as soon as a slot is free.

    Parameters
    ----------
    batch : Batch
        An empty one; the numbers in what is yielded count the prompts that entered it.
    prompts : iterable of Prompt
        Drawn from as slots become free.

    Yields
    ------
    Advance
        As `Batch.step` returns them.
    """
    waiting = iter(prompts)
    more = True
    while more or len(batch):
        while more and batch.free_slots:
            prompt = next(waiting, None)
            more = prompt is not None
            if prompt is not None:
                batch.enter(prompt)
        yield from batch.step()
