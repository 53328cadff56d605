"""What evaluation adds up to: the same for any division into tasks, as a plain count over the steps."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.examples import examples
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, both, random_run
from support.village import write_village

import giaann_dask as gd
from giaann_dask.diagnostics.evaluation_report import accuracy_values, draw_evaluation, render
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, unpack_neuron
from giaann_dask.models.columns.evaluation.accuracy import CodeLength, Predictions, StepCounts, match_ranks
from giaann_dask.models.columns.evaluation.evaluation import AccuracyReport
from giaann_dask.models.columns.evaluation.predicting import StepRecords
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence, StepTrace
from giaann_dask.models.results import EvaluationReport
from giaann_dask.models.words.score_report import Baseline, ScoreReport
from giaann_dask.models.words.scores import TextScores
from giaann_dask.spec import PARTS_OF_SPEECH, Specification
from giaann_dask.text.blocks import POS_SHIFT
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

RANKS = 4
ARRAYS = ("sequence", "position", "predicted", "target", "part", "candidates", "runners_up")


def random_block(rng: np.random.Generator, neurons: np.ndarray, sequences: int) -> EncodedBlock:
    """Sequences of random tokens among some neurons, with parts of speech."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(9, 24, sequences))])
    column, feature = unpack_neuron(rng.choice(neurons, offsets[-1]))
    nothing = np.zeros(len(column), np.uint8)
    return EncodedBlock(
        offsets=offsets,
        status=np.zeros(sequences, np.uint8),
        column=column.astype(np.int32),
        feature=feature.astype(np.int32),
        branch=nothing,
        occurrence=nothing.astype(np.uint16),
        flags=(rng.integers(0, 18, len(column)) << POS_SHIFT).astype(np.uint8),
        surface=np.where(feature == 0, rng.integers(0, 3, len(column)), -1).astype(np.int32),
        document=np.zeros(sequences, np.int32),
        sentence=np.arange(sequences, dtype=np.int32),
        surfaces=("a", "b", "c"),
        first_sequence=1,
    )


def recorded(session: Any, block: EncodedBlock, ranks: int) -> tuple[Predictions, list[StepTrace]]:
    records, traces = StepRecords(block, ranks, probability=ranks > 1), []
    for q in range(len(block)):
        tokens = slice(block.offsets[q], block.offsets[q + 1])
        neuron = pack_neuron(block.column[tokens], block.feature[tokens])
        sequence = PreparedSequence(neuron=neuron, noun=block.feature[tokens] == 0, number=block.first_sequence + q)
        its: list[StepTrace] = []
        outcome = session.run_sequence(sequence, observer=its.append if ranks > 1 else None)
        records.begin(q)
        records.add(q, outcome.steps, {trace.result.index: trace.candidates for trace in its if trace.candidates})
        traces += its
    return records.predictions(), traces


def ranked_plainly(trace: StepTrace) -> list[int]:
    """The candidates of a completed step, best first; none where the best one was rejected."""
    if trace.candidates is None or trace.result.predicted is None:
        return []
    pairs = zip((-trace.candidates.value).tolist(), trace.candidates.neuron.tolist(), strict=True)
    return [neuron for _, neuron in sorted(pairs)]


def share_plainly(trace: StepTrace, target: int) -> float:
    """The share that the token's neuron has of what all candidates are activated, rounded once."""
    if trace.candidates is None:
        return 0.0
    values = dict(zip(trace.candidates.neuron.tolist(), map(Fraction, trace.candidates.value.tolist()), strict=True))
    positive = {neuron: value for neuron, value in values.items() if value > 0}
    return float(positive.get(target, Fraction(0))) / float(sum(positive.values())) if positive else 0.0


@examples(60)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SPECIFICATIONS),
    st.sampled_from(OPTIONS),
    st.sampled_from([0.05, 0.2, 0.5]),
)
def test_both_paths_keep_the_same_best_candidates(
    seed: int, specification: Specification, options: InferenceOptions, fullness: float
) -> None:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, 9), rng.integers(0, FEATURES, 9)))
    run, block = random_run(rng, specification, neurons, fullness), random_block(rng, neurons, 3)
    flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES))
    pushed, pulled = both(run, flags, specification, options)
    expected, traces = recorded(pushed, block, RANKS)
    found = recorded(pulled, block, RANKS)[0]
    alone = recorded(pulled, block, 1)[0]
    for name in ARRAYS:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        if name != "runners_up":
            assert np.array_equal(getattr(alone, name), getattr(expected, name)), name
    assert (found.surface, found.tokens, found.stopped) == (expected.surface, expected.tokens, expected.stopped)
    assert alone.runners_up.shape == (len(expected.predicted), 0)
    kept = [trace for trace in traces if not trace.result.seed and trace.result.next is not None]
    best = np.column_stack([expected.predicted, expected.runners_up])
    for trace, row in zip(kept, best.tolist(), strict=True):
        assert (ranked_plainly(trace) + [-1] * RANKS)[:RANKS] == row
    shares = [share_plainly(*pair) for pair in zip(kept, expected.target.tolist(), strict=True)]
    assert found.probability is not None
    assert found.probability.tolist() == expected.probability.tolist() == shares
    assert alone.probability is None
    event(f"probabilities {bool(any(shares))}")
    event(f"runners-up {bool((best[:, 1:] >= 0).any())}")


