"""Split a region that has grown too large at a neuron key.

Chooses the key and splits each run; `placement` finds the region of a neuron afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from giaann_dask.keys import Integers, unpack_neuron
from giaann_dask.runs.packing import PackedRun, unpack_rows
from giaann_dask.runs.run import Run

# Between two columns rather than inside one, where neither part gets less than this share.
_LEAST_SHARE = 0.25


def row_weights(run: Run | PackedRun) -> tuple[Integers, Integers]:
    """Return the source neurons of a run and the weight of each row.

    Returns
    -------
    source, weight : ndarray of int64
        Neuron keys, ascending; connections of each, or its distinct targets where the run is packed,
        which saves decoding them.
    """
    return (run.source, np.diff(run.pointer)) if isinstance(run, Run) else unpack_rows(run)


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
