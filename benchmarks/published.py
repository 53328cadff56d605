"""Time the published scheme by the number of sequences at once, order, division of columns, and links.

Each of B compute workers trains one sequence at a time (``train --mode published``). All workers are processes in
network namespaces, as in `links`, which are throttled, and delayed by `delayed_link`. Trainings go on from a network
of the text before, whose columns are whole in 4 regions, or divided into many. Beside them stands training in batches
on the same workers and links. Needs Linux, root, `ip` and `tc`.

    python benchmarks/published.py novel.txt --workers 1 2 4 8

With ``--count`` nothing is timed and nothing of this is needed: it is counted how many sequences train at once on
average when each takes the same time, and waits for those before it that have one of its columns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from distributed import Client
from links import INSIDE, RUN_TIMEOUT_S, Links, call, encode, enter_namespaces, possible, run_inside, start_workers
from rich.console import Console
from rich.table import Table
from training import BOOKS

import giaann_dask as gd
from giaann_dask.cluster import roles_of
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.training.selection import ColumnTouches, choose_rounds, touches_of
from giaann_dask.training.training_options import Order, SelectionOptions

# Rate of a link that is not throttled, in Mbit/s.
FREE = 1000.0
MTU = "9000"
START_TIMEOUT_S = 20


class DelayedLinks(Links):
    """Links whose frames pass through processes that hold them for a while."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._delay = folder / "delay"
        self._delay.write_bytes(struct.pack("d", 0.0))
        super().__init__(names)

    def connect(self, number: int, name: str) -> None:
        """See `Links.connect`."""
        script = str(Path(__file__).parent / "delayed_link.py")
        subprocess.Popen([sys.executable, script, name, f"to-{number}", "link0", str(self._delay)])
        until = time.monotonic() + START_TIMEOUT_S
        while not possible("ip", "-n", name, "link", "set", "link0", "mtu", MTU):
            if time.monotonic() > until:
                sys.exit(f"published: no link of {name}; /dev/net/tun is needed")
            time.sleep(0.05)
        call("ip", "link", "set", f"to-{number}", "mtu", MTU, "master", "bridge0", "up")

    def set(self, mbit: float, delay_ms: float) -> None:
        """Set the rate and the delay of every link, each way."""
        # In place, as other processes have it in memory.
        with self._delay.open("r+b") as file:
            file.write(struct.pack("d", delay_ms / 1000))
        bucket = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "65536", "latency", "500ms")
        for number, name in enumerate(self.names):
            call("tc", "-n", name, "qdisc", "replace", "dev", "link0", *bucket)
            call("tc", "qdisc", "replace", "dev", f"to-{number}", *bucket)


@dataclass(frozen=True)
class Timing:
    """A training of some sequences; rates in trained sequences a second, bytes of all workers."""

    workers: int
    mbit: float
    delay_ms: float
    columns: str
    order: str
    rate: float
    waits: int
    wait_s: float
    sent_bytes: float
    tasks: float
    messages: float


def make_networks(corpus: Path, folder: Path, arguments: argparse.Namespace, console: Console) -> None:
    """Train the text before, into whole columns and into divided ones."""
    specification = gd.Specification(regions=4)
    with gd.connect(workers=0) as client:
        for name, region_bytes in (("whole", 1 << 28), ("divided", arguments.region_bytes)):
            options = gd.TrainingOptions(max_sequences=arguments.before, region_bytes=region_bytes)
            network = gd.train(corpus, folder / name, client=client, specification=specification, options=options)
            placement = NetworkStore(network.path).open(network.commit).placement()
            columns = np.arange(network.manifest.concepts)
            parts = [len(placement.regions_of_column(column)) for column in columns.tolist()]
            console.print(
                f"{name}: {network.manifest.connections:,} connections, {len(columns):,} columns, "
                f"{len(placement.live())} regions, {sum(part > 1 for part in parts)} columns in several of these, "
                f"the most in {max(parts)}"
            )


def train(
    client: Client, links: DelayedLinks, folder: Path, setting: tuple[float, float, str, str], limit: int
) -> Timing:
    """Go on with a network, and measure from the time at which every worker has a sequence."""
    (mbit, delay_ms, columns, order), workers = setting, len(roles_of(client).compute)
    copy = Path(shutil.copytree(folder / columns, folder / "copy"))
    ends: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, RoundIntegrated):
            ends.append(time.perf_counter())

    options = gd.TrainingOptions(max_sequences=limit, commit_seconds=RUN_TIMEOUT_S)
    if order != "batches":
        options = replace(options, mode="published", selection=SelectionOptions(order=order))  # type: ignore[arg-type]
    sent = links.sent_bytes()
    report = gd.train(folder / "corpus", copy, client=client, options=options, observer=observe).training_report
    shutil.rmtree(copy)
    rate = report.trained / report.seconds
    if order != "batches":
        rate = (len(ends) - workers) / (ends[-1] - ends[workers - 1])
    each = max(report.trained, 1)
    waits, sent_bytes = (report.lock_waits, report.lock_seconds), (links.sent_bytes() - sent) / each
    return Timing(
        workers, mbit, delay_ms, columns, order, rate, *waits, sent_bytes, report.tasks / each, report.messages / each
    )


