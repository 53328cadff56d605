"""A cluster with other versions, or without certificates, is refused in one line before work begins."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster
from support.read_only import refuse_writing

import giaann_dask as gd
from giaann_dask import local_files
from giaann_dask.cluster.connecting import require_versions
from giaann_dask.errors import ClusterError

OURS = {
    "giaann_dask": "2", "python": "3.11.7.final.0", "dask": "1", "distributed": "1", "numpy": "2", "cloudpickle": "3",
}  # fmt: skip


class Cluster:
    """A client of a cluster whose processes report some versions."""

    def __init__(self, scheduler: dict[str, Any], *workers: dict[str, Any]) -> None:
        self.scheduler = SimpleNamespace(address="tcp://a:1")
        self._reported = {"client": OURS, "scheduler": OURS | scheduler, "asked": 0}
        self._workers = {f"tcp://a:{number}": OURS | found for number, found in enumerate(workers, 2)}
        self.asked = 0

    def _get_versions(self) -> None:
        raise AssertionError

    def sync(self, _: object, **__: object) -> dict[str, Any]:
        self.asked += 1
        named = {name: {"packages": self._reported[name]} for name in ("client", "scheduler")}
        return {**named, "workers": {name: {"packages": found} for name, found in self._workers.items()}}


def test_equal_versions_are_asked_for_once() -> None:
    cluster = Cluster({"python": "3.11.9.final.0"}, {})
    for _ in range(2):
        require_versions(cluster)  # type: ignore[arg-type]
    assert cluster.asked == 1


def test_what_differs_is_named_with_its_place() -> None:
    cluster = Cluster({"giaann_dask": None}, {}, {"giaann_dask": "1"}, {"python": "3.12.0"}, {"dask": "0"})
    with pytest.raises(ClusterError) as failure:
        require_versions(cluster)  # type: ignore[arg-type]
    said = str(failure.value)
    assert "the scheduler has giaann_dask none, not 2; worker tcp://a:3 has giaann_dask 1, not 2" in said
    assert "worker tcp://a:4 has python 3.12, not 3.11, and 1 more" in said
    assert "install giaann-dask 2" in said


def test_similar_packages_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    require_versions(Cluster({}, {"numpy": "1"}))  # type: ignore[arg-type]
    assert caplog.messages[0] == "worker tcp://a:2 has numpy 1, not 2"


def test_an_address_that_needs_certificates() -> None:
    with pytest.raises(ClusterError, match=r"tls://127.0.0.1:9 needs certificates.*ca-file"):
        gd.connect("tls://127.0.0.1:9")


def test_compiled_code_has_a_folder_where_nothing_else_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    # Set first, so that what the function sets is removed in the end.
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    local_files.provide_code_cache()
    assert "NUMBA_CACHE_DIR" not in os.environ, "the package's folder can be written"
    refuse_writing(monkeypatch)
    for _ in range(2):
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        local_files.provide_code_cache()
        folder = Path(os.environ["NUMBA_CACHE_DIR"])
        assert folder == tmp_path / f"giaann-dask-{os.getuid()}"
        assert folder.stat().st_mode & 0o077 == 0
    # Compiled code that others could have put there is not used.
    folder.chmod(0o777)
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    local_files.provide_code_cache()
    assert Path(os.environ["NUMBA_CACHE_DIR"]) != folder
    monkeypatch.delenv("NUMBA_CACHE_DIR")


def test_importing_compiles_where_the_installation_is_read_only_and_the_home_may_not_be_entered(tmp_path: Path) -> None:
    root = Path(gd.__file__).parents[1]
    home = tmp_path / "home"
    home.mkdir(mode=0)
    view = f'mount --make-rprivate / && mount --bind {root} {root} && mount -o remount,ro,bind {root} && exec "$@"'
    # Root enters any folder but for this.
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    command = ["unshare", "--mount", "sh", "-c", view, "sh", *plain, sys.executable, "-c"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp_path)}
    probe = subprocess.run([*command, "pass"], env=environment, capture_output=True, check=False, timeout=60)
    if probe.returncode:
        pytest.skip("needs the right to mount (root)")
    program = "from giaann_dask.text.splitting import split_text; print(*split_text(['A cat. It ran.']).sentences())"
    done = subprocess.run(
        [*command, program],
        env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['A', 'cat', '.'] ['It', 'ran', '.']"


@pytest.mark.cluster
def test_tasks_of_a_scheduler_that_lost_all_workers_go_to_the_next() -> None:
    """Of a scheduler that was started separately: Dask would let a task that prefers a lost worker wait for it."""
    arguments = {"processes": False, "protocol": "tcp://", "dashboard_address": ":0"}
    with LocalCluster(1, **arguments) as cluster, Client(cluster) as client:
        require_versions(client)
        (lost,) = client.scheduler_info()["workers"]
        cluster.scale(0)
        client.sync(wait_for, lambda: not cluster.scheduler.workers)
        task = client.submit(sum, [1, 2], workers=[lost], allow_other_workers=True)
        client.sync(wait_for, lambda: "no-worker" in {each.state for each in cluster.scheduler.tasks.values()})
        cluster.scale(1)
        assert task.result(timeout=60) == 3


async def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