WORDS = Vocabulary(["a", "b", "x"], ["", "x", "y"], [False] * 3, [-1] * 3, 1)


@st.composite
def some_predictions(draw: st.DrawFn) -> Predictions:
    """Steps over a few words, with columns and features of the same spelling."""
    steps = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    best = pack_neuron(rng.integers(0, 3, (steps, RANKS)), rng.integers(0, 3, (steps, RANKS)))
    candidates = rng.integers(0, RANKS + 2, steps)
    best[np.arange(RANKS) >= candidates[:, None]] = -1
    feature = rng.integers(0, 3, steps)
    return Predictions(
        sequence=np.zeros(steps, np.int64),
        position=rng.integers(8, 60, steps),
        predicted=best[:, 0].copy(),
        target=pack_neuron(rng.integers(0, 3, steps), feature),
        surface=tuple("" if f else "abxy"[i] for f, i in zip(feature, rng.integers(0, 4, steps), strict=True)),
        part=rng.integers(0, 18, steps).astype(np.uint8),
        candidates=candidates,
        runners_up=best[:, 1:].copy(),
        tokens=0,
        stopped=0,
    )


def right(neuron: int, predictions: Predictions, step: int) -> bool:
    """The rule of section 8, word by word."""
    column, feature = (int(x[0]) for x in unpack_neuron(np.array([neuron])))
    target_column, target = (int(x[step]) for x in unpack_neuron(predictions.target))
    word = WORDS.features[feature] if feature else WORDS.concepts[column]
    expected = WORDS.features[target] if target else predictions.surface[step]
    return word == expected or (target == 0 and feature == 0 and column == target_column)


@given(some_predictions())
def test_the_first_right_candidate_counts(predictions: Predictions) -> None:
    expected = []
    for step, best in enumerate(np.column_stack([predictions.predicted, predictions.runners_up]).tolist()):
        ranks = [rank for rank, neuron in enumerate(best, 1) if neuron >= 0 and right(neuron, predictions, step)]
        expected.append(min(ranks, default=0))
    assert match_ranks(predictions, WORDS).tolist() == expected


def part_of(predictions: Predictions, kept: np.ndarray) -> Predictions:
    arrays = {name: getattr(predictions, name)[kept] for name in ARRAYS}
    surface = tuple(word for word, here in zip(predictions.surface, kept, strict=True) if here)
    return Predictions(**arrays, surface=surface, tokens=0, stopped=0)


@given(some_predictions(), st.integers(0, 2**32))
def test_any_division_into_tasks_adds_up_to_the_plain_counts(predictions: Predictions, seed: int) -> None:
    rank = match_ranks(predictions, WORDS)
    counts, of_task = StepCounts.empty(RANKS), np.random.default_rng(seed).integers(0, 3, len(rank))
    for task in (2, 0, 1):
        part = part_of(predictions, of_task == task)
        counts += StepCounts.of(part, match_ranks(part, WORDS))
    found = counts.accuracy((1, 2, RANKS), 8)
    assert found == StepCounts.of(predictions, rank).accuracy((1, 2, RANKS), 8)
    assert found.overall.steps == len(rank)
    assert found.overall.without_candidates == int((predictions.candidates == 0).sum())
    assert found.overall.matches == {k: int(((rank > 0) & (rank <= k)).sum()) for k in (1, 2, RANKS)}
    for group in found.by_position:
        first, last = int(group.name.split("-")[0]), int(group.name.split("-")[-1])
        inside = (predictions.position >= first) & (predictions.position <= last)
        assert (group.steps, group.matches[1]) == (inside.sum(), (rank[inside] == 1).sum())
    names = Counter(("unknown", *PARTS_OF_SPEECH)[part] for part in predictions.part)
    assert {group.name: group.steps for group in found.by_part} == names
    assert sorted((group.steps for group in found.by_part), reverse=True) == [g.steps for g in found.by_part]
    for one, other in pairwise((1, 2, RANKS)):
        assert all(g.matches[one] <= g.matches[other] for g in (*found.by_position, *found.by_part))


