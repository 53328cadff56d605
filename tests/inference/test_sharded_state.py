"""A state whose parts are on workers against the undivided one: the same steps and values."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import event, given
from hypothesis import strategies as st
from support.conformance import golden_run
from support.examples import examples
from support.generated import generate
from support.golden_steps import SYN_FOLDER, Follower, follow
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, random_run
from support.serving_engines import parts_of
from support.stored_networks import reader_of
from support.v2_records import V2Network
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.columns.rules import open_whole_session
from giaann_dask.models.columns.sharded_state import HeldState, ShardActors, ShardedSession, ShardedState, StateActor
from giaann_dask.models.columns.state.activation import ActivationState, ActiveColumns, Layout, StateEntries
from giaann_dask.models.columns.state.inference_options import InferenceOptions, V2Options, settings
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence, StepTrace
from giaann_dask.models.generation_options import StateOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.models import open_engine


class WatchedStates(ShardedState):
    """Keeps the largest number of parts, checks where neurons belong, and lets workers forget parts."""

    most = 0
    # How often a worker forgets a part, and by which numbers.
    forgets, chance = 0.0, random.Random(0)

    def _within_budget(self, after: HeldState) -> None:
        super()._within_budget(after)
        self.most = max(self.most, len(after.parts))
        assert after.starts == sorted(set(after.starts))
        for place, entries in enumerate(self.ask(after, "entries", dict.fromkeys(range(len(after.parts)), ()))):
            neurons = set(((entries.key >> 7) & ((1 << 51) - 1)).tolist())
            assert {after.place(neuron) for neuron in neurons} <= {place}
            assert after.sizes[place] <= self._limits.state_bytes or len(neurons) <= 1
        if len(after.parts) > 1 and self.chance.random() < self.forgets:
            self.actors.drop([self.chance.choice(after.parts[1:])])


@pytest.fixture(autouse=True, scope="module")
def watched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("giaann_dask.models.columns.sharded_state.ShardedState", WatchedStates)
        yield


@pytest.fixture(scope="module")
def workers() -> Iterator[Client]:
    """Two workers in this process."""
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        yield client


class V2Specification(V2Network):
    """A random network's."""

    @property
    def segments(self) -> int:
        return self.last_segment + 1


def v2_rules(name: Any, lif: bool, feed: Any, branches: int) -> tuple[V2Specification, V2Options]:
    """Segments that the dynamics have, and their rules."""
    return V2Specification(branches, 8 if lif else 7, seed_tokens=4), settings(name, lif=lif, feed=feed)


V1_RULES = st.tuples(st.sampled_from(SPECIFICATIONS), st.sampled_from(OPTIONS))
V2_RULES = st.builds(
    v2_rules,
    st.sampled_from(["train", "test"]),
    st.booleans(),
    st.sampled_from(["target", "prediction"]),
    st.sampled_from([1, 2]),
)


@examples(10)
@given(
    st.integers(0, 2**32),
    V1_RULES | V2_RULES,
    st.integers(3, 8),
    st.integers(2, 14),
    st.sampled_from([48, 160, 1000, 1 << 20]),
    st.sampled_from([0.0, 0.5]),
)
def test_the_same_steps_as_undivided(
    workers: Client, seed: int, rules: tuple[Any, Any], size: int, length: int, budget: int, forgets: float
) -> None:
    """Of both profiles, also where workers lose parts again and again."""
    specification, options = rules
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, size), rng.integers(0, FEATURES, size)))
    rows = RunRows([random_run(rng, specification, neurons, 0.4)], lambda _: 0)
    flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES))
    sequence = PreparedSequence(neuron=rng.choice(neurons, length), noun=rng.random(length) < 0.4, number=1)
    network: dict[str, Any] = {"specification": specification, "rows": rows, "flags": flags, "options": options}
    limits = StateOptions(state_bytes=budget)
    both: list[Any] = [open_whole_session(**network, client=client, state=limits) for client in (None, workers)]
    sharded = both[1].sharded
    assert isinstance(sharded, WatchedStates)
    sharded.forgets = forgets
    traces: tuple[list[StepTrace], list[StepTrace]] = ([], [])
    states: tuple[list[StateEntries | None], list[StateEntries | None]] = ([], [])
    for number, session in enumerate(both):

        def observe(trace: StepTrace, number: int = number) -> None:
            traces[number].append(trace)
            states[number].append(trace.state)

        session.run_sequence(sequence, observer=observe)
        generate(session, sequence, 3, observer=observe)
    event(f"{type(both[0]).__name__} {min(sharded.most, 3)}")
    assert sharded.actors.on_workers == (sharded.most > 1), "workers are asked only when the budget is passed"
    assert len(traces[0]) == len(traces[1])
    for whole, divided in zip(*states, strict=True):
        if divided is not None:
            assert all(
                np.array_equal(getattr(whole, name), getattr(divided, name)) for name in ("key", "value", "time")
            )
    for one, other in zip(*traces, strict=True):
        assert one.result == other.result
        assert (one.candidates is None) == (other.candidates is None)
        if one.candidates is not None and other.candidates is not None:
            assert np.array_equal(one.candidates.neuron, other.candidates.neuron)
            assert np.array_equal(one.candidates.value, other.candidates.value)
            assert one.candidates.best == other.candidates.best


def dense(client: Client, budget: int, rules: Any = None, **more: float) -> tuple[Any, WatchedStates, PreparedSequence]:
    rng = np.random.default_rng(1)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, 12), rng.integers(0, FEATURES, 12)))
    specification, options = rules or (SPECIFICATIONS[0], InferenceOptions())
    rows = RunRows([random_run(rng, specification, neurons, 0.5)], lambda _: 0)
    flags = FlagTable(np.zeros(FEATURES, bool), np.zeros(FEATURES, int))
    limits = StateOptions(state_bytes=budget, **more)  # type: ignore[arg-type]
    session: Any = open_whole_session(specification, rows, flags, options=options, client=client, state=limits)
    return session, session.sharded, PreparedSequence(neuron=neurons[:6], noun=np.ones(6, bool), number=1)


