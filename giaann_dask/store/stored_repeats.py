"""Store what smoothing of profile ``best`` needs of all counts of a commit, beside its runs.

A group ``repeats`` has a table of each region (`giaann_dask.increments.repeats`), in the form of runs; an attribute of
the root has their name, the sums over all regions, and a checksum over these and the manifest, so that a program that
commits without writing them again cannot leave those of other runs behind. Commits that lack them are read as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import zarr

from giaann_dask.keys import Integers
from giaann_dask.storage import checksum_of_json

GROUP = "repeats"
# The one table of a region.
TABLE = "repeats"
_ATTRIBUTE = "repeats"
# Connections that the network had when its repeats were written, which commits without repeats keep.
_REPEATED = "connections"


class StoredRepeats(NamedTuple):
    """Repeats of a commit.

    Attributes
    ----------
    name : str
        Unique, of its tables.
    small : ndarray
        How many words of all contexts have 1, 2, 3 and 4 continuations, by kind of the chain; int64.
    """

    name: str
    small: Integers

    def path(self, region: int) -> str:
        """Return the path of the group of a region's table."""
        return f"{GROUP}/{self.name}-{region:05d}"

    def seal(self, manifest: int, connections: int) -> dict[str, Any]:
        """Return the attribute of the root, given the checksum of the manifest and its number of connections."""
        values = {"name": self.name, "small": self.small.tolist()}
        return {_ATTRIBUTE: {**values, _REPEATED: connections, "checksum": checksum_of_json([values, manifest])}}


def read_repeats(attributes: Mapping[str, Any], manifest: int) -> StoredRepeats | None:
    """Return what a commit has, or None where there is nothing of this very commit.

    Parameters
    ----------
    attributes : mapping
        Of the root.
    manifest : int
        Checksum of the manifest.
    """
    stored = attributes.get(_ATTRIBUTE)
    if not isinstance(stored, Mapping):
        return None
    values = {name: stored.get(name) for name in ("name", "small")}
    if stored.get("checksum") != checksum_of_json([values, manifest]):
        return None
    return StoredRepeats(str(values["name"]), np.array(values["small"], np.int64))


def repeated_connections(attributes: Mapping[str, Any]) -> int:
    """Return how many connections the network had when repeats were last written, 0 if they never were.

    Parameters
    ----------
    attributes : mapping
        Of the root.
    """
    stored = attributes.get(_ATTRIBUTE)
    found = stored.get(_REPEATED) if isinstance(stored, Mapping) else None
    return found if isinstance(found, int) else 0


def remove_repeats(root: zarr.Group) -> None:
    """Remove the repeats of the commit before."""
    if _ATTRIBUTE in root.attrs:
        root.attrs[_ATTRIBUTE] = {_REPEATED: repeated_connections(root.attrs)}
    if GROUP in root:
        for name in list(zarr.open_group(root.store, path=GROUP, mode="r").group_keys()):
            del root[f"{GROUP}/{name}"]
