"""Open the tables of a commit of profile ``best`` in tasks, and send them to other processes by name.

`giaann_dask.inference.best.tables` defines the tables, and `giaann_dask.inference.best.table_files` stores them where
all processes of a machine map them.
"""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import open_region, region_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import measure
from giaann_dask.inference.best.table_files import has_tables, open_tables
from giaann_dask.inference.best.tables import PooledTables, build_tables
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client, Future


class CommitTables:
    """The tables of a commit, which are opened where they are first needed.

    Where they are stored in files, they are pickled as the place of the commit. So another process of the machine maps
    the files, and one of another machine, which has none, builds the tables from the commit.

    Parameters
    ----------
    path, commit : str
        Of the commit; see `place_of`.
    tables : PooledTables, optional
        Its tables, if they are open.
    """

    def __init__(self, path: str, commit: str, tables: PooledTables | None = None) -> None:
        self._path, self._commit, self._tables = path, commit, tables

    @property
    def tables(self) -> PooledTables:
        """The tables."""
        if self._tables is None:
            self._tables = read_tables(self._path, self._commit)
        return self._tables

    def _sent(self) -> PooledTables | None:
        """Return the tables if they have to be sent."""
        return None if has_tables(self._commit) else self._tables

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make these tables in another process."""
        return CommitTables, (self._path, self._commit, self._sent())

    def __sizeof__(self) -> int:
        """Return the bytes that are sent to another process, from which Dask estimates how long that takes."""
        sent = self._sent()
        return object.__sizeof__(self) + (0 if sent is None else measure(sent))


def opened(tables: PooledTables | CommitTables) -> PooledTables:
    """Return tables that a task was given."""
    return tables.tables if isinstance(tables, CommitTables) else tables


def place_of(reader: CommitReader) -> tuple[str, str]:
    """Return the path and the commit of a reader, the arguments of `read_tables`."""
    return str(reader.path), reader.commit


def read_tables(path: str, commit: str) -> PooledTables:
    """Return the tables of a commit; see `giaann_dask.inference.best.table_files`."""
    reader = open_commit(path, commit)

    def build() -> PooledTables:
        places = [place for _, place in region_places(reader)]
        return build_tables(_read_ahead(places), reader.saved_vocabulary().features[1:])

    return open_tables(commit, build)


def _read_ahead(places: Sequence[tuple[str, str, list[str]]]) -> Iterator[Run]:
    """Yield the regions at some places; while one is used, the next one is read."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following: deque[concurrent.futures.Future[Run]] = deque()
        for place in places:
            following.append(pool.submit(open_region, *place))
            if len(following) > 1:
                yield following.popleft().result()
        while following:
            yield following.popleft().result()


def open_commit_tables(path: str, commit: str) -> CommitTables:
    """Open the tables of a commit, as a task; they are built and stored if they are not yet."""
    return CommitTables(path, commit, read_tables(path, commit))


def submit_tables(client: Client, reader: CommitReader) -> Future:
    """Return the `CommitTables` of a commit, opened on the cluster."""
    return client.submit(open_commit_tables, *place_of(reader), key=task_key("tables", *place_of(reader)))
