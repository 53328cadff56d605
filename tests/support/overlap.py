"""Measure how sequences that train at the same time overlap in columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.training.selection import ColumnTouches


@dataclass(frozen=True)
class BatchOverlap:
    """Measures of the division of a round into batches.

    Attributes
    ----------
    touches : int
        Distinct columns of each batch, summed over the batches.
    distinct : int
        Distinct columns of the round; `touches` cannot be less.
    messages : int
        Pairs of a batch and a region that it touches.
    busiest_region_share : float
        Share of the region with most touches in all touches; 0 for a round without any.
    """

    touches: int
    distinct: int
    messages: int
    busiest_region_share: float

    @property
    def shared_touches(self) -> int:
        """Column touches that overlap with another batch of the round."""
        return self.touches - self.distinct

    @property
    def overlap_share(self) -> float:
        """Share of overlapping touches in all touches, as in `overlap_share`."""
        return self.shared_touches / max(self.touches, 1)


def overlap_share(touches: ColumnTouches, order: npt.ArrayLike, width: int) -> float:
    """Return which share of column touches overlaps with another of its round.

    Parameters
    ----------
    touches : ColumnTouches
        Columns of each sequence.
    order : array_like of int
        A permutation of the sequences; each consecutive `width` of them train at the same time.
    width : int
        Sequences of a round.

    Returns
    -------
    float
        1 - (distinct columns of each round, summed) / (touches): in a round, the first touch of a
        column is free and any other overlaps.

    Examples
    --------
    >>> same = ColumnTouches(np.arange(5), np.array([7, 7, 8, 8], np.int32), np.ones(4, np.int32))
    >>> overlap_share(same, [0, 1, 2, 3], 2), overlap_share(same, [0, 2, 1, 3], 2)
    (0.5, 0.0)
    """
    if not len(touches.column):
        return 0.0
    number = np.empty(len(touches), np.int64)
    number[np.asarray(order, np.int64)] = np.arange(len(touches)) // width
    return 1 - len(_pairs(touches, number)) / len(touches.column)


def unavoidable_share(touches: ColumnTouches, width: int) -> float:
    """Return an overlap that no order can go below: a round has one free touch of each column."""
    rounds = -(-len(touches) // width)
    _, counts = np.unique(touches.column, return_counts=True)
    return float(np.maximum(counts - rounds, 0).sum() / max(len(touches.column), 1))


def measure_overlap(
    touches: ColumnTouches, batch: Integers, regions_of: Callable[[Integers], npt.NDArray[np.int64]]
) -> BatchOverlap:
    """Return how the batches of a round overlap in columns and spread over regions.

    Parameters
    ----------
    touches : ColumnTouches
        Columns of each sequence.
    batch : ndarray of int64
        Batch of each sequence.
    regions_of : callable
        Returns the region of each of an int64 array of columns.
    """
    pairs = _pairs(touches, batch)
    column = pairs & 0xFFFFFFFF
    region = regions_of(column)
    messages = len(np.unique(((pairs >> 32) << 32) | region))
    busiest = int(np.bincount(region, minlength=1).max()) / max(len(pairs), 1)
    return BatchOverlap(len(pairs), len(np.unique(column)), messages, busiest)


def _pairs(touches: ColumnTouches, group: Integers) -> Integers:
    """Return the distinct (group of a sequence, column), packed and ascending."""
    return np.unique((np.repeat(group, np.diff(touches.offsets)) << 32) | touches.column)
