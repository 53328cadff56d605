"""Train a network on islands, one for each book, some of them killed and restarted, and in one training; compare both.

Every step is a command in a process of its own: ``train`` and ``island pack`` of each book, ``island merge`` of all
bundles in another order, a second merge that finds everything held, and one ``train`` of all books. It prints seconds,
processor seconds, the largest process of each step and the bytes of bundles, and compares the exports byte by byte.

    python benchmarks/islands.py ../shared/data/books --profile v1 --kill 3
"""

from __future__ import annotations

import argparse
import filecmp
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from giaann_dask.storage import bytes_on_disk

_MIB = 1 << 20
# Of a training, after which it is killed: blocks have been encoded, and rounds are in progress.
_EVENTS = 4


class Used(NamedTuple):
    """Seconds, processor seconds and the largest process in MiB of one or more commands."""

    seconds: float = 0.0
    cpu: float = 0.0
    mib: float = 0.0

    def plus(self, other: Used) -> Used:
        """Return the sums, and the larger process."""
        return Used(self.seconds + other.seconds, self.cpu + other.cpu, max(self.mib, other.mib))


def call(*arguments: object, kill_with: Path | None = None) -> Used:
    """Run a command in a session of its own; kill all its processes as soon as it has written some events to a file."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "giaann_dask", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    if kill_with is not None:
        while not kill_with.exists() or kill_with.read_bytes().count(b"\n") < _EVENTS:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if kill_with is None and process.returncode:
        assert process.stderr is not None
        sys.exit(f"{' '.join(command[2:])}: {process.stderr.read().decode()}")
    seconds = time.perf_counter() - started
    return Used(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", type=Path, help="folder of texts, an island each")
    parser.add_argument("--profile", default="v1")
    parser.add_argument("--workers", type=int, default=0, help="of each command")
    parser.add_argument("--kill", type=int, default=3, help="islands that are killed while they train, and restarted")
    parser.add_argument("--together", type=int, default=2, help="islands at the same time")
    parser.add_argument("--audit", type=int, default=0, help="sequences of each bundle")
    parser.add_argument("--keep", type=Path, help="folder that is kept")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(measure(arguments, folder), indent=1))
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder)


def train_island(arguments: argparse.Namespace, folder: Path, number: int, book: Path) -> dict[str, Used]:
    """Join, train and pack an island; the first ones are killed while they train, and started again."""
    island, used = folder / "island", {}
    network, bundle, events = (folder / f"{name}{number}" for name in ("net", "bundle", "events"))
    call("island", "join", island, network)
    train = ("train", book, "--network", network, "--workers", arguments.workers)
    if number < arguments.kill:
        used["killed"] = call(*train, "--events", events, kill_with=events)
    used["islands train"] = call(*train)
    sign = ("--island", island, "--key", folder / f"key{number}", "--out", bundle, "--offer-text")
    used["islands pack"] = call("island", "pack", network, book, *sign, "--workers", arguments.workers)
    return used


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run all steps and return what they took."""
    books = sorted(each for each in arguments.books.iterdir() if each.name.endswith((".txt", ".gz")))
    island, owner, whole = folder / "island", folder / "owner", folder / "one"
    workers = ("--workers", arguments.workers)
    keys = [f"--key=island{number}={folder}/key{number}.pub" for number in range(len(books))]
    for number in range(len(books)):
        call("island", "key", folder / f"key{number}")
    call("island", "create", owner, island, *keys, "--profile", arguments.profile)
    with ThreadPoolExecutor(arguments.together) as threads:
        train = functools.partial(train_island, arguments, folder)
        trained = list(threads.map(train, range(len(books)), books))
    used: dict[str, Used] = {}
    for each in trained:
        for name, took in each.items():
            used[name] = used.get(name, Used()).plus(took)
    bundles = [folder / f"bundle{number}" for number in range(len(books))]
    random.Random(1).shuffle(bundles)
    merge = ("island", "merge", owner, *bundles, "--island", island, *workers)
    used["merge"] = call(*merge, "--audit", arguments.audit)
    used["merge again"] = call(*merge)
    flags = () if arguments.profile == "contexts" else ("--set", "flags=canonical")
    used["one training"] = call("train", *books, "--network", whole, "--profile", arguments.profile, *flags, *workers)
    exports = [folder / "exported.npz", folder / "whole.npz"]
    for network, export in zip((owner, whole), exports, strict=True):
        call("export", network, "--out", export, "--compression", "none")
    ends = (".npz", ".json", ".neurons.npz")
    equal = [filecmp.cmp(exports[0].with_suffix(end), exports[1].with_suffix(end), shallow=False) for end in ends]
    return {
        "profile": arguments.profile,
        "exports equal": equal,
        "bundles MiB": sum(bundle.stat().st_size for bundle in bundles) / _MIB,
        "one network MiB": bytes_on_disk(whole) / _MIB,
        "owner MiB": bytes_on_disk(owner) / _MIB,
        **{name: each._asdict() for name, each in used.items()},
    }


if __name__ == "__main__":
    main()
