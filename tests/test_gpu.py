"""Sums of pairs and the steps of inference are the same bytes on a device as on the CPU.

Every test runs on a simulated device, and with the marker ``gpu`` on a real one. Needs the
checkout and the packages that the Makefile lists for ``gpu-check``, so that it can be carried to a machine with a GPU.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from support.random_networks import FEATURES, SPECIFICATIONS, assert_same, random_prompts, random_run
from support.random_networks import OPTIONS as OPTIONS_OF_INFERENCE
from support.simulated_device import DEVICE, SimulatedDevice
from support.tagged_tokens import EVER, OPTIONS, TOKENS

from giaann_dask.device import select_device
from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.batch import Prompt, run_prompts
from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.models.columns.state.options import InferenceOptions
from giaann_dask.models.columns.state.sequence import FlagTable, PreparedSequence, StepTrace
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.options import BatchOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.device_sums import sum_pairs_on
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tokens import TaggedSentence, TaggedText
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training.tasks import compact, pairs_of

KINDS = ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)]


@contextmanager
def device_of(kind: str) -> Iterator[tuple[torch.device, Counter[str]]]:
    """Yield a device with what a simulated one counts; skip the test where there is no such device."""
    if kind == "simulated":
        with SimulatedDevice() as simulated:
            yield DEVICE, simulated.counts
        return
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = select_device("cuda")
    assert device is not None
    yield device, Counter()


def encoded(repetitions: int) -> EncodedBlock:
    """Return sequences of eleven tokens with parts of speech."""
    builder = BlockBuilder(EVER, dataclasses.replace(OPTIONS, parts_of_speech=True))
    sentences = [TaggedSentence(*zip(*(TOKENS[i:] + TOKENS[:i])[:11], strict=True)) for i in range(len(TOKENS))]
    builder.add_part(TaggedText.of(sentences * repetitions))
    tagged = builder.build()
    return encode_block(tagged, Vocabulary().extend(summarise(tagged)), 2)


def summed(
    blocks: Sequence[EncodedBlock], specification: Specification, device: torch.device | None = None
) -> dict[int, PackedRegionRun]:
    """Return the regions of some batches, their pairs summed on a device or by the processor, as they are stored."""
    batches = [connect_batch([block], specification, Placement(4)) for block in blocks]
    regions = {}
    for region in sorted({region for batch in batches for region in batch}):
        runs = [batch[region] for batch in batches if region in batch]
        tables = pairs_of(*runs)
        sums = None if device is None or not tables else sum_pairs_on(device, tables)
        regions[region] = compact(*runs, sums=sums)
    return regions


# Those of v2 have a tree of branches, and segments that do not take all pairs.
SUMMED = [
    Specification(seed_tokens=6),
    Specification(seed_tokens=6, pos_factors={"NOUN": 10.0, "VERB": 2.5}),
    Specification(profile="v2"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("specification", SUMMED, ids=["v1", "v1-scaled", "v2"])
def test_regions_are_stored_as_the_processor_sums_them(kind: str, specification: Specification) -> None:
    blocks = [encoded(repetitions) for repetitions in (1, 2, 7)]
    with device_of(kind) as (device, _):
        found = summed(blocks, specification, device)
    expected = summed(blocks, specification)
    assert found.keys() == expected.keys()
    for region, run in expected.items():
        assert run.connections.rows
        assert run.connections.entries == found[region].connections.entries


def test_what_summing_a_region_moves() -> None:
    counts, moved = [], []
    for repetitions in (1, 8):
        runs = [connect_batch([encoded(repetitions)], SUMMED[0], Placement(1))[0] for _ in range(2)]
        tables = pairs_of(*runs)
        with device_of("simulated") as (device, found):
            sums = sum_pairs_on(device, tables)
        counts.append(found)
        # Pairs go there as they travel, with 12 bytes for a row of a table, 4 for a target and the increments.
        pairs = sum(4 * len(table.keys) for table in tables)
        beside = sum(12 * table.rows + 4 * len(table.neurons) for table in tables) + tables[0].rule.increments.nbytes
        assert pairs + beside <= found["uploaded"] <= pairs + beside + 7 * 8
        # Sums alone come back: of a target its number, its segments and a strength, and 4 bytes for each further one.
        narrow = (sums.row_targets, sums.target, sums.segments, sums.strength, sums.change)
        assert found["downloaded"] == sum(each.nbytes for each in narrow) + 2 * 8
        moved.append(sum(each.nbytes for each in narrow) / (len(sums.strength) + len(sums.change)))
        assert [each.itemsize for each in narrow] == [4, 4, 1, 4, 4]
    # For any number of pairs.
    for name in ("uploads", "downloads", "synchronisations", "operations"):
        assert counts[0][name] == counts[1][name], name
    # Sums, and before them the largest ones, which say how narrow they can be.
    assert (counts[0]["uploads"], counts[0]["downloads"], counts[0]["synchronisations"]) == (1, 2, 5)
    assert max(moved) < 7, "bytes for a connection, which takes 12 as it is counted"


def network(seed: int, specification: Specification) -> tuple[RunRows, Integers, np.random.Generator]:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 4, 12), rng.integers(0, FEATURES, 12)))
    return RunRows([random_run(rng, specification, neurons, 0.4)], lambda _: 0), neurons, rng


def steps_of_batch(
    specification: Specification,
    rows: RunRows,
    prompts: list[Prompt],
    options: InferenceOptions | None,
    device: torch.device | None,
    slots: int = 9,
) -> dict[int, list[StepTrace]]:
    batch = PullBatch(specification, rows, options=options, batch=BatchOptions(slots=slots), device=device)
    steps: dict[int, list[StepTrace]] = {}
    for advance in run_prompts(batch, prompts):
        steps.setdefault(advance.number, []).extend(advance.traces)
    return steps


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("simulated", options) for options in OPTIONS_OF_INFERENCE[::11]),
        *(pytest.param("cuda", options, marks=pytest.mark.gpu) for options in OPTIONS_OF_INFERENCE),
    ],
    ids=str,
)
def test_steps_of_a_batch_on_a_device(kind: str, options: InferenceOptions) -> None:
    repetitions, longest = (6, 20) if kind == "cuda" else (1, 10)
    for specification in SPECIFICATIONS:
        rows, neurons, rng = network(5, specification)
        prompts = [prompt for _ in range(repetitions) for prompt in random_prompts(rng, neurons, longest)]
        with device_of(kind) as (device, _):
            found = steps_of_batch(specification, rows, prompts, options, device)
        expected = steps_of_batch(specification, rows, prompts, options, None)
        for number in range(len(prompts)):
            assert_same(expected[number], found[number])


@pytest.mark.parametrize("kind", KINDS)
def test_the_pushed_state_on_a_device(kind: str) -> None:
    for number, options in enumerate(OPTIONS_OF_INFERENCE[::9]):
        rows, neurons, rng = network(number, SPECIFICATIONS[0])
        flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES))
        sequence = PreparedSequence(neuron=rng.choice(neurons, 14), noun=rng.random(14) < 0.4, number=1)
        traces: tuple[list[StepTrace], list[StepTrace]] = ([], [])
        with device_of(kind) as (device, _):
            session = Session(SPECIFICATIONS[0], rows, flags, options=options, device=device)
            session.run_sequence(sequence, observer=traces[0].append)
        Session(SPECIFICATIONS[0], rows, flags, options=options).run_sequence(sequence, observer=traces[1].append)
        assert [trace.result for trace in traces[0]] == [trace.result for trace in traces[1]]


def test_what_steps_of_a_batch_move() -> None:
    specification, tokens = SPECIFICATIONS[0], 12
    rows, neurons, rng = network(7, specification)
    flags = FlagTable(np.ones(FEATURES, bool), np.full(FEATURES, -1))
    counts = []
    for prompts in (2, 16):
        given = [rng.choice(neurons, tokens) for _ in range(prompts)]
        sequences = [PreparedSequence(neuron=its, noun=np.ones(tokens, bool), number=0) for its in given]
        batch = [Prompt(sequence=sequence, flags=flags) for sequence in sequences]
        with device_of("simulated") as (device, found):
            steps_of_batch(specification, rows, batch, None, device, slots=prompts)
        counts.append(found)
    # Eight times as many prompts need as many transfers, and the host waits as often for the device.
    for name in ("uploads", "downloads"):
        assert counts[0][name] == counts[1][name] <= 2 * tokens, name
    assert all(found["synchronisations"] <= 5 * tokens for found in counts)
    # What comes back for a token: candidates, their values, and how many each prompt has.
    assert counts[1]["downloaded"] <= 16 * tokens * (16 * len(neurons) + 32)


def test_operands_on_different_devices_are_an_error() -> None:
    with SimulatedDevice() as simulated:
        there = torch.arange(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.arange(4)
        with pytest.raises(AssertionError, match="tensors on"):
            there[torch.arange(4) < 2]
        assert (there + 1).tolist() == [1, 2, 3, 4]
        assert simulated.counts == Counter(operations=2, downloads=1, downloaded=32, synchronisations=1)
