"""Print the results and messages of commands, and configure what they log: ``-v``, ``-vv`` and ``--log-json``.

Results go to standard output, readable or as one JSON object, messages to standard error. The handler of the logger
``giaann_dask`` writes there, too: coloured on a terminal, above the progress bars; plain lines elsewhere; JSON lines
with ``--log-json``. What a terminal would obey is escaped here, for all commands. Logs of Dask are not configured here,
progress is shown by `progress`.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.cli.click_ext import section
from giaann_dask.representations import Summarised, json_text, printable

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])

LOGGER = "giaann_dask"
_CONSOLE = "giaann_dask.console"
_CHOSEN = "giaann_dask.logging"
_JSON = "giaann_dask.json"
# Attributes that every record has; further ones come from the call that logged it.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def answer(values: dict[str, Any], lines: Sequence[str | Summarised] | None = None) -> None:
    """Print the result of a command on standard output.

    Parameters
    ----------
    values : dict
        The result for programs, printed as one object with ``--json``.
    lines : sequence of str or Summarised, optional
        The result for people, a line each, with `Summarised` objects among them; by default the values.
    """
    if is_json():
        show(json_text(values), json.dumps(values))
    else:
        lines = figures(values, *values) if lines is None else lines
        show("\n".join(repr(each) if isinstance(each, Summarised) else printable(each) for each in lines))


def is_json() -> bool:
    """Return whether the command that runs was given ``--json``."""
    return bool(click.get_current_context().meta.get(_JSON))


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


def place_name(path: Path) -> str:
    """Return a path as messages name it: relative where it is below the working directory; a URL as it is."""
    with suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


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


class PlainFormatter(logging.Formatter):
    """Format a record as text without anything that a terminal would obey; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of logging
        """Return the line without a traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - a name of logging
        """Return the traceback."""
        return printable(super().formatException(ei), keep="\n")


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object: time, level, logger, message and extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        value: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        value |= {name: given for name, given in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            value["error"] = self.formatException(record.exc_info)
        return json_text(value, default=str)


def _choose_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Keep whether a command prints JSON."""
    context.meta[_JSON] = value


json_option = section("Output and logging")(
    "--json",
    first=True,
    is_flag=True,
    expose_value=False,
    callback=_choose_json,
    help="Print one JSON object on standard output.",
)


def log_options(command: Command) -> Command:
    """Add ``-v`` and ``--log-json`` to a command."""
    output = section("Output and logging")
    for option in (
        output(
            "--log-json",
            is_flag=True,
            expose_value=False,
            callback=_choose("json"),
            help="Log JSON lines; implies -v.",
        ),
        output(
            "-v",
            "--verbose",
            first=True,
            count=True,
            expose_value=False,
            callback=_choose("verbose"),
            help="Log inputs, skipped text, lost workers and commits to standard error; -vv also every round.",
        ),
    ):
        command = option(command)
    return command


def _choose(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that stores one of the options and configures the logger by both."""

    def choose(context: click.Context, _: click.Parameter, value: Any) -> Any:
        chosen = context.meta.setdefault(_CHOSEN, {})
        chosen[name] = value
        if value:
            set_logging(int(chosen.get("verbose", 0)), bool(chosen.get("json", False)), console())
            context.call_on_close(quiet)
        return value

    return choose


def is_verbose() -> bool:
    """Return whether the command that runs was given ``-v``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_CHOSEN, {}).get("verbose"))


def set_logging(verbose: int, as_json: bool, where: Console) -> None:
    """Configure the logger of the package to write to standard error, or to the file of a console.

    Parameters
    ----------
    verbose : int
        1 logs INFO, 2 or more DEBUG.
    as_json : bool
        Whether to write JSON lines.
    where : Console
        On standard error; its progress bars stay below the log.
    """
    quiet()
    handler: logging.Handler
    if as_json or not where.is_terminal:
        handler = logging.StreamHandler(where.file)
        plain = PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        handler.setFormatter(JsonFormatter() if as_json else plain)
    else:
        from rich.logging import RichHandler

        handler = RichHandler(console=where, show_path=False, log_time_format="[%X]")
        handler.setFormatter(PlainFormatter())
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    logger.propagate = False


def escape_warnings() -> None:
    """Escape what is logged without ``-v``: warnings, which Python prints as they are."""
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(PlainFormatter())


def quiet() -> None:
    """Undo `set_logging`."""
    logger = logging.getLogger(LOGGER)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def console() -> Console:
    """Return the console on standard error that a command's bars and logs share."""
    from rich.console import Console

    context = click.get_current_context(silent=True)
    if context is None:
        return Console(stderr=True)
    found = context.meta.get(_CONSOLE)
    if found is None:
        found = context.meta[_CONSOLE] = Console(stderr=True)
    assert isinstance(found, Console)
    return found
