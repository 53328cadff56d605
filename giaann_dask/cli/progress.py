"""Show events of a command as progress bars, log them, and write them to a file: ``--events``.

Bars are on standard error; nothing is shown when that is not a terminal. The file gets one JSON object a line while
the command runs; the fields of the events are in `giaann_dask.events`. Results are printed by `output`; the bars are in
`giaann_dask.diagnostics.progress`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TextIO

from giaann_dask.cli.click_ext import section
from giaann_dask.cli.output import console
from giaann_dask.cli.shared_options import APPENDED_FILE
from giaann_dask.diagnostics.progress import (
    SequenceEstimate,
    StageTracker,
    TerminalBars,
    Workload,
    round_note,
    terminal_bars,
)
from giaann_dask.events import (
    BlockEncoded,
    Committed,
    Event,
    MemoryMeasured,
    Observer,
    RegionsMeasured,
    RoundIntegrated,
    SequencesEvaluated,
    StageAdvanced,
    notify_all,
)
from giaann_dask.representations import format_bytes

_LOG = logging.getLogger("giaann_dask.progress")
# The line with all regions is long; written once a minute, a month of them fits on any disk.
_REGIONS_S = 60.0


@contextmanager
def progress(workload: Workload | None = None) -> Iterator[Observer]:
    """Show events as progress bars on standard error, if it is a terminal, and log them.

    Parameters
    ----------
    workload : Workload, optional
        What is read; without it no remaining time is shown for stages that read text.
    """
    if not _may_draw():
        yield log_event
        return
    where = console()
    with terminal_bars(where) as bars:
        estimate = workload.estimate() if workload and where.is_terminal else SequenceEstimate()
        tracker = StageTracker(estimate, TerminalBars(bars).show)

        def observe(event: Event) -> None:
            log_event(event)
            tracker(event)

        yield observe


@contextmanager
def waiting(what: str, rate: object = "") -> Iterator[None]:
    """Show that work of unknown length is running, and its rate, if standard error is a terminal."""
    if not _may_draw():
        yield
        return
    with terminal_bars(console()) as bars:
        bars.add_task(what, total=None, note="", rate=rate)
        yield


def _may_draw() -> bool:
    """Return False where rich would draw no bars, so that it need not be imported."""
    return sys.stderr.isatty() or any(name in os.environ for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))


def log_event(event: Event) -> None:
    """Log an event: commits as INFO, rounds and blocks as DEBUG."""
    match event:
        case Committed():
            _LOG.info(
                "committed %s: %s sequences, in %.2f s",
                *(event.commit, f"{event.sequences:,}", event.seconds),
                extra={"commit": event.commit, "sequences": event.sequences},
            )
        case RoundIntegrated():
            _LOG.debug("round %s: %s sequences; %s", event.round, event.sequences, round_note(event))
        case BlockEncoded():
            _LOG.debug("encoded %s sequences of %s characters", event.sequences, event.characters)
        case SequencesEvaluated():
            _LOG.debug("predicted %s sequences: %s of %s steps right", event.sequences, event.matches, event.steps)
        case StageAdvanced():
            _LOG.debug("%s: %s of %s %s", event.stage, event.done, event.total, event.unit)
        case MemoryMeasured(spilled_bytes=spilled) if spilled:
            _LOG.debug("%s spilled to disk", format_bytes(spilled))


events_option = section("Output and logging")(
    "--events",
    type=APPENDED_FILE,
    metavar="FILE",
    help="Append every event to the file; a JSON object per line.",
)


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


def _append(file: TextIO, values: dict[str, Any]) -> None:
    from giaann_dask.storage import writing

    with writing(file.name):
        file.write(json.dumps(values) + "\n")
        # Other processes may read the file while it grows.
        file.flush()
