"""The tables of a commit of profile ``best``: made on a cluster, or in this process.

Covers: the task, and the model for those who ask it again and again. Does not cover: what the tables hold
(`best.tables`).
"""

from __future__ import annotations

from collections.abc import Sequence

from distributed import Client, Future

from giaann_dask.cluster import result, task_key
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.events import Observer, ignore
from giaann_dask.inference.best.scores import BEST, PooledModel
from giaann_dask.inference.best.tables import PooledTables, build_tables
from giaann_dask.inference.handle import read_regions, submit_regions
from giaann_dask.runs.run import Run
from giaann_dask.store.network_store import CommitReader


class TablesHandle:
    """The tables of a commit, in this process.

    Parameters
    ----------
    reader : CommitReader
        The commit, of profile ``best``.
    client : Client, optional
        Of the cluster that makes the tables; without one they are made here.
    observer : callable, optional
        Told of prompts that begin, advance and end.
    """

    def __init__(self, reader: CommitReader, *, client: Client | None = None, observer: Observer = ignore) -> None:
        self.commit, self.observer = reader.commit, observer
        if client is None:
            tables = pool_regions(read_regions(reader), str(reader.path), reader.commit)
        else:
            tables = result(submit_tables(client, reader))
        self.model = PooledModel(tables, BEST)


def submit_tables(client: Client, reader: CommitReader) -> Future:
    """Return the tables of a commit, made on the cluster."""
    path = str(reader.path)
    key = task_key("tables", path, reader.commit)
    return client.submit(pool_regions, submit_regions(client, reader), path, reader.commit, key=key)


def pool_regions(regions: Sequence[Run], path: str, commit: str) -> PooledTables:
    """Make the tables of a commit from the runs of its regions, as a task."""
    words = open_commit(path, commit).saved_vocabulary().features[1:]
    return build_tables(regions, words)
