"""Read a job's settings from its command line, the environment and a TOML file, in this order of precedence.

Every option ``--some-name`` is also ``GIAANN_SOME_NAME`` in the environment and ``some-name`` in the TOML
file, in the table that has the name of the job (``[nightly]``), or in ``[common]``, which applies to all jobs. Unknown
names are refused. The options themselves are declared in `jobs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.click_ext import Command, without_dashes
from giaann_dask.cli.dataclass_options import Items
from giaann_dask.cli.output import say
from giaann_dask.cli.shared_options import FILE_PATH, read_toml
from giaann_dask.errors import GiaannError, OptionError
from giaann_dask.workflows.exits import BAD_INPUT, message_of, status_of

# Table of the file that applies to all jobs.
COMMON = "common"
# How alike the name of a table and that of a job are at least, so that one is suggested for the other.
_ALIKE = 0.5


class JobCommand(Command):
    """A command that a scheduler runs, with a table in the file of settings and exit codes of its own."""

    def _expanded(self) -> list[click.Parameter]:
        """Return the parameters, options with variables of the environment."""
        found = super()._expanded()
        for option in found:
            if isinstance(option, click.Option) and option.envvar is None:
                option.envvar = "GIAANN_" + without_dashes(option).replace("-", "_").upper()
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the job; return its exit code after errors that a scheduler treats otherwise than bad input."""
        try:
            return super().invoke(ctx)
        except GiaannError as error:
            if status_of(error) == BAD_INPUT:
                raise
            say(message_of(error))
            return status_of(error)


def job_command(name: str) -> Callable[[Callable[..., Any]], JobCommand]:
    """Return a decorator that makes a function with options a job.

    Parameters
    ----------
    name : str
        Name of the command, and of its table in the TOML file.
    """

    def decorate(function: Callable[..., Any]) -> JobCommand:
        dry = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
        config = click.option(
            "--config",
            type=FILE_PATH,
            is_eager=True,
            expose_value=False,
            callback=_read_config,
            help="TOML file with settings, which options and the environment override.",
        )
        return click.command(name, cls=JobCommand)(config(dry(function)))

    return decorate


def read_tables(path: Path, jobs: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file.

    Parameters
    ----------
    path : Path
        The file.
    jobs : collection of str
        Names of all jobs.

    Raises
    ------
    InputMissingError, InputFormatError
        If it cannot be read, or is not TOML.
    OptionError
        If it has a table that belongs to no job, or settings outside of a table.
    """
    tables = read_toml(path, "--config")
    known = (COMMON, *jobs)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise OptionError(f"{path} has {name!r}", f"tables {', '.join(known)}", "move it into one of these")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=_ALIKE)
            remedy = f"name it [{near[0]}]" if near else "name it as its job"
            raise OptionError(f"{path} has the table {name!r}", f"tables {', '.join(known)}", remedy)
    return tables


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use settings of a TOML file as the defaults of a command."""
    if path is None:
        return
    assert isinstance(context.command, JobCommand)
    assert context.parent is not None
    assert isinstance(context.parent.command, click.Group)
    tables, table = read_tables(path, context.parent.command.commands), str(context.command.name)
    options = {without_dashes(option): option for option in context.command.params if isinstance(option, click.Option)}
    chosen: dict[str, Any] = {}
    for where in (COMMON, table):
        for name, value in tables.get(where, {}).items():
            option = options.get(name)
            if option is not None:
                chosen[str(option.name)] = _as_given(option, value, path)
            elif where == table:
                near = difflib.get_close_matches(name, options, 1)
                raise OptionError(
                    f"{path} has {name!r} in [{table}]",
                    "an option of the job without its dashes" + (f", such as {near[0]}" if near else ""),
                    "correct it, or see --help",
                )
    context.default_map = chosen


def _as_given(option: click.Option, value: Any, path: Path) -> Any:
    """Return a value of the file as the command line would give it: as text, but for flags."""
    name = without_dashes(option)
    if isinstance(value, list) and isinstance(option.type, Items):
        return ",".join(_text(part, name, path) for part in value)
    if option.multiple:
        return [_text(part, name, path) for part in (value if isinstance(value, list) else [value])]
    if isinstance(value, bool) and (option.is_flag or option.count):
        return value
    return _text(value, name, path)


def _text(value: Any, name: str, path: Path) -> str:
    """Return one value of the file as text."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    kinds = {list: "a list", dict: "a table", bool: str(value).lower()}
    raise OptionError(f"{path} has {kinds.get(type(value), 'a time')} for {name}", "a text or a number", "name one")
