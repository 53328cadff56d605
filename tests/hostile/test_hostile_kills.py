"""A training killed at any moment leaves its last commit, goes on from it, and ends as an undisturbed one.

So does its index, which is trained along and changes no strength.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from support.fault_plans import Kill, kills_of
from support.hostile_matrix import CASES, chance, repeated_by
from support.indexed_networks import stored
from support.plain_training import arrays
from support.stored_networks import reader_of
from support.training_commands import slow_command
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import StoreMissingError

pytestmark = pytest.mark.cluster

CHAINS = 10
# Of a chain: kills, one after the other, and then a training that is left alone.
KILLS = 3
SENTENCES = 2_500
# Longer than a training of the text takes here; one that ends before its kill has been killed at no moment.
LONGEST_S = 8.0
# Within which no process of a killed training is left.
GONE_S = 60.0
UNSTARTED = r"giaann-dask: no cluster could be started here: [^\n]*\n"


class Whole(NamedTuple):
    """A text, and the export and postings of the network of it that nothing disturbed."""

    text: Path
    exported: bytes
    postings: list[bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    text = write_village(folder / "village.txt", SENTENCES)
    with gd.connect(workers=0) as client:
        network = gd.train(text, folder / "net", client=client, specification=gd.Specification(trace=True))
    return Whole(text, network.export(folder / "net.npz").connections.read_bytes(), postings_of(network))


def postings_of(network: gd.Network) -> list[bytes]:
    return arrays(stored(reader_of(network)).postings)


def chain(number: int) -> tuple[Kill, ...]:
    return kills_of(chance("kills", number), KILLS, LONGEST_S)


def processes_of(group: int) -> list[psutil.Process]:
    """Return the processes of a group that still run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(process: subprocess.Popen[bytes], planned: Kill) -> None:
    """Wait for the moment of a kill and carry it out; a worker that is not there yet is the driver instead."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(planned.after_s)
        return
    if planned.victim == "all":
        os.killpg(process.pid, signal.SIGKILL)
        return
    # Workers are children of a process that has none of its own text to train: take the youngest that works.
    others = [each for each in processes_of(process.pid) if each.pid != process.pid]
    victim = max(others, key=lambda each: each.create_time()) if planned.victim == "worker" and others else process
    os.kill(victim.pid, signal.SIGKILL)


def disturbed(text: Path, network: Path, planned: Kill) -> None:
    """Train until the kill or, where it hits a worker, until training ends in spite of it; no process is left."""
    process = subprocess.Popen(
        slow_command(text, network, "--trace"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        kill(process, planned)
        _, said = process.communicate(timeout=120)
        # A worker that is killed before its cluster has started is reported in a line; nothing has been trained then.
        unstarted = process.returncode == 2 and re.fullmatch(UNSTARTED, said.decode())
        assert unstarted or process.returncode in (0, -signal.SIGKILL), said.decode()
        deadline = time.monotonic() + GONE_S
        while processes_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not processes_of(process.pid), f"left over {GONE_S:g} s after {planned}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def committed(network: Path) -> int:
    """Return the sequences of the last commit; 0 where there is none yet."""
    try:
        return gd.Network(network).manifest.sequences
    except StoreMissingError:
        return 0


def check(kills: tuple[Kill, ...], whole: Whole, folder: Path) -> None:
    before = 0
    for planned in kills:
        disturbed(whole.text, folder / "net", planned)
        now = committed(folder / "net")
        assert before <= now <= SENTENCES, planned
        before = now
    with gd.connect(workers=0) as client:
        network = gd.train(whole.text, folder / "net", client=client, specification=gd.Specification(trace=True))
    assert network.manifest.sequences == SENTENCES
    assert network.export(folder / "net.npz").connections.read_bytes() == whole.exported
    assert postings_of(network) == whole.postings


def test_a_sample_of_kills(whole: Whole, tmp_path: Path) -> None:
    chains = {number: chain(number) for number in range(CHAINS) if str(number) in CASES}
    for number, kills in (chains if CASES else {CHAINS: chain(CHAINS)[:1]}).items():
        check(kills, whole, tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(CHAINS))
def test_no_kill_at_any_moment_loses_or_counts_twice(number: int, whole: Whole, tmp_path: Path) -> None:
    print("again alone:", repeated_by("test_hostile_kills.py", [str(number)]))
    check(chain(number), whole, tmp_path)
