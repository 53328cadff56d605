"""How a feature neuron and the target end of a connection become one integer each.

Covers: the packing of (column, feature) into a neuron key and of (segment, column, feature,
branch) into a target key, so that sorting integers sorts connections in the order the engine
reads them: a row's last segment is a slice, a candidate is a search.
Does not cover: the tables of such keys (`giaann_dask.runs.run`).

A neuron key has 26 bits of column and 25 bits of feature. A target key has, from the top,
5 bits of segment, the 51 bits of the neuron key and 7 bits of branch: 63 bits, never negative.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, MAXIMUM_FEATURES, NEURON_BITS

SEGMENT_SHIFT = NEURON_BITS + BRANCH_BITS

Integers = npt.NDArray[np.int64]


def pack_neuron(column: npt.ArrayLike, feature: npt.ArrayLike) -> Integers:
    """Pack columns and features into neuron keys.

    Parameters
    ----------
    column, feature : array_like of int
        Identifiers, broadcast against each other.

    Returns
    -------
    ndarray of int64
        ``column << 25 | feature``.

    Examples
    --------
    >>> unpack_neuron(pack_neuron([3], [7]))
    (array([3]), array([7]))
    """
    return (np.asarray(column, dtype=np.int64) << FEATURE_BITS) | np.asarray(feature, dtype=np.int64)


def unpack_neuron(neuron: npt.ArrayLike) -> tuple[Integers, Integers]:
    """Return the columns and the features of neuron keys, int64 each."""
    keys = np.asarray(neuron, dtype=np.int64)
    return keys >> FEATURE_BITS, keys & (MAXIMUM_FEATURES - 1)


def pack_target(segment: npt.ArrayLike, neuron: npt.ArrayLike, branch: npt.ArrayLike) -> Integers:
    """Pack segments, neuron keys and branches into target keys, int64."""
    high = (np.asarray(segment, dtype=np.int64) << NEURON_BITS) | np.asarray(neuron, dtype=np.int64)
    return (high << BRANCH_BITS) | np.asarray(branch, dtype=np.int64)


def unpack_target(target: npt.ArrayLike) -> tuple[Integers, Integers, Integers]:
    """Return the segments, neuron keys and branches of target keys, int64 each."""
    keys = np.asarray(target, dtype=np.int64)
    neuron = (keys >> BRANCH_BITS) & ((1 << NEURON_BITS) - 1)
    return keys >> SEGMENT_SHIFT, neuron, keys & ((1 << BRANCH_BITS) - 1)
