"""Define pair tables: the ordered pairs of tokens of a batch, by source neuron, before they are summed.

A pair adds to two segments of one connection, a column segment and a feature segment, so its key of 4 bytes takes the
place of two connections of 12 bytes each; and few pairs of a batch meet in one connection. So increments travel as
pairs, are joined as pairs, and are summed once: where the runs of several rounds are packed. Then the pairs of some
thousand rows at a time are gathered, sorted and summed in a processor's caches, directly into the packed order of
connections (`target_sets`). Sums are 64-bit integers, so they do not depend on how pairs are divided among tables.

`giaann_dask.models.columns.connections` makes these tables from sequences, and `device_sums` sums them on a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import Integers
from giaann_dask.lazy import compiled
from giaann_dask.lazy import numba_types as nb
from giaann_dask.runs.run import BLOCK, RegionTables, Run, pointer_of, readable, require_fits, split_rows
from giaann_dask.runs.target_sets import TargetBlock, TargetSets, run_of_blocks
from giaann_dask.spec import BRANCH_BITS

Keys: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

# Keys that are sorted in one go, about: NumPy's sort takes least for so few (from 128 to 4,096 were measured).
_PIECE = 1 << 9
PAIRS = "the pairs of a region make"
"""Cause of a sum that does not fit into 64 bits."""
# Sources that a piece has room for, at least, or its keys are wider.
_SOURCES_BITS = 4

_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)
_OUT = nb.types.Array(nb.int64, 1, "C")
_WIDTHS = (nb.uint32, nb.uint64)


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class PairRule:
    """Bit positions of (target, branch, column segment, class, distance) in a pair's key, and what a pair adds.

    Attributes
    ----------
    class_shift, segment_shift, branch_shift, target_shift : int
        Where these begin; the distance is lowest.
    columns, features : int
        Numbers of column and of feature segments.
    reach : int
        Largest distance that feature segments take.
    tree : bool
        Whether branches are halved from segment to segment (`giaann_dask.spec.Specification.branch_tree`).
    increments : ndarray
        Strength units by class and distance, int64.
    """

    class_shift: int
    segment_shift: int
    branch_shift: int
    target_shift: int
    columns: int
    features: int
    reach: int
    tree: bool
    increments: Integers


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class PairTable:
    """Pairs of tokens by source neuron, in any order within a row.

    Attributes
    ----------
    rule : PairRule
        Meaning of the keys; the same for all tables of a network.
    source : ndarray
        Source neuron keys, strictly ascending, int64, shape ``(rows,)``.
    pointer : ndarray
        Row r has the pairs ``pointer[r]:pointer[r + 1]``; int64, shape ``(rows + 1,)``.
    neurons : ndarray
        Neuron keys of the targets, strictly ascending, int64.
    keys : ndarray
        A key for each pair, whose target is an index of `neurons`; uint32 where these suffice, else uint64.
    """

    rule: PairRule
    source: Integers
    pointer: Integers
    neurons: Integers
    keys: Keys

    def __len__(self) -> int:
        """Return the largest number of connections that there may be: two for each pair."""
        return 2 * len(self.keys)

    @property
    def rows(self) -> int:
        """Number of source neurons."""
        return len(self.source)

    @property
    def nbytes(self) -> int:
        """Bytes of the four arrays."""
        return self.source.nbytes + self.pointer.nbytes + self.neurons.nbytes + self.keys.nbytes

    def split(self, pivot: int, upper: bool, target: int = 0) -> PairTable:
        """Return the part of the rows below a neuron key, or the part from it on; never a view.

        With a target, the row of the neuron key itself is divided: pairs whose targets lie below it are in the first
        part, the others in the second.
        """
        reached = (lambda row: self.targets(row) >= target) if target else None
        source, pointer, kept = split_rows(self.source, self.pointer, pivot, upper, reached)
        return narrow_targets(self.rule, source, pointer, self.neurons, self.keys[kept])

    def targets(self, pairs: slice = slice(None)) -> Integers:
        """Return the neuron keys of the targets of some pairs, int64."""
        targets: Integers = self.neurons[self.keys[pairs] >> self.keys.dtype.type(self.rule.target_shift)]
        return targets


class PairRegionRun(RegionTables[PairTable, Run]):
    """Pairs of one region instead of its connections, and its other tables."""

    __slots__ = ()


def key_type(rule: PairRule, neurons: int) -> type[np.unsignedinteger[Any]]:
    """Return the type of keys that name so many targets."""
    return np.uint32 if rule.target_shift + width(neurons) <= 32 else np.uint64


def width(values: int) -> int:
    """Return the bits of numbers of so many values, at least 1."""
    return max(values - 1, 1).bit_length()


def narrow_targets(rule: PairRule, source: Integers, pointer: Integers, neurons: Integers, keys: Keys) -> PairTable:
    """Return the table of some pairs whose keys name targets by an index of more neurons than they need."""
    used = np.zeros(len(neurons), np.bool_)
    _mark(keys, rule.target_shift, used)
    number = (np.cumsum(used) - 1) << rule.target_shift
    kept = neurons[used]
    narrow = np.empty(len(keys), key_type(rule, len(kept)))
    _renumber(keys, rule.target_shift, number, narrow)
    return PairTable(rule, source, pointer, kept, narrow)


def join_pairs(tables: Sequence[PairTable]) -> PairTable:
    """Return one table with the pairs of tables of one region, at least one.

    Examples
    --------
    >>> rule = PairRule(3, 3, 5, 6, 2, 2, 4, False, np.arange(8))
    >>> tables = [PairTable(rule, np.array([5]), np.array([0, 1]), np.array([n]), np.array([1], "u4")) for n in (7, 3)]
    >>> joined = join_pairs(tables)
    >>> joined.source.tolist(), joined.neurons.tolist(), (joined.keys >> rule.target_shift).tolist()
    ([5], [3, 7], [1, 0])
    """
    if len(tables) == 1:
        return tables[0]
    gathered = _JoinedRows(tables)
    keys = np.empty(int(gathered.pointer[-1]), key_type(tables[0].rule, len(gathered.neurons)))
    gathered.gather(0, len(gathered.source), np.zeros(len(gathered.source), np.int64), keys)
    return PairTable(tables[0].rule, gathered.source, gathered.pointer, gathered.neurons, keys)


class _JoinedRows:
    """The rows of several tables side by side, with common numbers of targets.

    Attributes
    ----------
    source, pointer, neurons : ndarray
        As those of the joined table.
    """

    def __init__(self, tables: Sequence[PairTable]) -> None:
        self._tables = tables
        self._shift = tables[0].rule.target_shift
        self.source = distinct([table.source for table in tables])
        self.neurons = distinct([table.neurons for table in tables])
        self._rows = [np.searchsorted(self.source, table.source) for table in tables]
        self._number = [np.searchsorted(self.neurons, table.neurons) << self._shift for table in tables]
        lengths = np.zeros(len(self.source), np.int64)
        for table, rows in zip(tables, self._rows, strict=True):
            lengths[rows] += np.diff(table.pointer)
        self.pointer = pointer_of(lengths)

    def gather(self, first: int, end: int, high: Integers, keys: Keys) -> None:
        """Write the keys of some rows one after another, each with bits of its row above its own."""
        places = self.pointer[first:end] - self.pointer[first]
        for table, rows, number in zip(self._tables, self._rows, self._number, strict=True):
            begin, last = np.searchsorted(rows, [first, end]).tolist()
            if begin < last:
                at = rows[begin:last] - first
                _gather(table.keys, table.pointer[begin : last + 1], at, number, self._shift, high, places, keys)


def distinct(values: Sequence[Integers]) -> Integers:
    """Return the distinct ones of values, ascending; NumPy would hash them, which takes longer."""
    found = np.sort(np.concatenate(values))
    distinct: Integers = found[np.diff(found, prepend=-1) != 0]
    return distinct


def sum_pairs(tables: Sequence[PairTable]) -> Iterator[TargetBlock]:
    """Yield the sums of the pairs of tables of one region, at least one, in blocks of rows.

    Yields
    ------
    TargetBlock
        Of some 64 thousand pairs, or of one row; sources ascend from block to block.

    Raises
    ------
    StrengthOverflowError
        If a sum does not fit into 64 bits.
    """
    rule, gathered = tables[0].rule, _JoinedRows(tables)
    targets = rule.target_shift + width(len(gathered.neurons))
    wide = targets + _SOURCES_BITS > 32
    room = (64 if wide else 32) - targets
    edges = edges_of(gathered.pointer, BLOCK, len(gathered.source))
    for first, end in pairwise(edges.tolist() if len(edges) > 1 else [0, 0]):
        begins = gathered.pointer[first : end + 1] - gathered.pointer[first]
        pieces = edges_of(begins, _PIECE, 1 << room)
        number = np.arange(end - first) - np.repeat(pieces[:-1], np.diff(pieces))
        keys: Keys = np.empty(int(begins[-1]), np.uint64 if wide else np.uint32)
        gathered.gather(first, end, number << targets, keys)
        for low, high in pairwise(begins[pieces].tolist()):
            keys[low:high].sort()
        yield _sum_block(rule, targets, gathered.source[first:end], begins, gathered.neurons, keys)


def pair_run(tables: Sequence[PairTable]) -> Run:
    """Return the run of the pairs of some tables, at least one.

    Raises
    ------
    StrengthOverflowError
        If a sum does not fit into 64 bits.
    """
    return run_of_blocks(list(sum_pairs(tables)))


def _sum_block(
    rule: PairRule, width: int, source: Integers, begins: Integers, neurons: Integers, keys: Keys
) -> TargetBlock:
    """Return the sums of sorted keys of some rows."""
    most = len(keys) * (1 + rule.tree)
    row_targets, key = np.empty(len(source), np.int64), np.empty(most, np.int64)
    segments, strength = np.empty(most, np.uint32), np.empty(most, np.int64)
    # Each pair adds to two segments at most.
    change = np.empty(2 * len(keys), np.int64)
    shifts = (rule.class_shift, rule.segment_shift, rule.branch_shift, rule.target_shift, width)
    shape = np.array([*shifts, rule.columns, rule.features, rule.reach, rule.tree], np.int64)
    outputs = _Sums(row_targets, key, segments, strength, change)
    targets, changed, largest = _collect(keys, begins, neurons, shape, readable(rule.increments), outputs)
    require_fits(largest >= 0, PAIRS)
    sets = TargetSets(
        row_targets, key[:targets], segments[:targets], strength[:targets], change[:changed].view(np.uint64)
    )
    return TargetBlock(source, sets, 32 if largest <= np.iinfo(np.int32).max else 64)


class _Sums(NamedTuple):
    """Arrays of `TargetSets` that are filled in."""

    row_targets: Integers
    key: Integers
    segments: npt.NDArray[np.uint32]
    strength: Integers
    change: Integers


_SUMS = nb.types.NamedTuple((_OUT, _OUT, nb.uint32[::1], _OUT, _OUT), _Sums)


@compiled(*(nb.void(kind[::1], nb.int64, nb.boolean[::1]) for kind in _WIDTHS))
def _mark(keys: Keys, shift: int, used: npt.NDArray[np.bool_]) -> None:
    """Mark the targets of some keys."""
    for key in keys:
        used[np.int64(key) >> shift] = True


@compiled(*(nb.void(kind[::1], nb.int64, _OUT, other[::1]) for kind in _WIDTHS for other in _WIDTHS))
def _renumber(keys: Keys, shift: int, number: Integers, renumbered: Keys) -> None:
    """Copy keys with other numbers of their targets, which are shifted already."""
    below = (np.int64(1) << shift) - 1
    for at in range(len(keys)):
        key = np.int64(keys[at])
        renumbered[at] = number[key >> shift] | (key & below)


@compiled(
    *(
        nb.void(nb.types.Array(kind, 1, "C", readonly=True), _IN, _OUT, _OUT, nb.int64, _OUT, _OUT, other[::1])
        for kind in _WIDTHS
        for other in _WIDTHS
    )
)
def _gather(
    keys: Keys,
    pointer: Integers,
    rows: Integers,
    number: Integers,
    shift: int,
    high: Integers,
    places: Integers,
    gathered: Keys,
) -> None:
    """Append the keys of some rows of a table to those rows, with the common numbers of their targets."""
    below = (np.int64(1) << shift) - 1
    for row in range(len(rows)):
        at, own = places[rows[row]], high[rows[row]]
        for entry in range(pointer[row], pointer[row + 1]):
            key = np.int64(keys[entry])
            gathered[at] = own | number[key >> shift] | (key & below)
            at += 1
        places[rows[row]] = at


@compiled(nb.int64[::1](_IN, nb.int64, nb.int64))
def edges_of(begins: Integers, size: int, most: int) -> Integers:
    """Return the rows at which pieces of about a size begin and end, none with more than so many rows."""
    edges = np.empty(len(begins), np.int64)
    edges[0] = 0
    count = 1
    for row in range(1, len(begins) - 1):
        first = edges[count - 1]
        if row - first == most or begins[row + 1] - begins[first] > size:
            edges[count] = row
            count += 1
    if len(begins) > 1:
        edges[count] = len(begins) - 1
        count += 1
    return edges[:count].copy()


@compiled(*(nb.types.UniTuple(nb.int64, 3)(kind[::1], _IN, _IN, _IN, _IN, _SUMS) for kind in _WIDTHS))
def _collect(
    keys: Keys, begins: Integers, neurons: Integers, shape: Integers, increments: Integers, sums: _Sums
) -> tuple[int, int, int]:
    """Sum sorted keys by target, branch and segment.

    Returns the numbers of targets and of changes, and the largest strength, which is negative on overflow.
    """
    class_shift, segment_shift, branch_shift, target_shift, width, columns, features, reach, tree = shape
    row_targets, found, segments, strength, change = sums
    below, distances = (np.int64(1) << width) - 1, (1 << class_shift) - 1
    places, branches = (1 << (branch_shift - segment_shift)) - 1, 1 << (target_shift - branch_shift)
    gains = (1 << segment_shift) - 1
    totals, masks = np.zeros((branches, columns + features), np.int64), np.zeros(branches, np.int64)
    made = changed = largest = np.int64(0)
    for row in range(len(begins) - 1):
        before, at, end = made, begins[row], begins[row + 1]
        while at < end:
            target = (np.int64(keys[at]) & below) >> target_shift
            low, high = branches, np.int64(-1)
            while at < end:
                key = np.int64(keys[at]) & below
                if key >> target_shift != target:
                    break
                at += 1
                branch = (key >> branch_shift) & (branches - 1)
                # A token is adjacent to itself.
                column, distance = (key >> segment_shift) & places, max(key & distances, np.int64(1))
                feature = columns + features - min(distance, features)
                for segment in (column if column < columns else -1, feature if distance <= reach else -1):
                    if segment < 0:
                        continue
                    node = branch
                    if tree:
                        node >>= segment if segment < columns else segment - columns
                    total = totals[node, segment] + increments[key & gains]
                    totals[node, segment] = total
                    masks[node] |= np.int64(1) << segment
                    # A sum that has wrapped is negative, and so is everything that is larger.
                    largest = largest if 0 <= total <= largest or largest < 0 else total
                    low, high = min(low, node), max(high, node)
            for node in range(low, high + 1):
                mask, last, segment = masks[node], np.int64(-1), 0
                if mask == 0:
                    continue
                found[made], segments[made] = (neurons[target] << BRANCH_BITS) | node, mask
                masks[node] = 0
                while mask:
                    if mask & 1:
                        now = totals[node, segment]
                        totals[node, segment] = 0
                        if last < 0:
                            strength[made] = now
                        else:
                            change[changed] = ((now - last) << 1) ^ ((now - last) >> 63)
                            changed += 1
                        last = now
                    mask >>= 1
                    segment += 1
                made += 1
        row_targets[row] = made - before
    return made, changed, largest  # type: ignore[return-value]
