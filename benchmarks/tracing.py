"""Measure tracing: milliseconds and processor time of each predicted token, and of the first one, on a cluster.

    python benchmarks/tracing.py NETWORK TEXT [--workers 2] [--prompts 60] [--words 8] [--tokens 3]
        [--sentences 3] [--json FILE]

The network has been trained with ``--trace``. Prompts are beginnings of sentences of the text, evenly spread; each is
continued by some tokens, ``predict``, of whose connections the sentences are then read, ``trace``; ``--sentences 0``
reads no text. Network, index and text are opened with the first token. Processor time is that of this process and its
workers.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import giaann_dask as gd
from giaann_dask.errors import PromptError
from giaann_dask.models.words.predictor import sentences_of
from giaann_dask.text.detokenizer import detokenize

Result = TypeVar("Result")
# Milliseconds on the clock and of the processors.
Times = list[tuple[float, float]]


@functools.cache
def workers() -> list[psutil.Process]:
    """Return the processes that this one has started; looking for them takes longer than what is measured."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def processor_seconds() -> float:
    """Return the seconds of the processors that this process and its workers have used."""
    return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in workers())


def timed(action: Callable[[], Result], found: Times) -> Result:
    """Run an action, and append its times."""
    used, started = processor_seconds(), time.perf_counter()
    result = action()
    seconds = time.perf_counter() - started
    found.append((1000 * seconds, 1000 * (processor_seconds() - used)))
    return result


def read_prompts(path: Path, wanted: int, words: int) -> list[str]:
    """Return the first words of some sentences of a text."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        long = [sentence[:words] for sentence in sentences_of(file.read()) if len(sentence) > words]
    return [
        detokenize(((word, "") for word in sentence), False)
        for sentence in long[:: max(1, len(long) // wanted)][:wanted]
    ]


def measure(network: gd.Network, prompts: list[str], tokens: int, sentences: int) -> dict[str, Times]:
    """Return the times of each token that continues the prompts, by what was measured."""
    predicted: Times = []
    traced: Times = []
    for prompt in prompts:
        times: Times = []
        try:
            continuation = timed(partial(network.generate, prompt, max_tokens=tokens, explain=True), times)
        except PromptError:
            # Without a noun, for one.
            continue
        count = len(continuation.tokens)
        predicted += [(seconds / count, used / count) for seconds, used in times for _ in range(count)]
        for token in continuation.tokens:
            one = replace(continuation, tokens=(token,))
            timed(partial(one.trace, sentences=sentences), traced)
    both = [(one[0] + other[0], one[1] + other[1]) for one, other in zip(predicted, traced, strict=True)]
    return {"predict": predicted, "trace": traced, "both": both}


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=60, help="sentences that are continued")
    parser.add_argument("--words", type=int, default=8, help="words of each that are given")
    parser.add_argument("--tokens", type=int, default=3, help="tokens of each continuation")
    parser.add_argument("--sentences", type=int, default=3, help="sentences whose text is read for each connection")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.text, arguments.prompts, arguments.words)
    with gd.connect(workers=arguments.workers):
        network = gd.open(arguments.network)
        times = measure(network, prompts, arguments.tokens, arguments.sentences)
    index = network.describe()["index"]
    figures: dict[str, dict[str, float]] = {}
    for name, found in times.items():
        clock, used = np.array(found).T
        columns = {"ms": clock, "processor ms": used}
        figures[name] = {
            f"{statistic} {column}": round(float(value), 1)
            for column, values in columns.items()
            for statistic, value in (("first", values[0]), ("median", np.median(values)), ("mean", values.mean()))
        }
    title = f"{len(times['trace'])} tokens; index {index['bytes']:,} bytes, network {index['network_bytes']:,}"
    table = Table("", *figures["trace"], title=title)
    for name, row in figures.items():
        table.add_row(name, *map(str, row.values()))
    Console(width=140).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({**figures, "index": index}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
