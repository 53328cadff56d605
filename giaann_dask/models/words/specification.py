"""Define the rules for the fields of specifications of models of words, also those of other packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from giaann_dask.models.own_options import own_options, stored_options
from giaann_dask.registry import (
    HISTORY,
    PLAIN,
    FieldRules,
    find_model,
    module_of,
    package_of,
    require,
    require_values,
)
from giaann_dask.spec import Specification


class WordFields(FieldRules):
    """Rules of a model of words: the fields of concept columns have one value each, and are not stored."""

    # Counts instead of strengths, on a segment for each kind of context.
    defaults = MappingProxyType({**PLAIN, "branches": 1, "segment_counts": (0, 32)})
    own_fields: tuple[str, ...] = ()

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`."""
        s = specification
        own = ("profile", "seed_tokens", "regions", "trace", "contexts", *OWN)
        plain = {f.name: f.default for f in dataclasses.fields(s) if f.name not in (*own, *PLAIN)}
        require_values(s, {**self.defaults, **plain, "flags": HISTORY}, "leave it out")
        return {}

    def stored(self, specification: Specification) -> dict[str, Any]:
        """Return the fields that mean something in models of words."""
        names = ("profile", "seed_tokens", "regions", *self.own_fields, *(("trace",) if specification.trace else ()))
        return {name: getattr(specification, name) for name in names}


WORDS = WordFields()
# Fields of models of other packages.
OWN = ("package", "model_options", "base", "own_exports")


class OtherFields(FieldRules):
    """Rules of models of other packages, which check options of their own.

    Parameters
    ----------
    base : FieldRules
        Rules of the profile that the model is based on, or of models of words.
    """

    def __init__(self, base: FieldRules) -> None:
        self._base = base
        self.defaults, self.text_fields = base.defaults, base.text_fields

    def defaults_for(self, specification: Specification) -> Mapping[str, Any]:
        """See `FieldRules.defaults_for`."""
        return self._base.defaults_for(specification)

    def canonical_flags(self, specification: Specification) -> bool:
        """See `FieldRules.canonical_flags`."""
        return self._base.canonical_flags(specification)

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`; the options of a stored network are as it was trained."""
        s = specification
        found = self._base.check(s)
        require(not s.contexts, "contexts", s.contexts, "none in this profile", "choose profile contexts")
        if s.package:
            return found
        model = find_model(s.profile)
        options = stored_options(own_options(s, model.options), s.profile)
        model.require_trainable(s)
        package = package_of(s.profile) or module_of(s.profile)
        return {**found, "package": package, "model_options": options, "own_exports": model.own_exports}

    def stored(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.stored`; what a model of words has always alike is left out."""
        own = {name: getattr(specification, name) for name in OWN if getattr(specification, name)}
        return self._base.stored(specification) | own | {"model_options": dict(specification.model_options)}
