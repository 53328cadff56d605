"""A cluster of its own loses its scheduler, its workers or the command that trains on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client
from support.processes import running_cluster, until
from support.village import write_village

import giaann_dask as gd

pytestmark = pytest.mark.cluster
SENTENCES = 24_000


@pytest.fixture(scope="module")
def village(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A text and the exported bytes of the network that an undisturbed run makes of it."""
    folder = tmp_path_factory.mktemp("village")
    text = write_village(folder / "village.txt", SENTENCES)
    with gd.connect(workers=0) as client:
        network = gd.train(text, folder / "net", client=client)
    return text, network.export(folder / "net.npz")[0].read_bytes()


def train_command(corpus: Path, network: Path, address: str) -> list[str]:
    command = [sys.executable, "-m", "giaann_dask", "train", str(corpus), "--network", str(network)]
    return [*command, "--scheduler", address, "--batch-sequences", "250", "--commit-seconds", "0.05", "--json"]


def begin(corpus: Path, network: Path, address: str, timeout_s: float | None = None) -> subprocess.Popen[str]:
    """Start a training command and return it after some commits."""
    environment = {**os.environ, **({} if timeout_s is None else {"DASK_GIAANN__TIMEOUT_S": str(timeout_s)})}
    process = subprocess.Popen(
        train_command(corpus, network, address),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    commits = network / "transactions"
    until(lambda: process.poll() is not None or (commits.is_dir() and len(list(commits.iterdir())) > 2))
    assert process.poll() is None, process.communicate()
    return process


def check_one_line(process: subprocess.Popen[str], words: str, seconds: float) -> None:
    """Wait for the end of a command that can not go on: one line on standard error, code 2."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 2, err
    assert err.count("\n") == 1, err
    assert words in err
    assert not out


def check_going_on(corpus: Path, folder: Path, expected: bytes, address: str) -> None:
    """Run the command again: it trains the rest, and the network is that of an undisturbed run."""
    before = gd.Network(folder / "net").manifest.sequences
    assert 0 < before < SENTENCES
    command = train_command(corpus, folder / "net", address)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert json.loads(done.stdout)["sequences"] + before == SENTENCES
    assert gd.Network(folder / "net").export(folder / "net.npz")[0].read_bytes() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)],
    ids=["killed", "hung"],
)
def test_a_lost_scheduler_is_one_line(village: tuple[Path, bytes], tmp_path: Path, number: signal.Signals) -> None:
    corpus, expected = village
    with running_cluster(tmp_path) as (cluster, address):
        process = begin(corpus, tmp_path / "net", address, timeout_s=15)
        os.kill(cluster.pid, number)
        words = "scheduler" if number == signal.SIGKILL else "not"
        check_one_line(process, words, 120)
    with running_cluster(tmp_path) as (_, address):
        check_going_on(corpus, tmp_path, expected, address)


@pytest.mark.slow
def test_a_killed_command_leaves_its_cluster_to_the_next(village: tuple[Path, bytes], tmp_path: Path) -> None:
    corpus, expected = village
    with running_cluster(tmp_path) as (_, address):
        process = begin(corpus, tmp_path / "net", address)
        process.kill()
        process.communicate(timeout=30)
        check_going_on(corpus, tmp_path, expected, address)
        with Client(address) as client:
            until(lambda: client.run_on_scheduler(lambda dask_scheduler: not dask_scheduler.tasks), 30)


@pytest.mark.slow
def test_all_workers_killed_at_once(village: tuple[Path, bytes], tmp_path: Path) -> None:
    corpus, expected = village
    with running_cluster(tmp_path) as (_, address):
        with Client(address) as client:
            workers = list(client.run(os.getpid).values())
        process = begin(corpus, tmp_path / "net", address)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert json.loads(out)["sequences"] == SENTENCES
        with Client(address) as client:
            assert not set(workers) & set(client.run(os.getpid).values())
    assert gd.Network(tmp_path / "net").export(tmp_path / "net.npz")[0].read_bytes() == expected


@pytest.mark.slow
def test_a_worker_without_a_nanny_that_goes_on_too_late_leaves(village: tuple[Path, bytes], tmp_path: Path) -> None:
    corpus, expected = village
    with running_cluster(tmp_path, "--hang-timeout-s", "10") as (_, address), Client(address) as client:
        command = [sys.executable, "-m", "dask", "worker", address, "--no-nanny", "--name", "plain"]
        command += ["--nthreads", "1", "--resources", "compute=1 storage=1"]
        plain = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client.wait_for_workers(3, timeout=120)
            process = begin(corpus, tmp_path / "net", address)
            plain.send_signal(signal.SIGSTOP)
            until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2)
            plain.send_signal(signal.SIGCONT)
            plain.wait(60)
        finally:
            plain.kill()
            plain.wait(30)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["sequences"] == SENTENCES
    assert gd.Network(tmp_path / "net").export(tmp_path / "net.npz")[0].read_bytes() == expected