def held_parts(client: Client) -> int:
    """Parts that workers hold."""
    found = client.run(lambda dask_worker: [len(a.parts) for a in dask_worker.state.actors.values()])
    return sum(sum(counts) for counts in found.values())


def test_parts_of_sequences_that_nobody_follows_are_dropped(workers: Client) -> None:
    session, sharded, prompt = dense(workers, 200)
    streams = [session.stream(prompt, 3) for _ in range(2)]
    both = list(zip(*streams, strict=True))
    assert [one.result for one, _ in both] == [other.result for _, other in both]
    assert sharded.most > 3
    left = session.stream(prompt, 3)
    for _ in range(4):
        next(left)
    assert held_parts(workers) > 0
    left.close()
    del left, streams, both
    gc.collect()
    # Nobody waits until they are dropped.
    deadline = time.monotonic() + 30
    while held_parts(workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert held_parts(workers) == 0
    for wrong in ({"state_bytes": 15}, {"timeout_s": 0}):
        with pytest.raises(OptionError):
            StateOptions(**wrong)  # type: ignore[arg-type]


MADE: list[ActivationState] = []


def made_part() -> ActivationState:
    MADE.append(ActivationState(Layout.of(SPECIFICATIONS[0]), InferenceOptions()))
    return MADE[-1]


def test_each_worker_has_made_a_part_before_its_time_counts(workers: Client) -> None:
    """Imports of the first part take longer on a busy machine than an answer may."""
    MADE.clear()
    holders = ShardActors(workers, StateActor(made_part), (made_part,), timeout_s=60)
    assert {holders.choose(place) for place in range(2)} == {1, 2}
    assert len(MADE) == 2
    assert held_parts(workers) == 0


@pytest.mark.slow
def test_a_server_that_may_hold_little_says_the_same(tmp_path: Path) -> None:
    prompt, wanted = "the old miller carried the", CompletionOptions(tokens=6, columns=2)
    with gd.connect(workers=0) as client:
        network = gd.train(write_village(tmp_path / "a.txt", 200), tmp_path / "net", client=client)
        reader = reader_of(network)
        found = []
        for limits in (StateOptions(), StateOptions(state_bytes=2000)):
            with closing(open_engine(client, reader, batch=gd.BatchOptions(state=limits))) as engine:
                parts = parts_of(engine, prompt, wanted)
                found.append([part for part in parts if isinstance(part, TokenEvent) and part.token])
    whole, sharded = found
    assert len(whole) > 1
    assert all(len(token.columns) == 2 for token in whole)
    assert sharded == whole


@pytest.mark.slow
@pytest.mark.cluster
def test_a_golden_file_and_lost_workers() -> None:
    """A tiny budget on two processes; then one that holds parts is stopped, then killed, and its parts made again."""
    path = next(SYN_FOLDER.glob("infer_syntest40_exact_target*.jsonl.gz"))
    v2 = v2_rules("test", True, "prediction", 1)
    with gd.connect(workers=2) as client:

        class SpreadFollower(Follower):
            def __init__(self, path: Path, run: Run) -> None:
                super().__init__(path, run)
                plain, limits = self.session, StateOptions(state_bytes=1 << 16)
                self.session = ShardedSession(  # type: ignore[assignment]
                    plain.specification, plain.rows, plain.flags, client=client, options=self.options, state=limits
                )

            def _compare_state(self, record: dict[str, Any], trace: StepTrace, where: str) -> None:
                assert trace.state is None or 16 * len(trace.state) <= 1 << 16, where

        follow(path, golden_run(SYN_FOLDER), SpreadFollower)
        for number, rules in ((signal.SIGSTOP, None), (signal.SIGKILL, None), (signal.SIGKILL, v2)):
            session, _, prompt = dense(client, 1 << 30, rules)
            expected = [trace.result for trace in session.stream(prompt, 8)]
            session, sharded, prompt = dense(client, 200, rules, timeout_s=5)
            steps = session.stream(prompt, 8)
            found = [next(steps).result for _ in range(4)]
            futures = sharded.actors.futures
            pid = client.run(os.getpid, workers=[client.who_has(futures)[futures[0].key][0]])
            os.kill(next(iter(pid.values())), number)
            assert found + [trace.result for trace in steps] == expected
            assert sharded.most > 3
            if number == signal.SIGSTOP:
                os.kill(next(iter(pid.values())), signal.SIGCONT)


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
    state = StateEntries(keys, np.array([values[n] for n in neurons], np.float32), np.zeros(len(neurons), np.int32))
    edges = sorted({0, len(neurons), *(min(cut, len(neurons)) for cut in cuts)})
    places = [slice(low, high) for low, high in pairwise(edges)] or [slice(0, 0)]
    parts = [StateEntries(state.key[p], state.value[p], state.time[p]) for p in places]
    whole = ActiveColumns.of(state).strongest(count, NameOrder())
    needed = [ActiveColumns.of(part).needed(count) for part in parts]
    joined = ActiveColumns.joined(needed).strongest(count, NameOrder())
    totals: dict[int, int] = {}
    for (column, _), value in values.items():
        totals[column] = totals.get(column, 0) + value
    expected = sorted(((-total, column) for column, total in totals.items() if total))[:count]
    assert [(-a, c) for c, a in zip(whole.column, whole.activation, strict=True)] == expected
    assert [(-a, c) for c, a in zip(joined.column, joined.activation, strict=True)] == expected