@pytest.mark.parametrize("wrong", [(0,), (1, 1001), (1.5,), (True,), ("5",)])
def test_impossible_ranks(wrong: Any) -> None:
    with pytest.raises(OptionError, match="top_k"):
        gd.EvaluationOptions(top_k=wrong)
    assert gd.EvaluationOptions(top_k=(10, 5, 5)).top_k == (1, 5, 10)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AccuracyReport]:
    """One evaluation in several ways: as it is by default, with ranks, pushed, and of corpora."""
    folder = tmp_path_factory.mktemp("accuracy")
    text, other = write_village(folder / "a.txt", 500), write_village(folder / "b.txt", 80, seed=2)
    found = {}
    with gd.connect(workers=0) as client:
        network = gd.train(text, folder / "net", client=client)
        for name, top_k, feed in (
            ("plain", (1,), "target"),
            ("ranks", (1, 3, 10), "target"),
            ("fed", (1, 3), "prediction"),
        ):
            rules = InferenceOptions(feed=feed)  # type: ignore[arg-type]
            options = gd.EvaluationOptions(top_k=top_k, inference=rules, bits_per_byte=name == "ranks")
            found[name] = network.evaluate(other, client=client, options=options)
        for name in ("bare", "told"):
            words = gd.TextOptions(parts_of_speech=name == "told")
            corpus = gd.encode(other, folder / name, client=client, text=words)
            found[name] = network.evaluate(corpus.path, client=client)
    return found


def test_asking_for_more_changes_nothing_else(reports: dict[str, AccuracyReport]) -> None:
    plain, ranks = reports["plain"], reports["ranks"]
    names = ("prediction_tokens", "prediction_matches", "top1", "without_prediction", "tokens", "skipped")
    assert all(getattr(plain, name) == getattr(ranks, name) for name in names)
    assert plain.prediction_matches > 0
    shares = [ranks.accuracy.overall.share(k) for k in (1, 3, 10)]
    assert shares[0] == plain.top1 < shares[1] <= shares[2]
    for one, other in zip(plain.accuracy.by_part, ranks.accuracy.by_part, strict=True):
        assert (one.name, one.steps, one.matches[1]) == (other.name, other.steps, other.matches[1])


def test_bits_per_byte(reports: dict[str, AccuracyReport]) -> None:
    assert reports["plain"].as_dict()["code_length"] is reports["plain"].code_length is None
    found = reports["ranks"].code_length
    assert found is not None
    assert found.tokens == reports["ranks"].prediction_tokens
    assert reports["ranks"].without_prediction <= found.impossible < found.tokens
    assert 3 * found.tokens < found.nbytes < 8 * found.tokens, "words of the village and their spaces"
    assert 0 < found.mean_probability < 1 - found.impossible / found.tokens
    values = reports["ranks"].as_dict()["code_length"]
    assert values["bits_per_byte"] is None, "a token of probability 0 has no code"
    assert values["modified_bits_per_byte"] == -math.log2(found.mean_probability) * found.tokens / found.nbytes


def test_bits_per_byte_without_tokens_and_without_hope() -> None:
    assert CodeLength.of(np.zeros(0), 0).as_dict()["bits_per_byte"] == 0.0
    nothing = CodeLength.of(np.zeros(3), 5).as_dict()
    assert (nothing["impossible"], nothing["bits_per_byte"], nothing["modified_bits_per_byte"]) == (3, None, None)


def test_groups_add_up(reports: dict[str, AccuracyReport]) -> None:
    for report in reports.values():
        overall = report.accuracy.overall
        for groups in (report.accuracy.by_position, report.accuracy.by_part):
            assert sum(group.steps for group in groups) == overall.steps == report.prediction_tokens
            assert sum(group.matches[1] for group in groups) == report.prediction_matches
            assert sum(group.without_candidates for group in groups) == overall.without_candidates
    assert reports["plain"].accuracy.by_position[0].name == "8"
    assert reports["fed"].accuracy.overall.without_candidates == 0, "a step that stops is not completed"
    assert reports["fed"].stopped > 0


