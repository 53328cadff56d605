"""Define the model of concept columns, for networks of the profiles ``v1`` and ``v2``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.device import DeviceName, select_device
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, unpack_neuron
from giaann_dask.models.base import EvaluatedText, Model, UsedNames, WorkerOpening
from giaann_dask.models.columns.connections import TokenPlaces, connect_batch, pair_increments
from giaann_dask.models.columns.dense import count_dense
from giaann_dask.models.columns.evaluation.predicting import ColumnsErrorMask
from giaann_dask.models.columns.export import NeuronNames, connection_columns, export_contents
from giaann_dask.models.columns.predictor import (
    ColumnsPredictor,
    columns_for_prompt,
    columns_on_workers,
    open_columns,
)
from giaann_dask.models.columns.rules import compile_steps, require_fit
from giaann_dask.models.columns.scaling import require_sums
from giaann_dask.models.columns.totals import ColumnTotals
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.results import ConnectionKey
from giaann_dask.registry import BUILT_IN, require
from giaann_dask.runs.packing import PackedRegionRun, unpack_rows
from giaann_dask.runs.pair_tables import PairRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings
from giaann_dask.runs.run import RegionRun
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray, ExportContents
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.models.columns.evaluation.evaluation import AccuracyReport
    from giaann_dask.models.generation_options import EvaluationOptions


class ColumnsModel(Model):
    """Concept columns of feature neurons: activation spreads along trained connections."""

    traits = BUILT_IN["v1"].traits
    sums_pairs = True
    counts_dense = True
    error_mask = ColumnsErrorMask
    base = "v1"

    def require_trainable(self, specification: Specification) -> None:
        """See `Model.require_trainable`; each pair of tokens adds something."""
        require_sums(specification)
        if specification.base:
            least = int(specification.increments()[1:].min())
            require(least > 0, "weights", least, "more than 0 for each distance", "correct the method weights")

    def counts_alike(self, one: Specification, other: Specification) -> bool:
        """See `Model.counts_alike`."""
        return np.array_equal(one.increments(), other.increments())

    def count(
        self, blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement
    ) -> Mapping[int, RegionRun | PairRegionRun]:
        """See `Model.count`."""
        return connect_batch(blocks, specification, placement)

    def count_dense(
        self,
        blocks: Sequence[EncodedBlock],
        specification: Specification,
        placement: Placement,
        device: DeviceName = "cpu",
    ) -> Mapping[int, RegionRun]:
        """See `Model.count_dense`."""
        return count_dense(blocks, specification, placement, select_device(device))

    def names(self, specification: Specification, vocabulary: Vocabulary) -> NeuronNames:
        """See `Model.names`."""
        return NeuronNames(specification, vocabulary)

    def coordinates(self, specification: Specification) -> dict[str, ColumnArray]:
        """See `Model.coordinates`."""
        return connection_columns(specification)

    def compile_steps(self, specification: Specification) -> None:
        """See `Model.compile_steps`."""
        compile_steps(specification)

    def find_used(self, run: RegionRun | PackedRegionRun) -> UsedNames:
        """Return the columns and features of the trained neurons."""
        source = run.neurons.source if isinstance(run, RegionRun) else unpack_rows(run.neurons)[0]
        column, feature = unpack_neuron(source)
        return UsedNames(np.unique(column), np.unique(feature))

    def shares(
        self, postings: Callable[[int], Postings], connection: ConnectionKey, specification: Specification
    ) -> tuple[Integers, Integers]:
        """See `Model.shares`."""
        source, target = (TokenPlaces.of(postings(key)) for key in (connection.source, connection.target))
        return pair_increments(source, target, connection.segment, connection.branch, specification)

    def totals(self, specification: Specification) -> ColumnTotals:
        """See `Model.totals`."""
        return ColumnTotals(specification)

    def evaluate(self, text: EvaluatedText, options: EvaluationOptions) -> AccuracyReport:
        """See `Model.evaluate`."""
        from giaann_dask.models.columns.evaluation.evaluation import evaluate_network

        return evaluate_network(text, options)

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

    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """See `Model.open_for_prompt_on_workers`."""
        return columns_for_prompt(client, reader, options)

    def export_contents(self, reader: CommitReader) -> ExportContents:
        """See `Model.export_contents`."""
        return export_contents(reader)


MODEL = ColumnsModel()
