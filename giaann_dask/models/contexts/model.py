"""Define the model of counted contexts, for networks of profile ``best``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.events import Observer, ignore
from giaann_dask.models.base import Model, WorkerOpening
from giaann_dask.models.contexts.commit_tables import place_of
from giaann_dask.models.contexts.export import export_contents
from giaann_dask.models.contexts.predictor import (
    ContextsPredictor,
    contexts_for_prompt,
    contexts_from_store,
    contexts_on_workers,
    require_fit,
)
from giaann_dask.models.options import GenerationOptions
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ExportContents

if TYPE_CHECKING:
    from distributed import Client


class ContextsModel(Model):
    """Counts of words after contexts of the words before, pooled to probabilities."""

    def require_fit(self, specification: Specification, options: GenerationOptions) -> None:
        """See `Model.require_fit`."""
        require_fit(options)

    def open(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        options: GenerationOptions,
        observer: Observer = ignore,
    ) -> ContextsPredictor:
        """See `Model.open`."""
        return ContextsPredictor(reader, client=client, observer=observer)

    def open_on_workers(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """See `Model.open_on_workers`."""
        require_fit(options)
        return contexts_on_workers(client, reader)

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> ContextsPredictor:
        """See `Model.open_for_prompt`."""
        return contexts_from_store(*place_of(reader))

    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """See `Model.open_for_prompt_on_workers`."""
        return contexts_for_prompt(reader)

    def export_contents(self, reader: CommitReader) -> ExportContents:
        """See `Model.export_contents`."""
        return export_contents(reader)


MODEL = ContextsModel()
