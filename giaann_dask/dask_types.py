"""Register sizes and tokens of this package's values with Dask.

`dask.sizeof`, on which placement, spilling and memory limits rely, and `dask.base.normalize_token`, from which
deterministic keys are made, are registered for frozen dataclasses of arrays. Serialisation needs no registration:
arrays and their read-only flags travel in buffers of their own by pickle protocol 5.

Importing this module does not import Dask; registering does, and nothing else of this package.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Hashable
from typing import Any, TypeVar

import numpy as np

Class = TypeVar("Class", bound=type)

_ARRAY_BYTES = sys.getsizeof(np.zeros(0))
# Types of values without others inside.
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})

# Classes whose fields are measured and hashed one by one.
_classes: list[type] = []
_registered = False


def register() -> None:
    """Register all classes given to `register_arrays`, now and later, with Dask.

    May be called any number of times; only the first has an effect. Every process that holds or
    measures our values has to call it, which importing the modules with tasks does.
    """
    global _registered
    if _registered:
        return
    _registered = True
    for cls in _classes:
        _register_class(cls)


def register_arrays(cls: Class) -> Class:
    """Register a frozen dataclass for sizes and tokens field by field; use it as a decorator.

    Parameters
    ----------
    cls : type
        A frozen dataclass whose fields are arrays, strings, bytes, numbers, or tuples, lists and
        dicts (by string keys) of such; with or without slots. It has to be at the top of its module.

    Returns
    -------
    type
        The same class.

    Raises
    ------
    TypeError
        If the class is no frozen dataclass: a value that changes must not have a token.
    """
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise TypeError(f"{cls.__name__} is not a frozen dataclass")
    if cls not in _classes:
        _classes.append(cls)
        if _registered:
            _register_class(cls)
    return cls


def read_only(value: Any) -> Any:
    """Return a value whose arrays cannot be written to, over the same memory, as code of others gets them.

    Parameters
    ----------
    value : object
        An array, or a value of a registered class, a named tuple, tuple, list or dictionary of such; others, and what
        has no array that can be written to, are returned as they are.

    Examples
    --------
    >>> given = np.zeros(2)
    >>> read_only((given, 1))[0].flags.writeable, given.flags.writeable
    (False, True)
    """
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            return value
        found = value.view()
        found.flags.writeable = False
        return found
    if isinstance(value, dict):
        return {key: read_only(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [read_only(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) not in _classes:
        return value
    changed = {
        field.name: new
        for field in dataclasses.fields(value)
        if (new := read_only(old := getattr(value, field.name))) is not old
    }
    if not changed:
        return value
    made = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(made, name, new)
    return made


def measure(value: Any) -> int:
    """Return the bytes that a value of registered classes and builtins keeps in memory.

    Unlike `sys.getsizeof` this counts the buffers of arrays, views included, and the elements of
    containers; unlike `dask.sizeof` it looks at all of them instead of a sample.

    Examples
    --------
    >>> measure((np.zeros(1000), np.zeros(500))) // 1000
    12
    """
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + _ARRAY_BYTES
    own = sys.getsizeof(value)
    if isinstance(value, (tuple, list)):
        # Dictionaries of a block are tens of thousands of strings.
        plain = _PLAIN.issuperset(map(type, value))
        return own + sum(map(sys.getsizeof if plain else measure, value))
    if isinstance(value, dict):
        return own + sum(measure(key) + measure(item) for key, item in value.items())
    if dataclasses.is_dataclass(value):
        inside = sys.getsizeof(value.__dict__) if hasattr(value, "__dict__") else 0
        return own + inside + sum(map(measure, _values(value)))
    return own


def _register_class(cls: type) -> None:
    from dask.base import normalize_token
    from dask.sizeof import sizeof

    sizeof.register(cls, measure)
    normalize_token.register(cls, _normalize)


def _normalize(value: Any) -> tuple[Hashable, ...]:
    """Return the values that a token is computed from: the class and the content of all fields, in order."""
    cls = type(value)
    return (cls.__module__, cls.__qualname__, *map(_content, _values(value)))


def _content(value: Any) -> Any:
    """Normalise as Dask does, except that bytes are hashed instead of written out."""
    from dask.base import normalize_token
    from dask.hashing import hash_buffer_hex

    if isinstance(value, bytes):
        return ("bytes", len(value), hash_buffer_hex(value))
    if isinstance(value, dict):
        return ("dict", *sorted((str(key), _content(item)) for key, item in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *map(_content, value))
    return normalize_token(value)


def _values(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]
