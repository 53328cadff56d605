"""Beam search against plain generation and against trying all paths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.examples import examples
from support.generated import Generation, generate
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, random_run
from support.village import write_village

import giaann_dask as gd
from giaann_dask import cli
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, pack_target, unpack_target
from giaann_dask.models.columns.beam import BeamSession, BeamV2Session
from giaann_dask.models.columns.predictor import best_candidates
from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.models.columns.state.inference_options import InferenceOptions, V2Options, settings
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.generation_options import BeamOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

FED = [options for options in OPTIONS if options.feed == "prediction"]
Rules = InferenceOptions | V2Options
SOMA = [Specification(profile="v2"), Specification(profile="v2", segment_counts=(2, 3), branches=2)]
LEGACY = [Specification(profile="v2", lif=False)]
SECOND = [
    (specification, settings(name, lif=specification.lif, feed="prediction", **selection))  # type: ignore[arg-type]
    for specification in (*SOMA, *LEGACY)
    for name in ("train", "test")
    for selection in ({}, {"strict_reference": True}, {"enforce_delimiter": True})
]
CASES: list[tuple[Specification, Rules]] = [*itertools.product(SPECIFICATIONS, FED), *SECOND]
PREFERENCES = [(), ("active",), ("connected",), ("shared",), ("active", "connected", "shared")]
SCORES = ("activation", "connection", "both")
seeds = st.integers(0, 2**32)


class Setting:
    """A random network of a few neurons, and a prompt."""

    def __init__(self, seed: int, specification: Specification, fullness: float, neurons: int = 9) -> None:
        rng = np.random.default_rng(seed)
        keys = np.unique(pack_neuron(rng.integers(0, 3, neurons), rng.integers(0, FEATURES, neurons)))
        run = random_run(rng, specification, keys, fullness)
        strength = rng.integers(1, 8, len(run.target)).astype(np.int32) << 20
        self.run = Run(run.source, run.pointer, run.target, strength)
        self.specification = specification
        # Words with neither flag are a test of modes, which never reject in a trained network.
        self.flags = FlagTable(rng.random(FEATURES) < 0.7, rng.integers(-1, 3, FEATURES))
        self.neuron = rng.choice(keys, 4)
        self.noun = rng.random(4) < 0.4

    def session(self, options: Rules, beam: BeamOptions | None = None) -> Any:
        arguments = (self.specification, RunRows([self.run], lambda neuron: 0), self.flags)
        second = isinstance(options, V2Options)
        if beam is None:
            return (V2Session if second else Session)(*arguments, options=options)  # type: ignore[arg-type]
        return (BeamV2Session if second else BeamSession)(*arguments, beam=beam, options=options)

    def prompt(self) -> PreparedSequence:
        return PreparedSequence(neuron=self.neuron, noun=self.noun, number=1)

    def generated(self, options: Rules, beam: BeamOptions | None, tokens: int = 6) -> Generation:
        return generate(self.session(options, beam), self.prompt(), tokens)


def assert_same(one: Generation, other: Generation) -> None:
    assert (one.steps, one.stop) == (other.steps, other.stop)
    for a, b in zip(one.candidates, other.candidates, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert np.array_equal(a.neuron, b.neuron)
            assert np.array_equal(a.value, b.value)


@st.composite
def cases(draw: st.DrawFn, fullness: tuple[float, ...] = (0.1, 0.3, 0.5), neurons: int = 9) -> tuple[Setting, Rules]:
    """A random network of either profile, and rules for it."""
    first = draw(st.booleans())
    specification, options = draw(st.sampled_from([each for each in CASES if (each[0].profile == "v1") is first]))
    return Setting(draw(seeds), specification, draw(st.sampled_from(fullness)), neurons), options


@examples(60)
@given(cases(), st.integers(1, 4), st.sampled_from(SCORES))
def test_one_path_is_plain_generation(case: tuple[Setting, Rules], depth: int, score: Any) -> None:
    setting, options = case
    plain = setting.generated(options, None)
    beam = BeamOptions(width=1, depth=depth, score=score)
    assert_same(setting.generated(options, beam), plain)
    searching = setting.session(options, beam)
    assert isinstance(searching, BeamSession | BeamV2Session)
    searching.beam = Always(width=1, depth=depth, score=score)
    assert_same(generate(searching, setting.prompt(), 6), plain)
    event(f"generated {len(plain.tokens)}")


class Always(BeamOptions):
    """Options with which the search is made even where its outcome is known."""

    searches = True


@examples(60)
@given(cases(), st.integers(1, 5))
def test_no_depth_scored_by_activation_is_plain_generation(case: tuple[Setting, Rules], width: int) -> None:
    setting, options = case
    # A rejected best candidate ends plain generation, while a wider search takes the best that is not.
    setting.flags = FlagTable(np.ones(FEATURES, np.bool_), setting.flags.probable_since)
    searching = setting.session(options, Always(width=width, depth=1))
    assert_same(generate(searching, setting.prompt(), 6), setting.generated(options, None))


def strength(setting: Setting, source: int, target: int) -> float:
    row = RunRows([setting.run], lambda neuron: 0).row(source)
    if row is None:
        return 0.0
    segment, neuron, _ = unpack_target(row.target)
    last = setting.specification.segments - 1
    return float(setting.specification.strengths(row.strength[(segment == last) & (neuron == target)]).sum())


class Following:
    """Plain generation that is made to take given tokens: what a path is, without clones of states."""

    def __init__(self, setting: Setting, options: Rules) -> None:
        self.setting, self.options = setting, options
        steps = setting.generated(options, None, 1).steps
        # After a token of internal mode, the prompt's next one is taken in its column.
        self.last = steps[len(setting.neuron)].source if len(steps) > len(setting.neuron) else int(setting.neuron[-1])

    def candidates(
        self, taken: tuple[int, ...], width: int = 100, prefer: tuple[str, ...] = ()
    ) -> list[tuple[float, int]]:
        """Value and neuron of the best candidates after some tokens, without those that are rejected."""
        session, left = self.setting.session(self.options), list(taken)

        def follow(_: int, found: Candidates) -> int:
            return found.neuron.tolist().index(left.pop(0)) if left else found.best

        outcome = generate(session, self.setting.prompt(), len(taken) + 1, choose=follow)
        found, step = outcome.candidates[-1], outcome.steps[-1]
        if found is None or len(outcome.steps) != len(self.setting.neuron) + len(taken) + 1:
            return []
        pairs = list(zip(found.value.tolist(), found.neuron.tolist(), strict=True))
        pairs = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        # Other rules of selection leave out what is rejected before this.
        tested = isinstance(self.options, InferenceOptions) or not self.options.selection.filtered
        own = (step.source >> 25) if step.mode == "internal" and tested else None
        if prefer:
            scores = self.column_scores(step.source, pairs, prefer)
            passing = [pair for pair in pairs if own in (None, pair[1] >> 25)]
            best = {pair[1] >> 25: pair for pair in reversed(passing)}
            return sorted(best.values(), key=lambda pair: (-scores[pair[1] >> 25], pair[1]))[:width]
        return [pair for pair in pairs[:width] if own in (None, pair[1] >> 25)]

    def column_scores(self, source: int, pairs: list[tuple[float, int]], prefer: tuple[str, ...]) -> dict[int, float]:
        """The score of every column of candidates, as the module's docstring says, column by column."""
        columns = {neuron >> 25 for _, neuron in pairs}
        active = {column: [n for value, n in pairs if n >> 25 == column and value > 0] for column in columns}
        features = {column: {n & (2**25 - 1) for n in active[column]} for column in columns}
        beside = features.get(source >> 25, set())
        shared = {column: len(features[column] & beside) for column in columns - {source >> 25}}
        scores = {}
        for column in columns:
            scores[column] = max(value for value, n in pairs if n >> 25 == column)
            strengths = [strength(self.setting, source, n) for n in active[column]]
            scores[column] += len(strengths) * ("active" in prefer)
            if strengths and "connected" in prefer:
                scores[column] += sum(strengths) / len(strengths)
            if "shared" in prefer:
                scores[column] += shared.get(column, max(shared.values(), default=0))
        return scores

    def gain(self, taken: tuple[int, ...], value: float, neuron: int, score: str) -> float:
        source = taken[-1] if taken else self.last
        parts = {"activation": value, "connection": strength(self.setting, source, neuron)}
        return sum(parts.values()) if score == "both" else parts[score]

    def best_of_all(self, taken: tuple[int, ...], depth: int, score: str) -> list[tuple[float, tuple[int, ...]]]:
        """Score and tokens of every path of a depth, those that end before it included."""
        paths: list[tuple[float, tuple[int, ...]]] = []

        def go(gained: float, path: tuple[int, ...]) -> None:
            follow = self.candidates((*taken, *path)) if len(path) < depth else []
            if not follow and path:
                paths.append((gained, path))
            for value, neuron in follow:
                go(gained + self.gain((*taken, *path), value, neuron, score), (*path, neuron))

        go(0.0, ())
        return sorted((-gained, path) for gained, path in paths)

    def beam(self, taken: tuple[int, ...], options: BeamOptions) -> int | None:
        """The first token of the best path of a search, as the rules in the module's docstring say."""
        paths: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended = []
        for _ in range(options.depth):
            longer = []
            for gained, path in paths:
                follow = self.candidates((*taken, *path), options.width, options.prefer)
                for value, neuron in follow:
                    gain = self.gain((*taken, *path), value, neuron, options.score)
                    longer.append((gained + gain, (*path, neuron)))
                if not follow and path:
                    ended.append((gained, path))
            paths = sorted(longer, key=lambda item: (-item[0], item[1]))[: options.width]
        best = sorted([*ended, *paths], key=lambda item: (-item[0], item[1]))
        return best[0][1][0] if best else None


