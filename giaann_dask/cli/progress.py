"""Show progress bars of the commands on standard error, and log what they show.

Nothing is shown when standard error is not a terminal. Results are printed by `output`; the bars are in
`giaann_dask.diagnostics.progress`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from giaann_dask.cli.logs import console
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
    RoundIntegrated,
    SequencesEvaluated,
    StageAdvanced,
)
from giaann_dask.representations import format_bytes

__all__ = ["Workload", "log_event", "progress", "waiting"]

_LOG = logging.getLogger("giaann_dask.progress")


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
def waiting(what: str) -> Iterator[None]:
    """Show that work of unknown length is running, if standard error is a terminal."""
    if not _may_draw():
        yield
        return
    with terminal_bars(console()) as bars:
        bars.add_task(what, total=None, note="", rate="")
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
