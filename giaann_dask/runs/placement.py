"""Find the region that a source neuron belongs to, and split regions that have grown too large.

A placement is an immutable value, stored with each commit. Columns are assigned to the first regions by a hash or by
a table (see `column_placement`); a region that has grown too large is split at a neuron key, so that a giant column
is split by feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import FEATURE_MASK, Integers, pack_neuron, unpack_neuron
from giaann_dask.runs.packing import PackedRun, unpack_rows
from giaann_dask.runs.run import Run

if TYPE_CHECKING:
    from giaann_dask.runs.pair_tables import PairTable

UNASSIGNED = -1
# A network starts with at most this many regions, even if more are allowed: each costs tasks and files in every
# round and commit, even if it has few connections.
FIRST_REGIONS = 4

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Split(NamedTuple):
    """A region that was split in two.

    Attributes
    ----------
    region : int
        The region that is no more.
    pivot : int
        Neuron keys below it went to the first of the two new regions, the others to the second.
    """

    region: int
    pivot: int


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Assignment of source neurons to regions.

    Attributes
    ----------
    first_regions : int
        Number of regions before any split; at least 1.
    assigned : ndarray
        First region of each column, or -1 where the hash decides, as it does for columns beyond the
        array; int32, shape ``(columns,)``.
    load : ndarray
        Pairs of tokens that the columns of each first region have been the source of, as far as
        they were counted to choose `assigned`; int64, shape ``(first_regions,)`` or empty.
    splits : tuple of Split
        In the order in which they happened. The k-th of them made the regions
        ``first_regions + 2 * k`` and ``first_regions + 2 * k + 1``.

    Examples
    --------
    >>> Placement(4).regions_of(np.array([0, 1, 2])).tolist()
    [0, 0, 0]
    >>> Placement(4).split(0, 2).regions_of(np.array([0, 1, 2])).tolist()
    [4, 4, 5]
    """

    first_regions: int
    assigned: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    load: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    splits: tuple[Split, ...] = ()

    def live(self) -> tuple[int, ...]:
        """Return the regions that neurons belong to, ascending."""
        gone = {split.region for split in self.splits}
        return tuple(r for r in range(self.first_regions + 2 * len(self.splits)) if r not in gone)

    def split(self, region: int, pivot: int) -> Placement:
        """Return the placement after one more split."""
        return replace(self, splits=(*self.splits, Split(region, pivot)))

    def assigning(self, columns: int) -> Placement:
        """Return the placement with a fixed region for every column up to a number, for columns that are added.

        Without it, a table that chooses regions by use would choose others for columns that have connections already.
        """
        assigned = self.first_regions_of(np.arange(columns)).astype(np.int32)
        return replace(self, assigned=np.concatenate([assigned, self.assigned[columns:]]))

    def first_regions_of(self, column: npt.ArrayLike) -> Integers:
        """Return the region of each column before any split, int64.

        Where no table decides: the high bits of a multiplicative hash, which spread consecutive
        columns evenly.
        """
        columns = np.asarray(column, np.int64)
        mixed = (columns.astype(np.uint64) * _MULTIPLIER) >> np.uint64(32)
        regions = ((mixed * np.uint64(self.first_regions)) >> np.uint64(32)).astype(np.int64)
        if len(self.assigned):
            known = columns < len(self.assigned)
            chosen = self.assigned[np.where(known, columns, 0)]
            regions = np.where(known & (chosen != UNASSIGNED), chosen, regions)
        return regions

    def regions_of(self, neuron: npt.ArrayLike) -> Integers:
        """Return the region of each neuron key.

        Parameters
        ----------
        neuron : array_like of int64
            Neuron keys (see `giaann_dask.keys`).

        Returns
        -------
        ndarray of int64
            Live regions. A column is split only where a split's pivot lies within it.
        """
        keys = np.asarray(neuron, np.int64)
        regions = self.first_regions_of(unpack_neuron(keys)[0])
        for first, pivots, leaves in _leaves(self.first_regions, self.splits):
            inside = np.flatnonzero(regions == first)
            regions[inside] = leaves[np.searchsorted(pivots, keys[inside], side="right")]
        return regions

    def region_of(self, neuron: int) -> int:
        """Return the region of one neuron key."""
        return int(self.regions_of(np.array([neuron]))[0])

    def regions_of_column(self, column: int) -> tuple[int, ...]:
        """Return the live regions that neurons of a column belong to, in the order of their keys.

        Examples
        --------
        >>> Placement(4).split(0, 2 << 25 | 7).regions_of_column(2)
        (4, 5)
        """
        first = int(self.first_regions_of(column))
        for split, pivots, leaves in _leaves(self.first_regions, self.splits):
            if split == first:
                ends = np.searchsorted(pivots, pack_neuron(column, [0, FEATURE_MASK]), side="right")
                return tuple(leaves[ends[0] : ends[1] + 1].tolist())
        return (first,)


