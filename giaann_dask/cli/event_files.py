"""Write events to files as JSON lines while a command runs: ``--events`` and ``--rounds``.

The fields of the events are in `giaann_dask.events`; progress bars are in `progress`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

from giaann_dask.cli.click_ext import section
from giaann_dask.cli.shared_options import APPENDED_FILE
from giaann_dask.events import Committed, Event, Observer, RegionsMeasured, RoundIntegrated, notify_all

Command = TypeVar("Command", bound=Callable[..., Any])

# The line with all regions is long; written once a minute, a month of them fits on any disk.
_REGIONS_S = 60.0


def events_option(command: Command) -> Command:
    """Add ``--events``."""
    return section("Output and logging")(
        "--events",
        type=APPENDED_FILE,
        metavar="FILE",
        help="Append every event when it happens; a JSON object a line.",
    )(command)


def rounds_option(command: Command) -> Command:
    """Add ``--rounds``."""
    return section("Output and logging")(
        "--rounds",
        type=APPENDED_FILE,
        metavar="FILE",
        help="Append what every round moved: bytes, messages, overlaps, busiest region; a JSON object a line.",
    )(command)


def event_log(file: TextIO | None, observer: Observer) -> Observer:
    """Write an observer's events to a file, too, one JSON object a line.

    Each line has the name of the event as ``event``, ``time`` (UTC, ISO 8601), ``elapsed_s`` since the command began
    to work, and the fields of the event. `RegionsMeasured` is written once a minute and after commits.

    Parameters
    ----------
    file : text file, optional
        Open for writing; without one the observer is returned as it is.
    observer : callable
        Called with every event.

    Returns
    -------
    callable
        The observer to use; raises `StoreWriteError` when the disk is full.
    """
    if file is None:
        return observer
    started, regions_written = time.perf_counter(), float("-inf")

    def write(event: Event) -> None:
        nonlocal regions_written
        seconds = time.perf_counter() - started
        if isinstance(event, RegionsMeasured):
            if seconds - regions_written < _REGIONS_S:
                return
            regions_written = seconds
        elif isinstance(event, Committed):
            regions_written = float("-inf")
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        _append(file, {"event": type(event).__name__, "time": moment, "elapsed_s": round(seconds, 3), **asdict(event)})

    return notify_all(write, observer)


def round_log(file: TextIO | None, observer: Observer) -> Observer:
    """Write the figures of rounds to a file, too, one JSON object a line.

    Each line has the fields of `RoundIntegrated`, and ``seconds`` since the command began to work. Parameters and
    result are those of `event_log`.
    """
    if file is None:
        return observer
    started = time.perf_counter()

    def write(event: Event) -> None:
        if isinstance(event, RoundIntegrated):
            _append(file, {**asdict(event), "seconds": round(time.perf_counter() - started, 3)})

    return notify_all(write, observer)


def _append(file: TextIO, values: dict[str, Any]) -> None:
    from giaann_dask.storage import writing

    with writing(file.name):
        file.write(json.dumps(values) + "\n")
        # Other processes may read the file while it grows.
        file.flush()
