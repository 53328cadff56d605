"""Open the engine of a commit for a server: in its process, or on the compute workers of a cluster.

An engine whose cluster is lost is opened again (`giaann_dask.serving.reopening`); networks that are not used are closed
(`giaann_dask.serving.models`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from giaann_dask.cluster import attempt
from giaann_dask.models.options import GenerationOptions, StateOptions
from giaann_dask.rows.regions import opened_bytes
from giaann_dask.serving.engine import CompletionEngine, Engine, open_engine
from giaann_dask.serving.models import ModelSource
from giaann_dask.serving.reopening import ReopenedEngine, SharedClient
from giaann_dask.serving.worker_engine import WorkerEngine, open_worker_engine
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.strings import escaped


@dataclass(frozen=True, kw_only=True)
class EngineOpener:
    """Opens the networks of a server, all in the same way.

    Attributes
    ----------
    clients : SharedClient
        Connects to the cluster.
    generation : GenerationOptions
        Options of all prompts.
    slots : int
        Prompts of a network that are continued simultaneously.
    state : StateOptions
        When the activation state of a prompt is divided over workers.
    workers : int, optional
        Workers that continue prompts, 0 for the server's process; by default all that compute.
    """

    clients: SharedClient
    generation: GenerationOptions
    slots: int
    state: StateOptions
    workers: int | None = None

    @contextmanager
    def open(self, reader: CommitReader) -> Iterator[CompletionEngine]:
        """Connect, and open the engine of a commit within the context."""
        with self.clients.use() as client, attempt(), ExitStack() as opened:
            network = client, reader, self.generation
            if self.workers == 0:
                engine: Engine | WorkerEngine = open_engine(*network, slots=self.slots, state=self.state)
            else:
                engine = open_worker_engine(*network, slots=self.slots, state=self.state, workers=self.workers)
            opened.callback(engine.close)
            yield engine

    def source(self, reader: CommitReader, name: str | None = None) -> ModelSource:
        """Return a commit as a model of the server, named by default as the network's folder."""
        specification = reader.manifest().specification
        return ModelSource(
            name=name or escaped(reader.path.resolve().name),
            commit=reader.commit,
            profile=specification.profile,
            has_probabilities=specification.traits.probabilities,
            subwords=specification.tokens == "subwords",
            nbytes=opened_bytes(reader),
            opening=lambda: closing(ReopenedEngine(lambda: self.open(reader))),
            traces=specification.trace,
        )
