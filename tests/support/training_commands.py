"""The command ``train`` as a process of its own, so slow that something can happen to it meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "giaann_dask", *map(str, arguments)]


def commits(network: Path) -> int:
    folder = network / "transactions"
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def begin(text: Path, network: Path) -> subprocess.Popen[str]:
    """Start a training command and return it after its first commit."""
    process = subprocess.Popen(
        slow_command(text, network), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while commits(network) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, "it still runs"
    return process


def slow_command(text: Path, network: Path, *more: str) -> list[str]:
    # So small that the first commit is long before the end, also where other processes have the processors.
    options = ("--workers", "1", "--batch-sequences", "100", "--commit-seconds", "0.05", "--json", *more)
    return command("train", text, "--network", network, *options)
