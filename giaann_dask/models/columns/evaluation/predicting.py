"""Predict the tokens of the sequences of a block, as a task of an evaluation, and record the predictions.

On the CPU compiled steps advance one sequence after the other; on other devices all sequences advance together as
tensors. Rows of given sources are requested ahead. `evaluation.evaluation` submits the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.device import DeviceName, one_thread, torch
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.batch import Prompt, run_prompts
from giaann_dask.models.columns.evaluation.accuracy import NO_PREDICTION, Predictions
from giaann_dask.models.columns.evaluation.code_length import token_probability
from giaann_dask.models.columns.rules import InferenceRules, open_session, prompt_device
from giaann_dask.models.columns.state.candidates import Candidates
from giaann_dask.models.columns.state.options import InferenceOptions
from giaann_dask.models.columns.state.sequence import FlagTable, PreparedSequence, SequenceResult, StepResult, StepTrace
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.options import BatchOptions
from giaann_dask.rows.cache import RowStatistics
from giaann_dask.rows.messages import RowProjection
from giaann_dask.rows.remote import RegionKeys, RemoteRows, row_source
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE, POS_SHIFT
from giaann_dask.text.segmentation import EncodedBlock


class StepRecords:
    """The completed steps of the prediction phase of some sequences of a block.

    Parameters
    ----------
    block : EncodedBlock
        Which holds the sequences.
    ranks : int
        How many of the best candidates of each step are kept, 1 or more.
    probability : bool
        Whether the probabilities of tokens are kept, too.
    """

    def __init__(self, block: EncodedBlock, ranks: int, *, probability: bool = False) -> None:
        self._block = block
        self._ranks = ranks
        self._shares: list[float] | None = [] if probability else None
        self._found: dict[int, Candidates] = {}
        self._best: dict[int, npt.NDArray[np.int64]] = {}
        # Of each step: sequence, position, predicted neuron, candidates.
        self._steps: list[tuple[int, int, int, int]] = []
        self._token: list[int] = []
        self._runners_up: list[npt.NDArray[np.int64]] = []
        self._tokens = self._stopped = 0

    @property
    def observing(self) -> bool:
        """Whether the candidates of steps are looked at."""
        return self._ranks > 1 or self._shares is not None

    def observe(self, trace: StepTrace) -> None:
        """Record the best candidates of a step of the current sequence; an observer of sessions.

        Where only the best one is kept, which results tell as well, there is nothing to observe.
        """
        if trace.candidates is not None:
            if self._shares is not None:
                self._found[trace.result.index] = trace.candidates
            self._best[trace.result.index] = trace.candidates.ranked(self._ranks)[0]

    def add(self, place: int, outcome: SequenceResult) -> None:
        """Add the steps of a sequence.

        Parameters
        ----------
        place : int
            Of the sequence in the block.
        outcome : SequenceResult
            Its steps.
        """
        low, high = int(self._block.offsets[place]), int(self._block.offsets[place + 1])
        number = self._block.first_sequence + place
        self._tokens += high - low
        self._stopped += outcome.stop is not None
        for step in outcome.steps:
            if step.seed or step.next is None:
                continue
            predicted = NO_PREDICTION if step.predicted is None else step.predicted
            self._steps.append((number, step.index, predicted, step.candidates))
            self._token.append(low + step.index)
            if self._ranks > 1:
                self._runners_up.append(self._others(step))
            if self._shares is not None:
                self._shares.append(self._share(step.index, low + step.index))
        self._best.clear()
        self._found.clear()

    def _others(self, step: StepResult) -> npt.NDArray[np.int64]:
        """Return the candidates after the predicted one; none where it was rejected, as all are then."""
        others = np.full(self._ranks - 1, NO_PREDICTION, np.int64)
        if step.predicted is not None:
            best = self._best[step.index]
            rest = best[best != step.predicted][: self._ranks - 1]
            others[: len(rest)] = rest
        return others

    def _share(self, index: int, token: int) -> float:
        """Return the probability of a token; 0 where a step had no candidates."""
        found, block = self._found.get(index), self._block
        return token_probability(found, _neuron(block, token)) if found is not None else 0.0

    def predictions(self, rows: RowStatistics | None = None) -> Predictions:
        """Return the collected predictions, with the figures of the rows read."""
        block, token = self._block, np.array(self._token, np.int64)
        columns = np.array(self._steps, np.int64).reshape(-1, 4)
        words = block.surface[token].tolist()
        return Predictions(
            sequence=columns[:, 0].copy(),
            position=columns[:, 1].copy(),
            predicted=columns[:, 2].copy(),
            target=pack_neuron(block.column[token], block.feature[token]),
            surface=tuple(block.surfaces[word] if word >= 0 else "" for word in words),
            part=(block.flags[token] >> POS_SHIFT).astype(np.uint8),
            candidates=columns[:, 3].copy(),
            runners_up=np.array(self._runners_up, np.int64).reshape(len(token), self._ranks - 1),
            tokens=self._tokens,
            stopped=self._stopped,
            rows=rows,
            probability=None if self._shares is None else np.array(self._shares, np.float64),
        )


def _neuron(block: EncodedBlock, token: int) -> int:
    """Return the neuron key of a token of a block."""
    return int(pack_neuron(block.column[token : token + 1], block.feature[token : token + 1])[0])


# So many sequences' rows are asked for at once, while those before them are predicted.
SEQUENCES_AHEAD = 8


@dataclass(frozen=True, kw_only=True)
class PredictionRule:
    """Rules by which predictions are made, and the parts of them to keep.

    Attributes
    ----------
    specification : Specification
        Of the network.
    options : InferenceOptions or V2Options
        Rules of inference.
    device : {"cpu", "cuda"}
        Where steps are computed.
    ranks : int
        How many of the best candidates of each step are kept, 1 or more.
    probability : bool
        Whether the probabilities of tokens are kept, too.
    """

    specification: Specification
    options: InferenceRules
    device: DeviceName = "cpu"
    ranks: int = 1
    probability: bool = False


def infer(
    block: EncodedBlock,
    span: tuple[int, int],
    flags: FlagTable,
    placement: Placement,
    regions: Sequence[Run] | RegionKeys,
    rule: PredictionRule,
) -> Predictions:
    """Predict the tokens of some sequences of a block and keep the requested candidates, as a task."""
    rows = row_source(placement, regions, projection=RowProjection(strengths=rule.options.sends_strengths))
    records = StepRecords(block, rule.ranks, probability=rule.probability)
    device = prompt_device(rule.device)
    with one_thread():
        if device is not None and isinstance(rule.options, InferenceOptions):
            batch = PullBatch(
                rule.specification,
                rows,
                options=rule.options,
                batch=BatchOptions(slots=max(1, span[1] - span[0])),
                device=device,
            )
            predict_together(batch, prepared_sequences(block, span), flags, records)
        else:
            _predict_one_by_one(rows, block, span, (flags, records, rule), device)
    return records.predictions(rows.own_figures)


def prepared_sequences(block: EncodedBlock, span: tuple[int, int]) -> Iterator[tuple[int, PreparedSequence]]:
    """Yield those of some sequences of a block that can be predicted, with their places in it."""
    for place in range(*span):
        if block.status[place] == CANDIDATE:
            tokens = slice(int(block.offsets[place]), int(block.offsets[place + 1]))
            sequence = PreparedSequence(
                neuron=pack_neuron(block.column[tokens], block.feature[tokens]),
                noun=block.feature[tokens] == 0,
                number=block.first_sequence + place,
            )
            yield place, sequence


def predict_together(
    batch: PullBatch, sequences: Iterator[tuple[int, PreparedSequence]], flags: FlagTable, records: StepRecords
) -> None:
    """Predict sequences in a batch; keep the records that they would leave one by one, in the same order."""
    placed = list(sequences)
    traces: dict[int, list[StepTrace]] = {number: [] for number in range(len(placed))}
    for advance in run_prompts(batch, (Prompt(sequence=sequence, flags=flags) for _, sequence in placed)):
        traces[advance.number].extend(advance.traces)
    for (place, _), its in zip(placed, traces.values(), strict=True):
        for trace in its if records.observing else ():
            records.observe(trace)
        results = tuple(trace.result for trace in its)
        records.add(place, SequenceResult(results, results[-1].end))


def _predict_one_by_one(
    rows: RunRows | RemoteRows,
    block: EncodedBlock,
    span: tuple[int, int],
    rest: tuple[FlagTable, StepRecords, PredictionRule],
    device: torch.device | None,
) -> None:
    flags, records, rule = rest
    session = open_session(rule.specification, rows, flags, options=rule.options, device=device)
    asked = span[0]
    for place, sequence in prepared_sequences(block, span):
        while rule.options.feed == "target" and asked <= place:
            _fetch_ahead(rows, block, asked, span[1])
            asked += SEQUENCES_AHEAD
        outcome = session.run_sequence(sequence, observer=records.observe if records.observing else None)
        records.add(place, outcome)


def _fetch_ahead(rows: RunRows | RemoteRows, block: EncodedBlock, first: int, last: int) -> None:
    """Request the rows of the next sequences, and of those after them, whose sources are given."""
    for start in (first, first + SEQUENCES_AHEAD):
        given = [
            slice(int(block.offsets[place]), int(block.offsets[place + 1]) - 1)
            for place in range(start, min(start + SEQUENCES_AHEAD, last))
            if block.status[place] == CANDIDATE
        ]
        rows.prefetch(n for part in given for n in pack_neuron(block.column[part], block.feature[part]).tolist())
