"""Count the strengths of neurons themselves in a batch: how often tokens strengthen segments of their own neuron.

`connections` has the pairs of tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.lazy import compiled
from giaann_dask.runs.run import Run, readable
from giaann_dask.spec import Specification

_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)


class OwnTokens(NamedTuple):
    """The tokens of a batch.

    Attributes
    ----------
    source : ndarray
        Number of each token's neuron, by region first; int64.
    branch, occurrence, position : ndarray
        Dendritic branch, column occurrence, and position of the noun of its column; int64.
    """

    source: Integers
    branch: Integers
    occurrence: Integers
    position: Integers


def count_own(tokens: OwnTokens, ordered: tuple[Integers, Integers], specification: Specification) -> dict[int, Run]:
    """Return the strengths of neurons themselves by region, in whole counts.

    Of the column segments a token strengthens the first as many as its column's occurrence counts, of the feature
    segments the first as many as the position of its column's noun counts, each at least one. Where own strengths
    count tokens, it strengthens the last segment alone.

    Parameters
    ----------
    tokens : OwnTokens
        At least one.
    ordered : tuple of ndarray of int64
        Neuron key and region of each number of a source, all of which some token has; regions ascend.
    specification : Specification
        Segment layout.

    Returns
    -------
    dict of int to Run
        Strengths as the field ``neurons`` of `giaann_dask.runs.run.RegionRun`.
    """
    columns, segments = specification.column_segments, specification.segments
    only = specification.own_strengths == "tokens"
    first = specification.last_segment if only else 0
    end = first + 1 if only else columns + specification.feature_segments
    keyed, region = ordered
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(tokens.source, minlength=len(keyed)))])
    order = np.argsort(tokens.source, kind="stable")
    shape = np.array([columns, segments, first, end, only, specification.branch_tree, specification.branches], np.int64)
    # Of a neuron, as many branches as tokens at most.
    most = int(np.minimum(np.diff(begins), specification.branches).sum()) * segments
    pointer, target, strength = np.zeros(len(keyed) + 1, np.int64), np.empty(most, np.int64), np.empty(most, np.int32)
    parts = readable(tokens.branch), readable(tokens.occurrence), readable(tokens.position)
    _count(order, begins, parts, shape, pointer, target, strength)
    runs = {}
    for begin, after in pairwise(np.flatnonzero(np.diff(region, prepend=-1, append=-1)).tolist()):
        low, high = int(pointer[begin]), int(pointer[after])
        rows = pointer[begin : after + 1] - low
        runs[int(region[begin])] = Run(keyed[begin:after], rows, target[low:high].copy(), strength[low:high].copy())
    return runs


@compiled(nb.void(_IN, _IN, nb.types.UniTuple(_IN, 3), _IN, nb.int64[::1], nb.int64[::1], nb.int32[::1]))
def _count(
    order: Integers,
    begins: Integers,
    tokens: tuple[Integers, Integers, Integers],
    shape: Integers,
    pointer: Integers,
    target: Integers,
    strength: npt.NDArray[np.int32],
) -> None:
    """Count the segments and branches of every neuron."""
    branches, occurrences, positions = tokens
    columns, segments, first, end, only, tree, width = shape
    counts = np.zeros((segments, width), np.int32)
    filled = 0
    for row in range(len(begins) - 1):
        low, high = width, np.int64(-1)
        for at in range(begins[row], begins[row + 1]):
            token = order[at]
            branch = branches[token]
            for segment in range(first, end):
                place = segment if segment < columns else segment - columns
                reached = occurrences[token] if segment < columns else positions[token]
                if only or place <= reached:
                    node = branch >> place if tree else branch
                    counts[segment, node] += 1
                    low, high = min(low, node), max(high, node)
        for segment in range(first, end):
            for node in range(low, high + 1):
                if counts[segment, node]:
                    target[filled] = (segment << SEGMENT_SHIFT) | node
                    strength[filled] = counts[segment, node]
                    counts[segment, node] = 0
                    filled += 1
        pointer[row + 1] = filled
