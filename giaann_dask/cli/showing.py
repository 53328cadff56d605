"""Print the results of commands, readable or as one JSON object on standard output.

Progress is shown by `progress`, events are written by `event_files`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import click


def answer(values: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """Print the result of a command on standard output.

    Parameters
    ----------
    values : dict
        The result for programs.
    as_json : bool
        Whether to print `values`, as one object.
    lines : sequence of str
        The result for people.
    """
    shown = json.dumps(values, ensure_ascii=False) if as_json else "\n".join(lines)
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    try:
        shown.encode(encoding, "strict" if as_json else errors)
    except UnicodeEncodeError:
        # Names of files need not be UTF-8, and not every output is.
        shown = json.dumps(values) if as_json else shown.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(shown)


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
