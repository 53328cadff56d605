"""Show progress bars of the commands on standard error, and log what they show.

Each stage has a bar with its rate and the remaining time, by an estimate of how many sequences the input has. Nothing
is shown when standard error is not a terminal. Results are printed by `showing`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from giaann_dask.cli.logs import console
from giaann_dask.errors import GiaannError
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

if TYPE_CHECKING:
    from rich.progress import Progress

_LOG = logging.getLogger("giaann_dask.progress")
# Widths of the terminal, in characters, below which fewer columns are shown.
_NARROW, _WIDE = 56, 80


@dataclass(frozen=True)
class Workload:
    """Input of a command, from which its duration is estimated.

    Attributes
    ----------
    inputs : sequence of str
        Text or corpora.
    text_field : str
        Field of JSON lines.
    maximum_sequences : int, optional
        Sequences at which it stops.
    """

    inputs: Sequence[str] = ()
    text_field: str = "text"
    maximum_sequences: int | None = None

    def estimate(self) -> SequenceEstimate:
        """Return an estimate of the sequences of the input."""
        from giaann_dask.encoding.estimate import estimate_characters

        try:
            characters = estimate_characters(self.inputs, self.text_field) if self.inputs else None
        except (GiaannError, OSError):
            # The command itself reports a problem with an input.
            characters = None
        return SequenceEstimate(characters, self.maximum_sequences)


class SequenceEstimate:
    """Estimate of how many sequences a text has, from the blocks that were read so far.

    Parameters
    ----------
    characters : int, optional
        Approximate size of the text.
    limit : int, optional
        Sequences at which reading stops.

    Examples
    --------
    >>> estimate = SequenceEstimate(1000)
    >>> estimate.add(BlockEncoded(sequences=5, characters=100, read=500))
    >>> estimate.total
    30
    """

    def __init__(self, characters: int | None = None, limit: int | None = None) -> None:
        self._characters, self._limit = characters, limit
        self._sequences = self._encoded = self._read = 0

    def add(self, event: BlockEncoded) -> None:
        """Take another block into account."""
        self._sequences += event.sequences
        self._encoded += event.characters
        self._read = event.read

    @property
    def total(self) -> int | None:
        """Approximate number of sequences; None while it is unknown."""
        if self._characters is None or not self._encoded:
            return self._limit
        left = max(self._characters - self._read, 0)
        total = self._sequences + round(self._sequences * left / self._encoded)
        return total if self._limit is None else min(total, self._limit)


@contextmanager
def progress(workload: Workload | None = None) -> Iterator[Observer]:
    """Show events as progress bars on standard error, if it is a terminal.

    Parameters
    ----------
    workload : Workload, optional
        What is read; without it no remaining time is shown for stages that read text.
    """
    where = console()
    with _bars(where) as bars:
        shown = _Stages(bars, workload.estimate() if workload and where.is_terminal else SequenceEstimate())

        def observe(event: Event) -> None:
            log_event(event)
            shown.observe(event)

        yield observe


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that work of unknown length is running, if standard error is a terminal."""
    with _bars(console()) as bars:
        bars.add_task(what, total=None, unit="", note="", rate="")
        yield


def _bars(where: Any) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    name, rate = TextColumn("{task.description:<10}"), TextColumn("{task.fields[rate]}")
    columns: tuple[Any, ...]
    # On narrow terminals, rich would shorten the stage and its rate, which matter most.
    if where.width < _NARROW:
        columns = (name, rate)
    elif where.width < _WIDE:
        columns = (SpinnerColumn(), name, rate, TimeRemainingColumn(), TextColumn("left"))
    else:
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        columns = (
            SpinnerColumn(),
            name,
            BarColumn(bar_width=16),
            rate,
            *times,
            TextColumn("left  {task.fields[note]}"),
        )
    return Progress(*columns, console=where, disable=not where.is_terminal, transient=True)


class _Stages:
    """Progress bars by stage, updated by events."""

    def __init__(self, bars: Progress, estimate: SequenceEstimate) -> None:
        self._bars, self._estimate = bars, estimate
        self._tasks: dict[str, Any] = {}
        self._matches = self._steps = 0

    def observe(self, event: Event) -> None:
        """Show an event."""
        match event:
            case BlockEncoded():
                self._estimate.add(event)
                self._advance("encode", event.sequences)
            case RoundIntegrated():
                self._advance("train", event.sequences, _moved(event))
            case MemoryMeasured(spilled_bytes=spilled) if spilled:
                self._advance("train", 0, f"{format_bytes(spilled)} spilled to disk")
            case Committed():
                self._advance("train", 0, f"committed {event.sequences:,}")
            case SequencesEvaluated():
                self._matches += event.matches
                self._steps += event.steps
                self._advance("evaluate", event.sequences, f"top-1 {self._matches / max(self._steps, 1):.4f}")
            case StageAdvanced():
                self._set(event.stage, event.done, event.total, event.unit)

    def _advance(self, name: str, sequences: int, note: str = "") -> None:
        task = self._task(name, "sequences")
        total = self._estimate.total
        done = task.completed + sequences
        # Where more is done than was estimated, the remaining time is unknown.
        total = total if total is None or total >= done else None
        self._bars.update(task.id, advance=sequences, total=total, note=note or task.fields["note"])
        self._show_rate(task)

    def _set(self, name: str, done: int, total: int, unit: str) -> None:
        task = self._task(name, unit)
        self._bars.update(task.id, completed=done, total=total)
        self._show_rate(task)

    def _task(self, name: str, unit: str) -> Any:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None, unit=unit, note="", rate="")
        return self._bars.tasks[self._bars.task_ids.index(self._tasks[name])]

    def _show_rate(self, task: Any) -> None:
        # How many sequences a text has is an estimate until its end.
        about = "~" if task.fields["unit"] == "sequences" else ""
        of = f" of {about}{task.total:,.0f}" if task.total else ""
        rate = f", {task.speed:,.0f}/s" if task.speed else ""
        self._bars.update(task.id, rate=f"{task.completed:,.0f}{of} {task.fields['unit']}{rate}")


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
            _LOG.debug("round %s: %s sequences; %s", event.round, event.sequences, _moved(event))
        case BlockEncoded():
            _LOG.debug("encoded %s sequences of %s characters", event.sequences, event.characters)
        case SequencesEvaluated():
            _LOG.debug("predicted %s sequences: %s of %s steps right", event.sequences, event.matches, event.steps)
        case StageAdvanced():
            _LOG.debug("%s: %s of %s %s", event.stage, event.done, event.total, event.unit)
        case MemoryMeasured(spilled_bytes=spilled) if spilled:
            _LOG.debug("%s spilled to disk", format_bytes(spilled))


def _moved(event: RoundIntegrated) -> str:
    """Return the bytes and messages of a round, as a note."""
    shared = event.shared_touches / max(event.column_touches, 1)
    return f"{event.increment_bytes / 1e6:,.1f} MB, {event.messages} messages, {shared:.0%} overlap"
