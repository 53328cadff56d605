"""However increments reach regions, the network is the same; what differs is the number of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Future, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import results
from giaann_dask.cluster.worker_services import install_service, remove_service
from giaann_dask.events import Observer, RoundIntegrated, ignore
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.store import manifest as manifests
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training import exchange
from giaann_dask.training.region_tasks import divide
from giaann_dask.training.training_options import Exchange, RoundShape, choose_exchange, expected_tasks
from giaann_dask.training.training_report import TrainingReport

REGIONS = 16
# Blocks of about 20 sentences.
SMALL = {"batch_sequences": 20, "block_characters": 1200, "rounds_in_flight": 2}
counts = st.integers(1, 5000)


@given(counts, counts, counts)
def test_the_rule_never_makes_more_tasks(batches: int, owners: int, regions: int) -> None:
    shape = RoundShape.full(batches, owners, regions)
    chosen = choose_exchange("auto", shape)
    assert expected_tasks(shape, chosen) <= expected_tasks(shape, "tasks")
    assert [choose_exchange(way, shape) for way in ("tasks", "workers")] == ["tasks", "workers"]
    more = RoundShape.full(batches, owners, 2 * regions)
    assert chosen == "tasks" or choose_exchange("auto", more) == "workers"


@given(st.lists(st.integers(0, 100)), st.integers(0, 200))
def test_groups_of_regions_hold_each_once_within_their_bytes(weights: list[int], most: int) -> None:
    groups = divide(range(len(weights)), weights, most)
    assert [region for group in groups for region in group] == list(range(len(weights)))
    assert all(len(group) == 1 or sum(weights[region] for region in group) <= most for group in groups)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of several rounds."""
    return write_village(tmp_path_factory.mktemp("text") / "village.txt", 120)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster in this process."""
    with gd.connect(workers=0) as client:
        yield client


def train(
    client: Client,
    text: Path,
    path: Path,
    exchange: Exchange,
    monkeypatch: pytest.MonkeyPatch,
    observer: Observer = ignore,
    **options: object,
) -> tuple[bytes, TrainingReport]:
    """Train a network that begins with all its regions; return what it exports, and the report."""
    monkeypatch.setattr(manifests, "FIRST_REGIONS", REGIONS)
    network = gd.train(
        text,
        path,
        client=client,
        specification=gd.Specification(regions=REGIONS),
        text=gd.TextOptions(reading=ReadOptions(part_characters=1200)),
        options=gd.TrainingOptions(exchange=exchange, **{**SMALL, **options}),
        observer=observer,
    )
    return network.export(path.with_suffix(".npz")).connections.read_bytes(), network.training_report


@pytest.mark.cluster
def test_both_ways_make_the_same_network(
    client: Client, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, plain = train(client, text, tmp_path / "tasks", "tasks", monkeypatch)
    together, few = train(client, text, tmp_path / "workers", "workers", monkeypatch)
    assert together == exported
    assert plain.regions == few.regions == REGIONS
    # At the end, a commit opens each region.
    assert few.tasks - REGIONS < (plain.tasks - REGIONS) / 3
    # With commits between the rounds, splits, and runs that are packed at once.
    tight = {"commit_sequences": 80, "hot_bytes": 0, "region_bytes": 20_000, "keep_commits": 2}
    divided, report = train(client, text, tmp_path / "tight", "workers", monkeypatch, **tight)
    assert report.regions > REGIONS
    assert divided == exported
    # Of a block of text on one worker that is the choice.
    block = {"block_characters": 1 << 18, "batch_sequences": 8192}
    whole, fewest = train(client, text, tmp_path / "block", "auto", monkeypatch, **block)
    assert whole == exported
    assert fewest.tasks < REGIONS + 12


@pytest.fixture(scope="module")
def three() -> Iterator[Client]:
    """Three workers, in this process."""
    with (
        LocalCluster(n_workers=3, processes=False, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as found,
    ):
        yield found


@pytest.mark.cluster
def test_owners_fetch_their_parts_by_a_message_to_each_worker(
    client: Client, three: Client, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = train(client, text, tmp_path / "one", "workers", monkeypatch)
    asked: list[tuple[str, str]] = []

    async def counted(worker: Any, address: str, connect_s: float, message: dict[str, Any]) -> Any:
        asked.extend((worker.address, key) for key in message["keys"])
        return await sent(worker, address, connect_s, message)

    sent = exchange.send_message
    monkeypatch.setattr(exchange, "send_message", counted)
    rounds: list[RoundIntegrated] = []
    exported, report = train(three, text, tmp_path / "three", "workers", monkeypatch, observer=rounds.append)
    assert exported == expected
    rounds = [event for event in rounds if isinstance(event, RoundIntegrated)]
    assert len(rounds) > 1
    # Each owner and batch of another worker once, so with three batches no more than six; no part has a task.
    assert len(asked) == len(set(asked)) > 0
    assert len(asked) <= 6 * len(rounds)
    assert "route" not in report.stages
    assert report.tasks < 6 * report.messages / len(rounds)


@pytest.mark.cluster
def test_increments_that_are_lost_are_counted_again(three: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a sum of them has the offers made again, also where others depend on the sum."""
    monkeypatch.setattr(exchange, "LOST_AFTER_S", 0.1)
    OFFERED.clear()
    service = install_service(three, exchange.PartService)
    counted = three.submit(dict, [(0, increment(3))], key="counted")
    offered = three.submit(offer_late, counted, "counted", pure=False)
    table = three.submit(exchange.collect, [0], offered, workers=[owner_apart(three, counted)])
    total = three.submit(lambda table: len(table.runs[0].connections), table)
    del counted, offered, table
    assert results([total]) == [3]
    assert OFFERED == ["counted", "counted"]
    remove_service(three, service)


# Increments that were offered, of this process.
OFFERED: list[str] = []


def offer_late(increments: exchange.Parts, key: str) -> exchange.Offer:
    """Offer increments, the first time as if they had been on a worker that is gone."""
    OFFERED.append(key)
    offered = exchange.offer(increments, key)
    return offered if len(OFFERED) > 1 else exchange.Offer("nowhere", "tcp://127.0.0.1:9")


def increment(connections: int) -> RegionRun:
    """What a batch adds to a region."""
    target = np.arange(connections)
    return RegionRun(
        Run(np.array([7]), np.array([0, connections]), target, np.ones(connections, np.int32)), Run.empty()
    )


def owner_apart(client: Client, future: Future) -> str:
    """Return a worker that does not have a result."""
    (holder,) = client.who_has([future.result(30) and future])[future.key]
    return str(min(set(client.scheduler_info(n_workers=-1)["workers"]) - {holder}))
