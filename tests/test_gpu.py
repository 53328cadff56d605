"""Sums of pairs and the steps of inference are the same bytes on a device as on the CPU.

Tensors are tested on a simulated device and the kernel of inference in numba's simulator; with the marker ``gpu``, both
on a real device. Needs the
checkout and the packages that the Makefile lists for ``gpu-check``, so that it can be carried to a machine with a GPU.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import pytest
import torch
from support.prompts import run_prompts
from support.random_networks import FEATURES, SPECIFICATIONS, assert_same, random_prompts, random_run
from support.random_networks import OPTIONS as OPTIONS_OF_INFERENCE
from support.simulated_device import DEVICE, SimulatedDevice
from support.tagged_tokens import EVER, OPTIONS, TOKENS

from giaann_dask.device import select_device
from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import FlagTable, PrefixColumns, PreparedSequence, StepTrace
from giaann_dask.models.columns.v1 import device_steps
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.source import Row, RowSource, RunRows
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


def encoded(repetitions: int, specification: Specification) -> EncodedBlock:
    """Return sequences of eleven tokens with parts of speech."""
    builder = BlockBuilder(EVER, dataclasses.replace(OPTIONS, parts_of_speech=True))
    sentences = [TaggedSentence(*zip(*(TOKENS[i:] + TOKENS[:i])[:11], strict=True)) for i in range(len(TOKENS))]
    builder.add_part(TaggedText.of(sentences * repetitions))
    tagged = builder.build()
    return encode_block(tagged, Vocabulary().extend(summarise(tagged)), specification)


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
    blocks = [encoded(repetitions, specification) for repetitions in (1, 2, 7)]
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
        runs = [connect_batch([encoded(repetitions, SUMMED[0])], SUMMED[0], Placement(1))[0] for _ in range(2)]
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


def network(seed: int, specification: Specification, size: int) -> tuple[RunRows, Integers, np.random.Generator]:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 4, size), rng.integers(0, FEATURES, size)))
    return RunRows([random_run(rng, specification, neurons, 0.4)], lambda _: 0), neurons, rng


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return counts of launches; numba's simulator takes a thread of Python for each of a block's, so few of them."""
    simulated = bool(numba.config.ENABLE_CUDASIM)
    if simulated != (request.param == "simulated") or not (simulated or torch.cuda.is_available()):
        pytest.skip("needs numba's simulator" if request.param == "simulated" else "needs a CUDA device")
    counts: Counter[str] = Counter()
    launch = device_steps.DeviceSteps.launch
    monkeypatch.setattr(device_steps, "KEPT_ROWS", {})
    if simulated:
        monkeypatch.setattr(device_steps, "BLOCK_THREADS", 3)

    def counted(self: Any, slots: Any, which: Integers, *arguments: Any) -> Any:
        counts["launches"] += 1
        counts["sequences"] += len(which)
        return launch(self, slots, which, *arguments)

    monkeypatch.setattr(device_steps.DeviceSteps, "launch", counted)
    return counts


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


def prompts_of(rng: np.random.Generator, neurons: Integers, count: int, longest: int) -> list[Prompt]:
    """Return prompts whose equally active candidates may be in the order of names."""
    names = Vocabulary(*(rng.permutation(100)[:size].astype(str) for size in (4, FEATURES)), (), ())
    order = NameOrder.of(names) if rng.random() < 0.5 else NameOrder()
    some = random_prompts(rng, neurons, longest)[:count]
    return [dataclasses.replace(each, flags=dataclasses.replace(each.flags, order=order)) for each in some]


DEVICE_OF_KERNEL = torch.device("cuda", 0)


def assert_as_compiled(specification: Specification, rows: RunRows, prompts: list[Prompt], options: Any) -> None:
    expected = steps_of_batch(specification, rows, prompts, options, None)
    found = steps_of_batch(specification, rows, prompts, options, DEVICE_OF_KERNEL)
    for number in range(len(prompts)):
        assert_same(expected[number], found[number])


# All timings, activations and feeds that golden files have.
@pytest.mark.parametrize("options", OPTIONS_OF_INFERENCE[::7], ids=str)
def test_steps_of_a_batch_on_a_device(kernel: Counter[str], options: InferenceOptions) -> None:
    number = OPTIONS_OF_INFERENCE.index(options)
    specification = SPECIFICATIONS[number % 2]
    rows, neurons, rng = network(number, specification, 6)
    prompts = prompts_of(rng, neurons, 2, specification.seed_tokens + 2)
    if options.feed == "target":
        prompts.append(from_left(rng, neurons, prompts[0].flags, specification.seed_tokens))
    assert_as_compiled(specification, rows, prompts, options)
    assert kernel["launches"]


