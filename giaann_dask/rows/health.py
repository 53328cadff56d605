"""Check within a bounded time whether the rows of an opened network are available.

The connection to the cluster, its scheduler and the workers that hold regions are checked; nothing is repaired here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from giaann_dask.rows.messages import OPERATION, RowProjection
from giaann_dask.rows.remote import RegionKeys

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE_S = 1.0
# The reason that nothing here mends.
LOST = "the connection to the cluster is lost"


def is_lost(client: Client, regions: RegionKeys) -> bool:
    """Return whether a client will never have rows of the regions again that it has opened, without asking anybody."""
    # A client that has lost its scheduler forgets its futures at once, also when it finds another one.
    return client.status != "running" or not all(key in client.futures for key in _keys(regions))


def find_fault(client: Client, regions: RegionKeys, within_s: float) -> str | None:
    """Return why rows are unavailable, None when every region has a worker that answers.

    Parameters
    ----------
    client : Client
        That has opened the regions and keeps them.
    regions : RegionKeys
        Which tasks hold them.
    within_s : float
        Seconds for the answers of the scheduler, and again for those of the workers.

    Returns
    -------
    str or None
        The reason, without addresses, so that anybody may read it.
    """
    if is_lost(client, regions):
        return LOST
    look = asyncio.run_coroutine_threadsafe(_find_problem(client, regions, within_s), client.loop.asyncio_loop)
    try:
        return look.result(2 * within_s + _PATIENCE_S)
    except (TimeoutError, CancelledError):
        return "the cluster does not answer"


async def _find_problem(client: Client, regions: RegionKeys, within_s: float) -> str | None:
    if client.scheduler is None:
        return LOST
    try:
        having = await asyncio.wait_for(client.scheduler.who_has(keys=_keys(regions)), within_s)
    except OSError:
        return "the scheduler does not answer"
    holders = [[set(having.get(key, ())) for key in its] for its in regions.keys.values()]
    answering = await _answering(client, {one for its in holders for some in its for one in some}, within_s)
    without = sum(not all(some & answering for some in its) for its in holders)
    if without:
        return f"{without} of {len(holders)} regions of the network are held by no worker that answers"
    return None


def _keys(regions: RegionKeys) -> list[str]:
    return [key for its in regions.keys.values() for key in its]


async def _answering(client: Client, workers: Iterable[str], within_s: float) -> set[str]:
    """Return which workers answer a question for no rows in time."""
    asked = sorted(workers)
    calls = (asyncio.wait_for(_ping(client, worker, within_s), within_s) for worker in asked)
    failures = await asyncio.gather(*calls, return_exceptions=True)
    return {worker for worker, failure in zip(asked, failures, strict=True) if failure is None}


async def _ping(client: Client, worker: str, within_s: float) -> None:
    from distributed.core import send_recv

    comm = await client.rpc.connect(worker, timeout=within_s)
    try:
        message = {"op": OPERATION, "questions": [], "projection": RowProjection().as_message()}
        await send_recv(comm, **message, limit=0)
    finally:
        client.rpc.reuse(worker, comm)
