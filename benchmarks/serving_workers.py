"""Count tokens a second, and processor time a token, by the number of workers that continue the prompts of a server.

    python benchmarks/serving_workers.py NETWORK --workers 1 2 --prompts 200 --tokens 20 --rounds 3

Covers: the engine of `giaann-dask serve` with the same worker processes in turns, all prompts at once, and that all
numbers of workers give the same tokens. Does not cover: HTTP (`benchmarks/serving.py`). The processor time is that of
the worker processes, and of this one, in which the scheduler is, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.models.base import TokenEvent
from giaann_dask.serving.engine import CompletionEngine, CompletionOptions, PromptEvent
from giaann_dask.serving.models import open_engine
from giaann_dask.store.network_store import NetworkStore


def prompts(text: Path, count: int) -> list[str]:
    """Return beginnings of sentences, each of another length, in a fixed random order."""
    lines = [line.split() for line in text.read_text(encoding="utf-8").splitlines() if len(line.split()) > 9]
    choose = random.Random(0)
    return [" ".join(choose.choice(lines)[: 5 + number % 5]) for number in range(count)]


def processor_s(client: Client) -> tuple[float, float]:
    """Return the processor time of the worker processes, and of this one, so far."""
    used = [psutil.Process(pid).cpu_times() for pid in (*client.run(os.getpid).values(), os.getpid())]
    *workers, server = [times.user + times.system for times in used]
    return float(sum(workers)), float(server)


def run(engine: CompletionEngine, texts: Sequence[str], tokens: int) -> list[list[str]]:
    """Continue prompts all at once; return their words."""
    found: list[list[str]] = [[] for _ in texts]
    left = threading.Semaphore(0)

    def report_of(number: int) -> Any:
        def report(part: PromptEvent | Exception | None) -> None:
            if part is None:
                left.release()
            elif isinstance(part, TokenEvent) and part.token is not None:
                found[number].append(part.token.word)

        return report

    for number, text in enumerate(texts):
        engine.start(text, CompletionOptions(tokens=tokens), report_of(number))
    for _ in texts:
        left.acquire()
    return found


def main() -> None:
    """Print a line of JSON for every number of workers and round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", choices=["auto", "replicated", "remote"], default="auto")
    parser.add_argument("--text", type=Path, default=sample_text(), help="where prompts are from")
    options = parser.parse_args()
    store, texts = NetworkStore(options.network), prompts(options.text, options.prompts)
    reader = store.open(store.head())
    generation = gd.GenerationOptions(rows=gd.RowOptions(mode=options.rows))
    known: list[list[str]] | None = None
    with gd.connect(workers=max(options.workers)) as client:
        for turn in range(options.rounds):
            for workers in options.workers:
                with closing(open_engine(client, reader, generation, workers=workers)) as engine:
                    # Rows come into the caches, and compiled code is loaded.
                    run(engine, texts[:20], options.tokens)
                    before, used = time.perf_counter(), processor_s(client)
                    found = run(engine, texts, options.tokens)
                    seconds, after = time.perf_counter() - before, processor_s(client)
                    steps = engine.statistics().steps
                if known is not None and found != known:
                    raise SystemExit("the number of workers has changed the words")
                known, count = found, sum(map(len, found))
                answer = {
                    "round": turn,
                    "workers": workers,
                    "tokens": count,
                    "tokens_per_s": round(count / seconds),
                    "processor_ms_per_token": {
                        name: round(1000 * (now - then) / max(count, 1), 3)
                        for name, then, now in zip(("workers", "server"), used, after, strict=True)
                    },
                    "steps": steps,
                }
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
