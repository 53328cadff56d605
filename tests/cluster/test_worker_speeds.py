"""Slow workers are found by what they do, get less work, and change no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worker_faults import Fault, Kind, detect, judged

from giaann_dask.cluster import Roles, assign_regions
from giaann_dask.cluster.roles import WorkerMemory, roles_among
from giaann_dask.cluster.worker_speeds import (
    LEAST_SHARE,
    REACTIONS,
    Reaction,
    Verdict,
    Work,
    WorkerSpeeds,
    received_work,
)
from giaann_dask.training.rounds import compose
from giaann_dask.training.slow_workers import SlowWorkers

amounts = st.floats(0, 1e9) | st.just(0.0)
works = st.builds(
    Work,
    amounts,
    st.floats(0, 1e3),
    amounts,
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(amounts, st.floats(0, 1e3)), max_size=3),
)
observed = st.lists(st.dictionaries(st.sampled_from("abcdef"), works), max_size=30)


@given(observed, st.sampled_from(REACTIONS))
def test_steps_come_in_order_and_most_workers_stay(rounds: list[dict[str, Work]], reaction: Reaction) -> None:
    speeds, most = WorkerSpeeds(), 0
    for work in rounds:
        before, speeds, most = speeds, speeds.review(work, reaction), max(most, len(work))
        assert speeds.verdicts.keys() == work.keys()
        for worker, verdict in speeds.verdicts.items():
            earlier = before.verdicts.get(worker, Verdict())
            assert verdict.step in {0, earlier.step, earlier.step + 1}
            assert verdict.step <= REACTIONS.index(reaction) + 1
            assert bool(verdict.cause) == bool(verdict.step)
        left = [worker for worker, verdict in speeds.verdicts.items() if verdict.step < 3]
        newly = sum(its.step == 3 > before.verdicts.get(w, Verdict()).step for w, its in speeds.verdicts.items())
        assert newly <= 1
        assert not newly or len(left) >= max(2, most / 2)
        assert all(LEAST_SHARE / 100 < share <= 1 for share in speeds.shares(list(work)).values() if share)


@given(st.lists(st.floats(0.25, 1), min_size=3, max_size=8), st.randoms(use_true_random=False))
def test_unchanged_speeds_lead_to_unchanged_decisions(rates: list[float], random: Any) -> None:
    """However far from its peers a worker is, and with tasks of any size, nothing changes back and forth."""
    speeds, history = WorkerSpeeds(), []
    for _ in range(40):
        sizes = [random.uniform(1, 100) for _ in rates]
        times = [size / rate * random.uniform(0.95, 1.05) for size, rate in zip(sizes, rates, strict=True)]
        speeds = speeds.review({str(n): Work(*each) for n, each in enumerate(zip(sizes, times, strict=True))}, "adapt")
        history.append({worker: verdict.step for worker, verdict in speeds.verdicts.items()})
    for worker in history[0]:
        steps = [each[worker] for each in history]
        # Named, relieved; at most one return by a worker at the limit.
        assert sum(later < earlier for earlier, later in pairwise(steps)) == 0
    assert not any(verdict.step for verdict in speeds.verdicts.values()) or min(rates) < 0.7 * max(rates)


def test_injected_faults_are_found_within_a_few_rounds() -> None:
    found = detect(range(60))
    assert (found.missed, found.wrong_cause) == (0, 0)
    assert found.recall == 1
    assert found.precision > 0.9
    assert max(found.rounds) <= 5


@pytest.mark.parametrize(("nbytes", "most"), [(4 << 20, 5), (200 << 10, 10), (80 << 10, 20)])
def test_a_slow_link_is_named_by_small_messages_as_well(nbytes: int, most: int) -> None:
    """Small batches send little: of the first worker's links to all others each takes ten times as long for a byte."""
    names, speeds, rounds = "abcd", WorkerSpeeds(), 0
    while not speeds.slow() and rounds < 60:
        work, rounds = {}, rounds + 1
        for name in names:
            received = Work()
            for other in names.replace(name, ""):
                seconds = nbytes * 1e-7 * (10 if "a" in (name, other) else 1)
                received = received.plus(received_work(other, nbytes, seconds))
            work[name] = Work(4.0 * nbytes, 4e-8 * nbytes).plus(received)
        speeds = speeds.review(work)
    assert {name: verdict.cause for name, verdict in speeds.slow().items()} == {"a": "link"}
    assert rounds <= most
    assert speeds.shares(list(names))["b"] == 1.0
    assert speeds.shares(list(names)).get("a", 0.0) < 0.6


