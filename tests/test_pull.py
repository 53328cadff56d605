"""Pulling what ends at some neurons against pushing every row: the same values, step by step."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import golden_run, inference_files
from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_golden_inference import EWT_FOLDERS, EWT_SAMPLE, SYN_FOLDER, Follower, follow

from giaann_dask.errors import OptionError
from giaann_dask.inference.activation import Layout, Pulse
from giaann_dask.inference.options import InferenceOptions
from giaann_dask.inference.pull import PullSession, open_session
from giaann_dask.inference.pulled import PulledNeurons
from giaann_dask.inference.replay_session import ReplaySession
from giaann_dask.inference.rows import RunRows
from giaann_dask.inference.sequence import FlagTable, PreparedSequence, StepTrace
from giaann_dask.inference.session import Session
from giaann_dask.network.keys import pack_neuron, pack_target
from giaann_dask.network.run import Run
from giaann_dask.spec import Specification

FEATURES = 5
OPTIONS = [
    InferenceOptions(timing=timing, activations=activations, sequential=sequential, feed=feed)  # type: ignore[arg-type]
    for timing, activations, sequential, feed in itertools.product(
        ("none", "biased", "exact"), ("boolf", "boolf+c", "intf+c"), (True, False), ("target", "prediction")
    )
]
SPECIFICATIONS = [Specification(seed_tokens=8), Specification(seed_tokens=6, branches=3)]


def random_run(rng: np.random.Generator, specification: Specification, neurons: np.ndarray, fullness: float) -> Run:
    """Every possible connection between neurons with about the given probability; some neurons have none."""
    segment, target, branch = np.meshgrid(
        np.arange(specification.segments), neurons, np.arange(specification.branches), indexing="ij"
    )
    keys = np.sort(pack_target(segment, target, branch).reshape(-1))
    rows = [keys[rng.random(len(keys)) < fullness * rng.integers(0, 3)] for _ in neurons]
    counts = np.array([len(row) for row in rows])
    pointer = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    return Run(neurons[counts > 0], pointer, np.concatenate(rows), np.full(counts.sum(), 5 << 20, np.int32))


def both(run: Run, flags: FlagTable, specification: Specification, options: InferenceOptions) -> tuple[Any, Any]:
    rows = RunRows([run], lambda neuron: 0)
    return (
        Session(specification, rows, flags, options=options),
        PullSession(specification, rows, flags, options=options),
    )


def assert_same(pushed: list[StepTrace], pulled: list[StepTrace]) -> None:
    assert [trace.result for trace in pulled] == [trace.result for trace in pushed]
    for one, other in zip(pushed, pulled, strict=True):
        assert other.state is None
        assert (one.candidates is None) == (other.candidates is None)
        if one.candidates is not None and other.candidates is not None:
            assert torch.equal(one.candidates.neuron, other.candidates.neuron)
            assert torch.equal(one.candidates.value, other.candidates.value)
            assert one.candidates.best == other.candidates.best


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SPECIFICATIONS),
    st.sampled_from(OPTIONS),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.integers(3, 12),
    st.one_of(st.integers(10, 24), st.integers(1, 24)),
)
def test_the_same_steps_as_pushing(
    seed: int, specification: Specification, options: InferenceOptions, fullness: float, size: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, size), rng.integers(0, FEATURES, size)))
    run = random_run(rng, specification, neurons, fullness)
    flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES))
    neuron = rng.choice(neurons, length)
    sequence = PreparedSequence(neuron=neuron, noun=rng.random(length) < 0.4, number=1)
    pushed, pulled = both(run, flags, specification, options)
    traces: tuple[list[StepTrace], list[StepTrace]] = ([], [])
    stops = [x.run_sequence(sequence, observer=t.append).stop for x, t in zip((pushed, pulled), traces, strict=True)]
    assert stops[0] == stops[1]
    assert_same(*traces)
    event(f"predicted {any(step.result.predicted is not None for step in traces[0])}")
    begin = len(traces[0])
    prompt = PreparedSequence(neuron=neuron[:6], noun=sequence.noun[:6], number=1)
    one = pushed.generate(prompt, 8, observer=traces[0].append)
    other = pulled.generate(prompt, 8, observer=traces[1].append)
    assert_same(traces[0][begin:], traces[1][begin:])
    assert (other.tokens, other.stop, other.steps) == (one.tokens, one.stop, one.steps)
    for step in one.steps:
        assert pulled.explain(other.steps, step.index) == pushed.explain(one.steps, step.index)


class PullFollower(Follower):
    """Follows a golden file with what is pulled; the counts of all entries are not known there."""

    kind = PullSession

    def _compare_state(self, record: dict[str, Any], trace: StepTrace, where: str) -> None:
        assert trace.state is None, where


@pytest.fixture(scope="module")
def syn_run() -> Run:
    return golden_run(SYN_FOLDER)


@pytest.mark.parametrize("path", inference_files(SYN_FOLDER), ids=lambda path: path.name[6:-9])
def test_synthetic_steps(path: Path, syn_run: Run) -> None:
    follow(path, syn_run, PullFollower)


@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_sample(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / "v1" / name
    run = golden_run(folder)
    for file in EWT_SAMPLE:
        follow(folder / file, run, PullFollower)


@pytest.mark.slow
@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_steps(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / "v1" / name
    run = golden_run(folder)
    for path in inference_files(folder):
        follow(path, run, PullFollower)


@pytest.mark.parametrize("options", OPTIONS[::2], ids=lambda o: f"{o.timing}-{o.activations}-{o.sequential}")
def test_any_choice_of_neurons_is_reached_alike(options: InferenceOptions) -> None:
    """A long row is searched for few neurons and filtered for many; both find the same entries."""
    rng = np.random.default_rng(5)
    neurons = np.unique(pack_neuron(rng.integers(0, 2**26, 400), rng.integers(0, 2**25, 400)))
    specification = SPECIFICATIONS[1]
    run = random_run(rng, specification, neurons, 0.05)
    layout = Layout.of(specification, torch.device("cpu"))
    every = PulledNeurons(neurons, layout, options)
    few = [PulledNeurons(neurons[at : at + 3].copy(), layout, options) for at in range(0, 60, 3)]
    for step in range(12):
        begin, end = run.pointer[step : step + 2]
        pulse = Pulse(drive=layout.drives[step % 3], column_time=step // 2, feature_time=step)
        for some in (every, *few):
            some.propagate(run.target[begin:end], pulse)
            some.deactivate(int(neurons[step]))
            some.burst(int(neurons[step + 1]))
    for at, some in enumerate(few):
        place = every.places(some.neuron)
        assert place is not None
        assert place[0] == 3 * at
        assert np.array_equal(every.value[:, place], some.value)
        assert np.array_equal(every.time[:, place], some.time)
        assert np.array_equal(every.found[:, place], some.found)
    assert every.found.any()
    assert not every.found.all()


def test_a_choice_knows_its_neurons() -> None:
    neuron = np.array([3, 5, 9])
    some = PulledNeurons(neuron, Layout.of(SPECIFICATIONS[0], torch.device("cpu")), InferenceOptions())
    assert [some.place(n) for n in (2, 3, 4, 9, 10)] == [None, 0, None, 2, None]
    place = some.places(neuron[1:])
    assert place is not None
    assert place.tolist() == [1, 2]
    assert some.places(np.array([3, 4])) is None
    assert some.places(np.array([9, 10])) is None


def test_only_the_processor() -> None:
    flags = FlagTable(np.zeros(1, bool), np.full(1, -1))
    rows, meta = RunRows([Run.empty()], lambda _: 0), torch.device("meta")
    with pytest.raises(OptionError, match="take Session"):
        PullSession(SPECIFICATIONS[0], rows, flags, device=meta)
    assert isinstance(open_session(SPECIFICATIONS[0], rows, flags, device=meta), Session)
    assert isinstance(open_session(SPECIFICATIONS[0], rows, flags), ReplaySession)
