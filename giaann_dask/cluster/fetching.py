"""Fetch results that workers have in memory, past the scheduler and without making them dependencies of a task.

Dask keeps the dependencies of a task in the memory of its worker, all of them at once, and beyond its end where others
need them. What is fetched here belongs to the caller alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster.locality import count_fetched
from giaann_dask.cluster.waiting import current_client
from giaann_dask.lazy import LazyModule

if TYPE_CHECKING:
    import distributed
    from distributed import Client, Worker
else:
    distributed = LazyModule("distributed")

# A worker that answers nothing for so long is taken to be lost.
_ANSWER_S = 60.0


def fetch(keys: Sequence[str]) -> dict[str, Any]:
    """Return the results of tasks that workers have in memory, by key; what none has, or sends in time, is left out.

    Parameters
    ----------
    keys : sequence of str
        Keys of tasks; nothing keeps their results meanwhile but the futures that exist already.
    """
    home = _home()
    if home is None or not keys:
        return {}
    answer = asyncio.run_coroutine_threadsafe(_fetch(home, keys), home.loop.asyncio_loop)
    try:
        found, received = answer.result()
    # Also where the time is over.
    except OSError:
        return {}
    count_fetched(received)
    return found


def _home() -> Worker | Client | None:
    """Return the worker that runs this task, else the client of this process; None if there is neither."""
    try:
        return distributed.get_worker()
    except ValueError:
        return current_client()


async def _fetch(home: Worker | Client, keys: Sequence[str]) -> tuple[dict[str, Any], list[Any]]:
    """Return the results, and those of them that other workers have sent."""
    from distributed.utils_comm import gather_from_workers

    own = home.data if isinstance(home, distributed.Worker) else {}
    found = {key: own[key] for key in keys if key in own}
    others = [key for key in keys if key not in found]
    if not others:
        return found, []
    holders = await asyncio.wait_for(home.scheduler.who_has(keys=others), _ANSWER_S)
    having = {key: addresses for key in others if (addresses := holders.get(key))}
    received, *_ = await asyncio.wait_for(gather_from_workers(having, home.rpc), _ANSWER_S)
    return found | received, list(received.values())
