"""Clusters that commands and `connect` start listen on loopback only, HTTP servers of workers included.

``report`` starts a cluster as ``evaluate`` does, for the same work. ``serve`` and ``cluster`` are looked at where they
run as processes: `test_serving_process`, `test_cluster`.
"""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.listening import listening

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text

LOOPBACK = "127.0.0.1"
# Each starts a cluster in this process; TEXT, NET and OUT stand for paths.
COMMANDS = {
    "encode": ("encode", "TEXT", "--out", "OUT", "--max-sequences", "20"),
    "train": ("train", "TEXT", "--network", "OUT", "--max-sequences", "20"),
    "evaluate": ("evaluate", "NET", "TEXT", "--max-sequences", "2"),
    "generate": ("generate", "NET", "The old miller carried the flour", "--max-tokens", "1", "--rows-mode", "remote"),
    "compact": ("compact", "NET"),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listening") / "net"
    with gd.connect(workers=0) as client:
        gd.train(sample_text(), folder, client=client, options=gd.TrainingOptions(max_sequences=40))
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_worker_processes(
    name: str, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, listen = [], socket.socket.listen

    def noted(one: socket.socket, *arguments: int) -> None:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            found.append(one.getsockname()[0])
        listen(one, *arguments)

    monkeypatch.setattr(socket.socket, "listen", noted)
    paths = {"TEXT": sample_text(), "NET": network, "OUT": tmp_path / "out"}
    arguments = [str(paths.get(part, part)) for part in COMMANDS[name]]
    assert run([*arguments, "--workers", "0", "--json"]) == 0
    assert set(found) == {LOOPBACK}


def test_generating_here_listens_nowhere(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a server is started")

    monkeypatch.setattr(socket.socket, "listen", refused)
    assert run(["generate", str(network), "The old miller carried the flour", "--json"]) == 0


def answers(address: str) -> bool:
    """Return whether the HTTP server at an address, which is a worker's, says that it is well."""
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=60) as response:
            return bool(response.status == 200)
    except urllib.error.URLError:
        return False


@pytest.mark.cluster
@pytest.mark.parametrize("workers", [0, 1])
def test_servers_of_a_cluster(workers: int) -> None:
    with gd.connect(workers=workers) as client:
        assert listening() == {LOOPBACK}
        (worker,) = client.scheduler_info()["workers"].values()
        port = worker["services"]["dashboard"]
        assert answers(f"{LOOPBACK}:{port}")
        # Another address of this machine, as those are by which other machines reach it.
        assert not answers(f"127.0.0.2:{port}")
