"""How workers keep freed memory: the variables, what goes before them, and giving it back near the limit."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import dask
import pytest
from distributed import Client
from distributed.spill import SpillBuffer
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import memory_budget
from giaann_dask.cluster.memory_budget import (
    PROCESS_BYTES,
    allocator_environment,
    data_budget,
    driver_allocator,
    region_budget,
    spill_within_budget,
    trim_near_limit,
    worker_allocator,
)

CONFIGURED = "distributed.nanny.pre-spawn-environ"


@pytest.mark.parametrize("limit", [1 << 26, 1 << 30, 1 << 40])
def test_the_kept_heap_is_smaller_than_the_spill_threshold(limit: int) -> None:
    found = allocator_environment(limit)
    assert int(found["MALLOC_TRIM_THRESHOLD_"]) + int(found["MALLOC_TOP_PAD_"]) < memory_budget.RELEASE_FRACTION * limit
    assert dask.config.get("distributed.worker.memory.target") > memory_budget.RELEASE_FRACTION


def test_configured_allocator_variables_are_kept() -> None:
    with dask.config.set({CONFIGURED: {"MALLOC_ARENA_MAX": 4, "MALLOC_TRIM_THRESHOLD_": 65536, "A": "b"}}):
        with worker_allocator(1 << 30, 1):
            found = dask.config.get(CONFIGURED)
        assert dask.config.get(CONFIGURED)["MALLOC_TRIM_THRESHOLD_"] == 65536
    assert (found["MALLOC_ARENA_MAX"], found["A"]) == (4, "b")
    assert found["MALLOC_TRIM_THRESHOLD_"] == str(1 << 28), "Dask's own default is no wish of the user"


def test_without_a_limit_a_worker_has_its_share() -> None:
    thresholds = []
    for workers in (1, 4):
        with worker_allocator(None, workers):
            thresholds.append(int(dask.config.get(CONFIGURED)["MALLOC_TRIM_THRESHOLD_"]))
    assert thresholds[0] // 4 == pytest.approx(thresholds[1], abs=1)


@pytest.mark.parametrize(("used", "released"), [(0.4, 0), (0.6, 1)])
def test_the_heap_is_trimmed_near_the_memory_limit(monkeypatch: pytest.MonkeyPatch, used: float, released: int) -> None:
    calls: list[int] = []
    monkeypatch.setattr(memory_budget.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=calls.append))
    worker: Any = SimpleNamespace(
        memory_manager=SimpleNamespace(memory_limit=1000),
        monitor=SimpleNamespace(get_process_memory=lambda: 1000 * used),
        periodic_callbacks={},
    )
    trim_near_limit(worker)
    (callback,) = worker.periodic_callbacks.values()
    callback.callback()
    assert calls == [0] * released
    worker.memory_manager.memory_limit = None
    worker.periodic_callbacks.clear()
    trim_near_limit(worker)
    assert not worker.periodic_callbacks, "there is no limit to come near to"


def variables() -> dict[str, str]:
    return dict(os.environ)


@pytest.mark.cluster
def test_workers_start_with_these_variables_and_this_process_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")  # as a cluster that Dask started leaves it
    before = variables()
    client: Client
    limit = 1 << 30
    with gd.connect(options=gd.ClusterOptions(workers=1, memory_limit=str(limit))) as client:
        (found,) = client.run(variables).values()
    assert allocator_environment(limit).items() <= found.items()
    assert {name: variables().get(name) for name in allocator_environment(limit)} == {
        name: before.get(name) for name in allocator_environment(limit)
    }


PIECES = 8
PIECE_BYTES = 1 << 20


def malloc_figures() -> MallocFigures:
    look = ctypes.CDLL(None).mallinfo2
    look.restype = MallocFigures
    return cast(MallocFigures, look())


def mapped_pieces() -> int:
    """Return how many of some pieces of a megabyte malloc takes from the system one by one."""
    before = malloc_figures().hblks
    pieces = [bytes(PIECE_BYTES) for _ in range(PIECES)]
    found = malloc_figures().hblks - before
    assert len(pieces) == PIECES
    return int(found)


def fill_heap() -> list[bytes]:
    """Return pieces of a megabyte for which malloc's heap had room, which it would take before it maps others."""

    def taken() -> tuple[int, int]:
        figures = malloc_figures()
        return figures.arena, figures.hblks

    before, pieces = taken(), []
    while taken() == before and len(pieces) < 1 << 14:
        pieces.append(bytes(PIECE_BYTES))
    return pieces