@examples(25)
@given(cases((0.2, 0.4), 5), st.sampled_from(SCORES))
def test_a_wide_search_finds_the_best_of_all_paths(case: tuple[Setting, Rules], score: Any) -> None:
    setting, options = case
    found = setting.generated(options, BeamOptions(width=100, depth=3, score=score), 3)
    follower, taken = Following(setting, options), ()
    for neuron in found.tokens:
        paths = follower.best_of_all(taken, 3, score)
        assert neuron == paths[0][1][0]
        taken = (*taken, neuron)
    if len(found.tokens) < 3:
        assert not follower.best_of_all(taken, 3, score)
    event(f"generated {len(found.tokens)}")


@examples(60)
@given(cases(), st.integers(1, 3), st.integers(1, 4), st.sampled_from(SCORES), st.sampled_from(PREFERENCES))
def test_a_narrow_search_follows_the_rules(
    case: tuple[Setting, Rules], width: int, depth: int, score: Any, prefer: tuple[str, ...]
) -> None:
    setting, options = case
    beam = Always(width=width, depth=depth, score=score, prefer=prefer)
    found = setting.generated(options, beam, 3)
    follower, taken = Following(setting, options), ()
    for neuron in found.tokens:
        assert neuron == follower.beam(taken, beam)
        taken = (*taken, neuron)
    if len(found.tokens) < 3:
        assert follower.beam(taken, beam) is None
    event(f"differs from plain {found.tokens != setting.generated(options, None, 3).tokens}")


