"""Define the click command of this package: help in sections, and errors that name options.

An error names the option of the command that sets a parameter instead of the parameter of Python. The texts of errors
are in `giaann_dask.errors`, exit codes in `giaann_dask.cli`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from giaann_dask.errors import GiaannError

# Title of the options that belong to no section.
PLAIN = "Options"
# Options that --help shows of a command, about; where there are more, some of them.
MOST_SHOWN = 15
_ALL = "giaann_dask.help_all"

F = TypeVar("F", bound=Callable[..., Any])

# The option of commands that define a network.
_DEFINES = "specification_file"
# The one that sets a field of it.
_SETS = "settings"
# Fields of the specification that a file of this command sets, in `click.Context.meta`.
FILE_FIELDS = "giaann_dask.file_fields"
# Parameters that a command sets with options of other names, in order of preference.
_OTHERWISE = {
    "body_bytes": ("max_body",),
    "cache_bytes": ("row_memory",),
    "depth": ("beam_depth",),
    "hot_bytes": ("hot_memory",),
    "maximum_columns": ("columns",),
    "maximum_connections": ("connections",),
    "maximum_features": ("features",),
    "maximum_s": ("max_seconds",),
    "maximum_sequences": ("max_sequences",),
    "name": ("model_name",),
    "order": ("selection",),
    "prompt_characters": ("max_prompt",),
    "region_bytes": ("region_size",),
    "score": ("beam_score",),
    "state_bytes": ("state_memory",),
    "tokens": ("max_tokens", "tokenizer"),
    "mode": ("rows",),
    "width": ("beam_width",),
    "width_inches": ("width",),
}
# End of the names of parameters in seconds, which options leave out.
_SECONDS = "_s"


class Option(click.Option):
    """An option that the help lists in a section.

    Parameters
    ----------
    declarations, **settings
        Those of `click.Option`.
    section : str
        Title of the section.
    first : bool
        Whether ``--help`` shows it; ``--help-all`` shows every option.
    """

    def __init__(
        self, declarations: Sequence[str], *, section: str = PLAIN, first: bool = False, **settings: Any
    ) -> None:
        super().__init__(declarations, **settings)
        self.section, self.first = section, first or section == PLAIN


def section(title: str) -> Callable[..., Callable[[F], F]]:
    """Return ``click.option`` for options that the help lists in a section with a title."""
    return partial(click.option, cls=Option, section=title)


class Command(click.Command):
    """A command whose help lists its options in sections, and whose errors name them.

    Where it has many options, ``--help`` shows the first ones and ``--help-all`` all of them.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._long = sum(isinstance(each, click.Option) for each in self.params) > MOST_SHOWN
        if self._long:
            show: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            self.params.append(click.Option(["--help-all"], help="Show all options and exit.", **show))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those without a section first."""
        sections: dict[str, list[tuple[str, str]]] = {PLAIN: []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is not None and not self._is_left_out(each, ctx):
                sections.setdefault(each.section if isinstance(each, Option) else PLAIN, []).append(record)
        # The options of where a command runs and what it prints are the same everywhere, so they come last.
        last = [title for title in ("Cluster", "Output and logging") if title in sections]
        for title in (*(title for title in sections if title not in last), *last):
            with formatter.section(title):
                formatter.write_dl(sections[title])
        hidden = sum(self._is_left_out(each, ctx) for each in self.get_params(ctx))
        if hidden:
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options: {ctx.command_path} --help-all")

    def _is_left_out(self, each: click.Parameter, ctx: click.Context) -> bool:
        """Return whether a visible option is shown by ``--help-all`` only."""
        shown = not self._long or bool(ctx.meta.get(_ALL))
        return not shown and isinstance(each, Option) and not (each.first or each.required)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; errors name them as they were given."""
        try:
            with _naming_options(ctx):
                return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if isinstance(error.param, click.Option) and error.param_hint is None:
                error.param_hint = f"'{_as_given(error.param, ctx)}'"
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of this package that it raises name options."""
        with _naming_options(ctx):
            return super().invoke(ctx)


@contextmanager
def _naming_options(ctx: click.Context) -> Iterator[None]:
    """Let errors of this package name the options of a command."""
    try:
        yield
    except GiaannError as error:
        error.choose_spelling(lambda name: spelled(name, ctx))
        raise


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Show the help with all options, and exit."""
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


class CommandGroup(Command, click.Group):
    """A command that has commands of its own, and does its own work where none of them is named."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, invoke_without_command=True, **settings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def spelled(name: str, context: click.Context) -> str:
    """Return the option that sets a parameter: of this command, else of another one, else the parameter's name.

    An option of this command is named as it was given: in a file by its key, in the environment by its variable.

    Parameters
    ----------
    name : str
        The parameter, as Python spells it.
    context : click.Context
        That of the command that failed.
    """
    if name in context.meta.get(FILE_FIELDS, ()):
        return name
    commands = [
        {option.name: option for option in command.params if isinstance(option, click.Option)}
        for command in (context.command, *_commands(context.find_root().command))
    ]
    for options in commands:
        for candidate in (name, *_OTHERWISE.get(name, ()), name.removesuffix(_SECONDS)):
            if candidate in options:
                return _as_given(options[candidate], context)
        if _DEFINES in options and name in _specification_fields():
            # Some fields have an option of their own, not in every command that defines networks.
            own = [each[name] for each in commands if _DEFINES in each and name in each]
            return _as_given(own[0], context) if own else f"{_as_given(options[_SETS], context)} {name}"
    return name


def _as_given(option: click.Option, context: click.Context) -> str:
    """Return an option as the call of a command spelled it; with its dashes where it did not name it."""
    own = any(option is each for each in context.command.params)
    match context.get_parameter_source(str(option.name)) if own else None:
        case ParameterSource.DEFAULT_MAP:
            return without_dashes(option)
        case ParameterSource.ENVIRONMENT:
            return str(option.envvar)
    return _flag(option)


def _flag(option: click.Option) -> str:
    return max(option.opts, key=len)


def without_dashes(option: click.Option) -> str:
    """Return an option as a file of settings names it."""
    return _flag(option).lstrip("-")


def _specification_fields() -> set[str]:
    """Return the fields that ``--set`` sets where a command defines a network."""
    from giaann_dask.spec import Specification

    return {field.name for field in fields(Specification)}


def _commands(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from _commands(each)
