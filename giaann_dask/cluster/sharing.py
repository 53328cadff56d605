"""Whether the workers of a cluster see the folder of a network that this process has.

Covers: asking the workers before they write, those that come later, and naming the worker that does not see a
network in the error of a task. Does not cover: the token that they read (`giaann_dask.store.locking`); a task that
writes reads it itself, so that nothing is lost whatever becomes of the workers meanwhile.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, get_worker

from giaann_dask.cluster.waiting import ask_scheduler, ask_workers
from giaann_dask.errors import ClusterError, StoreMissingError, StoreUnsharedError
from giaann_dask.store.locking import REMEDY, SHARED, HeldPlace, PlaceSight, PlaceToken, look_at
from giaann_dask.store.network_store import CommitReader, NetworkStore

_LOG = logging.getLogger(__name__)
# A file system may show other machines a new file a little later.
_LAG_S, _PAUSE_S = 3.0, 0.2
_NAMED = 3


class SharedPlace:
    """The folder of a network as the workers of a cluster see it.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    held : HeldPlace
        The right to write there.
    """

    def __init__(self, client: Client, held: HeldPlace) -> None:
        self._client = client
        self.held = held
        self._asked: set[str] = set()

    @property
    def path(self) -> Path:
        """The folder, absolute."""
        return self.held.path

    def require(self) -> None:
        """Check that all present workers see the folder.

        Raises
        ------
        StoreUnsharedError
            If one does not, which it names.
        ClusterError
            If the workers do not answer in time, or one cannot import this package.
        """
        blind, answered = look_from_workers(self._client, self.held.mark())
        if blind:
            raise _unshared(blind)
        self._asked |= answered

    def retire_blind(self, present: Set[str]) -> None:
        """Let those of some workers leave the cluster that have come since and do not see the folder.

        Dask moves what they hold to the others, and runs their tasks there.

        Parameters
        ----------
        present : set of str
            Addresses of all workers.

        Raises
        ------
        StoreUnsharedError
            If none is left.
        """
        new = present - self._asked
        if not new:
            return
        blind, answered = look_from_workers(self._client, self.held.mark(), new)
        self._asked |= answered
        if not blind:
            return
        error = _unshared(blind)
        if not present - blind.keys():
            raise error
        _LOG.warning("retired from the cluster: %s", error)
        ask_scheduler(self._client, "retire_workers", workers=sorted(blind), close_workers=True)


def look_from_workers(
    client: Client, expected: PlaceToken, workers: Set[str] | None = None
) -> tuple[dict[str, str], set[str]]:
    """Ask workers what they see where this process has a network.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    expected : PlaceToken
        What lies there.
    workers : set of str, optional
        Addresses of some workers; all by default.

    Returns
    -------
    dict of str to str, set of str
        What is wrong, by the address of each worker that does not see the same; and those that answered. A worker
        that is lost meanwhile does neither.

    Raises
    ------
    ClusterError
        If there is no answer in time, or a worker cannot import this package.
    """
    deadline = time.monotonic() + _LAG_S
    seen = _look(client, expected, workers)
    while True:
        blind = {worker: problem for worker, sight in seen.items() if (problem := sight.problem(expected))}
        if not blind or time.monotonic() > deadline:
            return {worker: f"worker {worker} on host {seen[worker].host} {blind[worker]}" for worker in blind}, set(
                seen
            )
        time.sleep(_PAUSE_S)
        seen = {worker: sight for worker, sight in seen.items() if worker not in blind}
        seen |= _look(client, expected, blind.keys())


def _look(client: Client, expected: PlaceToken, workers: Set[str] | None) -> dict[str, PlaceSight]:
    answers = ask_workers(client, look_at, expected.path, workers=workers)
    for worker, answer in answers.items():
        if not isinstance(answer, (PlaceSight, OSError)):
            raise ClusterError(
                f"worker {worker} cannot look at {expected.path} ({type(answer).__name__}: {answer})",
                "workers with this version of giaann-dask",
                "install it there and start the workers again",
            )
    return {worker: answer for worker, answer in answers.items() if isinstance(answer, PlaceSight)}


def _unshared(blind: Mapping[str, str]) -> StoreUnsharedError:
    named = [blind[worker] for worker in sorted(blind)]
    more = f", and {len(named) - _NAMED} more likewise" if len(named) > _NAMED else ""
    return StoreUnsharedError(", ".join(named[:_NAMED]) + more, SHARED, REMEDY)


@contextmanager
def naming_worker() -> Iterator[None]:
    """Let the error of a task that does not find a network say on which worker that was.

    Raises
    ------
    StoreUnsharedError
        Instead of a `StoreMissingError` or a `StoreUnsharedError` of a worker in another process than its client.
    """
    try:
        yield
    except (StoreMissingError, StoreUnsharedError) as error:
        worker = _worker()
        if worker is None:
            raise
        host = socket.gethostname()
        raise StoreUnsharedError(f"worker {worker} on host {host}: {error.received}", SHARED, REMEDY) from error


def open_commit(path: str, commit: str) -> CommitReader:
    """Open a commit in a task; the parameters are those of `NetworkStore` and `NetworkStore.open`."""
    with naming_worker():
        store = NetworkStore(path)
    return store.open(commit)


def _worker() -> str | None:
    """Return the address of the worker whose task this is; None outside of tasks and in the process of a client."""
    try:
        address = str(get_worker().address)
    except ValueError:
        return None
    return None if address.startswith("inproc://") else address
