"""Activation, candidates and sessions against a plain dictionary, and their edges."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.conformance import Entry, Oracle
from support.examples import examples
from support.generated import generate

from giaann_dask.device import select_device
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.keys import pack_neuron, pack_target, unpack_neuron, unpack_target
from giaann_dask.models.columns.state.activation import (
    NEVER,
    ActivationState,
    Layout,
    Pulse,
    StateEntries,
    TokenTimes,
    connected_targets,
)
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.keyed_arrays import KeyedArrays
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence, StepTrace
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

SPECIFICATION = Specification(seed_tokens=8)
LAYOUT = Layout.of(SPECIFICATION)
C, F, L = 3, 5, 7  # as the oracle has them
OPTIONS = [
    InferenceOptions(timing=timing, activations=activations, sequential=sequential)
    for timing, activations, sequential in itertools.product(
        ("none", "biased", "exact"), ("boolf", "boolf+c", "intf+c"), (True, False)
    )
]


def random_row(rng: np.random.Generator, neurons: list[int], size: int) -> list[Entry]:
    entries = {(int(rng.integers(L + 1)), int(rng.choice(neurons)), int(rng.integers(2))) for _ in range(size)}
    return sorted(entries)


def targets(row: list[Entry]) -> npt.NDArray[np.int64]:
    if not row:
        return np.zeros(0, np.int64)
    segment, neuron, branch = np.array(row, np.int64).T
    return pack_target(segment, neuron, branch)


def new_state(options: InferenceOptions | None = None) -> ActivationState:
    return ActivationState(LAYOUT, options or InferenceOptions())


def contents(state: StateEntries) -> tuple[dict[Entry, float], dict[Entry, int]]:
    """The state as the oracle keeps it."""
    segment, neuron, branch = unpack_target(state.key)
    entries = list(zip(segment.tolist(), neuron.tolist(), branch.tolist(), strict=True))
    timed = (state.time != NEVER).tolist()
    times = {e: t for e, t, kept in zip(entries, state.time.tolist(), timed, strict=True) if kept}
    return dict(zip(entries, state.value.tolist(), strict=True)), times


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o.timing}-{o.activations}-{o.sequential}")
@pytest.mark.parametrize("seed", range(3))
def test_random_steps_agree_with_a_dictionary(options: InferenceOptions, seed: int) -> None:
    rng = np.random.default_rng(seed)
    neurons = pack_neuron(rng.integers(0, 4, 9), rng.integers(0, 3, 9)).tolist()
    oracle, state = Oracle(options), new_state(options)
    candidates_seen = 0
    for now in range(1, 16):
        source = int(rng.choice(neurons))
        if now < 6 or rng.random() < 0.3:
            oracle.burst(source)
            state.burst(source)
        row = random_row(rng, neurons, int(rng.integers(0, 90)))
        active = state.activity(source)
        assert active == oracle.activity(source)
        pulse = Pulse(source=0, drive=LAYOUT.drives[active], column_time=now // 3, feature_time=now - 1)
        # Whatever is done with a copy is not done with the other.
        other = state.copy()
        state, other = (state, other) if now % 2 else (other, state)
        before = contents(other.entries())
        state.propagate(targets(row), pulse)
        assert contents(other.entries()) == before
        oracle.propagate(row, pulse)
        state.deactivate(source)
        oracle.deactivate(source)
        entries = state.entries()
        assert np.array_equal(entries.key, np.unique(entries.key))
        assert contents(entries) == ({e: float(v) for e, v in oracle.value.items()}, oracle.time)
        times = TokenTimes(feature_time=now, column_time=(now + 1) // 3, open_noun=bool(now % 2))
        found = state.score(connected_targets(targets(row), LAYOUT), times)
        expected = oracle.scores(row, times)
        got = {} if found is None else dict(zip(found.neuron.tolist(), found.value.tolist(), strict=True))
        assert got == expected
        if found is not None:
            candidates_seen += 1
            best = max(expected.values())
            assert int(found.neuron[found.best]) == min(n for n, v in expected.items() if v == best)
            assert found.ties.tolist() == [n for n, v in expected.items() if v == best]
    assert candidates_seen > 3


def test_drives_are_the_contract_s_float32_values() -> None:
    assert LAYOUT.drives == (
        0.0,
        pytest.approx(0.0049999952, abs=1e-10),
        pytest.approx(0.0099997520, abs=1e-10),
    )
    assert all(np.float32(drive) == drive for drive in LAYOUT.drives)


def test_burst_on_an_active_entry_reads_two_until_the_next_step() -> None:
    neuron = int(pack_neuron(1, 2))
    state = new_state(InferenceOptions(sequential=True))
    state.burst(neuron)
    state.burst(neuron)
    entries = state.entries()
    assert entries.value.tolist() == [2.0]
    pulse = Pulse(source=0, drive=0.0, column_time=0, feature_time=0)
    state.propagate(targets([]), pulse)
    assert state.entries().value.tolist() == [1.0]
    assert entries.value.tolist() == [2.0]


def test_a_drive_of_zero_makes_entries() -> None:
    row = [(0, 5, 0), (C, 5, 1), (L, 5, 0)]
    pulse = Pulse(source=0, drive=0.0, column_time=2, feature_time=4)
    state = new_state(InferenceOptions(timing="biased", sequential=True))
    state.propagate(targets(row), pulse)
    assert contents(state.entries()) == ({(0, 5, 0): 0.0, (C, 5, 1): 0.0}, {(0, 5, 0): 2, (C, 5, 1): 4})


def test_deactivating_an_unknown_neuron_changes_nothing() -> None:
    state = new_state()
    state.burst(3)
    before = contents(state.entries())
    state.deactivate(4)
    assert contents(state.entries()) == before


def test_ties_go_to_the_first_column_and_feature() -> None:
    row = [(C, n, 0) for n in (9, 4, 7)] + [(L, n, 0) for n in (9, 4, 7)]
    pulse = Pulse(source=0, drive=LAYOUT.drives[1], column_time=0, feature_time=0)
    target = targets(sorted(row))
    state = new_state(InferenceOptions(sequential=False))
    state.propagate(target, pulse)
    times = TokenTimes(feature_time=1, column_time=0)
    found = state.score(connected_targets(target, LAYOUT), times)
    assert found is not None
    assert found.ties.tolist() == [4, 7, 9]
    assert found.best == 0


@pytest.mark.parametrize(
    ("name", "value"), [("timing", "late"), ("activations", "bool"), ("feed", "pred"), ("sequential", 1)]
)
def test_options_are_validated(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name):
        InferenceOptions(**{name: value})


def test_devices_are_selected_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_device() is None
    with pytest.raises(OptionError, match="no GPU"):
        select_device("cuda")
    with pytest.raises(OptionError, match="auto or cpu or cuda"):
        select_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    # The number that tensors made there have, too.
    assert select_device() == select_device("cuda") == torch.device("cuda", 1)
    assert select_device("cpu") is None


def test_rows_come_from_the_neuron_s_region() -> None:
    rows = RunRows([small_run([(1, 2)]), small_run([(3, 4)])], lambda neuron: int(neuron > 2))
    assert rows.row(1) is not None
    assert rows.row(3) is not None
    assert rows.row(2) is None
    assert rows.row(4) is None


def test_flags_hold_from_their_sequence_on() -> None:
    flags = FlagTable(np.array([False, True, False, True]), np.array([-1, -1, 5, 5]))
    assert [flags.mode(0, 9), flags.mode(1, 0), flags.mode(2, 4), flags.mode(2, 5), flags.mode(3, 9)] == [
        "internal",
        "delimiter",
        "internal",
        None,
        "delimiter",
    ]


def small_run(pairs: list[tuple[int, int]]) -> Run:
    """Connections from neuron to neuron, adjacent tokens in one column, branch 0."""
    source, target = zip(*[(a, (s, b)) for a, b in sorted(pairs) for s in (C - 1, L)], strict=True)
    segments = np.array([s for s, _ in target])
    keys = pack_target(segments, np.array([b for _, b in target]), 0)
    sources, counts = np.unique(np.array(source), return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)])
    order = np.lexsort((keys, np.array(source)))
    return Run(sources, pointer, keys[order], np.full(len(keys), 5 << 20, np.int32))


def trained_run(sequences: list[tuple[np.ndarray, np.ndarray]]) -> Run:
    """What training adds up, one pair at a time: (neurons, occurrences) of each sequence."""
    table: dict[tuple[int, int], int] = {}
    increments = SPECIFICATION.increments()
    for neurons, occurrence in sequences:
        seen: dict[int, int] = {}
        branch = []
        for neuron in neurons.tolist():
            branch.append(min(seen.get(neuron, 0), 1))
            seen[neuron] = seen.get(neuron, 0) + 1
        for i, j in itertools.combinations(range(len(neurons)), 2):
            column_segment = max(C - 1 - int(occurrence[j] - occurrence[i]), 0)
            for segment in (column_segment, C + F - min(j - i, F)):
                key = int(neurons[i]), int(pack_target(segment, neurons[j], branch[j]))
                table[key] = table.get(key, 0) + int(increments[j - i])
    keys = np.array(sorted(table), np.int64)
    sources, counts = np.unique(keys[:, 0], return_counts=True)
    strength = np.array([table[s, t] for s, t in keys.tolist()], np.int32)
    return Run(sources, np.concatenate([[0], np.cumsum(counts)]), keys[:, 1].copy(), strength)


def texts(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Random sentences: neurons, occurrences and noun marks; feature 7 ends a column."""
    rng = np.random.default_rng(4)
    result = []
    for _ in range(count):
        column, feature, occurrence = [], [], []
        for k in range(7):
            concept = int(rng.integers(12))
            words = [0, *rng.integers(1, 7, int(rng.integers(1, 3))).tolist(), 7]
            column += [concept] * len(words)
            feature += words
            occurrence += [k] * len(words)
        result.append((pack_neuron(column, feature), np.array(occurrence), np.array(feature) == 0))
    return result


