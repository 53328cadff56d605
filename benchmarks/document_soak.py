"""A soak of a server that writes: random additions and removals over HTTP, and kills amid them.

    python benchmarks/document_soak.py --changes 1000 --kill-every 50

Covers: a server process of its own; documents of random sentences that are added and removed, some with a purge;
SIGKILL of the server at a random moment amid a change, and a new server on the same network. At the end: whether every
change that was answered is there, whether the digest is that of one training on what is left, and the times of changes.
Anything else makes the exit code 1. Does not cover: many readers meanwhile (`serving`).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from rich.console import Console

import giaann_dask as gd
from giaann_dask.data import sample_text

KEY = "writer"
TIMEOUT_S = 600.0
NOUNS = ["captain", "lantern", "harbour", "sailor", "ship", "boat", "cook", "island", "storm", "anchor", "rope", "deck"]
VERBS = ["carried", "found", "painted", "watched", "followed", "sold", "mended", "crossed"]


@dataclass
class Soak:
    """State of the documents as answered, and what was measured."""

    choose: random.Random
    left: dict[str, str] = field(default_factory=dict)
    # The change that the server was killed in: made or not.
    open: tuple[str, str, str] | None = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"add": [], "remove": []})
    kills: int = 0
    completed: Counter[str] = field(default_factory=Counter)


def document(choose: random.Random, sentences: int) -> str:
    """Return random sentences of few words, so that documents have connections in common."""
    return " ".join(
        f"The old {choose.choice(NOUNS)} {choose.choice(VERBS)} the {choose.choice(NOUNS)} near the "
        f"{choose.choice(NOUNS)} and it {choose.choice(VERBS)} a small {choose.choice(NOUNS)}."
        for _ in range(sentences)
    )


class Server:
    """A server process."""

    def __init__(self, network: Path, options: list[str]) -> None:
        command = [sys.executable, "-m", "giaann_dask", "serve", str(network), "--writable", "--write-key", KEY]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--json", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(self.process.communicate()[1])
        self.http = httpx2.Client(
            base_url=json.loads(line)["url"], headers={"Authorization": f"Bearer {KEY}"}, timeout=TIMEOUT_S
        )

    def documents(self) -> dict[str, Any]:
        """Return all documents by id."""
        found: dict[str, Any] = {}
        more, after = True, ""
        while more:
            page = self.http.get("/v1/documents", params={"after": after, "limit": 100}).json()
            found |= {each["id"]: each for each in page["data"]}
            more, after = page["has_more"], page["data"][-1]["id"] if page["data"] else ""
        return found


def change(server: Server, soak: Soak, number: int, sentences: int, purge: float) -> None:
    """Make a random change; what is answered is noted."""
    choose = soak.choose
    removes = soak.left and choose.random() < 0.5
    name = choose.choice(sorted(soak.left)) if removes else f"d{number}"
    text = soak.left[name] if removes else document(choose, choose.randint(1, sentences))
    soak.open = ("remove" if removes else "add", name, text)
    began = time.perf_counter()
    if removes:
        address = f"/v1/documents/{name}" + ("?purge=true" if choose.random() < purge else "")
        server.http.delete(address).raise_for_status()
        del soak.left[name]
    else:
        server.http.post("/v1/documents", json={"id": name, "text": text}).raise_for_status()
        soak.left[name] = text
    soak.seconds[soak.open[0]].append(time.perf_counter() - began)
    soak.open = None


def settle(server: Server, soak: Soak) -> None:
    """Note whether the change that was open when the server was killed has been made; check all others."""
    found = set(server.documents())
    if soak.open is not None:
        kind, name, text = soak.open
        soak.completed["made" if (name in found) == (kind == "add") else "taken back"] += 1
        soak.left.pop(name, None)
        if name in found:
            soak.left[name] = text
        soak.open = None
    if found != set(soak.left):
        lost, more = sorted(set(soak.left) - found), sorted(found - set(soak.left))
        raise SystemExit(f"lost {lost}, and there are {more} that were removed")


def run(network: Path, arguments: argparse.Namespace) -> Soak:
    """Make all changes, and kill servers amid some of them."""
    soak = Soak(random.Random(arguments.seed))
    server = Server(network, arguments.options)
    for number in range(arguments.changes):
        killer = None
        if arguments.kill_every and number % arguments.kill_every == arguments.kill_every - 1:
            killer = threading.Timer(soak.choose.uniform(0.0, arguments.kill_within), server.process.kill)
            killer.start()
        try:
            change(server, soak, number, arguments.sentences, arguments.purge)
        except httpx2.TransportError:
            if killer is None:
                raise
        if killer is not None:
            killer.join()
            server.process.communicate()
            soak.kills += 1
            server = Server(network, arguments.options)
            settle(server, soak)
    settle(server, soak)
    server.process.send_signal(signal.SIGTERM)
    server.process.communicate(timeout=TIMEOUT_S)
    return soak


def main() -> int:
    """Run the soak, print its figures, and return 1 if the network is not that of one training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="what the network is trained on first; the sample text by default")
    parser.add_argument("--profile", default="v1", help="of the network")
    parser.add_argument("--changes", type=int, default=1000, help="additions and removals")
    parser.add_argument("--sentences", type=int, default=20, help="most sentences of a document")
    parser.add_argument("--purge", type=float, default=0.02, help="share of the removals with a purge")
    parser.add_argument("--kill-every", type=int, default=50, help="changes between two kills; 0: none")
    parser.add_argument("--kill-within", type=float, default=1.0, help="seconds after the begin of a change, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("options", nargs="*", help="options of `giaann-dask serve`, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, text = Path(name), arguments.text or sample_text()
        with gd.connect(workers=0) as client:
            gd.train(text, folder / "net", client=client, profile=arguments.profile)
        began = time.perf_counter()
        soak = run(folder / "net", arguments)
        took = time.perf_counter() - began
        with gd.connect(workers=0) as client:
            once = gd.train(text, folder / "once", client=client, profile=arguments.profile)
            if soak.left:
                once = gd.train(list(soak.left.values()), folder / "once", client=client)
        same = gd.open(folder / "net").digest() == once.digest()
    quantiles = {
        f"{kind} p{share} s": round(float(np.percentile(seconds, share)), 3)
        for kind, seconds in soak.seconds.items()
        for share in (50, 99)
        if seconds
    }
    counts = {"answered": sum(map(len, soak.seconds.values())), "kills": soak.kills, **soak.completed}
    values = {"seconds": round(took, 1), **counts, "documents left": len(soak.left), **quantiles, "same digest": same}
    Console().print(json.dumps(values) if arguments.json else values)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
