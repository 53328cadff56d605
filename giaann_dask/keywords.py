"""Take fields of options as keyword arguments of functions, and say which parameter an unknown keyword may have meant.

Options are dataclasses that parameters take, and are nested. Values are checked by what takes them.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from inspect import CO_VARKEYWORDS, unwrap
from numbers import Integral, Real
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from giaann_dask.errors import KeywordError, OptionError

T = TypeVar("T", bound=Callable[..., Any])

# Where public names are looked up, as users write them.
_PACKAGE, _ALIAS = __name__.partition(".")[0], "gd"
# Options of a Dask client, which is no dataclass, and what makes one of them.
_CLIENT, _CONNECT, _CLUSTER = "client", "connect", "ClusterOptions"
# Ways to write an option that are shown at most.
_SHOWN = 2
# What values of a parameter may be by its annotation, and how a message says it. Where a flag is expected, text is
# refused: it is true whatever it says.
_SIMPLE: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((Integral,), "a whole number"),
    "float": ((Real,), "a number"),
    "bool": ((Real,), "True or False"),
    "Sequence[int]": ((list, tuple), "a list"),
    **dict.fromkeys(("str | os.PathLike[str]", "str | Path", "NetworkLike"), ((str, os.PathLike), "a path")),
}
_OPTIONAL = " | None"
# Of a value, in a message.
_CHARACTERS = 100
_TEXT = ((str,), "text")
# Values of other classes are not judged here: whether they will do is seen when they are used.
_PLAIN = frozenset((str, bytes, bool, int, float, complex, list, tuple, dict, set))


def names_keywords(target: T) -> T:
    """Let a function, or the constructor and methods of a class, say what an unknown keyword may have meant.

    Of a dataclass only the constructor does. A function that declares ``**keywords`` takes every field of the options
    that its parameters take as a keyword, too, and gets the options with these fields. Signatures stay as they are.

    Raises
    ------
    KeywordError
        When it is called with a keyword that it has not.
    OptionError
        When a keyword and options set a field to two values, or a number, a flag, a path or options are of another
        type.

    Examples
    --------
    >>> from giaann_dask.models.generation_options import SamplingOptions
    >>> @names_keywords
    ... def generate(prompt, *, sampling: SamplingOptions | None = None, **keywords):
    ...     return sampling
    >>> generate("The mill", temperature=1)
    SamplingOptions(temperature=1, seed=None, block_ngrams=4)
    >>> generate("The mill", temperatures=1)
    Traceback (most recent call last):
    giaann_dask.errors.KeywordError: generate has no parameter 'temperatures'; expected temperature=...
    """
    if not isinstance(target, type):
        return _checked(target)  # type: ignore[arg-type, return-value]
    for name, value in list(vars(target).items()):
        public = not name.startswith("_") and not is_dataclass(target)
        if isinstance(value, FunctionType) and (public or name == "__init__"):
            setattr(target, name, _checked(value))
    return target


class _Step(NamedTuple):
    """A parameter, or a field of options, that takes options."""

    name: str
    # As users write it, and its class; `object` where it is a function.
    written: str
    kind: type[Any]


_Way = tuple[_Step, ...]


def _checked(function: FunctionType) -> FunctionType:
    inner: Any = unwrap(function)
    known = frozenset(_parameters(inner))
    takes_fields = bool(inner.__code__.co_flags & CO_VARKEYWORDS)
    positional = inner.__code__.co_varnames[: inner.__code__.co_argcount]

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if not named.keys() <= known:
            if not takes_fields:
                raise _unknown(inner, next(name for name in named if name not in known))
            named = _with_options(inner, named)
        for name, value in (*zip(positional, arguments, strict=False), *named.items()):
            if value is None or type(value) in _PLAIN or is_dataclass(value):
                _require_type(inner, name, value)
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


def _require_type(function: FunctionType, name: str, value: object) -> None:
    """Raise an `OptionError` if a value is of another type than its parameter, as far as annotations say."""
    annotation = str(function.__annotations__.get(name))
    kind = annotation.removesuffix(_OPTIONAL)
    # Functions say themselves what text they take.
    others = _TEXT if kind == "str" and function.__name__ == "__init__" else ((), "")
    types, expected = _SIMPLE.get(kind, others)
    # Without a value of its own, an option has the default of a model.
    if value is None:
        fits = expected != "a path" or annotation.endswith(_OPTIONAL)
    elif types:
        fits = isinstance(value, types)
    else:
        # Classes of this package, such as options.
        public = vars(sys.modules[_PACKAGE]).get("_MODULES", ())
        named = kind[:1].isupper() and kind in public
        fits = not named or kind in (each.__name__ for each in type(value).__mro__)
        expected = f"{_ALIAS}.{kind}(...)"
    if not fits:
        shown = repr(value)[:_CHARACTERS]
        raise OptionError(f"{name} is {shown}", expected, f"set {name} to such a value", (name,))


def _parameters(function: FunctionType) -> tuple[str, ...]:
    """Return the names of the parameters that can be given as keywords, without that of the object."""
    code = function.__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in names if name != "self")


def _unknown(function: FunctionType, name: str) -> KeywordError:
    own = _parameters(function)
    takes_fields = bool(function.__code__.co_flags & CO_VARKEYWORDS)
    ways = {each: [f"{each}=..."] for each in own}
    for field_name, found in option_fields(function).items():
        # What the function takes itself is written without its options.
        flat = field_name in own or (takes_fields and any(way[0].kind is not object for way in found))
        ways[field_name] = [f"{field_name}=..."] if flat else [_written(way, f"{field_name}=...") for way in found]
    near = [name] if name in ways else difflib.get_close_matches(name, ways, 1)
    expected = " or ".join(ways[near[0]][:_SHOWN]) if near else f"one of {', '.join(own)}"
    return KeywordError(f"{_called(function)} has no parameter {name!r}", expected)


def _called(function: FunctionType) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _written(way: _Way, setting: str) -> str:
    """Return how a setting of nested options is written."""
    for step in reversed(way):
        setting = f"{step.name}={_ALIAS}.{step.written}({setting})"
    return setting


def option_fields(function: FunctionType) -> dict[str, list[_Way]]:
    """Return the fields of all options that a function takes, each with the ways to it."""
    found: dict[str, list[_Way]] = {}
    for each in _parameters(function):
        annotation = _CLUSTER if each == _CLIENT else str(function.__annotations__.get(each, ""))
        before = (_Step(_CLIENT, _CONNECT, object),) if each == _CLIENT else ()
        name = "options" if each == _CLIENT else each
        for field_name, way in _ways(name, annotation, function.__globals__):
            found.setdefault(field_name, []).append(before + way)
    return found


def _ways(parameter: str, annotation: str, names: Mapping[str, Any]) -> Iterator[tuple[str, _Way]]:
    """Yield the fields of the options that a parameter takes, and the steps to each."""
    public = sys.modules[_PACKAGE]
    for word in re.findall(r"\w+", annotation):
        kind = names.get(word) or (getattr(public, word) if word in dir(public) else None)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            continue
        for name, option in _public_kinds(word, kind):
            step = _Step(parameter, name, option)
            for each in fields(option):
                if each.init:
                    yield each.name, (step,)
                    for inner, way in _ways(each.name, str(each.type), vars(sys.modules[option.__module__])):
                        yield inner, (step, *way)


def _public_kinds(name: str, kind: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Yield options by name as users write them: those of a parameter, or where these are a base class, those of it."""
    public = sys.modules[_PACKAGE]
    if name in dir(public):
        yield name, kind
        return
    # Options that are derived from others are in modules of options: no other module is imported for a keyword.
    for each in (name for name, home in vars(public)["_MODULES"].items() if home.endswith("options")):
        derived = getattr(public, each)
        if isinstance(derived, type) and issubclass(derived, kind):
            yield each, derived


