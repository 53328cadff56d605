"""Models: rules that count text and predict from the counts, one folder for each.

`giaann_dask.models.base` has the protocols; everything outside this folder uses models through `model_of`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from giaann_dask.models.base import Model
    from giaann_dask.spec import Specification

# Modules whose ``MODEL`` is that of a profile; imported when a network of it is.
_MODULES = {"v1": "columns", "v2": "columns", "best": "contexts"}


def model_of(specification: Specification) -> Model:
    """Return the model of a specification's profile."""
    found: Model = import_module(f"{__name__}.{_MODULES[specification.profile]}.model").MODEL
    return found
