"""Rates follow from the processor seconds of trainings as they were composed of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import giaann_dask as gd
from giaann_dask.cluster import results
from giaann_dask.cluster.stages import ProcessorTimes, processor_times
from giaann_dask.planning.hardware import Rates
from giaann_dask.planning.measured_trainings import (
    BLOCK_TASKS,
    CHAIN,
    COMMIT_TASKS,
    SPLIT_CHAIN,
    SPLIT_TASKS,
    CalibratedCluster,
    MeasuredTraining,
    rates_of,
)

RATES = Rates(
    driver_per_s=20_000.0,
    text_per_s=10_000.0,
    packed_bytes_per_s=50e6,
    written_bytes_per_s=100e6,
    tasks_per_s=500.0,
    driver_message_s=0.012,
    worker_message_s=0.007,
    start_s=0.1,
    commit_s=0.2,
    commit_region_s=0.03,
    run_s=0.02,
)
CLUSTER = CalibratedCluster(workers=2, block=1000.0)


def _training(blocks: int, regions: int, rounds: int = 1, tasks: int = 12) -> MeasuredTraining:
    """Return a training as it takes the rates of `RATES`, which begins with four regions."""
    sequences = int(blocks * CLUSTER.block)
    increments, written, split = 5_000 * sequences, 1_000 * sequences, regions - 4
    messages = BLOCK_TASKS * blocks + rounds * min(tasks, CHAIN * CLUSTER.workers)
    every = BLOCK_TASKS * blocks + rounds * tasks
    text_s, packing_s = sequences / RATES.text_per_s, increments / RATES.packed_bytes_per_s
    splitting = SPLIT_CHAIN * CLUSTER.workers if split else 0
    driver_s = 0.1 + regions * RATES.commit_region_s
    workers_s = packing_s + written / RATES.written_bytes_per_s + regions * RATES.run_s
    # The commit of a few sentences has the first four regions.
    commit_s = RATES.commit_s + split * RATES.commit_region_s + workers_s - 4 * RATES.run_s
    return MeasuredTraining(
        seconds=RATES.start_s + commit_s,
        commit_s=commit_s,
        rounds_s=RATES.start_s,
        rounds=ProcessorTimes(
            0.05 + sequences / RATES.driver_per_s + every / RATES.tasks_per_s + messages * RATES.driver_message_s,
            0.04 + text_s + 0.3 + every / RATES.tasks_per_s + messages * RATES.worker_message_s,
            {"tag": 0.8 * text_s, "encode": 0.2 * text_s, "count_batch": 0.3},
            {"tag": blocks},
        ),
        ending=ProcessorTimes(
            driver_s + splitting * RATES.driver_message_s,
            workers_s + splitting * RATES.worker_message_s,
            {"pack": packing_s},
            {},
        ),
        integrated=rounds,
        tasks=every + SPLIT_TASKS * split + COMMIT_TASKS * regions,
        regions=regions,
        trained=sequences,
        increment_bytes=increments,
        written_bytes=written,
    )


def _large(regions: int = 8) -> tuple[MeasuredTraining, MeasuredTraining]:
    return _training(4, regions), _training(9, regions)


SMALL, DIVIDED = [_training(0, 4)] * 3, _training(2, 4, 16, 20)


@pytest.mark.parametrize("regions", [4, 8])
def test_rates_of_trainings_are_found_again(regions: int) -> None:
    found = rates_of(SMALL, _large(regions), DIVIDED, RATES, CLUSTER)
    assert found == pytest.approx({name: getattr(RATES, name) for name in found})
    assert {"driver_per_s", "text_per_s", "driver_message_s", "packed_bytes_per_s", "run_s"} <= found.keys()


def test_cores_of_the_only_host_are_busy_for_a_share_of_the_time() -> None:
    small, large = SMALL[0], _training(9, 8)
    rounds, ending = (
        each[1].driver + each[1].workers - each[0].driver - each[0].workers
        for each in ((small.rounds, large.rounds), (small.ending, large.ending))
    )
    # Regions are split before the commit, in steps that wait for each other.
    rounds_s, ending_s = rounds / (2 * 0.7), ending / (2 * 0.5) + SPLIT_CHAIN * RATES.task_s
    large = large._replace(rounds_s=small.rounds_s + rounds_s, seconds=small.seconds + rounds_s + ending_s)
    larger = _training(4, 8), large
    found = rates_of(SMALL, larger, DIVIDED, RATES, CLUSTER._replace(cores=2))
    assert (found["rounds_busy"], found["commit_busy"]) == pytest.approx((0.7, 0.5))
    # Links that carried increments for some of the time are no cores that waited.
    linked = larger[0], large._replace(rounds_s=large.rounds_s + 3.0, seconds=large.seconds + 3.0)
    cluster = CLUSTER._replace(cores=2, sending_s=3.0)
    assert rates_of(SMALL, linked, DIVIDED, RATES, cluster) == pytest.approx(found)
    # Of many cores, as many count as there are blocks or regions, and the driver.
    more = rates_of(SMALL, larger, DIVIDED, RATES, CLUSTER._replace(cores=64))
    assert (more["rounds_busy"], more["commit_busy"]) == pytest.approx((0.14, 1 / 9))
    assert "rounds_busy" not in rates_of(SMALL, larger, DIVIDED, RATES, CLUSTER)


def test_other_work_on_the_machine_does_not_lengthen_a_start() -> None:
    small = SMALL[0]
    slow = replace_times(small, 5.0)
    found = rates_of([slow, small, small], _large(), DIVIDED, RATES, CLUSTER)
    assert found["start_s"] == pytest.approx(RATES.start_s)
    assert found["commit_s"] == pytest.approx(RATES.commit_s)


def replace_times(training: MeasuredTraining, more_s: float) -> MeasuredTraining:
    """Return a training that waited for processors, in its rounds and in its commit."""
    return training._replace(seconds=training.seconds + 2 * more_s, commit_s=training.commit_s + more_s)


def test_a_training_of_nothing_but_small_ones_leaves_rates_of_text_as_they_are() -> None:
    found = rates_of(SMALL, (SMALL[0], SMALL[0]), SMALL[0], replace(RATES, commit_region_s=0.5), CLUSTER)
    assert "driver_per_s" not in found
    assert "text_per_s" not in found


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
