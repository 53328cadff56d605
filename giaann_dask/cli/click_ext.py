"""Define the click options and commands of this package.

Options are made of the fields of a dataclass, or of the keyword parameters of a function: name, type, default and help
are those of the class or function. The type is that of the annotation, the help the entry in its docstring (numpydoc).
It is imported when the command that has the options is used.

A command shows its options in sections, and its errors name the option that sets a parameter instead of the parameter
of Python. The texts of errors are in `giaann_dask.errors`, exit codes in `giaann_dask.cli`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
from click.core import ParameterSource

from giaann_dask.errors import GiaannError, OptionError
from giaann_dask.representations import format_bytes

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

# Title of the options that belong to no section.
PLAIN = "Options"
# End of the names of fields that are numbers of bytes.
_BYTES = "_bytes"
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*) : .*")


class Size(click.ParamType[int]):
    """Number of bytes, with a unit or without one."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes.

        Raises
        ------
        OptionError
            If it is no size.
        """
        if isinstance(value, int):
            return value
        from dask.utils import parse_bytes

        try:
            return int(parse_bytes(value))
        except ValueError as error:
            name = str(param.name) if param is not None else "a size"
            raise OptionError(
                f"{name} is {value!r}", "a size such as 256MiB", f"set {name} to such a value", (name,)
            ) from error


class Items(click.ParamType[tuple[Any, ...]]):
    """Values of a type, separated by commas."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self.name = f"{click.types.convert_type(kind).name},..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values; a list is one of a file of settings."""
        if isinstance(value, tuple | list):
            return tuple(value)
        return read_items(str(param.name if param else self.name), str(value), self._kind)


def read_items(name: str, text: str, kind: type[Any], expected: str = "numbers such as 1,5,10") -> tuple[Any, ...]:
    """Return the values of an option's text, which are separated by commas.

    Raises
    ------
    OptionError
        If one is not of the type.
    """
    try:
        return tuple(kind(part.strip()) for part in text.split(",") if part.strip() or kind is not str)
    except ValueError as error:
        raise OptionError(f"{name} is {text!r}", expected, f"set {name} to such values", names=(name,)) from error


SIZE = Size()


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
    parameter : str, optional
        The parameter or field of Python that it sets; by default its own name.
    aliases : sequence of str
        Flags that are taken for this one where the command has no such option.
    """

    def __init__(
        self,
        declarations: Any,
        *,
        section: str,
        first: bool = False,
        parameter: str | None = None,
        aliases: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(declarations, **settings)
        self.aliases = aliases
        self.section, self.first, self.parameter = section, first or section == PLAIN, parameter or str(self.name)


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options of a command for the fields of a dataclass, and the object that is built of those that are given.

    Of a function's parameters it is a dictionary of those that are given.

    Parameters
    ----------
    key : str
        Parameter of the command's function that takes the object; fields of this name of other groups take it, too.
    place : str
        Full name of the class or function.
    section : str
        Title of the section of the help.
    only : tuple of str
        Names of the fields that have options; all that an option can set by default.
    without : tuple of str
        Names of fields that have none.
    shared : tuple of str
        Names of fields that options of the same names of other groups set.
    first : tuple of str
        Names of fields whose options ``--help`` shows.
    prefix : str
        Begins the names of the options.
    optional : bool
        Whether there is no object unless an option is given.
    partial : bool
        Whether the command's function gets a partial of the class, to which it adds the other fields.
    fixed : mapping of str to Any
        Values of fields without an option that differ from the defaults.
    defaults : mapping of str to Any
        Defaults of the command that differ from those of the class.
    settings : mapping of str to mapping
        Further settings of `click.Option`, by the names of fields.
    """

    key: str
    place: str
    section: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    prefix: str = ""
    optional: bool = False
    partial: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def kind(self) -> Callable[..., Any]:
        """The class or function, imported."""
        kind: Callable[..., Any] = resolve_name(self.place)
        return kind

    def names(self) -> dict[str, str]:
        """Return the names of the options by those of the fields."""
        return {name: self._name(name) for name, *_ in self._settings()} | {name: name for name in self.shared}

    def options(self) -> Iterator[Option]:
        """Yield the options."""
        helps = field_helps(self.kind)
        for name, default, settings in self._settings():
            yield self._option(name, default, settings, helps.get(name, ""))

    def needs(self, keys: Collection[str]) -> list[str]:
        """Return those of other groups whose objects are fields of this one's."""
        return [name for name in self._fields() if name in keys and name != self.key]

    def build(self, given: Mapping[str, Any], objects: Mapping[str, Any]) -> Any:
        """Return the object, None where the group is optional and none of its options is given.

        Parameters
        ----------
        given : mapping of str to Any
            Values by the names of options, of those that were given.
        objects : mapping of str to Any
            Objects of the command's other groups by their keys, and its own parameters by their names.
        """
        values = {name: given[option] for name, option in self.names().items() if option in given}
        if self.optional and not values:
            return None
        nested = {name: objects[name] for name in self._fields() if objects.get(name) is not None}
        kind = self.kind if is_dataclass(self.kind) else dict[str, Any]
        made = functools.partial(kind, **{**self.fixed, **self.defaults, **nested, **values})
        return made if self.partial else made()

    def _name(self, name: str) -> str:
        return f"{self.prefix}_{name}" if self.prefix else name

    def _fields(self) -> list[str]:
        return [each.name for each in fields(self.kind)] if is_dataclass(self.kind) else []

    def _settings(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield name, default and settings of `click.Option` of the fields that have options."""
        for name, default in defaults_of(self.kind).items():
            chosen = name in self.only if self.only else name not in self.without
            if chosen and name not in (*self.fixed, *self.shared):
                settings = option_settings(value_type(self.kind, name), name)
                if settings is not None:
                    yield name, default, settings

    def _option(self, field_name: str, default: Any, settings: Mapping[str, Any], text: str) -> Option:
        name = self._name(field_name)
        written = metadata_of(self.kind, field_name)
        flag = written.get("flag", "--" + name.replace("_", "-"))
        # Flags have a default of their own, and no type.
        declaration = f"{flag}/--no-{flag[2:]}" if "default" in settings else flag
        shown = shown_default(self.defaults.get(field_name, default), field_name)
        return Option(
            [declaration, name],
            section=self.section,
            first=field_name in self.first,
            parameter=field_name,
            aliases=written.get("flags", ()),
            help=f"{text}  [default: {shown}]" if shown else text,
            **settings,
            **self.settings.get(field_name, {}),
        )


def options_of(key: str, place: str, section: str, **settings: Any) -> Callable[[F], F]:
    """Return a decorator that gives a command the options of a dataclass or function, and its function the object.

    Parameters
    ----------
    key, place, section, **settings
        Those of `OptionGroup`.
    """
    group = OptionGroup(key=key, place=place, section=section, **settings)

    def decorate(function: F) -> F:
        # As `click.option` does.
        function.__dict__.setdefault("__click_params__", []).append(group)
        return function

    return decorate


def option_settings(hint: Any, name: str) -> dict[str, Any] | None:
    """Return the settings of an option by the type of its value, None where no option can set such a value."""
    if get_origin(hint) is Literal:
        return {"type": click.Choice(get_args(hint))}
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        kind = get_args(hint)[0]
        return {"type": Items(kind if kind in (int, float) else str)}
    if hint is bool:
        return {"default": None}
    if hint is int and name.endswith(_BYTES):
        return {"type": SIZE}
    if hint in (int, float, str):
        return {"type": hint}
    return {"type": click.Path(path_type=Path)} if hint is Path else None


def shown_default(value: Any, name: str) -> str:
    """Return a default as a command's help shows it; empty where there is none, or a flag is off."""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, int) and name.endswith(_BYTES):
        return format_bytes(value).replace(".0 ", "")
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def field_helps(kind: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstrings of a class and of those it is derived from, or of a function, say of each field.

    Examples
    --------
    >>> from giaann_dask.cluster.cluster_options import ClusterOptions
    >>> field_helps(ClusterOptions)["threads"]
    'Threads of each worker.'
    """
    found: dict[str, list[str]] = {}
    for each in reversed(kind.__mro__ if isinstance(kind, type) else (kind,)):
        names: list[str] = []
        inside = False
        for line in inspect.cleandoc(each.__doc__ or "").splitlines():
            if line.startswith("---"):
                continue
            if line and not line.startswith(" "):
                entry = _ENTRY.fullmatch(line)
                inside = entry is not None or (inside and line not in ("Raises", "Examples", "Returns"))
                names = entry["names"].split(", ") if entry else []
                found.update({name: [] for name in names})
            elif line:
                for name in names:
                    found[name].append(line.strip())
    return {name: re.sub(r"`+([^`]*)`+", r"\1", " ".join(lines)) for name, lines in found.items()}


def defaults_of(kind: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass, or of a function's parameters, that have one."""
    if isinstance(kind, type):
        return {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    parameters = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def metadata_of(kind: Callable[..., Any], name: str) -> Mapping[str, Any]:
    """Return how the option of a field is written where that differs from its name.

    That is its flag as ``"flag"``, and others that are taken for it as ``"flags"``.
    """
    return next((each.metadata for each in fields(kind) if each.name == name), {}) if is_dataclass(kind) else {}


def value_type(kind: Callable[..., Any], name: str) -> Any:
    """Return the type of a field or parameter, without that of a missing value; modules import what it names."""
    owners = kind.__mro__ if isinstance(kind, type) else (inspect.unwrap(kind),)
    owner = next(each for each in owners if name in getattr(each, "__annotations__", {}))
    hint = eval(owner.__annotations__[name], vars(sys.modules[owner.__module__]))
    if get_origin(hint) in (Union, UnionType):
        kinds = [each for each in get_args(hint) if each is not NoneType]
        return kinds[0] if len(kinds) == 1 else hint
    return hint


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
        """Return the parameters; of options of one name the first, those of the command before those of groups."""
        own = {each.name for each in self._declared if isinstance(each, click.Parameter)}
        found: dict[str | None, click.Parameter] = {}
        for each in self._declared:
            for option in each.options() if isinstance(each, OptionGroup) else (each,):
                if option is each or option.name not in own:
                    found.setdefault(option.name, option)
        parameters = [*found.values()]
        if _is_long(parameters):
            show: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            parameters.append(click.Option(["--help-all"], help="Show all options and exit.", **show))
        return parameters

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
        args = self._without_aliases(args)
        try:
            with _naming_options(ctx):
                return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if isinstance(error.param, click.Option) and error.param_hint is None:
                error.param_hint = f"'{_as_given(error.param, ctx)}'"
            raise
        except click.UsageError as error:
            # Click does not say of all where they occurred.
            error.ctx = error.ctx or ctx
            raise

    def _without_aliases(self, args: list[str]) -> list[str]:
        """Return arguments with the names of options in place of their aliases, up to ``--``."""
        known = [each for each in self.params if isinstance(each, click.Option)]
        taken = {flag for each in known for flag in each.opts}
        named = {alias: _flag(each) for each in known if isinstance(each, Option) for alias in each.aliases}
        end = args.index("--") if "--" in args else len(args)
        found = []
        for each in args[:end]:
            flag, equals, value = each.partition("=")
            found.append(f"{named[flag]}{equals}{value}" if flag in named and flag not in taken else each)
        return [*found, *args[end:]]

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
    commands = list(commands_below(context.find_root().command))
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


def commands_below(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from commands_below(each)
