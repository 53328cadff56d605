"""Open the regions of a commit on a cluster for prediction: whole regions for tasks, or rows on request.

Which of the two depends on the workers' memory. Whether the rows are still available is checked within a bounded time;
nothing is repaired here. Does not cover: requests (`giaann_dask.rows.remote`).
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import Roles, query_scheduler, roles_of, task_key, wait_all
from giaann_dask.cluster.regions import held_runs, merge_region, region_holders, submit_by_region, submit_runs
from giaann_dask.cluster.roles import directed
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import register
from giaann_dask.rows.protocol import OPERATION, RowOptions, RowProjection
from giaann_dask.rows.remote import RegionKeys
from giaann_dask.runs.placement import Placement
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client, Future

# Workers have imported Dask when tasks are loaded there; a client registers what it submits.
if "dask" in sys.modules:
    register()

_PATIENCE_S = 1.0
# The reason that nothing here mends.
LOST = "the connection to the cluster is lost"


@dataclass(frozen=True, eq=False)
class RegionHandles:
    """The regions of a commit on a cluster, kept there as long as this value exists.

    Attributes
    ----------
    client : Client
        Of the cluster.
    futures : tuple of Future
        Of a merged `Run` for each live region, in the order of `Placement.live`; where rows are requested, of a
        `PackedRegionRun` for each run.
    keys : RegionKeys or None
        Keys for row requests to the regions' workers; None where tasks get the regions themselves.
    submit_kwargs : dict
        Arguments of `Client.submit` for tasks that use the regions, which restrict those that request rows to compute
        workers.
    holders : mapping of int to str
        Compute worker that held each region when it was opened, where rows are requested.
    """

    client: Client
    futures: tuple[Future, ...]
    keys: RegionKeys | None
    submit_kwargs: dict[str, Any]
    holders: Mapping[int, str] = field(default_factory=dict)

    def near(self, regions: Iterable[int]) -> dict[str, Any]:
        """Return arguments of `Client.submit` by which a task prefers the worker that holds most of some regions.

        A region that is named more than once counts as often.
        """
        count = Counter(self.holders[region] for region in regions if region in self.holders)
        return directed(max(count, key=lambda worker: count[worker], default=""))

    @property
    def argument(self) -> list[Future] | RegionKeys:
        """Argument of a task for `giaann_dask.rows.remote.row_source`."""
        return list(self.futures) if self.keys is None else self.keys

    @property
    def identity(self) -> tuple[object, ...]:
        """Part of the keys of tasks that use the regions."""
        return (self.keys is None, [future.key for future in self.futures])

    def health(self, within_s: float) -> str | None:
        """Return why rows are unavailable now; see `giaann_dask.rows.regions.find_fault`."""
        return None if self.keys is None else find_fault(self.client, self.keys, within_s)

    def lost(self) -> bool:
        """Return whether rows will never be had again, because the cluster that held them is lost."""
        return self.keys is not None and is_lost(self.client, self.keys)


def open_regions(client: Client, reader: CommitReader, options: RowOptions) -> RegionHandles:
    """Open the regions of a commit on the workers that store them.

    Runs that workers have in memory already, as those of a training, are used there. Where rows are requested, that is
    all that the cluster holds of the network; where regions are replicated, each is merged from its runs. For rows,
    this waits until all runs are there, as a task that requests rows occupies the thread of one that reads.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """
    roles = roles_of(client)
    if not rows_are_remote(client, reader, options):
        where = roles.anywhere()
        return RegionHandles(client, tuple(submit_by_region(client, reader, merge_region, **where)), None, where)
    runs = submit_runs(client, reader, **roles.storing())
    wait_all([future for its in runs.values() for future in its])
    return _requested(client, reader, options, runs, roles)


def open_prompt_regions(client: Client, reader: CommitReader, options: RowOptions) -> RegionHandles | None:
    """Open the regions of a commit for one prompt; None where its task had better read rows from the store.

    Opening all regions costs more than the rows that one prompt reads. So this is done where workers have them in
    memory, as those of a persisted network, and where the options or the size of the network say it.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """
    runs = held_runs(client, reader) if options.mode == "auto" else {}
    if runs and _keeps_clients_apart(client, reader):
        return _requested(client, reader, options, runs, roles_of(client))
    if options.mode == "auto" and not rows_are_remote(client, reader, options):
        return None
    return open_regions(client, reader, options)


def _keeps_clients_apart(client: Client, reader: CommitReader) -> bool:
    """Return whether a task's client outlives this one, or the network is persisted.

    Workers in this process take its client as their own, and keep it when it is closed.
    """
    from giaann_dask.cluster.persistence import is_published

    in_process = str(client.scheduler.address).startswith("inproc://")
    return not in_process or is_published(client, str(reader.path))


def _requested(
    client: Client, reader: CommitReader, options: RowOptions, runs: Mapping[int, Sequence[Future]], roles: Roles
) -> RegionHandles:
    """Return regions whose rows tasks request from the workers that have the runs."""
    from giaann_dask.cluster.worker_services import remove_service
    from giaann_dask.rows.service import install

    user = install(client)
    keys = {region: tuple(str(future.key) for future in its) for region, its in runs.items()}
    snapshot = RegionKeys(f"{reader.path} {reader.commit}", keys, options)
    futures = tuple(future for its in runs.values() for future in its)
    holders = {
        region: holder
        for region, holder in region_holders(reader, tuple(keys), client).items()
        if holder in roles.compute
    }
    handles = RegionHandles(client, futures, snapshot, roles.computing(), holders)
    weakref.finalize(handles, remove_service, client, user).atexit = False
    return handles


def rows_are_remote(client: Client, reader: CommitReader, options: RowOptions) -> bool:
    """Return whether tasks request rows instead of getting all regions; see `RowOptions.mode`."""
    if options.mode != "auto":
        return options.mode == "remote"
    workers = query_scheduler(client, "identity", n_workers=-1)["workers"]
    if all(address.startswith("inproc://") for address in workers):
        return False
    limits = [int(worker["memory_limit"]) for worker in workers.values() if worker.get("memory_limit")]
    return bool(limits) and opened_bytes(reader) > options.replicated_share * min(limits)


def opened_bytes(reader: CommitReader) -> int:
    """Return an upper bound of the bytes that the regions of a commit take in memory.

    It is reached where runs of a region have no connections in common.
    """
    runs = reader.manifest().runs
    return sum(12 * run.connections + 16 * run.neurons for run in runs)


def open_placement(path: str, commit: str) -> Placement:
    """Read the placement of a commit, as a task."""
    return open_commit(path, commit).placement()


def submit_placement(client: Client, reader: CommitReader, **where: Any) -> Future:
    """Submit the reading of the placement; further arguments are those of `Client.submit`."""
    place = (str(reader.path), reader.commit)
    return client.submit(open_placement, *place, key=task_key("open_placement", *place), **where)


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
        return "the scheduler does not respond"
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
