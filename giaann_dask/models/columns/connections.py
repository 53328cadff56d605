"""Compute the increment of a batch of encoded sequences by the training rule, on the CPU.

Rule 6 of the contract, for a batch of sequences: every ordered pair of tokens adds to two segments of one connection,
or to those that reach so far, and every token to segments of its own neuron. Where blocks mark the tokens that are
trained, pairs that end at others add nothing.

A pair's increment depends on its distance alone (and on the class of its source where the specification scales by
part of speech, see `scaling`), so a connection and its distance pack into one integer. Such a key names the target, its
branch, the column segment, the class of the source and the distance; a pair that is out of reach of both of its
segments is not written (`Specification.column_catch_all`). A token makes a pair with itself, over distance 0, only with
`Specification.self_transitions`. The number of pairs of each source neuron can be computed beforehand, so keys are
written directly into the range of their source, grouped by region. Pairs are summed later, those of several batches at
once: by a processor (`giaann_dask.runs.pair_tables`) or on a device (`giaann_dask.runs.device_sums`).

The index of a network has the places of its neurons, with all that the increments of a pair depend on. So the share of
every sequence in a connection is computed from the postings of its two neurons (`pair_increments`), without the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.keys import SEGMENT_SHIFT, Integers, pack_neuron
from giaann_dask.lazy import compiled
from giaann_dask.models.columns.scaling import class_bits, distance_bits, feature_reach, increment_table, token_classes
from giaann_dask.runs.pair_tables import Keys, PairRegionRun, PairRule, PairTable, key_type, narrow_targets
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings, divide_postings
from giaann_dask.runs.run import RegionRun, Run, join_ranges, readable
from giaann_dask.spec import BRANCH_BITS, Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock, places_of

_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)
_MARKS = nb.types.Array(nb.boolean, 1, "C", readonly=True)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBatch:
    """The trained sequences of some blocks, flat.

    Attributes
    ----------
    neuron : ndarray
        Neuron key of each token, int64.
    branch : ndarray
        Dendritic branch of each token, int64.
    occurrence : ndarray
        Column occurrence of each token in its sequence, int64.
    position : ndarray
        For each token, the position in its sequence of its column's noun; int64.
    remaining : ndarray
        Number of tokens from each token to the end of its sequence, itself included; int64.
    token_class : ndarray, optional
        Class of each token as a source (see `giaann_dask.models.columns.scaling`), int64; None for one class.
    train_mask : ndarray, optional
        Whether connections to each token are trained, bool; None for all.
    """

    neuron: Integers
    branch: Integers
    occurrence: Integers
    position: Integers
    remaining: Integers
    token_class: Integers | None = None
    train_mask: npt.NDArray[np.bool_] | None = None


def gather_batch(blocks: Sequence[EncodedBlock]) -> SequenceBatch:
    """Collect the sequences of blocks that are divided into columns; the others train nothing."""
    pieces: list[tuple[Integers, ...]] = [(np.zeros(0, np.int64),) * 5]
    for block in blocks:
        lengths = np.diff(block.offsets)
        trained = np.repeat(block.status == CANDIDATE, lengths)
        place = np.arange(int(block.offsets[-1]))
        position = (place - np.repeat(block.offsets[:-1], lengths))[trained]
        remaining = (np.repeat(block.offsets[1:], lengths) - place)[trained]
        neuron = pack_neuron(block.column[trained], block.feature[trained])
        occurrence = block.occurrence[trained].astype(np.int64)
        noun_position = _noun_positions(block.feature[trained] == 0, position, occurrence)
        pieces.append((neuron, block.branch[trained].astype(np.int64), occurrence, noun_position, remaining))
    batch = SequenceBatch(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
    return replace(batch, train_mask=_train_mask(blocks))


def _train_mask(blocks: Sequence[EncodedBlock]) -> npt.NDArray[np.bool_] | None:
    """Return which tokens of the sequences that are divided into columns are taught, None for all."""
    if all(block.train_mask is None for block in blocks):
        return None
    found = []
    for block in blocks:
        trained = np.repeat(block.status == CANDIDATE, np.diff(block.offsets))
        found.append(np.ones(int(trained.sum()), np.bool_) if block.train_mask is None else block.train_mask[trained])
    return np.concatenate(found)


def _noun_positions(noun: npt.NDArray[np.bool_], position: Integers, occurrence: Integers) -> Integers:
    """Return for each token the position of the one noun of its column occurrence."""
    starts = np.ones(len(noun), np.bool_)
    starts[1:] = (np.diff(occurrence) != 0) | (position[1:] == 0)
    found: Integers = position[noun][np.cumsum(starts) - 1]
    return found


def connect_batch(
    blocks: Sequence[EncodedBlock],
    specification: Specification,
    placement: Placement,
) -> dict[int, RegionRun | PairRegionRun]:
    """Return the increments of everything that a batch of sequences trains.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sequences to train, each once.
    specification : Specification
        Segment layout and increments.
    placement : Placement
        Assigns source neurons to regions.

    Returns
    -------
    dict of int to RegionRun or PairRegionRun
        Increments by region; a region that no pair touches has an empty run, and one that nothing touches is absent.
    """
    batch = gather_batch(blocks)
    if len(batch.neuron) == 0:
        return {}
    # Compiled code does not check where it writes.
    assert int(batch.branch.max()) < specification.branches, "the blocks were encoded with these branches"
    if specification.pos_factors:
        batch = replace(batch, token_class=token_classes(blocks, specification))
    neurons, local = np.unique(batch.neuron, return_inverse=True)
    region = placement.regions_of(neurons)
    # Sources are numbered by region first, so that one sort also groups the increments by region.
    by_region = np.argsort(region, kind="stable")
    rank = np.empty_like(by_region)
    rank[by_region] = np.arange(len(by_region))
    source, ordered = rank[local], (neurons[by_region], region[by_region])
    tokens = BatchTokens(
        source, local, batch.branch, batch.occurrence, batch.remaining, batch.token_class, batch.train_mask
    )
    pairs = tabulate_pairs(tokens, neurons, ordered, specification)
    own = OwnTokens(source, batch.branch, batch.occurrence, batch.position)
    strengths = count_own(own, ordered, specification)
    # Every token strengthens its own neuron, so these are the regions of the postings, too.
    places = index_neurons(blocks, specification, placement) if specification.trace else {}
    return {
        r: PairRegionRun(pairs[r], run, places.get(r)) if r in pairs else RegionRun(Run.empty(), run, places.get(r))
        for r, run in strengths.items()
    }


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


class BatchTokens(NamedTuple):
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
    tokens: BatchTokens, neurons: Integers, ordered: tuple[Integers, Integers], specification: Specification
) -> dict[int, PairTable]:
    """Return all ordered pairs of tokens, by region.

    Parameters
    ----------
    tokens : BatchTokens
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