def test_a_worker_that_has_heard_of_a_slow_one_only_is_not_named() -> None:
    """Of each worker's links, that to the slow first one is the only one of which much is told in most rounds."""
    names, speeds, nbytes = "abcd", WorkerSpeeds(), 1 << 20
    for number in range(40):
        work = {}
        for name in names:
            received = Work()
            for other in names.replace(name, ""):
                slow = "a" in (name, other)
                if slow or number % 4 == 0:
                    received = received.plus(received_work(other, nbytes, nbytes * (1e-6 if slow else 1e-7)))
            work[name] = Work(4.0 * nbytes, 4e-8 * nbytes, 3.0 * nbytes, received.received)
        speeds = speeds.review(work)
        assert not speeds.slow().keys() - {"a"}
    assert speeds.slow()["a"].cause == "link"


@pytest.mark.parametrize(("times", "named"), [((1.8, 1.0), True), ((1.0, 1.8), False), ((1.0, 2.5), True)])
def test_links_have_to_be_slower_than_processors_to_be_named(times: tuple[float, float], named: bool) -> None:
    """One worker takes so many times as long to count, and to move, of which the slower stage takes nearly all time."""
    names, nbytes, speeds = "abcd", 1 << 22, WorkerSpeeds()
    for _ in range(10):
        work = {}
        for name in names:
            slow = times if name == "a" else (1.0, 1.0)
            received = Work()
            for other in names.replace(name, ""):
                ends = times[1] if "a" in (name, other) else 1.0
                received = received.plus(received_work(other, nbytes, nbytes * 1e-6 * ends))
            counting = 3e-5 if times[0] > 1 else 1e-7
            work[name] = Work(3.0 * nbytes, 3.0 * nbytes * counting * slow[0]).plus(received)
        speeds = speeds.review(work)
    assert ("a" in speeds.slow()) == named


def test_messages_that_tell_latency_alone_name_no_link() -> None:
    speeds = WorkerSpeeds()
    for _ in range(60):
        work = {}
        for name in "abcd":
            received = Work()
            for other in "abcd".replace(name, ""):
                received = received.plus(received_work(other, 1 << 12, 0.1 if "a" in (name, other) else 0.001))
            work[name] = received
        speeds = speeds.review(work)
    assert not speeds.slow()


def test_a_worker_that_recovers_gets_its_share_again() -> None:
    *_, slow = judged(1, 4, 12, Fault("compute", 3.0))
    assert slow.verdicts["tcp://0"].step == 2
    assert slow.region_shares() == {"tcp://0": 0.0}
    even = {name: Work(1e7, 1.0) for name in slow.verdicts}
    for _ in range(6):
        slow = slow.review(even)
    assert slow.shares(list(even)) == slow.region_shares() == {}


@pytest.mark.parametrize("kind", ["compute", "link"])
def test_a_worker_without_work_recovers_as_well(kind: Kind) -> None:
    found = list(judged(1, 4, 80, Fault(kind, 60.0, 5, 30), "adapt"))
    assert "tcp://0" not in found[29].shares(list(found[29].verdicts))
    assert found[29].verdicts["tcp://0"].step == 2
    assert found[-1].shares(list(found[-1].verdicts)) == found[-1].region_shares() == {}


def test_a_worker_that_is_needed_is_not_retired() -> None:
    work = {name: Work(1e7, 4.0 if name == "d" else 0.5) for name in "abcd"}
    for needed, step in ((frozenset("d"), 2), (frozenset("a"), 3)):
        speeds = WorkerSpeeds()
        for _ in range(40):
            speeds = speeds.review(work, needed=needed)
        assert speeds.verdicts["d"].step == step


