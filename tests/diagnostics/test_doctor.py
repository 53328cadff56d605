"""What the doctor finds, and how it leaves."""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from distributed import Client
from support.read_only import refuse_writing

import giaann_dask as gd
from giaann_dask import local_files
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.diagnostics import checkup
from giaann_dask.diagnostics.checkup import Finding, check_cluster, check_network, check_versions, versions
from giaann_dask.errors import ClusterError
from giaann_dask.object_urls import ObjectPath


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "net"
    with gd.connect(workers=0) as client:
        gd.train(sample_text(), path, client=client, options=gd.TrainingOptions(max_sequences=20))
    return path


def by_check(found: list[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in found}


def test_packages_that_are_missing_or_too_old() -> None:
    wanted = ["numpy>=1", "no-such-package", 'dask>=9999; extra == "hub"', 'nothing-at-all; extra == "serve"']
    found = by_check(list(checkup.check_packages([*wanted, 'pytest>=9999; extra == "dev"'])))
    assert {name: each.status for name, each in found.items()} == {
        "packages": "bad",
        "extra hub": "bad",
        "extra serve": "note",
    }
    assert found["packages"].found == "no no-such-package"
    assert found["extra serve"].remedy.endswith("pip install --upgrade 'giaann-dask[serve]'")
    assert next(checkup.check_packages(None)).status == "bad"


def test_disks_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkup.check_disk("disk", tmp_path / "not" / "yet").found.endswith(f"free at {tmp_path}")
    monkeypatch.setattr(checkup, "LEAST_DISK", 1 << 62)
    assert checkup.check_disk("disk", tmp_path).status == "bad"
    place = SimpleNamespace(mountpoint=str(tmp_path.resolve()), fstype="nfs4")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [place])
    assert checkup.check_sharing(tmp_path / "net").status == "good"
    monkeypatch.setattr(
        psutil, "disk_partitions", lambda all: [SimpleNamespace(mountpoint=place.mountpoint, fstype="ext4")]
    )
    assert checkup.check_sharing(tmp_path / "net").status == "note"
    # An object store has no disk of this machine.
    bucket = by_check(list(checkup.check_machine(ObjectPath("s3://bucket/net"), ())))
    assert not {"disk", "file system"} & set(bucket)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert checkup.check_disk("disk", tmp_path).found.endswith("cannot be written")
    assert "NUMBA_CACHE_DIR" in checkup.check_numba_cache().remedy


def test_a_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert checkup.check_port("server", port).status == "note"
    assert checkup.check_port("server", port).status == "good"


def test_versions_of_workers() -> None:
    ours = versions()
    assert check_versions(ours, {"a": ours}).status == "good"
    assert check_versions(ours, {"a": ours, "b": {**ours, "zarr": "1"}}).found.startswith("b has zarr 1")
    assert "cannot be imported" in check_versions(ours, {"a": ModuleNotFoundError("giaann_dask")}).found


def test_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gd.connect(workers=0) as client:
        options = gd.ClusterOptions(scheduler=client.scheduler.address)
        found = by_check(list(check_cluster(options, tmp_path)))
        assert {each.status for each in found.values()} == {"good"}
        assert set(found) == {"cluster", "roles", "versions of workers", "network seen by workers"}
        assert by_check(list(check_cluster(options, tmp_path / "no")))["network seen by workers"].status == "bad"

    def other(client: Client) -> None:
        raise ClusterError("the scheduler has giaann_dask none, not 2", "the same", "install it there")

    monkeypatch.setattr(checkup, "compare_versions", other)
    with gd.connect(workers=0) as client:
        options = gd.ClusterOptions(scheduler=client.scheduler.address)
        different = by_check(list(check_cluster(options)))["versions"]
    assert (different.status, different.remedy) == ("bad", "install it there")
    missing = gd.ClusterOptions(scheduler_file=str(tmp_path / "none.json"))
    assert [each.status for each in check_cluster(missing)] == ["bad"]


def test_a_network(network: Path, tmp_path: Path) -> None:
    assert [each.status for each in check_network(network)] == ["good", "good"]
    assert by_check(list(check_network(network, all_runs=True)))["last commit"].found == "4 of 4 runs decoded"
    with (network / "writer.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert by_check(list(check_network(network)))["writer"].status == "note"
    damaged = shutil.copytree(network, tmp_path / "net")
    for chunk in (damaged / "chunks").iterdir():
        chunk.write_bytes(b"\0" * chunk.stat().st_size)
    assert list(check_network(damaged, all_runs=True))[-1].status == "bad"
    assert [each.status for each in check_network(tmp_path / "none")] == ["bad"]
    commit = gd.open(network).commit
    assert by_check(list(check_network(network, ref=commit)))[f"commit {commit}"].status == "good"
    assert "no commit, tag or branch none" in by_check(list(check_network(network, ref="none")))["network"].found


def test_the_command_leaves_with_3_when_something_is_bad(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["doctor", "--network", str(network), "--json"])
    shown = json.loads(capsys.readouterr().out)
    # Whether this machine is well is not for this test to say.
    assert code == (0 if shown["well"] else 3)
    assert {"Python", "packages", "memory", "last commit", "port of the server"} <= {
        each["check"] for each in shown["findings"]
    }
    assert run(["doctor", "--network", str(tmp_path / "none")]) == 3
    assert "there is no network" in " ".join(capsys.readouterr().out.split())


def test_where_compiled_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    package = Path(gd.__file__).parent
    assert checkup.check_numba_cache() == checkup.Finding("compiled code", "good", f"kept below {package}/__pycache__")
    refuse_writing(monkeypatch, package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkup.check_numba_cache().found == f"kept below {tmp_path}/numba"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    refuse_writing(monkeypatch, tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    local_files.provide_code_cache()
    assert checkup.check_numba_cache().status == "note"
    assert "set NUMBA_CACHE_DIR" in checkup.check_numba_cache().remedy
