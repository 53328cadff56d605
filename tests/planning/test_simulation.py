"""Simulations count every sequence once, load no link beyond its bandwidth, and find why more workers do not help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giaann_dask.diagnostics.pictures.charts import draw_scaling
from giaann_dask.errors import OptionError
from giaann_dask.planning import simulation
from giaann_dask.planning.costs import TrainingConfiguration
from giaann_dask.planning.growth import measure_growth
from giaann_dask.planning.hardware import SHARED_TIERS, Hardware, Link, Rates, Tier, WorkerKind
from giaann_dask.planning.scaling import CHOSEN, ScalingReport, simulate_scaling
from giaann_dask.planning.simulated_cluster import SharedLinks
from giaann_dask.planning.simulation import SimulatedTraining, SimulationOptions, simulate_training
from giaann_dask.planning.workloads import LiveRegions, SequenceSample, owners_of
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import random_block

pytest.importorskip("simpy", reason="needs simpy (extra plan)")

_ROUNDS = 6


@pytest.fixture(scope="module")
def workload() -> SequenceSample:
    blocks = [random_block(256, seed) for seed in (1, 2)]
    return SequenceSample.of(blocks, measure_growth(blocks, Specification(), 70_000))


def _hardware(workers: int = 12, **fields: Any) -> Hardware:
    kind = WorkerKind(name="node", count=workers, memory_bytes=16 << 30, per_host=2)
    return Hardware(**{"workers": (kind,), "hosts_per_rack": 2, **fields})


def _simulate(workload: SequenceSample, hardware: Hardware | None = None, **fields: Any) -> SimulatedTraining:
    names = TrainingConfiguration.__dataclass_fields__
    configuration = TrainingConfiguration(**{name: value for name, value in fields.items() if name in names})
    others = {name: value for name, value in fields.items() if name not in names}
    options = SimulationOptions(**{"rounds": _ROUNDS, **others})
    return simulate_training(workload, hardware or _hardware(), configuration, options)


_CHOICES = {
    "batch_sequences": st.sampled_from([1, 16]),
    "accumulate": st.sampled_from([1, 3]),
    "exchange": st.sampled_from(["tasks", "workers"]),
    "order": st.sampled_from(["corpus", "random", "least-overlap"]),
    "placement": st.sampled_from(["hash", "co-occurrence"]),
    "stragglers": st.sampled_from([0.0, 0.3]),
    "commit_seconds": st.sampled_from([0.1, 60.0]),
}


@given(st.fixed_dictionaries(_CHOICES), st.sampled_from([0.02, 50_000.0]), st.integers(0, 99))
def test_whatever_fails_each_sequence_is_counted_once_and_no_link_carries_more_than_it_can(
    workload: SequenceSample, fields: dict[str, Any], hours: float, seed: int
) -> None:
    hardware = _hardware(links={"rack": Link(bandwidth=1e7, latency=1e-3)})
    kind = replace(hardware.workers[0], hours_between_failures=hours)
    hardware = replace(hardware, workers=(kind,))
    moved: list[_Moved] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedLinks, "carry", _recording(moved))
        found = _simulate(workload, hardware, seed=seed, **fields)
    wanted = 12 * fields["batch_sequences"] * fields["accumulate"] * _ROUNDS
    assert found.sequences == wanted
    assert found.digest == _simulate(workload, hardware, seed=seed, **fields).digest
    last: dict[tuple[str, bool, int], float] = {}
    for each in moved:
        for link in np.unique(each.number[each.nbytes > 0]).tolist():
            at, way = each.number == link, (each.tier, each.received, link)
            begin, end = max(each.begin[at].max(), last.get(way, 0.0)), each.end[at].max()
            most = hardware.links[each.tier].bandwidth * (end - begin)
            assert each.nbytes[at].sum() <= most * (1 + 1e-9) + 1
            last[way] = end
    for tier in SHARED_TIERS:
        ways = {
            received: sum(each.nbytes.sum() for each in moved if (each.tier, each.received) == (tier, received))
            for received in (False, True)
        }
        assert ways[True] == pytest.approx(ways[False])


class _Moved(NamedTuple):
    """Bytes of each worker that links of a tier carried, with the number of its link, and when they began and ended."""

    tier: Tier
    received: bool
    number: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.float64]
    begin: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]


def _recording(moved: list[_Moved]) -> Callable[..., Any]:
    carry = SharedLinks.carry

    def record(self: SharedLinks, tier: Tier, received: bool, nbytes: Any, begin: Any) -> Any:
        end = carry(self, tier, received, nbytes, begin)
        number = self.numbers[tier]
        moved.append(_Moved(tier, received, number, nbytes, np.broadcast_to(begin, number.shape), end))
        return end

    return record


def test_another_seed_has_other_events(workload: SequenceSample) -> None:
    assert len({_simulate(workload, seed=seed, stragglers=0.3).digest for seed in range(4)}) == 4


def test_work_that_is_lost_is_done_again(workload: SequenceSample) -> None:
    kind = WorkerKind(name="node", count=4, memory_bytes=16 << 30, hours_between_failures=0.01)
    found = _simulate(workload, Hardware(workers=(kind,)), rounds=200, batch_sequences=64)
    calm = _simulate(workload, _hardware(4), rounds=200, batch_sequences=64)
    assert found.sequences == calm.sequences
    assert found.failures > 0 < found.recounted
    assert (calm.failures, calm.recounted) == (0, 0)
    assert found.seconds > calm.seconds


def test_driver_and_scheduler_share_the_cores_of_the_only_host(workload: SequenceSample) -> None:
    rates = Rates(tasks_per_s=20.0, rounds_busy=1.0)
    kind = WorkerKind(name="node", count=4, memory_bytes=16 << 30, per_host=4)
    seconds = {}
    for cores in (1, 64):
        hardware = Hardware(workers=(replace(kind, host_cores=cores),), rates=rates)
        seconds[cores] = _simulate(workload, hardware, rounds=4, batch_sequences=64).rounds_s
    # What the scheduler does is as long as the rounds on enough cores, and comes to the work of a single core.
    work = _simulate(
        workload,
        Hardware(workers=(replace(kind, host_cores=1),), rates=replace(rates, tasks_per_s=1e9)),
        rounds=4,
        batch_sequences=64,
    )
    assert seconds[1] == pytest.approx(seconds[64] + work.rounds_s, rel=0.1)


def _knee(workload: SequenceSample, exchange: Any = "workers", **fields: Any) -> ScalingReport:
    return simulate_scaling(
        workload,
        _hardware(**fields),
        TrainingConfiguration(batch_sequences=256, exchange=exchange),
        SimulationOptions(rounds=3),
        (2, 8, 32, 128),
    )


@pytest.mark.parametrize(
    ("slower", "cause"),
    [
        ({"links": {"rack": Link(bandwidth=2e5)}}, "links of tier rack"),
        ({"rates": Rates(tasks_per_s=60.0)}, "scheduler"),
    ],
)
def test_the_knee_comes_earlier_where_something_is_slower_and_is_named(
    workload: SequenceSample, slower: dict[str, Any], cause: str
) -> None:
    quick = {"rates": Rates(tasks_per_s=1e6, task_s=1e-6), "links": {"rack": Link(bandwidth=2e8, latency=1e-6)}}
    fast, slow = _knee(workload, **quick), _knee(workload, **{**quick, **slower})
    early, late = slow.knee(), fast.knee()
    assert early is not None
    assert early.cause == cause
    assert late is None or late.at_once > early.at_once
    assert slow.points[-1].rate < fast.points[-1].rate


def test_exchange_between_workers_has_tasks_in_proportion_to_workers(workload: SequenceSample) -> None:
    tasks = {
        (exchange, workers): _simulate(
            workload, _hardware(workers), batch_sequences=256, exchange=exchange, regions=workers, rounds=2
        ).tasks
        for exchange in ("tasks", "workers")
        for workers in (16, 64)
    }
    assert tasks["workers", 64] / tasks["workers", 16] == pytest.approx(4, rel=0.15)
    assert tasks["tasks", 64] / tasks["tasks", 16] > 10


def test_placement_and_selection_are_those_of_training(workload: SequenceSample) -> None:
    shared = {
        order: _simulate(workload, order=order, batch_sequences=1, regions=256).shared_touches
        for order in ("random", "least-overlap")
    }
    assert shared["least-overlap"] < shared["random"]
    placed = workload.place(TrainingConfiguration(), 64, 12)
    owners = owners_of(_hardware(), LiveRegions(placed))
    assert np.bincount(owners, minlength=12).min() >= len(owners) // 12
    assert placed.share.sum() == pytest.approx(1)
    assert placed.share.max() <= 1 / 12 + 1e-9


def test_a_training_begins_with_few_regions_and_splits_those_that_grow(workload: SequenceSample) -> None:
    # The sample is trained once, on regions of which none is to have more than a few connections.
    with pytest.MonkeyPatch.context() as patch:
        found = {}
        for most in (1 << 40, 1 << 16):
            patch.setattr(simulation, "SMALL_BYTES", most)
            found[most] = _simulate(workload, _hardware(8), batch_sequences=64, rounds=None)
    whole, divided = found.values()
    assert whole.sequences == divided.sequences == len(workload.touches)
    # One round of eight batches, each of which touches all regions: four of them, until they are split.
    assert whole.messages == 8 * 4
    assert divided.tasks > whole.tasks
    drawn = _simulate(workload, _hardware(8), batch_sequences=64, rounds=1)
    assert drawn.messages > whole.messages, "rounds in the course of a training have all regions"


def test_live_regions_are_divided_evenly_until_each_is_one(workload: SequenceSample) -> None:
    placed = workload.place(TrainingConfiguration(), 16, 4)
    live = LiveRegions(placed, 4)
    assert len(live) == 4
    while not live.whole:
        shares = live.shares()
        assert sum(shares.values()) == pytest.approx(1)
        region = max((each for each in shares if live.is_divisible(each)), key=lambda each: shares[each])
        second = live.split(region)
        parts = live.shares()
        assert parts[region] + parts[second] == pytest.approx(shares[region])
    assert live.shares() == pytest.approx(dict(enumerate(placed.share)))


def test_slow_workers_and_full_memory_take_time(workload: SequenceSample) -> None:
    quick = {"batch_sequences": 2048, "rounds": 12}
    calm = _simulate(workload, **quick)
    assert _simulate(workload, stragglers=0.5, slowdown=8.0, **quick).rate < calm.rate
    full = _simulate(workload, network_bytes=12 << 40, **quick)
    assert full.rate < calm.rate
    assert full.memory_bytes > calm.memory_bytes + (1 << 39)


def test_slow_workers_are_judged_as_in_a_training(workload: SequenceSample) -> None:
    # One of four workers is slow.
    hardware = _hardware(4, rates=Rates(counted_per_s=(500.0, 5_000.0, 20_000.0, 20_000.0, 20_000.0)))
    options = {"stragglers": 0.25, "seed": 2, "batch_sequences": 8192, "rounds": 25}
    found = {
        reaction: _simulate(workload, hardware, slow_workers=reaction, **options)
        for reaction in ("report", "adapt", "retire")
    }
    assert {name: [*each.slow_workers] for name, each in found.items()} == {name: ["000000003"] for name in found}
    assert "gets less work" in found["report"].slow_workers["000000003"]
    assert "loses its regions" in found["adapt"].slow_workers["000000003"]
    assert found["adapt"].rate > 1.2 * found["report"].rate
    assert len({each.sequences for each in found.values()}) == 1
    # A quarter of the speed is enough to help, a sixth is not.
    far = _simulate(workload, hardware, slow_workers="retire", slowdown=6.0, **{**options, "rounds": 60})
    assert "is retired" in far.slow_workers["000000003"]
    assert _simulate(workload, hardware, **{**options, "stragglers": 0.0}).slow_workers == {}


def test_many_workers_are_a_few_events_each(workload: SequenceSample) -> None:
    found = _simulate(workload, _hardware(2000), rounds=2, exchange="workers")
    assert found.compute_workers == 2000
    assert found.events <= 2 * 2 * 2000 + 10


def test_a_report_is_a_table_and_a_picture(workload: SequenceSample) -> None:
    report = simulate_scaling(
        workload.with_columns(5000),
        _hardware(),
        TrainingConfiguration(batch_sequences=16),
        SimulationOptions(rounds=1),
        (2, 4),
        compare=True,
    )
    lines = report.csv().splitlines()
    assert len(lines) == 1 + len(report.points) == 1 + 2 * len(report.variants)
    assert report.variants[0] == CHOSEN
    assert {"exchange workers", "selection random"} <= {*report.variants}
    assert report.as_dict()["points"][0]["at_once"] == 32
    assert "knee" in report.summary().text()
    assert len(draw_scaling(report).axes) == 2


@pytest.mark.parametrize("sizes", [(), (4, 2), (0, 1)])
def test_sizes_that_are_not_ascending_are_refused(workload: SequenceSample, sizes: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="ascending numbers of workers"):
        simulate_scaling(workload, _hardware(), TrainingConfiguration(), SimulationOptions(), sizes)
