"""Make the options of models of other packages from what is stored, and what is stored from them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from giaann_dask.errors import SpecificationError
from giaann_dask.spec import Specification

T = TypeVar("T")
_EXPECTED = "a number, text, True, False, None, or a list, tuple or dictionary of such"


def own_options(specification: Specification, options: type[T]) -> T:
    """Return the options of a model of another package as an object of its class, which checks them.

    Options that are not stored have their defaults, so that a package can gain options.

    Raises
    ------
    SpecificationError
        If there are others, or values out of range.
    """
    given, place = dict(specification.model_options), f"{options.__module__}.{options.__qualname__}"
    if not dataclasses.is_dataclass(options):
        expected = "a dataclass, frozen, with a default for each option"
        raise SpecificationError(
            f"options of {specification.profile} are of the class {place}", expected, "make it one"
        )
    defaults = {each.name: _default_of(each) for each in dataclasses.fields(options)}
    try:
        return options(**{name: _as_default(value, defaults.get(name)) for name, value in given.items()})
    except Exception as error:
        raise SpecificationError(f"model_options {given}: {error}", f"those of {place}", "correct them") from error


def _default_of(option: dataclasses.Field[Any]) -> Any:
    """Return the default of an option, None where it has none."""
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return None if option.default is dataclasses.MISSING else option.default


def _as_default(value: Any, default: Any) -> Any:
    """Return a stored value as what its option has by default: JSON has lists alone."""
    if isinstance(value, (list, tuple)):
        if isinstance(default, np.ndarray):
            return np.asarray(value, default.dtype)
        return type(default)(value) if type(default) in (list, set, frozenset) else tuple(value)
    return type(default)(value) if isinstance(default, np.generic) else value


def stored_options(options: Any, profile: str) -> tuple[tuple[str, Any], ...]:
    """Return the values of options as they are stored, by name.

    Raises
    ------
    SpecificationError
        If a value cannot be stored.
    """
    names = sorted(each.name for each in dataclasses.fields(options) if each.init)
    return tuple((name, _stored(getattr(options, name), name, profile)) for name in names)


def _stored(value: Any, name: str, profile: str) -> Any:
    """Return a value as JSON can have it, with tuples for lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return tuple(_stored(each, name, profile) for each in value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _stored(each, name, profile) for key, each in value.items()}
    finite = not isinstance(value, float) or np.isfinite(value)
    if not (value is None or type(value) in (bool, int, float, str)) or not finite:
        received = f"option {name} of the model {profile} is {value!r}, which cannot be stored"
        raise SpecificationError(received, _EXPECTED, "choose another type for it")
    return value