def _keys_by_source(
    tokens: BatchTokens, rule: PairRule, numbers: tuple[int, int], specification: Specification
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


# Bits of the attributes of a token, from the lowest: whether it is trained as a target, its column occurrence,
# its branch, and its class as a source (`giaann_dask.models.columns.scaling`).
_OCCURRENCE_BITS = 12
_BRANCH_SHIFT = 1 + _OCCURRENCE_BITS
_CLASS_SHIFT = _BRANCH_SHIFT + BRANCH_BITS


class TokenPlaces(NamedTuple):
    """Places of a neuron's tokens in sequences with columns, with what pairs depend on.

    Attributes
    ----------
    sequence, position : ndarray
        See `Postings`.
    occurrence, branch, token_class : ndarray
        See `giaann_dask.models.columns.connections.SequenceBatch`; int64.
    train_mask : ndarray
        Whether connections to the token are trained; bool.
    """

    sequence: Integers
    position: Integers
    occurrence: Integers
    branch: Integers
    token_class: Integers
    train_mask: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, postings: Postings) -> TokenPlaces:
        """Return the places that postings hold."""
        values = postings.attributes
        return cls(
            postings.sequence,
            postings.position,
            (values >> 1) & ((1 << _OCCURRENCE_BITS) - 1),
            (values >> _BRANCH_SHIFT) & ((1 << BRANCH_BITS) - 1),
            values >> _CLASS_SHIFT,
            (values & 1) == 1,
        )

    def postings(self) -> Postings:
        """Return the postings that hold these places."""
        high = (self.token_class << _CLASS_SHIFT) | (self.branch << _BRANCH_SHIFT) | (self.occurrence << 1)
        return Postings(self.sequence, self.position, high | self.train_mask)


def index_neurons(blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement) -> dict[int, Run]:
    """Return the postings of the trained tokens of blocks with columns, by region."""
    scaled = bool(specification.pos_factors)
    classes = token_classes(blocks, specification) if scaled else np.zeros(0, np.int64)
    sources, columns, begin = [np.zeros(0, np.int64)], [TokenPlaces(*_NONE, np.zeros(0, np.bool_))], 0
    for block in blocks:
        sequence, place, trained = places_of(block)
        end = begin + len(place)
        sources.append(pack_neuron(block.column[trained], block.feature[trained]))
        columns.append(
            TokenPlaces(
                sequence,
                place,
                block.occurrence[trained].astype(np.int64),
                block.branch[trained].astype(np.int64),
                classes[begin:end] if scaled else np.zeros(len(place), np.int64),
                np.ones(len(place), np.bool_) if block.train_mask is None else block.train_mask[trained],
            )
        )
        begin = end
    places = TokenPlaces(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return divide_postings(np.concatenate(sources), places.postings(), placement)


_NONE = (np.zeros(0, np.int64),) * 5


def pair_increments(
    source: TokenPlaces, target: TokenPlaces, segment: int, branch: int, specification: Specification
) -> tuple[Integers, Integers]:
    """Return what each sequence added to one connection.

    Parameters
    ----------
    source, target : TokenPlaces
        All places of its neurons.
    segment, branch : int
        Where it ends.
    specification : Specification
        Segment layout and increments.

    Returns
    -------
    sequence, units : ndarray
        Sequences that added something, ascending, and how many strength units; int64, of one length.
    """
    first, last = (np.searchsorted(target.sequence, source.sequence, side) for side in ("left", "right"))
    pairs = last - first
    at = join_ranges(first, pairs)
    of = np.repeat(np.arange(len(pairs)), pairs)
    distance = target.position[at] - source.position[of]
    # A token is adjacent to itself.
    nearness = np.maximum(distance, 1)
    columns, (features, reach) = specification.column_segments, feature_reach(specification)
    near = columns - 1 - (target.occurrence[at] - source.occurrence[of])
    inside = near == columns - 1
    if segment < columns:
        place = segment
        on = np.maximum(near, 0) == segment if specification.column_catch_all else near == segment
    else:
        place = segment - columns
        on = (features - np.minimum(nearness, features) == place) & (nearness <= reach)
    ends = target.branch[at] >> place if specification.branch_tree else target.branch[at]
    on &= (distance >= specification.least_distance) & (ends == branch) & target.train_mask[at]
    classes = source.token_class[of]
    if class_bits(specification) and specification.pos_scope == "external":
        classes = np.where(inside, 0, classes)
    index = (classes << distance_bits(specification)) | distance
    units = increment_table(specification)[index[on]]
    found, where = np.unique(source.sequence[of][on], return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, where, units)
    return found, sums
