"""Read a script's settings from its command line, the environment and a TOML file, in this order of precedence.

Every option ``--some-name`` is also ``GIAANN_SOME_NAME`` in the environment and ``some-name`` in the TOML
file, in the table of the script (``[train-nightly]``) or in ``[common]``, which applies to all scripts. Unknown names
are refused. The options themselves are declared by each script.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.options import read_toml
from giaann_dask.cli.spelling import Command
from giaann_dask.errors import OptionError

# Tables that the file may have.
TABLES = ("common", "train-nightly", "evaluate-weekly", "backup", "compare-profiles")


def job_command(table: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function with options a script's command.

    Parameters
    ----------
    table : str
        Its table in the TOML file, and its name with ``_`` for ``-``.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        dry = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
        config = click.option(
            "--config",
            type=click.Path(path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=_read_config,
            help="TOML file with settings, which options and the environment override.",
        )
        context = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        named = click.command(table.replace("-", "_"), cls=Command, context_settings=context)
        made: click.Command = named(config(dry(function)))
        for option in made.params:
            if isinstance(option, click.Option) and option.envvar is None and option.name != "help":
                option.envvar = "GIAANN_" + _spelled(option).replace("-", "_").upper()
        return made

    return decorate


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file.

    Raises
    ------
    InputMissingError, InputFormatError
        If it cannot be read, or is not TOML.
    OptionError
        If it has a table that belongs to no script, or settings outside of a table.
    """
    tables = read_toml(path, "--config")
    for name, table in tables.items():
        if name not in TABLES or not isinstance(table, dict):
            raise OptionError(f"{path} has {name!r}", f"tables {', '.join(TABLES)}", "move it into one of these")
    return tables


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use settings of a TOML file as the defaults of a command."""
    if path is None:
        return
    tables, table = read_tables(path), str(context.command.name).replace("_", "-")
    options = {_spelled(option): option for option in context.command.params if isinstance(option, click.Option)}
    chosen: dict[str, Any] = {}
    for where in ("common", table):
        for name, value in tables.get(where, {}).items():
            option = options.get(name)
            if option is not None:
                chosen[str(option.name)] = _as_given(option, value, path)
            elif where == table:
                near = difflib.get_close_matches(name, options, 1)
                raise OptionError(
                    f"{path} has {name!r} in [{table}]",
                    "an option of the script without its dashes" + (f", such as {near[0]}" if near else ""),
                    "correct it, or see --help",
                )
    context.default_map = chosen


def _as_given(option: click.Option, value: Any, path: Path) -> Any:
    """Return a value of the file as an option takes it."""
    if isinstance(value, list) != option.multiple:
        if option.multiple:
            return [value]
        raise OptionError(f"{path} has a list for {_spelled(option)}", "one value", "name one")
    return value


def _spelled(option: click.Option) -> str:
    """Return an option's name as it is written, without dashes."""
    return max(option.opts, key=len).lstrip("-")
