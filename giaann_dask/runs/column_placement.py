"""Assign new columns to regions while they appear, balanced or by co-occurrence.

Balanced placement assigns the heaviest new columns first, each to the region with the least load (Graham's rule).
Co-occurrence placement is the linear deterministic greedy rule of streaming graph partitioning (Stanton and Kliot,
2012): a new column joins the region that has most of the columns it occurs together with, discounted by how full that
region is. The load of a region is its number of pairs of tokens whose first token lies in it; every connection comes
from such a pair. `placement` finds the region of a neuron afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import COLUMN_MASK, Integers
from giaann_dask.lazy import jit
from giaann_dask.runs.placement import UNASSIGNED, Placement
from giaann_dask.runs.run import pointer_of
from giaann_dask.spec import COLUMN_BITS, PlacementKind
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock

# Columns are assigned to a region until its load exceeds the mean by this factor.
SLACK = 1.1


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class ColumnUsage:
    """Usage of each concept column by the trained sequences of a block.

    Attributes
    ----------
    column : ndarray
        Columns with trained tokens, ascending; int64.
    pairs : ndarray
        Pairs of tokens whose first one is in the column; int64, as long as `column`.
    edge : ndarray
        Pairs of different columns that occur in one sequence, the smaller in the high bits,
        ascending; int64.
    together : ndarray
        Number of sequences with both columns; int64, as long as `edge`.
    """

    column: Integers
    pairs: Integers
    edge: Integers
    together: Integers


def column_usage(block: EncodedBlock) -> ColumnUsage:
    """Count the uses of each concept column by the trained sequences of a block."""
    lengths = np.diff(block.offsets)
    trained = np.repeat(block.status == CANDIDATE, lengths)
    sequence = np.repeat(np.arange(len(lengths)), lengths)[trained]
    remaining = (np.repeat(block.offsets[1:], lengths) - np.arange(int(block.offsets[-1])))[trained]
    column, index = np.unique(block.column[trained].astype(np.int64), return_inverse=True)
    pairs = np.bincount(index, weights=remaining - 1, minlength=len(column)).astype(np.int64)
    touch = np.unique((sequence << COLUMN_BITS) | block.column[trained])
    owner, touched = touch >> COLUMN_BITS, touch & COLUMN_MASK
    edges = [np.zeros(0, np.int64)]
    for distance in range(1, len(touch)):
        same = owner[distance:] == owner[:-distance]
        if not same.any():
            break
        edges.append((touched[:-distance][same] << COLUMN_BITS) | touched[distance:][same])
    edge, together = np.unique(np.concatenate(edges), return_counts=True)
    return ColumnUsage(column, pairs, edge, together.astype(np.int64))


def place_columns(placement: Placement, usages: Sequence[ColumnUsage], kind: PlacementKind) -> Placement:
    """Choose a region for every column that is used for the first time.

    Parameters
    ----------
    placement : Placement
        So far; it is not changed.
    usages : sequence of ColumnUsage
        Of the blocks to be trained next, in the order of the text.
    kind : {"hash", "balanced", "co-occurrence"}
        The rule; with ``hash`` there is nothing to choose.

    Returns
    -------
    Placement
        With the same regions for the columns that had one.
    """
    if kind == "hash":
        return placement
    known, regions = len(placement.assigned), placement.first_regions
    high = max([known, *(int(usage.column[-1]) + 1 for usage in usages if len(usage.column))])
    pairs = np.zeros(high, np.int64)
    used = np.zeros(high, np.bool_)
    for usage in usages:
        pairs[usage.column] += usage.pairs
        used[usage.column] = True
    assigned = np.full(high, UNASSIGNED, np.int32)
    assigned[:known] = placement.assigned
    load = placement.load.copy() if len(placement.load) else np.zeros(regions, np.int64)
    old = assigned != UNASSIGNED
    np.add.at(load, assigned[old], pairs[old])
    new = np.flatnonzero(used & ~old)
    new = new[np.argsort(-pairs[new], kind="stable")]
    if kind == "balanced":
        _balance(new, pairs, assigned, load)
    else:
        offsets, other, weight = _neighbours(usages, high)
        capacity = SLACK * float(load.sum() + pairs[new].sum()) / regions + 1
        _join(new, pairs, assigned, load, offsets, other, weight, capacity)
    return replace(placement, assigned=assigned, load=load)


def _neighbours(usages: Sequence[ColumnUsage], columns: int) -> tuple[Integers, Integers, Integers]:
    """Return the offset of each column's neighbours, the neighbours, and the number of sequences shared with each."""
    edge = np.concatenate([usage.edge for usage in usages] or [np.zeros(0, np.int64)])
    weight = np.concatenate([usage.together for usage in usages] or [np.zeros(0, np.int64)])
    low, high = edge >> COLUMN_BITS, edge & COLUMN_MASK
    column = np.concatenate([low, high])
    order = np.argsort(column, kind="stable")
    offsets = pointer_of(np.bincount(column, minlength=columns))
    return offsets, np.concatenate([high, low])[order], np.concatenate([weight, weight])[order]


@jit
def _balance(new: Integers, pairs: Integers, assigned: npt.NDArray[np.int32], load: Integers) -> None:
    """Assign each column to the region with the least load, the first of several."""
    for column in new:
        region = np.argmin(load)
        assigned[column] = region
        load[region] += pairs[column]


@jit
def _join(
    new: Integers,
    pairs: Integers,
    assigned: npt.NDArray[np.int32],
    load: Integers,
    offsets: Integers,
    other: Integers,
    weight: Integers,
    capacity: float,
) -> None:
    """Assign each column to the region that has most of its neighbours and is not full."""
    shared = np.empty(len(load), np.float64)
    for column in new:
        shared[:] = 0
        for i in range(offsets[column], offsets[column + 1]):
            region = assigned[other[i]]
            if region != UNASSIGNED:
                shared[region] += weight[i]
        best = int(np.argmin(load))
        score = 0.0
        for region in range(len(load)):
            found = shared[region] * (1 - load[region] / capacity)
            if found > score:
                best, score = region, found
        assigned[column] = best
        load[best] += pairs[column]