def show(console: Console, timings: Sequence[Timing]) -> None:
    """Print all timings."""
    table = Table(title="the published scheme; bytes, tasks and messages for each sequence")
    headings = ("B", "Mbit/s", "delay ms", "columns", "order", "sequences/s", "waits", "waited s", "sent kB", "tasks")
    for name in (*headings, "messages"):
        table.add_column(name, justify="right")
    for t in timings:
        setting = (str(t.workers), f"{t.mbit:g}", f"{t.delay_ms:g}", t.columns, t.order)
        moved = (f"{t.sent_bytes / 1e3:.1f}", f"{t.tasks:.1f}", f"{t.messages:.1f}")
        table.add_row(*setting, f"{t.rate:.1f}", str(t.waits), f"{t.wait_s:.1f}", *moved)
    console.print(table)


def count_at_once(touches: ColumnTouches, workers: int, order: Order) -> float:
    """Return how many sequences train at once on average, of which each takes the time 1."""
    free, release, begin = [0.0] * workers, dict[int, float](), 0.0
    for sequence in choose_rounds(touches, workers, SelectionOptions(order=order)).tolist():
        columns = touches.column[touches.offsets[sequence] : touches.offsets[sequence + 1]].tolist()
        worker = free.index(min(free))
        # Sequences begin in order.
        begin = max(begin, free[worker], *(release.get(column, 0.0) for column in columns))
        free[worker] = begin + 1
        release |= dict.fromkeys(columns, begin + 1)
    return len(touches) / max(free)


def show_counts(console: Console, corpus: Path, arguments: argparse.Namespace) -> None:
    """Print how many sequences train at once, by order and workers, and the most that any order allows."""
    touches = touches_of([gd.EncodedCorpus(corpus).encoded()])
    most = len(touches) / int(np.bincount(touches.column).max())
    table = Table(title=f"sequences at once, of {len(touches):,}; in no order more than {most:.1f} on average")
    for name in ("B", *arguments.order):
        table.add_column(name, justify="right")
    for workers in arguments.workers:
        table.add_row(str(workers), *(f"{count_at_once(touches, workers, order):.1f}" for order in arguments.order))
    console.print(table)


def settings_of(mbit: float, delay_ms: float, arguments: argparse.Namespace) -> list[tuple[float, float, str, str]]:
    """Return what is compared at a rate and delay: orders with whole columns, and divided ones with the first order."""
    orders = [(mbit, delay_ms, "whole", order) for order in arguments.order]
    return [*orders, (mbit, delay_ms, "divided", arguments.order[0])]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[BOOKS], help="text to read; the books by default")
    parser.add_argument("--corpus", type=Path, help="read a corpus that was encoded before instead of text")
    parser.add_argument("--before", type=int, default=2000, help="sequences of the networks that trainings go on from")
    parser.add_argument("--sequences", type=int, default=96, help="sequences of a training")
    parser.add_argument("--in-batches", type=int, default=4096, help="sequences of a training in batches")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="compute workers: B")
    parser.add_argument("--storage", type=int, default=2, help="storage workers")
    parser.add_argument("--links", nargs="+", default=["1000:0", "2:0", "1000:20"], help="Mbit/s:milliseconds each way")
    parser.add_argument("--order", nargs="+", default=["least-overlap", "corpus", "random"])
    parser.add_argument("--region-bytes", type=int, default=1 << 18, help="of divided columns")
    parser.add_argument("--count", action="store_true", help="count how many sequences train at once")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments, console = parser.parse_args(), Console(width=150)
    if arguments.count:
        with tempfile.TemporaryDirectory() as made:
            show_counts(console, encode(arguments, Path(made)), arguments)
        return
    if INSIDE not in os.environ:
        sys.exit(run_inside())
    enter_namespaces()
    folder, last, timings = Path(os.environ[INSIDE]), arguments.before + arguments.sequences, []
    sequences, arguments.sequences = arguments.sequences, arguments.before + arguments.in_batches
    names = [f"storage-{i}" for i in range(arguments.storage)] + [f"compute-{i}" for i in range(max(arguments.workers))]
    links = DelayedLinks(names, folder)
    corpus = encode(arguments, folder)
    if corpus != folder / "corpus":
        (folder / "corpus").symlink_to(corpus)
    make_networks(corpus, folder, arguments, console)
    with start_workers(links, folder, 1) as client:
        train(client, links, folder, (FREE, 0, "whole", "corpus"), arguments.before + sequences // 3)
        for workers in sorted(arguments.workers, reverse=True):
            surplus = roles_of(client).compute[workers:]
            if surplus:
                links.set(FREE, 0)
                client.retire_workers(list(surplus))
            for mbit, delay_ms in (map(float, link.split(":")) for link in arguments.links):
                links.set(mbit, delay_ms)
                batches = (mbit, delay_ms, "whole", "batches")
                runs = [(each, last) for each in settings_of(mbit, delay_ms, arguments)]
                for setting, limit in (*runs, (batches, arguments.sequences)):
                    timings.append(train(client, links, folder, setting, limit))
                    t = timings[-1]
                    console.print(f"{t}", highlight=False)
                    if arguments.json is not None:
                        arguments.json.write_text(json.dumps([asdict(t) for t in timings], indent=2), encoding="utf-8")
    show(console, timings)


if __name__ == "__main__":
    main()
