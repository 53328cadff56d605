"""Train only connections to tokens that the network does not predict yet (error-driven training).

Each step predicts its text with teacher forcing by the commit of the step before, and marks the tokens that were not
predicted. `giaann_dask.models.columns.connections` leaves out pairs that end at other tokens, and `trainer` trains a
step.

Which tokens a network misses depends on what it has learnt before, hence on the order of the text.
Here that order is one of steps: all sequences of a step are predicted by the commit before it, which
does not change meanwhile. So within a step training stays a sum, the same for any division among
batches and workers; a step is committed as a whole, so that an interrupted step is repeated
from its beginning; and its increments can be added to any other network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from threading import Event

import numpy as np
import numpy.typing as npt
from distributed import Client, Future
from distributed.spans import span

from giaann_dask.cluster import driver_allocator, task_key
from giaann_dask.device import one_thread
from giaann_dask.encoding.sources import SourceOptions, read_units
from giaann_dask.encoding.stream import StreamedBlock
from giaann_dask.errors import EmptyInputError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.flags import FlagChange, changed_flags
from giaann_dask.models.columns.handle import CommitHandle
from giaann_dask.models.columns.rules import InferenceRules, fitting_rules, open_session
from giaann_dask.models.columns.state.options import InferenceOptions
from giaann_dask.models.columns.state.sequence import FlagTable, PreparedSequence
from giaann_dask.rows.messages import RowProjection
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.source import RowSource
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training.options import TrainingOptions
from giaann_dask.training.target import NetworkTarget
from giaann_dask.training.trainer import Trainer, UncommittedState
from giaann_dask.training.training_report import TrainingReport, join_reports

Marks = npt.NDArray[np.bool_]
# Name of the span of training in Dask's reports.
_SPAN = "giaann-dask training"


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
    session = open_session(network, rows, flags, options=rules)
    marks: Marks = np.ones(len(block.column), np.bool_)
    neuron = pack_neuron(block.column, block.feature)
    for q in np.flatnonzero(block.status == CANDIDATE).tolist():
        tokens = slice(int(block.offsets[q]), int(block.offsets[q + 1]))
        sequence = PreparedSequence(
            neuron=neuron[tokens], noun=block.feature[tokens] == 0, number=block.first_sequence + q
        )
        with one_thread():
            steps = session.run_sequence(sequence).steps
        predicted = [-1 if step.predicted is None else step.predicted for step in steps]
        marks[tokens] = np.array(predicted, np.int64) != sequence.neuron
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


class ErrorMask:
    """Marker of the tokens that one commit of a network misses, for the blocks of a stream.

    Parameters
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        The commit, which predicts by the defaults of its profile.
    """

    def __init__(self, client: Client, reader: CommitReader) -> None:
        self._rules = fitting_rules(reader.manifest().specification, InferenceOptions())
        self._handle = CommitHandle(client, reader)

    def mark(self, blocks: Iterator[StreamedBlock], vocabulary: Vocabulary) -> Iterator[StreamedBlock]:
        """Yield blocks with their tokens marked; `vocabulary` has the dictionaries that the stream extends."""
        handle, flags = self._handle, self._handle.flags()
        for block in blocks:
            change = handle.change(vocabulary)
            identity = (block.encoded.key, flags.key, *astuple(change), self._rules, handle.regions.identity)
            marked = handle.submit(
                mark_missed,
                *(block.encoded, flags, change, handle.placement, handle.regions.argument),
                *(handle.specification, self._rules),
                key=task_key("predict", identity),
            )
            yield replace(block, encoded=marked)


def train_network(
    client: Client,
    target: NetworkTarget,
    options: TrainingOptions,
    observer: Observer = ignore,
    stop: Event | None = None,
) -> TrainingRun:
    """Return the training of a network by the options; the parameters are those of `Trainer`."""
    return TrainingRun(client, target, options, observer, stop or Event())


class TrainingRun:
    """Training of a network: on all tokens in one step, or on the missed ones in several steps.

    Attributes
    ----------
    held : tuple of Future
        See `giaann_dask.training.trainer.Trainer`.
    """

    def __init__(
        self, client: Client, target: NetworkTarget, options: TrainingOptions, observer: Observer, stop: Event
    ) -> None:
        self._client, self._target, self._options = client, target, options
        self._observer, self._stop = observer, stop
        self._trainer: Trainer | None = None
        self.held: tuple[Future, ...] = ()

    @property
    def uncommitted(self) -> UncommittedState | None:
        """State of the training that could not be committed, after a `StoreConflictError`."""
        return None if self._trainer is None else self._trainer.uncommitted

    def train(self, inputs: Sequence[Source], sources: SourceOptions) -> TrainingReport:
        """Train on all parts of the inputs that the network has not been trained on; see `Trainer.train`."""
        # Dask opens a new span whenever a cluster was idle unless one is named, and scheduler and workers keep
        # statistics of every span permanently.
        with span(_SPAN), driver_allocator(self._client):
            return self._train(inputs, sources)

    def _train(self, inputs: Sequence[Source], sources: SourceOptions) -> TrainingReport:
        if self._options.train_on == "all":
            self._trainer = Trainer(self._client, self._target, self._options, self._observer, self._stop)
            report = self._trainer.train(inputs, sources)
            self.held = self._trainer.held
            return report
        require_rereadable(inputs, "training on misses")
        most, every = self._options.max_sequences, self._options.refresh_sequences
        counted = self._held(inputs, sources)
        reports: list[TrainingReport] = []
        while True:
            limit = (counted // every + 1) * every
            limit = limit if most is None else min(limit, most)
            ended, counted = self._step(inputs, sources, limit, reports)
            ended = ended or (most is not None and counted >= most)
            if ended or self._stop.is_set():
                return replace(join_reports(reports), stopped=not ended)

    def _held(self, inputs: Sequence[Source], sources: SourceOptions) -> int:
        """Return on how many sequences at the beginning of the inputs the network has been trained."""
        counted, cursor = 0, self._target.load()[2].cursor()
        if self._target.store is None:
            return 0
        for unit in read_units(inputs, sources):
            found = cursor.match(unit.identity)
            counted += 0 if found is None else found[1].sequences
            if found is None or not found[1].complete:
                break
        return counted

    def _step(
        self, inputs: Sequence[Source], sources: SourceOptions, limit: int, reports: list[TrainingReport]
    ) -> tuple[bool, int]:
        """Train up to a number of sequences by the last commit; return whether the input ended, and their number."""
        store = self._target.store
        mark = None if store is None else ErrorMask(self._client, store.open(store.head())).mark
        # Only whole steps are committed: the next commit would predict the rest of a partial one.
        options = replace(self._options, max_sequences=limit, commit_sequences=None, commit_seconds=math.inf)
        self._trainer = trainer = Trainer(self._client, self._target, options, self._observer)
        # An input without trainable sequences is only known after all steps.
        begun = any(report.trained for report in reports)
        try:
            reports.append(trainer.train(inputs, sources, mark, check=not begun))
        except EmptyInputError:
            if trainer.counted < limit or limit == self._options.max_sequences:
                raise
        self.held = trainer.held
        return trainer.counted < limit, trainer.counted
