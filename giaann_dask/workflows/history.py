"""Lock a network for one job at a time, and append a line of history for each run.

The lock is the system's (flock), so that a process that was killed does not keep it. The lock file stays and names
that process until the next run takes the lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from giaann_dask.local_files import local_path
from giaann_dask.object_urls import absolute_place, is_object_store
from giaann_dask.storage import require_local, writing
from giaann_dask.store.beside import HISTORY
from giaann_dask.workflows.exits import DONE, TryAgainError, message_of, status_of

_LOG = logging.getLogger(__name__)
_PAUSE_S = 0.2


def history_of(network: Path, given: Path | None = None) -> Path:
    """Return the file of a network's history: beside it, unless another one is named."""
    if given is None:
        return beside(network, HISTORY)
    require_local(given)
    return local_path(given)


def lock_of(network: Path) -> Path:
    """Return the lock file of the jobs of a network."""
    return beside(network, ".lock")


def beside(network: Path, suffix: str) -> Path:
    """Return the path beside a network with a suffix, one for all its names; of an object store's, where this works.

    Examples
    --------
    >>> from giaann_dask.object_urls import ObjectPath
    >>> beside(Path("/nets/village/"), ".lock"), beside(ObjectPath("s3://bucket/village"), ".lock")
    (PosixPath('/nets/village.lock'), PosixPath('village.lock'))
    """
    if is_object_store(network):
        return Path(network.name + suffix)
    folder = absolute_place(network)
    return folder.with_name(folder.name + suffix)


@contextmanager
def only_one(network: Path, wait_s: float = 0.0) -> Iterator[int | None]:
    """Hold the lock of a network's jobs.

    Parameters
    ----------
    network : Path
        Folder of the network.
    wait_s : float
        Seconds to wait for another job to end.

    Yields
    ------
    int or None
        Number of the process that held the lock last and was killed; None where the last one ended.

    Raises
    ------
    TryAgainError
        If another process still holds it.
    """
    path = lock_of(network)
    with writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    with file:
        end = time.monotonic() + wait_s
        while not _taken(file.fileno()):
            if time.monotonic() >= end:
                raise TryAgainError(
                    f"{_holder(path) or 'another job'} is working on network {network}", "", "run it again later"
                )
            time.sleep(_PAUSE_S)
        before = _holder(path)
        if before is not None:
            _LOG.info("process %s, which held %s, was killed; continuing after it", before["pid"], path)
        with writing(str(path)):
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "since": now()}))
            file.flush()
        try:
            yield None if before is None else int(before["pid"])
        finally:
            file.truncate(0)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> dict[str, Any] | None:
    """Return the holder named by a lock file; None if the file is empty or cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "pid" in found else None


@contextmanager
def recorded(job: str, network: Path, history: Path, wait_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """Hold a network's lock for a run of a job, and write its line of history when it ends.

    Parameters
    ----------
    job : str
        Name of the job.
    network : Path
        Folder of the network.
    history : Path
        File to append to.
    wait_s : float
        Seconds to wait for another job to end. A run that does not get the lock writes no line.

    Yields
    ------
    dict
        What the line will say; add to it. ``exit`` and, where it failed, ``error`` are added here.
    """
    with only_one(network, wait_s) as killed:
        entry: dict[str, Any] = {"job": job, "started": now(), "network": str(network)}
        entry |= {} if killed is None else {"took_over": killed}
        begun = time.monotonic()
        try:
            yield entry
        except BaseException as error:
            entry |= {"exit": status_of(error), "error": message_of(error)}
            raise
        else:
            entry["exit"] = DONE
        finally:
            entry["seconds"] = round(time.monotonic() - begun, 3)
            append_line(history, entry)


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append an object to a file of JSON lines, on a line of its own even after one that was cut short.

    Raises
    ------
    StoreWriteError
        If the disk is full.
    """
    with writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                size = file.read(1) != b"\n"
            file.write(b"\n" * bool(size) + json.dumps(value, ensure_ascii=False).encode() + b"\n")


def now() -> str:
    """Return the time, as UTC in the form of ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
