"""Open the engine of a commit for a server: in its process, or on the compute workers of a cluster.

An engine whose cluster is lost is opened again, and networks that are not used are closed
(`giaann_dask.serving.models`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from giaann_dask.cluster import attempt
from giaann_dask.diagnostics.monitoring.reporter import reporter_of
from giaann_dask.models import model_of
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.serving.engine import SERVED_BATCH, CompletionEngine, Engine
from giaann_dask.serving.models import ModelSource
from giaann_dask.serving.remote_engine import RemoteEngine
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.memory_inputs import Source

if TYPE_CHECKING:
    from distributed import Client

# For a connection that is made when the client is closed.
_CLOSE_S = 5.0


def open_engine(
    client: Client,
    reader: CommitReader,
    options: GenerationOptions | None = None,
    batch: BatchOptions = SERVED_BATCH,
    *,
    workers: int | None = 0,
) -> Engine | RemoteEngine:
    """Open a commit of any model for a server.

    Parameters
    ----------
    client : Client
        Where the regions are opened, or the tables built; has to stay connected as long as the engine is used.
    reader : CommitReader
        The commit that predicts.
    options : GenerationOptions, optional
        Rules of inference, tagger, device and how rows are fetched.
    batch : BatchOptions
        Prompts that share a step of one process at most, and when the activation state of one is divided over workers.
    workers : int, optional
        Most workers that continue prompts, None for all that compute; 0, the default, continues them in this process.

    Raises
    ------
    ClusterError
        If the cluster does not open the network in time.
    OptionError
        If the options do not fit the network.
    """
    specification = reader.manifest().specification
    # Reasons need the strengths of rows.
    chosen = replace(options or GenerationOptions(), reasons=int(specification.trace))
    model, observer = model_of(specification), reporter_of(client)
    model.require_fit(specification, chosen)
    if workers == 0:
        return Engine(model.open(reader, client=client, options=chosen, observer=observer), chosen, batch)
    opening = model.open_on_workers(client, reader, chosen)
    return RemoteEngine(client, opening, chosen, batch, workers=workers, observer=observer)


class SharedClient:
    """Client of a cluster that the engines of several networks share; connected again after it was lost.

    Parameters
    ----------
    connect : callable
        Returns a new client; closing it stops the workers that were started for it.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect, self._lock = connect, threading.Lock()
        self._present: Client | None = None
        self._users: Counter[Client] = Counter()

    @contextmanager
    def use(self) -> Iterator[Client]:
        """Yield a client that stays open within the context."""
        with self._lock:
            if self._present is None or self._present.status != "running":
                lost, self._present = self._present, self._connect()
                if lost is not None and not self._users[lost]:
                    lost.close()
            client = self._present
            self._users[client] += 1
        try:
            yield client
        finally:
            with self._lock:
                self._users[client] -= 1
                if not self._users[client] and client is not self._present:
                    client.close()

    def close(self) -> None:
        """Close the client; called after all have left `use`, or wait for a cluster that does not answer."""
        # Held by who connects.
        held = self._lock.acquire(timeout=_CLOSE_S)
        try:
            if self._present is not None:
                self._present.close()
        finally:
            if held:
                self._lock.release()


@dataclass(frozen=True, kw_only=True)
class EngineOpener:
    """Opens the networks of a server, all in the same way.

    Attributes
    ----------
    clients : SharedClient
        Connects to the cluster.
    generation : GenerationOptions
        Options of all prompts.
    batch : BatchOptions
        Prompts of a network that a process continues simultaneously.
    workers : int, optional
        Workers that continue prompts, 0 for the server's process; by default all that compute.
    """

    clients: SharedClient
    generation: GenerationOptions
    batch: BatchOptions
    workers: int | None = None

    @contextmanager
    def open(self, reader: CommitReader) -> Iterator[CompletionEngine]:
        """Connect, and open the engine of a commit within the context."""
        with (
            self.clients.use() as client,
            attempt(),
            closing(open_engine(client, reader, self.generation, self.batch, workers=self.workers)) as engine,
        ):
            yield engine

    def source(
        self, reader: CommitReader, name: str | None = None, texts: Callable[[], Sequence[Source]] = tuple
    ) -> ModelSource:
        """Return a commit as a model of the server; see `ModelSource.of`."""
        return ModelSource.of(reader, lambda: self.open(reader), name, texts)
