"""Measure whole commands as a user runs them, each in new processes: seconds and peak memory, as JSON.

    python benchmarks/user.py [TEXT ...] [--workers 2] [--rounds 3] [--json FILE]
    python benchmarks/user.py [TEXT ...] --compare OLD NEW

Commands: train a network of each profile from raw text, ``generate`` in the first process that opens it and in a later
one, on this network and on the sample text's, ``evaluate``, and ``serve`` up to its first answer, then the first token
and those after it of the next one.
``--compare`` takes turns (OLD, NEW, OLD, NEW ...) between two revisions of this repository, with the installed
environment, and says for each figure whether the ranges of the two are apart. A cache folder of its own is used, so
the first process that opens a commit is really the first; compiled code is made before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import psutil
from rich.console import Console
from rich.table import Table

from giaann_dask.data import sample_test_text, sample_text

PROFILES = ("v1", "v2", "contexts")
PROMPT = "the old man said to his"
PACKAGES = ("dask", "distributed", "numpy", "numba", "torch", "zarr", "icechunk")
_LEFT_OUT = ("GIAANN_API_KEY", "PYTHONDONTWRITEBYTECODE")
REPOSITORY = Path(__file__).resolve().parents[1]


class PeakMemory:
    """Largest resident size of one process among a process and its descendants, sampled while the context lasts.

    Attributes
    ----------
    mib : int
        Mebibytes.
    """

    def __init__(self, process: int, period_s: float = 0.05) -> None:
        self.mib = 0
        self._root, self._period, self._stop = psutil.Process(process), period_s, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._period):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for process in processes:
                try:
                    self.mib = max(self.mib, process.memory_info().rss >> 20)
                except psutil.Error:
                    continue


@dataclass(kw_only=True)
class Measured:
    """Seconds and mebibytes by the name of a command, one of each per round."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A checked-out revision and the folder in which its commands run."""

    source: Path
    folder: Path

    def command(self, *arguments: object) -> list[str]:
        """Return the command line of ``giaann-dask`` with some arguments."""
        return [sys.executable, "-m", "giaann_dask", *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes: its own source and cache folder, and no key of a server.

        Modules are compiled once, as for a user, also where this shell says otherwise.
        """
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        return {**kept, "PYTHONPATH": str(self.source), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command; its output goes to a pipe."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measure(self, found: Measured, name: str, *arguments: object) -> None:
        """Run a command to its end and add its figures."""
        started = time.perf_counter()
        process = self.start(*arguments)
        with PeakMemory(process.pid) as peak:
            process.communicate(timeout=3600)
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, arguments))} of {self.source} ended with {process.returncode}")
        found.seconds[name].append(round(time.perf_counter() - started, 2))
        found.memory[name].append(peak.mib)


def measure_round(tree: Tree, arguments: argparse.Namespace, found: Measured) -> None:
    """Run every command once with new networks and an empty cache folder."""
    texts, workers = [str(Path(text).resolve()) for text in arguments.texts], str(arguments.workers)
    with tempfile.TemporaryDirectory(dir=tree.folder) as folder:
        one = Tree(source=tree.source, folder=Path(folder))
        sample = str(sample_text())
        for profile in arguments.profiles:
            for size, inputs in (("sample", [sample]), *([("large", texts)] if texts else [])):
                network, options = f"{profile}_{size}", ("--workers", workers)
                one.measure(found, f"train {network}", "train", *inputs, "--network", network, "--profile", profile,
                            *options)  # fmt: skip
                for opening in ("first", "later"):
                    generate = ("generate", network, PROMPT)
                    one.measure(found, f"generate {network}, {opening} process", *generate)
                evaluate = ("evaluate", network, sample_test_text(), *options)
                one.measure(found, f"evaluate {network}", *evaluate)
                measure_server(one, network, found)


def measure_server(tree: Tree, network: str, found: Measured) -> None:
    """Start a server, ask twice, and add the seconds to the first answer and to the tokens of the second one."""
    started = time.perf_counter()
    server = tree.start("serve", network, "--port", "0", "--json")
    try:
        with PeakMemory(server.pid) as peak:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["url"]
            with httpx2.Client(base_url=address, timeout=600) as http:
                body = {"prompt": PROMPT, "max_tokens": 5, "stream": True}
                stream_seconds(http, body)
                found.seconds[f"serve {network}, command to first answer"].append(
                    round(time.perf_counter() - started, 2)
                )
                first, following = stream_seconds(http, body)
                found.seconds[f"serve {network}, next request, first token"].append(round(first, 4))
                if following is not None:
                    found.seconds[f"serve {network}, next request, each token after it"].append(round(following, 5))
        found.memory[f"serve {network}, command to first answer"].append(peak.mib)
    finally:
        server.terminate()
        server.wait(60)


def stream_seconds(http: httpx2.Client, body: dict[str, Any]) -> tuple[float, float | None]:
    """Ask for a stream and read it to its end.

    Returns
    -------
    first, following : float
        Seconds to its first event, and from one event to the next; None where there is one alone.
    """
    started, times = time.perf_counter(), list[float]()
    with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data:") and not line.endswith("[DONE]"):
                times.append(time.perf_counter() - started)
    following = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
    return times[0] if times else time.perf_counter() - started, following


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Tree]:
    """Yield a tree of a revision, with compiled code, in a folder."""
    source, commands = folder / f"source_{revision}", folder / f"work_{revision}"
    commands.mkdir()
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(source), revision], check=True)
    try:
        tree = Tree(source=source, folder=commands)
        subprocess.run(
            tree.command("compile"), cwd=commands, env=tree.environment(), check=True, stdout=subprocess.DEVNULL
        )
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(source)], check=True)


def apart(old: list[float], new: list[float]) -> str:
    """Return how two ranges lie to each other.

    Of three rounds each, ranges of the same distribution are apart once in ten times, of five once in 126.

    Examples
    --------
    >>> apart([3.0, 3.1, 3.2], [1.0, 1.1, 1.2]), apart([3.0, 3.1, 3.2], [3.1, 3.2, 3.4]), apart([3.0], [1.0])
    ('less', 'within noise', 'unknown: fewer than 3 rounds')
    """
    if min(len(old), len(new)) < 3:
        return "unknown: fewer than 3 rounds"
    if max(new) < min(old):
        return "less"
    return "more" if min(new) > max(old) else "within noise"


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the memory and the versions that figures depend on."""
    models = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "revision": _revision(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _revision() -> str:
    """Return the revision of this repository, with a mark where it has uncommitted changes."""
    git = ("git", "-C", str(REPOSITORY), "describe", "--always", "--dirty")
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def show(trees: dict[str, Measured]) -> None:
    """Print minimum and median of every figure, and of two trees their ratio."""
    names = list(trees)
    for kind, unit in (("seconds", "s"), ("memory", "MiB")):
        table = Table("command", *(f"{name}: min, median {unit}" for name in names), title=f"{kind} of whole commands")
        if len(names) == 2:
            table.add_column("ratio of medians")
            table.add_column("new is")
        for command in getattr(trees[names[0]], kind):
            rounds = [getattr(trees[name], kind)[command] for name in names]
            cells = [f"{min(values):g}, {median(values):g}" for values in rounds]
            if len(names) == 2:
                cells += [f"{median(rounds[1]) / (median(rounds[0]) or 1):.2f}", apart(*rounds)]
            table.add_row(command, *cells)
        Console().print(table)


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="raw text of the large networks; without it only the sample is used")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of train and evaluate")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=PROFILES)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, for each revision; fewer than 3 show no noise")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="two revisions of this repository")
    parser.add_argument("--json", type=Path, help="file for the figures of all rounds")
    arguments = parser.parse_args()
    found = {name: Measured() for name in arguments.compare or ["this tree"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.compare:
            with checked_out(arguments.compare[0], folder) as old, checked_out(arguments.compare[1], folder) as new:
                for _ in range(arguments.rounds):
                    for revision, tree in zip(arguments.compare, (old, new), strict=True):
                        measure_round(tree, arguments, found[revision])
        else:
            for _ in range(arguments.rounds):
                tree = Tree(source=REPOSITORY, folder=folder)
                measure_round(tree, arguments, found["this tree"])
    show(found)
    if arguments.json:
        rounds = {name: {"seconds": each.seconds, "peak_mib": each.memory} for name, each in found.items()}
        arguments.json.write_text(json.dumps({"machine": machine(), "rounds": rounds}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
