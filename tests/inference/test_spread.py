"""A state in parts against the undivided one: the same entries, values and answers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.conformance import golden_run
from support.golden_steps import SYN_FOLDER, Follower, follow
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, random_run

from giaann_dask.errors import OptionError
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.sharded.session import ENTRY_BYTES, SpreadSession, SpreadState
from giaann_dask.inference.state.activation import ActivationState
from giaann_dask.inference.state.active_columns import ActiveColumns
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import FlagTable, PreparedSequence, StepTrace
from giaann_dask.inference.v1.push_session import Session
from giaann_dask.keys import pack_neuron
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

CPU = torch.device("cpu")


class WatchedSession(SpreadSession):
    """Keeps the largest number of parts, and checks each."""

    most = 0

    def _within_budget(self, state: SpreadState) -> SpreadState:
        after = super()._within_budget(state)
        self.most = max(self.most, len(after.parts))
        assert list(after.starts) == sorted(set(after.starts))
        for place, part in enumerate(after.parts):
            neurons = (part.key >> 7) & ((1 << 51) - 1)
            assert {after.place(int(neuron)) for neuron in neurons} <= {place}
            assert ENTRY_BYTES * len(part) <= self._budget or len(neurons.unique()) == 1
        return after


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SPECIFICATIONS),
    st.sampled_from(OPTIONS),
    st.integers(3, 12),
    st.integers(1, 20),
    st.sampled_from([16, 160, 1000, 1 << 20]),
)
def test_the_same_steps_and_states_as_undivided(
    seed: int, specification: Specification, options: InferenceOptions, size: int, length: int, budget: int
) -> None:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, size), rng.integers(0, FEATURES, size)))
    rows = RunRows([random_run(rng, specification, neurons, 0.4)], lambda _: 0)
    flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES))
    sequence = PreparedSequence(neuron=rng.choice(neurons, length), noun=rng.random(length) < 0.4, number=1)
    spread = WatchedSession(
        specification, rows, flags, budget_bytes=budget, devices=(CPU, torch.device("cpu")), options=options
    )
    traces: tuple[list[StepTrace], list[StepTrace]] = ([], [])
    for session, seen in zip((Session(specification, rows, flags, options=options), spread), traces, strict=True):
        session.run_sequence(sequence, observer=seen.append)
        session.generate(sequence, 5, observer=seen.append)
    event(f"parts {min(spread.most, 3)}")
    assert len(traces[0]) == len(traces[1])
    for one, other in zip(*traces, strict=True):
        assert one.result == other.result
        assert one.state is not None
        assert other.state is not None
        for name in ("key", "value", "time"):
            assert torch.equal(getattr(one.state, name), getattr(other.state, name))
        assert (one.candidates is None) == (other.candidates is None)
        if one.candidates is not None and other.candidates is not None:
            assert torch.equal(one.candidates.neuron, other.candidates.neuron)
            assert torch.equal(one.candidates.value, other.candidates.value)
            assert one.candidates.best == other.candidates.best


class SpreadFollower(Follower):
    """Follows a golden file with a budget of some entries."""

    def __init__(self, path: Path, run: Run) -> None:
        super().__init__(path, run)
        plain = self.session
        self.session = SpreadSession(  # type: ignore[assignment]
            plain.specification, plain.rows, plain.flags, budget_bytes=4096, options=self.options
        )


@pytest.mark.parametrize("name", ["syntest40_exact_target"])
def test_golden_files_with_a_tiny_budget(name: str) -> None:
    path = next(SYN_FOLDER.glob(f"infer_{name}*.jsonl.gz"))
    follow(path, golden_run(SYN_FOLDER), SpreadFollower)


def test_a_tiny_budget_is_spread() -> None:
    rng = np.random.default_rng(1)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, 12), rng.integers(0, FEATURES, 12)))
    rows = RunRows([random_run(rng, SPECIFICATIONS[0], neurons, 0.5)], lambda _: 0)
    flags = FlagTable(np.zeros(FEATURES, bool), np.zeros(FEATURES, int))
    session = WatchedSession(SPECIFICATIONS[0], rows, flags, budget_bytes=200)
    session.generate(PreparedSequence(neuron=neurons[:6], noun=np.ones(6, bool), number=1), 3)
    assert session.most == len(neurons)
    with pytest.raises(OptionError, match="budget_bytes is 15"):
        SpreadSession(SPECIFICATIONS[0], rows, flags, budget_bytes=15)
    with pytest.raises(OptionError, match="devices is empty"):
        SpreadSession(SPECIFICATIONS[0], rows, flags, budget_bytes=16, devices=())


@given(
    st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 3)), st.integers(0, 5), max_size=20),
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 6),
)
def test_parts_say_enough_to_know_the_strongest_columns(
    values: dict[tuple[int, int], int], cuts: list[int], count: int
) -> None:
    """Also where a column is cut in two, and where several are equally strong."""
    neurons = sorted(values)
    keys = pack_neuron(np.array([c for c, _ in neurons], np.int64), np.array([f for _, f in neurons], np.int64)) << 7
    state = ActivationState(
        torch.from_numpy(keys),
        torch.tensor([values[n] for n in neurons], dtype=torch.float32),
        torch.zeros(len(neurons), dtype=torch.int64),
    )
    edges = sorted({0, len(neurons), *(min(cut, len(neurons)) for cut in cuts)})
    places = [slice(low, high) for low, high in pairwise(edges)] or [slice(0, 0)]
    parts = [ActivationState(state.key[p], state.value[p], state.time[p]) for p in places]
    whole = ActiveColumns.of(state).strongest(count)
    joined = ActiveColumns.joined([ActiveColumns.of(part).needed(count) for part in parts]).strongest(count)
    totals: dict[int, int] = {}
    for (column, _), value in values.items():
        totals[column] = totals.get(column, 0) + value
    expected = sorted(((-total, column) for column, total in totals.items() if total))[:count]
    assert [(-a, c) for c, a in zip(whole.column, whole.activation, strict=True)] == expected
    assert [(-a, c) for c, a in zip(joined.column, joined.activation, strict=True)] == expected
