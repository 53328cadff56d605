"""A soak: training that goes on while a worker is killed every minute, and what memory does meanwhile.

    python benchmarks/soak.py --minutes 30

Covers: one training run on text whose vocabulary grows, commits going on, one SIGKILL of a random
worker in every interval; resident memory of this process (driver and scheduler) and of the workers,
what the scheduler and the client hold, and bytes on the disk, sampled all the time. At the end: the
slopes of the second half, the kills that were survived, and whether the export equals, byte for
byte, that of an undisturbed run of the same sequences. Does not cover: how fast it is (`training`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client
from rich.console import Console
from rich.table import Table

import giaann_dask as gd
from giaann_dask.cluster import ClusterOptions
from giaann_dask.events import Committed, Event, RoundIntegrated

FILE_SENTENCES = 50_000
# Between looks at the disk, which take a while.
DISK_SECONDS = 20.0
# Words are made of these; with a noun's ending the taggers take them for nouns.
SYLLABLES = [a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "u", "an", "er", "ol")]
VERBS = ["carried", "followed", "watched", "found", "sold", "painted", "remembered", "crossed", "mended"]
PREPOSITIONS = ["to", "from", "near", "behind", "under", "over", "beside", "into", "across", "through"]
ADJECTIVES = ["old", "grey", "small", "warm", "narrow", "quiet", "early", "brown", "heavy", "white"]


@dataclass(frozen=True)
class Sample:
    """What there is at some moment; sizes in MiB, time in seconds.

    `keys` are those that the client holds at the scheduler, `futures` those that it knows itself,
    `held` the bytes that the scheduler counts on all workers.
    """

    seconds: float
    sequences: int
    driver: float
    workers: list[float]
    tasks: int
    keys: int
    futures: int
    held: float
    disk: float


@dataclass
class Soak:
    """What is seen while training goes on."""

    client: Client
    network: Path
    options: argparse.Namespace
    started: float = field(default_factory=time.monotonic)
    sequences: int = 0
    commits: int = 0
    connections: list[tuple[float, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    disk: int = 0
    next_disk: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def observe(self, event: Event) -> None:
        """Count what training tells."""
        if isinstance(event, RoundIntegrated):
            self.sequences += event.sequences
        elif isinstance(event, Committed):
            self.commits += 1
            self.connections.append((self.elapsed(), gd.Network(self.network).manifest.connections))

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def watch(self) -> None:
        """Sample, kill and end in time, until training is over."""
        choose, next_kill = random.Random(self.options.seed), self.options.kill_seconds
        while not self.over.wait(self.options.sample_seconds):
            self.samples.append(self.sample())
            if self.elapsed() > 60 * self.options.minutes:
                self.stop.set()
            elif self.elapsed() > next_kill and self.sequences:
                next_kill += self.options.kill_seconds
                self.kill(choose)

    def kill(self, choose: random.Random) -> None:
        """Kill a random worker that is there."""
        pids = [nanny.pid for nanny in self.client.cluster.workers.values() if nanny.pid]
        with suppress(IndexError, ProcessLookupError):
            os.kill(choose.choice(pids), signal.SIGKILL)
            self.kills.append(self.elapsed())

    def bytes_on_disk(self) -> int:
        """Return the bytes of the network, found by another process: names of 100,000 files take memory here."""
        if not self.network.exists():
            return 0
        # Not a failure where a file goes while it is counted.
        found = subprocess.run(["du", "-sk", str(self.network)], capture_output=True, text=True, check=False)
        return 1024 * int(found.stdout.split()[0])

    def sample(self) -> Sample:
        """Look at processes, scheduler and disk."""
        scheduler = self.client.cluster.scheduler
        if self.elapsed() > self.next_disk:
            self.disk, self.next_disk = self.bytes_on_disk(), self.elapsed() + DISK_SECONDS
        workers = []
        for nanny in list(self.client.cluster.workers.values()):
            with suppress(psutil.NoSuchProcess, TypeError):
                workers.append(psutil.Process(nanny.pid).memory_info().rss / 2**20)
        wanted = scheduler.clients.get(self.client.id)
        return Sample(
            seconds=self.elapsed(),
            sequences=self.sequences,
            driver=psutil.Process().memory_info().rss / 2**20,
            workers=workers,
            tasks=len(scheduler.tasks),
            keys=0 if wanted is None else len(wanted.wants_what),
            futures=len(self.client.futures),
            held=sum(worker.nbytes for worker in list(scheduler.workers.values())) / 2**20,
            disk=self.disk / 2**20,
        )


def sentences(seed: int, start: int, count: int, grow: float) -> Iterator[str]:
    """Yield sentences; a new noun joins after every so many of them, and frequent ones stay frequent."""
    choose = random.Random(f"{seed} {start}")
    words = random.Random(seed)
    nouns = ["".join(words.choices(SYLLABLES, k=3)) + "er" for _ in range(200 + int((start + count) / grow))]
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(nouns))))
    for number in range(start, start + count):
        known = 200 + int(number / grow)
        places = (bisect(weights, choose.random() * weights[known - 1], hi=known - 1) for _ in range(4))
        a, b, c, d = (nouns[place] for place in places)
        yield (
            f"The {choose.choice(ADJECTIVES)} {a} {choose.choice(VERBS)} the {b} {choose.choice(PREPOSITIONS)} "
            f"the {choose.choice(ADJECTIVES)} {c} and it {choose.choice(VERBS)} the {d}."
        )


def write_text(folder: Path, options: argparse.Namespace) -> None:
    """Write enough text for the whole time, in files of distinct sentences."""
    folder.mkdir()
    for number, start in enumerate(range(0, options.sentences, FILE_SENTENCES)):
        lines = list(sentences(options.seed, start, min(FILE_SENTENCES, options.sentences - start), options.grow))
        paragraphs = ("\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20))
        (folder / f"{number:05d}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")


def soak(text: Path, network: Path, options: argparse.Namespace) -> tuple[Soak, gd.Network, int]:
    """Train while workers are killed; return what was seen, the network and its sequences."""
    training = gd.TrainingOptions(batch_sequences=options.batch_sequences, commit_seconds=options.commit_seconds)
    with gd.connect(options=ClusterOptions(workers=options.workers)) as client:
        seen = Soak(client, network, options)
        watcher = threading.Thread(target=seen.watch, daemon=True)
        watcher.start()
        try:
            trained = gd.train(text, network, client=client, options=training, observer=seen.observe, stop=seen.stop)
            report = trained.training_report
        finally:
            seen.over.set()
            watcher.join()
        # What is left when nothing is under way any more.
        time.sleep(2)
        seen.samples.append(seen.sample())
    return seen, trained, report.sequences


def slope(samples: list[Sample], name: str) -> float:
    """Return the growth of a value a minute, by least squares."""
    values = [sum(v) if isinstance(v := getattr(each, name), list) else v for each in samples]
    return float(np.polyfit([each.seconds / 60 for each in samples], values, 1)[0]) if len(samples) > 2 else 0.0


def show(console: Console, seen: Soak, half: list[Sample]) -> None:
    """Print some samples, and the slopes of the second half."""
    table = Table(title=f"{seen.options.workers} workers, {len(seen.kills)} kills, {seen.commits} commits; MiB")
    for name in ("minute", "sequences", "driver", "workers", "held by workers", "disk", "tasks", "keys", "futures"):
        table.add_column(name, justify="right")
    step = max(1, len(seen.samples) // 20)
    for each in [*seen.samples[:-1:step], seen.samples[-1]]:
        table.add_row(
            f"{each.seconds / 60:.1f}",
            f"{each.sequences:,}",
            f"{each.driver:,.0f}",
            " + ".join(f"{size:,.0f}" for size in each.workers),
            f"{each.held:,.0f}",
            f"{each.disk:,.0f}",
            f"{each.tasks:,}",
            f"{each.keys:,}",
            f"{each.futures:,}",
        )
    console.print(table)
    names = ("driver", "workers", "held", "disk", "tasks", "keys", "futures")
    console.print("growth a minute in the second half: " + ", ".join(f"{n} {slope(half, n):+.1f}" for n in names))
    later = [count for seconds, count in seen.connections if seconds >= half[0].seconds]
    if later:
        console.print(f"connections in the second half: {later[0]:,} to {later[-1]:,}")


def undisturbed(text: Path, folder: Path, sequences: int, workers: int) -> bytes:
    """Return what an undisturbed run of the same sequences exports."""
    with gd.connect(workers=workers) as client:
        options = gd.TrainingOptions(max_sequences=sequences)
        network = gd.train(text, folder / "undisturbed", client=client, options=options)
    return network.export(folder / "undisturbed.npz")[0].read_bytes()


def parse_arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to train")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--kill-seconds", type=float, default=60.0, help="one kill in every so many seconds")
    parser.add_argument("--commit-seconds", type=float, default=10.0, help="least time between commits")
    parser.add_argument("--sample-seconds", type=float, default=2.0, help="time between samples")
    parser.add_argument("--batch-sequences", type=int, default=4096, help="sequences of one counting task")
    parser.add_argument("--sentences", type=int, help="text to write; 3,000 for each second by default")
    parser.add_argument("--grow", type=float, default=100.0, help="a new noun after so many sentences")
    parser.add_argument("--seed", type=int, default=1, help="of text and kills")
    parser.add_argument("--check-workers", type=int, default=0, help="workers of the undisturbed run; 0: in series")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    arguments = parser.parse_args()
    if arguments.sentences is None:
        arguments.sentences = int(180_000 * arguments.minutes)
    return arguments


def main() -> None:
    """Run the soak, print its figures, and leave with 1 if the networks differ."""
    options, console = parse_arguments(), Console(width=140)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text", options)
        seen, network, sequences = soak(folder / "text", folder / "network", options)
        half = [each for each in seen.samples[:-1] if each.seconds >= seen.samples[-1].seconds / 2]
        show(console, seen, half or seen.samples)
        if not seen.stop.is_set():
            console.print("the text was used up before the time; ask for more with --sentences")
        exported = network.export(folder / "network.npz")[0].read_bytes()
        expected = undisturbed(folder / "text", folder, sequences, options.check_workers)
    figures: dict[str, Any] = {"samples": [asdict(each) for each in seen.samples], "kills": seen.kills}
    figures |= {"connections": seen.connections, "sequences": sequences, "identical": exported == expected}
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    console.print(f"{sequences:,} sequences, {len(seen.kills)} kills survived; byte-identical: {exported == expected}")
    sys.exit(0 if exported == expected else 1)


if __name__ == "__main__":
    main()