@dataclass
class _Chosen:
    """Fields of options that a call names, with those of options within them."""

    way: _Way
    values: dict[str, Any] = field(default_factory=dict)
    within: dict[str, _Chosen] = field(default_factory=dict)

    @property
    def kind(self) -> Any:
        return self.way[-1].kind

    def add(self, way: _Way, name: str, value: Any) -> None:
        """Set a field of options, to which a way leads from these."""
        if not way:
            self.values[name] = value
            return
        inner = self.within.setdefault(way[0].name, _Chosen((*self.way, way[0])))
        if issubclass(way[0].kind, inner.kind):
            inner.way = (*self.way, way[0])
        elif not issubclass(inner.kind, way[0].kind):
            raise OptionError(f"{name} with {', '.join(inner.values)}", "fields of one class", f"leave {name} out")
        inner.add(way[1:], name, value)

    def options(self, given: Any) -> Any:
        """Return the options that were given, or new ones, with the fields."""
        values = dict(self.values)
        for name, inner in self.within.items():
            values[name] = inner.options(values.get(name, getattr(given, name, None)))
        if given is None:
            return self.kind(**values)
        if not issubclass(self.kind, type(given)) and not isinstance(given, self.kind):
            raise OptionError(f"{self.way[-1].name} is {given!r}", f"{_ALIAS}.{self.way[-1].written}", "give these")
        held = {each.name: getattr(given, each.name) for each in fields(given) if each.init}
        defaults = {each.name: _default(each) for each in fields(given)}
        for name in self.values.keys() & held.keys():
            if held[name] not in (values[name], defaults[name]):
                step = self.way[-1]._replace(written=type(given).__name__)
                other = _written((*self.way[:-1], step), f"{name}={held[name]!r}")
                raise OptionError(f"both {name}={values[name]!r} and {other}", "one of them", "leave one out")
        return replace(given, **values) if isinstance(given, self.kind) else self.kind(**held | values)


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def arguments_of(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call with fields of options, checked and as these options, without the call.

    Parameters
    ----------
    function : callable
        One that takes fields of its options as keywords.
    named : mapping of str to Any
        The keywords.

    Raises
    ------
    KeywordError, OptionError
        As the call would.
    """
    return _with_options(unwrap(function), named)


def _with_options(function: FunctionType, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call, with the fields of options that it names in these options."""
    own, known = _parameters(function), option_fields(function)
    named = _without_aliases(named, known)
    found, chosen = {name: named[name] for name in named if name in own}, _Chosen(())
    for name in [each for each in named if each not in own]:
        ways = [way for way in known.get(name, ()) if way[0].kind is not object]
        if not ways:
            raise _unknown(function, name)
        chosen.add(_common(ways), name, named[name])
    for name, options in chosen.within.items():
        if found.get(name) is None:
            # What the function takes itself, such as a profile, belongs into new options.
            direct = [each.name for each in fields(options.kind) if found.get(each.name) is not None]
            options.values |= {each: found.pop(each) for each in direct}
        found[name] = options.options(found.get(name))
    return found


def _without_aliases(named: Mapping[str, Any], known: Mapping[str, list[_Way]]) -> dict[str, Any]:
    """Return keywords with the names of fields in place of other names, which metadata of fields has as ``"alias"``."""
    found: dict[str, Any] = {}
    for given, value in named.items():
        name = given if given in known else next((each for each in known if _alias(each, known[each]) == given), given)
        if name in found or (name != given and name in named):
            raise OptionError(f"{name} and {given}, which are one option", "one of them", "leave one out", (given,))
        found[name] = value
    return found


def _alias(name: str, ways: Sequence[_Way]) -> object:
    return next((each.metadata.get("alias") for each in fields(ways[0][-1].kind) if each.name == name), None)


def _common(ways: Sequence[_Way]) -> _Way:
    """Return the one way to a field that classes inherit from one class."""
    kinds = [way[-1].kind for way in ways]
    base = next(each for each in kinds[0].__mro__ if all(issubclass(kind, each) for kind in kinds))
    return (*ways[0][:-1], ways[0][-1]._replace(kind=base))
