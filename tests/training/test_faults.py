"""Real failures: a killed driver, a killed worker, a full disk, two writers."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from support.training_commands import begin, command
from support.village import SENTENCES, Undisturbed, write_village

import giaann_dask as gd
from giaann_dask.errors import StoreWriteError
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.read_options import ReadOptions

pytestmark = pytest.mark.cluster


def check_going_on(text: Path, folder: Path, expected: bytes) -> None:
    """Train again: the rest is read, and the network is that of an undisturbed run."""
    before = gd.Network(folder / "net").manifest.sequences
    assert 0 < before < SENTENCES
    with gd.connect(workers=0) as client:
        network = gd.train(text, folder / "net", client=client)
        report = network.training_report
    assert report.sequences + before == SENTENCES
    assert network.export(folder / "net.npz").connections.read_bytes() == expected


@pytest.mark.slow
def test_a_killed_run_resumes_without_counting_twice(undisturbed: Undisturbed, tmp_path: Path) -> None:
    text, _, expected = undisturbed
    process = begin(text, tmp_path / "net")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    check_going_on(text, tmp_path, expected)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow, id="SIGTERM"),
        pytest.param(signal.SIGHUP, id="SIGHUP"),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow, id="Ctrl-C"),
    ],
)
def test_a_stopped_run_commits_and_resumes(undisturbed: Undisturbed, tmp_path: Path, number: signal.Signals) -> None:
    text, _, expected = undisturbed
    for attempt in range(3):
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        process = begin(text, folder / "net")
        # A terminal sends Ctrl-C and SIGHUP to the whole process group, workers included; a scheduler, to the process.
        os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
        if number == signal.SIGHUP:
            os.killpg(process.pid, number)
        out, err = process.communicate(timeout=120)
        # On a busy machine, its last round may be under way when it is told.
        if process.returncode:
            break
    assert process.returncode == 75, err
    assert "again to continue" in err
    report = json.loads(out)
    assert report["stopped"]
    assert report["sequences"] == gd.Network(folder / "net").manifest.sequences
    check_going_on(text, folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kills"), [(1, 1), (2, 1), (2, 2)])
def test_killed_workers_lose_nothing(undisturbed: Undisturbed, tmp_path: Path, workers: int, kills: int) -> None:
    text, _, expected = undisturbed
    with gd.connect(workers=workers) as client:
        pids = client.run(os.getpid)
        killed: list[int] = []

        def kill_once(event: object) -> None:
            if not killed and type(event).__name__ == "RoundIntegrated":
                killed.extend(list(pids.values())[:kills])
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

        network = gd.train(
            text,
            tmp_path / "net",
            client=client,
            text=gd.TextOptions(reading=ReadOptions(part_characters=60_000)),
            options=gd.TrainingOptions(batch_sequences=1000, block_characters=60_000, rounds_in_flight=1),
            observer=kill_once,
        )
    assert len(killed) == kills, "in the middle of training"
    assert network.export(tmp_path / "net.npz")[0].read_bytes() == expected


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_commit(small_disk: Path, tmp_path: Path) -> None:
    small = write_village(tmp_path / "small.txt", 100, 5)
    large = write_village(tmp_path / "large.txt", 6000, 6)
    network = small_disk / "net"
    subprocess.run(command("train", small, "--network", network, "--workers", "1"), check=True, timeout=120)
    before = gd.Network(network).describe()
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        while os.statvfs(small_disk).f_bavail > 8:
            file.write(b"\0" * os.statvfs(small_disk).f_frsize)
            file.flush()
    done = subprocess.run(
        command("train", large, "--network", network, "--workers", "1"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "disk" in done.stderr
    assert {**gd.Network(network).describe(), "bytes_on_disk": 0} == {**before, "bytes_on_disk": 0}
    assert gd.Network(network).describe()["bytes_on_disk"] < 1.5 * before["bytes_on_disk"], "parts of the failed commit"
    filler.unlink()
    subprocess.run(command("train", large, "--network", network, "--workers", "1"), check=True, timeout=120)
    assert gd.Network(network).manifest.sequences == 6100


def test_one_writer_at_a_time(undisturbed: Undisturbed, tmp_path: Path) -> None:
    text = write_village(tmp_path / "a.txt", 100)
    with gd.connect(workers=0) as client:
        gd.train(text, tmp_path / "net", client=client)
        with NetworkStore(tmp_path / "net").lock(), pytest.raises(StoreWriteError, match="another process"):
            gd.train(undisturbed.text, tmp_path / "net", client=client)


@pytest.mark.slow
def test_a_worker_that_cannot_write_is_reported_in_one_line(undisturbed: Undisturbed, tmp_path: Path) -> None:
    text, _, expected = undisturbed
    options = gd.TrainingOptions(max_sequences=SENTENCES)
    with gd.connect(workers=1) as client:
        (unlimited,) = client.run(limit_files, 16_384).values()
        with pytest.raises(StoreWriteError, match="room on the disk") as failure:
            gd.train(text, tmp_path / "net", client=client, options=options)
        client.run(limit_files, unlimited)
        network = gd.train(text, tmp_path / "net", client=client, options=options)
    assert "\n" not in str(failure.value)
    assert network.export(tmp_path / "net.npz")[0].read_bytes() == expected


def limit_files(nbytes: int) -> int:
    """Let this process write no larger files, and return how large they could be before."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
    return before
