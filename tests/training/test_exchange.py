"""However increments reach regions, the network is the same; what differs is the number of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from support.village import write_village

import giaann_dask as gd
from giaann_dask.store import manifest as manifests
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training.exchange_rule import Exchange, RoundShape, choose_exchange, expected_tasks
from giaann_dask.training.region_tasks import divide
from giaann_dask.training.training_report import TrainingReport

REGIONS = 24
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
    return write_village(tmp_path_factory.mktemp("text") / "village.txt", 160)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster in this process."""
    with gd.connect(workers=0) as client:
        yield client


def train(
    client: Client, text: Path, path: Path, exchange: Exchange, monkeypatch: pytest.MonkeyPatch, **options: object
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
