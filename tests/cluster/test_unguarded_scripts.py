"""Scripts that connect outside ``if __name__ == "__main__":`` work, however they are run and workers are started."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

import giaann_dask as gd
from giaann_dask.cluster.fork_server import METHOD_VARIABLE
from giaann_dask.errors import ClusterError
from giaann_dask.library_internals import skip_main_import

pytestmark = pytest.mark.cluster

# The README's example; classes and functions of the script reach workers, also the one that replaces a killed one.
TRAINING = """
import os
import sys
from dataclasses import dataclass

import giaann_dask as gd

print("started", flush=True)


@dataclass(frozen=True)
class Doubled:
    number: int


def doubled(number):
    return Doubled(2 * number)


with gd.connect(workers=2) as client:
    network = gd.train(sys.argv[1], sys.argv[2], client=client)
    print("trained", network.training_report.trained)
    print(network.generate("The old miller carried the flour", client=client).text)
    before = set(client.run(os.getpid).values())
    client.submit(lambda: os.kill(os.getpid(), 9) if os.getpid() in before else None, pure=False).result()
    assert client.submit(doubled, 4).result() == Doubled(8)
"""

ASKING = """
import giaann_dask as gd

print("started", flush=True)


def doubled(number):
    return 2 * number


with gd.connect(workers=1) as client:
    print(client.submit(doubled, 4).result())
"""

# dask-cuda's cluster is one of Dask's with a worker for each GPU; here there is none, and workers start as one would.
CUDA = """
import sys
import types

import torch
from distributed import LocalCluster

import giaann_dask as gd

print("started", flush=True)


class LocalCUDACluster(LocalCluster):
    def __init__(self, device_memory_limit, rmm_pool_size, rmm_allocator_external_lib_list, **options):
        super().__init__(**options)


torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.device_count = lambda: 1
sys.modules["rmm"] = types.ModuleType("rmm")
sys.modules["dask_cuda"] = types.SimpleNamespace(LocalCUDACluster=LocalCUDACluster)
with gd.connect(options=gd.ClusterOptions(workers=1, device="cuda")) as client:
    print(client.submit(lambda number: 2 * number, 4).result())
"""


def run(arguments: list[str], folder: Path, script: str | None = None, **variables: str) -> str:
    """Return what a Python process prints, which must end with code 0 and tell nothing of a traceback."""
    environment: Mapping[str, str] = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        input=script,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_example_of_the_readme_as_a_script(tmp_path: Path) -> None:
    text = Path(__file__).resolve().parents[2] / "giaann_dask" / "data" / "sample_test.txt"
    (tmp_path / "script.py").write_text(TRAINING, encoding="utf-8")
    printed = run(["script.py", str(text), "my.network"], tmp_path).splitlines()
    assert printed.count("started") == 1
    assert [line.split()[0] for line in printed[:2]] == ["started", "trained"]
    assert printed[2]


@pytest.mark.parametrize(("way", "method"), [("-m", "forkserver"), ("-c", "spawn"), ("-", "spawn")])
def test_every_way_to_run_a_script(way: str, method: str, tmp_path: Path) -> None:
    (tmp_path / "module_of_a_test.py").write_text(ASKING, encoding="utf-8")
    arguments = {"-m": ["-m", "module_of_a_test"], "-c": ["-c", ASKING], "-": ["-"]}[way]
    printed = run(arguments, tmp_path, ASKING, **{METHOD_VARIABLE: method})
    assert printed.split() == ["started", "8"]


def test_workers_with_a_gpu_do_not_import_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CUDA, encoding="utf-8")
    assert run(["script.py"], tmp_path).split() == ["started", "8"]


def test_other_processes_still_import_the_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def popen(process: BaseProcess) -> SimpleNamespace:
        told.append(any(key.startswith("init_main") for key in spawn.get_preparation_data("a process")))
        return SimpleNamespace(sentinel=0)

    context = multiprocessing.get_context("spawn")
    monkeypatch.setattr(context.Process, "_Popen", staticmethod(popen))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="a_script"))
    ours, other = (context.Process(target=print) for _ in range(2))
    skip_main_import(ours)
    for process in (ours, other):
        process.start()
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    assert told == [False, True]


def test_a_child_that_imports_an_unguarded_script_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ClusterError, match='if __name__ == "__main__":'):
        gd.connect(workers=1)
    with pytest.raises(ClusterError, match='if __name__ == "__main__":'):
        gd.start_cluster({"storage": 1, "compute": 1}, gd.ClusterOptions())
