"""Time training where the links between hosts are slow, by selection, accumulation, batch size and exchange.

Every host is a network namespace with a worker, or several; a pair of virtual interfaces, throttled in both
directions by a token bucket, ties it to a bridge where scheduler and driver are. In one run, every
setting is timed several times in turn on the same warm workers, so the ratios of one run can be
compared, and their spread shows the noise. Storage and compute workers are apart, so every increment
crosses two links.

With ``--slow-mbit``, the link of the first host has another rate than all others, and a second table says which
workers are judged slow, why, and in which round.

Needs Linux, `unshare`, `ip` and `tc`, and the right to make namespaces (root, or user namespaces). All
of it happens in namespaces of this run, which vanish with it, workers included, however it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table
from training import BOOKS, processor_seconds

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.events import Event, Observer, RoundIntegrated, WorkerJudged, ignore
from giaann_dask.training.training_options import SelectionOptions

NETWORK = "10.77.0"
INSIDE = "GIAANN_LINKS_INSIDE"
# Bytes that a bucket lets through at once: what the largest segment of TCP needs.
BURST = 65536
WARM_UP = 2048
START_TIMEOUT_S = 60
RUN_TIMEOUT_S = 900


@dataclass(frozen=True, order=True)
class Setting:
    """What is compared."""

    batch_sequences: int
    selection: str
    accumulate: int
    exchange: str

    @property
    def label(self) -> str:
        """A name for tables."""
        return f"batch {self.batch_sequences}, {self.selection}, accumulate {self.accumulate}, {self.exchange}"


@dataclass(frozen=True)
class Timing:
    """One training run.

    Attributes
    ----------
    setting : Setting
        What was asked for.
    mbit : float
        Rate of every link, in Mbit/s.
    seconds : float
        From the first read to the last commit.
    wire_bytes : int
        Bytes that all hosts sent.
    processor_seconds : float
        User and system time of all processes.
    increment_bytes, messages, column_touches, shared_touches : int
        As in the training report.
    slow_mbit : float
        Rate of the link of the first host.
    rounds : int
        Rounds.
    judged : tuple
        Workers that were judged slow when they were first, as round, host and cause.
    """

    setting: Setting
    mbit: float
    seconds: float
    wire_bytes: int
    processor_seconds: float
    increment_bytes: int
    messages: int
    column_touches: int
    shared_touches: int
    slow_mbit: float
    rounds: int
    judged: tuple[tuple[int, str, str], ...]


class Links:
    """Links of hosts: namespaces and interfaces of this run, and how fast they are.

    Parameters
    ----------
    names : sequence of str
        Of the hosts, and so of their namespaces.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        call("mkdir", "-p", "/run/netns")
        # The names of namespaces are files, which would outlive this run elsewhere.
        call("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        call("ip", "link", "set", "lo", "up")
        call("ip", "link", "add", "bridge0", "type", "bridge")
        call("ip", "addr", "add", f"{NETWORK}.1/24", "dev", "bridge0")
        call("ip", "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            call("ip", "netns", "add", name)
            self.connect(number, name)
            call("ip", "-n", name, "addr", "add", f"{self.address(name)}/24", "dev", "link0")
            for device in ("lo", "link0"):
                call("ip", "-n", name, "link", "set", device, "up")

    def connect(self, number: int, name: str) -> None:
        """Tie the interface of a host to the bridge."""
        call("ip", "link", "add", f"to-{number}", "type", "veth", "peer", "name", "link0", "netns", name)
        call("ip", "link", "set", f"to-{number}", "master", "bridge0", "up")

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"{NETWORK}.{10 + self.names.index(name)}"

    def throttle(self, mbit: float, delay_ms: float, first_mbit: float) -> bool:
        """Set the rate of every link, both ways, and its delay; return whether delays are possible here."""
        delayed = True
        for number, name in enumerate(self.names):
            rate = mbit if number else first_mbit
            for where in (("-n", name), ()):
                device = "link0" if where else f"to-{number}"
                bucket = ("tbf", "rate", f"{rate}mbit", "burst", str(BURST), "latency", "500ms")
                call("tc", *where, "qdisc", "replace", "dev", device, "root", "handle", "1:", *bucket)
                delay = ("tc", *where, "qdisc", "replace", "dev", device, "parent", "1:1", "netem")
                delayed = delayed and possible(*delay, "delay", f"{delay_ms}ms", "limit", "10000")
        return delayed

    def sent_bytes(self) -> int:
        """Return the bytes that hosts have sent so far."""
        counters = (f"/sys/class/net/to-{number}/statistics/rx_bytes" for number in range(len(self.names)))
        return sum(int(Path(counter).read_text()) for counter in counters)


def call(*command: str) -> None:
    """Run a command of the system; leave with one line when it is refused."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"links: {' '.join(command)}: {done.stderr.strip()}; namespaces and tc need root on Linux")


def possible(*command: str) -> bool:
    """Run a command of the system and return whether it worked."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_inside() -> int:
    """Run this script again in namespaces of its own, which vanish with it, and return its exit code."""
    if missing := [name for name in ("unshare", "ip", "tc", "mount") if shutil.which(name) is None]:
        sys.exit(f"links: {', '.join(missing)} not found; install util-linux and iproute2 on Linux")
    enter = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        enter.append("--map-root-user")
    if not possible(*enter, "true"):
        sys.exit(f"links: {' '.join(enter)} is refused here; run as root, or allow user namespaces")
    # A request to end must come back here as an exception: unshare itself does not listen to it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder:
        inside = subprocess.Popen([*enter, sys.executable, *sys.argv], env={**os.environ, INSIDE: folder})
        try:
            return inside.wait()
        finally:
            # With it go the namespaces and all that runs in them.
            inside.kill()
            inside.wait()


def enter_namespaces() -> None:
    """Let what is mounted from here on be seen here alone, and /sys show this namespace's interfaces."""
    call("mount", "--make-rprivate", "/")
    call("mount", "-t", "sysfs", "sysfs", "/sys")


@contextmanager
def start_workers(links: Links, folder: Path, per_host: int) -> Iterator[Client]:
    """Start a scheduler here and workers in every namespace, with the role that its name says."""
    host = f"{NETWORK}.1"
    with LocalCluster(n_workers=0, host=host, dashboard_address=f"{host}:0") as cluster, Client(cluster) as client:
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", "giaann_dask.worker_setup"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, *options]
        # What measures processor time on a worker is in a module beside this one.
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        workers = []
        try:
            for host, number in product(links.names, range(per_host)):
                name, role = f"{host}-{number}", host.split("-")[0]
                own = ["--host", links.address(host), "--name", name, "--local-directory", str(folder / name)]
                own += [] if role == "both" else ["--resources", f"{role}=1"]
                with (folder / f"{name}.log").open("w") as log:
                    where = ["ip", "netns", "exec", host]
                    seen = {**os.environ, "PYTHONPATH": path}
                    workers.append(subprocess.Popen([*where, *command, *own], stdout=log, stderr=log, env=seen))
            client.wait_for_workers(len(workers), timeout=START_TIMEOUT_S)
            yield client
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(timeout=START_TIMEOUT_S)


def train(
    client: Client, corpus: Path, network: Path, setting: Setting, sequences: int, observer: Observer = ignore
) -> gd.TrainingReport:
    """Train a new network."""
    options = gd.TrainingOptions(
        batch_sequences=setting.batch_sequences,
        block_characters=BLOCK_CHARACTERS,
        accumulate=setting.accumulate,
        exchange=setting.exchange,  # type: ignore[arg-type]
        selection=SelectionOptions(order=setting.selection),  # type: ignore[arg-type]
        max_sequences=sequences,
        commit_seconds=RUN_TIMEOUT_S,
    )
    report = gd.train(corpus, network, client=client, options=options, observer=observer).training_report
    shutil.rmtree(network)
    return report


# Text of one task that reads the corpus: less than the default, so that small batches are whole blocks.
BLOCK_CHARACTERS = 65_536


def time_setting(
    client: Client,
    links: Links,
    corpus: Path,
    folder: Path,
    setting: Setting,
    rates: tuple[float, float],
    sequences: int,
) -> Timing:
    """Train once and measure, given the rates of all links and of the first one."""
    events: list[Event] = []
    before, sent = processor_seconds(client), links.sent_bytes()
    report = train(client, corpus, folder / "network", setting, sequences, events.append)
    after = processor_seconds(client)
    host_of = {f"tcp://{links.address(name)}": name for name in links.names}
    judged: dict[str, tuple[int, str, str]] = {}
    for event in events:
        if isinstance(event, WorkerJudged) and event.cause:
            host = host_of[event.worker.rpartition(":")[0]]
            judged.setdefault(event.worker, (event.round, host, event.cause))
    return Timing(
        setting,
        rates[0],
        report.seconds,
        links.sent_bytes() - sent,
        sum(sum(after[name]) - sum(before[name]) for name in after),
        report.increment_bytes,
        report.messages,
        report.column_touches,
        report.shared_touches,
        rates[1],
        sum(isinstance(event, RoundIntegrated) for event in events),
        tuple(judged.values()),
    )


def show_judged(console: Console, timings: Sequence[Timing], first: str) -> None:
    """Print how often the host with another link, and others, were judged slow."""
    table = Table(title=f"workers that were judged slow; the link of {first} has another rate")
    for name in ("rate", "rate of the first", "setting", "runs", "named", "as link", "in rounds", "of", "others named"):
        table.add_column(name, justify="left" if name == "setting" else "right")
    groups = dict.fromkeys((timing.mbit, timing.slow_mbit, timing.setting) for timing in timings)
    for mbit, slow_mbit, setting in groups:
        runs = [
            timing
            for timing in timings
            if (timing.mbit, timing.slow_mbit, timing.setting) == (mbit, slow_mbit, setting)
        ]
        named = [[each for each in timing.judged if each[1] == first] for timing in runs]
        table.add_row(
            f"{mbit:g}",
            f"{slow_mbit:g}",
            setting.label,
            str(len(runs)),
            str(sum(map(bool, named))),
            str(sum(any(cause == "link" for *_, cause in each) for each in named)),
            " ".join(str(min(number for number, *_ in each) + 1) for each in named if each),
            str(runs[0].rounds),
            str(sum(each[1] != first for timing in runs for each in timing.judged)),
        )
    console.print(table)


def show(console: Console, timings: Sequence[Timing], base: Setting) -> None:
    """Print a table for every rate; ratios are of the runs of the same turn."""
    for mbit in sorted({timing.mbit for timing in timings}):
        table = Table(title=f"links of {mbit:g} Mbit/s; throughput as a ratio to: {base.label}")
        headings = ("setting", "ratio", "least", "most", "seconds", "sent MB", "increments MB", "messages")
        for name in (*headings, "overlap", "CPU s"):
            table.add_column(name, justify="left" if name == "setting" else "right")
        here = [timing for timing in timings if timing.mbit == mbit]
        reference = [timing.seconds for timing in here if timing.setting == base]
        for setting in dict.fromkeys(timing.setting for timing in here):
            runs = [timing for timing in here if timing.setting == setting]
            ratios = [first / run.seconds for first, run in zip(reference, runs, strict=True)]
            last = runs[-1]
            table.add_row(
                setting.label,
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f}",
                f"{max(ratios):.2f}",
                f"{statistics.median(run.seconds for run in runs):.2f}",
                f"{statistics.median(run.wire_bytes for run in runs) / 1e6:.1f}",
                f"{last.increment_bytes / 1e6:.1f}",
                f"{last.messages:,}",
                f"{last.shared_touches / max(last.column_touches, 1):.3f}",
                f"{statistics.median(run.processor_seconds for run in runs):.1f}",
            )
        console.print(table)


def choose_settings(arguments: argparse.Namespace) -> list[Setting]:
    """Return the settings to compare: the first one, and others that differ in one choice, and one in two."""
    batches, orders, sums = arguments.batch_sequences, arguments.selection, arguments.accumulate
    found = [Setting(*values) for values in product(batches, orders, sums, arguments.exchange)]
    first = found[0]
    if arguments.every:
        return found
    return [
        s
        for s in found
        if sum(a != b for a, b in zip(asdict(s).values(), asdict(first).values(), strict=True)) < 2
        or s == Setting(first.batch_sequences, orders[-1], sums[-1], first.exchange)
    ]


def parse_arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[BOOKS], help="text to read; the books by default")
    parser.add_argument("--corpus", type=Path, help="read a corpus that was encoded before instead of text")
    parser.add_argument("--sequences", type=int, default=16_384, help="sequences of a training run")
    parser.add_argument("--mbit", type=float, nargs="+", default=[10, 50, 200], help="rates of the links")
    parser.add_argument("--slow-mbit", type=float, nargs="*", default=[], help="rates of the first host's link")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="delay of each link, each way")
    parser.add_argument("--storage", type=int, default=2, help="hosts of storage workers")
    parser.add_argument("--compute", type=int, default=2, help="hosts of compute workers")
    parser.add_argument("--both", type=int, default=0, help="hosts of workers that store and compute")
    parser.add_argument("--per-host", type=int, default=1, help="workers of each host")
    parser.add_argument("--batch-sequences", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--selection", nargs="+", default=["corpus", "random", "least-overlap"])
    parser.add_argument("--accumulate", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--exchange", nargs="+", default=["auto"])
    parser.add_argument("--every", action="store_true", help="all combinations, not only changes of one choice")
    parser.add_argument("--repeats", type=int, default=3, help="turns of all settings at every rate")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def encode(arguments: argparse.Namespace, folder: Path) -> Path:
    """Return a corpus: the one that was named, or that of the text."""
    if arguments.corpus is not None:
        return Path(arguments.corpus).resolve()
    text = arguments.text if arguments.text != [BOOKS] or BOOKS.exists() else [sample_text()]
    with gd.connect(workers=2) as client:
        limit = arguments.sequences
        return gd.encode(text, folder / "corpus", client=client, max_sequences=limit).path


def main() -> None:
    """Run the benchmark and print its tables."""
    arguments, console = parse_arguments(), Console(width=140)
    if INSIDE not in os.environ:
        sys.exit(run_inside())
    enter_namespaces()
    folder, settings, timings = Path(os.environ[INSIDE]), choose_settings(arguments), []
    names = [f"{role}-{i}" for role in ("storage", "compute", "both") for i in range(getattr(arguments, role))]
    links = Links(names)
    corpus = encode(arguments, folder)
    with start_workers(links, folder, arguments.per_host) as client:
        for setting in settings:
            train(client, corpus, folder / "network", setting, WARM_UP)
        for mbit, slow in product(arguments.mbit, arguments.slow_mbit or [0.0]):
            rates = mbit, slow or mbit
            if not links.throttle(mbit, arguments.delay_ms, rates[1]):
                console.print("this kernel has no netem, so links have no delay of their own")
            for turn in range(arguments.repeats):
                # Backwards every other time, so that a machine that gets slower favours none.
                for setting in settings[:: -1 if turn % 2 else 1]:
                    timing = time_setting(client, links, corpus, folder, setting, rates, arguments.sequences)
                    timings.append(timing)
                    told = f"{mbit:g} Mbit/s, {setting.label}: {timing.seconds:.2f} s {timing.judged or ''}"
                    console.print(told, highlight=False)
    if arguments.slow_mbit:
        show_judged(console, timings, names[0])
    else:
        show(console, timings, settings[0])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(timing) for timing in timings], indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
