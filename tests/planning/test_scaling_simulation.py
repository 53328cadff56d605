"""The simulation of ``benchmarks/scaling.py`` runs, counts every sequence once, and finds what limits many workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import random_block

pytest.importorskip("simpy", reason="needs simpy")


def test_more_workers_than_the_scheduler_serves_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from simulation.configuration import TrainingConfiguration
    from simulation.curves import simulate_scaling
    from simulation.events import SimulationOptions
    from simulation.growth import measure_growth
    from simulation.hardware import Hardware, Rates, WorkerKind
    from simulation.workloads import SequenceSample

    blocks = [random_block(256, seed) for seed in (1, 2)]
    sample = SequenceSample.of(blocks, measure_growth(blocks, Specification(), 70_000))
    kind = WorkerKind(name="node", count=1, memory_bytes=16 << 30, per_host=2)
    hardware = Hardware(workers=(kind,), rates=Rates(tasks_per_s=50.0))
    configuration, options = TrainingConfiguration(batch_sequences=16, exchange="workers"), SimulationOptions(rounds=4)
    report = simulate_scaling(sample, hardware, configuration, options, (1, 4, 32))
    assert [point.training.sequences for point in report.points] == [4 * 16 * size for size in (1, 4, 32)]
    assert report.points[-1].cause == "scheduler"
    assert report.points[-1].efficiency < 0.5
    assert "scheduler" in report.text()
