"""Evaluation: top-1 accuracy of next-token prediction on given text.

Covers: preparing sequences by section 7 of the contract, spreading them over a cluster and
counting by section 8. Does not cover: one step (`steps`) and when a prediction is right
(`matching`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import Client, Future

from giaann_dask.cluster import ask_scheduler, result, task_key
from giaann_dask.device import one_thread, select_device
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import BlockStatistics, EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import EmptyInputError
from giaann_dask.events import Observer, SequencesEvaluated, ignore
from giaann_dask.inference.matching import NO_PREDICTION, Predictions, match_predictions
from giaann_dask.inference.opened import (
    FlagChange,
    OpenedRegions,
    changed_flags,
    open_regions,
    submit_flags,
    submit_placement,
)
from giaann_dask.inference.options import InferenceOptions
from giaann_dask.inference.pull import open_session
from giaann_dask.inference.remote_rows import RegionKeys, RemoteRows, RowOptions, row_source
from giaann_dask.inference.row_service import Trim
from giaann_dask.inference.rows import RunRows
from giaann_dask.inference.sequence import FlagTable, PreparedSequence
from giaann_dask.network.keys import pack_neuron
from giaann_dask.network.placement import Placement
from giaann_dask.network.run import Run
from giaann_dask.network.store import CommitReader
from giaann_dask.representations import Summarised, Summary, format_count
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE, STATUS_NAMES
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

SEQUENCES_PER_TASK = 64
# So many sequences' rows are asked for at once, while those before them are predicted.
SEQUENCES_AHEAD = 8


@dataclass(frozen=True, repr=False)
class EvaluationReport(Summarised):
    """Accuracy of a network on some text.

    Attributes
    ----------
    sequences : int
        Sequences that passed the length filter.
    inferred : int
        Those for which predictions were made.
    skipped : dict of str to int
        The others, by reason.
    prediction_tokens : int
        Completed steps of the prediction phase.
    prediction_matches : int
        Right predictions among them.
    top1 : float
        Their ratio; 0 without steps.
    tokens : int
        Merged tokens of the inferred sequences, seed tokens included.
    without_prediction : int
        Completed steps at which nothing could be predicted.
    stopped : int
        Sequences that fed predictions ended early.
    seconds : float
        Time, without the start of the cluster.
    commit : str
        The commit that was evaluated.
    """

    sequences: int
    inferred: int
    skipped: dict[str, int]
    prediction_tokens: int
    prediction_matches: int
    top1: float
    tokens: int
    without_prediction: int
    stopped: int
    seconds: float
    commit: str
    options: InferenceOptions = field(default_factory=InferenceOptions)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values = dict(vars(self))
        values["options"] = dict(vars(self.options))
        return values

    def summary(self) -> Summary:
        """Return the lines that represent the evaluation."""
        rows = (
            ("top-1", f"{self.top1:.4f}"),
            ("right", f"{format_count(self.prediction_matches)} of {format_count(self.prediction_tokens)}"),
            ("sequences", f"{format_count(self.inferred)} of {format_count(self.sequences)}"),
            ("without candidates", format_count(self.without_prediction)),
            ("seconds", f"{self.seconds:.2f}"),
        )
        return Summary("Evaluation", rows)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What is evaluated and how.

    Parameters
    ----------
    inference : InferenceOptions
        Rules of inference.
    maximum_sequences : int, optional
        Sequences to read that pass the length filter.
    first_sequence : int
        The first of them, counted from 0.
    device : str
        Device of the activation state.
    rows : RowOptions
        How workers come by the network's rows.
    """

    inference: InferenceOptions = field(default_factory=InferenceOptions)
    maximum_sequences: int | None = None
    first_sequence: int = 0
    device: str = "auto"
    rows: RowOptions = field(default_factory=RowOptions)


def evaluate_network(
    client: Client,
    reader: CommitReader,
    inputs: Sequence[str],
    sources: SourceOptions,
    options: EvaluationOptions,
    observer: Observer = ignore,
) -> EvaluationReport:
    """Predict every token of a text after the seed tokens of its sentences.

    Parameters
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        The commit to evaluate.
    inputs : sequence of str
        Text, as for training.
    sources : SourceOptions
        How it is read; its filter must drop short sentences.
    options : EvaluationOptions
        What is evaluated.
    observer : callable, optional
        Told of progress.

    Returns
    -------
    EvaluationReport

    Raises
    ------
    EmptyInputError
        If no sentence of the text passes the length filter.
    """
    started = time.perf_counter()
    tally = _Tally(observer, reader.saved_vocabulary())
    specification = reader.manifest().specification
    regions, flags = open_regions(client, reader, options.rows), submit_flags(client, reader)
    base = np.array(tally.vocabulary.probable_since, np.int64)
    stream_options = StreamOptions(
        branches=specification.branches,
        maximum_sequences=options.maximum_sequences,
        first_sequence=options.first_sequence,
    )
    stream = EncodingStream(client, tally.vocabulary, sources, stream_options)
    pending: deque[Future] = deque()
    limit = 4 * max(1, sum(ask_scheduler(client, "ncores").values()))
    arguments = (specification, options.inference, options.device, submit_placement(client, reader), regions)
    for block in stream.blocks(inputs):
        change = FlagChange.between(base, tally.vocabulary)
        tally.add_statistics(result(block.statistics))
        for future in _submit_block(client, block, flags, change, arguments):
            pending.append(future)
            if len(pending) > limit:
                tally.add(result(pending.popleft()))
    while pending:
        tally.add(result(pending.popleft()))
    if tally.sequences == 0:
        raise EmptyInputError(
            "no sentence of the text is long enough",
            f"sentences of {sources.filter.seed_tokens + 1} to {sources.filter.maximum_tokens} tokens",
            "look at the text and at --first-sequence",
        )
    return tally.report(time.perf_counter() - started, reader.commit, options.inference)


