"""The real `LocalCUDACluster` of dask-cuda with our options, on a machine without a GPU.

NVML, RMM, the context of CUDA and the device of tensors are stubs, so that a device seems to be there; dask-cuda, its
workers and its plugins are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NVML = """
import os
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


NVMLError_LibraryNotFound = NVMLError_DriverNotLoaded = NVMLError_Unknown = NVMLError_NotFound = NVMLError
NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1
contexts = []


def unsupported(*arguments):
    raise NVMLError_NotSupported


def processes(device):
    return [SimpleNamespace(pid=os.getpid())] if device in contexts else []


nvmlInit = lambda: None
nvmlSystemGetDriverVersion = lambda: "600.0"
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: int(index)
nvmlDeviceGetUUID = lambda device: f"GPU-{device}"
nvmlDeviceGetIndex = lambda device: device
nvmlDeviceGetName = lambda device: "none"
nvmlDeviceGetMemoryInfo = lambda device: SimpleNamespace(total=16 << 30, free=15 << 30, used=1 << 30)
nvmlDeviceGetUtilizationRates = lambda device: SimpleNamespace(gpu=0, memory=0)
nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetComputeRunningProcesses_v2 = processes
nvmlDeviceGetMigMode = nvmlDeviceGetCpuAffinity = nvmlDeviceIsMigDeviceHandle = unsupported
"""
CUDA = """
import os

import pynvml


class Device:
    def set_current(self):
        pynvml.contexts.append(int(os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0]))
"""
RMM = """
called = []

def reinitialize(**options):
    called.append(options)
"""
TORCH_ALLOCATOR = """
import torch

from giaann_dask.models.columns import rules
from giaann_dask.training import tasks

rmm_torch_allocator = "rmm"
# Where CUDA would be asked for a device, in workers that have this allocator alone.
tasks.select_device = lambda name: torch.device("cpu")
rules.select_device = lambda name: None
torch.cuda.memory.change_current_allocator = lambda allocator: setattr(torch, "giaann_allocator", allocator)
"""
STUBS = {
    "pynvml.py": NVML,
    "cuda/__init__.py": "",
    "cuda/core/__init__.py": CUDA,
    "rmm/__init__.py": RMM,
    "rmm/allocators/__init__.py": "",
    "rmm/allocators/torch.py": TORCH_ALLOCATOR,
}
SCRIPT = """
import json, sys
from pathlib import Path

import torch
from dask.utils import key_split
from distributed.diagnostics.plugin import SchedulerPlugin

import giaann_dask as gd
from giaann_dask.data import sample_test_text
from giaann_dask.diagnostics.checkup import check_cluster

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1


def current_device():
    raise AssertionError("the client has made a context on a device, before the workers")


torch.cuda.current_device = current_device


class Places(SchedulerPlugin):
    name = "places"

    def __init__(self):
        self.found = {}

    def transition(self, key, start, finish, *arguments, worker=None, **options):
        if start == "processing" and finish == "memory":
            self.found.setdefault(key_split(key), set()).add(worker)


def state(dask_worker):
    import os, sys

    return {
        "resources": dict(dask_worker.state.total_resources),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "pools": [each["initial_pool_size"] for each in getattr(sys.modules.get("rmm"), "called", [])],
        "allocator": getattr(sys.modules.get("torch"), "giaann_allocator", None),
        "memory": dask_worker.memory_manager.memory_limit,
        "store": type(dask_worker.data).__name__,
        "forked": "giaann_dask.cluster.forked_modules" in sys.modules,
    }


folder = Path(sys.argv[1])
options = gd.ClusterOptions(workers=2, device="cuda", memory_limit="1GiB")
with gd.connect(options=options) as client:
    scheduler = client.cluster.scheduler
    scheduler.add_plugin(Places())
    accuracies = []
    for device in ("cuda", "cpu"):
        place = folder / device
        training = gd.TrainingOptions(device=device)
        network = gd.train(sample_test_text(), place, client=client, options=training, progress=False)
        network.export(folder / f"{device}.npz", compression="none")
        scoring = gd.EvaluationOptions(device=device, max_sequences=3)
        report = network.evaluate(sample_test_text(), client=client, options=scoring, progress=False)
        accuracies.append(report.as_dict())
        if device == "cuda":
            found = {name: sorted(map(str, (scheduler.workers[w].name for w in its)))
                     for name, its in scheduler.plugins["places"].found.items()}
    workers = client.run(state)
    doctor = [(each.check, each.found) for each in check_cluster(gd.ClusterOptions(scheduler=client.scheduler.address))]
same = (folder / "cuda.npz").read_bytes() == (folder / "cpu.npz").read_bytes()
alike = accuracies[0].keys() - {"seconds", "commit", "stages"}
same &= all(accuracies[0][name] == accuracies[1][name] for name in alike)
print(json.dumps({"workers": list(workers.values()), "places": found, "same": same, "doctor": doctor}))
"""


@pytest.mark.cluster
def test_devices_and_processors_share_a_training(tmp_path: Path) -> None:
    installed = Path(sys.prefix, "dask-cuda")
    if not installed.is_dir():
        pytest.skip("needs the code of dask-cuda, which make installs into the environment's folder")
    for name, text in STUBS.items():
        path = tmp_path / "stubs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    paths = [str(tmp_path / "stubs"), str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "script.py", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    devices = [each for each in result["workers"] if each["resources"] == {"GPU": 1}]
    others = [each for each in result["workers"] if each["resources"] == {"storage": 1, "compute": 1}]
    assert [each["devices"] for each in devices] == ["0"]
    # Half of the 16 GiB of a device.
    assert [(each["pools"], each["allocator"]) for each in devices] == [([8 << 30], "rmm")]
    assert [(each["devices"], each["pools"], each["forked"]) for each in others] == [(None, [], True)] * 2
    assert {(each["memory"], each["store"]) for each in result["workers"]} == {(1 << 30, "SpillBuffer")}
    assert not any(each["forked"] for each in devices), "a device is not used after a fork"
    # What devices compute is nowhere else, and nothing else is on devices.
    places = result["places"]
    assert (places.pop("sum"), places.pop("infer_together")) == (["0"], ["0"])
    assert {"tag", "encode", "count_batch", "integrate", "pairs", "commit"} <= places.keys()
    assert not {name: its for name, its in places.items() if not set(its) <= {"processor-0", "processor-1"}}
    assert result["same"]
    assert ["roles", "2 hold columns, 2 compute; 1 have a GPU"] in result["doctor"]
