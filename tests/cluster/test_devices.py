"""Workers with a GPU beside others: who runs what, in a cluster of threads whose device is the CPU's tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dask.utils import key_split
from distributed import Client, Scheduler, SpecCluster, Worker
from distributed.diagnostics.plugin import SchedulerPlugin

import giaann_dask as gd
from giaann_dask.api import calibration
from giaann_dask.cluster import connecting
from giaann_dask.cluster.connecting import wants_cuda
from giaann_dask.cluster.devices import DeviceShare, describe_machine, read_speeds, write_speeds
from giaann_dask.cluster.roles import BOTH_ROLES, GPU, Roles
from giaann_dask.data import sample_test_text
from giaann_dask.errors import OptionError
from giaann_dask.models.columns import rules
from giaann_dask.training import tasks

pytestmark = pytest.mark.cluster


class Places(SchedulerPlugin):  # type: ignore[misc]
    """Workers that have run tasks, by the prefix of their keys."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}

    def transition(self, key: Any, start: str, finish: str, *arguments: Any, **options: Any) -> None:
        """Note the worker of a task that has ended."""
        if start == "processing" and finish == "memory":
            self.found.setdefault(key_split(key), set()).add(options["worker"])


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "select_device", lambda name: None if name == "cpu" else torch.device("cpu"))
    monkeypatch.setattr(rules, "select_device", lambda name: None)


def started(*resources: dict[str, float]) -> Iterator[tuple[Client, Places]]:
    """Start a worker in a thread for each set of resources, as a cluster of the user's own."""
    options = {"nthreads": 1, "dashboard": False, "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    specs = {
        number: {"cls": Worker, "options": {**options, "resources": its, "name": f"{number} {'+'.join(its)}"}}
        for number, its in enumerate(resources)
    }
    scheduler = {"cls": Scheduler, "options": {"protocol": "inproc", "dashboard": False, "dashboard_address": ":0"}}
    with SpecCluster(workers=specs, scheduler=scheduler) as cluster, Client(cluster, set_as_default=False) as client:
        places = Places()
        cluster.scheduler.add_plugin(places)
        yield client, places


def train(client: Client, place: Path, device: Any) -> tuple[gd.Network, bytes]:
    options = gd.TrainingOptions(device=device)
    network = gd.train(sample_test_text(), place, client=client, options=options, regions=2, progress=False)
    network.export(place.with_suffix(".npz"), compression="none")
    return network, place.with_suffix(".npz").read_bytes()


def names(places: Places, client: Client) -> dict[str, set[str]]:
    """Return the names of the workers that tasks of each prefix have run on."""
    workers = client.cluster.scheduler.workers
    return {prefix: {str(workers[address].name) for address in its} for prefix, its in places.found.items()}


@pytest.mark.parametrize("declared", [{}, BOTH_ROLES], ids=["nothing", "both roles"])
def test_workers_with_a_gpu_alone_run_dense_tasks_alone(declared: dict[str, float], tmp_path: Path) -> None:
    for client, places in started({GPU: 1}, declared, declared):
        network, exported = train(client, tmp_path / "device", "cuda")
        scoring = gd.EvaluationOptions(device="cuda", max_sequences=5)
        accuracy = network.evaluate(sample_test_text(), client=client, options=scoring).accuracy
        found = names(places, client)
        assert found.pop("sum") == found.pop("infer_together") == {"0 GPU"}
        assert {"tag", "encode", "count_batch", "integrate", "pairs", "pack", "commit"} <= found.keys()
        assert not {prefix: its for prefix, its in found.items() if "0 GPU" in its}
        places.found.clear()
        assert train(client, tmp_path / "cpu", "cpu")[1] == exported
        scoring = gd.EvaluationOptions(device="cpu", max_sequences=5)
        assert network.evaluate(sample_test_text(), client=client, options=scoring).accuracy == accuracy
        assert not {prefix: its for prefix, its in names(places, client).items() if "0 GPU" in its}


def test_workers_of_one_kind_do_everything(tmp_path: Path) -> None:
    for client, places in started({GPU: 1}):
        train(client, tmp_path / "device", "cuda")
        assert {"tag", "count_batch", "sum", "commit"} <= places.found.keys()


