"""Check that the workers of a cluster can access the network folder of this process.

Workers are checked before they write and when they join later, by a token in the folder
(`giaann_dask.store.locking`). A task that writes checks the token itself, too, so that no data is lost when workers
change in the meantime. Errors of tasks name the worker that cannot access the network.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.cluster.waiting import ask_workers, query_scheduler
from giaann_dask.errors import (
    ClusterError,
    InputMissingError,
    OptionError,
    StoreMissingError,
    StoreUnreachableError,
    StoreUnsharedError,
)
from giaann_dask.registry import worker_address
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.locking import FolderState, LockToken, WriteLock, inspect_folder, unshared
from giaann_dask.store.network_store import NetworkStore

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger(__name__)
# A file system may show other machines a new file a little later.
_LAG_S, _PAUSE_S = 3.0, 0.2
_NAMED = 3


class SharedPlace:
    """Folder of a network, as the workers of a cluster access it.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    held : WriteLock
        The lock of the folder.
    """

    def __init__(self, client: Client, held: WriteLock) -> None:
        self._client = client
        self.held = held
        self._checked: set[str] = set()

    @property
    def path(self) -> Path:
        """The folder, absolute."""
        return self.held.path

    def require(self) -> None:
        """Check that all present workers can access the folder.

        Raises
        ------
        StoreUnsharedError
            If one does not, which it names.
        ClusterError
            If the workers do not respond in time, or one cannot import this package.
        """
        blind, responded = look_from_workers(self._client, self.held.mark())
        if blind:
            raise _unshared(blind, self.path)
        self._checked |= responded

    def retire_blind(self, present: Set[str]) -> None:
        """Retire workers that have joined since the last check and cannot access the folder.

        Dask moves their results to the other workers, and runs their tasks there.

        Parameters
        ----------
        present : set of str
            Addresses of all workers.

        Raises
        ------
        StoreUnsharedError
            If none is left.
        """
        new = present - self._checked
        # Without the right to write there is nothing to compare; the next commit says that it was lost.
        if not new or not self.held.is_held():
            return
        blind, responded = look_from_workers(self._client, self.held.mark(), new)
        self._checked |= responded
        if not blind:
            return
        error = _unshared(blind, self.path)
        if not present - blind.keys():
            raise error
        _LOG.warning("retired from the cluster: %s", error)
        query_scheduler(self._client, "retire_workers", workers=sorted(blind), close_workers=True)


def look_from_workers(
    client: Client, expected: LockToken, workers: Set[str] | None = None
) -> tuple[dict[str, str], set[str]]:
    """Compare the network folder of workers with that of this process.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    expected : LockToken
        Token of the folder.
    workers : set of str, optional
        Addresses of some workers; all by default.

    Returns
    -------
    dict of str to str, set of str
        The problem, by the address of each worker that does not have the same folder; and the workers that responded.
        A worker that is lost in the meantime is in neither.

    Raises
    ------
    ClusterError
        If there is no response in time, or a worker cannot import this package.
    """
    deadline = time.monotonic() + _LAG_S
    seen = _check_workers(client, expected, workers)
    while True:
        blind = {worker: problem for worker, sight in seen.items() if (problem := sight.problem(expected))}
        if not blind or time.monotonic() > deadline:
            return {worker: f"worker {worker} on host {seen[worker].host} {blind[worker]}" for worker in blind}, set(
                seen
            )
        time.sleep(_PAUSE_S)
        seen = {worker: sight for worker, sight in seen.items() if worker not in blind}
        seen |= _check_workers(client, expected, blind.keys())


def _check_workers(client: Client, expected: LockToken, workers: Set[str] | None) -> dict[str, FolderState]:
    responses = ask_workers(client, inspect_folder, expected.path, workers=workers)
    for worker, response in responses.items():
        if not isinstance(response, (FolderState, OSError)):
            raise ClusterError(
                f"worker {worker} cannot look at {expected.path} ({type(response).__name__}: {response})",
                "workers with this version of giaann-dask",
                "install it there and restart the workers",
            )
    return {worker: response for worker, response in responses.items() if isinstance(response, FolderState)}


def _unshared(blind: Mapping[str, str], path: Path) -> StoreUnsharedError:
    named = [blind[worker] for worker in sorted(blind)]
    more = f", and {len(named) - _NAMED} more likewise" if len(named) > _NAMED else ""
    return unshared(", ".join(named[:_NAMED]) + more, path)


@contextmanager
def naming_worker(path: str = "") -> Iterator[None]:
    """Name the worker in the error of a task that cannot access a network, a corpus or a file of text.

    Parameters
    ----------
    path : str
        Place of the network that may be missing.

    Raises
    ------
    StoreUnsharedError
        Instead of a `StoreMissingError` or a `StoreUnsharedError` of a worker in another process than its client, or
        where it has not what it needs to reach an object store.
    InputMissingError, StoreUnreachableError
        Instead of one of such a worker.
    """
    try:
        yield
    except (InputMissingError, OptionError, StoreMissingError, StoreUnreachableError, StoreUnsharedError) as error:
        worker = worker_address()
        if worker is None:
            raise
        where = f"worker {worker} on host {socket.gethostname()}"
        if isinstance(error, StoreMissingError | OptionError):
            raise unshared(f"{where}: {error.received}", path) from error
        raise error.at(where) from error


def open_commit(path: str, commit: str) -> CommitReader:
    """Open a commit in a task; the parameters are those of `NetworkStore` and `NetworkStore.open`."""
    with naming_worker(path):
        store = NetworkStore(path)
    return store.open(commit)
