"""Evaluate the accuracy of next-token prediction on text, over a cluster.

Sequences are prepared by section 7 of the contract and divided into tasks (`evaluation.predicting`), and their results
are counted by section 8 (`evaluation.accuracy`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Future

from giaann_dask.cluster import Roles, query_scheduler, result, task_key
from giaann_dask.cluster.devices import DeviceShare, declare_roles
from giaann_dask.cluster.stages import INFER_TOGETHER, PLACES, StageClock, StageTime, time_rows
from giaann_dask.encoding.stream import BlockStatistics, EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import EmptyInputError
from giaann_dask.events import BlockEncoded, Observer, SequencesEvaluated
from giaann_dask.models.base import EvaluatedText
from giaann_dask.models.columns.evaluation.accuracy import (
    NO_PREDICTION,
    Accuracy,
    CodeLength,
    Predictions,
    StepCounts,
    match_ranks,
    target_names,
    token_bytes,
)
from giaann_dask.models.columns.evaluation.predicting import PredictionRule, infer
from giaann_dask.models.columns.flags import changed_flags
from giaann_dask.models.columns.predictor import CommitHandle
from giaann_dask.models.columns.rules import InferenceRules, fitting_rules
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.generation_options import EvaluationOptions, EvaluationProtocol
from giaann_dask.models.results import EvaluationReport
from giaann_dask.representations import Summary, format_seconds
from giaann_dask.rows.regions import open_regions
from giaann_dask.rows.source import RowStatistics
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE, STATUS_NAMES
from giaann_dask.text.vocabulary import Vocabulary

SEQUENCES_PER_TASK = 64
# What a worker of the processor does in so many tasks is one for a device, which advances all sequences together.
TASKS_ON_DEVICE = 64
# Largest k of top-k; so many candidates of every step travel to the client.


@dataclass(frozen=True, repr=False)
class AccuracyReport(EvaluationReport):
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
    unreached : int
        Their tokens after that, which `prediction_tokens` leaves out; as misses they make the accuracy of
        the contract of profile ``v2``.
    seconds : float
        Time from reading the text to the result, compiling included, without the start of workers.
    commit : str
        The commit that was evaluated.
    protocol : {"left-to-right", "published"}
        What the columns of a token depended on (see `EvaluationOptions`).
    accuracy : Accuracy
        Top-k accuracy, and steps without candidates, in all, by position and by part of speech. These
        counts are the same for any number of workers.
    rows : RowStatistics or None
        How often tasks asked other workers for rows, and what came; it depends on the cluster. None where
        whole regions were copied.
    options : InferenceOptions or V2Options
        The rules of inference.
    code_length : CodeLength or None
        Bits per byte, where they were asked for.
    stages : dict of str to StageTime
        How long workers have spent on the tasks of each stage, and whether on the processor or on devices.
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
    protocol: EvaluationProtocol
    accuracy: Accuracy
    unreached: int = 0
    rows: RowStatistics | None = None
    options: InferenceRules = field(default_factory=InferenceOptions)
    code_length: CodeLength | None = None
    stages: dict[str, StageTime] = field(default_factory=dict, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values = {name: value for name, value in vars(self).items() if name != "accuracy"}
        values["options"] = asdict(self.options)
        values["stages"] = {name: time._asdict() for name, time in self.stages.items()}
        for name in ("rows", "code_length"):
            values[name] = None if values[name] is None else values[name].as_dict()
        return values | self.accuracy.as_dict()

    def summary(self) -> Summary:
        """Return the lines that represent the evaluation."""
        overall = self.accuracy.overall
        asked = () if self.rows is None else (("rows asked for", self.rows.line()),)
        rows = (
            ("protocol", self.protocol),
            *((f"top-{k}", f"{overall.share(k):.4f}") for k in self.accuracy.top_k),
            ("right", f"{self.prediction_matches:,} of {self.prediction_tokens:,}"),
            ("sequences", f"{self.inferred:,} of {self.sequences:,}"),
            ("without candidates", f"{overall.share_without_candidates:.1%} of the steps"),
            *asked,
            ("seconds", format_seconds(self.seconds)),
            *time_rows(self.stages, ["device"]),
        )
        return Summary("Evaluation", rows)

    def shown(self, verbose: bool = False) -> dict[str, Any]:
        """Return the figures that a command prints; when verbose, also the seconds of processors in each stage."""
        names = ["sequences", "inferred", "skipped", "prediction_tokens", "prediction_matches", "top1"]
        names += ["top_k"] if len(self.accuracy.top_k) > 1 else []
        names += ["share_without_candidates", "protocol", *(["rows"] if self.rows else []), "seconds"]
        values = self.as_dict()
        return {name: values[name] for name in names} | dict(time_rows(self.stages, PLACES if verbose else ["device"]))

    def groups(self) -> Accuracy:
        """Return the accuracy in all, by position and by part of speech."""
        return self.accuracy

    def rules(self) -> Mapping[str, Any]:
        """Return the protocol and the rules of inference."""
        return {"protocol": self.protocol, **vars(self.options)}

    def omitted(self) -> Mapping[str, int]:
        """Return how many sequences were skipped, by reason."""
        return self.skipped

    def lines(self) -> list[str]:
        """Return bits per byte, and accuracy by position and by part of speech, for a person."""
        coded = [] if self.code_length is None else [f"bits per byte {self.code_length.line()}"]
        return [*coded, *self.accuracy.lines()]


def evaluate_network(text: EvaluatedText, options: EvaluationOptions) -> AccuracyReport:
    """Predict every token of a text after the seed tokens of its sentences.

    Returns
    -------
    AccuracyReport

    Raises
    ------
    EmptyInputError
        If no sentence of the text passes the length filter.
    """
    started, clock = time.perf_counter(), StageClock(text.client)
    client, reader = text.client, text.reader
    roles = declare_roles(client)
    specification = reader.manifest().specification
    inference = fitting_rules(specification, options.inference)
    handle = CommitHandle(client, reader, open_regions(client, reader, options.rows))
    tally = _Tally(text.observer, handle.vocabulary.copy(), options, specification)
    flags = handle.flags(inference.tables)
    stream_options = StreamOptions(max_sequences=options.max_sequences, first_sequence=options.first_sequence)
    stream = EncodingStream(client, tally.vocabulary, text.sources, stream_options)
    pending: deque[Future] = deque()
    limit = 4 * max(1, sum(query_scheduler(client, "ncores").values()))
    device = "cpu" if options.device == "auto" and inference.cpu_only else options.device
    predicting = DeviceShare.of(client, INFER_TOGETHER, device, roles)
    rule = PredictionRule(
        specification=specification,
        options=inference,
        protocol=options.protocol,
        ranks=options.top_k[-1],
        probability=options.bits_per_byte,
    )
    for block in stream.blocks(text.inputs):
        change = handle.change(tally.vocabulary)
        statistics = result(block.statistics)
        tally.add_statistics(statistics)
        # Of these alone predictions are made.
        text.observer(BlockEncoded(statistics.by_status[CANDIDATE], block.characters, block.read))
        key = task_key("flags", (block.encoded.key, flags.key, *astuple(change)))
        # Of a prompt the flags are those of the commit and of its own words.
        kept = options.protocol == "left-to-right" and specification.flags != "canonical"
        block_flags = flags if kept else handle.submit(changed_flags, flags, change, key=key)
        for future in _submit_block(handle, block, block_flags, rule, (roles, predicting)):
            pending.append(future)
            if len(pending) > limit:
                tally.add(result(pending.popleft()))
    while pending:
        tally.add(result(pending.popleft()))
    if tally.sequences == 0:
        raise EmptyInputError(
            "no sentence of the text is long enough",
            f"sentences of {text.sources.filter.seed_tokens + 1} to {text.sources.filter.maximum_tokens} tokens",
            "check the text and first_sequence",
        )
    accuracy = tally.counts.accuracy(options.top_k, specification.seed_tokens)
    report = tally.report(time.perf_counter() - started, reader.commit, rule, accuracy)
    reached = specification.seed_tokens * report.inferred + report.prediction_tokens
    return replace(report, unreached=report.tokens - reached, stages=clock.times())


def _submit_block(
    handle: CommitHandle,
    block: StreamedBlock,
    flags: Future,
    rule: PredictionRule,
    devices: tuple[Roles, DeviceShare],
) -> Iterator[Future]:
    """Submit the tasks that predict the sequences of a block, on devices where these are to run some."""
    roles, predicting = devices
    start, sequences = 0, block.mapping.sequences
    while start < sequences:
        tasks = predicting.capacity(roles, TASKS_ON_DEVICE)
        where = roles.on_device() if tasks else None
        span = (start, min(start + SEQUENCES_PER_TASK * max(1, tasks), sequences))
        start = span[1]
        its = rule if where is None else replace(rule, device="cuda")
        task = (block.encoded, span, flags, handle.placement, handle.regions.argument, its)
        name = "infer" if where is None else INFER_TOGETHER
        key = task_key(name, block.encoded.key, flags.key, span, its, handle.regions.identity)
        future = handle.submit(infer, *task, key=key, where=where)
        if where is not None:
            predicting.add(future, tasks)
        yield future


class _Tally:
    """Sums the results of tasks."""

    def __init__(
        self, observer: Observer, vocabulary: Vocabulary, options: EvaluationOptions, specification: Specification
    ) -> None:
        self.vocabulary = vocabulary
        self.sequences = 0
        self.counts = StepCounts.empty(options.top_k[-1])
        self._observer, self._by_name = observer, specification.ruled_by == "v2"
        self._subwords = specification.tokens == "subwords"
        self._probabilities: list[npt.NDArray[np.float64]] | None = [] if options.bits_per_byte else None
        self._bytes = 0
        self._by_status = np.zeros(len(STATUS_NAMES), np.int64)
        self._tokens = self._stopped = self._without = 0
        self._rows: RowStatistics | None = None

    def add_statistics(self, statistics: BlockStatistics) -> None:
        self._by_status += np.array(statistics.by_status)
        self.sequences = int(self._by_status.sum())

    def add(self, predictions: Predictions) -> None:
        rank = match_ranks(predictions, self.vocabulary, by_name=self._by_name)
        self.counts += StepCounts.of(predictions, rank)
        self._tokens += predictions.tokens
        self._stopped += predictions.stopped
        self._without += int((predictions.predicted == NO_PREDICTION).sum())
        if self._probabilities is not None and predictions.probability is not None:
            self._probabilities.append(predictions.probability)
            self._bytes += token_bytes(target_names(predictions, self.vocabulary), self._subwords)
        if predictions.rows is not None:
            self._rows = predictions.rows if self._rows is None else self._rows + predictions.rows
        sequences = len(np.unique(predictions.sequence))
        self._observer(SequencesEvaluated(sequences, int((rank == 1).sum()), len(rank)))

    def report(self, seconds: float, commit: str, rule: PredictionRule, accuracy: Accuracy) -> AccuracyReport:
        counts = dict(zip(STATUS_NAMES, self._by_status.tolist(), strict=True))
        inferred = counts.pop(STATUS_NAMES[CANDIDATE])
        return AccuracyReport(
            sequences=self.sequences,
            inferred=inferred,
            skipped=counts,
            prediction_tokens=accuracy.overall.steps,
            prediction_matches=accuracy.overall.matches[1],
            top1=accuracy.overall.share(1),
            tokens=self._tokens,
            without_prediction=self._without,
            stopped=self._stopped,
            seconds=seconds,
            commit=commit,
            protocol=rule.protocol,
            accuracy=accuracy,
            rows=self._rows,
            options=rule.options,
            code_length=None if self._probabilities is None else self._code_length(),
        )

    def _code_length(self) -> CodeLength:
        none = np.zeros(0, np.float64)
        return CodeLength.of(np.concatenate([none, *(self._probabilities or ())]), self._bytes)
