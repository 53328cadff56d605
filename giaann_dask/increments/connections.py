"""Compute the increment of a batch of encoded sequences by the training rule.

Rule 6 of the contract, for a batch of sequences: every ordered pair of tokens adds to two segments of one connection,
or to those that reach so far, and every token to segments of its own neuron. Where blocks mark the tokens that are
trained, pairs that end at others add nothing.

A pair's increment depends on its distance alone (and on the class of its source where the specification scales by
part of speech, see `scaling`), so a connection and its distance pack into one integer. The CPU only writes the pairs
(`pairs`), which are summed where they are stored (`giaann_dask.runs.pair_tables`). A device sorts 64-bit integers of
the batch, which aggregates it, and looks the increments up in a table at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from giaann_dask.device import tensor_device, torch, upload
from giaann_dask.errors import StrengthOverflowError
from giaann_dask.increments.aggregation import Connections, KeyLayout, sum_on_device
from giaann_dask.increments.own_strengths import OwnTokens, count_own
from giaann_dask.increments.pairs import Tokens, feature_reach, tabulate_pairs
from giaann_dask.increments.places import index_neurons
from giaann_dask.increments.scaling import class_bits, distance_bits, increment_table, token_classes
from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.runs.pair_tables import PairRegionRun, PairTable
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run, narrow_strength
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock


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
        Class of each token as a source (see `giaann_dask.increments.scaling`), int64; None for one class.
    taught : ndarray, optional
        Whether connections to each token are trained, bool; None for all.
    """

    neuron: Integers
    branch: Integers
    occurrence: Integers
    position: Integers
    remaining: Integers
    token_class: Integers | None = None
    taught: npt.NDArray[np.bool_] | None = None


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
    return replace(batch, taught=_taught(blocks))