class MallocFigures(ctypes.Structure):
    """What mallinfo2(3) returns."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t) for name in ("arena", "a", "b", "hblks", "c", "d", "e", "f", "g", "h")
    ]


@pytest.mark.cluster
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs malloc of glibc 2.33 or later")
def test_large_allocations_are_unmapped_during_training(tmp_path: Path) -> None:
    # malloc takes pieces as large as it has seen freed from its heap from then on.
    assert len(bytes(1 << 24)) == 1 << 24
    filled = fill_heap()
    seen: list[int] = []
    text = write_village(tmp_path / "a.txt", 100)

    def look(_: object) -> None:
        # What training has freed may be room again.
        filled.extend(fill_heap())
        seen.extend(mapped_pieces() for _ in range(5))

    with gd.connect(workers=1) as client:
        # Other threads may take or give some back meanwhile.
        before = min(mapped_pieces() for _ in range(5))
        gd.train(text, tmp_path / "net", client=client, observer=look)
    assert max(seen) >= PIECES - 2
    assert before < 2
    assert min(mapped_pieces() for _ in range(5)) < 2
    assert filled


@pytest.mark.parametrize(("workers", "environment"), [({0: 1}, {}), ({}, {"MALLOC_MMAP_THRESHOLD_": "1000000"})])
def test_malloc_is_not_changed_with_workers_in_process_or_when_configured(
    monkeypatch: pytest.MonkeyPatch, workers: dict[int, int], environment: dict[str, str]
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(
        memory_budget.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *pair: calls.append(pair) or 1)
    )
    monkeypatch.setattr(memory_budget, "Worker", int)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client: Any = SimpleNamespace(cluster=SimpleNamespace(workers=workers))
    with driver_allocator(client):
        pass
    assert not calls
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    with driver_allocator(cast(Client, SimpleNamespace(cluster=None))):
        assert calls == [(-3, 1 << 18)]
    assert calls == [(-3, 1 << 18), (-3, 1 << 25)]


def test_data_budget_of_small_memory_limits() -> None:
    limit = 700 << 20
    assert data_budget(limit) + PROCESS_BYTES + 3 * region_budget(limit) < 0.95 * limit, "else its nanny kills it"
    assert data_budget(1 << 40) == int(0.6 * (1 << 40)), "as Dask has it"
    assert 0 < data_budget(1 << 26) < 1 << 26


class NarrowMemory(SimpleNamespace):
    """The memory manager of a worker, with Dask's thresholds."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            memory_limit=limit, memory_target_fraction=0.6, memory_spill_fraction=0.7, memory_pause_fraction=0.8
        )


@pytest.mark.parametrize(
    ("limit", "configured", "adapted"), [(700 << 20, 0.6, True), (700 << 20, 0.5, False), (1 << 40, 0.6, False)]
)
def test_workers_with_small_limits_spill_earlier(tmp_path: Path, limit: int, configured: float, adapted: bool) -> None:
    with SpillBuffer(str(tmp_path), int(configured * limit)) as data:
        worker: Any = SimpleNamespace(
            memory_manager=NarrowMemory(limit),
            data=data,
            monitor=SimpleNamespace(get_process_memory=lambda: 280 << 20),
        )
        spill_within_budget(worker)
        assert data.n == (data_budget(limit, 280 << 20) if adapted else int(configured * limit))
        manager = worker.memory_manager
        thresholds = (manager.memory_target_fraction, manager.memory_spill_fraction, manager.memory_pause_fraction)
        assert (thresholds == (0.6, 0.7, 0.8)) is not adapted
        assert thresholds == tuple(sorted(thresholds))
        assert thresholds[-1] < 0.95


def test_workers_without_limit_or_spill_buffer_are_not_changed() -> None:
    for limit, data in ((None, {}), (1 << 28, {})):
        worker: Any = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=limit), data=data)
        spill_within_budget(worker)
        assert vars(worker.memory_manager) == {"memory_limit": limit}


@pytest.mark.cluster
def test_started_workers_have_lowered_spill_thresholds() -> None:
    limit = 600 << 20
    with gd.connect(options=gd.ClusterOptions(workers=1, memory_limit=str(limit))) as client:
        (room,) = client.run(lambda dask_worker: dask_worker.data.n).values()
    # Dask's own is 0.6.
    assert 0 < room < 0.5 * limit
