"""The tasks of an evaluation: predicting the tokens of some sequences of a block.

Covers: sequence after sequence with compiled steps on the CPU, all together as tensors on other devices, and asking
ahead for the rows of given sources. Does not cover: which tasks there are (`evaluation.evaluation`), what is kept
of the steps (`evaluation.recording`) and the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from giaann_dask.device import one_thread
from giaann_dask.inference.batch import BatchOptions, Prompt, run_prompts
from giaann_dask.inference.evaluation.matching import Predictions
from giaann_dask.inference.evaluation.recording import StepRecords
from giaann_dask.inference.profiles import InferenceRules, open_session, rules_device, sends_strengths
from giaann_dask.inference.rows.remote import RegionKeys, RemoteRows, row_source
from giaann_dask.inference.rows.service import RowProjection
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import FlagTable, PreparedSequence, SequenceResult, StepTrace
from giaann_dask.inference.v1.pull_batch import PullBatch
from giaann_dask.keys import pack_neuron
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock

# So many sequences' rows are asked for at once, while those before them are predicted.
SEQUENCES_AHEAD = 8


@dataclass(frozen=True, kw_only=True)
class PredictionRule:
    """By what predictions are made, and what is kept of them.

    Attributes
    ----------
    specification : Specification
        Of the network.
    options : InferenceOptions or V2Options
        Rules of inference.
    device : str
        Where steps are computed: ``auto``, ``cpu`` or ``cuda``.
    ranks : int
        How many of the best candidates of each step are kept, 1 or more.
    probability : bool
        Whether the probabilities of tokens are kept, too.
    """

    specification: Specification
    options: InferenceRules
    device: str = "cpu"
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
    """Predict the tokens of some sequences of a block, keeping what is asked of the candidates, as a task."""
    rows = row_source(placement, regions, projection=RowProjection(strengths=sends_strengths(rule.options)))
    records = StepRecords(block, rule.ranks, probability=rule.probability)
    device = rules_device(rule.options, rule.device)
    with one_thread():
        if device.type != "cpu" and isinstance(rule.options, InferenceOptions):
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
    device: torch.device,
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
    """Ask for the rows of the next sequences, and of those after them, whose sources are given."""
    for start in (first, first + SEQUENCES_AHEAD):
        given = [
            slice(int(block.offsets[place]), int(block.offsets[place + 1]) - 1)
            for place in range(start, min(start + SEQUENCES_AHEAD, last))
            if block.status[place] == CANDIDATE
        ]
        rows.prefetch(n for part in given for n in pack_neuron(block.column[part], block.feature[part]).tolist())
