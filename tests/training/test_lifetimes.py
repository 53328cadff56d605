"""A worker that ends by its own option (``dask worker --lifetime``) is trained on with commits before that."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import giaann_dask as gd
from giaann_dask.cluster.resilience import shortest_lifetime_s
from giaann_dask.data import sample_text
from giaann_dask.training.trainer import CommitSchedule
from giaann_dask.training.training_options import TrainingOptions


@pytest.mark.parametrize(("lifetime", "interval"), [("20 s", "5.0 s"), (None, ""), ("1 hour", "")])
def test_commits_come_before_the_end_of_workers(
    lifetime: str | None, interval: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster = LocalCluster(n_workers=1, processes=False, dashboard_address=":0", lifetime=lifetime)
    with cluster, Client(cluster) as client:
        assert shortest_lifetime_s(client) == {"20 s": 20, "1 hour": 3600, None: math.inf}[lifetime]
        gd.train(sample_text(), tmp_path / "net", client=client, max_sequences=5)
    said = [record.getMessage() for record in caplog.records if "a worker ends after" in record.getMessage()]
    assert len(said) == bool(interval)
    assert all(f"every {interval}, and not every 60 s" in each and "block_characters" in each for each in said)


def test_shorter_intervals_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    CommitSchedule(TrainingOptions(commit_seconds=3.0), lifetime_s=20.0)
    assert not caplog.records
