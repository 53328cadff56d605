"""A load test of the server: many clients at once on loopback, for a while.

    python benchmarks/serving.py --clients 200 --seconds 120

Covers: a server process of its own, clients that ask one request after the other, some as streams and
some that go away in the middle; answers by status, times of answers and of refusals, tokens a second,
and the server's memory from beginning to end. Clients that are told 429 come back when they were told
to. With --writes the same clients ask twice as long, and during the second half documents are added and removed, one
after the other: by how much answers take longer then. Any other error makes the exit code 1. Does not cover: how fast
inference is by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import giaann_dask as gd
from giaann_dask.data import sample_text

SAMPLES = 40
# Shares of requests that are streamed, and of those whose client goes away after the first event.
STREAMED = 0.5
LEFT = 0.1
CLIENT_TIMEOUT_S = 120.0
WRITE_KEY = "writer"
NOUNS = [
    "captain",
    "lantern",
    "harbour",
    "sailor",
    "ship",
    "boat",
    "cook",
    "island",
    "storm",
    "anchor",
    "rope",
    "deck",
    "whale",
    "net",
]


@dataclass
class Tally:
    """What the clients have seen; times in seconds."""

    statuses: Counter[str] = field(default_factory=Counter)
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    first_event: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Ask:
    """What clients ask for, until when, and how many of the requests want concept columns too."""

    texts: list[str]
    until: float
    with_columns: float


def prompts(text: Path) -> list[str]:
    """Return beginnings of sentences, of five to nine words."""
    words = [line.split() for line in text.read_text(encoding="utf-8").splitlines() if len(line.split()) > 9]
    return [" ".join(line[: 5 + number % 5]) for number, line in enumerate(words)]


async def client(http: httpx2.AsyncClient, ask: Ask, choose: random.Random, tally: Tally) -> None:
    """Ask one request after the other."""
    while time.monotonic() < ask.until:
        body: dict[str, Any] = {"prompt": choose.choice(ask.texts), "max_tokens": 16, "candidates": 3}
        if choose.random() < ask.with_columns:
            body["columns"] = 5
        started = time.monotonic()
        try:
            way = streamed if choose.random() < STREAMED else whole
            pause = await way(http, body, tally, choose.random() < LEFT)
        except Exception as error:
            tally.statuses[type(error).__name__] += 1
            tally.errors.append(f"{type(error).__name__}: {error}"[:200])
            pause = 1.0
        if pause:
            tally.refused.append(time.monotonic() - started)
            await asyncio.sleep(pause * choose.uniform(1.0, 1.5))


async def write(http: httpx2.AsyncClient, until: float, tally: Tally) -> None:
    """Add a document of twenty sentences and remove it, again and again."""
    choose, number, headers = random.Random(0), 0, {"Authorization": f"Bearer {WRITE_KEY}"}
    while time.monotonic() < until:
        number += 1
        text = " ".join(f"The {choose.choice(NOUNS)} saw the {choose.choice(NOUNS)} near the house." for _ in range(20))
        started = time.monotonic()
        added = await http.post("/v1/documents", json={"id": f"d{number}", "text": text}, headers=headers)
        tally.added.append(time.monotonic() - started)
        removed = await http.delete(f"/v1/documents/d{number}", headers=headers)
        tally.removed.append(time.monotonic() - started - tally.added[-1])
        found = (added.status_code, removed.status_code)
        if found != (201, 200):
            tally.errors.append(f"statuses {found} of a document")


async def whole(http: httpx2.AsyncClient, body: dict[str, Any], tally: Tally, leaves: bool) -> float:
    """Ask for a whole answer; return the seconds to wait before the next request."""
    started = time.monotonic()
    response = await http.post("/v1/completions", json=body)
    pause = status(response, tally)
    if response.status_code == 200:
        tally.answered.append(time.monotonic() - started)
        tally.tokens += response.json()["usage"]["completion_tokens"]
    return pause


async def streamed(http: httpx2.AsyncClient, body: dict[str, Any], tally: Tally, leaves: bool) -> float:
    """Ask for a stream, and perhaps go away after its first event."""
    started = time.monotonic()
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        pause = status(response, tally)
        if response.status_code != 200:
            return pause
        last = ""
        async for line in response.aiter_lines():
            if not line:
                continue
            if not last:
                tally.first_event.append(time.monotonic() - started)
            last = line
            if leaves:
                tally.statuses["left by the client"] += 1
                return 0.0
            tally.tokens += line.count('"word":') > 0
    if last != "data: [DONE]":
        tally.statuses["stream without an end"] += 1
        tally.errors.append(last[:200])
    tally.answered.append(time.monotonic() - started)
    return 0.0


def status(response: httpx2.Response, tally: Tally) -> float:
    """Count a status; return the seconds that the server asks to wait."""
    tally.statuses[str(response.status_code)] += 1
    if response.status_code in (200, 429):
        return float(response.headers["retry-after"]) if response.status_code == 429 else 0.0
    tally.errors.append(f"status {response.status_code}")
    return 1.0


@asynccontextmanager
async def sampling(process: psutil.Process, seconds: float) -> AsyncIterator[list[float]]:
    """Yield a list that grows by the resident memory of the server, in MiB."""
    samples: list[float] = []

    async def sample() -> None:
        while True:
            samples.append(process.memory_info().rss / 2**20)
            await asyncio.sleep(seconds / SAMPLES)

    task = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        task.cancel()


async def load(
    url: str, server: psutil.Process, arguments: argparse.Namespace, *, writes: bool = False
) -> tuple[Tally, list[float], float]:
    """Let the clients ask; return what they saw, the server's memory and its processor seconds."""
    tally, texts = Tally(), prompts(sample_text())
    limits = httpx2.Limits(max_connections=arguments.clients, max_keepalive_connections=arguments.clients)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=CLIENT_TIMEOUT_S) as http:
        await http.post("/v1/completions", json={"prompt": texts[0]})
        before, until = sum(server.cpu_times()[:2]), time.monotonic() + arguments.seconds
        async with sampling(server, arguments.seconds) as memory:
            ask = Ask(texts, until, arguments.with_columns)
            clients = (client(http, ask, random.Random(n), tally) for n in range(arguments.clients))
            await asyncio.gather(*clients, *([write(http, until, tally)] if writes else []))
    return tally, memory, sum(server.cpu_times()[:2]) - before


