"""The server as a user runs it: a real process on loopback, concurrent clients, and signals."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.listening import listening
from support.processes import PROMPT, Process
from support.serving_engines import parts_of

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.models.base import PromptWords, TokenEvent
from giaann_dask.rows.protocol import Mode, RowOptions
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.models import open_engine
from giaann_dask.store.network_store import NetworkStore

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "village"
    with gd.connect(workers=0) as client:
        gd.train(sample_text(), folder, client=client)
    return folder


@pytest.fixture(scope="module")
def server(network: Path) -> Iterator[Process]:
    started = Process(network)
    yield started
    if started.process.poll() is None:
        started.leave()


def test_it_listens_on_loopback_only(server: Process) -> None:
    assert listening(server.process.pid) == {"127.0.0.1"}


def complete(server: Process, **fields: Any) -> Any:
    response = httpx2.post(f"{server.url}/v1/completions", json={"prompt": PROMPT, **fields}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("mode", ["replicated", "remote"])
def test_an_engine_generates_the_same_tokens_as_generate(network: Path, mode: Mode) -> None:
    store = NetworkStore(network)
    reader = store.open(store.head())
    wanted = CompletionOptions(tokens=20, candidates=5, columns=3)
    options = gd.GenerationOptions(rows=RowOptions(mode=mode))
    with gd.connect(workers=0) as client:
        known = gd.Network(network).generate(PROMPT, client=client)
        with closing(open_engine(client, reader, options)) as engine:
            read, *events = parts_of(engine, PROMPT, wanted)
            shared = parts_of(engine, PROMPT, replace(wanted, columns=0))[1:]
    assert isinstance(read, PromptWords)
    assert read.words == known.prompt
    tokens = [event for event in events if isinstance(event, TokenEvent) and event.token]
    assert [event for event in shared if isinstance(event, TokenEvent) and event.token] == [
        replace(event, columns=()) for event in tokens
    ]
    for last in (events[-1], shared[-1]):
        assert isinstance(last, TokenEvent)
        assert (last.finished, last.stop) == (True, known.stop)
    assert len(tokens) == len(known.tokens) > 2
    for event, other in zip(tokens, known.tokens, strict=True):
        assert event.token == replace(other, reasons=())
        assert len(event.columns) == 3
        activations = [column.activation for column in event.columns]
        assert activations == sorted(activations, reverse=True)
        assert activations[-1] > 0


def test_concurrent_clients_get_the_response_of_a_single_one(server: Process, network: Path) -> None:
    alone = complete(server)["choices"]
    assert alone[0]["text"] == f" {gd.Network(network).generate(PROMPT).text}"
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(complete, server) for _ in range(24)]
        assert all(answer.result()["choices"] == alone for answer in answers)


def test_tokens_come_one_by_one(server: Process) -> None:
    body = {"prompt": PROMPT, "stream": True}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        sent = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert sent.pop() == "[DONE]"
    text = "".join(json.loads(each)["choices"][0]["text"] for each in sent)
    assert text == complete(server)["choices"][0]["text"]


def test_a_closed_connection_cancels_its_generation(server: Process) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": [f"{PROMPT} to the baker and the farmer of the mill"] * 16, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    before = figure(server, "giaann_gone_total")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    deadline = time.monotonic() + 30
    while figure(server, "giaann_gone_total") == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert figure(server, "giaann_gone_total") == before + 1
    assert httpx2.get(f"{server.url}/healthz").json()["waiting"] == 0


def figure(server: Process, name: str) -> float:
    lines = httpx2.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_used_port_is_one_line(server: Process, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = server.url.rpartition(":")[2]
    wrong = {
        ("--port", port): "the server cannot listen",
        ("--host", "0.0.0.0"): "API key",
        ("--host", "no.such.host.invalid"): "API key",
        ("--max-slots", "0"): "slots is 0",
        ("--ref", "NOSUCHCOMMIT"): "commit",
        ("--timing", "sometimes"): "exact",
    }
    for options, said in wrong.items():
        assert run(["serve", str(network), *options]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert said in shown.err
        assert shown.err.count("\n") == 1
    assert run(["serve", "nowhere"]) == 2
    assert run(["serve", "--help"]) == 0


def test_missing_packages_are_one_line(
    network: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["serve", str(network)]) == 2
    assert "giaann-dask[serve]" in capsys.readouterr().err


def test_the_commit_stays_and_running_requests_finish(server: Process, network: Path, tmp_path: Path) -> None:
    """The last test of its server: text is trained meanwhile, then the server is stopped while requests run."""
    before = complete(server)["choices"]
    (tmp_path / "more.txt").write_text("The old miller carried the flour under the bridge by the river.\n\n" * 50)
    assert run(["train", str(tmp_path / "more.txt"), "--network", str(network), "--workers", "0"]) == 0
    commits = [commit for commit, _ in gd.Network(network).commits()]
    assert commits.index(server.ready["commit"]) == 1
    assert complete(server)["choices"] == before
    answers: list[Any] = []
    body = {"prompt": [f"{PROMPT} to the baker"] * 16}

    def ask() -> None:
        answers.append(httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60))

    asking = threading.Thread(target=ask)
    asking.start()
    while figure(server, "giaann_running") == 0 and not answers:
        pass
    server.leave()
    asking.join(60)
    assert answers[0].status_code == 200
    assert len(answers[0].json()["choices"]) == 16


@pytest.mark.slow
def test_the_key_comes_from_the_environment_and_ctrl_c_ends(network: Path) -> None:
    server = Process(network, "--model-name", "mill", key="secret")
    assert server.ready["model"] == "mill"
    assert httpx2.get(f"{server.url}/v1/models").status_code == 401
    known = httpx2.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer secret"})
    assert known.json()["data"][0]["id"] == "mill"
    server.leave(signal.SIGINT)
