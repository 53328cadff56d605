"""Estimate by MinHash which features connect to similar sets of neurons.

A signature has the least hash of a feature's neighbours in each of 64 parts of the hashes (one-permutation
min-hashing, Li, Owen and Zhang 2012). The minimum over all regions is that of the network, so regions can be read in
any order and any number of times. The share of neighbours that two features have in common, of all that they have, is
estimated by the share of equal parts. Only features that agree in three consecutive parts are compared (banding), so
that of those which share half of their neighbours about nine in ten are found. `giaann_dask.text.attachments` uses
similar features in inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import NEURON_MASK, Integers, unpack_neuron
from giaann_dask.lazy import jit
from giaann_dask.runs.run import Run, readable
from giaann_dask.spec import BRANCH_BITS

Hashes = npt.NDArray[np.uint64]

PARTS = 64
LEAST_SHARE = 0.5
# Features with fewer filled parts have too few neighbours for an estimate.
LEAST_FILLED = 8
_BAND = 3
# What more features than these have in common says little; those that are alike agree elsewhere, too.
_MOST_TOGETHER = 256
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class MinHashes:
    """MinHashes of the neighbours of features.

    Attributes
    ----------
    feature : ndarray
        Features that have connections, ascending, without 0, the prime concept neuron; int64.
    least : ndarray
        Least hash in every part, the largest number where there is none; uint64, shape ``(features, PARTS)``.
    """

    feature: Integers
    least: Hashes


def minhash_neighbours(run: Run) -> MinHashes:
    """Return the signatures of the features that are sources in a region.

    Parameters
    ----------
    run : Run
        Connections of the region.
    """
    feature = unpack_neuron(run.source)[1]
    known = np.unique(feature[feature > 0])
    least = np.full((len(known), PARTS), _EMPTY, np.uint64)
    row = np.where(feature > 0, np.searchsorted(known, feature), -1)
    _sign(row, readable(run.pointer, np.int64), readable(run.target, np.int64), least)
    return MinHashes(known, least)


def merge_minhashes(parts: Sequence[MinHashes]) -> MinHashes:
    """Return the signatures of several regions together, whatever their order."""
    known = np.unique(np.concatenate([np.zeros(0, np.int64), *(part.feature for part in parts)]))
    least = np.full((len(known), PARTS), _EMPTY, np.uint64)
    for part in parts:
        at = np.searchsorted(known, part.feature)
        least[at] = np.minimum(least[at], part.least)
    return MinHashes(known, least)


def similar_by_neighbours(signatures: MinHashes) -> dict[int, list[int]]:
    """Return for each feature the other features that share at least half of their neighbours with it.

    Parameters
    ----------
    signatures : MinHashes
        Of the whole network.

    Returns
    -------
    dict of int to list of int
        By feature; features without any are left out.
    """
    filled = signatures.least != _EMPTY
    enough = filled.sum(axis=1) >= LEAST_FILLED
    feature, least, filled = signatures.feature[enough], signatures.least[enough], filled[enough]
    found: dict[int, list[int]] = {}
    for one, other in sorted(set(_candidates(least))):
        either = filled[one] | filled[other]
        shared = filled[one] & (least[one] == least[other])
        if shared.sum() >= LEAST_SHARE * either.sum():
            for this, that in ((one, other), (other, one)):
                found.setdefault(int(feature[this]), []).append(int(feature[that]))
    return {each: sorted(found[each]) for each in sorted(found)}


def _candidates(least: Hashes) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows that agree in some band; rows ascend within a pair."""
    for begin in range(0, PARTS - _BAND + 1, _BAND):
        band = least[:, begin : begin + _BAND]
        rows = np.flatnonzero((band != _EMPTY).any(axis=1))
        _, group = np.unique(band[rows], axis=0, return_inverse=True)
        order = np.argsort(group, kind="stable")
        edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if 1 < end - first <= _MOST_TOGETHER:
                yield from combinations(rows[order[first:end]].tolist(), 2)


@jit
def _sign(row: Integers, pointer: Integers, target: Integers, least: Any) -> None:
    """Lower the signature of every row's feature to the hashes of its targets' neurons; rows of -1 have none."""
    for source in range(len(row)):
        if row[source] < 0:
            continue
        for entry in range(pointer[source], pointer[source + 1]):
            key = np.uint64((target[entry] >> BRANCH_BITS) & NEURON_MASK)
            # The finaliser of SplitMix64.
            key *= np.uint64(0x9E3779B97F4A7C15)
            key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            key ^= key >> np.uint64(31)
            part = np.int64(key >> np.uint64(58))
            least[row[source], part] = min(least[row[source], part], key & np.uint64(0x03FFFFFFFFFFFFFF))
