"""Rates follow from the processor seconds of trainings as they were composed of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import giaann_dask as gd
from giaann_dask.cluster import results
from giaann_dask.cluster.stages import ProcessorTimes, processor_times
from giaann_dask.planning.hardware import Rates
from giaann_dask.planning.measured_trainings import COMMIT_TASKS, SPLIT_TASKS, MeasuredTraining, rates_of

RATES = Rates(
    driver_per_s=20_000.0,
    text_per_s=10_000.0,
    packed_bytes_per_s=50e6,
    written_bytes_per_s=100e6,
    tasks_per_s=500.0,
    task_work_s=0.01,
    start_s=0.1,
    commit_s=0.2,
    commit_region_s=0.03,
    run_s=0.02,
)
BLOCK = 1000.0


def _training(blocks: int, regions: int, tasks: int) -> MeasuredTraining:
    """Return a training as it takes the rates of `RATES`, which begins with four regions."""
    sequences = int(blocks * BLOCK)
    increments, written, split = 5_000 * sequences, 1_000 * sequences, (regions - 4) * SPLIT_TASKS
    text_s, task_s = sequences / RATES.text_per_s, tasks / RATES.tasks_per_s
    packing_s = increments / RATES.packed_bytes_per_s
    driver_s = RATES.commit_s + regions * RATES.commit_region_s
    splitting_s = split * RATES.task_work_s / 2
    workers_s = packing_s + written / RATES.written_bytes_per_s + regions * RATES.run_s
    return MeasuredTraining(
        seconds=RATES.start_s + driver_s + workers_s,
        commit_s=driver_s + workers_s,
        rounds_s=RATES.start_s,
        rounds=ProcessorTimes(
            0.05 + sequences / RATES.driver_per_s + tasks * RATES.task_work_s / 2,
            0.04 + text_s + 0.3 + task_s,
            {"tag": 0.7 * text_s, "encode": 0.1 * text_s, "count_batch": 0.3},
            {"tag": blocks},
        ),
        ending=ProcessorTimes(driver_s + splitting_s, workers_s + splitting_s, {"pack": packing_s}, {}),
        tasks=tasks + split + COMMIT_TASKS * regions,
        regions=regions,
        trained=sequences,
        increment_bytes=increments,
        written_bytes=written,
    )


@pytest.mark.parametrize("regions", [4, 8])
def test_rates_of_trainings_are_found_again(regions: int) -> None:
    small = _training(0, 4, 8)._replace(rounds=ProcessorTimes(0.05 + 8 * 0.005, 0.04, {}, {}))
    found = rates_of([small] * 3, [_training(9, regions, 28)], RATES, BLOCK)
    wanted = {name: getattr(RATES, name) for name in found}
    # Tasks of the small trainings are a part of their time, not of that of their text.
    assert found.pop("text_per_s") == pytest.approx(wanted.pop("text_per_s"), rel=0.05)
    assert found == pytest.approx(wanted)
    assert {"driver_per_s", "packed_bytes_per_s", "written_bytes_per_s", "run_s"} <= found.keys()


def test_cores_of_the_only_host_are_busy_for_a_share_of_the_time() -> None:
    small, large = _training(0, 4, 8), _training(9, 8, 28)
    rounds, ending = (
        each[1].driver + each[1].workers - each[0].driver - each[0].workers
        for each in ((small.rounds, large.rounds), (small.ending, large.ending))
    )
    rounds_s, ending_s = rounds / (2 * 0.7), ending / (2 * 0.5)
    large = large._replace(rounds_s=small.rounds_s + rounds_s, seconds=small.seconds + rounds_s + ending_s)
    # One that waited longer, as for other processes, says less.
    larger = [replace_times(large, 5.0), large]
    found = rates_of([small] * 3, larger, RATES, BLOCK, cores=2)
    assert (found["rounds_busy"], found["commit_busy"]) == pytest.approx((0.7, 0.5))
    # Of many cores, as many count as there are blocks or regions, and the driver.
    more = rates_of([small] * 3, larger, RATES, BLOCK, cores=64)
    assert (more["rounds_busy"], more["commit_busy"]) == pytest.approx((0.14, 1 / 9))
    assert "rounds_busy" not in rates_of([small] * 3, larger, RATES, BLOCK)


def test_other_work_on_the_machine_does_not_lengthen_a_start() -> None:
    small = _training(0, 4, 8)
    slow = replace_times(small, 5.0)
    found = rates_of([slow, small, slow], [_training(9, 8, 28)], RATES, BLOCK)
    assert found["start_s"] == pytest.approx(RATES.start_s)
    assert found["commit_s"] == pytest.approx(RATES.commit_s)


def replace_times(training: MeasuredTraining, more_s: float) -> MeasuredTraining:
    """Return a training that waited for processors, in its rounds and in its commit."""
    return training._replace(seconds=training.seconds + 2 * more_s, commit_s=training.commit_s + more_s)


def test_a_training_of_nothing_but_small_ones_leaves_rates_of_text_as_they_are() -> None:
    small = _training(0, 4, 8)
    assert "driver_per_s" not in rates_of([small], [small], replace(RATES, commit_region_s=0.5), BLOCK)


@pytest.mark.cluster
@pytest.mark.parametrize("workers", [0, 2])
def test_processor_times_are_of_every_process(workers: int) -> None:
    with gd.connect(workers=workers) as client:
        before = processor_times(client)
        results([client.submit(sum, range(100_000 + number), key=f"adding-{number}") for number in range(5)])
        spent = processor_times(client).since(before)
    assert spent.counts["adding"] == 5
    assert 0 < spent.tasks["adding"] <= spent.workers
    assert spent.driver > 0