@pytest.fixture(scope="module")
def sentences() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return texts(25)


@pytest.fixture(scope="module")
def run(sentences: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Run:
    return trained_run([(neuron, occurrence) for neuron, occurrence, _ in sentences])


def session(run: Run, **options: Any) -> Session:
    flags = FlagTable(np.arange(8) == 7, np.full(8, -1))
    rows = RunRows([run], lambda neuron: 0)
    return Session(SPECIFICATION, rows, flags, options=InferenceOptions(**options))


@pytest.mark.parametrize("timing", ["none", "biased", "exact"])
def test_generation_continues_a_trained_sentence(run: Run, sentences: Any, timing: str) -> None:
    continued = 0
    for neuron, _, noun in sentences:
        prompt = PreparedSequence(neuron=neuron[:12], noun=noun[:12], number=0)
        generation = generate(session(run, timing=timing, sequential=True), prompt, 4)
        assert [step.seed for step in generation.steps[:12]] == [True] * 12
        assert len(generation.tokens) == 4 or generation.stop is not None
        for step, candidates in zip(generation.steps[12:], generation.candidates[12:], strict=True):
            assert (candidates is None) == (step.predicted is None)
            if candidates is not None:
                assert step.predicted == int(candidates.neuron[candidates.best])
        continued += generation.tokens == tuple(neuron[12:16].tolist())
    assert continued >= 5


def test_generation_counts_the_columns_it_predicts(run: Run, sentences: Any) -> None:
    neuron, _, noun = sentences[0]
    prompt = PreparedSequence(neuron=neuron[:10], noun=noun[:10], number=0)
    generation = generate(session(run), prompt, 12)
    assert len(generation.tokens) == 12
    concepts = [unpack_neuron(token)[1] == 0 for token in generation.tokens]
    assert any(concepts[:-1])
    expected = int(noun[:10].sum()) + np.concatenate([[0], np.cumsum(concepts)[:-1]])
    assert [step.column_time for step in generation.steps[10:]] == expected.tolist()


@pytest.mark.parametrize("activations", ["boolf", "boolf+c", "intf+c"])
@pytest.mark.parametrize(("timing", "sequential"), [("none", True), ("none", False), ("exact", True), ("exact", False)])
def test_explanations_add_up_to_the_value(
    run: Run, sentences: Any, timing: str, sequential: bool, activations: str
) -> None:
    """Without a penalty for time, a value is what the connections and the neuron's own bursts gave."""
    explained = 0
    for neuron, _, noun in sentences[:8]:
        prompt = PreparedSequence(neuron=neuron[:10], noun=noun[:10], number=0)
        chosen = session(run, timing=timing, sequential=sequential, activations=activations)
        generation = generate(chosen, prompt, 3)
        for step in generation.steps[10:]:
            parts = chosen.explain(generation.steps, step.index)
            if step.predicted is None or step.predicted in neuron[:10]:
                continue
            explained += len(parts) > 1
            per_branch: dict[tuple[int, int], float] = {}
            for part in parts:
                at = part.segment, part.branch
                per_branch[at] = per_branch.get(at, 0.0) + part.contribution
            value = sum(
                max((v for (s, _), v in per_branch.items() if s == segment), default=0.0) for segment in range(L + 1)
            )
            assert value == pytest.approx(step.value, abs=1e-5)
    assert explained > 0


def test_explained_connections_are_those_of_the_rows(run: Run, sentences: Any) -> None:
    neuron, _, noun = sentences[1]
    prompt = PreparedSequence(neuron=neuron[:10], noun=noun[:10], number=0)
    chosen = session(run)
    generation = generate(chosen, prompt, 2)
    assert chosen.explain(generation.steps, 3) == ()
    parts = chosen.explain(generation.steps, 10)
    assert parts
    for part in parts:
        assert part.source == generation.steps[part.step].source
        row = run.row(part.source)
        assert row is not None
        key = int(pack_target(part.segment, generation.tokens[0], part.branch))
        at = row.target.tolist().index(key)
        assert part.strength * (1 << 20) == row.strength[at]


def test_evaluation_stops_where_nothing_follows() -> None:
    chain = [(int(pack_neuron(0, i)), int(pack_neuron(0, i + 1))) for i in range(8)]
    neuron = pack_neuron(0, np.arange(11))
    sequence = PreparedSequence(neuron=neuron, noun=np.arange(11) == 0, number=0)
    flags = FlagTable(np.zeros(11, bool), np.full(11, -1))
    results = {}
    for feed in ("prediction", "target"):
        options = InferenceOptions(sequential=False, feed=feed)
        chosen = Session(SPECIFICATION, RunRows([small_run(chain)], lambda _: 0), flags, options=options)
        traces: list[StepTrace] = []
        results[feed] = chosen.run_sequence(sequence, observer=traces.append)
        assert tuple(trace.result for trace in traces) == results[feed].steps
    predicted = results["prediction"]
    assert predicted.stop == "no connections"
    assert [step.predicted for step in predicted.steps[8:]] == [int(neuron[8]), None]
    assert results["target"].stop is None
    assert [step.stop for step in results["target"].steps[8:]] == [None, "no candidates", "no candidates"]
    assert [step.next for step in results["target"].steps] == neuron.tolist()


def test_an_internal_source_predicts_its_own_column_or_nothing() -> None:
    chain = [(int(pack_neuron(0, i)), int(pack_neuron(0, i + 1))) for i in range(7)]
    leaves = (int(pack_neuron(0, 7)), int(pack_neuron(1, 0)))
    neuron = pack_neuron([0] * 8 + [1] * 2, [*range(8), 0, 1])
    sequence = PreparedSequence(neuron=neuron, noun=np.arange(10) == 0, number=0)
    rows = RunRows([small_run([*chain, leaves])], lambda _: 0)
    options = InferenceOptions(sequential=False, feed="prediction")
    internal = FlagTable(np.zeros(11, bool), np.full(11, -1))
    rejected = Session(SPECIFICATION, rows, internal, options=options).run_sequence(sequence)
    assert rejected.stop == "rejected"
    assert rejected.steps[-1].candidates == 1
    assert rejected.steps[-1].predicted is None
    delimiter = FlagTable(np.arange(11) == 7, np.full(11, -1))
    accepted = Session(SPECIFICATION, rows, delimiter, options=options).run_sequence(sequence)
    assert accepted.steps[8].predicted == leaves[1]


def test_a_prepared_sequence_has_tokens() -> None:
    with pytest.raises(PromptError, match="0 neurons"):
        PreparedSequence(neuron=np.zeros(0, np.int64), noun=np.zeros(0, bool), number=0)


def test_values_are_frozen() -> None:
    state = new_state().entries()
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.key = state.key  # type: ignore[misc]


@examples(15)
@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 200))
def test_keys_are_found_while_arrays_grow(seed: int, bits: int, calls: int) -> None:
    """Also in a copy, which grows independently."""
    rng = np.random.default_rng(seed)
    # Keys that differ little, and in their upper bits alone.
    wanted = np.unique(rng.integers(0, 1 << bits, 3000) << int(rng.integers(0, 63 - bits)))
    keys = wanted[rng.permutation(len(wanted))[: len(wanted) // 2]]
    edges = [0, *sorted(rng.integers(0, len(keys), calls).tolist()), len(keys)]
    arrays, copied, at = KeyedArrays(np.int64(-7)), None, int(rng.integers(len(edges)))
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        # With some that were added before.
        again = np.tile(keys[begin // 2 : end], 2)
        position = arrays.take(again)
        assert len(arrays) == end
        assert np.array_equal(arrays.keys[position], again)
        assert (arrays.columns[0][begin:end] == -7).all()
        arrays.columns[0][position] = again
        if number == at:
            copied = arrays.copy()
    assert np.array_equal(arrays.keys[: len(keys)], keys)
    assert np.array_equal(arrays.columns[0][: len(keys)], keys)
    place = {key: place for place, key in enumerate(keys.tolist())}
    assert arrays.find(wanted).tolist() == [place.get(key, -1) for key in wanted.tolist()]
    if copied is not None:
        end = len(copied)
        assert copied.find(keys).tolist() == [*range(end), *[-1] * (len(keys) - end)]
        keys.flags.writeable = False
        assert copied.take(keys).tolist() == [*range(len(keys))]
        assert np.array_equal(copied.columns[0][:end], keys[:end])
        assert (copied.columns[0][end : len(keys)] == -7).all()


def test_the_state_of_a_trace_is_that_of_its_step_or_refused(run: Run, sentences: Any) -> None:
    neuron, _, noun = sentences[0]
    prompt = PreparedSequence(neuron=neuron[:10], noun=noun[:10], number=0)
    chosen, traces, sizes = session(run), list[StepTrace](), list[int]()
    for trace in chosen.stream(prompt, 2):
        traces.append(trace)
        state = trace.state
        assert state is not None
        sizes.append(len(state))
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    chosen.run_sequence(prompt, observer=traces.append)
    for trace in traces:
        with pytest.raises(OptionError, match="others have followed"):
            _ = trace.state
