"""Define the rules for the fields of specifications of models of words, also those of other packages."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any, TypeVar

from giaann_dask.errors import SpecificationError
from giaann_dask.registry import (
    HISTORY,
    PLAIN,
    FieldRules,
    find_model,
    module_of,
    name_model,
    package_of,
    require,
    require_values,
)
from giaann_dask.spec import Specification

T = TypeVar("T")


def own_options(specification: Specification, options: type[T]) -> T:
    """Return the options of a model of another package as an object of its class, which checks them.

    Raises
    ------
    SpecificationError
        If there are others, or values out of range.
    """
    given = dict(specification.model_options)
    try:
        return options(**given)
    except Exception as error:
        expected = f"those of {options.__module__}.{options.__qualname__}"
        raise SpecificationError(f"model_options {given}: {error}", expected, "correct them") from error


class WordFields(FieldRules):
    """Rules of a model of words: the fields of concept columns have one value each, and are not stored."""

    # Counts instead of strengths, on a segment for each kind of context.
    defaults = MappingProxyType({**PLAIN, "branches": 1, "segment_counts": (0, 32)})
    own_fields: tuple[str, ...] = ()

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`."""
        s = specification
        own = ("profile", "seed_tokens", "regions", "trace", "contexts", "package", "model_options")
        plain = {f.name: f.default for f in dataclasses.fields(s) if f.name not in (*own, *PLAIN)}
        require_values(s, {**self.defaults, **plain, "flags": HISTORY}, "leave it out")
        return {}

    def stored(self, specification: Specification) -> dict[str, Any]:
        """Return the fields that mean something in models of words."""
        names = ("profile", "seed_tokens", "regions", *self.own_fields, *(("trace",) if specification.trace else ()))
        return {name: getattr(specification, name) for name in names}


class OtherFields(WordFields):
    """Rules of models of other packages, which check options of their own."""

    own_fields = ("package", "model_options")

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`; the options of a stored network are as it was trained."""
        s = specification
        super().check(s)
        require(not s.contexts, "contexts", s.contexts, "none in this profile", "choose profile contexts")
        if s.package:
            return {}
        name_model(s.profile)
        model = find_model(s.profile)
        options: Any = own_options(s, model.options)
        model.check_options(options, s.profile)
        complete = dataclasses.asdict(options)
        package = package_of(s.profile) or module_of(s.profile)
        return {"package": package, "model_options": tuple(sorted(complete.items()))}

    def stored(self, specification: Specification) -> dict[str, Any]:
        """See `WordFields.stored`."""
        return super().stored(specification) | {"model_options": dict(specification.model_options)}


OTHER = OtherFields()
