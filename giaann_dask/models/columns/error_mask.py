"""Mark the tokens of blocks that a commit of columns does not predict, for error-driven training.

`giaann_dask.models.columns.connections` leaves out pairs that end at other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.models.columns.evaluation.predicting import PredictionRule, predict_span
from giaann_dask.models.columns.flags import FlagChange, changed_flags
from giaann_dask.models.columns.handle import CommitHandle
from giaann_dask.models.columns.rules import InferenceRules, fitting_rules
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.sequence import FlagTable
from giaann_dask.rows.messages import RowProjection
from giaann_dask.rows.regions import open_regions
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.row_options import RowOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

Marks = npt.NDArray[np.bool_]


def missed(
    block: EncodedBlock, rows: RowSource, flags: FlagTable, *, rules: InferenceRules, network: Specification
) -> Marks:
    """Return which tokens of a block are not predicted when every token is fed.

    Parameters
    ----------
    block : EncodedBlock
        Sequences to predict.
    rows : RowSource
        Connections of the network.
    flags : FlagTable
        Stored flags, with what the block's own text added.
    rules : InferenceOptions or V2Options
        Options of prediction; targets must be fed.
    network : Specification
        Of the network.

    Returns
    -------
    ndarray of bool
        For each token of the block whether another neuron than its own was predicted, or none. Seed
        tokens, which nothing predicts, are missed, and so are those of sequences without columns.
    """
    rule = PredictionRule(specification=network, options=rules)
    found = predict_span(block, (0, len(block)), flags, rows, rule)
    marks: Marks = np.ones(len(block.column), np.bool_)
    token = block.offsets[found.sequence - block.first_sequence] + found.position
    marks[token] = found.predicted != found.target
    return marks


def mark_missed(
    block: EncodedBlock,
    flags: FlagTable,
    change: FlagChange,
    placement: Placement,
    regions: Sequence[Run] | RegionKeys,
    specification: Specification,
    rules: InferenceRules,
) -> EncodedBlock:
    """Return a block in which only the tokens that a commit misses are marked for training, as a task."""
    rows = row_source(placement, regions, projection=RowProjection(strengths=rules.sends_strengths))
    return replace(
        block, train_mask=missed(block, rows, changed_flags(flags, change), rules=rules, network=specification)
    )


class ColumnsErrorMask:
    """See `giaann_dask.models.base.ErrorMask`; a commit predicts by the defaults of its profile.

    Parameters
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        The commit.
    """

    def __init__(self, client: Client, reader: CommitReader) -> None:
        self._rules = fitting_rules(reader.manifest().specification, InferenceOptions())
        self._handle = CommitHandle(client, reader, open_regions(client, reader, RowOptions()))
        self._flags = self._handle.flags()

    def submit(self, block: Future, vocabulary: Vocabulary) -> Future:
        """See `giaann_dask.models.base.ErrorMask.submit`."""
        handle, flags = self._handle, self._flags
        change = handle.change(vocabulary)
        identity = (block.key, flags.key, *astuple(change), self._rules, handle.regions.identity)
        return handle.submit(
            mark_missed,
            *(block, flags, change, handle.placement, handle.regions.argument),
            *(handle.specification, self._rules),
            key=task_key("predict", identity),
        )
