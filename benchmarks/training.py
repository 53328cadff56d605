"""Time training on a cluster from an encoded corpus, and say where the time goes.

In one run, on the same corpus: throughput by number of workers and by share of the corpus, against
a plain torch implementation (`plain_torch`), tasks, bytes, commits, what each stage takes of the
workers' time, processor time and peak memory of each process. Workers are warm; what the first
training of new workers costs more is told apart. Figures of one run are comparable with each
other; machines differ.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client, get_task_stream
from rich.console import Console
from rich.table import Table
from task_stream import Stage, by_stage, idle_shares, side_by_side

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.events import Committed, Event, RoundIntegrated

if TYPE_CHECKING:
    from giaann_dask.store.corpus import EncodedCorpus

# Worker processes import this module when they start. So what training needs is imported by nothing
# above, or the first training would not be as cold as a user's.

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"
BOOKS = SHARED / "data" / "books"
SKETCH = SHARED / "tools" / "training_sketch.py"
WARM_UP = 4096
WIDTH = 132


@dataclass
class Training:
    """Figures of one training run.

    Attributes
    ----------
    workers, sequences : int
        Worker processes, and counted sequences.
    seconds : float
        From the first read to the last commit.
    rounds : list of (float, int)
        For every round, when it was integrated and its sequences.
    commits : list of (float, int)
        For every commit, its seconds and by how many bytes the network grew on disk.
    tasks : int
        All tasks that ran.
    increment_bytes : int
        Bytes of all increments before they were routed.
    stages : dict of str to Stage
        By stage.
    idle : list of float
        Share of the time in which each worker ran no task.
    side_by_side : float
        Share of the time in which counting ran beside the integration of another round.
    processor_seconds : dict of str to list of float
        User and system time of this process (driver and scheduler) and of each worker.
    peak_mib : dict of str to int
        Largest resident size so far of the same processes.
    connections, bytes_on_disk, bytes_packed : int
        Of the network.
    """

    workers: int
    sequences: int
    seconds: float
    rounds: list[tuple[float, int]]
    commits: list[tuple[float, int]]
    tasks: int
    increment_bytes: int
    stages: dict[str, Stage]
    idle: list[float]
    side_by_side: float
    processor_seconds: dict[str, list[float]]
    peak_mib: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    bytes_on_disk: int = 0
    bytes_packed: int = 0

    @property
    def rate(self) -> float:
        """Sequences a second, commits included."""
        return self.sequences / self.seconds

    def tenth(self, first: bool) -> float:
        """Sequences a second in the first or last tenth of this run, as rounds were done, without the commit."""
        done = np.cumsum([0] + [sequences for _, sequences in self.rounds])
        begin, end = (0.0, 0.1) if first else (0.9, 1.0)
        times = np.interp([begin * done[-1], end * done[-1]], done, [0.0] + [moment for moment, _ in self.rounds])
        return float(0.1 * done[-1] / (times[1] - times[0]))


class Recorder:
    """An observer that remembers when rounds and commits were done."""

    def __init__(self, network: Path) -> None:
        self._network = network
        self._bytes = folder_bytes(network)
        self._started = time.perf_counter()
        self.rounds: list[tuple[float, int]] = []
        self.commits: list[tuple[float, int]] = []

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RoundIntegrated):
            self.rounds.append((time.perf_counter() - self._started, event.sequences))
        elif isinstance(event, Committed):
            before, self._bytes = self._bytes, folder_bytes(self._network)
            self.commits.append((event.seconds, self._bytes - before))


def folder_bytes(path: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def train(client: Client, corpus: EncodedCorpus, network: Path, options: gd.TrainingOptions) -> Training:
    """Train a network, new or existing, and measure what this training added."""
    before, recorder = processor_seconds(client), Recorder(network)
    with get_task_stream(client) as stream:
        started = time.time()
        trained = gd.train(corpus.path, network, client=client, options=options, observer=recorder)
        report = trained.training_report
        span = started, time.time()
    after = processor_seconds(client)
    used = {name: [end - start for start, end in zip(before[name], after[name], strict=True)] for name in after}
    measured = Training(
        workers=len(before) - 1,
        sequences=report.sequences,
        seconds=report.seconds,
        rounds=recorder.rounds,
        commits=recorder.commits,
        tasks=len(stream.data),
        increment_bytes=report.increment_bytes,
        stages=by_stage(stream.data),
        idle=idle_shares(stream.data, span, len(before) - 1),
        side_by_side=side_by_side(stream.data, span),
        processor_seconds=used,
        peak_mib=peaks(client),
        connections=report.connections,
    )
    described = trained.describe()
    measured.bytes_on_disk, measured.bytes_packed = described["bytes_on_disk"], described["bytes_in_memory"]
    return measured


def processor_seconds(client: Client) -> dict[str, list[float]]:
    """Return user and system time of this process and of the workers so far."""
    workers = sorted(client.run(used_seconds).items())
    return {"driver": used_seconds(), **{f"worker {i}": each for i, (_, each) in enumerate(workers)}}


def used_seconds() -> list[float]:
    """Return user and system time of this process so far; system time is mostly that of new memory."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [used.ru_utime, used.ru_stime]


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def peaks(client: Client) -> dict[str, int]:
    """Return the largest resident sizes of this process and of the workers so far, in MiB."""
    workers = sorted(client.run(peak_memory).items())
    return {"driver": peak_memory(), **{f"worker {i}": each for i, (_, each) in enumerate(workers)}}


