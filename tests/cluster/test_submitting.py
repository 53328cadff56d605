"""Tasks that are submitted together: the same results as one by one, in fewer messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from operator import add, mul
from typing import Any

import pytest
from distributed import Client, Future, wait
from support.processes import until

import giaann_dask as gd
from giaann_dask.cluster import ClusterOptions, results
from giaann_dask.cluster.submitting import TaskSubmitter, low_priority

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A worker in this process."""
    with gd.connect(options=ClusterOptions(workers=0, threads=2)) as client:
        yield client


@pytest.fixture
def graphs(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The keys that were wanted of each graph that the scheduler has got."""
    handlers, seen = client.cluster.scheduler.stream_handlers, []
    handle = handlers["update-graph"]

    async def update_graph(**message: Any) -> None:
        seen.append(set(message["keys"]))
        await handle(**message)

    monkeypatch.setitem(handlers, "update-graph", update_graph)
    return seen


def total(values: list[int], *, more: int = 0) -> int:
    """Add up numbers of a list, and another one."""
    return sum(values) + more


def chain(submitter: TaskSubmitter, name: str, owner: str) -> list[Future]:
    """Submit tasks of which some run at an owner, between two that run anywhere."""
    at_owner = {"workers": [owner], "allow_other_workers": True}
    parts = [submitter.pass_on(f"part-{name}-{number}", add, number, 1) for number in range(3)]
    there = submitter.submit(f"there-{name}", total, parts, more=parts[0], **at_owner)
    return [there, submitter.submit(f"last-{name}", mul, there, parts[1])]


def test_tasks_together_are_a_graph_for_each_place_and_have_the_same_results(
    client: Client, graphs: list[set[str]]
) -> None:
    submitter, owner = TaskSubmitter(client), next(iter(client.ncores()))
    alone = results(chain(submitter, "a", owner))
    assert len(graphs) == submitter.count == 5
    graphs.clear()
    with submitter.together():
        inner = chain(submitter, "b", owner)
        with submitter.together():
            chain(submitter, "b", owner)
        assert client.cluster.scheduler.tasks.keys().isdisjoint(future.key for future in inner)
    assert results(inner) == alone == [7, 14]
    parts = {f"part-b-{number}" for number in range(3)}
    assert graphs == [parts, {"there-b"}, {"last-b"}], "what is passed on is wanted until all graphs are there"
    wait(inner)
    assert not parts & client.futures.keys()


def test_an_argument_is_kept_until_its_task_is_submitted(client: Client) -> None:
    submitter = TaskSubmitter(client)
    with submitter.together():
        kept = submitter.submit("sum-kept", add, client.submit(mul, 3, 5, key="product-kept"), 1)
        assert "product-kept" in client.futures
    assert results([kept]) == [16]


def test_nothing_is_submitted_after_an_error(client: Client, graphs: list[set[str]]) -> None:
    submitter = TaskSubmitter(client)

    def fail() -> None:
        with submitter.together():
            submitter.submit("never", add, 1, 1)
            raise ValueError("an error")

    with pytest.raises(ValueError, match="an error"):
        fail()
    assert results([submitter.submit("afterwards", add, 1, 1)]) == [2]
    assert graphs == [{"afterwards"}]


RAN: list[str] = []
BEGUN, GO_ON = threading.Semaphore(0), threading.Event()


def occupy() -> None:
    """Keep the thread of a worker until the event."""
    BEGUN.release()
    assert GO_ON.wait(60)


def note(name: str) -> None:
    """Note that a task ran."""
    RAN.append(name)


@pytest.mark.parametrize("together", [False, True])
def test_tasks_of_low_priority_run_after_those_that_are_submitted_later(client: Client, together: bool) -> None:
    RAN.clear()
    GO_ON.clear()
    busy = [client.submit(occupy, pure=False) for _ in range(2)]
    assert [BEGUN.acquire(timeout=60) for _ in busy] == [True, True]
    submitter = TaskSubmitter(client)
    with low_priority(), submitter.together() if together else nullcontext():
        late = [submitter.submit(f"late-{together}-{number}", note, "late") for number in range(4)]
    with submitter.together():
        first = submitter.submit(f"first-{together}", note, "first")
    tasks = client.cluster.workers[0].state.tasks
    until(lambda: {each.key for each in [*late, first]} <= tasks.keys())
    GO_ON.set()
    wait([*busy, *late, first])
    assert "first" in RAN[:2], "two threads take the first two tasks"
    assert len(RAN) == 5


def test_a_task_of_low_priority_leaves_its_thread_to_others(client: Client) -> None:
    GO_ON.clear()
    submitter = TaskSubmitter(client)
    with low_priority():
        held = [submitter.submit(f"held-{number}", occupy) for number in range(4)]
    assert BEGUN.acquire(timeout=60)
    others = [submitter.submit(f"beside-{number}", add, number, 1) for number in range(4)]
    wait(others, timeout=60)
    assert not BEGUN.acquire(blocking=False), "the process runs one at a time"
    GO_ON.set()
    wait(held, timeout=60)
    assert results(others) == [1, 2, 3, 4]
    assert [BEGUN.acquire(timeout=60) for _ in held[1:]] == [True] * 3