def test_a_worker_that_gets_no_batches_is_measured_again() -> None:
    workers, submitted = SlowWorkers("adapt", pytest.fail), []
    done = SimpleNamespace(done=lambda: len(submitted) != 2)
    for _ in range(30):
        work = {name: Work(1e7, 8.0 if name == "d" else 1.0) for name in "abcd"}
        workers.review(0, work, set(work))
        workers.measure("abcd", lambda *pair: submitted.append(pair) or done)  # type: ignore[arg-type,func-returns-value]
    # The second is never done, so that no third one follows.
    assert submitted == [("d", "a")] * 2


def test_regions_follow_shares_and_stay_where_they_are() -> None:
    roles, weights = Roles(("a", "b", "c", "d"), ()), dict.fromkeys(range(16), 5)
    even = assign_regions({}, weights, roles)
    less = assign_regions(even, weights, roles, {"a": 0.25})
    assert Counter(less.values()) == {"a": 2, "b": 5, "c": 5, "d": 4}
    assert sum(less[region] != even[region] for region in weights) == 2
    none = assign_regions(less, weights, roles, {"a": 0.0})
    assert "a" not in none.values()
    assert assign_regions(none, weights, roles, {"a": 0.0}) == none
    # What the memory of the others has no room for stays: regions may take half of it.
    memory = dict.fromkeys("abcd", WorkerMemory(4 << 30, 1 << 30))
    full = assign_regions(even, dict.fromkeys(range(16), 600 << 20), replace(roles, memory=memory), {"a": 0.0})
    assert 0 < Counter(full.values())["a"] < 4
    # Where all are slow, none is.
    assert assign_regions({}, weights, roles, dict.fromkeys("abcd", 0.0)) == even


def test_a_worker_with_the_only_resource_of_a_kind_is_known() -> None:
    resources = {"a": {"storage": 1, "compute": 1}, "b": {"storage": 1}, "c": {"compute": 1}, "d": {"licence": 1}}
    found = roles_among({address: {"resources": its} for address, its in resources.items()})
    assert found.sole == {"d"}


def blocks_of(sizes: list[int]) -> Iterator[Any]:
    return (SimpleNamespace(mapping=SimpleNamespace(sequences=size), number=at) for at, size in enumerate(sizes))


@given(st.lists(st.integers(1, 900), max_size=60), st.integers(1, 4), st.integers(1, 1000))
def test_equal_workers_get_batches_of_whole_blocks_in_order(sizes: list[int], width: int, wanted: int) -> None:
    rounds = list(compose(blocks_of(sizes), wanted, lambda: {"": (width, 1.0)}))
    assert [block.number for batches in rounds for batch in batches for block in batch.blocks] == list(
        range(len(sizes))
    )
    assert all(len(batches) == width for batches in rounds[:-1])
    for batches in rounds:
        for batch in batches[:-1] if batches is rounds[-1] else batches:
            *others, last = (block.mapping.sequences for block in batch.blocks)
            assert sum(others) + last + last / 2 >= wanted
            assert not others or sum(others) + others[-1] / 2 < wanted


@pytest.mark.parametrize(("block", "share"), [(100, 0.25), (1000, 0.25), (3000, 0.3), (700, 0.8)])
def test_a_slow_worker_gets_its_share_of_sequences(block: int, share: float) -> None:
    places = {"slow": (1, share), "a": (1, 1.0), "b": (1, 1.0)}
    counted: Counter[str] = Counter()
    for batches in compose(blocks_of([block] * 3000), 1000, lambda: places):
        assert len(batches) <= 3
        for batch in batches:
            counted[batch.worker] += sum(each.mapping.sequences for each in batch.blocks)
    assert counted["slow"] / counted["a"] == pytest.approx(share, rel=0.1)


def test_single_batches_go_to_workers_by_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = SlowWorkers("adapt", pytest.fail)
    assert (workers.next_workers("abcd", 2), workers.width("abcd")) == (["", ""], 4)
    for number in range(12):
        work = {name: Work(1e7, 4.0 if name == "d" else 1.0) for name in "abcd"}
        events = workers.review(number, work, set(work))
        assert {event.worker for event in events} <= {"d"}
    turns = Counter(workers.next_workers("abcd", 70) + workers.next_workers("abcd", 60))
    assert turns == {"a": 40, "b": 40, "c": 40, "d": 10}
    assert workers.width("abcd") == 3
    assert workers.region_shares() == {"d": 0.0}
    assert list(workers.named()) == ["d"]
