"""Sum the pairs of a region on a device, with PyTorch's operations, to tables as narrow as their values.

Pairs are uploaded as they travel, in 4 bytes each, and become the entries of connections there: integers that are
sorted and summed. What comes back has the order of packed connections (`target_sets`). All is integers, so it is what
`pair_tables.sum_pairs` computes in a processor's caches, on any device, tensors of the CPU included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.device import download_arrays, torch, upload_arrays, without_gradients
from giaann_dask.keys import Integers
from giaann_dask.runs.pair_tables import PAIRS, PairRule, PairTable, distinct, edges_of, width
from giaann_dask.runs.run import BLOCK, pointer_of, require_fits
from giaann_dask.runs.target_sets import TargetBlock, TargetSets
from giaann_dask.spec import BRANCH_BITS

# Pairs that are summed in one go, which bounds the memory of the device: about 150 bytes a pair.
_PIECE = 1 << 24
_NARROW = np.iinfo(np.int32).max
# A sum is added up in two halves where it might not fit into 64 bits: the lower ones have so many bits.
_HALF = 31


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class PairSums:
    """Sums of the pairs of a region, by source neuron and target, as they are downloaded.

    Attributes
    ----------
    source : ndarray
        Source neuron keys, strictly ascending, int64, shape ``(rows,)``.
    row_targets : ndarray
        Number of targets of each row, int32, shape ``(rows,)``.
    neurons : ndarray
        Neuron keys of the targets, strictly ascending, int64.
    target : ndarray
        Index of the neuron and, in the lowest `branch_bits`, the branch; int32 or int64, shape ``(targets,)``.
    segments : ndarray
        Bit s is set where there is a connection on segment s; unsigned, shape ``(targets,)``.
    strength, change : ndarray
        As those of `giaann_dask.runs.target_sets.TargetSets`; int32 where all fit, else int64.
    branch_bits : int
        Width of a branch.
    bits : int
        Width of the strengths, 32 or 64.
    """

    source: Integers
    row_targets: npt.NDArray[np.int32]
    neurons: Integers
    target: npt.NDArray[np.signedinteger[Any]]
    segments: npt.NDArray[np.unsignedinteger[Any]]
    strength: npt.NDArray[np.signedinteger[Any]]
    change: npt.NDArray[np.signedinteger[Any]]
    branch_bits: int
    bits: int

    def blocks(self) -> Iterator[TargetBlock]:
        """Yield the sums in blocks of rows, at least one, as `giaann_dask.runs.pair_tables.sum_pairs` does."""
        pointer = pointer_of(self.row_targets)
        edges = edges_of(pointer, BLOCK, len(pointer))
        branch, changed = (1 << self.branch_bits) - 1, 0
        for first, end in pairwise(edges.tolist() if len(edges) > 1 else [0, 0]):
            targets = slice(int(pointer[first]), int(pointer[end]))
            target = self.target[targets].astype(np.int64)
            segments = self.segments[targets].astype(np.uint32)
            last = changed + int(np.bitwise_count(segments).sum()) - len(segments)
            sets = TargetSets(
                np.diff(pointer[first : end + 1]),
                (self.neurons[target >> self.branch_bits] << BRANCH_BITS) | (target & branch),
                segments,
                self.strength[targets].astype(np.int64),
                self.change[changed:last].astype(np.int64).view(np.uint64),
            )
            changed = last
            yield TargetBlock(self.source[first:end], sets, self.bits)


class _KeyBits(NamedTuple):
    """Widths of (row, target, branch, segment, gain) in an entry, lowest last; a gain is the index of an increment."""

    targets: int
    branches: int
    segments: int
    gains: int

    @classmethod
    def of(cls, rule: PairRule, neurons: int) -> _KeyBits:
        """Return the widths for so many targets; what is left of 63 bits is for rows."""
        segments = (rule.columns + rule.features - 1).bit_length()
        return cls(width(neurons), rule.target_shift - rule.branch_shift, segments, len(rule.increments).bit_length())

    @property
    def rows(self) -> int:
        """Largest number of rows."""
        return 1 << (63 - sum(self))


class _Pairs(NamedTuple):
    """Some rows of several tables, as lists of arrays that are uploaded one after the other.

    Attributes
    ----------
    narrow, wide : list of ndarray
        Keys of 32 and of 64 bits.
    lengths, rows, numbers : list of ndarray
        For each row of each table the number of its pairs, its number among all rows, and where the numbers of its
        table's targets begin; int32.
    targets : list of ndarray
        Numbers of the targets of each table among those of all; int32.
    """

    narrow: list[npt.NDArray[Any]]
    wide: list[npt.NDArray[Any]]
    lengths: list[npt.NDArray[Any]]
    rows: list[npt.NDArray[Any]]
    numbers: list[npt.NDArray[Any]]
    targets: list[npt.NDArray[Any]]


@without_gradients
def sum_pairs_on(device: torch.device, tables: Sequence[PairTable]) -> PairSums:
    """Sum the pairs of tables of one region, at least one, on a device.

    Pairs are moved there, and sums back, in one transfer each for every 16 million pairs.

    Parameters
    ----------
    device : torch.device
        Where they are summed.
    tables : sequence of PairTable
        Pairs of one region, at least one.

    Raises
    ------
    StrengthOverflowError
        If a sum does not fit into 64 bits.
    """
    # Tables with narrow keys first, so that the keys of all rows are in the order of the rows.
    tables = sorted(tables, key=lambda table: table.keys.itemsize)
    rule = tables[0].rule
    source = distinct([table.source for table in tables])
    neurons = distinct([table.neurons for table in tables])
    layout = _KeyBits.of(rule, len(neurons))
    rows = [np.searchsorted(source, table.source) for table in tables]
    targets = [np.searchsorted(neurons, table.neurons).astype(np.int32) for table in tables]
    begins = np.zeros(len(source) + 1, np.int64)
    for table, own in zip(tables, rows, strict=True):
        begins[own + 1] += np.diff(table.pointer)
    np.cumsum(begins, out=begins)
    edges = edges_of(begins, _PIECE, layout.rows).tolist()
    pieces = [
        _sum_piece(device, _between(tables, rows, targets, piece), piece[1] - piece[0], layout, rule)
        for piece in (pairwise(edges) if len(edges) > 1 else [(0, 0)])
    ]
    columns = zip(*(arrays for arrays, _ in pieces), strict=True)
    joined = [found[0] if len(found) == 1 else np.concatenate(found) for found in columns]
    row_targets, target, segments, strength, change = joined
    return PairSums(
        *(source, row_targets, neurons, target, segments, strength, change),
        branch_bits=layout.branches,
        bits=32 if max(largest for _, largest in pieces) <= _NARROW else 64,
    )


def _between(
    tables: Sequence[PairTable], rows: Sequence[Integers], targets: list[npt.NDArray[np.int32]], piece: tuple[int, int]
) -> _Pairs:
    """Return the pairs of the rows from one number to another."""
    first, end = piece
    found = _Pairs([], [], [], [], [], targets)
    numbers = 0
    for table, own in zip(tables, rows, strict=True):
        begin, last = np.searchsorted(own, [first, end]).tolist()
        keys = table.keys[int(table.pointer[begin]) : int(table.pointer[last])]
        # Signed, as devices have few operations on unsigned integers.
        narrow = keys.itemsize == 4
        (found.narrow if narrow else found.wide).append(keys.view(np.int32 if narrow else np.int64))
        found.lengths.append(np.diff(table.pointer[begin : last + 1]).astype(np.int32))
        found.rows.append((own[begin:last] - first).astype(np.int32))
        found.numbers.append(np.full(last - begin, numbers, np.int32))
        numbers += len(table.neurons)
    return found


def _sum_piece(
    device: torch.device, pairs: _Pairs, rows: int, layout: _KeyBits, rule: PairRule
) -> tuple[list[npt.NDArray[Any]], int]:
    """Sum the pairs of some rows; return what is downloaded (see `PairSums`), and the largest strength."""
    # The last one is that of entries that add nothing, see `_entries`.
    increments = np.append(rule.increments, 0)
    count = sum(map(len, (*pairs.narrow, *pairs.wide)))
    *there, weights = upload_arrays([*pairs, [increments]], device)
    entries = torch.sort(_entries(there, count, layout, rule)).values
    key, begins = _distinct(entries >> layout.gains)
    gains = weights[entries & ((1 << layout.gains) - 1)]
    strength = _sum_groups(gains, begins)
    if count * int(increments.max()) > np.iinfo(np.int64).max:
        upper = _sum_groups(gains >> _HALF, begins) + (_sum_groups(gains & ((1 << _HALF) - 1), begins) >> _HALF)
        require_fits(int(upper.max()) < 1 << (63 - _HALF), PAIRS)
    target, starts = _distinct(key >> layout.segments)
    segments = _sum_groups(1 << (key & ((1 << layout.segments) - 1)), starts)
    change = strength.diff(prepend=strength[:1])
    change = (change << 1) ^ (change >> 63)
    # Those on the first segment of a target follow no other one.
    change.index_fill_(0, starts, 0)
    largest, largest_change = torch.stack([strength.max(), change.max()]).tolist() if count else (0, 0)
    further = torch.ones(len(key), dtype=torch.bool, device=device).index_fill_(0, starts, False)
    place = layout.targets + layout.branches
    ends = torch.searchsorted(target >> place, torch.arange(rows, device=device), right=True)
    target = target & ((1 << place) - 1)
    found = download_arrays(
        [
            ends.diff(prepend=ends.new_zeros(1)).to(torch.int32),
            target.to(torch.int32) if place < 32 else target,
            segments.to(_signed(1 << layout.segments)),
            _narrow(strength[starts], largest),
            _narrow(change[further], largest_change),
        ]
    )
    found[2] = found[2].view(f"u{found[2].itemsize}")
    return found, int(largest)


def _entries(there: Sequence[torch.Tensor], count: int, layout: _KeyBits, rule: PairRule) -> torch.Tensor:
    """Return two entries for every pair, as int64, unsorted: one of its column segment and one of its feature segment.

    A pair that is out of reach of one of them, never of both, has another entry of the other one that adds nothing.
    """
    narrow, wide, lengths, rows, numbers, targets = there
    key = torch.cat([narrow.to(torch.int64) & 0xFFFFFFFF, wide])
    place = torch.repeat_interleave(lengths, output_size=count)
    number = targets[numbers[place] + (key >> rule.target_shift)].to(torch.int64)
    end = ((rows[place].to(torch.int64) << layout.targets) | number) << layout.branches
    branch = (key >> rule.branch_shift) & ((1 << layout.branches) - 1)
    column = (key >> rule.segment_shift) & ((1 << (rule.branch_shift - rule.segment_shift)) - 1)
    # A token is adjacent to itself.
    distance = (key & ((1 << rule.class_shift) - 1)).clamp(min=1)
    nearness = rule.features - distance.clamp(max=rule.features)
    gain, nothing = key & ((1 << rule.segment_shift) - 1), len(rule.increments)
    found = []
    for segment, halvings in ((column, column), (nearness + rule.columns, nearness)):
        node = branch >> halvings if rule.tree else branch
        found.append((((end | node) << layout.segments) | segment) << layout.gains)
    near, reached = column < rule.columns, distance <= rule.reach
    return torch.cat(
        [
            torch.where(near, found[0] | gain, found[1] | nothing),
            torch.where(reached, found[1] | gain, found[0] | nothing),
        ]
    )


def _distinct(ordered: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct ones of sorted values, and where each begins; the host waits for their number."""
    new = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    begins = new.nonzero().flatten()
    return ordered[begins], begins


def _sum_groups(values: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Return the sums of groups of values, which follow one another; a wrapped total leaves the differences right."""
    before = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return before[torch.cat([begins, begins.new_full((1,), len(values))])].diff()


def _narrow(values: torch.Tensor, largest: int) -> torch.Tensor:
    return values.to(torch.int32) if largest <= _NARROW else values


def _signed(bits: int) -> torch.dtype:
    """Return the signed integers of at least so many bits, whose bytes are those of unsigned ones."""
    return {8: torch.uint8, 16: torch.int16}.get(max(8, 1 << (bits - 1).bit_length()), torch.int32)
