"""Fits find laws and their errors, costs name what binds, and what does not fit is refused."""

from dataclasses import replace

import numpy as np
import pytest

from giaann_dask.errors import EmptyInputError, HardwareTooSmallError, OptionError
from giaann_dask.planning.costs import DECODED_BYTES, Costs, TrainingConfiguration, commit_interval, with_roles
from giaann_dask.planning.growth import Growth, PowerLaw, measure_growth
from giaann_dask.planning.hardware import COMPRESSED, Hardware, Link, Rates, WorkerKind
from giaann_dask.planning.search import PlanTarget, search
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import random_block
from giaann_dask.training import tasks
from giaann_dask.training.training_options import TrainingOptions

_SEQUENCES = 512
DEFAULT = TrainingConfiguration()


@pytest.fixture(scope="module")
def growth() -> Growth:
    return measure_growth([random_block(_SEQUENCES // 2, seed) for seed in (1, 2)], Specification(), 70_000)


def _hardware(**fields: object) -> Hardware:
    kind = WorkerKind(name="node", count=8, memory_bytes=16 << 30, cores=4, per_host=2)
    return Hardware(**{"workers": (kind,), "hosts_per_rack": 2, **fields})  # type: ignore[arg-type]


def _costs(growth: Growth, hardware: Hardware | None = None, sequences: float = 1e6) -> Costs:
    return Costs(growth=growth, hardware=hardware or _hardware(), sequences=sequences)


def test_a_law_is_found_with_its_error() -> None:
    rng = np.random.default_rng(1)
    x = 2.0 ** np.arange(3, 18)
    law = PowerLaw.fit(x.tolist(), (5 * x**0.7 * np.exp(rng.normal(0, 0.01, len(x)))).tolist())
    assert law.exponent == pytest.approx(0.7, abs=4 * law.exponent_error)
    assert 0 < law.exponent_error < 0.01
    assert law.inverse(law.at(1234.0)) == pytest.approx(1234.0)


def test_a_sample_is_counted_exactly(growth: Growth) -> None:
    blocks = [random_block(_SEQUENCES // 2, seed) for seed in (1, 2)]
    (whole,) = tasks.count_batch(blocks, Placement(1), Specification(), ()).values()
    packed = tasks.pack_run(whole)
    assert growth.trained == _SEQUENCES
    assert growth.pairs == _SEQUENCES * 25 * 24 // 2
    # The law passes near the last of the exact counts that it was fitted to.
    assert growth.connections.at(_SEQUENCES) == pytest.approx(len(packed.connections), rel=0.05)
    assert growth.packed_bytes.at(_SEQUENCES) == pytest.approx(packed.nbytes, rel=0.3)
    assert growth.connections.error < 0.2
    assert 0.5 < growth.columns.exponent < 1 < -2 * growth.zipf.exponent


def test_batches_touch_fewer_regions_than_they_have_columns(growth: Growth) -> None:
    one, *_, most = growth.batches["corpus"]
    assert (one.sequences, most.sequences) == (1, 256)
    assert one.nbytes > most.nbytes / most.sequences
    # Sequences of 25 tokens in columns of four.
    for placement in ("hash", "co-occurrence"):
        assert growth.touched_regions("corpus", 1, placement, 1024) <= 7
        assert growth.touched_regions("corpus", 256, placement, 4) == 4
    assert growth.region_share("hash", 1) == 1
    assert growth.region_share("hash", 64) > 1 / 64


def test_a_sample_that_is_too_small_is_refused() -> None:
    with pytest.raises(EmptyInputError, match="a sample of 9 sequences"):
        measure_growth([random_block(9)], Specification(), 1000)


@pytest.mark.parametrize(
    ("changed", "binding"),
    [
        ({"rates": Rates(tasks_per_s=0.1)}, "scheduler"),
        ({"rates": Rates(driver_per_s=10)}, "driver"),
        ({"links": {"rack": Link(bandwidth=1e4)}}, "links of tier rack"),
        ({"links": {"host": Link(bandwidth=1e4)}}, "links of tier host"),
        ({"links": {"site": Link(bandwidth=1e4)}}, "links of tier site"),
        ({"links": {"site": Link(bandwidth=1e9, latency=1e3)}}, "latency of rounds"),
        ({"rates": Rates(driver_per_s=1e9, driver_message_s=1e-9)}, "workers"),
    ],
)
def test_the_limit_that_binds_is_named(growth: Growth, changed: dict[str, object], binding: str) -> None:
    estimate = _costs(growth, _hardware(**changed)).estimate(TrainingConfiguration())
    assert estimate.binding.name == binding
    assert estimate.rate <= min(limit.rate for limit in estimate.limits)
    assert estimate.binding.moved_by


def test_more_bandwidth_moves_the_limit_and_the_workers_that_saturate_it(growth: Growth) -> None:
    slow, fast = (
        _costs(growth, with_roles(_hardware(links={"rack": Link(bandwidth=rate)}), 0.5)).estimate(
            TrainingConfiguration()
        )
        for rate in (1e6, 4e6)
    )
    assert fast.rate == pytest.approx(4 * slow.rate)
    assert fast.compute_workers == pytest.approx(4 * slow.compute_workers)
    # Half the workers store: nothing stays with the worker that has counted it. Blocks of 25 tokens move, too.
    increment = growth.increment_bytes("corpus", 8192) / 8192
    near, far = increment + 25 * 24, COMPRESSED * increment + 25 * 5
    assert slow.tier_bytes["host"] / near + (slow.tier_bytes["rack"] + slow.tier_bytes["site"]) / far == pytest.approx(
        1
    )


def test_the_last_round_is_sent_when_nothing_else_is_done(growth: Growth) -> None:
    links = {"rack": Link(bandwidth=1e5)}
    costs = _costs(growth, with_roles(_hardware(links=links), 0.5), sequences=1000)
    found, fast = (
        costs.estimate(DEFAULT),
        _costs(growth, with_roles(_hardware(), 0.5), sequences=1000).estimate(DEFAULT),
    )
    (limit,) = (limit for limit in found.limits if limit.name == "links of tier rack")
    assert found.seconds - fast.seconds == pytest.approx(1000 / limit.rate, rel=0.05)


def test_a_text_of_one_batch_is_counted_and_sent_by_one_worker(growth: Growth) -> None:
    # Four hosts of one worker compute, and four store.
    kind = WorkerKind(name="node", count=8, memory_bytes=16 << 30)
    costs = _costs(growth, with_roles(_hardware(workers=(kind,), hosts_per_rack=8), 0.5), sequences=8192)
    one, many = (costs.estimate(TrainingConfiguration(batch_sequences=size, regions=1024)) for size in (8192, 512))
    sent = [each.link_bytes_per_s["rack"] / each.rate for each in (one, many)]
    assert sent[0] == pytest.approx(one.tier_bytes["rack"])
    assert sent[1] < 0.5 * many.tier_bytes["rack"]


def test_small_batches_cost_tasks_and_an_exchange_between_workers_saves_them(growth: Growth) -> None:
    costs = _costs(growth, sequences=1e5)
    large, small = (costs.estimate(TrainingConfiguration(batch_sequences=size, regions=1024)) for size in (8192, 1))
    assert small.tasks > 100 * large.tasks
    by_tasks, by_workers = (
        costs.estimate(TrainingConfiguration(batch_sequences=256, regions=1024, exchange=way))
        for way in ("tasks", "workers")
    )
    assert by_workers.tasks < by_tasks.tasks / 2


def test_a_small_training_takes_its_start_its_first_block_and_its_commit(growth: Growth) -> None:
    hardware = _hardware(rates=Rates(start_s=7.0, commit_s=5.0))
    found = [_costs(growth, hardware, number).estimate(DEFAULT) for number in (1, 100, 10_000, 1e6, 1e7)]
    assert found[0].seconds == pytest.approx(7.0 + 5.0, rel=0.01)
    seconds = [estimate.seconds for estimate in found]
    assert seconds == sorted(seconds)
    # What is trained while the first blocks are encoded is not counted again.
    last, before = found[-1], found[-2]
    assert last.seconds - before.seconds == pytest.approx(1e7 / last.rate - 1e6 / before.rate, rel=0.1)


def test_all_processes_of_one_host_share_its_cores(growth: Growth) -> None:
    kind = WorkerKind(name="node", count=4, memory_bytes=16 << 30, per_host=4)
    rates = Rates(driver_per_s=20_000, rounds_busy=0.8)
    found = {}
    for cores in (0, 2, 64):
        hardware = _hardware(workers=(replace(kind, host_cores=cores),), rates=rates)
        found[cores] = _costs(growth, hardware).estimate(DEFAULT)
    shared = found[2]
    assert shared.binding.name == "cores of the host"
    driver_s = next(1 / limit.rate for limit in shared.limits if limit.name == "driver")
    assert 0.8 * 2 / shared.rate == pytest.approx(sum(shared.stages.values()) + driver_s)
    assert shared.seconds > found[64].seconds
    # Of hosts of which it is not known, only threads count.
    assert not any(limit.name == "cores of the host" for limit in found[0].limits)


def test_a_message_to_each_worker_costs_the_driver_more_than_its_tasks(growth: Growth) -> None:
    kind = WorkerKind(name="node", count=2, memory_bytes=16 << 30, per_host=2, host_cores=2)
    seconds = {}
    for message_s in (1e-9, 0.009):
        rates = Rates(driver_per_s=1e15, tasks_per_s=1000.0, driver_message_s=message_s)
        costs = _costs(growth, _hardware(workers=(kind,), rates=rates), sequences=8192)
        found = costs.estimate(TrainingConfiguration(batch_sequences=512, regions=4, exchange="tasks"))
        (limit,) = (limit for limit in found.limits if limit.name == "driver")
        seconds[message_s] = 8192 / limit.rate
    # Sixteen batches on two workers are eight rounds of at most six steps; each block of text has messages, too.
    blocks = costs.characters / TrainingOptions().block_characters
    assert seconds[0.009] - seconds[1e-9] == pytest.approx((8 * 12 + 5 * blocks) * 9e-3, rel=0.01)


def test_the_work_of_a_commit_is_done_once(growth: Growth) -> None:
    kind = WorkerKind(name="node", count=1, memory_bytes=16 << 30, host_cores=1)
    # Nothing but packing takes time.
    quick = dict.fromkeys(("text_per_s", "driver_per_s", "tasks_per_s", "written_bytes_per_s"), 1000000000000000.0)
    none = dict.fromkeys(("start_s", "commit_s", "commit_region_s", "run_s", "task_s"), 1e-9)
    none |= {"driver_message_s": 1e-9, "worker_message_s": 1e-9}
    always = {"rounds_busy": 1.0, "commit_busy": 1.0}
    rates = Rates(packed_bytes_per_s=1e3, batch_sizes=(1,), counted_per_s=(1e15,), **quick, **none, **always)
    costs = _costs(growth, _hardware(workers=(kind,), rates=rates), sequences=1000)
    found = costs.estimate(DEFAULT)
    assert found.seconds == pytest.approx(found.stages["pack"] * 1000, rel=0.01)
    assert found.last_commit_s == pytest.approx(found.seconds, rel=0.01)


def test_failures_decide_when_to_commit() -> None:
    assert commit_interval(10, 1e6) == pytest.approx((2 * 10 * 1e6) ** 0.5, rel=0.01)
    assert commit_interval(10, 4) == 4


def test_commits_that_last_longer_than_workers_are_reported(growth: Growth) -> None:
    kinds = [replace(_hardware().workers[0], hours_between_failures=hours) for hours in (1e6, 1.0)]
    found = [_hardware(workers=(kind,), rates=Rates(commit_s=3600.0)) for kind in kinds]
    texts = [search(_costs(growth, hardware)).summary().text() for hardware in found]
    assert ["between two failures" in text for text in texts] == [False, True]


def test_links_limit_the_tokens_of_a_network_that_no_worker_holds(growth: Growth) -> None:
    target = PlanTarget(columns=1_000_000, column_bytes=1 << 20)
    found = []
    for bandwidth in (1e9, 1e15):
        links = {tier: Link(bandwidth=bandwidth) for tier in ("host", "rack", "site")}
        hardware = _hardware(links={**_hardware().links, **links})
        found.append(target.costs(growth, hardware, 1.0).estimate(DEFAULT))
    slow, fast = found
    row = growth.used_row * slow.network_bytes / growth.connection_bytes * DECODED_BYTES
    assert slow.tokens_per_s < 1e9 * _hardware().compute_workers / row < fast.tokens_per_s


def test_what_does_not_fit_is_refused_with_both_sizes(growth: Growth) -> None:
    target = PlanTarget(columns=1_000_000, column_bytes=1 << 30)
    plan = search(target.costs(growth, _hardware(), 1.0), columns=1_000_000)
    assert not plan.estimate.fits
    assert plan.estimate.network_bytes == (1 << 30) * 1e6
    with pytest.raises(HardwareTooSmallError, match=r"a worker of kind 'node.*' would need .* TiB and has 16.0 GiB"):
        plan.require_fit()
    with_disks = replace(_hardware().workers[0], disk_bytes=1 << 60)
    assert search(target.costs(growth, _hardware(workers=(with_disks,)), 1.0)).estimate.fits


def test_a_plan_says_how_to_train_so_and_why(growth: Growth) -> None:
    plan = search(_costs(growth, _hardware(rates=Rates(tasks_per_s=1.0))), command="giaann-dask train a.txt")
    plan.require_fit()
    others = [_costs(growth, plan.hardware).estimate(TrainingConfiguration())]
    assert all(plan.estimate.seconds <= other.seconds for other in others)
    assert plan.command.startswith("giaann-dask train a.txt --")
    chosen = plan.options(TrainingOptions(commit_seconds=5))
    assert chosen.commit_seconds == 5
    assert chosen.batch_sequences == plan.estimate.configuration.batch_sequences
    assert plan.specification(Specification()).regions == plan.estimate.configuration.regions
    shown = str(plan)
    assert plan.estimate.binding.name in shown
    assert "held-out error" in shown
    assert plan.as_dict()["command"] == plan.command


@pytest.mark.parametrize("given", [{"columns": 5}, {"sequences": 1, "columns": 1, "column_bytes": 1}])
def test_targets_are_of_one_kind(given: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="expected either sequences, or columns and column_bytes"):
        PlanTarget(**given)


def test_workers_of_both_roles_are_divided() -> None:
    divided = with_roles(_hardware(), 0.25)
    assert [(kind.role, kind.count) for kind in divided.workers] == [("storage", 2), ("compute", 6)]
    assert with_roles(divided, 0.5) == divided
