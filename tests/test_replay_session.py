"""Replaying what can win against pushing every row: the same values, step by step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from giaann_dask.errors import OptionError
from giaann_dask.inference.options import InferenceOptions
from giaann_dask.inference.replay_session import ReplaySession, open_session
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
        ReplaySession(specification, rows, flags, options=options),
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


def test_only_the_processor() -> None:
    flags = FlagTable(np.zeros(1, bool), np.full(1, -1))
    rows, meta = RunRows([Run.empty()], lambda _: 0), torch.device("meta")
    with pytest.raises(OptionError, match="take Session"):
        ReplaySession(SPECIFICATIONS[0], rows, flags, device=meta)
    assert isinstance(open_session(SPECIFICATIONS[0], rows, flags, device=meta), Session)
    assert isinstance(open_session(SPECIFICATIONS[0], rows, flags), ReplaySession)
