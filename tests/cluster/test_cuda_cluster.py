"""The real `LocalCUDACluster` of dask-cuda with our options, on a machine without a GPU.

NVML, RMM and the context of CUDA are stubs, so that two devices seem to be there; dask-cuda, its workers and its
plugins are the real ones.
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
nvmlDeviceGetCount = lambda: 2
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

rmm_torch_allocator = "rmm"
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
import json, os, sys
from pathlib import Path

import torch

import giaann_dask as gd
from giaann_dask.cluster.connecting import wants_cuda
from giaann_dask.data import sample_test_text
from giaann_dask.errors import OptionError

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2


def current_device():
    raise AssertionError("the client has made a context on a device, before the workers")


torch.cuda.current_device = current_device


def state():
    import rmm
    import torch

    return {
        "devices": os.environ["CUDA_VISIBLE_DEVICES"],
        "pools": [options["initial_pool_size"] for options in rmm.called],
        "allocator": torch.giaann_allocator,
    }


try:
    gd.connect(options=gd.ClusterOptions(workers=3, device="cuda"))
except OptionError as error:
    print(error)
print(wants_cuda(gd.ClusterOptions(workers=3)), wants_cuda(gd.ClusterOptions(workers=2)))
with gd.connect(options=gd.ClusterOptions(workers=2, device="cuda")) as client:
    network = gd.train(sample_test_text(), Path(sys.argv[1], "network"), client=client)
    found = client.run(state)
print(json.dumps({"workers": list(found.values()), "connections": network.manifest.connections}))
"""


@pytest.mark.cluster
def test_workers_have_a_device_and_a_pool_each(tmp_path: Path) -> None:
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
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    refused, chosen, found = done.stdout.splitlines()
    assert chosen == "False True", "more workers than devices are ordinary ones, unless CUDA is asked for"
    assert "3 workers and 2 CUDA devices: starting ordinary workers" in done.stderr
    assert refused.startswith("workers is 3, and there are 2 CUDA devices; expected one worker for each device")
    result = json.loads(found)
    assert sorted(each["devices"] for each in result["workers"]) == ["0,1", "1,0"]
    # Half of the 16 GiB of a device.
    assert [each["pools"] for each in result["workers"]] == [[8 << 30]] * 2
    assert [each["allocator"] for each in result["workers"]] == ["rmm"] * 2
    assert result["connections"] > 5_000
