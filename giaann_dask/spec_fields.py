"""Define what the fields of a specification may be, and which rules a model has for them.

A model of this package has its `FieldRules` in its folder below `giaann_dask.models`, found by `giaann_dask.registry`:
defaults, which values go together, and which fields are stored. `giaann_dask.spec` has the specification itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from giaann_dask.errors import SpecificationError

if TYPE_CHECKING:
    from giaann_dask.spec import Specification

TokenKind = Literal["words", "subwords"]
BranchOrder = Literal["occurrence", "random"]
OwnStrengths = Literal["segments", "tokens"]
ColumnNames = Literal["first", "span", "lemma"]
Flags = Literal["canonical", "history"]

TOKENS: tuple[TokenKind, ...] = get_args(TokenKind)
BRANCH_ORDERS: tuple[BranchOrder, ...] = get_args(BranchOrder)
OWN_STRENGTHS: tuple[OwnStrengths, ...] = get_args(OwnStrengths)
COLUMN_NAMES: tuple[ColumnNames, ...] = get_args(ColumnNames)
FLAGS: tuple[Flags, ...] = get_args(Flags)

# The flags of what is stored without any, and of networks that cannot have others.
HISTORY: Flags = "history"
# The value of a field that takes the default of its model; of the type of any field.
MODEL_DEFAULT: Any = None

# Values with which each sentence of words is a sequence, and all segments follow from the seed tokens.
PLAIN: Mapping[str, Any] = MappingProxyType(
    {
        "branches": 2,
        "tokens": "words",
        "lif": False,
        "sentences_per_sequence": 1,
        "crop": False,
        "merge_dashes": False,
        "invented_boundaries": False,
        "segment_counts": None,
        "column_catch_all": True,
        "feature_catch_all": True,
        "proximity_exponent": 1.0,
        "branch_order": "occurrence",
        "branch_tree": False,
        "own_strengths": "segments",
        "maximum_subwords": 160,
        "maximum_bytes": 2560,
        "column_names": "first",
    }
)
# What sequences of tokens and their columns depend on, so that an encoded corpus does.
TEXT_FIELDS = (
    *("profile", "tokens", "sentences_per_sequence", "crop", "merge_dashes", "invented_boundaries"),
    *("branch_order", "maximum_subwords", "maximum_bytes", "column_names"),
)


class FieldRules:
    """Rules of a model for the fields of its specifications.

    Attributes
    ----------
    defaults : mapping of str to Any
        Values of the fields that are `MODEL_DEFAULT` unless they are given.
    text_fields : tuple of str
        Fields that encoded text depends on, besides its limits, branches and flags.
    """

    defaults: Mapping[str, Any] = PLAIN
    text_fields: tuple[str, ...] = TEXT_FIELDS

    def defaults_for(self, specification: Specification) -> Mapping[str, Any]:
        """Return the defaults of a specification, which has the fields that were given."""
        return self.defaults

    def canonical_flags(self, specification: Specification) -> bool:
        """Return whether flags are canonical unless others are asked for."""
        return False

    def check(self, specification: Specification) -> dict[str, Any]:
        """Check a specification with all defaults filled in; return the fields in their one form.

        Raises
        ------
        SpecificationError
            If a field is out of range, means nothing in this model, or contradicts another.
        """
        raise NotImplementedError

    def stored(self, specification: Specification) -> dict[str, Any]:
        """Return the fields of a specification that are stored."""
        raise NotImplementedError


def require(valid: bool, name: str, value: object, expected: str, remedy: str | None = None, *others: str) -> None:
    """Raise a `SpecificationError` that names the field when it is not valid; others are in the text, too."""
    if not valid:
        names = (name, *others) if name.isidentifier() else others
        raise SpecificationError(f"{name} is {value!r}", expected, remedy or f"set {name} to such a value", names)


def require_values(specification: Specification, only: Mapping[str, Any], remedy: str) -> None:
    """Raise a `SpecificationError` unless fields have the only values that a profile has of them."""
    for name, value in only.items():
        found = getattr(specification, name)
        require(found == value, name, found, f"{value!r}, its only value in profile {specification.profile}", remedy)
