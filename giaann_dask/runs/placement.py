"""Find the region that a source neuron belongs to, and split regions that have grown too large.

A placement is an immutable value, stored with each commit. Columns are assigned to the first regions by a hash or by
a table (see `column_placement`). A region that has grown too large is split at a neuron key, so that a giant column
is split by feature, and one of a single row at a target, so that a giant row is divided among several regions. Its
connections are found in all of them. So are the places of its neuron in the text, which have no targets: they are
divided by their sequences. Its own strength is in the first one, the neuron's own region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import FEATURE_MASK, Integers, pack_neuron, unpack_neuron, unpack_target
from giaann_dask.runs.packing import BlockReader, PackedRun, pack_targets, unpack_rows
from giaann_dask.runs.run import Run, split_rows

if TYPE_CHECKING:
    from giaann_dask.runs.pair_tables import PairTable
    from giaann_dask.runs.target_sets import TargetBlock

UNASSIGNED = -1
# A network starts with at most this many regions, even if more are allowed: each costs tasks and files in every
# round and commit, even if it has few connections.
FIRST_REGIONS = 4
# Targets of a packed run that are read in one go when it is split: they fit a processor's caches.
_SPLIT_TOGETHER = 1 << 16
# Between two columns rather than inside one, where neither part gets less than this share.
_LEAST_SHARE = 0.25

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Bits of a sequence's number that do not say which region has its postings.
GROUP_BITS = 10
SEQUENCE_BITS = 40
"""Lower bits of the neuron of a target that number the sequence of a posting (`giaann_dask.runs.postings`)."""
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class Split(NamedTuple):
    """A region that was split in two.

    Attributes
    ----------
    region : int
        The region that is no more.
    pivot : int
        Neuron keys below it went to the first of the two new regions, those above it to the second.
    target : int
        Of the row of the pivot itself, connections to neuron keys below this one went to the first region, the others
        to the second; 0 where the row went to the second as a whole.
    """

    region: int
    pivot: int
    target: int = 0


class SequencePart(NamedTuple):
    """Sequences of which a region has the postings of a divided row.

    Attributes
    ----------
    bits, value : int
        So many lower bits of the mixed number of a group of sequences have this value.

    Examples
    --------
    >>> found = [SequencePart(1, value).has(np.array([5, 5 << 10, 6 << 10])).tolist() for value in (0, 1)]
    >>> found[0] == [not each for each in found[1]]
    True
    """

    bits: int = 0
    value: int = 0

    def halves(self) -> tuple[SequencePart, SequencePart]:
        """Return both halves."""
        return SequencePart(self.bits + 1, self.value), SequencePart(self.bits + 1, self.value | 1 << self.bits)

    def has(self, sequence: Integers) -> npt.NDArray[np.bool_]:
        """Return which of some sequences it has; those of a group together, so that differences stay small."""
        mixed = ((sequence >> GROUP_BITS).astype(np.uint64) * _MULTIPLIER) >> np.uint64(32)
        found: npt.NDArray[np.bool_] = (mixed & np.uint64((1 << self.bits) - 1)) == self.value
        return found


class Cut(NamedTuple):
    """The end of a region within a row.

    Attributes
    ----------
    region, following : int
        The region, and the one that has the rest of the row.
    pivot, target : int
        Where the second one begins; see `Split`.
    part : SequencePart
        Sequences of which the region has the postings of this row.
    """

    region: int
    following: int
    pivot: int
    target: int
    part: SequencePart


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

    def split(self, region: int, pivot: int, target: int = 0) -> Placement:
        """Return the placement after one more split."""
        return replace(self, splits=(*self.splits, Split(region, pivot, target)))

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
        """Return the own region of each neuron key.

        Parameters
        ----------
        neuron : array_like of int64
            Neuron keys (see `giaann_dask.keys`).

        Returns
        -------
        ndarray of int64
            Live regions. A column is split only where a split's pivot lies within it. Of a divided row, this is the
            first of its regions; `divided` has them all.
        """
        keys = np.asarray(neuron, np.int64)
        regions = self.first_regions_of(unpack_neuron(keys)[0])
        for leaves in _leaves(self.first_regions, self.splits):
            inside = np.flatnonzero(regions == leaves.first)
            begins = leaves.pivot + (leaves.target > 0)
            regions[inside] = leaves.regions[np.searchsorted(begins, keys[inside], side="right")]
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
        return self._regions_between(*pack_neuron(column, [0, FEATURE_MASK]).tolist())

    def divided(self) -> dict[int, tuple[int, ...]]:
        """Return the regions of each divided row, in the order of its targets, by neuron key.

        Examples
        --------
        >>> Placement(4).split(0, 2, 9).divided()
        {2: (4, 5)}
        """
        return {split.pivot: self._regions_between(split.pivot, split.pivot) for split in self.splits if split.target}

    def cuts(self) -> list[Cut]:
        """Return the ends of regions within rows, in the order of these and of their targets."""
        cuts, parts = [], self.sequence_parts()
        for leaves in _leaves(self.first_regions, self.splits):
            for at in np.flatnonzero(leaves.target).tolist():
                region, following = leaves.regions[at : at + 2].tolist()
                pivot = int(leaves.pivot[at])
                cuts.append(Cut(region, following, pivot, int(leaves.target[at]), parts[pivot][region]))
        return cuts

    def sequence_parts(self) -> dict[int, dict[int, SequencePart]]:
        """Return for each divided row, by neuron key, the sequences whose postings each of its regions has.

        Networks of earlier versions have all of them in the first one, and get only new ones elsewhere.

        Examples
        --------
        >>> Placement(1).split(0, 2, 9).sequence_parts()
        {2: {1: SequencePart(bits=1, value=0), 2: SequencePart(bits=1, value=1)}}
        """
        rows: dict[int, dict[int, SequencePart]] = {}
        for number, (region, pivot, target) in enumerate(self.splits):
            low = self.first_regions + 2 * number
            if target:
                rows.setdefault(pivot, {}).setdefault(region, SequencePart())
            for row, parts in rows.items():
                part = parts.pop(region, None)
                if part is None:
                    continue
                if target and row == pivot:
                    parts[low], parts[low + 1] = part.halves()
                else:
                    parts[low + (row >= pivot)] = part
        return rows

    def groups(self) -> list[tuple[int, ...]]:
        """Return the live regions, those together that have a row in common: within a group, all rows are whole.

        Returns
        -------
        list of tuple of int
            Ascending; groups are in the order of their first regions. Without divided rows, each region is one.

        Examples
        --------
        >>> Placement(2).split(0, 2, 9).groups()
        [(1,), (2, 3)]
        """
        group = {region: [region] for region in self.live()}
        for cut in self.cuts():
            joined = group[cut.region] + group[cut.following]
            group |= dict.fromkeys(joined, joined)
        return sorted({tuple(sorted(regions)) for regions in group.values()})

    def groups_of(self, neuron: npt.ArrayLike) -> Integers:
        """Return for each neuron key the first region of the group that has its row; see `groups`."""
        first = np.arange(self.first_regions + 2 * len(self.splits))
        for group in self.groups() if any(split.target for split in self.splits) else ():
            first[list(group)] = group[0]
        return first[self.regions_of(neuron)]

    def _regions_between(self, low: int, high: int) -> tuple[int, ...]:
        """Return the regions of the rows from one neuron key to another of its column, in order."""
        first = int(self.first_regions_of(unpack_neuron(low)[0]))
        for leaves in _leaves(self.first_regions, self.splits):
            if leaves.first == first:
                begin = int(np.searchsorted(leaves.pivot + (leaves.target > 0), low, side="right"))
                end = int(np.searchsorted(leaves.pivot, high, side="right"))
                return tuple(leaves.regions[begin : end + 1].tolist())
        return (first,)


class _Leaves(NamedTuple):
    """A first region that was split.

    Attributes
    ----------
    first : int
        Its number.
    pivot, target : ndarray
        Where regions begin, but for the first one, in ascending order; int64. See `Split`.
    regions : ndarray
        The regions, one more; int64.
    """

    first: int
    pivot: Integers
    target: Integers
    regions: Integers


def _leaves(first_regions: int, splits: Sequence[Split]) -> list[_Leaves]:
    """Return the first regions that were split."""
    # Divisions of splits stay in key order, so each first region is a list divided at pivots.
    begins: dict[int, list[tuple[int, int]]] = {}
    leaves: dict[int, list[int]] = {}
    origin = {region: region for region in range(first_regions)}
    for number, (region, pivot, target) in enumerate(splits):
        first, low = origin[region], first_regions + 2 * number
        parts = leaves.setdefault(first, [first])
        at = parts.index(region)
        parts[at : at + 1] = [low, low + 1]
        begins.setdefault(first, []).insert(at, (pivot, target))
        origin[low] = origin[low + 1] = first
    found = []
    for first, regions in leaves.items():
        pivots, targets = np.array(begins[first], np.int64).T
        found.append(_Leaves(first, pivots, targets, np.array(regions, np.int64)))
    return found


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
        neuron inside it. None for a region of a single neuron; see `choose_target`.

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


def choose_target(targets: Integers) -> int | None:
    """Choose where to divide a row so that both parts have about as many connections.

    Parameters
    ----------
    targets : ndarray
        Neuron keys of the targets of its connections, in any order, repeated ones included; int64.

    Returns
    -------
    int or None
        A target: connections to neurons below it are to go to the first part. None where all lead to one neuron.

    Examples
    --------
    >>> choose_target(np.array([5, 3, 9, 3])), choose_target(np.array([3, 3]))
    (5, None)
    """
    if not len(targets):
        return None
    ordered = np.sort(targets)
    middle = max(len(ordered) // 2, int(np.searchsorted(ordered, ordered[0], side="right")))
    return int(ordered[middle]) if middle < len(ordered) else None


def split_run(run: Run, pivot: int, upper: bool, target: int = 0, part: SequencePart | None = None) -> Run:
    """Return the part of a run below a neuron key, or below a target of its row, or the part from there on; no view.

    Of the row of postings that is divided, the part below has the sequences of `part`.

    Examples
    --------
    >>> run = Run(np.array([3, 5]), np.array([0, 1, 3]), np.array([1, 1, 2]), np.ones(3, np.int32))
    >>> split_run(run, 5, True).target
    array([1, 2])
    """
    goes_on = _goes_on(target, part)
    reached = (lambda row: goes_on(unpack_target(run.target[row])[1])) if target else None
    source, pointer, kept = split_rows(run.source, run.pointer, pivot, upper, reached)
    return Run(source, pointer, run.target[kept], run.strength[kept])


def _goes_on(target: int, part: SequencePart | None) -> Callable[[Integers], npt.NDArray[np.bool_]]:
    """Return a function that says of neurons of targets whether they belong to the upper part of a divided row."""
    if part is None:
        return lambda neuron: np.greater_equal(neuron, target)
    return lambda neuron: ~part.has(neuron & SEQUENCE_MASK)


def split_packed(
    packed: PackedRun, pivot: int, upper: bool, target: int = 0, part: SequencePart | None = None
) -> PackedRun:
    """Return what `split_run` returns, of a packed run, which is read in blocks of rows."""
    reader = BlockReader(packed)
    return pack_targets(_blocks_of_part(reader, pivot, upper, target, part), gaps=reader.gaps)


def _blocks_of_part(
    reader: BlockReader, pivot: int, upper: bool, target: int, part: SequencePart | None
) -> Iterator[TargetBlock]:
    """Yield the rows of a part in blocks, at least one."""
    from giaann_dask.runs.target_sets import block_of_run, row_part

    at, after = np.searchsorted(reader.source, [pivot, pivot + (target > 0)]).tolist()
    for block in reader.blocks(_SPLIT_TOGETHER, at):
        if not upper:
            yield block
    if at < after:
        yield row_part(reader.take(1), _goes_on(target, part), upper)
    if upper:
        yield from reader.blocks(_SPLIT_TOGETHER)
    if at == after and not (len(reader.source) - at if upper else at):
        yield block_of_run(Run.empty())