def _submit_block(
    client: Client, block: StreamedBlock, flags: Future, change: FlagChange, arguments: tuple[Any, ...]
) -> list[Future]:
    specification, inference, device, placement, regions = arguments
    assert isinstance(regions, OpenedRegions)
    identity = (block.encoded.key, flags.key, change.features, change.delimiter, change.changed, change.since)
    block_flags = client.submit(changed_flags, flags, change, key=task_key("flags", identity))
    futures = []
    for start in range(0, block.mapping.sequences, SEQUENCES_PER_TASK):
        span = (start, min(start + SEQUENCES_PER_TASK, block.mapping.sequences))
        key = task_key("infer", block_flags.key, span, specification, inference, regions.identity)
        task = (block.encoded, span, block_flags, placement, regions.argument, specification, inference, device)
        futures.append(client.submit(infer, *task, key=key, **regions.asking))
    return futures


def infer(
    block: EncodedBlock,
    span: tuple[int, int],
    flags: FlagTable,
    placement: Placement,
    regions: Sequence[Run] | RegionKeys,
    specification: Specification,
    options: InferenceOptions,
    device: str,
) -> Predictions:
    """Predict the tokens of some sequences of a block, as a task."""
    rows = row_source(placement, regions, trim=Trim(strengths=False))
    session = open_session(specification, rows, flags, options=options, device=select_device(device))
    found: list[tuple[int, int, int, int, str]] = []
    tokens = stopped = 0
    for q in range(*span):
        _fetch_ahead(rows, block, q, span, options)
        if block.status[q] != CANDIDATE:
            continue
        low, high = int(block.offsets[q]), int(block.offsets[q + 1])
        neuron = pack_neuron(block.column[low:high], block.feature[low:high])
        number = block.first_sequence + q
        sequence = PreparedSequence(neuron=neuron, noun=block.feature[low:high] == 0, number=number)
        with one_thread():
            outcome = session.run_sequence(sequence)
        tokens += high - low
        stopped += outcome.stop is not None
        for step in outcome.steps:
            if step.seed or step.next is None:
                continue
            word = block.surface[low + step.index]
            predicted = NO_PREDICTION if step.predicted is None else step.predicted
            surface = block.surfaces[word] if word >= 0 else ""
            found.append((number, step.index, predicted, int(neuron[step.index]), surface))
    columns = np.array([row[:4] for row in found], np.int64).reshape(-1, 4)
    return Predictions(
        sequence=columns[:, 0].copy(),
        position=columns[:, 1].copy(),
        predicted=columns[:, 2].copy(),
        target=columns[:, 3].copy(),
        surface=tuple(row[4] for row in found),
        tokens=tokens,
        stopped=stopped,
    )


def _fetch_ahead(
    rows: RunRows | RemoteRows, block: EncodedBlock, q: int, span: tuple[int, int], options: InferenceOptions
) -> None:
    """Ask for the rows of the sequences after next, a few sequences at a time, where their sources are given."""
    if options.feed != "target" or (q - span[0]) % SEQUENCES_AHEAD:
        return
    for start in (q, q + SEQUENCES_AHEAD):
        end = min(start + SEQUENCES_AHEAD, span[1])
        given = [
            slice(int(block.offsets[s]), int(block.offsets[s + 1]) - 1)
            for s in range(start, end)
            if block.status[s] == CANDIDATE
        ]
        rows.prefetch(n for part in given for n in pack_neuron(block.column[part], block.feature[part]).tolist())


class _Tally:
    """Adds up what tasks return."""

    def __init__(self, observer: Observer, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.sequences = 0
        self._observer = observer
        self._by_status = np.zeros(len(STATUS_NAMES), np.int64)
        self._steps = self._matches = self._tokens = self._stopped = self._without = 0

    def add_statistics(self, statistics: BlockStatistics) -> None:
        self._by_status += np.array(statistics.by_status)
        self.sequences = int(self._by_status.sum())

    def add(self, predictions: Predictions) -> None:
        right = match_predictions(predictions, self.vocabulary)
        self._steps += len(right)
        self._matches += int(right.sum())
        self._tokens += predictions.tokens
        self._stopped += predictions.stopped
        self._without += int((predictions.predicted == NO_PREDICTION).sum())
        sequences = len(np.unique(predictions.sequence))
        self._observer(SequencesEvaluated(sequences, int(right.sum()), len(right)))

    def report(self, seconds: float, commit: str, options: InferenceOptions) -> EvaluationReport:
        counts = dict(zip(STATUS_NAMES, self._by_status.tolist(), strict=True))
        inferred = counts.pop(STATUS_NAMES[CANDIDATE])
        return EvaluationReport(
            sequences=self.sequences,
            inferred=inferred,
            skipped=counts,
            prediction_tokens=self._steps,
            prediction_matches=self._matches,
            top1=self._matches / self._steps if self._steps else 0.0,
            tokens=self._tokens,
            without_prediction=self._without,
            stopped=self._stopped,
            seconds=seconds,
            commit=commit,
            options=options,
        )