def time_plain(corpus: str, seconds: float) -> dict[str, float]:
    """Train with plain torch for a bounded time, in a process of its own; checked against ours first."""
    import plain_torch

    equal, _ = plain_torch.compare(sample_text())
    block = gd.EncodedCorpus(corpus).encoded()
    started = time.perf_counter()
    network, counted = plain_torch.train(block, gd.Specification(), seconds)
    rate = counted / (time.perf_counter() - started)
    return {
        "sequences": counted,
        "rate": rate,
        "connections": len(network.connections),
        "peak_mib": peak_memory(),
        "equal": equal,
    }


def time_sketch(inputs: list[str], workers: int, batch: int) -> float:
    """Run the design's sketch, which numbers words by a crude rule, on the same text; sequences a second."""
    from giaann_dask.text.input_files import open_bytes
    from giaann_dask.text.inputs import resolve_inputs

    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        for path in resolve_inputs(inputs):
            if isinstance(path, Path):
                with open_bytes(path) as text:
                    file.write(text.read())
        file.flush()
        command = [sys.executable, str(SKETCH), file.name, str(workers), str(batch)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def warm_up(client: Client, corpus: EncodedCorpus, folder: Path) -> dict[str, float]:
    """Train a little twice, so that imports and compiled code are not measured later; say what they cost."""
    small = gd.TrainingOptions(max_sequences=min(WARM_UP * len(client.nthreads()), len(corpus)))
    cold, warm = (train(client, corpus, folder / f"start-{i}", small) for i in range(2))
    return {
        "sequences": cold.sequences,
        "cold": cold.rate,
        "warm": warm.rate,
        "more_seconds": cold.seconds - warm.seconds,
    }


def train_fractions(
    client: Client, corpus: EncodedCorpus, arguments: argparse.Namespace, folder: Path
) -> list[Training]:
    """Train a new network on each share of the corpus."""
    runs = []
    for fraction in sorted(arguments.fraction):
        options = training_options(arguments, max_sequences=max(1, round(len(corpus) * fraction)))
        runs.append(train(client, corpus, folder / f"net-{fraction}", options))
    return runs


def train_tenths(client: Client, corpus: EncodedCorpus, arguments: argparse.Namespace, folder: Path) -> list[Training]:
    """Train the first tenth of the corpus, and the last one on a network that holds all before it."""
    tenth = max(1, len(corpus) // 10)
    plan = (("first", tenth), ("last", len(corpus) - tenth), ("last", len(corpus)))
    first, _, last = (
        train(client, corpus, folder / name, training_options(arguments, max_sequences=count)) for name, count in plan
    )
    return [first, last]


def training_options(arguments: argparse.Namespace, **more: Any) -> gd.TrainingOptions:
    """Return the options that the command was given, and others."""
    names = ("batch_sequences", "block_characters", "accumulate", "rounds_in_flight", "commit_seconds")
    given = {name: getattr(arguments, name) for name in names}
    return gd.TrainingOptions(**{name: value for name, value in given.items() if value is not None}, **more)


def show_runs(console: Console, runs: list[Training]) -> None:
    """Print a line for every run."""
    table = Table(title="training from the corpus, workers warm, commits included")
    for name in (
        "workers",
        "sequences",
        "seconds",
        "sequences/s",
        "idle",
        "tasks",
        "tasks/s",
        "increments MB",
        "commit s",
        "commit MB",
    ):
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(
            str(run.workers),
            f"{run.sequences:,}",
            f"{run.seconds:.2f}",
            f"{run.rate:,.0f}",
            " ".join(f"{share:.0%}" for share in run.idle),
            f"{run.tasks:,}",
            f"{run.tasks / run.seconds:.0f}",
            f"{run.increment_bytes / 1e6:,.0f}",
            " ".join(f"{seconds:.2f}" for seconds, _ in run.commits),
            " ".join(f"{size / 1e6:.1f}" for _, size in run.commits),
        )
    console.print(table)


def show_stages(console: Console, run: Training) -> None:
    """Print where the time of one run went."""
    total = run.seconds * run.workers
    table = Table(title=f"where the time goes: {run.workers} workers, {run.sequences:,} sequences")
    for name in ("stage", "tasks", "compute s", "of workers' time", "ms a task", "transfer s", "disk s"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for name, stage in sorted(run.stages.items(), key=lambda item: -item[1].compute):
        each = 1000 * stage.compute / stage.tasks
        table.add_row(
            name,
            f"{stage.tasks:,}",
            f"{stage.compute:.2f}",
            f"{stage.compute / total:.1%}",
            f"{each:.1f}",
            f"{stage.transfer:.2f}",
            f"{stage.disk:.2f}",
        )
    table.add_row("idle", "", f"{sum(run.idle) * run.seconds:.2f}", f"{sum(run.idle) / run.workers:.1%}", "", "", "")
    console.print(table)
    used = ", ".join(f"{name} {user:.1f} + {system:.1f}" for name, (user, system) in run.processor_seconds.items())
    each = 1e6 * sum(map(sum, run.processor_seconds.values())) / run.sequences
    console.print(f"user + system seconds in {run.seconds:.1f}: {used}; {each:.0f} microseconds a sequence")
    console.print(f"counting ran beside the integration of another round in {run.side_by_side:.0%} of the time")
    console.print("peak MiB so far: " + ", ".join(f"{name} {size}" for name, size in run.peak_mib.items()))
    if run.connections:
        console.print(
            f"{run.connections:,} connections: {run.bytes_on_disk / run.connections:.2f} bytes each on disk, "
            f"{run.bytes_packed / run.connections:.2f} as packed runs"
        )


def show_ratios(console: Console, figures: dict[str, Any], runs: list[Training]) -> None:
    """Print the ratios that the figures are for."""
    whole = {run.workers: run for run in runs if run.sequences == max(r.sequences for r in runs)}
    most = whole[max(whole)]
    for workers, start in figures["start"].items():
        console.print(
            f"{workers} workers, first {start['sequences']:,} sequences: {start['cold']:,.0f}/s cold, "
            f"{start['warm']:,.0f}/s warm; a start costs {start['more_seconds']:.2f} s more"
        )
    if 1 in whole and 2 in whole:
        console.print(f"2 workers / 1 worker: {whole[2].rate / whole[1].rate:.2f}")
    if tenths := figures.get("tenths"):
        first, last = (run.rate for run in tenths)
        console.print(
            f"{most.workers} workers: {first:,.0f} sequences/s on the first tenth, {last:,.0f} on the last, on a "
            f"network that holds the others; last / first: {last / first:.2f}"
        )
    first, last = most.tenth(True), most.tenth(False)
    console.print(
        f"{most.workers} workers, whole corpus: {first:,.0f} sequences/s in the first tenth of the run, {last:,.0f} in "
        f"the last, without the commit; last / first: {last / first:.2f}"
    )
    for run in runs:
        if run.workers == most.workers and run is not most:
            share = run.sequences / most.sequences
            console.print(f"whole / {share:.0%} of the corpus, {run.workers} workers: {most.rate / run.rate:.2f}")
    if plain := figures.get("plain"):
        console.print(
            f"plain torch: {plain['rate']:,.0f} sequences/s on the first {plain['sequences']:,}, peak "
            f"{plain['peak_mib']} MiB; ours / plain: {most.rate / plain['rate']:.1f}; the two are equal on the "
            f"sample text ({plain['equal']:,} connections)"
        )
    if sketch := figures.get("sketch"):
        ratio = most.rate / sketch
        console.print(f"the design's sketch: {sketch:,.0f} sequences/s, without commit; ours / sketch: {ratio:.2f}")


def parse_arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[BOOKS], help="text to read; the books by default")
    parser.add_argument("--fraction", type=float, nargs="+", default=[0.1, 1.0], help="shares of it to train")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of worker processes")
    parser.add_argument("--batch-sequences", type=int, help="sequences of one counting task")
    parser.add_argument("--block-characters", type=int, help="text of one task that reads the corpus")
    parser.add_argument("--accumulate", type=int, help="batches whose increments travel together")
    parser.add_argument("--rounds-in-flight", type=int, help="rounds at the same time")
    parser.add_argument("--commit-seconds", type=float, help="least time between commits")
    parser.add_argument("--plain-seconds", type=float, default=10, help="time for plain torch; 0 leaves it out")
    parser.add_argument("--no-tenths", action="store_true", help="do not time the last tenth by itself")
    parser.add_argument("--sketch", action="store_true", help="time the design's training sketch, too")
    parser.add_argument("--corpus", type=Path, help="read a corpus that was encoded before instead of text")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.text == [BOOKS] and not BOOKS.exists() and arguments.corpus is None:
        Console(stderr=True).print("the books are not here; reading the sample text, which is small")
        arguments.text = [sample_text()]
    return arguments


def encode(arguments: argparse.Namespace, folder: Path) -> EncodedCorpus:
    """Encode the text with as many workers as will train, or open a corpus."""
    if arguments.corpus is not None:
        return gd.EncodedCorpus(arguments.corpus)
    with gd.connect(workers=max(arguments.workers)) as client:
        return gd.encode(arguments.text, folder / "corpus", client=client)


def main() -> None:
    """Run the benchmark and print its tables."""
    arguments, console = parse_arguments(), Console(width=WIDTH)
    figures: dict[str, Any] = {"start": {}}
    runs: list[Training] = []
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), time.perf_counter()
        corpus = encode(arguments, folder)
        figures["encode"] = {"sequences": len(corpus), "seconds": time.perf_counter() - started}
        for workers in sorted(arguments.workers):
            with gd.connect(workers=workers) as client, tempfile.TemporaryDirectory() as networks:
                figures["start"][workers] = warm_up(client, corpus, Path(networks))
                runs += train_fractions(client, corpus, arguments, Path(networks))
                if workers == max(arguments.workers) and not arguments.no_tenths:
                    figures["tenths"] = train_tenths(client, corpus, arguments, Path(networks))
        if arguments.plain_seconds > 0:
            # A process of its own, so that its memory is told apart and given back.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                figures["plain"] = pool.submit(time_plain, str(corpus.path), arguments.plain_seconds).result()
        if arguments.sketch and SKETCH.exists():
            figures["sketch"] = time_sketch(arguments.text, max(arguments.workers), 8192)
    show_runs(console, runs)
    show_stages(console, max((r for r in runs if r.workers == max(arguments.workers)), key=lambda run: run.sequences))
    show_ratios(console, figures, runs)
    if arguments.json is not None:
        figures["runs"] = runs
        arguments.json.write_text(json.dumps(figures, indent=2, default=as_dict), encoding="utf-8")


def as_dict(run: Training) -> dict[str, Any]:
    """Return JSON-ready values."""
    return asdict(run) | {"rate": run.rate}


if __name__ == "__main__":
    main()
