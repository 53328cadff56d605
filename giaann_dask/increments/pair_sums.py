"""Sum the connections of a batch on the CPU: pairs sorted source by source, in pieces that fit the caches.

The sums are those that `connections` computes on a device. The number of pairs of each source neuron can be computed
beforehand, so pairs are written directly into the range of their source, and only small pieces are left to sort: the
pairs of a few sources at a time, as narrow integers of target, column segment, class of the source (see `scaling`)
and distance. One pair adds to two segments, a column segment and a feature segment, which are separated afterwards, as
are the rows by region; or to one of them where it lies out of reach of the other (see
`Specification.column_catch_all`). A pair that is out of reach of both is not written.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.increments.scaling import class_bits, distance_bits, increment_table
from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.lazy import compiled
from giaann_dask.runs.run import Run, readable
from giaann_dask.spec import BRANCH_BITS, Specification

Keys: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

# Keys that are sorted in one go, about: they fit into a processor's nearest cache.
PIECE = 1 << 12

_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)
_OUT = nb.types.Array(nb.int64, 1, "C")
_MARKS = nb.types.Array(nb.boolean, 1, "C", readonly=True)
_COUNTS = nb.types.Array(nb.int64, 2, "C")


class PairLayout(NamedTuple):
    """Bit positions of (source in its piece, target, branch, column segment, class, distance) in a key.

    Attributes
    ----------
    class_shift, segment_shift, branch_shift, target_shift, source_shift : int
        Where these begin; the distance is lowest.
    bits : int
        Width of a key, 32 or 64.
    """

    class_shift: int
    segment_shift: int
    branch_shift: int
    target_shift: int
    source_shift: int
    bits: int

    @classmethod
    def of(cls, neurons: int, specification: Specification) -> PairLayout:
        """Return the layout for a number of distinct neurons."""
        distance = distance_bits(specification)
        segment = distance + class_bits(specification)
        # Where the first column segment does not take all pairs, one more number says that there is none.
        columns = specification.column_segments - specification.column_catch_all
        branch = segment + columns.bit_length()
        target = branch + (specification.branches - 1).bit_length()
        source = target + max(neurons - 1, 1).bit_length()
        return cls(distance, segment, branch, target, source, 32 if source <= 32 else 64)


class Tokens(NamedTuple):
    """The tokens of a batch (see `giaann_dask.increments.connections.SequenceBatch`).

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
    taught : ndarray or None
        Whether each token counts as a target, bool; None where all do.
    """

    source: Integers
    target: Integers
    branch: Integers
    occurrence: Integers
    remaining: Integers
    token_class: Integers | None = None
    taught: npt.NDArray[np.bool_] | None = None


class _Walked(NamedTuple):
    """The tokens of a batch in the order of their sources, with the range of targets of each.

    Attributes
    ----------
    order : ndarray
        Tokens by source, int64.
    source, occurrence, partners, classes : ndarray
        Of each token its source number, column occurrence, number of tokens it pairs with, and class where it belongs
        in a key; int64.
    taught : ndarray
        Whether each token counts as a target, bool; empty where all do.
    """

    order: Integers
    source: Integers
    occurrence: Integers
    partners: Integers
    classes: Integers
    taught: npt.NDArray[np.bool_]


def sum_pairs(
    tokens: Tokens, neurons: Integers, ordered: tuple[Integers, Integers], specification: Specification
) -> dict[int, Run]:
    """Return the aggregated connections of all ordered pairs of tokens, by region.

    Parameters
    ----------
    tokens : Tokens
        Of whole sequences, one after the other.
    neurons : ndarray of int64
        Neuron key of each target number.
    ordered : tuple of ndarray of int64
        Neuron key and region of each source number; regions ascend.
    specification : Specification
        Segment layout and increments.

    Returns
    -------
    dict of int to Run
        Regions without connections are absent.
    """
    layout = PairLayout.of(len(neurons), specification)
    keys, begins = _sorted_keys(tokens, layout, specification)
    counts = np.zeros((len(begins) - 1, specification.segments), np.int64)
    tree = int(specification.branch_tree)
    shape = np.array([*layout[:5], specification.column_segments, *feature_reach(specification), tree], np.int64)
    _count(keys, begins, shape, counts)
    keyed, region = ordered
    edges = np.flatnonzero(np.concatenate([[True], region[1:] != region[:-1], [True]]))
    runs = {}
    for first, end in pairwise(edges.tolist()):
        rows = first + np.flatnonzero(counts[first:end].sum(axis=1))
        if len(rows):
            pieces = (keys, begins, rows, counts)
            runs[int(region[first])] = _make_run(pieces, keyed[rows], neurons, shape, increment_table(specification))
    return runs


def feature_reach(specification: Specification) -> tuple[int, int]:
    """Return the number of segments after the column segments and the largest distance that they take."""
    reach = specification.reach
    return reach, specification.longest_sequence if specification.feature_catch_all else reach


def _sorted_keys(tokens: Tokens, layout: PairLayout, specification: Specification) -> tuple[Keys, Integers]:
    """Return the keys of all pairs, sorted within each source, and where each source's keys begin."""
    order = np.argsort(tokens.source, kind="stable")
    columns, catch_all = specification.column_segments, specification.column_catch_all
    limit = np.array([columns, catch_all, feature_reach(specification)[1]], np.int64)
    partners = _count_partners(tokens.occurrence, tokens.remaining, limit)
    taught, counted = np.zeros(0, np.bool_), partners
    if tokens.taught is not None:
        taught = np.ascontiguousarray(tokens.taught)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(taught)])
        following = np.arange(1, len(taught) + 1)
        counted = before[following + partners] - before[following]
    pairs = np.bincount(tokens.source, weights=counted, minlength=int(tokens.source.max()) + 1)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(pairs.astype(np.int64))])
    kind: type[np.unsignedinteger[Any]] = np.uint32 if layout.bits == 32 else np.uint64
    low = ((tokens.target << layout.target_shift) | (tokens.branch << layout.branch_shift)).astype(kind)
    keys: Keys = np.empty(int(begins[-1]), kind)
    pieces = _pieces(begins, 1 << (layout.bits - layout.source_shift))
    number = np.arange(len(begins) - 1) - np.repeat(pieces[:-1], np.diff(pieces))
    high = (number << layout.source_shift).astype(kind)
    classes = np.zeros(len(order), np.int64) if tokens.token_class is None else tokens.token_class << layout.class_shift
    external = specification.pos_scope == "external"
    shape = np.array([layout.segment_shift, columns, catch_all, external], np.int64)
    walked = (order, tokens.source, tokens.occurrence, partners, classes, taught)
    _write_keys(_Walked(*map(readable, walked)), low, high, shape, keys)
    for begin, end in pairwise(begins[pieces].tolist()):
        keys[begin:end].sort()
    return keys, begins


