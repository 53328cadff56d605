"""Beam search against plain generation and against trying all paths."""

from __future__ import annotations

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
from giaann_dask.keys import pack_neuron, pack_target, unpack_neuron, unpack_target
from giaann_dask.models.columns.prompts import best_candidates
from giaann_dask.models.columns.state.candidates import Candidates
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.sequence import FlagTable, PreparedSequence
from giaann_dask.models.columns.v1.beam import BeamSession
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.generation_options import BeamOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

FED = [options for options in OPTIONS if options.feed == "prediction"]
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

    def session(self, options: InferenceOptions, beam: BeamOptions | None = None) -> Session:
        arguments = (self.specification, RunRows([self.run], lambda neuron: 0), self.flags)
        if beam is None:
            return Session(*arguments, options=options)
        return BeamSession(*arguments, beam=beam, options=options)

    def prompt(self) -> PreparedSequence:
        return PreparedSequence(neuron=self.neuron, noun=self.noun, number=1)

    def generated(self, options: InferenceOptions, beam: BeamOptions | None, tokens: int = 6) -> Generation:
        return generate(self.session(options, beam), self.prompt(), tokens)


def assert_same(one: Generation, other: Generation) -> None:
    assert (one.steps, one.stop) == (other.steps, other.stop)
    for a, b in zip(one.candidates, other.candidates, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.neuron.equal(b.neuron)
            assert a.value.equal(b.value)


networks = st.builds(Setting, seeds, st.sampled_from(SPECIFICATIONS), st.sampled_from([0.1, 0.3, 0.5]))


@examples(60)
@given(networks, st.sampled_from(FED), st.integers(1, 4), st.sampled_from(SCORES))
def test_one_path_is_plain_generation(setting: Setting, options: InferenceOptions, depth: int, score: Any) -> None:
    plain = setting.generated(options, None)
    beam = BeamOptions(width=1, depth=depth, score=score)
    assert_same(setting.generated(options, beam), plain)
    searching = setting.session(options, beam)
    assert isinstance(searching, BeamSession)
    searching.beam = Always(width=1, depth=depth, score=score)
    assert_same(generate(searching, setting.prompt(), 6), plain)
    event(f"generated {len(plain.tokens)}")


class Always(BeamOptions):
    """Options with which the search is made even where its outcome is known."""

    searches = True


@examples(60)
@given(networks, st.sampled_from(FED), st.integers(1, 5))
def test_no_depth_scored_by_activation_is_plain_generation(
    setting: Setting, options: InferenceOptions, width: int
) -> None:
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

    def __init__(self, setting: Setting, options: InferenceOptions) -> None:
        self.setting, self.options = setting, options
        steps = setting.generated(options, None, 1).steps
        # After a token of internal mode, the prompt's next one is taken in its column.
        self.last = steps[len(setting.neuron)].source if len(steps) > len(setting.neuron) else int(setting.neuron[-1])

    def candidates(self, taken: tuple[int, ...], width: int = 100) -> list[tuple[float, int]]:
        """Value and neuron of the best candidates after some tokens, without those that are rejected."""
        session, left = self.setting.session(self.options), list(taken)

        def follow(_: int, found: Candidates) -> int:
            return found.neuron.tolist().index(left.pop(0)) if left else found.best

        outcome = generate(session, self.setting.prompt(), len(taken) + 1, choose=follow)
        found, step = outcome.candidates[-1], outcome.steps[-1]
        if found is None or len(outcome.steps) != len(self.setting.neuron) + len(taken) + 1:
            return []
        pairs = list(zip(found.value.tolist(), found.neuron.tolist(), strict=True))
        pairs = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:width]
        if step.mode == "internal":
            column = unpack_neuron([step.source])[0][0]
            pairs = [pair for pair in pairs if unpack_neuron([pair[1]])[0][0] == column]
        return pairs

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
                follow = self.candidates((*taken, *path), options.width)
                for value, neuron in follow:
                    gain = self.gain((*taken, *path), value, neuron, options.score)
                    longer.append((gained + gain, (*path, neuron)))
                if not follow and path:
                    ended.append((gained, path))
            paths = sorted(longer, key=lambda item: (-item[0], item[1]))[: options.width]
        best = sorted([*ended, *paths], key=lambda item: (-item[0], item[1]))
        return best[0][1][0] if best else None


@examples(25)
@given(
    st.builds(Setting, seeds, st.sampled_from(SPECIFICATIONS), st.sampled_from([0.2, 0.4]), st.just(5)),
    st.sampled_from(FED),
    st.sampled_from(SCORES),
)
def test_a_wide_search_finds_the_best_of_all_paths(setting: Setting, options: InferenceOptions, score: Any) -> None:
    found = setting.generated(options, BeamOptions(width=100, depth=3, score=score), 3)
    follower, taken = Following(setting, options), ()
    for neuron in found.tokens:
        paths = follower.best_of_all(taken, 3, score)
        assert neuron == paths[0][1][0]
        taken = (*taken, neuron)
    if len(found.tokens) < 3:
        assert not follower.best_of_all(taken, 3, score)
    event(f"generated {len(found.tokens)}")


@examples(40)
@given(networks, st.sampled_from(FED), st.integers(2, 3), st.integers(1, 4), st.sampled_from(SCORES))
def test_a_narrow_search_follows_the_rules(
    setting: Setting, options: InferenceOptions, width: int, depth: int, score: Any
) -> None:
    beam = Always(width=width, depth=depth, score=score)
    found = setting.generated(options, beam, 3)
    follower, taken = Following(setting, options), ()
    for neuron in found.tokens:
        assert neuron == follower.beam(taken, beam)
        taken = (*taken, neuron)
    if len(found.tokens) < 3:
        assert follower.beam(taken, beam) is None
    event(f"differs from plain {found.tokens != setting.generated(options, None, 3).tokens}")


@examples(20)
@given(networks, st.sampled_from(FED), st.sampled_from(SCORES))
def test_asking_for_more_tokens_changes_none_before(setting: Setting, options: InferenceOptions, score: Any) -> None:
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


@pytest.mark.parametrize("wrong", [{"width": 0}, {"width": 101}, {"depth": 0}, {"depth": 21}, {"score": "taste"}])
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


def test_generate_from_the_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_village(tmp_path / "a.txt", 200)
    with gd.connect(workers=0) as client:
        network = gd.train(text, tmp_path / "net", client=client)
        beam = BeamOptions(width=3, depth=4, score="both")
        said = {}
        for way in ("replicated", "remote"):
            options = gd.GenerationOptions(beam=beam, reasons=0, rows=gd.RowOptions(mode=way))  # type: ignore[arg-type]
            said[way] = network.generate("the old miller carried the", client=client, options=options).text
    search = ("--beam-width", "3", "--beam-depth", "4", "--beam-score", "both")
    assert cli.run(["generate", str(network.path), "the old miller carried the", *search]) == 0
    assert capsys.readouterr().out.splitlines()[0] == said["replicated"] == said["remote"]
    assert cli.run(["generate", str(network.path), "the old miller carried the", "--beam-width", "0"]) == cli.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1
