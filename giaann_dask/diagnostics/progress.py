"""Show the progress of encoding, training and evaluation as bars: with rich on terminals, as HTML in notebooks.

Each stage has a bar with its rate and the remaining time, by an estimate of how many sequences the input has. Bars
follow the events of `giaann_dask.events`. Logging of events is in `giaann_dask.cli.progress`.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    ignore,
)
from giaann_dask.lazy import count_compilable, count_compiled, functions_left
from giaann_dask.representations import bar, format_bytes
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.read_options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Widths of the terminal, in characters, below which fewer columns are shown.
_NARROW, _WIDE = 56, 80
# Seconds between two updates of a notebook's bars at least.
_NOTEBOOK_PERIOD_S = 0.25
_CELL = "border:none;padding:1px 12px 1px 0;text-align:left"


@dataclass(frozen=True)
class Workload:
    """Input of a call, from which its duration is estimated.

    Attributes
    ----------
    inputs : sequence of str or MemoryInput
        Text or corpora.
    reading : ReadOptions, optional
        How files are read.
    max_sequences : int, optional
        Sequences at which it stops.
    """

    inputs: Sequence[Source] = ()
    reading: ReadOptions | None = None
    max_sequences: int | None = None

    def estimate(self) -> SequenceEstimate:
        """Return an estimate of the sequences of the input."""
        from giaann_dask.encoding.sources import estimate_characters

        try:
            characters = estimate_characters(self.inputs, self.reading) if self.inputs else None
        except (GiaannError, OSError):
            # What reads the input reports the problem.
            characters = None
        return SequenceEstimate(characters, self.max_sequences)


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


@dataclass
class StageProgress:
    """State of one bar.

    Attributes
    ----------
    name, unit : str
        Name of the stage, one word, and what is counted.
    done : int
        How much of it is done.
    total : int or None
        How much there is, an estimate for sequences; None while it is unknown.
    note : str
        Further figures.
    started : float
        Time of the first event, by `time.monotonic`, in seconds.
    """

    name: str
    unit: str
    done: int = 0
    total: int | None = None
    note: str = ""
    started: float = field(default_factory=time.monotonic)

    def count(self, speed: float | None) -> str:
        """Return counts and rate as text; `speed` is in units a second."""
        # How many sequences a text has is an estimate until its end.
        about = "~" if self.unit == "sequences" else ""
        of = f" of {about}{self.total:,.0f}" if self.total else ""
        return f"{self.done:,.0f}{of} {self.unit}" + (f", {speed:,.0f}/s" if speed else "")


class StageTracker:
    """Observer that keeps the stages of a call from its events.

    Parameters
    ----------
    estimate : SequenceEstimate
        Of the input.
    show : callable
        Called with a stage when it has changed.
    """

    def __init__(self, estimate: SequenceEstimate, show: Callable[[StageProgress], None]) -> None:
        self._estimate, self._show = estimate, show
        self._stages: dict[str, StageProgress] = {}
        self._matches = self._steps = 0

    def __call__(self, event: Event) -> None:
        """Take an event into account."""
        match event:
            case BlockEncoded():
                self._estimate.add(event)
                self._advance("encode", event.sequences)
            case RoundIntegrated():
                self._advance("train", event.sequences, round_note(event))
            case MemoryMeasured(spilled_bytes=spilled) if spilled:
                self._advance("train", 0, f"{format_bytes(spilled)} spilled to disk")
            case Committed():
                self._advance("train", 0, f"committed {event.sequences:,}")
            case SequencesEvaluated():
                self._matches += event.matches
                self._steps += event.steps
                self._advance("evaluate", event.sequences, f"top-1 {self._matches / max(self._steps, 1):.4f}")
            case StageAdvanced():
                stage = self._stage(event.stage, event.unit)
                stage.done, stage.total = event.done, event.total
                self._show(stage)

    def _advance(self, name: str, sequences: int, note: str = "") -> None:
        stage, total = self._stage(name, "sequences"), self._estimate.total
        stage.done += sequences
        # Where more is done than was estimated, the remaining time is unknown.
        stage.total = total if total is None or total >= stage.done else None
        stage.note = note or stage.note
        self._show(stage)

    def _stage(self, name: str, unit: str) -> StageProgress:
        return self._stages.setdefault(name, StageProgress(name, unit))


def round_note(event: RoundIntegrated) -> str:
    """Return the bytes and messages of a round as text."""
    shared = event.shared_touches / max(event.column_touches, 1)
    return f"{event.increment_bytes / 1e6:,.1f} MB, {event.messages} messages, {shared:.0%} overlap"


@contextmanager
def progress_bars(workload: Workload, shown: bool | None = None) -> Iterator[Observer]:
    """Show events as bars in a notebook or on a terminal.

    Parameters
    ----------
    workload : Workload
        What is read, for the remaining time.
    shown : bool, optional
        Whether bars are shown; by default in a notebook and not elsewhere. On a terminal they are written to standard
        error.

    Yields
    ------
    callable
        Observer of events.
    """
    notebook = in_notebook()
    if shown is False or (shown is None and not notebook):
        yield ignore
        return
    if notebook:
        bars = NotebookBars()
        try:
            yield StageTracker(workload.estimate(), bars.show)
        finally:
            bars.close()
        return
    from rich.console import Console

    console = Console(file=sys.stderr)
    with terminal_bars(console) as progress:
        yield StageTracker(workload.estimate(), TerminalBars(progress).show)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which can display HTML."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return type(found).__name__ == "ZMQInteractiveShell"


class NotebookBars:
    """Bars of a notebook's cell: an HTML table that is updated in place, without further packages."""

    def __init__(self) -> None:
        self._stages: dict[str, StageProgress] = {}
        self._display: Any = None
        self._shown = 0.0

    def show(self, stage: StageProgress) -> None:
        """Show a stage that has changed, at most a few times a second."""
        self._stages[stage.name] = stage
        if time.monotonic() - self._shown >= _NOTEBOOK_PERIOD_S:
            self._update()

    def close(self) -> None:
        """Show the last state of all stages."""
        if self._stages:
            self._update()

    def html(self) -> str:
        """Return the stages as a table that needs no style sheet."""
        rows = []
        for stage in self._stages.values():
            seconds = time.monotonic() - stage.started
            share = min(stage.done / stage.total, 1.0) if stage.total else float("nan")
            cells = (
                html.escape(stage.name),
                bar(share) if stage.total else "",
                html.escape(stage.count(stage.done / seconds if seconds > 1 else None)),
                html.escape(stage.note),
            )
            rows.append("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>")
        return f"<table><tbody>{''.join(rows)}</tbody></table>"

    def _update(self) -> None:
        from IPython.display import HTML, display

        self._shown = time.monotonic()
        if self._display is None:
            self._display = display(HTML(self.html()), display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._display.update(HTML(self.html()))  # type: ignore[no-untyped-call]


class FunctionsLeft:
    """Functions that are left to compile and the time for them, counted when shown, at most once in a period.

    Parameters
    ----------
    period_s : float
        Seconds between two looks at the cache of compiled code, into which all processes of this machine compile.
    """

    def __init__(self, period_s: float = 1.0) -> None:
        self._period_s, self._began, self._until = period_s, time.monotonic(), 0.0
        self._first = self._count = count_compiled()

    def __str__(self) -> str:
        """Return them for a person."""
        now = time.monotonic()
        if now > self._until:
            self._count, self._until = count_compiled(), now + self._period_s
        return functions_left(self._count, count_compilable(), now - self._began, self._count - self._first)


class TerminalBars:
    """Bars of a terminal, one for each stage, and one until the first stage, or where workers compile first.

    Parameters
    ----------
    progress : rich.progress.Progress
        From `terminal_bars`.
    count_period_s : float
        Seconds between two looks at the cache of compiled code.
    """

    def __init__(self, progress: Progress, *, count_period_s: float = 1.0) -> None:
        self._progress = progress
        self._tasks: dict[str, Any] = {}
        self._compiles = not progress.disable and not count_compiled()
        name, rate = ("compile", FunctionsLeft(count_period_s)) if self._compiles else ("start", "")
        self._first = progress.add_task(name, total=None, note="", rate=rate)

    def show(self, stage: StageProgress) -> None:
        """Show a stage that has changed."""
        bars = self._progress
        if not self._compiles:
            bars.update(self._first, visible=False)
        if stage.name not in self._tasks:
            self._tasks[stage.name] = bars.add_task(stage.name, total=None, note="", rate="")
        task = bars.tasks[bars.task_ids.index(self._tasks[stage.name])]
        bars.update(task.id, completed=stage.done, total=stage.total, note=stage.note)
        bars.update(task.id, rate=stage.count(task.speed))


def terminal_bars(console: Console) -> Progress:
    """Return rich's display of bars with the columns that fit a terminal; nothing is shown where there is none."""
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
    if console.width < _NARROW:
        columns = (name, rate)
    elif console.width < _WIDE:
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
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
