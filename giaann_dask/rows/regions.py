"""Open the regions of a commit on a cluster for prediction: whole regions for tasks, or rows on request.

Which of the two depends on the workers' memory. Does not cover: requests (`giaann_dask.rows.remote`).
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import query_scheduler, roles_of, task_key, wait_all
from giaann_dask.cluster.regions import merge_region, submit_by_region, submit_runs
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import register
from giaann_dask.rows.remote import RegionKeys
from giaann_dask.rows.row_options import RowOptions
from giaann_dask.runs.placement import Placement
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client, Future

# Workers have imported Dask when tasks are loaded there; a client registers what it submits.
if "dask" in sys.modules:
    register()


@dataclass(frozen=True, eq=False)
class RegionHandles:
    """The regions of a commit on a cluster, kept there as long as this value exists.

    Attributes
    ----------
    futures : tuple of Future
        Of a merged `Run` for each live region, in the order of `Placement.live`; where rows are requested, of a
        `PackedRegionRun` for each run.
    keys : RegionKeys or None
        Keys for row requests to the regions' workers; None where tasks get the regions themselves.
    submit_kwargs : dict
        Arguments of `Client.submit` for tasks that use the regions, which restrict those that request rows to compute
        workers.
    """

    futures: tuple[Future, ...]
    keys: RegionKeys | None
    submit_kwargs: dict[str, Any]

    @property
    def argument(self) -> list[Future] | RegionKeys:
        """Argument of a task for `giaann_dask.rows.remote.row_source`."""
        return list(self.futures) if self.keys is None else self.keys

    @property
    def identity(self) -> tuple[object, ...]:
        """Part of the keys of tasks that use the regions."""
        return (self.keys is None, [future.key for future in self.futures])


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
    if not rows_are_remote(client, reader, options):
        where = roles_of(client).anywhere()
        return RegionHandles(tuple(submit_by_region(client, reader, merge_region, **where)), None, where)
    from giaann_dask.rows.service import install, remove

    user = install(client)
    roles = roles_of(client)
    runs = submit_runs(client, reader, **roles.storing())
    futures = tuple(future for its in runs.values() for future in its)
    wait_all(futures)
    keys = {region: tuple(str(future.key) for future in its) for region, its in runs.items()}
    snapshot = f"{reader.path} {reader.commit}"
    handles = RegionHandles(futures, RegionKeys(snapshot, keys, options), roles.computing())
    weakref.finalize(handles, remove, client, user).atexit = False
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
