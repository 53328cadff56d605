"""Check the names of keyword arguments: an unknown one gets an error that says which parameter was meant.

That is one of a similar name, or a field of the options that a parameter takes, which are nested. Values are checked by
what takes them.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import unwrap
from types import FunctionType
from typing import Any, TypeVar

from giaann_dask.errors import KeywordError

T = TypeVar("T", bound=Callable[..., Any])

# Where public names are looked up, as users write them.
_PACKAGE, _ALIAS = __name__.partition(".")[0], "gd"
# Options of a Dask client, which is no dataclass, and how one is made of them.
_CLIENT, _CLUSTER, _CONNECT = "client", "ClusterOptions", "gd.connect(options={})"
# Ways to write an option that are shown at most.
_SHOWN = 2


def names_keywords(target: T) -> T:
    """Let a function, or the constructor and methods of a class, say what an unknown keyword may have meant.

    Of a dataclass only the constructor does. Signatures stay as they are.

    Raises
    ------
    KeywordError
        When it is called with a keyword that it has not.

    Examples
    --------
    >>> @names_keywords
    ... def generate(prompt, *, temperature=0.0): ...
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


def _checked(function: FunctionType) -> FunctionType:
    inner: Any = unwrap(function)
    known = frozenset(_parameters(inner))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if not named.keys() <= known:
            raise _unknown(inner, next(name for name in named if name not in known))
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


def _parameters(function: FunctionType) -> tuple[str, ...]:
    """Return the names of the parameters that can be given as keywords, without that of the object."""
    code = function.__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in names if name != "self")


def _unknown(function: FunctionType, name: str) -> KeywordError:
    own = _parameters(function)
    ways: dict[str, list[str]] = {each: [f"{each}=..."] for each in own}
    for each in own:
        annotation = str(function.__annotations__.get(each, ""))
        for field, way in _ways(each, annotation, function.__globals__):
            # What the function has itself is written without its options.
            if field not in own:
                ways.setdefault(field, []).append(way)
    near = [name] if name in ways else difflib.get_close_matches(name, ways, 1)
    expected = " or ".join(ways[near[0]][:_SHOWN]) if near else f"one of {', '.join(own)}"
    called = function.__qualname__.removesuffix(".__init__")
    return KeywordError(f"{called} has no parameter {name!r}", expected)


def _ways(parameter: str, annotation: str, names: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of the options that a parameter takes, and how each is written."""
    within = f"{parameter}={{}}"
    if parameter == _CLIENT:
        annotation, within = _CLUSTER, f"{parameter}={_CONNECT}"
    public = sys.modules[_PACKAGE]
    for word in re.findall(r"\w+", annotation):
        kind = names.get(word) or (getattr(public, word) if word in dir(public) else None)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            continue
        for name, option in _public_kinds(word, kind):
            written = within.format(f"{_ALIAS}.{name}({{}})")
            for field in fields(option):
                if field.init:
                    yield field.name, written.format(f"{field.name}=...")
                    for inner, way in _ways(field.name, str(field.type), vars(sys.modules[option.__module__])):
                        yield inner, written.format(way)


def _public_kinds(name: str, kind: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Yield options by name as users write them: those of a parameter, or where these are a base class, those of it."""
    public = sys.modules[_PACKAGE]
    if name in dir(public):
        yield name, kind
        return
    for each in dir(public):
        derived = getattr(public, each)
        if isinstance(derived, type) and issubclass(derived, kind):
            yield each, derived
