"""Sequences in batches against each by itself: the same steps, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.conformance import golden_run, inference_files
from support.examples import examples
from support.generated import generate
from support.golden_steps import (
    EWT_FOLDERS,
    EWT_SAMPLE,
    SYN_FOLDER,
    BatchFollower,
    alone,
    follow,
    split_rows,
)
from support.prompts import run_prompts
from support.pull_session import PullSession
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, assert_same, random_prompts, random_run
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import result
from giaann_dask.cluster.regions import open_region, region_places
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.errors import OptionError, PromptError, StoreDamagedError
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.evaluation.predicting import (
    PredictionRule,
    StepRecords,
    infer,
    prepared_sequences,
)
from giaann_dask.models.columns.flags import flags_of
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence, StepResult, StepTrace
from giaann_dask.models.columns.v1 import kernels
from giaann_dask.models.columns.v1.pull_batch import PullBatch, compile_steps
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.source import RowSource, RunRows
from giaann_dask.runs.run import Row, Run
from giaann_dask.spec import Specification
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.segmentation import EncodedBlock

NO_FLAGS = FlagTable(np.zeros(FEATURES, bool), np.full(FEATURES, 0))


class CountingRows(RowSource):
    """Rows that are asked for together, with what was asked."""

    def __init__(self, rows: RunRows) -> None:
        self._rows = rows
        self.asked: list[list[int]] = []
        self.ahead: list[list[int]] = []

    def row(self, neuron: int) -> Row | None:
        return self._rows.row(neuron)

    def rows(self, neurons: Sequence[int]) -> dict[int, Row | None]:
        self.asked.append(list(neurons))
        return self._rows.rows(neurons)

    def prefetch(self, neurons: Iterable[int]) -> None:
        self.ahead.append(list(neurons))


def test_steps_compiled_ahead_have_the_types_of_a_batch() -> None:
    """Otherwise they would be compiled again for the first prompt."""
    rng, specification = np.random.default_rng(1), Specification(profile="v1")
    compile_steps(specification)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, 12), rng.integers(0, FEATURES, 12)))
    batch = PullBatch(specification, RunRows([random_run(rng, specification, neurons, 0.5)], lambda _: 0))
    for prompt in random_prompts(rng, neurons, 8)[: batch.free_slots]:
        batch.enter(prompt)
    assert batch.step()
    assert len(kernels.advance.dispatcher.signatures) == 1


@examples(60)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SPECIFICATIONS),
    st.sampled_from(OPTIONS),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.integers(3, 12),
    st.integers(1, 24),
    st.builds(
        BatchOptions, slots=st.integers(1, 5), held_bytes=st.sampled_from([0, 3000, 1 << 30]), ahead=st.booleans()
    ),
    st.integers(1, 5),
)
def test_the_same_steps_as_alone(
    seed: int,
    specification: Specification,
    options: InferenceOptions,
    fullness: float,
    size: int,
    longest: int,
    batch: BatchOptions,
    regions: int,
) -> None:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, size), rng.integers(0, FEATURES, size)))
    run = random_run(rng, specification, neurons, fullness)
    prompts = random_prompts(rng, neurons, longest)
    whole = RunRows([run], lambda _: 0)
    found: dict[int, list[StepTrace]] = {}
    one = PullBatch(specification, split_rows(run, regions), options=options, batch=batch)
    finished = []
    for advance in run_prompts(one, prompts):
        found.setdefault(advance.number, []).extend(advance.traces)
        assert [trace.result for trace in advance.traces] == list(advance.results)
        finished += [advance.number] * advance.finished
    assert sorted(finished) == list(range(len(prompts)))
    for number, prompt in enumerate(prompts):
        traces = alone(prompt, specification, whole, options)
        assert_same(traces, found[number])
        event(f"predicted {any(trace.result.predicted is not None for trace in traces)}")


@pytest.fixture(scope="module")
def syn_run() -> Run:
    return golden_run(SYN_FOLDER)


@pytest.mark.parametrize("path", inference_files(SYN_FOLDER), ids=lambda path: path.name[6:-9])
def test_synthetic_steps(path: Path, syn_run: Run) -> None:
    follow(path, syn_run, BatchFollower)


@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_sample(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / "v1" / name
    run = golden_run(folder)
    for file in EWT_SAMPLE:
        follow(folder / file, run, BatchFollower)


@pytest.mark.slow
@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_steps(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / "v1" / name
    run = golden_run(folder)
    for path in inference_files(folder):
        follow(path, run, BatchFollower)


def dense_rows(seed: int = 3) -> tuple[np.ndarray, Run]:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 4, 12), rng.integers(0, FEATURES, 12)))
    return neurons, random_run(rng, SPECIFICATIONS[0], neurons, 0.5)


def test_distinct_sources_are_asked_for_together() -> None:
    neurons, run = dense_rows()
    rows = CountingRows(RunRows([run], lambda _: 0))
    batch = PullBatch(SPECIFICATIONS[0], rows, batch=BatchOptions(slots=4))
    sequence = PreparedSequence(neuron=neurons[:5], noun=np.ones(5, bool), number=1)
    for _ in range(4):
        batch.enter(Prompt(sequence=sequence, flags=NO_FLAGS, tokens=4))
    while len(batch):
        batch.step()
    assert rows.asked[0] == neurons[:5].tolist()
    every = [neuron for asked in rows.asked for neuron in asked]
    assert len(every) == len(set(every)) == batch.held.fetched
    assert batch.held.wanted > batch.held.fetched
    # What is fed next is asked for as soon as it is known.
    assert rows.ahead
    assert rows.ahead == rows.asked[1:]


def results_by_number(batch: PullBatch, prompts: list[Prompt]) -> dict[int, list[StepResult]]:
    found: dict[int, list[StepResult]] = {}
    for advance in run_prompts(batch, prompts):
        found.setdefault(advance.number, []).extend(advance.results)
    return found


def test_rows_that_nobody_needs_are_let_go() -> None:
    neurons, run = dense_rows()
    prompts = [
        Prompt(sequence=PreparedSequence(neuron=np.roll(neurons, n)[:3], noun=np.ones(3, bool), number=1),
               flags=NO_FLAGS, tokens=1)
        for n in range(6)
    ]  # fmt: skip
    few, many = (
        PullBatch(SPECIFICATIONS[0], RunRows([run], lambda _: 0), batch=BatchOptions(slots=1, held_bytes=held))
        for held in (0, 1 << 30)
    )
    assert results_by_number(few, prompts) == results_by_number(many, prompts)
    assert len(few.held) < len(many.held)
    assert few.held.fetched > many.held.fetched


@pytest.mark.parametrize("profile", ["v1", "v2"])
@pytest.mark.parametrize("beyond", ["segment", "branch"])
def test_a_damaged_row_never_reaches_compiled_code(profile: Literal["v1", "v2"], beyond: str) -> None:
    specification = Specification(profile=profile)
    neurons = pack_neuron(np.arange(3), np.zeros(3, np.int64))
    outside = {"segment": (specification.segments, 0), "branch": (0, specification.branches)}[beyond]
    keys = np.append(pack_target(0, neurons, 0), pack_target(outside[0], neurons[2], outside[1]))
    rows = RunRows([Run(neurons[:1], np.array([0, 4]), keys, np.ones(4, np.int32))], lambda _: 0)
    sequence = PreparedSequence(neuron=neurons[:2], noun=np.ones(2, bool), number=1)
    session = PullSession if profile == "v1" else V2Session
    with pytest.raises(StoreDamagedError, match="segment {} and branch {}".format(*outside)):
        session(specification, rows, NO_FLAGS).run_sequence(sequence)


def test_a_full_batch_takes_no_more_and_one_may_leave() -> None:
    neurons, run = dense_rows()
    batch = PullBatch(SPECIFICATIONS[0], RunRows([run], lambda _: 0), batch=BatchOptions(slots=1))
    prompt = Prompt(
        sequence=PreparedSequence(neuron=neurons[:3], noun=np.ones(3, bool), number=1), flags=NO_FLAGS, tokens=9
    )
    number = batch.enter(prompt)
    with pytest.raises(OptionError, match="full batch"):
        batch.enter(prompt)
    batch.step()
    batch.leave(number)
    assert (len(batch), batch.free_slots) == (0, 1)
    assert batch.step() == []
    assert batch.enter(prompt) == number + 1
    with pytest.raises(OptionError, match="slots is 0"):
        BatchOptions(slots=0)


def test_one_by_one_is_the_same_session() -> None:
    neurons, run = dense_rows()
    rows, rng = RunRows([run], lambda _: 0), np.random.default_rng(1)
    pushed = Session(SPECIFICATIONS[0], rows, NO_FLAGS)
    replayed = PullSession(SPECIFICATIONS[0], rows, NO_FLAGS)
    for _ in range(3):
        sequence = PreparedSequence(neuron=rng.choice(neurons, 14), noun=rng.random(14) < 0.4, number=1)
        traces: tuple[list[StepTrace], list[StepTrace]] = ([], [])
        one = pushed.run_sequence(sequence, observer=traces[0].append)
        other = replayed.run_sequence(sequence, observer=traces[1].append)
        assert (other.steps, other.stop) == (one.steps, one.stop)
        assert_same(*traces)
        streams = [replayed.stream(sequence, 6) for _ in range(2)]
        both = list(zip(*streams, strict=True))
        expected = generate(pushed, sequence, 6)
        assert [a.result for a, b in both] == [b.result for a, b in both] == list(expected.steps)
        assert generate(replayed, sequence, 6).tokens == expected.tokens
        for step in expected.steps:
            assert replayed.explain(expected.steps, step.index) == pushed.explain(expected.steps, step.index)


def test_a_row_without_connections_explains_nothing() -> None:
    """A source of rows may answer an empty row instead of none."""
    neurons, run = dense_rows()

    class EmptyRows(CountingRows):
        def row(self, neuron: int) -> Row | None:
            return self._rows.row(neuron) or Row(np.zeros(0, np.int64), np.zeros(0, np.int32))

    silent = int(neurons.max()) + 1
    neuron = np.array([run.source[0], silent, *run.source[1:7]])
    prompt = PreparedSequence(neuron=neuron, noun=np.ones(8, bool), number=1)
    session = Session(SPECIFICATIONS[0], EmptyRows(RunRows([run], lambda _: 0)), NO_FLAGS)
    generation = generate(session, prompt, 3)
    assert generation.tokens
    assert session.explain(generation.steps, 8)


@pytest.fixture(scope="module")
def village_network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    folder = tmp_path_factory.mktemp("village")
    with gd.connect(workers=0) as client:
        return gd.train(write_village(folder / "village.txt", 600), folder / "net", client=client)


def test_sessions_give_what_generate_gives(village_network: gd.Network) -> None:
    prompts = [
        "The old miller carried the",
        "The quiet captain crossed the boat near the grey",
        "The teacher painted the",
    ]
    options = gd.GenerationOptions(max_tokens=8, reasons=2)
    expected = [village_network.generate(prompt, options=options) for prompt in prompts]
    assert sum(len(continuation.tokens) for continuation in expected) > 4
    batch = BatchOptions(slots=2)
    assert list(village_network.sessions(prompts, options=options, batch=batch).continuations()) == expected
    with gd.connect(workers=0) as client:
        asked = replace(options, rows=replace(options.rows, mode="remote"))
        assert list(village_network.sessions(prompts, client=client, options=asked).continuations()) == expected
    for prompt, continuation in zip(prompts, expected, strict=True):
        with village_network.session(prompt, options=options) as session:
            assert tuple(session) == session.tokens == continuation.tokens
            assert session.stop == continuation.stop


@pytest.mark.parametrize("kept", [{}, {"ranks": 5, "probability": True}])
@pytest.mark.parametrize("feed", ["target", "prediction"])
def test_an_evaluation_of_batches_is_that_one_by_one(
    village_network: gd.Network, feed: Any, kept: dict[str, Any]
) -> None:
    block, flags = village_block(village_network)
    reader = reader_of(village_network)
    regions = [open_region(*place) for _, place in region_places(reader)]
    placement, specification = reader.placement(), village_network.manifest.specification
    rule = PredictionRule(specification=specification, options=InferenceOptions(feed=feed), **kept)
    expected = infer(block, (3, 40), flags, placement, regions, rule)
    records = StepRecords(block, rule.ranks, probability=rule.probability)
    session = Session(specification, RunRows.placed(placement, regions), flags, options=rule.options)
    for place, sequence in prepared_sequences(block, (3, 40)):
        traces: list[StepTrace] = []
        outcome = session.run_sequence(sequence, observer=traces.append)
        records.begin(place)
        candidates = {trace.result.index: trace.candidates for trace in traces if trace.candidates is not None}
        records.add(place, outcome.steps, candidates)
    found = records.predictions()
    assert len(found.predicted) > 20
    for name in (field.name for field in fields(expected)):
        value = getattr(expected, name)
        if isinstance(value, np.ndarray):
            assert value.tobytes() == getattr(found, name).tobytes(), name
        elif name != "rows":
            assert value == getattr(found, name), name


def village_block(network: gd.Network) -> tuple[EncodedBlock, FlagTable]:
    """Encode other sentences with a network's dictionaries."""
    reader = reader_of(network)
    vocabulary = reader.saved_vocabulary()
    specification = reader.manifest().specification
    sources = SourceOptions.of(specification, tagger="lexicon", lexicon=reader.ever_pos(), reading=ReadOptions())
    text = write_village(network.path.parent / "other.txt", 60, 4)
    with gd.connect(workers=0) as client:
        (block,) = EncodingStream(client, vocabulary, sources, StreamOptions()).blocks([str(text)])
        return result(block.encoded), flags_of(vocabulary)


def test_a_prompt_that_cannot_be_continued_leaves_the_others_alone(village_network: gd.Network) -> None:
    prompts = ["The miller carried the", "of the and", "The miller carried the"]
    with village_network.sessions(iter(prompts), options=gd.GenerationOptions(max_tokens=3)) as sessions:
        pieces = list(sessions)
    assert [piece.number for piece in pieces if isinstance(piece.error, PromptError)] == [1]
    tokens = [[p.token for p in pieces if p.number == number and p.token] for number in range(3)]
    assert tokens[0] == tokens[2]
    assert tokens[0]
    with pytest.raises(PromptError, match="lacks a noun"):
        next(village_network.session(prompts[1]))


def test_closed_sessions_end(village_network: gd.Network) -> None:
    sessions = village_network.sessions(iter(lambda: "The miller carried the", None))
    assert next(sessions).token is not None
    sessions.close()
    assert list(sessions) == []
