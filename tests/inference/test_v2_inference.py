"""Inference of profile ``v2`` beyond its golden files: rules, selection, growth, generation, batches and reasons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conformance import read_lines
from support.generated import generate
from support.v2_records import V2Dictionary, V2Network, native_first, v2_folder, v2_prepared, v2_run

from giaann_dask.cli.shared_options import inference_rules
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.batch import Prompt, SessionBatch
from giaann_dask.models.columns.evaluation.accuracy import Predictions, match_ranks
from giaann_dask.models.columns.rules import fitting_rules, require_fit
from giaann_dask.models.columns.state.inference_options import (
    CandidateSelection,
    InferenceOptions,
    LegacyOptions,
    LifOptions,
    V2Options,
    V2Settings,
    settings,
)
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence
from giaann_dask.models.columns.v2.dynamics import SegmentLayout
from giaann_dask.models.columns.v2.session import V2Session, passing, select
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, PredictionRules
from giaann_dask.registry import ModelTraits
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.vocabulary import Vocabulary

UNIT = 1 << 20


class Golden:
    """A golden network with the sequences of one of its inference files."""

    def __init__(self, folder: Path) -> None:
        self.rows, self.network = RunRows([v2_run(folder)], lambda neuron: 0), V2Network.of(folder)
        dictionary = V2Dictionary.saved(folder)
        lines = list(read_lines(folder / "infer_train_target.jsonl.gz"))[:12]
        for line in lines:
            dictionary.expand(line)
        self.flags = dictionary.flags()
        self.sequences = [v2_prepared(line) for line in lines if line["status"] == "inferred"]

    def session(self, options: V2Options) -> V2Session:
        return V2Session(self.network, self.rows, self.flags, options=options)


@pytest.fixture(scope="module")
def golden() -> Golden:
    folder = v2_folder("syn_word")
    if folder is None:
        pytest.skip("needs the golden files of syn_word, which are neither in tests/data/v2 nor in ../shared")
    return Golden(folder)


def start(sequence: PreparedSequence) -> PreparedSequence:
    return PreparedSequence(neuron=sequence.neuron[:8], noun=sequence.noun[:8], number=sequence.number)


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_prompt_goes_on_as_a_sequence_that_is_fed_predictions(golden: Golden, name: Any) -> None:
    session = golden.session(settings(name, feed="prediction"))
    for sequence in golden.sequences:
        whole = session.run_sequence(sequence)
        generated = generate(session, start(sequence), len(sequence) - 8)
        # The times of columns follow what is given, in one, and what is predicted in the other.
        assert [replace(s, column_time=0) for s in generated.steps] == [replace(s, column_time=0) for s in whole.steps]
        assert generated.stop == whole.stop
        assert any(generated.tokens)


def test_a_batch_answers_what_sessions_do(golden: Golden) -> None:
    options = settings("test", feed="prediction")
    session = golden.session(options)
    batch = SessionBatch(lambda _: session, golden.rows, batch=BatchOptions(slots=5))
    waiting, found = list(golden.sequences), dict[int, list[Any]]()
    while waiting or len(batch):
        while waiting and batch.free_slots:
            batch.enter(Prompt(sequence=start(waiting.pop(0)), flags=golden.flags, tokens=9))
        for advance in batch.step():
            found.setdefault(advance.number, []).extend(trace.result for trace in advance.traces)
    assert len(found) == len(golden.sequences)
    for number, sequence in enumerate(golden.sequences):
        assert tuple(found[number]) == generate(session, start(sequence), 9).steps


def test_reasons_add_up_to_the_value_of_a_neuron_that_was_not_burst(golden: Golden) -> None:
    session = golden.session(settings("test"))
    compared = 0
    for sequence in golden.sequences:
        steps = session.run_sequence(sequence).steps
        for step in steps:
            burst = {s.next for s in steps[: step.index]}
            if step.predicted is not None and step.predicted not in burst:
                reasons = session.explain(steps, step.index)
                assert sum(r.contribution for r in reasons) == pytest.approx(step.value, rel=1e-5)
                compared += 1
    assert compared > 20


def legacy_network(seed: int) -> tuple[Run, int]:
    """Random connections between a few neurons on two branches and eight segments."""
    random, neurons = np.random.default_rng(seed), pack_neuron(np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3))
    source, target = (neurons[random.integers(0, len(neurons), 900)] for _ in range(2))
    pairs = np.unique(
        np.stack([source, pack_target(random.integers(0, 8, 900), target, random.integers(0, 2, 900))], 1), axis=0
    )
    sources, counts = np.unique(pairs[:, 0], return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Run(sources, pointer, pairs[:, 1].copy(), np.full(len(pairs), 3 * UNIT, np.int32)), len(neurons)


@pytest.mark.parametrize("name", ["train", "test"])
def test_reasons_without_a_soma_are_connections_that_are_there(name: Any) -> None:
    run, _ = legacy_network(1)
    network = cast(Specification, V2Network(branches=2, last_segment=7))
    flags = FlagTable(np.zeros(4, bool), np.full(4, -1))
    session = V2Session(network, RunRows([run], lambda neuron: 0), flags, options=settings(name, lif=False))
    neuron = run.source[np.random.default_rng(2).integers(0, len(run.source), 20)]
    steps = session.run_sequence(PreparedSequence(neuron=neuron, noun=neuron % 4 == 0, number=0)).steps
    told = 0
    for step in steps:
        for reason in session.explain(steps, step.index):
            row = run.row(reason.source)
            assert row is not None
            assert step.predicted is not None
            assert reason.source == steps[reason.step].source
            assert int(pack_target(reason.segment, step.predicted, reason.branch)) in row.target.tolist()
            assert reason.contribution > 0
            told += 1
    assert told > 5


def test_a_table_that_grows_loses_nothing(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    options = settings("test")
    wide = [golden.session(options).run_sequence(sequence) for sequence in golden.sequences]
    monkeypatch.setattr("giaann_dask.models.columns.v2.session._FIRST_STEPS", 1)
    monkeypatch.setattr("giaann_dask.models.columns.state.keyed_arrays._FIRST_KEYS", 1)
    narrow = [golden.session(options).run_sequence(sequence) for sequence in golden.sequences]
    assert [result.steps for result in narrow] == [result.steps for result in wide]


SOURCE = int(pack_neuron(2, 5))
NEURONS = pack_neuron([2, 2, 2, 3, 3], [0, 1, 2, 0, 1])
FLAGS = FlagTable(np.array([False, True, False]), np.array([-1, -1, 4]))


@pytest.mark.parametrize(
    ("mode", "options", "number", "expected"),
    [
        ("internal", CandidateSelection.reference(), 9, [1, 1, 1, 0, 0]),
        ("internal", CandidateSelection(), 9, [1, 1, 1, 1, 0]),
        ("delimiter", CandidateSelection(), 9, [1, 1, 1, 1, 1]),
        (None, CandidateSelection(enforce_delimiter=True), 9, [1, 1, 1, 1, 1]),
        ("delimiter", CandidateSelection(enforce_delimiter=True), 9, [0, 1, 1, 1, 1]),
        ("delimiter", CandidateSelection(enforce_delimiter=True), 3, [0, 1, 0, 1, 1]),
    ],
)
def test_what_passes(mode: Any, options: CandidateSelection, number: int, expected: list[int]) -> None:
    later = FlagTable(np.zeros(3, bool), FLAGS.probable_since, np.array([-1, 0, -1]))
    for flags in (FLAGS, later):
        passes = passing(NEURONS, SOURCE, mode, flags, number, options)
        assert ([1] * 5 if passes is None else passes.astype(int).tolist()) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=9), st.booleans())
def test_the_first_of_the_best_that_pass_is_selected(scored: list[tuple[int, bool]], filtered: bool) -> None:
    neuron = np.arange(len(scored))
    score, passes = np.float32([s for s, _ in scored]), np.array([p for _, p in scored])
    found = select(neuron, score, passes, CandidateSelection(filtered=filtered), NameOrder())
    allowed = [i for i in neuron if passes[i] or not filtered]
    best = max(allowed, key=lambda i: (score[i], -i), default=None)
    expected = best if best is not None and passes[best] else None
    assert (None if found.best is None else int(found.neuron[found.best])) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=70))
def test_the_reference_takes_one_of_the_largest(scores: list[int]) -> None:
    place = native_first([float(s) for s in scores])
    assert scores[place] == max(scores)


def test_rules_fit_the_network_or_are_refused() -> None:
    first = Specification()
    soma = cast(Specification, _Second(branches=1, last_segment=8))
    without = cast(Specification, _Second(branches=2, last_segment=7))
    assert fitting_rules(first, InferenceOptions(timing="exact")) == InferenceOptions(timing="exact")
    assert fitting_rules(soma, InferenceOptions(feed="prediction")) == settings("test", feed="prediction")
    rules = fitting_rules(without, V2Settings(settings="train", strict_reference=True))
    assert isinstance(rules, V2Options)
    assert isinstance(rules.dynamics, LegacyOptions)
    assert rules.selection == CandidateSelection.reference()
    assert not rules.sends_strengths
    assert settings("test").sends_strengths
    assert not InferenceOptions().sends_strengths
    for network, asked in (
        (first, V2Settings()),
        (soma, InferenceOptions(timing="exact")),
        (soma, V2Options(dynamics=LegacyOptions())),
        (without, V2Options()),
    ):
        with pytest.raises(OptionError):
            fitting_rules(network, asked)


class _Second(V2Network):
    profile = ruled_by = "v2"
    traits = ModelTraits(columns=True, probabilities=False)


@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_rules_are_found_once_for_a_prompt(profile: Literal["v1", "v2"]) -> None:
    fitting_rules.cache_clear()
    # The command, the client, the opening of the commit and its batch ask for them, with equal values.
    found = [require_fit(Specification(profile=profile), GenerationOptions()) for _ in range(4)]
    assert all(rules is found[0] for rules in found)
    assert fitting_rules.cache_info().misses == 1


def test_options_are_checked() -> None:
    for make in (
        lambda: LifOptions(soma_decay=1.5),
        lambda: LegacyOptions(timing="late"),  # type: ignore[arg-type]
        lambda: CandidateSelection(test="column", enforce_delimiter=True),
        lambda: V2Settings(settings="dev"),  # type: ignore[arg-type]
        lambda: V2Settings(strict_reference=True, enforce_delimiter=True),
        lambda: V2Options(feed="nothing"),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError):
            make()
    layout = SegmentLayout.of(Specification())
    assert (layout.columns, layout.segments, layout.branches, layout.soma) == (3, 8, 2, False)


def test_the_command_line_chooses_the_kind_of_rules() -> None:
    asked = V2Settings(strict_reference=True)
    shared = {"shared_rules": PredictionRules()}
    assert inference_rules({"v1_rules": None, "v2_rules": None, **shared}, "target") == PredictionRules()
    chosen = inference_rules({"v1_rules": None, "v2_rules": asked, **shared}, "prediction")
    assert chosen == V2Settings(strict_reference=True, feed="prediction")
    with pytest.raises(OptionError):
        inference_rules({"v1_rules": InferenceOptions(timing="exact"), "v2_rules": asked, **shared}, "target")


def test_a_match_of_names_is_that_of_the_concept() -> None:
    vocabulary = Vocabulary(["dog", "cat"], ["", "dogs", "dog"], [False] * 3, [-1] * 3)
    one = np.zeros(3, np.int64)
    predictions = Predictions(
        sequence=one,
        position=one,
        predicted=pack_neuron([1, 1, 0], [1, 2, 0]),
        target=pack_neuron([0, 0, 1], [0, 0, 2]),
        surface=("dogs", "dogs", ""),
        part=np.zeros(3, np.uint8),
        candidates=one,
        runners_up=np.zeros((3, 0), np.int64),
        tokens=3,
        stopped=0,
    )
    assert match_ranks(predictions, vocabulary).tolist() == [1, 0, 1]
    assert match_ranks(predictions, vocabulary, by_name=True).tolist() == [0, 1, 1]


def test_segments_of_columns_alone_or_of_features_alone() -> None:
    """Layouts that the contract leaves open: nothing moves where there is nothing to move."""
    source = pack_neuron([0, 0], [1, 2])
    flags = FlagTable(np.zeros(3, bool), np.full(3, -1))
    for columns, features in ((4, 0), (0, 4)):
        last = columns + features
        target = pack_target([last, last], source[::-1], 0)
        run = Run(source, np.array([0, 1, 2]), target, np.full(2, UNIT, np.int32))
        network = V2Network(branches=1, last_segment=last, column_segments=columns, feature_segments=features)
        session = V2Session(
            cast(Specification, replace(network)), RunRows([run], lambda neuron: 0), flags, options=settings("train")
        )
        sequence = PreparedSequence(neuron=np.tile(source, 6), noun=np.zeros(12, bool), number=0)
        predicted = [step.predicted for step in session.run_sequence(sequence).steps[8:]]
        assert predicted == sequence.neuron[8:].tolist()
