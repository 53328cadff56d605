"""Join blocks into batches, and batches into rounds, by the shares of the workers that count them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from giaann_dask.encoding.stream import StreamedBlock

Places = Mapping[str, tuple[int, float]]
"""Batches of a round for each worker, and its share; worker "" for any."""


class PlacedBatch(NamedTuple):
    """Whole blocks that one task counts.

    Attributes
    ----------
    blocks : list of StreamedBlock
        In order.
    worker : str
        Address of the worker that counts it; empty for any.
    """

    blocks: list[StreamedBlock]
    worker: str = ""


def compose(
    blocks: Iterable[StreamedBlock], batch_sequences: int, places: Callable[[], Places]
) -> Iterator[list[PlacedBatch]]:
    """Yield the batches of one round after another, each as near to its wanted size as whole blocks allow.

    Parameters
    ----------
    blocks : iterable of StreamedBlock
        In order.
    batch_sequences : int
        Wanted sequences of a batch of a worker with the share 1.
    places : callable
        Called at the beginning of each round, as workers may have joined, left, or become slower. A worker with a
        smaller share gets smaller batches, or, where a block is larger than these, one of them in some rounds.
    """
    credit: dict[str, float] = {}
    turns: deque[tuple[str, float]] = deque()
    batches: list[PlacedBatch] = []
    batch: list[StreamedBlock] = []
    full = float(batch_sequences)
    for block in blocks:
        if not turns:
            turns = _turns(places(), credit, batch_sequences, full)
        batch.append(block)
        worker, wanted = turns[0]
        size, last = sum(each.mapping.sequences for each in batch), block.mapping.sequences
        if size + last / 2 < wanted:
            continue
        batches.append(PlacedBatch(batch, worker))
        turns.popleft()
        if worker in credit:
            credit[worker] -= size
        else:
            full = size
        batch = []
        while turns and turns[0][0] in credit and turns[0][1] < last / 2:
            turns.popleft()
        if not turns:
            yield batches
            batches = []
    if batch:
        batches.append(PlacedBatch(batch, turns[0][0]))
    if batches:
        yield batches


def _turns(places: Places, credit: dict[str, float], batch_sequences: int, full: float) -> deque[tuple[str, float]]:
    """Return workers with the sequences that each is to count in a round; those of smaller shares are credited."""
    turns: deque[tuple[str, float]] = deque()
    for worker in credit.keys() - places.keys():
        del credit[worker]
    for worker, (count, share) in sorted(places.items(), key=lambda place: -place[1][1]):
        if share == 1:
            credit.pop(worker, None)
            turns.extend([(worker, batch_sequences)] * count)
        else:
            credit[worker] = credit.get(worker, 0.0) + share * count * full
            turns.append((worker, credit[worker]))
    return turns
