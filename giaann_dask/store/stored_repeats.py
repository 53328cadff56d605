"""Store what smoothing of profile ``contexts`` needs of all counts of a commit, beside its runs.

A group ``repeats`` has a table of each region (`giaann_dask.models.contexts.stored_tables`), in the form of runs;
an attribute of the root has their name and the sums over all regions. Commits that lack them are read as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import zarr

from giaann_dask.keys import Integers

GROUP = "repeats"
# The one table of a region.
TABLE = "repeats"
# Connections that the network had when its repeats were written, which commits without repeats keep.
REPEATED = "connections"


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

    def as_dict(self, connections: int) -> dict[str, Any]:
        """Return the attribute of the root, given how many connections the network has."""
        return {"name": self.name, "small": self.small.tolist(), REPEATED: connections}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StoredRepeats | None:
        """Return what a commit has, given the attribute of the root; None for nothing."""
        return cls(stored["name"], np.array(stored["small"], np.int64)) if "name" in stored else None


def remove_repeats(root: zarr.Group) -> None:
    """Remove the repeats of the commit before."""
    if GROUP in root:
        for name in list(zarr.open_group(root.store, path=GROUP, mode="r").group_keys()):
            del root[f"{GROUP}/{name}"]
