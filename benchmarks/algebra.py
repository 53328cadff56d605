"""Measure adding, forgetting, compacting and comparing against training: seconds, processor time, memory and bytes.

    python benchmarks/algebra.py TEXT TEXT ... [--profiles v1 contexts] [--workers 2] [--keep FOLDER] [--json FILE]

Each text is trained into a network of its own; these are added, and the export of the sum is compared with that of one
training on all texts, byte for byte. The last text is forgotten from the sum, whose export is compared with that of a
training on the others. `compact` merges the runs of a network that was trained on one text after the other, as of the
commit that has the most of them. Every command is a process of its own with its workers.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from giaann_dask.store.network_store import NetworkStore

FLAGS = {"v1": ("--set", "flags=canonical"), "v2": ("--set", "flags=canonical"), "contexts": ()}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a command used, all its processes together.

    Attributes
    ----------
    seconds, cpu_seconds : float
        On the clock, and of the processors.
    total_mib, largest_mib : int
        Largest resident memory of all processes together, and of one of them.
    written_mib : int
        Mebibytes that were given to the file system to write.
    """

    seconds: float
    cpu_seconds: float
    total_mib: int
    largest_mib: int
    written_mib: int


def measure(*arguments: object) -> Usage:
    """Run a command of this package, and return what it used."""
    command = [sys.executable, "-m", "giaann_dask", *map(str, arguments)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    cpu: dict[int, float] = {}
    written: dict[int, int] = {}
    peaks, ended = [0, 0], threading.Event()

    def watch() -> None:
        root = psutil.Process(process.pid)
        while not ended.wait(0.05):
            sizes = [0]
            try:
                for each in [root, *root.children(recursive=True)]:
                    with each.oneshot():
                        sizes.append(each.memory_info().rss)
                        cpu[each.pid] = sum(each.cpu_times()[:2])
                        written[each.pid] = each.io_counters().write_chars
            except psutil.Error:
                continue
            peaks[:] = [max(pair) for pair in zip(peaks, (sum(sizes), max(sizes)), strict=True)]

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = process.wait(3600)
    seconds = time.perf_counter() - started
    ended.set()
    watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return Usage(
        seconds=round(seconds, 1),
        cpu_seconds=round(sum(cpu.values()), 1),
        total_mib=peaks[0] >> 20,
        largest_mib=peaks[1] >> 20,
        written_mib=sum(written.values()) >> 20,
    )


def measure_profile(profile: str, texts: list[Path], workers: int, folder: Path) -> dict[str, Any]:
    """Return what each operation used with one profile, and whether the exports are equal."""
    options = ("--profile", profile, *FLAGS[profile], "--workers", workers)
    found: dict[str, Any] = {}

    def train(name: str, inputs: list[Path]) -> Usage:
        return measure("train", *inputs, "--network", folder / name, *options)

    found[f"train {len(texts)} texts"] = train("all", texts)
    found[f"train {len(texts) - 1} texts"] = train("without", texts[:-1])
    found["train the last text"] = train(texts[-1].name, [texts[-1]])
    for text in texts[:-1]:
        train(text.name, [text])
    singles = [folder / text.name for text in texts]
    found["connections of single networks"] = sum(connections_of(single) for single in singles)
    found[f"add {len(texts)} networks"] = measure("add", *singles, "--out", folder / "sum", "--workers", workers)
    found["sum equals training"] = same_exports(folder, "sum", "all")
    found["diff"] = measure("diff", folder / "without", folder / "sum", "--workers", workers)
    found["forget the last text"] = measure("forget", folder / "sum", "--document", texts[-1], "--workers", workers)
    found["difference equals training"] = same_exports(folder, "sum", "without")
    for text in texts:
        train("steps", [text])
    measure("checkout", folder / "steps", commit_of_most_runs(folder / "steps"))
    found["connections to compact"] = connections_of(folder / "steps", several=True)
    found["compact"] = measure("compact", folder / "steps", "--workers", workers)
    return found


def connections_of(path: Path, *, several: bool = False) -> int:
    """Return the connections of the stored runs, of all regions or of those with several runs."""
    store = NetworkStore(path)
    regions = store.open(store.head()).manifest().runs_by_region().values()
    return sum(run.connections for runs in regions if not several or len(runs) > 1 for run in runs)


def commit_of_most_runs(path: Path) -> str:
    """Return the identity of the commit with the most runs, the last of several."""
    store = NetworkStore(path)
    return max(store.log(), key=lambda commit: len(store.open(commit.identity).manifest().runs)).identity


def same_exports(folder: Path, *names: str) -> bool:
    """Return whether the three files of the exports of two networks are the same."""
    files = []
    for name in names:
        out = folder / f"exported {name}"
        out.mkdir(exist_ok=True)
        measure("export", folder / name, "--out", out / "x.npz", "--compression", "none")
        files.append(sorted(out.iterdir()))
    return all(filecmp.cmp(one, other, shallow=False) for one, other in zip(*files, strict=True))


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--profiles", nargs="+", choices=list(FLAGS), default=["v1", "contexts"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder in which the networks are left; a temporary one by default")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for profile in arguments.profiles:
            folder = (arguments.keep or Path(temporary)) / profile
            folder.mkdir(parents=True)
            found[profile] = measure_profile(profile, arguments.texts, arguments.workers, folder)
    for profile, figures in found.items():
        table = Table("operation", *Usage.__dataclass_fields__, title=f"profile {profile}")
        for name, used in figures.items():
            table.add_row(name, *map(str, asdict(used).values() if isinstance(used, Usage) else [used]))
        Console(width=140).print(table)
    if arguments.json:
        plain = {
            profile: {name: asdict(used) if isinstance(used, Usage) else used for name, used in figures.items()}
            for profile, figures in found.items()
        }
        arguments.json.write_text(json.dumps(plain, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
