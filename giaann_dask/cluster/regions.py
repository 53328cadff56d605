"""Read the regions of a commit in tasks whose keys depend on the commit and the region alone.

A graph that names the key of a region that a worker has in memory, for prediction or for a table, is computed from it
there; otherwise the region is read from the store. `giaann_dask.inference.handle` opens all regions for prediction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from giaann_dask.cluster.sharing import open_commit
from giaann_dask.cluster.waiting import current_client, query_scheduler, task_key
from giaann_dask.dask_types import register
from giaann_dask.runs.merging import merge_encoded
from giaann_dask.runs.packing import unpack
from giaann_dask.runs.run import Run
from giaann_dask.store.network_store import CommitReader

# Workers have imported Dask when tasks are loaded there; a client registers what it submits.
if "dask" in sys.modules:
    register()


def open_region(path: str, commit: str, identities: Sequence[str]) -> Run:
    """Read the runs of a region and merge them, as a task."""
    reader = open_commit(path, commit)
    return merge_encoded([reader.connections(identity) for identity in identities], unpack)


def region_places(reader: CommitReader) -> Iterator[tuple[int, tuple[str, str, list[str]]]]:
    """Yield every live region with the arguments of `open_region`: path, commit, and the identities of its runs."""
    path, runs = str(reader.path), reader.manifest().runs_by_region()
    for region in reader.placement().live():
        yield region, (path, reader.commit, [run.identity for run in runs.get(region, ())])


def region_key(reader: CommitReader, region: int, name: str = open_region.__name__) -> str:
    """Return the key of a task about a region of a commit; by default of the one that reads it."""
    return task_key(name, str(reader.path), reader.commit, region)


def region_holders(reader: CommitReader, regions: Sequence[int]) -> dict[int, str]:
    """Return the worker that has each region in memory, of those that one has.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    regions : sequence of int
        Live regions.

    Returns
    -------
    dict of int to str
        The address of a worker of the current Dask client's cluster, by region; of several the first by address. Empty
        where there is no client.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    client = current_client()
    if client is None:
        return {}
    keys = {region: region_key(reader, region) for region in regions}
    found = query_scheduler(client, "who_has", keys=list(keys.values()))
    return {region: min(found[key]) for region, key in keys.items() if found.get(key)}
