"""Start clusters and servers as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def running_cluster(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a cluster with roles; yield its process, which is also its scheduler, and its address."""
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "giaann_dask", "cluster", "--storage", "1", "--compute", "1"]
    command += ["--scheduler-file", str(file), "--dashboard", "127.0.0.1:0", *more]
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: file.exists() or process.poll() is not None)
        yield process, json.loads(file.read_text())["address"]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def until(condition: object, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.02)


PROMPT = "The old miller carried the flour"


class Process:
    """A running ``giaann-dask serve``."""

    def __init__(self, network: Path, *options: str, key: str | None = None) -> None:
        command = [sys.executable, "-m", "giaann_dask", "serve", str(network), "--port", "0", "--json", *options]
        environment = {name: value for name, value in os.environ.items() if name != "GIAANN_API_KEY"}
        if key is not None:
            environment["GIAANN_API_KEY"] = key
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        killer = threading.Timer(120, self.process.kill)
        killer.start()
        line = self.process.stdout.readline()
        killer.cancel()
        assert line, self.process.communicate()[1]
        self.ready: dict[str, Any] = json.loads(line)
        self.url: str = self.ready["url"]

    def leave(self, number: int = signal.SIGTERM) -> None:
        """Ask it to leave; it says so on standard error, and has said nothing else."""
        self.process.send_signal(number)
        said = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, said
        expected = "giaann-dask: finishing running requests; send the signal again to exit immediately\n"
        assert said == expected, said
