"""Train a network that is larger than the memory of all workers together.

Random words make nearly every connection a new one, so the network grows as fast as it can. One run
has workers with little memory, a second one has all it wants; both must give the same bytes.
Reported: the size of the network against the memory limits, what was decoded, packed and spilled at
most, the largest resident size of a worker, and how much slower it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from rich.console import Console
from rich.table import Table

import giaann_dask as gd
from giaann_dask.events import Event, MemoryMeasured
from giaann_dask.text.read_options import ReadOptions

NOUNS, OTHERS = 5_000, 60_000


def write_random(path: Path, sentences: int, tokens: int) -> Path:
    """Write CoNLL-U sentences of random words, an eighth of them nouns, with delimiters between."""
    choose = np.random.default_rng(7)
    ending = ["_"] * 5
    with path.open("w", encoding="utf-8") as file:
        for _ in range(sentences):
            lines = []
            for place in range(tokens):
                if place % 8 == 7:
                    word, kind = f"n{choose.integers(NOUNS)}", ("NOUN", "NN")
                elif place % 8 == 0 and place:
                    word, kind = "of", ("ADP", "IN")
                else:
                    word, kind = f"w{choose.integers(OTHERS)}", ("ADJ", "JJ")
                lines.append("\t".join([str(place + 1), word, word, *kind, *ending]))
            file.write("\n".join(lines) + "\n\n")
    return path


def train(client: Client, corpus: Path, network: Path, options: gd.TrainingOptions) -> dict[str, Any]:
    """Train and return what was measured."""
    seen: list[MemoryMeasured] = []

    def remember(event: Event) -> None:
        if isinstance(event, MemoryMeasured):
            seen.append(event)

    limits = [worker["memory_limit"] for worker in client.scheduler_info()["workers"].values()]
    begun = time.perf_counter()
    rule = gd.Specification(regions=16, placement="balanced")
    trained = gd.train(corpus, network, client=client, options=options, observer=remember, specification=rule)
    report = trained.training_report
    seconds = time.perf_counter() - begun
    digest = hashlib.sha256()
    for run in (trained.table() if report.connections < 5e7 else None,):
        if run is not None:
            digest.update(run.strength.tobytes())
    return {
        "memory_limits": sum(limits),
        "seconds": seconds,
        "connections": report.connections,
        "regions": report.regions,
        "network_bytes": trained.describe()["bytes_in_memory"],
        "decoded_bytes": 12 * report.connections,
        "hot_bytes": report.hot_bytes,
        "packed_bytes": report.packed_bytes,
        "spilled_bytes": report.spilled_bytes,
        "process_bytes": max(event.process_bytes for event in seen),
        "strengths": digest.hexdigest() if report.connections < 5e7 else "not compared",
    }


def readable(value: object) -> str:
    """Return a value as text, numbers with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run both and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=40_000)
    parser.add_argument("--tokens", type=int, default=78, help="of a sentence")
    parser.add_argument("--memory-limit", default="700MiB", help="of each worker of the first run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--region-bytes", type=int, default=1 << 26)
    parser.add_argument("--batch-sequences", type=int, default=500)
    parser.add_argument("--only-small", action="store_true", help="leave the second run out")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    options = gd.TrainingOptions(
        batch_sequences=chosen.batch_sequences,
        block_characters=1 << 20,
        region_bytes=chosen.region_bytes,
        commit_seconds=30,
    )
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = write_random(Path(folder) / "random.conllu", chosen.sentences, chosen.tokens)
        reading = gd.TextOptions(tagger="gold", reading=ReadOptions(part_characters=1 << 20))
        with gd.connect(workers=chosen.workers) as client:
            corpus = gd.encode(text, Path(folder) / "corpus", client=client, text=reading).path
        for name, limit in (("little memory", chosen.memory_limit), ("enough memory", None)):
            if limit is None and chosen.only_small:
                continue
            cluster = gd.ClusterOptions(workers=chosen.workers, memory_limit=limit)
            with gd.connect(options=cluster) as client:
                results[name] = train(client, corpus, Path(folder) / name.split()[0], options)
    if chosen.json:
        print(json.dumps(results))
        return
    table = Table("figure", *results)
    for figure in next(iter(results.values())):
        table.add_row(figure, *(readable(values[figure]) for values in results.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