def _leaves(first_regions: int, splits: Sequence[Split]) -> list[tuple[int, Integers, Integers]]:
    """Return, for each split first region, its pivots in ascending order and the regions between them."""
    # Divisions of splits stay in key order, so each first region is a list divided at pivots.
    pivots: dict[int, list[int]] = {}
    leaves: dict[int, list[int]] = {}
    origin = {region: region for region in range(first_regions)}
    for number, (region, pivot) in enumerate(splits):
        first, low = origin[region], first_regions + 2 * number
        parts = leaves.setdefault(first, [first])
        at = parts.index(region)
        parts[at : at + 1] = [low, low + 1]
        pivots.setdefault(first, []).insert(at, pivot)
        origin[low] = origin[low + 1] = first
    return [(first, np.array(pivots[first], np.int64), np.array(leaves[first], np.int64)) for first in leaves]


# Between two columns rather than inside one, where neither part gets less than this share.
_LEAST_SHARE = 0.25


def row_weights(run: Run | PackedRun | PairTable) -> tuple[Integers, Integers]:
    """Return the source neurons of a run and the weight of each row.

    Returns
    -------
    source, weight : ndarray of int64
        Neuron keys, ascending; connections of each, or its pairs where these are not summed, or its distinct targets
        where the run is packed, which saves decoding them.
    """
    return unpack_rows(run) if isinstance(run, PackedRun) else (run.source, np.diff(run.pointer))


def choose_pivot(rows: Sequence[tuple[Integers, Integers]]) -> int | None:
    """Choose where to split a region so that both parts weigh about the same.

    Parameters
    ----------
    rows : sequence of (ndarray, ndarray)
        What `row_weights` returned for each run of the region.

    Returns
    -------
    int or None
        A neuron key: the first neuron of a column, or, where one column outweighs all others, a
        neuron inside it. None for a region of a single neuron, which cannot be split.

    Examples
    --------
    >>> columns = np.array([0, 1, 2, 3]) << 25
    >>> choose_pivot([(columns, np.ones(4, np.int64))]) == 2 << 25
    True
    """
    source, row = np.unique(np.concatenate([keys for keys, _ in rows]), return_inverse=True)
    if len(source) < 2:
        return None
    # Every row counts a little, so that rows without weight do not all end up on one side.
    weight = 1 + np.bincount(row, np.concatenate([weights for _, weights in rows])).astype(np.int64)
    below = np.cumsum(weight)[:-1]
    distance = np.abs(2 * below - (below[-1] + weight[-1]))
    column, _ = unpack_neuron(source)
    share = np.minimum(below, below[-1] + weight[-1] - below) / (below[-1] + weight[-1])
    between = (column[1:] != column[:-1]) & (share >= _LEAST_SHARE)
    if between.any():
        distance = np.where(between, distance, np.iinfo(np.int64).max)
    return int(source[int(np.argmin(distance)) + 1])


def split_run(run: Run, pivot: int, upper: bool) -> Run:
    """Return the part of a run below a neuron key, or the part from it on; never a view.

    Examples
    --------
    >>> run = Run(np.array([3, 5]), np.array([0, 1, 3]), np.array([1, 1, 2]), np.ones(3, np.int32))
    >>> split_run(run, 5, True).target
    array([1, 2])
    """
    at = int(np.searchsorted(run.source, pivot))
    begin, end = (at, len(run.source)) if upper else (0, at)
    low, high = int(run.pointer[begin]), int(run.pointer[end])
    return Run(
        run.source[begin:end].copy(),
        run.pointer[begin : end + 1] - low,
        run.target[low:high].copy(),
        run.strength[low:high].copy(),
    )
