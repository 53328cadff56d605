"""Open the runs of a commit at the owners of their regions, and keep them there for every client of the cluster.

`giaann_dask.cluster.persistence` publishes them.
"""

from __future__ import annotations

from distributed import Client, Future

from giaann_dask.cluster import wait_all
from giaann_dask.cluster.persistence import publish_runs, unpublish_runs
from giaann_dask.cluster.regions import open_run, run_places
from giaann_dask.cluster.worker_services import remove_service
from giaann_dask.rows.messages import NAME
from giaann_dask.rows.service import install
from giaann_dask.store.commits import CommitReader
from giaann_dask.training.region_tasks import RegionTasks


def persist_commit(client: Client, reader: CommitReader) -> None:
    """Keep the runs of a commit in the memory of the workers that own its regions, until they are unpublished.

    Runs that workers have are used; the others are read from the store, by the owner of their region. An earlier commit
    of the network is let go.

    Parameters
    ----------
    client : Client
        Of the cluster.
    reader : CommitReader
        The commit.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    StoreUnsharedError
        If a worker cannot access the network.
    """
    places = dict(run_places(reader))
    nbytes = dict.fromkeys(places, 0)
    for run in reader.manifest().runs:
        nbytes[run.region] += run.nbytes
    tasks = RegionTasks(client)
    tasks.begin_with(reader, list(places))
    tasks.assign(nbytes)
    with tasks.submitter.together():
        runs: dict[int, list[Future]] = {
            region: [tasks.submit_at_owner(region, key, open_run, *place) for key, place in its.items()]
            for region, its in places.items()
        }
    wait_all([future for its in runs.values() for future in its])
    # Rows that workers have decoded stay there between prompts.
    install(client, str(reader.path))
    publish_runs(client, str(reader.path), reader.commit, runs)


def unpersist_network(client: Client, path: str) -> bool:
    """Let workers release the runs of a network that `persist_commit` keeps; return whether there were any.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    remove_service(client, f"{NAME}-{path}")
    return unpublish_runs(client, path)
