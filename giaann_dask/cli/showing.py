"""What the commands answer.

Covers: the file of what rounds moved, and the choice between a readable answer and one JSON object on
standard output. Does not cover: the figures, and progress while a command runs (`progress`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

import click

from giaann_dask.events import Event, Observer, RoundIntegrated
from giaann_dask.storage import writing


def round_log(file: TextIO | None, observer: Observer) -> Observer:
    """Let an observer's events also write what rounds moved to a file, one JSON object a line.

    Parameters
    ----------
    file : text file, optional
        Open for writing; without one the observer is returned as it is.
    observer : callable
        Told of every event.

    Returns
    -------
    callable
        The observer to use; raises `StoreWriteError` when the disk is full.
    """
    if file is None:
        return observer
    started = time.perf_counter()

    def observe(event: Event) -> None:
        if isinstance(event, RoundIntegrated):
            seconds = round(time.perf_counter() - started, 3)
            with writing(file.name):
                file.write(json.dumps({**asdict(event), "seconds": seconds}) + "\n")
                # For those who follow the file while it grows.
                file.flush()
        observer(event)

    return observe


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
