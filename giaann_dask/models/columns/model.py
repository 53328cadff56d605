"""Define the model of concept columns, for networks of the profiles ``v1`` and ``v2``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.events import Observer, ignore
from giaann_dask.models.base import Model, WorkerOpening
from giaann_dask.models.columns.export import export_contents
from giaann_dask.models.columns.predictor import (
    ColumnsPredictor,
    columns_for_prompt,
    columns_on_workers,
    open_columns,
)
from giaann_dask.models.columns.rules import require_fit
from giaann_dask.models.options import GenerationOptions
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ExportContents

if TYPE_CHECKING:
    from distributed import Client


class ColumnsModel(Model):
    """Concept columns of feature neurons: activation spreads along trained connections."""

    def require_fit(self, specification: Specification, options: GenerationOptions) -> None:
        """See `Model.require_fit`."""
        require_fit(specification, options)

    def open(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        options: GenerationOptions,
        observer: Observer = ignore,
    ) -> ColumnsPredictor:
        """See `Model.open`."""
        return open_columns(reader, client=client, options=options, observer=observer)

    def open_on_workers(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """See `Model.open_on_workers`."""
        return columns_on_workers(client, reader, options)

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> ColumnsPredictor:
        """See `Model.open_for_prompt`."""
        return open_columns(reader, client=None, options=options)

    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """See `Model.open_for_prompt_on_workers`."""
        return columns_for_prompt(client, reader, options)

    def export_contents(self, reader: CommitReader) -> ExportContents:
        """See `Model.export_contents`."""
        return export_contents(reader)


MODEL = ColumnsModel()
