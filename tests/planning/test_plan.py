"""A plan says whether a training fits, what limits it and how few machines do as much, and its command runs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.errors import HardwareTooSmallError, OptionError
from giaann_dask.planning.estimate import TrainingPlan
from giaann_dask.planning.hardware import TARGET, Hardware, Machines

_MACHINES = Machines(count=40, memory_bytes=64 << 30, cores=8, workers=8)


@pytest.fixture(scope="module")
def small() -> TrainingPlan:
    return gd.plan(sample_text(), hardware=Hardware(machines=(_MACHINES,)), sample_sequences=400)


def _of(plan: TrainingPlan, times: float, **fields: object) -> TrainingPlan:
    """Return the plan of a text that is so many times as long, on machines with other fields."""
    hardware = Hardware(machines=(replace(_MACHINES, **fields),))  # type: ignore[arg-type]
    whole = float(plan.growth.size.sum())
    return replace(plan, hardware=hardware, size=times * whole, characters=times * whole)


def test_the_whole_text_as_sample_is_known_exactly(small: TrainingPlan, tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        network = gd.train(sample_text(), tmp_path / "network", client=client)
    assert small.sequences.likely == network.training_report.sequences
    assert small.connections == (network.manifest.connections,) * 3


def test_machines_beyond_the_limit_would_idle(small: TrainingPlan) -> None:
    plan = _of(small, 1e5)
    assert plan.binding == "driver"
    assert plan.fits()
    assert 1 <= plan.smallest < 10
    fewer = _of(small, 1e5, count=plan.smallest)
    assert fewer.rate > 0.95 * plan.rate
    assert f"{40 - plan.smallest} of your 40 would idle" in str(plan)
    slow = _of(small, 1e5, speed=1e-3)
    assert (slow.binding, slow.smallest) == ("cores of the workers", 40)


def test_workers_are_filled_up_to_the_target_of_dask(small: TrainingPlan) -> None:
    plan = _of(small, 1e4)
    (need,) = plan.memory()
    for share, fits in ((0.95, False), (1.05, True)):
        machine = {"memory_bytes": int(share * need.nbytes.high / TARGET), "workers": 1}
        assert _of(small, 1e4, count=320, **machine).fits() is fits


def test_what_does_not_fit_says_how_many_machines_would(small: TrainingPlan) -> None:
    plan = _of(small, 1e10)
    with pytest.raises(HardwareTooSmallError, match=r"60% of its 8\.0 GiB.*describe about [\d,]+ such machines"):
        plan.require_fit()
    assert "does not fit" in str(plan)
    assert "would idle" not in str(plan)
    with pytest.raises(HardwareTooSmallError, match="describe larger workers"):
        _of(small, 10, memory_bytes=1000).require_fit()


def test_the_driver_and_a_single_machine_are_planned(small: TrainingPlan) -> None:
    assert _of(small, 1e6).driver_bytes > _of(small, 10).driver_bytes > 200 << 20
    # Its cores are those of driver and scheduler, too.
    one = _of(small, 100, count=1, workers=1, cores=1)
    rates = one.hardware.rates
    alone = one.characters / rates.driver_characters_per_s
    assert one.limits()["cores of the workers"].likely > one.limits()["driver"].likely > 0.99 * alone


@pytest.mark.parametrize(("name", "value"), [("sequences", 0), ("sequences", 10**20), ("sample_sequences", 10**20)])
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(OptionError, match=f"{name} is {value}"):
        gd.plan(sample_text(), hardware=Hardware(machines=(_MACHINES,)), **{name: value})


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    return code, *capsys.readouterr()


def test_an_encoded_corpus_is_not_to_be_encoded_and_the_command_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "network").mkdir()
    with gd.connect(workers=0) as client:
        gd.encode(sample_text(), "a corpus", client=client)
    options = ["--workers", "0", "--set", "regions=16"]
    code, out, _ = _run(capsys, "plan", "a corpus", *options, "--sample-sequences", "200", "--json")
    found = json.loads(out)
    assert code == 0
    assert "encode" not in found["raised_by"]
    assert found["sequences"]["low"] == found["sequences"]["likely"]
    command = shlex.split(found["command"])
    assert command == ["giaann-dask", "train", "a corpus", "--network", "network-2", *options]
    assert _run(capsys, *command[1:])[0] == 0
    network = gd.open("network-2")
    assert network.specification.regions == 16
    connections = found["connections"]
    assert connections["low"] <= network.manifest.connections <= connections["high"]


def test_machines_of_a_file_are_started_by_printed_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[[machines]]\ncount = 40\nmemory_bytes = "64 GiB"\ncores = 8\nworkers = 8\nrole = "both"\n')
    arguments = ["plan", str(sample_text()), "--hardware", str(path), "--sample-sequences", "400"]
    code, out, _ = _run(capsys, *arguments)
    assert code == 0
    for told in ("--nworkers 8 --nthreads 1 --memory-limit 8589934592", "--scheduler-file scheduler.json", "60%"):
        assert told in out
    path.write_text('[[machines]]\ncount = 1\nmemory_bytes = "1 apple"\n')
    code, _, error = _run(capsys, *arguments)
    assert (code, error.count("\n")) == (2, 1)
    assert "'memory_bytes' is '1 apple'" in error
