"""Small random networks and all rules of inference, for tests that compare two ways of following them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from giaann_dask.keys import pack_target
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence, StepTrace
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from support.pull_session import PullSession

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


def random_prompts(rng: np.random.Generator, neurons: np.ndarray, longest: int) -> list[Prompt]:
    """One to seven sentences and prompts, each with flags of its own."""
    prompts = []
    for number in range(rng.integers(1, 8)):
        length = int(rng.integers(1, longest + 1)) if number else longest
        flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES))
        sequence = PreparedSequence(neuron=rng.choice(neurons, length), noun=rng.random(length) < 0.4, number=1)
        tokens = None if rng.random() < 0.5 else int(rng.integers(1, 9))
        prompts.append(Prompt(sequence=sequence, flags=flags, tokens=tokens))
    return prompts


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
            assert np.array_equal(one.candidates.neuron, other.candidates.neuron)
            assert np.array_equal(one.candidates.value, other.candidates.value)
            assert one.candidates.best == other.candidates.best
