"""Define the click command of this package: help in sections, and errors that name options.

An error names the option of the command that sets a parameter instead of the parameter of Python. The texts of errors
are in `giaann_dask.errors`, exit codes in `giaann_dask.cli`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from giaann_dask.cli.dataclass_options import PLAIN, Option, OptionGroup
from giaann_dask.errors import GiaannError

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


def section(title: str) -> Callable[..., Callable[[F], F]]:
    """Return ``click.option`` for options that the help lists in a section with a title."""
    return partial(click.option, cls=Option, section=title)


class Command(click.Command):
    """A command whose help lists its options in sections, and whose errors name them.

    Where it has many options, ``--help`` shows the first ones and ``--help-all`` all of them.
    """

    _declared: list[click.Parameter | OptionGroup]
    _params: list[click.Parameter] | None = None

    @property
    def params(self) -> list[click.Parameter]:
        """Arguments and options; classes that options are made of are imported when they are read."""
        if self._params is None:
            self._params = self._expanded()
        return self._params

    @params.setter
    def params(self, declared: list[click.Parameter]) -> None:
        self._declared, self._params = [*declared], None

    @property
    def groups(self) -> dict[str, OptionGroup]:
        """Groups of options that are made of classes, by their keys."""
        return {each.key: each for each in self._declared if isinstance(each, OptionGroup)}

    def _expanded(self) -> list[click.Parameter]:
        """Return the parameters; an option that several groups have is that of the first, or one of the command."""
        own = {each.name for each in self._declared if isinstance(each, click.Parameter)}
        found: list[click.Parameter] = []
        for each in self._declared:
            if isinstance(each, OptionGroup):
                new = [option for option in each.options() if option.name not in own]
                own |= {option.name for option in new}
                found += new
            else:
                found.append(each)
        if _is_long(found):
            show: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            found.append(click.Option(["--help-all"], help="Show all options and exit.", **show))
        return found

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
        shown = not _is_long(self.params) or bool(ctx.meta.get(_ALL))
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
        self._build(ctx)
        with _naming_options(ctx):
            return super().invoke(ctx)

    def _build(self, ctx: click.Context) -> None:
        """Replace the values of the options of groups by the objects that are built of them."""
        groups = self.groups
        own = {str(each.name) for each in self._declared if isinstance(each, click.Parameter)}
        objects = {name: value for name, value in ctx.params.items() if name in own}
        given = {name: value for name, value in ctx.params.items() if _is_given(name, ctx)}

        def build(key: str) -> None:
            for needed in groups[key].needs(groups):
                if needed not in objects:
                    build(needed)
            with _naming_options(ctx, groups[key].names()):
                objects[key] = groups[key].build(given, objects)

        for key in groups:
            if key not in objects:
                build(key)
        ctx.params = objects


def given_options(*keys: str) -> list[str]:
    """Return the names of the options of groups that the command that runs was given."""
    context = click.get_current_context()
    assert isinstance(context.command, Command)
    names = [option for key in keys for option in context.command.groups[key].names().values()]
    return [name for name in names if _is_given(name, context)]


def _is_long(parameters: list[click.Parameter]) -> bool:
    return sum(isinstance(each, click.Option) for each in parameters) > MOST_SHOWN


def _is_given(name: str, ctx: click.Context) -> bool:
    """Return whether a value is of the call, the environment or a file."""
    return ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)


@contextmanager
def _naming_options(ctx: click.Context, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let errors of this package name the options of a command.

    Parameters
    ----------
    ctx : click.Context
        That of the command.
    names : mapping of str to str, optional
        Options by the parameters of Python that they set, which take precedence.
    """
    try:
        yield
    except GiaannError as error:
        error.choose_spelling(lambda name: spelled((names or {}).get(name, name), ctx))
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
        super().__init__(*arguments, **{"invoke_without_command": True, **settings})

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
    commands = list(_commands(context.find_root().command))
    for command in (context.command, *commands):
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        set_by = {option.parameter: option for option in options.values() if isinstance(option, Option)}
        if (found := options.get(name) or set_by.get(name)) is not None:
            return _as_given(found, context)
        if _DEFINES in options and name in _specification_fields():
            # Some fields have an option of their own, not in every command that defines networks.
            defining = [each for each in commands if any(option.name == _DEFINES for option in each.params)]
            every = [each for command in defining for each in command.params if isinstance(each, click.Option)]
            own = [each for each in every if each.name == name]
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
