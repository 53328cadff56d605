"""How workers keep freed memory: the variables, what goes before them, and giving it back near the limit."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client
from distributed.spill import SpillBuffer

import giaann_dask as gd
from giaann_dask.cluster import allocation
from giaann_dask.cluster.allocation import allocator_environment, keeping_memory, release_near_limit
from giaann_dask.cluster.room import PROCESS_BYTES, data_room, region_room, spill_within_room

CONFIGURED = "distributed.nanny.pre-spawn-environ"


@pytest.mark.parametrize("limit", [1 << 26, 1 << 30, 1 << 40])
def test_less_is_kept_than_makes_dask_spill(limit: int) -> None:
    found = allocator_environment(limit)
    assert int(found["MALLOC_TRIM_THRESHOLD_"]) + int(found["MALLOC_TOP_PAD_"]) < allocation.RELEASE_FRACTION * limit
    assert dask.config.get("distributed.worker.memory.target") > allocation.RELEASE_FRACTION


def test_what_the_user_configured_stays() -> None:
    with dask.config.set({CONFIGURED: {"MALLOC_ARENA_MAX": 4, "MALLOC_TRIM_THRESHOLD_": 65536, "A": "b"}}):
        with keeping_memory(1 << 30, 1):
            found = dask.config.get(CONFIGURED)
        assert dask.config.get(CONFIGURED)["MALLOC_TRIM_THRESHOLD_"] == 65536
    assert (found["MALLOC_ARENA_MAX"], found["A"]) == (4, "b")
    assert found["MALLOC_TRIM_THRESHOLD_"] == str(1 << 28), "Dask's own default is no wish of the user"


def test_without_a_limit_a_worker_has_its_share() -> None:
    thresholds = []
    for workers in (1, 4):
        with keeping_memory(None, workers):
            thresholds.append(int(dask.config.get(CONFIGURED)["MALLOC_TRIM_THRESHOLD_"]))
    assert thresholds[0] // 4 == pytest.approx(thresholds[1], abs=1)


@pytest.mark.parametrize(("used", "released"), [(0.4, 0), (0.6, 1)])
def test_kept_memory_is_given_back_near_the_limit(monkeypatch: pytest.MonkeyPatch, used: float, released: int) -> None:
    calls: list[int] = []
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=calls.append))
    worker: Any = SimpleNamespace(
        memory_manager=SimpleNamespace(memory_limit=1000),
        monitor=SimpleNamespace(get_process_memory=lambda: 1000 * used),
        periodic_callbacks={},
    )
    release_near_limit(worker)
    (callback,) = worker.periodic_callbacks.values()
    callback.callback()
    assert calls == [0] * released
    worker.memory_manager.memory_limit = None
    worker.periodic_callbacks.clear()
    release_near_limit(worker)
    assert not worker.periodic_callbacks, "there is no limit to come near to"


def variables() -> dict[str, str]:
    return dict(os.environ)


@pytest.mark.cluster
def test_workers_start_with_these_variables_and_this_process_does_not() -> None:
    before = variables()
    client: Client
    limit = 1 << 30
    with gd.connect(options=gd.ClusterOptions(workers=1, memory_limit=str(limit))) as client:
        (found,) = client.run(variables).values()
    assert allocator_environment(limit).items() <= found.items()
    assert {name: variables().get(name) for name in allocator_environment(limit)} == {
        name: before.get(name) for name in allocator_environment(limit)
    }


def test_a_small_limit_leaves_data_what_process_and_task_do_not_need() -> None:
    limit = 700 << 20
    assert data_room(limit) + PROCESS_BYTES + 3 * region_room(limit) < 0.95 * limit, "else its nanny kills it"
    assert data_room(1 << 40) == int(0.6 * (1 << 40)), "as Dask has it"
    assert 0 < data_room(1 << 26) < 1 << 26


class NarrowMemory(SimpleNamespace):
    """The memory manager of a worker, with Dask's thresholds."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            memory_limit=limit, memory_target_fraction=0.6, memory_spill_fraction=0.7, memory_pause_fraction=0.8
        )


@pytest.mark.parametrize(
    ("limit", "configured", "adapted"), [(700 << 20, 0.6, True), (700 << 20, 0.5, False), (1 << 40, 0.6, False)]
)
def test_a_worker_with_little_room_spills_earlier(tmp_path: Path, limit: int, configured: float, adapted: bool) -> None:
    with SpillBuffer(str(tmp_path), int(configured * limit)) as data:
        worker: Any = SimpleNamespace(
            memory_manager=NarrowMemory(limit),
            data=data,
            monitor=SimpleNamespace(get_process_memory=lambda: 280 << 20),
        )
        spill_within_room(worker)
        assert data.n == (data_room(limit, 280 << 20) if adapted else int(configured * limit))
        manager = worker.memory_manager
        thresholds = (manager.memory_target_fraction, manager.memory_spill_fraction, manager.memory_pause_fraction)
        assert (thresholds == (0.6, 0.7, 0.8)) is not adapted
        assert thresholds == tuple(sorted(thresholds))
        assert thresholds[-1] < 0.95


def test_a_worker_without_limit_or_with_other_data_is_left_alone() -> None:
    for limit, data in ((None, {}), (1 << 28, {})):
        worker: Any = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=limit), data=data)
        spill_within_room(worker)
        assert vars(worker.memory_manager) == {"memory_limit": limit}


@pytest.mark.cluster
def test_workers_that_are_started_have_room_for_their_tasks() -> None:
    limit = 600 << 20
    with gd.connect(options=gd.ClusterOptions(workers=1, memory_limit=str(limit))) as client:
        (room,) = client.run(lambda dask_worker: dask_worker.data.n).values()
    assert 0 < room < 0.4 * limit
