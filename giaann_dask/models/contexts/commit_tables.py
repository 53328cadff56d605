"""Open the tables of a commit of profile ``contexts`` in tasks, and send them to other processes by name.

`giaann_dask.models.contexts.tables` defines the tables, and `giaann_dask.models.contexts.table_files` stores them where
all processes of a machine map them.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import held_runs, merge_region, open_region, region_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.cluster.waiting import ask_workers, fetch
from giaann_dask.dask_types import measure
from giaann_dask.errors import StoreRefusedError
from giaann_dask.models.contexts.table_files import has_tables, open_tables, remove_tables, tables_folder
from giaann_dask.models.contexts.tables import PackedTables, collect_counts
from giaann_dask.runs.run import Run
from giaann_dask.storage import first_line, writing
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client, Future


# Of each live region the keys of the tasks whose results are its runs, as `PackedRegionRun`, where workers had all runs
# of a commit in memory. What no worker has any more is read from the store.
HeldRuns: TypeAlias = Mapping[int, tuple[str, ...]]

_STORED: HeldRuns = {}


class CommitTables:
    """The tables of a commit, which are opened where they are first needed.

    Where they are stored in files, they are pickled as the place of the commit. So another process of the machine maps
    the files, and one of another machine, which has none, builds the tables there.

    Parameters
    ----------
    path, commit : str
        Of the commit; see `place_of`.
    tables : PackedTables, optional
        Its tables, if they are open.
    held : HeldRuns
        See `read_tables`.
    """

    def __init__(self, path: str, commit: str, tables: PackedTables | None = None, held: HeldRuns = _STORED) -> None:
        self._path, self._commit, self._tables, self._held = path, commit, tables, held

    @property
    def tables(self) -> PackedTables:
        """The tables."""
        if self._tables is None:
            self._tables = read_tables(self._path, self._commit, self._held)
        return self._tables

    def _sent(self) -> PackedTables | None:
        """Return the tables if they have to be sent."""
        return None if has_tables(self._path, self._commit) else self._tables

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make these tables in another process."""
        return CommitTables, (self._path, self._commit, self._sent(), self._held)

    def __sizeof__(self) -> int:
        """Return the bytes that are sent to another process, from which Dask estimates how long that takes."""
        sent = self._sent()
        return object.__sizeof__(self) + (0 if sent is None else measure(sent))


def opened(tables: PackedTables | CommitTables) -> PackedTables:
    """Return tables that a task was given."""
    return tables.tables if isinstance(tables, CommitTables) else tables


def place_of(reader: CommitReader) -> tuple[str, str]:
    """Return the path and the commit of a reader, the arguments of `read_tables`."""
    return str(reader.path), reader.commit


def read_tables(path: str, commit: str, held: HeldRuns = _STORED) -> PackedTables:
    """Return the tables of a commit; see `giaann_dask.models.contexts.table_files`.

    Parameters
    ----------
    path, commit : str
        See `place_of`.
    held : HeldRuns
        Runs in the memory of workers, from which the tables are built, a region at a time; the same tables as those of
        the stored runs.
    """
    reader = open_commit(path, commit)

    def build() -> PackedTables:
        places = dict(region_places(reader))

        def opening(group: tuple[int, ...]) -> Callable[[], Run]:
            keys = [key for region in group for key in held.get(region, ())]
            return partial(_open_group, [places[region] for region in group], keys)

        groups = map(opening, reader.placement().groups())
        return collect_counts(_read_ahead([*groups]), reader.saved_vocabulary().features[1:]).packed()

    return open_tables(path, commit, reader.fingerprint, build)


def _open_group(places: Sequence[tuple[str, str, list[str]]], keys: Sequence[str]) -> Run:
    """Return the merged runs of regions with rows in common, from the memory of workers if they have all of them."""
    found = fetch(keys)
    if keys and len(found) == len(keys):
        return merge_region(*(found[key] for key in keys))
    path, commit, _ = places[0]
    return open_region(path, commit, [identity for *_, runs in places for identity in runs])


def _read_ahead(regions: Sequence[Callable[[], Run]]) -> Iterator[Run]:
    """Yield the results of functions that open regions; while one is used, the next one is opened."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following: deque[concurrent.futures.Future[Run]] = deque()
        for opening in regions:
            # In the context of this task, so that its worker is known.
            following.append(pool.submit(contextvars.copy_context().run, opening))
            if len(following) > 1:
                yield following.popleft().result()
        while following:
            yield following.popleft().result()


def open_commit_tables(path: str, commit: str, held: HeldRuns) -> CommitTables:
    """Open the tables of a commit, as a task; they are built and stored if they are not yet."""
    return CommitTables(path, commit, read_tables(path, commit, held), held)


def submit_tables(client: Client, reader: CommitReader) -> Future:
    """Return the `CommitTables` of a commit, opened on the cluster.

    Where workers have all runs of the commit in memory, as after a training, the tables are built from these, and
    nothing is read from the store but the words.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    runs = held_runs(client, reader)
    held = {region: tuple(str(run.key) for run in its) for region, its in runs.items()}
    key = task_key("tables", *place_of(reader))
    tables = client.submit(open_commit_tables, *place_of(reader), held, key=key)
    # The futures keep the runs until the tables are there.
    tables.add_done_callback(lambda _: runs.clear())
    return tables


def clear_tables(client: Client, path: str, kept: Collection[str], gone: Collection[str]) -> list[dict[str, Any]]:
    """Remove tables of a network from the user's cache folder of this process and of all workers.

    Parameters
    ----------
    client : Client
        Whose workers are asked.
    path, kept, gone
        See `giaann_dask.models.contexts.table_files.remove_tables`.

    Returns
    -------
    list of dict
        Of each folder the name of its machine (``host``), its path (``folder``), and of how many commits tables were
        removed (``commits``).

    Raises
    ------
    StoreRefusedError
        If some cannot be removed.
    ClusterError
        If a worker does not respond.
    """
    found: dict[tuple[str, str], int] = {}
    asked = ask_workers(client, _clear, path, tuple(kept), tuple(gone))
    for worker, cleared in (("this process", _clear(path, kept, gone)), *asked.items()):
        if isinstance(cleared, BaseException):
            raise StoreRefusedError(
                f"worker {worker} cannot remove tables: {first_line(cleared)}", "the right to do it"
            )
        host, folder, commits = cleared
        found[host, folder] = found.get((host, folder), 0) + commits
    return [{"host": host, "folder": folder, "commits": commits} for (host, folder), commits in sorted(found.items())]


def _clear(path: str, kept: Collection[str], gone: Collection[str]) -> tuple[str, str, int]:
    """Remove tables on this machine, and return which, where, and of how many commits."""
    with writing("the cache"):
        commits = remove_tables(path, kept, gone)
    return socket.gethostname(), str(tables_folder()), commits
