"""How workers keep freed memory: the variables, what goes before them, and giving it back near the limit."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.cluster import allocation
from giaann_dask.cluster.allocation import allocator_environment, keeping_memory, release_near_limit

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