def test_corpora_tell_parts_of_speech_where_they_hold_them(reports: dict[str, AccuracyReport]) -> None:
    assert [group.name for group in reports["bare"].accuracy.by_part] == ["unknown"]
    assert reports["told"].accuracy == reports["plain"].accuracy
    assert {"NOUN", "VERB", "DET"} <= {group.name for group in reports["told"].accuracy.by_part}
    assert reports["bare"].accuracy.by_position == reports["plain"].accuracy.by_position


def test_the_report_for_programs_and_people(reports: dict[str, AccuracyReport]) -> None:
    report = reports["ranks"]
    values = json.loads(json.dumps(report.as_dict()))
    assert values["top_k"] == {str(k): report.accuracy.overall.share(k) for k in (1, 3, 10)}
    assert values["by_part_of_speech"][0]["top"].keys() == {"1", "3", "10"}
    assert values["share_without_candidates"] == values["without_candidates"] / values["prediction_tokens"]
    coded, *lines = report.lines()
    assert coded.startswith("bits per byte inf (")
    assert lines[0].split()[:4] == ["token", "top-1", "top-3", "top-10"]
    assert len(lines) == 2 + len(report.accuracy.by_position) + len(report.accuracy.by_part)
    assert "top-10" in str(report)


def test_pages_escape_what_they_show(reports: dict[str, AccuracyReport]) -> None:
    values = accuracy_values(reports["ranks"], lambda figure: "<svg/>")
    page = render("evaluation.html", title="a <b> \x1b[2J", **{**values, "rules": "<i>\u202e", "skipped": "&"})
    assert "<title>a &lt;b&gt; \\x1b[2J</title>" in page
    assert "&lt;i&gt;\\u202e" in page
    assert "skipped: &amp;." in page
    assert "<div><svg/></div>" in page


def test_a_report_of_probabilities_is_a_page_without_a_picture(tmp_path: Path) -> None:
    one = np.ones(2)
    scores = TextScores(-one, one > 0, *[8 * one.astype(int)] * 3, one > 0, 0 * one.astype(int))
    figures = scores.summary(8)
    report: EvaluationReport = ScoreReport(1, 8, figures, figures, 1.0, "COMMIT", scores)
    page = gd.save_report(report, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<code>COMMIT</code>" in page
    assert f">{figures.shown_perplexity}</td>" in page
    assert "<img" not in page
    assert report.perplexity == figures.perplexity
    assert "1.00 without the start of workers" in repr(report)
    asked = replace(report, baseline=Baseline(one > 0, scores, top_k=(1, 5)), top_k={1: 1.0, 5: 1.0})
    page = gd.save_report(asked, tmp_path / "a.html", notes=["a <note>"]).read_text(encoding="utf-8")
    assert "top-5" in page
    assert "Kneser-Ney 5-gram  top-1 1.0000, top-5 1.0000 of 2 tokens" in page
    assert "<p>a &lt;note&gt;</p>" in page
    assert list(report.shown())[-3:] == ["every_token", "seconds", "tokens_per_second"]
    with pytest.raises(OptionError, match=r"a name that ends in \.html; rename"):
        gd.save_report(report, tmp_path / "a.png")


def test_one_page_needs_no_other_file(reports: dict[str, AccuracyReport], tmp_path: Path) -> None:
    page = gd.save_report(reports["ranks"], tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(.{22})', page) == ["data:image/png;base64,"]
    assert "http" not in page
    assert page.count("<table>") == 2
    assert all(f"<td>{group.name}</td>" in page for group in reports["ranks"].accuracy.by_part)
    assert gd.save_report(reports["ranks"], tmp_path / "again.html").read_text(encoding="utf-8") == page
    assert gd.save_report(reports["ranks"], tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OptionError, match=r"\.html"):
        gd.save_report(reports["ranks"], tmp_path / "a.txt")


def test_the_picture_shows_every_group(reports: dict[str, AccuracyReport]) -> None:
    figure = draw_evaluation(reports["ranks"])
    accuracy = reports["ranks"].accuracy
    shown = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert shown == [[group.name for group in groups] for groups in (accuracy.by_position, accuracy.by_part)]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["top-1", "top-3", "top-10", "without candidates"]


def test_nothing_predicted_can_be_shown(reports: dict[str, AccuracyReport], tmp_path: Path) -> None:
    nothing = StepCounts.empty(1).accuracy((1,), 8)
    values = {**vars(reports["plain"]), "accuracy": nothing, "prediction_tokens": 0}
    report = AccuracyReport(**values)
    assert len(report.lines()) == 2
    assert gd.save_report(report, tmp_path / "a.html").stat().st_size > 0
