"""A server whose network is held by the workers of a cluster, and what is lost while it answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from distributed import Client
from support.processes import Process, running_cluster, until
from support.village import ADJECTIVES, NOUNS, VERBS, write_village

import giaann_dask as gd

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PROMPTS = [f"the {a} {n} {v} the" for a, n, v in zip(ADJECTIVES * 2, NOUNS, VERBS * 2, strict=False)]
TIMEOUT_S = 16
# Nothing is kept, and steps with concept columns ask for every row by itself.
ASKED = ("--rows-mode", "remote", "--rows-cache-bytes", "0", "--timeout-s", str(TIMEOUT_S))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A network of many small regions, and what follows the prompts."""
    folder = tmp_path_factory.mktemp("village")
    small = gd.TrainingOptions(region_bytes=60_000, hot_bytes=0)
    with gd.connect(workers=0) as client:
        network = gd.train(write_village(folder / "a.txt", 600), folder / "net", client=client, options=small)
    options = gd.GenerationOptions(max_tokens=8, reasons=0)
    return folder / "net", [c.text for c in network.sessions(PROMPTS, options=options).continuations()]


@contextmanager
def served(network: Path, *options: str) -> Iterator[Process]:
    server = Process(network, *ASKED, *options)
    try:
        yield server
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=60)
        assert server.process.returncode == 0
    finally:
        server.process.kill()
        server.process.communicate()


def ask(server: Process, number: int, columns: int = 2) -> Any:
    """Ask for a continuation; whatever happens there is an answer with JSON soon after the time limit."""
    begun = time.monotonic()
    body = {"prompt": PROMPTS[number], "max_tokens": 8, "columns": columns}
    response = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=4 * TIMEOUT_S)
    assert time.monotonic() - begun < 2 * TIMEOUT_S
    assert response.status_code in (200, 503, 504), response.text
    assert ("error" in response.json()) == (response.status_code != 200)
    return response


def health(server: Process) -> Any:
    return httpx2.get(f"{server.url}/healthz", timeout=30)


def signal_worker(client: Client, number: signal.Signals, key: str = "open_r") -> None:
    """Send a signal to a worker that holds regions, or other results with such keys."""
    held = client.has_what()
    holder = next(worker for worker, keys in held.items() if any(key in str(each) for each in keys))
    os.kill(client.run(os.getpid, workers=[holder])[holder], number)


def check_answers(server: Process, expected: list[str], prompts: range) -> None:
    """Ask until all are answered; every answer is that of an undisturbed server."""
    for number in prompts:
        until(lambda n=number: (answer := ask(server, n, n % 3)).status_code == 200 and check(answer, expected[n]))
    until(lambda: health(server).status_code == 200)


def check(answer: Any, expected: str) -> bool:
    assert answer.json()["choices"][0]["text"].strip() == expected
    return True


def test_a_worker_is_lost_and_then_the_scheduler(known: tuple[Path, list[str]], tmp_path: Path) -> None:
    network, expected = known
    with (
        running_cluster(tmp_path, "--storage", "2") as (cluster, address),
        served(network, "--scheduler", address) as server,
    ):
        with Client(address) as client:
            assert health(server).json() == {"status": "ok", "running": 0, "waiting": 0}
            check_answers(server, expected, range(3))
            signal_worker(client, signal.SIGKILL)
            check_answers(server, expected, range(len(PROMPTS)))
        os.kill(cluster.pid, signal.SIGKILL)
        until(lambda: health(server).status_code == 503)
        assert "connection" in health(server).json()["reason"]
        # A prompt that was not asked before with all of its rows in use.
        lost = ask(server, 0)
        assert lost.status_code == 503
        assert "connection to the cluster" in lost.json()["error"]["message"]


def test_another_scheduler_takes_the_place_of_one_that_was_lost(known: tuple[Path, list[str]], tmp_path: Path) -> None:
    network, expected = known
    with running_cluster(tmp_path) as (cluster, _):
        server = Process(network, *ASKED, "--scheduler-file", str(tmp_path / "scheduler.json"))
        try:
            check_answers(server, expected, range(3))
            os.kill(cluster.pid, signal.SIGKILL)
            until(lambda: health(server).status_code == 503)
            assert ask(server, 0).status_code == 503
            with running_cluster(tmp_path):
                until(lambda: health(server).status_code == 200)
                check_answers(server, expected, range(len(PROMPTS)))
                server.process.send_signal(signal.SIGTERM)
                log = server.process.communicate(timeout=60)[1]
            assert server.process.returncode == 0
            assert "the network is open again" in log
            assert "Traceback" not in log
        finally:
            server.process.kill()
            server.process.communicate()


def test_a_worker_hangs(known: tuple[Path, list[str]], tmp_path: Path) -> None:
    network, expected = known
    options = ("--storage", "2", "--hang-timeout-s", "20")
    with running_cluster(tmp_path, *options) as (_, address), served(network, "--scheduler", address) as server:
        with Client(address) as client:
            check_answers(server, expected, range(3))
            signal_worker(client, signal.SIGSTOP)
        until(lambda: health(server).status_code == 503, 10)
        assert "regions of the network are held by no worker that answers" in health(server).json()["reason"]
        asked = [threading.Thread(target=ask, args=(server, n)) for n in range(4)]
        for each in asked:
            each.start()
        for each in asked:
            each.join(4 * TIMEOUT_S)
        check_answers(server, expected, range(len(PROMPTS)))


def test_the_scheduler_hangs(known: tuple[Path, list[str]], tmp_path: Path) -> None:
    network, expected = known
    with running_cluster(tmp_path) as (cluster, address), served(network, "--scheduler", address) as server:
        check_answers(server, expected, range(3))
        os.kill(cluster.pid, signal.SIGSTOP)
        response = health(server)
        assert (response.status_code, response.json()["reason"]) == (503, "the scheduler does not respond")
        ask(server, 4)
        os.kill(cluster.pid, signal.SIGCONT)
        check_answers(server, expected, range(len(PROMPTS)))


def test_workers_of_its_own(known: tuple[Path, list[str]]) -> None:
    network, expected = known
    with served(network, "--workers", "2") as server:
        check_answers(server, expected, range(len(PROMPTS)))