def _taught(blocks: Sequence[EncodedBlock]) -> npt.NDArray[np.bool_] | None:
    """Return which tokens of the sequences that are divided into columns are taught, None for all."""
    if all(block.taught is None for block in blocks):
        return None
    found = []
    for block in blocks:
        trained = np.repeat(block.status == CANDIDATE, np.diff(block.offsets))
        found.append(np.ones(int(trained.sum()), np.bool_) if block.taught is None else block.taught[trained])
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
    device: torch.device | None = None,
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
    device : torch.device, optional
        Where pairs are formed and sorted; the CPU by default.

    Returns
    -------
    dict of int to RegionRun or PairRegionRun
        Increments by region, as pairs on the CPU, and summed on a device; regions that are not touched are absent.
    """
    batch = gather_batch(blocks)
    if len(batch.neuron) == 0:
        return {}
    if specification.pos_factors:
        batch = replace(batch, token_class=token_classes(blocks, specification))
    neurons, local = np.unique(batch.neuron, return_inverse=True)
    region = placement.regions_of(neurons)
    # Sources are numbered by region first, so that one sort also groups the increments by region.
    by_region = np.argsort(region, kind="stable")
    rank = np.empty_like(by_region)
    rank[by_region] = np.arange(len(by_region))
    source, ordered = rank[local], (neurons[by_region], region[by_region])
    tokens = Tokens(source, local, batch.branch, batch.occurrence, batch.remaining, batch.token_class, batch.taught)
    first: Mapping[int, Run | PairTable] = pairs_on(device, tokens, neurons, ordered, specification)
    own = OwnTokens(source, batch.branch, batch.occurrence, batch.position)
    second = count_own(own, ordered, specification)
    # Every token strengthens its own neuron, so these are the regions of the postings, too.
    places = index_neurons(blocks, specification, placement) if specification.trace else {}
    return {r: _region_run(first.get(r, Run.empty()), run, places.get(r)) for r, run in second.items()}


def _region_run(table: Run | PairTable, neurons: Run, postings: Run | None) -> RegionRun | PairRegionRun:
    if isinstance(table, PairTable):
        return PairRegionRun(table, neurons, postings)
    return RegionRun(table, neurons, postings)


def pairs_on(
    device: torch.device | None,
    tokens: Tokens,
    neurons: Integers,
    ordered: tuple[Integers, Integers],
    specification: Specification,
    *,
    dense: bool = False,
) -> dict[int, Run] | dict[int, PairTable]:
    """Return the pairs of tokens by region, or the connections that a device has summed.

    Parameters
    ----------
    device : torch.device or None
        Where pairs are formed, None for the CPU.
    tokens, neurons, ordered, specification
        As `giaann_dask.increments.pairs.tabulate_pairs` takes them.
    dense : bool
        Compute on the CPU as on other devices, with torch; several times slower, and equal.
    """
    if tensor_device(device) is None and not dense:
        return tabulate_pairs(tokens, neurons, ordered, specification)
    layout = _layout(len(neurons), specification)
    keys = torch.sort(_pair_keys(tokens, layout, specification, device or torch.device("cpu"))).values
    return _split_by_region(sum_on_device(keys, neurons, increment_table(specification), layout), *ordered)


def _layout(neurons: int, specification: Specification) -> KeyLayout:
    layout = KeyLayout(
        max(neurons - 1, 1).bit_length(),
        (specification.segments - 1).bit_length(),
        (specification.branches - 1).bit_length(),
        distance_bits(specification) + class_bits(specification),
    )
    if layout.bits > 63:
        raise StrengthOverflowError(
            f"a batch has {neurons} distinct neurons", "keys of at most 63 bits", "choose smaller batches"
        )
    return layout


def _pair_keys(tokens: Tokens, layout: KeyLayout, specification: Specification, device: torch.device) -> torch.Tensor:
    """Return a key for each of the two segments of every ordered pair; int64, unsorted.

    The pairs of one distance are one operation; a batch has as many distances as its longest
    sequence has tokens, for any number of sequences. Tokens are put in the order of what remains
    of their sequence, so that those with a partner at some distance are the first ones.
    """
    order = np.argsort(-tokens.remaining, kind="stable")
    remaining = tokens.remaining[order]
    partners = len(order) - np.cumsum(np.bincount(remaining))
    first = upload(torch.from_numpy(order), device)
    high = upload(torch.from_numpy(tokens.source[order] << layout.source_shift), device)
    class_mask = 0
    if tokens.token_class is not None:
        high |= upload(torch.from_numpy(tokens.token_class[order] << distance_bits(specification)), device)
        if specification.pos_scope == "external":
            class_mask = ((1 << class_bits(specification)) - 1) << distance_bits(specification)
    occurrence = upload(torch.from_numpy(tokens.occurrence[order]), device)
    taught = None if tokens.taught is None else upload(torch.from_numpy(tokens.taught), device)
    # A target's key and its occurrence, where a source's number would be, are fetched as one.
    low = (tokens.target << layout.target_shift) | (tokens.branch << layout.branch_shift)
    packed = upload(torch.from_numpy(low | (tokens.occurrence << layout.source_shift)), device)
    low_mask = (1 << layout.segment_shift) - 1
    columns, (features, reach) = specification.column_segments, feature_reach(specification)
    # A sequence of n tokens has n - d pairs at distance d, n (n - 1) / 2 in all, each on two segments at most.
    keys = torch.empty(2 * int((remaining - 1).sum()), dtype=torch.int64, device=device)
    filled = 0
    for distance in range(1, int(remaining.max(initial=1))):
        count = int(partners[distance])
        at, own, its_high = first[:count] + distance, occurrence[:count], high[:count]
        if taught is not None:
            there = taught[at]
            at, own, its_high = at[there], own[there], its_high[there]
            count = len(at)
        partner = packed[at]
        segment = partner >> layout.source_shift
        segment.sub_(own).neg_().add_(columns - 1)
        pair = partner.bitwise_and_(low_mask).bitwise_or_(its_high).bitwise_or_(distance)
        if class_mask:
            # Pairs inside one column occurrence are not scaled.
            pair.bitwise_and_(~(segment.eq(columns - 1).mul(class_mask)))
        if distance <= reach:
            feature_segment = columns + features - min(distance, features)
            joined = pair
            if specification.branch_tree:
                place = torch.tensor(feature_segment - columns, device=device)
                joined = _join_branches(pair, place, layout)
            torch.bitwise_or(joined, feature_segment << layout.segment_shift, out=keys[filled : filled + count])
            filled += count
        if specification.column_catch_all:
            segment.clamp_(min=0)
        else:
            near = segment.ge(0)
            pair, segment = pair[near], segment[near]
            count = len(pair)
        if specification.branch_tree:
            pair = _join_branches(pair, segment, layout)
        segment.bitwise_left_shift_(layout.segment_shift)
        torch.bitwise_or(pair, segment, out=keys[filled : filled + count])
        filled += count
    return keys[:filled]


def _join_branches(keys: torch.Tensor, place: torch.Tensor, layout: KeyLayout) -> torch.Tensor:
    """Return keys with their branches halved as many times as their segments have others of their kind before them."""
    mask = (1 << layout.branch_bits) - 1
    branch = (keys >> layout.branch_shift) & mask
    return (keys & ~(mask << layout.branch_shift)) | ((branch >> place) << layout.branch_shift)


def _split_by_region(connections: Connections, neurons: Integers, region: Integers) -> dict[int, Run]:
    """Cut connections, whose sources are numbered by region first, into one run per region."""
    pointer = connections.pointer
    if len(connections.source) == 0:
        return {}
    row_region = region[connections.source]
    edges = np.flatnonzero(np.concatenate([[True], row_region[1:] != row_region[:-1], [True]]))
    runs: dict[int, Run] = {}
    for begin, end in pairwise(edges.tolist()):
        low, high = int(pointer[begin]), int(pointer[end])
        runs[int(row_region[begin])] = Run(
            neurons[connections.source[begin:end]],
            pointer[begin : end + 1] - low,
            connections.target[low:high].copy(),
            narrow_strength(connections.strength[low:high]),
        )
    return runs