def _make_run(
    pieces: tuple[Keys, Integers, Integers, Integers],
    source: Integers,
    neurons: Integers,
    shape: Integers,
    increments: Integers,
) -> Run:
    """Return the run of some rows, with narrow strengths where all sums fit."""
    rows, counts = pieces[2], pieces[3]
    pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows].sum(axis=1))])
    target = np.empty(int(pointer[-1]), np.int64)
    for kind in (np.int32, np.int64):
        strength: npt.NDArray[np.signedinteger[Any]] = np.empty(len(target), kind)
        if _fill(*pieces, neurons, shape, increments, target, strength) <= np.iinfo(kind).max:
            break
    return Run(source, pointer, target, strength)


_WALKED = nb.types.NamedTuple((_IN, _IN, _IN, _IN, _IN, _MARKS), _Walked)


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


@compiled(nb.int64[::1](_IN, nb.int64))
def _pieces(begins: Integers, most: int) -> Integers:
    """Return the sources at which pieces begin and end; a piece has no more than `most` sources."""
    edges = np.empty(len(begins), np.int64)
    edges[0] = 0
    count = 1
    for source in range(1, len(begins) - 1):
        first = edges[count - 1]
        if source - first == most or begins[source + 1] - begins[first] > PIECE:
            edges[count] = source
            count += 1
    if len(begins) > 1:
        edges[count] = len(begins) - 1
        count += 1
    return edges[:count].copy()


