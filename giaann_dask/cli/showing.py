"""What the commands show: progress while they run, and their answer.

Covers: rich progress bars on standard error, quiet when that is no terminal, and the choice between a
readable answer and one JSON object on standard output. Does not cover: the figures, and events in files
(`event_files`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from giaann_dask.events import (
    BlockEncoded,
    Committed,
    Event,
    MemoryMeasured,
    Observer,
    RoundIntegrated,
    SequencesEvaluated,
)
from giaann_dask.representations import format_bytes


@contextmanager
def progress() -> Iterator[Observer]:
    """Show what an observer is told as progress bars on standard error, if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f} sequences"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        yield _observer(bars)


def _observer(bars: Any) -> Callable[[Event], None]:
    tasks: dict[str, Any] = {}
    totals = {"matches": 0, "steps": 0}

    def advance(name: str, sequences: int, note: str = "") -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=None, rate="", note="")
        task = bars.tasks[bars.task_ids.index(tasks[name])]
        rate = f"{task.speed:,.0f}/s" if task.speed else ""
        bars.update(tasks[name], advance=sequences, rate=rate, note=note or task.fields["note"])

    def observe(event: Event) -> None:
        match event:
            case BlockEncoded():
                advance("encode", event.sequences)
            case RoundIntegrated():
                advance("train", event.sequences, _moved(event))
            case MemoryMeasured(spilled_bytes=spilled) if spilled:
                advance("train", 0, f"{format_bytes(spilled)} spilled to disk")
            case Committed():
                advance("train", 0, f"committed {event.sequences:,}")
            case SequencesEvaluated():
                totals["matches"] += event.matches
                totals["steps"] += event.steps
                share = totals["matches"] / totals["steps"] if totals["steps"] else 0.0
                advance("evaluate", event.sequences, f"top-1 {share:.4f}")

    return observe


def _moved(event: RoundIntegrated) -> str:
    """Return what a round moved, as a note."""
    shared = event.shared_touches / max(event.column_touches, 1)
    return f"{event.increment_bytes / 1e6:,.1f} MB, {event.messages} messages, {shared:.0%} overlap"


def answer(values: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """Print the answer of a command on standard output.

    Parameters
    ----------
    values : dict
        The answer for a program.
    as_json : bool
        Whether to print that, as one object.
    lines : sequence of str
        The answer for a person.
    """
    click.echo(json.dumps(values, ensure_ascii=False) if as_json else "\n".join(lines))


def figures(values: dict[str, Any], *names: str) -> list[str]:
    """Return aligned lines of some values, numbers with thousands separators."""
    width = max(len(name) for name in names)
    return [f"{name.replace('_', ' '):<{width}}  {_plain(values[name])}" for name in names]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "none"
    return str(value)
