"""A worker of three that is judged far slower loses its work and regions, or is retired; the network is the same."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import worker_speeds
from giaann_dask.cluster.worker_speeds import STEPS, Work
from giaann_dask.events import Event, RegionsMeasured, WorkerJudged
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training import slow_workers
from giaann_dask.training.slow_workers import SlowWorkers, retire_worker

# Blocks of about 20 sentences.
OPTIONS = gd.TrainingOptions(batch_sequences=20, block_characters=1200, rounds_in_flight=1)
TEXT = gd.TextOptions(reading=ReadOptions(part_characters=1200))


@pytest.mark.cluster
def test_a_slow_worker_is_only_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sooner than elsewhere, so that the text is short.
    for module in (worker_speeds, slow_workers):
        monkeypatch.setattr(module, "ROUNDS", 1)
    text, rule = write_village(tmp_path / "village.txt", 600), gd.Specification(regions=4)
    events: list[Event] = []
    measured: list[Mapping[str, Work]] = []
    review = SlowWorkers.review
    with gd.connect(workers=3) as client:
        slow, *others = sorted(client.scheduler_info(n_workers=-1)["workers"])
        # Measured times of small tasks would depend on what else the processors do.
        judging = {slow: Work(1e7, 8.0)} | dict.fromkeys(others, Work(1e7, 1.0))

        def told(workers: SlowWorkers, number: int, work: Mapping[str, Work], present: Set[str], *needed: Any) -> Any:
            measured.append(work)
            return review(workers, number, judging, present, *needed)

        monkeypatch.setattr(SlowWorkers, "review", told)
        network = gd.train(
            text, tmp_path / "net", client=client, specification=rule, text=TEXT, options=OPTIONS,
            observer=events.append,
        )  # fmt: skip
        exported = network.export(tmp_path / "net.npz").connections.read_bytes()
        workers = SlowWorkers("retire", partial(retire_worker, client))
        for number in range(20):
            review(workers, number, judging, {slow, *others})
        assert set(client.scheduler_info(n_workers=-1)["workers"]) == set(others)
    judged = [(event.worker, event.step, event.cause) for event in events if isinstance(event, WorkerJudged)]
    assert judged == [(slow, step, "compute") for step in STEPS[1:3]]
    assert list(network.training_report.slow_workers) == [slow]
    *_, last = (event for event in events if isinstance(event, RegionsMeasured))
    assert slow not in {region.owner for region in last.regions}
    # It is the sixth review that leaves it without batches of later rounds, of which one is submitted already.
    assert sum(work[slow].nbytes for work in measured[8:]) > 0
    with gd.connect(workers=0) as client:
        plain = gd.train(text, tmp_path / "plain", client=client, specification=rule)
        assert plain.export(tmp_path / "plain.npz").connections.read_bytes() == exported
