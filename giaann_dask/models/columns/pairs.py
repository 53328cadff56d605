"""Write the pairs of a batch as keys, grouped by source neuron and region, on the CPU.

The number of pairs of each source neuron can be computed beforehand, so pairs are written directly into the range of
their source. A key names the target, its branch, the column segment, the class of the source (see `scaling`) and the
distance; a pair that is out of reach of both of its segments is not written (`Specification.column_catch_all`). A token
makes a pair with itself, over distance 0, only with `Specification.self_transitions`.

`giaann_dask.runs.pair_tables` joins and sums such pairs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import compiled
from giaann_dask.models.columns.scaling import class_bits, distance_bits, increment_table
from giaann_dask.runs.pair_tables import Keys, PairRule, PairTable, key_type, narrow_targets
from giaann_dask.runs.run import readable
from giaann_dask.spec import Specification

_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)
_MARKS = nb.types.Array(nb.boolean, 1, "C", readonly=True)


def pair_rule(specification: Specification) -> PairRule:
    """Return the layout of keys and the increments of a specification."""
    distance = distance_bits(specification)
    segment = distance + class_bits(specification)
    # Where the first column segment does not take all pairs, one more number says that there is none.
    columns = specification.column_segments - specification.column_catch_all
    branch = segment + columns.bit_length()
    target = branch + (specification.branches - 1).bit_length()
    features, reach = feature_reach(specification)
    return PairRule(
        *(distance, segment, branch, target, specification.column_segments, features, reach),
        specification.branch_tree,
        increment_table(specification),
    )


class Tokens(NamedTuple):
    """The tokens of a batch (see `giaann_dask.models.columns.connections.SequenceBatch`).

    Attributes
    ----------
    source : ndarray
        Number of each token's neuron as a source, by region first; int64.
    target : ndarray
        Number of each token's neuron as a target, ascending with its key; int64.
    branch, occurrence, remaining : ndarray
        Dendritic branch, column occurrence, and tokens to the end of the sequence; int64.
    token_class : ndarray or None
        Class of each token as a source, int64; None where nothing is scaled.
    train_mask : ndarray or None
        Whether each token counts as a target, bool; None where all do.
    """

    source: Integers
    target: Integers
    branch: Integers
    occurrence: Integers
    remaining: Integers
    token_class: Integers | None = None
    train_mask: npt.NDArray[np.bool_] | None = None


class _Walked(NamedTuple):
    """The tokens of a batch in the order of their sources, with the range of targets of each.

    Attributes
    ----------
    order : ndarray
        Tokens by source, int64.
    occurrence, partners, classes : ndarray
        Of each token its column occurrence, number of tokens it pairs with, and class where it belongs in a key; int64.
    train_mask : ndarray
        Whether each token counts as a target, bool; empty where all do.
    """

    order: Integers
    occurrence: Integers
    partners: Integers
    classes: Integers
    train_mask: npt.NDArray[np.bool_]


def tabulate_pairs(
    tokens: Tokens, neurons: Integers, ordered: tuple[Integers, Integers], specification: Specification
) -> dict[int, PairTable]:
    """Return all ordered pairs of tokens, by region.

    Parameters
    ----------
    tokens : Tokens
        Of whole sequences, one after the other.
    neurons : ndarray of int64
        Neuron key of each target number, ascending.
    ordered : tuple of ndarray of int64
        Neuron key and region of each source number; regions ascend.
    specification : Specification
        Segment layout and increments.

    Returns
    -------
    dict of int to PairTable
        Regions without pairs are absent.
    """
    rule, (keyed, region) = pair_rule(specification), ordered
    keys, begins = _keys_by_source(tokens, rule, (len(keyed), len(neurons)), specification)
    edges = np.flatnonzero(np.concatenate([[True], region[1:] != region[:-1], [True]]))
    tables = {}
    for first, end in pairwise(edges.tolist()):
        low, high = int(begins[first]), int(begins[end])
        if low < high:
            rows = first + np.flatnonzero(begins[first + 1 : end + 1] > begins[first:end])
            pointer = np.append(begins[rows], high) - low
            tables[int(region[first])] = narrow_targets(rule, keyed[rows], pointer, neurons, keys[low:high])
    return tables


def feature_reach(specification: Specification) -> tuple[int, int]:
    """Return the number of segments after the column segments and the largest distance that they take."""
    reach = specification.reach
    return reach, specification.longest_sequence if specification.feature_catch_all else reach


def _keys_by_source(
    tokens: Tokens, rule: PairRule, numbers: tuple[int, int], specification: Specification
) -> tuple[Keys, Integers]:
    """Return the keys of all pairs, source after source, and where each source's keys begin.

    There are so many numbers of sources and of targets.
    """
    sources, neurons = numbers
    order = np.argsort(tokens.source, kind="stable")
    columns, catch_all = specification.column_segments, specification.column_catch_all
    limit = np.array([columns, catch_all, rule.reach], np.int64)
    partners, least = _count_partners(tokens.occurrence, tokens.remaining, limit), specification.least_distance
    train_mask, counted = np.zeros(0, np.bool_), partners + 1 - least
    if tokens.train_mask is not None:
        train_mask = np.ascontiguousarray(tokens.train_mask)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(train_mask)])
        first = np.arange(len(train_mask))
        counted = before[first + 1 + partners] - before[first + least]
    pairs = np.bincount(tokens.source, weights=counted, minlength=sources)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(pairs.astype(np.int64))])
    low = (tokens.target << rule.target_shift) | (tokens.branch << rule.branch_shift)
    keys: Keys = np.empty(int(begins[-1]), key_type(rule, neurons))
    classes = np.zeros(len(order), np.int64) if tokens.token_class is None else tokens.token_class << rule.class_shift
    external = specification.pos_scope == "external"
    shape = np.array([rule.segment_shift, columns, catch_all, external, least], np.int64)
    walked = (order, tokens.occurrence, partners, classes, train_mask)
    _write_keys(_Walked(*map(readable, walked)), low.astype(keys.dtype), shape, keys)
    return keys, begins


_WALKED = nb.types.NamedTuple((_IN, _IN, _IN, _IN, _MARKS), _Walked)


@compiled(nb.int64[::1](_IN, _IN, _IN))
def _count_partners(occurrence: Integers, remaining: Integers, limit: Integers) -> Integers:
    """Return how many tokens after each one any segment takes; they follow it without a gap."""
    columns, catch_all, reach = limit
    partners = np.empty(len(remaining), np.int64)
    # The first token that is too many columns ahead moves on from token to token.
    beyond = 0
    for token in range(len(remaining)):
        last = token + remaining[token]
        if not catch_all:
            beyond = max(beyond, token + 1)
            while beyond < last and occurrence[beyond] - occurrence[token] < columns:
                beyond += 1
            last = min(last, max(beyond, token + 1 + reach))
        partners[token] = last - token - 1
    return partners


@compiled(*(nb.void(_WALKED, kind[::1], _IN, kind[::1]) for kind in (nb.uint32, nb.uint64)))
def _write_keys(walked: _Walked, low: Keys, shape: Integers, keys: Keys) -> None:
    """Write the key of every ordered pair, source after source."""
    order, occurrence, partners, classes, train_mask = walked
    segment_shift, columns, catch_all, external, least = shape
    # Marks the column segment of a pair that is too many columns apart.
    beyond = 0 if catch_all else columns
    filled, chosen = 0, len(train_mask) > 0
    for token in order:
        column = occurrence[token] + columns - 1
        inside = 0 if external else classes[token]
        for distance in range(least, partners[token] + 1):
            partner = token + distance
            if chosen and not train_mask[partner]:
                continue
            segment = column - occurrence[partner]
            segment = beyond if segment < 0 else segment
            scale = inside if occurrence[partner] == occurrence[token] else classes[token]
            keys[filled] = low[partner] | ((segment << segment_shift) | scale | distance)
            filled += 1
