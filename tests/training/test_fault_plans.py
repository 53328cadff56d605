"""Whatever happens to workers by a seeded plan, the network is that of a serial run, to the byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.fault_plans import ACTIONS, Disturber, plan_of
from support.village import SENTENCES, SMALL_PARTS, Undisturbed

import giaann_dask as gd
from giaann_dask.cluster import ClusterOptions
from giaann_dask.spec import PLACEMENTS
from giaann_dask.training.training_options import Exchange

PLANS = 20
# Together these hold every action.
IN_CI = (7, 18)


def test_fault_plans_have_every_action_several_times() -> None:
    plans = [plan_of(seed) for seed in range(PLANS)]
    assert plans == [plan_of(seed) for seed in range(PLANS)]
    assert all(2 <= len(plan) <= 4 for plan in plans)
    counts = Counter(step.action for plan in plans for step in plan)
    assert set(counts) == set(ACTIONS)
    assert min(counts.values()) >= 4
    assert {step.action for seed in IN_CI for step in plans[seed]} == set(ACTIONS)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "seed", [seed if seed in IN_CI else pytest.param(seed, marks=pytest.mark.slow) for seed in range(PLANS)]
)
def test_a_disturbed_network_is_the_undisturbed_one(seed: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    text, corpus, expected = undisturbed
    plan = plan_of(seed)
    # Half of the plans also split regions, keep all runs packed and forget old commits meanwhile.
    tight = {"region_bytes": 500_000, "hot_bytes": 0, "keep_commits": 3} if seed % 2 else {}
    # In a third of them owners fetch their parts from each other.
    exchange: Exchange = "auto" if seed % 3 else "workers"
    # Blocks of a corpus hold four times as much. A round of either is so small that none leaps to the end.
    source, block_characters = (text, 60_000) if seed % 4 == 3 else (corpus, 30_000)
    with gd.connect(options=ClusterOptions(workers=3, hang_timeout_s=2.0)) as client:
        disturber = Disturber(client, plan, SENTENCES)
        with disturber.disturbing() as observer:
            network = gd.train(
                source,
                tmp_path / "net",
                client=client,
                text=SMALL_PARTS,
                specification=gd.Specification(placement=PLACEMENTS[seed % 3]),
                options=gd.TrainingOptions(
                    batch_sequences=500,
                    block_characters=block_characters,
                    commit_seconds=0.5,
                    exchange=exchange,
                    **tight,
                ),
                observer=observer,
            )
            report = network.training_report
    assert report.sequences == SENTENCES
    assert (report.regions > 8) == bool(tight)
    assert [each.action for each in disturber.happened] == [step.action for step in plan]
    # Each began after some training and had its effect before the end of it.
    assert all(0 < each.before <= each.after < 1 for each in disturber.happened)
    assert network.export(tmp_path / "net.npz")[0].read_bytes() == expected