@examples(20)
@given(cases(), st.sampled_from(SCORES))
def test_asking_for_more_tokens_changes_none_before(case: tuple[Setting, Rules], score: Any) -> None:
    setting, options = case
    beam = BeamOptions(width=2, depth=3, score=score)
    few, many = (setting.generated(options, beam, tokens) for tokens in (2, 5))
    assert few.tokens == many.tokens[:2]


@pytest.mark.parametrize(
    ("beam", "expected"),
    [
        (BeamOptions(), "dead end"),
        (BeamOptions(width=2, depth=1), "dead end"),
        (BeamOptions(width=1, depth=2), "dead end"),
        (BeamOptions(width=2, depth=2), "way on"),
        (BeamOptions(width=2, depth=1, score="connection"), "way on"),
        (BeamOptions(width=3, depth=1, score="connection"), "weak"),
        (BeamOptions(width=3, depth=1, score="both"), "weak"),
        (BeamOptions(width=3, depth=2, score="both"), "way on"),
    ],
)
def test_looking_ahead_in_a_network_made_by_hand(beam: BeamOptions, expected: str) -> None:
    """The most active neuron leads nowhere, the next one goes on, and the strongest connection ends in a weak one."""
    specification = Specification(seed_tokens=8)
    last = specification.segments - 1
    start, names = 0, {"dead end": 1, "way on": 2, "weak": 3, "after it": 4}
    # The more segments, the higher is the value.
    ends = {"dead end": (0, 1, last), "way on": (0, last), "weak": (last,)}
    row = {(s, names[name]): 1 if name != "weak" else 5 for name, segments in ends.items() for s in segments}
    row[last, names["way on"]] = 2
    rows = {start: row, names["way on"]: {(last, names["after it"]): 9}}
    target = [
        sorted((int(pack_target(s, n, 0)), units << 20) for (s, n), units in row.items()) for row in rows.values()
    ]
    run = Run(
        np.array(list(rows)),
        np.cumsum([0, *map(len, target)]),
        np.array([key for row in target for key, _ in row]),
        np.array([units for row in target for _, units in row], np.int32),
    )
    flags = FlagTable(np.ones(5, np.bool_), np.full(5, -1))
    options = InferenceOptions(feed="prediction", sequential=False)
    session = BeamSession(specification, RunRows([run], lambda neuron: 0), flags, beam=beam, options=options)
    prompt = PreparedSequence(neuron=np.array([start]), noun=np.array([True]), number=0)
    assert generate(session, prompt, 3).tokens[0] == names[expected]


