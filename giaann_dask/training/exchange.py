"""Fetch an owner's parts of increments from the workers that counted them, past the scheduler.

A round has one task for each batch that offers its increments (`offer`), and one for each owner that fetches its part
of every batch and adds them up (`collect`); a task for each pair of both is what this saves. Parts are no values of
their own: increments stay results of their tasks, which Dask counts, spills and moves, and which it computes again
when their worker is lost. As long as an offer exists, the increments are wanted, so lineage is that of other tasks.

Every message names increments by the key of their task, a hash of all that determines them. So whichever attempt
computed them, they are the same bytes, and no answer can be one of an earlier attempt. Nothing is sent that nobody has
asked for, so nothing waits at a receiver. Where increments are nowhere within a bounded time, the task fails with a
`giaann_dask.errors.LostPartsError`; whoever waits for it has it begin again, with all its offers
(`giaann_dask.cluster.waiting.results`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import distributed
from distributed import Worker
from distributed.protocol import to_serialize

from giaann_dask.cluster.locality import count_increments
from giaann_dask.cluster.waiting import beside_tasks, want
from giaann_dask.cluster.worker_services import WorkerService, send_message
from giaann_dask.errors import LostPartsError
from giaann_dask.training import tasks
from giaann_dask.training.tasks import Increment, RunTable

Parts = dict[int, Increment]

# A task that waits longer leaves its thread to others, which may have to compute what it waits for.
_PATIENCE_S = 1.0
LOST_AFTER_S = 20.0
"""Seconds in which increments that no worker has may be computed again."""
_ANSWER_S, _CONNECT_S = 10.0, 3.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0
# Workers that are asked at the same time.
_CONCURRENT = 16


@dataclass(frozen=True, eq=False)
class Offer:
    """Increments of a batch that owners may fetch their parts of.

    Attributes
    ----------
    key : str
        Of the task whose result they are.
    worker : str
        Address of the worker that had them then.
    wanted : Future, optional
        Keeps them in the memory of the cluster; stays on the worker that made the offer.
    """

    key: str
    worker: str
    wanted: Any = None

    def __reduce__(self) -> tuple[type[Offer], tuple[str, str]]:
        """Leave out what cannot be sent."""
        return Offer, (self.key, self.worker)


class PartService(WorkerService):
    """Answers requests for parts of the increments that a worker has.

    Attributes
    ----------
    messages : int
        Requests answered so far.
    """

    name = "giaann-exchange"
    operation = "giaann_parts"

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.messages = 0

    async def answer(self, keys: Sequence[str], regions: Sequence[int]) -> dict[str, Any]:  # type: ignore[override]
        """Answer one request; called on the event loop.

        Parameters
        ----------
        keys : sequence of str
            Increments.
        regions : sequence of int
            What is wanted of them.

        Returns
        -------
        dict
            ``parts``: by key, increments by region; those that this worker does not have are left out.
        """
        self.messages += 1
        return {"parts": to_serialize(_parts_here(self._worker, keys, regions))}


def offer(increments: Parts, key: str) -> Offer:
    """Keep the increments of a batch, the result of the task with a key, in memory as long as the offer exists."""
    return Offer(key, distributed.get_worker().address, want(distributed.get_client(), key))


def collect(regions: Sequence[int], *offers: Offer, owner_anchor: int | None = None) -> RunTable:
    """Fetch the parts of offered increments for the regions of one owner, and add them up.

    Raises
    ------
    LostPartsError
        If increments are nowhere within some time.
    """
    worker = distributed.get_worker()
    fetching = asyncio.run_coroutine_threadsafe(_fetch(worker, offers, regions), worker.loop.asyncio_loop)
    try:
        parts = fetching.result(_PATIENCE_S)
    except TimeoutError:
        with beside_tasks():
            parts = fetching.result(LOST_AFTER_S + 2 * _ANSWER_S)
    return tasks.integrate_table(regions, *parts)


async def _fetch(worker: Worker, offers: Sequence[Offer], regions: Sequence[int]) -> list[Parts]:
    """Request parts until all are here, from the worker that offered them, then from those that the scheduler names."""
    found: dict[str, Parts] = {}
    places = {each.key: each.worker for each in offers}
    deadline, pause, limit = time.monotonic() + LOST_AFTER_S, _FIRST_PAUSE_S, asyncio.Semaphore(_CONCURRENT)
    while True:
        by_worker: dict[str, list[str]] = {}
        for key, address in places.items():
            by_worker.setdefault(address, []).append(key)
        asked = (_ask(worker, address, keys, regions, limit) for address, keys in by_worker.items())
        for answer in await asyncio.gather(*asked):
            found |= answer
        missing = [each.key for each in offers if each.key not in found]
        if not missing:
            return [found[each.key] for each in offers]
        if time.monotonic() > deadline:
            raise LostPartsError(
                f"no worker has {len(missing)} of {len(offers)} increments any more", "workers that stay alive"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE_S)
        places = await _holders(worker, missing)


async def _holders(worker: Worker, keys: Collection[str]) -> dict[str, str]:
    """Return a worker that has each of some increments, of those that one has."""
    try:
        call = worker.scheduler.who_has(keys=list(keys))
        holders: dict[str, list[str]] = await asyncio.wait_for(call, _ANSWER_S)
    except OSError:
        return {}
    return {key: min(its, key=lambda one: (one != worker.address, one)) for key, its in holders.items() if its}


async def _ask(
    worker: Worker, address: str, keys: Sequence[str], regions: Sequence[int], limit: asyncio.Semaphore
) -> dict[str, Parts]:
    """Return parts by key, of those that a worker has; none of one that does not answer."""
    if address == worker.address:
        return _parts_here(worker, keys, regions)
    message = {"op": PartService.operation, "keys": list(keys), "regions": list(regions)}
    async with limit:
        began = time.perf_counter()
        try:
            answer = await asyncio.wait_for(send_message(worker, address, _CONNECT_S, message), _ANSWER_S)
        except OSError:
            return {}
    parts: dict[str, Parts] = answer["parts"]
    runs = (run for its in parts.values() for run in its.values())
    count_increments(runs, worker, address, time.perf_counter() - began)
    return parts


def _parts_here(worker: Worker, keys: Iterable[str], regions: Sequence[int]) -> dict[str, Parts]:
    """Return parts of the increments that a worker has itself, by key."""
    data = worker.data
    every = {key: data[key] for key in keys if key in data}
    return {key: {region: its[region] for region in regions if region in its} for key, its in every.items()}
