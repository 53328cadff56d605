"""Worker processes begin as copies of one process: quickly, with their own environment, and after any death."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import giaann_dask as gd
from giaann_dask.cluster import memory_budget
from giaann_dask.cluster.fork_server import METHOD_VARIABLE, default_method
from giaann_dask.cluster.memory_budget import adopt_allocator, allocator_environment
from giaann_dask.text.tagging import make_tagger

LARGEST_INT = (1 << 31) - 1


def describe() -> dict[str, Any]:
    """Return what a worker process is: asked for in the workers."""
    tasks = Path("/proc") / str(os.getppid()) / "task"
    return {
        "parent": os.getppid(),
        "threads of the parent": len(list(tasks.iterdir())),
        "imported": [name for name in ("torch", "spacy", "zarr", "numba") if name in sys.modules],
        "taggers": make_tagger.cache_info().currsize,
        "hash": hash("a word"),
        "frozen": gc.get_freeze_count() > 100_000 and gc.isenabled(),
        "environment": dict(os.environ),
    }


BLOCKED_SIGNALS = """
from multiprocessing import forkserver
from pathlib import Path
from giaann_dask.cluster import fork_server

fork_server.MODULES = ()
fork_server.begin_fork_server({})
status = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_fork_server_ignores_ctrl_c() -> None:
    blocked = subprocess.check_output([sys.executable, "-c", BLOCKED_SIGNALS], text=True)
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1


IMPORTED = """
import sys
import giaann_dask as gd

if __name__ == "__main__":
    gd.connect(workers=1).close()
    print([name for name in ("pandas", "torch", "bokeh", "spacy") if name in sys.modules])
"""


@pytest.mark.cluster
def test_starting_workers_imports_nothing_that_this_process_does_not_use(tmp_path: Path) -> None:
    script = tmp_path / "connect.py"
    script.write_text(IMPORTED)
    assert subprocess.check_output([sys.executable, script], text=True).strip() == "[]"


# In a process of its own: another test may have started the fork server of this one with other variables.
DESCRIBED = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import giaann_dask as gd
from test_forking import describe

if __name__ == "__main__":
    found = []
    for value in ("first", "second"):
        os.environ["GIAANN_OF_A_TEST"] = value
        with gd.connect(workers=2) as client:
            found.append(list(client.run(describe).values()))
    print(json.dumps([os.getpid(), found]))
"""


@pytest.mark.cluster
def test_workers_are_forked_from_the_fork_server(tmp_path: Path) -> None:
    script = tmp_path / "describe.py"
    script.write_text(DESCRIBED)
    folder = str(Path(__file__).parent)
    printed = subprocess.check_output([sys.executable, script, folder], text=True, timeout=200)
    process, both = json.loads(printed.splitlines()[-1])
    found: list[dict[str, Any]] = []
    for value, now in zip(("first", "second"), both, strict=True):
        assert [one["environment"]["GIAANN_OF_A_TEST"] for one in now] == [value, value], "as it is now"
        found += now
    assert {one["parent"] for one in found} != {process}
    assert len({one["parent"] for one in found}) == 1
    assert {one["threads of the parent"] for one in found} == {1}, "forking with threads is not safe"
    # Tensors are not computed there, and spaCy is for pipelines only.
    assert all(one["imported"] == ["zarr", "numba"] for one in found)
    assert all(one["taggers"] == 1 for one in found), "the lists of words are loaded once for all workers"
    assert len({one["hash"] for one in found}) == 1
    assert all(one["frozen"] for one in found), "modules are not collected"


@pytest.mark.slow
@pytest.mark.cluster
def test_a_killed_fork_server_is_restarted() -> None:
    with gd.connect(workers=1) as client:
        (before,) = client.run(describe).values()
    server = psutil.Process(before["parent"])
    server.kill()
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    with gd.connect(workers=1) as client:
        (after,) = client.run(describe).values()
    assert after["parent"] != before["parent"]
    assert after["hash"] == before["hash"]
    assert after["environment"]["MALLOC_ARENA_MAX"] == "1"


def test_malloc_uses_the_variables_of_its_worker_unless_they_are_those_of_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[int, int] = {}
    monkeypatch.setattr(memory_budget.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=calls.__setitem__))
    worker: Any = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=1 << 32))
    for name, value in allocator_environment(1 << 30).items():
        monkeypatch.setenv(name, value)
    adopt_allocator(worker)
    trim, pad, mapped, arenas = -1, -2, -4, -8
    assert calls == {trim: 1 << 28, pad: 1 << 24, mapped: 0, arenas: 1}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(LARGEST_INT + 1))
    monkeypatch.setenv("MALLOC_TOP_PAD_", "no number")
    calls.clear()
    adopt_allocator(worker)
    assert calls == {trim: -1, mapped: 0, arenas: 1}
    for name in allocator_environment(1 << 30):
        monkeypatch.delenv(name)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    adopt_allocator(worker)
    assert calls == {trim: 1 << 30, pad: 1 << 26, mapped: 0, arenas: 1}


def test_the_configured_start_method_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METHOD_VARIABLE, raising=False)
    assert default_method() == {"multiprocessing-method": "forkserver"}
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    assert default_method() == {}