def from_left(rng: np.random.Generator, neurons: Integers, flags: FlagTable, seed: int) -> Prompt:
    """Return a sequence whose last seed token changes its column after the first prediction."""
    known = rng.choice(neurons, seed + 1)
    then = np.concatenate([known[: seed - 1], rng.choice(neurons, 4)])
    given = [PreparedSequence(neuron=each, noun=rng.random(len(each)) < 0.4, number=1) for each in (known, then)]
    first, second = given
    return Prompt.from_left(
        (
            PrefixColumns(sequence=first, begin=0, first=seed, flags=flags),
            PrefixColumns(sequence=second, begin=seed - 1, first=seed + 1, flags=flags),
        )
    )


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS_OF_INFERENCE, ids=str)
def test_steps_of_large_batches_on_a_device(options: InferenceOptions) -> None:
    if numba.config.ENABLE_CUDASIM or not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for specification in SPECIFICATIONS:
        rows, neurons, rng = network(OPTIONS_OF_INFERENCE.index(options), specification, 12)
        prompts = [prompt for _ in range(12) for prompt in prompts_of(rng, neurons, 7, 20)]
        # All in the order of one network, as a batch has them.
        order = prompts[0].flags.order
        same = [dataclasses.replace(each, flags=dataclasses.replace(each.flags, order=order)) for each in prompts]
        assert_as_compiled(specification, rows, same, options)


def test_rows_beyond_the_memory_of_a_device(kernel: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    specification = SPECIFICATIONS[1]
    rows, neurons, rng = network(4, specification, 6)
    prompts = prompts_of(rng, neurons, 3, 8)
    expected = steps_of_batch(specification, rows, prompts, None, None)
    every, largest = 8 * len(rows.runs[0]), 8 * int(np.diff(rows.runs[0].pointer).max())
    fetched, launched = [], []
    for limit in (every, every - 8, 2 * largest, 0):
        kernel.clear()
        held = device_steps.DeviceRows(specification.segments, specification.branches, limit)
        monkeypatch.setattr(device_steps, "kept_rows", lambda *_, held=held: held)
        found = steps_of_batch(specification, rows, prompts, None, DEVICE_OF_KERNEL)
        for number in range(len(prompts)):
            assert_same(expected[number], found[number])
        fetched.append(held.fetched)
        launched.append(kernel["launches"])
    # Each row comes once where all fit; else some again, and a sequence whose own do not fit is left to the processor.
    assert fetched[0] < max(fetched)
    assert launched[-1] == 0 < launched[0]


def test_a_step_of_a_batch_is_one_launch_and_rows_stay(kernel: Counter[str]) -> None:
    specification = SPECIFICATIONS[1]
    rows, neurons, rng = network(7, specification, 6)
    # Nothing is asked of the network for the first token.
    first = PreparedSequence(neuron=neurons[:1], noun=np.ones(1, bool), number=0)
    assert_as_compiled(specification, rows, [Prompt(sequence=first, flags=FlagTable(*np.zeros((2, FEATURES))))], None)
    flags = FlagTable(np.ones(FEATURES, bool), np.full(FEATURES, -1))
    launches = []
    for count in (1, 3):
        kernel.clear()
        given = PreparedSequence(neuron=rng.choice(neurons, 7), noun=np.ones(7, bool), number=0)
        steps_of_batch(specification, rows, [Prompt(sequence=given, flags=flags)] * count, None, DEVICE_OF_KERNEL)
        assert kernel["sequences"] == count * kernel["launches"]
        launches.append(kernel["launches"])
    assert launches == [1, 1], "all steps whose sources are given"
    (held,) = device_steps.KEPT_ROWS.values()
    before = held.fetched
    steps_of_batch(specification, rows, [Prompt(sequence=given, flags=flags)], None, DEVICE_OF_KERNEL)
    assert held.fetched == before
    del rows
    assert not device_steps.KEPT_ROWS


def test_rows_of_other_processes_stay_from_task_to_task(kernel: Counter[str]) -> None:
    class Elsewhere(RowSource):
        def __init__(self, snapshot: str | None) -> None:
            self._snapshot = snapshot

        @property
        def snapshot(self) -> str | None:
            return self._snapshot

        def row(self, neuron: int) -> Row | None:
            return rows.row(neuron)

    specification = SPECIFICATIONS[1]
    rows, neurons, rng = network(7, specification, 6)
    prompt = Prompt(
        sequence=PreparedSequence(neuron=rng.choice(neurons, 4), noun=np.ones(4, bool), number=0),
        flags=FlagTable(np.ones(FEATURES, bool), np.full(FEATURES, -1)),
    )
    found = []
    for snapshot in ("one", "one", "another", None):
        steps_of_batch(specification, Elsewhere(snapshot), [prompt], None, DEVICE_OF_KERNEL)
        found.append([held.fetched for held in device_steps.KEPT_ROWS.values()])
    assert found[0] == found[1] == found[2] == found[3], "fetched once for each snapshot, of which the last one stays"


def test_operands_on_different_devices_are_an_error() -> None:
    with SimulatedDevice() as simulated:
        there = torch.arange(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.arange(4)
        with pytest.raises(AssertionError, match="tensors on"):
            there[torch.arange(4) < 2]
        assert (there + 1).tolist() == [1, 2, 3, 4]
        assert simulated.counts == Counter(operations=2, downloads=1, downloaded=32, synchronisations=1)