@compiled(*(nb.void(_WALKED, kind[::1], kind[::1], _IN, kind[::1]) for kind in (nb.uint32, nb.uint64)))
def _write_keys(walked: _Walked, low: Keys, high: Keys, shape: Integers, keys: Keys) -> None:
    """Write the key of every ordered pair, source after source."""
    order, source, occurrence, partners, classes, taught = walked
    segment_shift, columns, catch_all, external = shape
    # Marks the column segment of a pair that is too many columns apart.
    beyond = 0 if catch_all else columns
    filled, chosen = 0, len(taught) > 0
    for token in order:
        own, column = high[source[token]], occurrence[token] + columns - 1
        inside = 0 if external else classes[token]
        for distance in range(1, partners[token] + 1):
            partner = token + distance
            if chosen and not taught[partner]:
                continue
            segment = column - occurrence[partner]
            segment = beyond if segment < 0 else segment
            scale = inside if occurrence[partner] == occurrence[token] else classes[token]
            keys[filled] = own | low[partner] | ((segment << segment_shift) | scale | distance)
            filled += 1


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _node(group: int, bits: int, place: int) -> int:
    """Return a target and branch with the branch, of so many bits, halved so many times; 0 bits where it is not."""
    return ((group >> bits) << bits) | ((group & ((1 << bits) - 1)) >> place)


@compiled(*(nb.void(kind[::1], _IN, _IN, _COUNTS) for kind in (nb.uint32, nb.uint64)))
def _count(keys: Keys, begins: Integers, shape: Integers, counts: Integers) -> None:
    """Count the connections of every source by segment."""
    class_shift, segment_shift, branch_shift, target_shift, source_shift, columns, features, reach, tree = shape
    bits = tree * (target_shift - branch_shift)
    distance_mask, below = (1 << class_shift) - 1, (1 << source_shift) - 1
    seen = np.empty(columns + features, np.int64)
    for row in range(len(begins) - 1):
        seen[:] = -1
        for at in range(begins[row], begins[row + 1]):
            key = np.int64(keys[at]) & below
            group = key >> branch_shift
            column = (key >> segment_shift) & ((1 << (branch_shift - segment_shift)) - 1)
            distance = key & distance_mask
            if column < columns:
                node = _node(group, bits, column)
                counts[row, column] += seen[column] != node
                seen[column] = node
            if distance <= reach:
                feature = columns + features - min(distance, features)
                node = _node(group, bits, feature - columns)
                counts[row, feature] += seen[feature] != node
                seen[feature] = node


@compiled(
    *(
        nb.int64(keys[::1], _IN, _IN, _COUNTS, _IN, _IN, _IN, _OUT, strength[::1])
        for keys in (nb.uint32, nb.uint64)
        for strength in (nb.int32, nb.int64)
    )
)
def _fill(
    keys: Keys,
    begins: Integers,
    rows: Integers,
    counts: Integers,
    neurons: Integers,
    shape: Integers,
    increments: Integers,
    target: Integers,
    strength: npt.NDArray[np.signedinteger[Any]],
) -> int:
    """Write targets and strengths of some rows; return the largest strength, whether or not it fitted."""
    class_shift, segment_shift, branch_shift, target_shift, source_shift, columns, features, reach, tree = shape
    bits = tree * (target_shift - branch_shift)
    seen, places = np.empty(columns + features, np.int64), np.empty(columns + features, np.int64)
    largest = filled = 0
    for row in rows:
        seen[:] = -1
        for segment in range(columns + features):
            places[segment], filled = filled - 1, filled + counts[row, segment]
        for at in range(begins[row], begins[row + 1]):
            key = np.int64(keys[at]) & ((1 << source_shift) - 1)
            group, distance = key >> branch_shift, key & ((1 << class_shift) - 1)
            gain = increments[key & ((1 << segment_shift) - 1)]
            neuron = neurons[key >> target_shift]
            column = (key >> segment_shift) & ((1 << (branch_shift - segment_shift)) - 1)
            feature = columns + features - min(distance, features)
            for segment in (column if column < columns else -1, feature if distance <= reach else -1):
                if segment < 0:
                    continue
                # A group's next pair on a segment adds to the connection that its first one made.
                node = _node(group, bits, segment if segment < columns else segment - columns)
                again = seen[segment] == node
                low = (neuron << BRANCH_BITS) | (node & ((1 << (target_shift - branch_shift)) - 1))
                place = places[segment] + (not again)
                total = gain + again * np.int64(strength[place])
                target[place], strength[place] = (segment << SEGMENT_SHIFT) | low, total
                places[segment], seen[segment] = place, node
                largest = max(largest, total)
    return largest