def report(tally: Tally, memory: list[float], cpu_s: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures; times in milliseconds, memory in MiB."""
    values: dict[str, Any] = {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "with columns": arguments.with_columns,
        "answers": dict(tally.statuses),
        "answered per second": round(len(tally.answered) / arguments.seconds, 1),
        "tokens per second": round(tally.tokens / arguments.seconds, 1),
        "server CPU seconds": round(cpu_s, 1),
    }
    for name, times in (
        ("answer", tally.answered),
        ("first event", tally.first_event),
        ("refusal", [t for t in tally.refused if t > 0]),
        ("addition", tally.added),
        ("removal", tally.removed),
    ):
        if times:
            half, most = np.percentile(np.array(times) * 1000, [50, 99])
            values[f"{name} p50 ms"], values[f"{name} p99 ms"] = round(float(half), 1), round(float(most), 1)
    places = {"start": 0.0, "10 %": 0.1, "50 %": 0.5, "75 %": 0.75, "end": 1.0}
    values["memory MiB"] = {name: round(memory[int(share * (len(memory) - 1))], 1) for name, share in places.items()}
    values["errors"] = len(tally.errors)
    return values


def main() -> int:
    """Run the load test and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", type=Path, help="Network to serve; one of the sample text by default.")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--with-columns", type=float, default=0.1, help="Share of requests for concept columns too.")
    parser.add_argument("--writes", action="store_true", help="Add and remove documents during a second half.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("options", nargs="*", help="Options of `giaann-dask serve`, after --.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        network = arguments.network or Path(folder) / "village"
        if arguments.network is None:
            with gd.connect(workers=0) as client:
                gd.train(sample_text(), network, client=client)
        command = [sys.executable, "-m", "giaann_dask", "serve", str(network), "--port", "0", "--json"]
        writable = ["--writable", "--write-key", WRITE_KEY] if arguments.writes else []
        server = subprocess.Popen(
            [*command, *writable, *arguments.options],
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "GIAANN_API_KEY"},
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                return 1
            place = (json.loads(line)["url"], psutil.Process(server.pid), arguments)
            halves = [asyncio.run(load(*place, writes=writes)) for writes in (False, True)[: 1 + arguments.writes]]
        finally:
            server.terminate()
            code = server.wait(60)
    reports = [report(*half, arguments) for half in halves]
    errors = [error for tally, _, _ in halves for error in tally.errors]
    values: dict[str, Any] = {**reports[0], "exit code of the server": code}
    if arguments.writes:
        values["with writes"] = reports[1]
        names = [name for name in reports[0] if name.endswith(" ms") and name in reports[1]]
        values["ratios"] = {name: round(reports[1][name] / reports[0][name], 2) for name in names}
    show(values, errors, arguments.json)
    return 1 if errors or code else 0


def show(values: dict[str, Any], errors: list[str], as_json: bool) -> None:
    """Print the figures."""
    if as_json:
        print(json.dumps(values))
        return
    table = Table("figure", "value", title="load on the server")
    for name, value in values.items():
        plain = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, plain)
    console = Console()
    console.print(table)
    for error, times in Counter(errors).most_common(5):
        console.print(f"{times} times: {error}")


if __name__ == "__main__":
    sys.exit(main())