COLUMN = 1 << 25


@pytest.mark.parametrize(
    ("beam", "expected"),
    [
        (BeamOptions(), (1, 1)),
        # 0.025 and 0.045 of the path that goes on are more than 0.05 of the best candidate, which leads nowhere.
        (BeamOptions(width=3, depth=2), (2, 1)),
        # Column 3 has three active candidates, of which the best one has 0.015.
        (BeamOptions(width=1, prefer=("active",)), (3, 1)),
        # The mean strength is 5 to column 1, 6 to column 2 (5 and 7) and 3 to column 3.
        (BeamOptions(width=1, prefer=("connected",)), (2, 4)),
        # Column 2 has the feature 4 of the source's column 0, column 3 has 4 and 5.
        (BeamOptions(width=1, prefer=("shared",)), (3, 1)),
    ],
)
def test_looking_ahead_with_integrate_and_fire_by_hand(beam: BeamOptions, expected: tuple[int, int]) -> None:
    """Connections of a start by column and feature, with strengths by segment: 8 is the soma, 3 the last column."""
    specification = Specification(profile="v2")
    row = {(1, 1): {8: 5, 3: 5}, (2, 1): {8: 5}, (2, 4): {8: 7}, (0, 4): {8: 2}, (0, 5): {8: 2}}
    row |= {(3, 1): {8: 3}, (3, 4): {8: 3}, (3, 5): {8: 3}}
    rows = {(0, 1): row, (2, 1): {(2, 2): {8: 9}}}
    target = [
        sorted((int(pack_target(s, c * COLUMN + f, 0)), u << 20) for (c, f), e in each.items() for s, u in e.items())
        for each in rows.values()
    ]
    run = Run(
        np.array([column * COLUMN + feature for column, feature in rows]),
        np.cumsum([0, *map(len, target)]),
        np.array([key for each in target for key, _ in each]),
        np.array([units for each in target for _, units in each], np.int32),
    )
    flags = FlagTable(np.ones(6, np.bool_), np.full(6, -1))
    options = settings("test", feed="prediction")
    session = BeamV2Session(specification, RunRows([run], lambda neuron: 0), flags, beam=beam, options=options)
    prompt = PreparedSequence(neuron=np.array([1]), noun=np.array([False]), number=0)
    assert generate(session, prompt, 2).tokens[0] == expected[0] * COLUMN + expected[1]


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"width": 101}, {"depth": 0}, {"depth": 21}, {"score": "taste"}, {"prefer": ("taste",)}]
)
def test_impossible_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"^{next(iter(wrong))} is"):
        BeamOptions(**wrong)


def test_the_chosen_token_comes_first_with_few_runners_up() -> None:
    setting = Setting(11, SPECIFICATIONS[0], 0.5)
    beam = BeamOptions(width=5, depth=3, score="connection")
    session = setting.session(InferenceOptions(feed="prediction"), beam)
    traces = [trace for trace in session.stream(setting.prompt(), 6) if trace.candidates and not trace.result.seed]
    assert traces
    assert [best_candidates(trace, 1)[0][0] for trace in traces] == [trace.result.predicted for trace in traces]
    assert [int(each.neuron[each.best]) for trace in traces if (each := trace.candidates)] != [
        trace.result.predicted for trace in traces
    ]


@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_generate_from_the_command_line(profile: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_village(tmp_path / "a.txt", 200)
    with gd.connect(workers=0) as client:
        network = gd.train(text, tmp_path / "net", client=client, profile=profile)
        beam = BeamOptions(width=3, depth=4, score="both", prefer=("active", "shared"))
        said = {}
        for way in ("replicated", "remote"):
            options = gd.GenerationOptions(beam=beam, reasons=0, rows=gd.RowOptions(mode=way))  # type: ignore[arg-type]
            said[way] = network.generate("the old miller carried the", client=client, options=options).text
    search = ("--beam-width", "3", "--beam-depth", "4", "--beam-score", "both")
    search += ("--beam-prefer", "active,shared")
    assert cli.run(["generate", str(network.path), "the old miller carried the", *search]) == 0
    assert capsys.readouterr().out.splitlines()[0] == said["replicated"] == said["remote"]
    assert cli.run(["generate", str(network.path), "the old miller carried the", "--beam-width", "0"]) == cli.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1
