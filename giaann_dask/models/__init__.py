"""Models: rules that count text and predict from the counts, one folder for each.

`giaann_dask.models.base` has the protocols; everything outside this folder uses models through `model_of`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from giaann_dask.errors import SpecificationError
from giaann_dask.registry import find_model

if TYPE_CHECKING:
    from giaann_dask.models.base import Model
    from giaann_dask.models.totals import Totals
    from giaann_dask.spec import Specification


def model_of(specification: Specification) -> Model:
    """Return the model of a specification's profile.

    Raises
    ------
    MissingDependencyError
        If its package is not installed.
    """
    return find_model(specification.profile, specification.package)


def same_counts(one: Specification, other: Specification) -> Specification:
    """Return a specification with the model's options of another one, where text is counted alike with both.

    Networks of both can be added then, and trained further: their options differ in what only predictions read, or one
    was trained when the model had fewer of them.
    """
    if one.model_options == other.model_options or (one.profile, one.base) != (other.profile, other.base):
        return one
    alike = model_of(one).counts_alike(one, other)
    return replace(one, model_options=other.model_options) if alike else one


def totals_of(specification: Specification) -> Totals:
    """Return what the counts of a group of text imply for the totals of a network.

    Raises
    ------
    SpecificationError
        If the model has no such rules.
    """
    found = model_of(specification).totals(specification)
    if found is None:
        raise SpecificationError(
            f"an island of the model {specification.profile}, which has no rules for totals of counts",
            "a model that has",
            "implement Model.totals, or add networks instead of bundles",
        )
    return found