def test_cuda_without_a_worker_that_declares_a_gpu(tmp_path: Path) -> None:
    for client, _ in started({}):
        with pytest.raises(OptionError, match=r"no worker of the cluster declares a GPU; .* the resource GPU"):
            train(client, tmp_path / "network", "cuda")
        assert not (tmp_path / "network").exists()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of speeds in a cache of its own, with trials of few sequences."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "_SEQUENCES", 9)
    monkeypatch.setattr(calibration, "SEQUENCES_PER_TASK", 9)
    monkeypatch.setattr(calibration, "TASKS_ON_DEVICE", 1)
    return tmp_path / "giaann_dask" / "device-speeds.json"


def test_auto_measures_once_and_then_does_what_is_quicker(cache: Path, tmp_path: Path) -> None:
    for client, places in started({GPU: 1}, BOTH_ROLES):
        train(client, tmp_path / "first", "cpu")
        assert not cache.exists()
        network, exported = train(client, tmp_path / "second", "auto")
        (machine,) = json.loads(cache.read_text())
        assert json.loads(machine)["versions"]["torch"] == metadata.version("torch")
        measured = read_speeds(describe_machine())
        assert measured.keys() == {"sum", "infer_together"}
        assert min(measured.values()) > 0
        scoring = gd.EvaluationOptions(max_sequences=5)
        for speed, expected in ((0.9, "processor"), (9.0, "device")):
            write_speeds(machine, dict.fromkeys(measured, speed))
            places.found.clear()
            trained, same = train(client, tmp_path / expected, "auto")
            report = network.evaluate(sample_test_text(), client=client, options=scoring)
            assert same == exported
            found = names(places, client)
            assert "make" not in found, "what has been measured is not measured again"
            on_device = {"sum", "infer_together"} if expected == "device" else set()
            assert {prefix for prefix, its in found.items() if its == {"0 GPU"}} == on_device
            stages = {**trained.training_report.stages, **report.stages}
            assert {name for name, time in stages.items() if time.place == "device"} == on_device
            assert {"tag", "count_batch", "pack"} <= stages.keys()
            assert min(time.seconds for time in stages.values()) >= 0 < max(time.seconds for time in stages.values())
            assert ("on devices" in str(trained.training_report)) == ("on devices" in str(report)) == bool(on_device)
            assert json.loads(json.dumps(report.as_dict()))["stages"]["tag"]["place"] == "processor"


def test_a_device_that_is_slower_is_not_started(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "finds_cuda", lambda name: name != "cpu")
    monkeypatch.setattr(connecting, "import_optional", lambda *names: None)
    cluster = {device: gd.ClusterOptions(workers=1, device=device) for device in ("auto", "cpu", "cuda")}
    for speeds, expected in (({}, True), ({"sum": 0.9, "infer_together": 1.1}, True), ({"sum": 0.9}, False)):
        write_speeds(describe_machine(), speeds)
        assert wants_cuda(cluster["auto"]) == expected
        assert wants_cuda(cluster["cuda"])
        assert not wants_cuda(cluster["cpu"])
    write_speeds("another machine", {"sum": 7.0})
    assert read_speeds(describe_machine()) == {"sum": 0.9}
    cache.write_text("damaged")
    assert read_speeds(describe_machine()) == {}
    assert wants_cuda(cluster["auto"])


def test_devices_take_as_many_tasks_as_they_finish_meanwhile() -> None:
    roles, futures = Roles(("a",), ("a",), devices=("b", "c")), [SimpleNamespace(done=lambda: False) for _ in range(5)]
    for tasks_of_each, expected in ((0, 0), (1, 2), (2, 4), (math.inf, 5)):
        share, taken = DeviceShare(tasks_of_each), 0
        for future in futures:
            if share.place(roles) is not None:
                taken += 1
                share.add(future)  # type: ignore[arg-type]
        assert taken == expected
    futures[0].done = lambda: True
    assert DeviceShare(math.inf).place(Roles(("a",), ("a",))) is None
    share = DeviceShare(1)
    for future in futures[:2]:
        share.add(future)  # type: ignore[arg-type]
    assert share.place(roles) == {"resources": {GPU: 1e-3}}
