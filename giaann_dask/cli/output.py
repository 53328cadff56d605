"""Print the results of commands, readable or as one JSON object on standard output, and messages on standard error.

What a terminal would obey is escaped here (`giaann_dask.printable`), for all commands. Progress is shown by `progress`,
events are written by `event_files`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import click

from giaann_dask.printable import json_text, printable


def answer(values: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """Print the result of a command on standard output.

    Parameters
    ----------
    values : dict
        The result for programs.
    as_json : bool
        Whether to print `values`, as one object.
    lines : sequence of str
        The result for people, a line each.
    """
    show(json_text(values) if as_json else "\n".join(map(printable, lines)), json.dumps(values) if as_json else None)


def show(text: str, plain: str | None = None) -> None:
    """Print text that is escaped already on standard output.

    Parameters
    ----------
    text : str
        One or more lines.
    plain : str, optional
        What to print where the output's encoding lacks a character; by default the same with more escapes.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = plain or text.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(text)


def say(message: str) -> None:
    """Print a message of the command as one line on standard error."""
    click.echo(f"giaann-dask: {printable(' '.join(message.split()))}", err=True)


def figures(values: dict[str, Any], *names: str) -> list[str]:
    """Return aligned lines of some values, numbers with thousands separators."""
    width = max(len(name) for name in names)
    return [f"{name.replace('_', ' '):<{width}}  {_plain(values[name])}" for name in names]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "infinite" if math.isinf(value) else f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    return str(value)
