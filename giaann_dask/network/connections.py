"""From encoded sequences to increments: the training rule as one masked computation.

Covers: rule 6 of the contract for a batch of sequences at once: every ordered pair of tokens adds
to two segments of one connection. Does not cover: where an increment goes (`region`) and adding
it to what is there (`merging`).

A pair's increment depends on its distance alone, so a connection and its distance pack into one
64-bit integer; sorting these integers aggregates the batch, and the increments come from a table
at the end. Sorting bounds the speed: NumPy's vectorised sort is used on the CPU, the device's own
sort elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from giaann_dask.errors import StrengthOverflowError
from giaann_dask.network.aggregation import Connections, KeyLayout, sum_connections
from giaann_dask.network.keys import pack_neuron
from giaann_dask.network.region import Placement
from giaann_dask.network.run import Run, narrow_strength
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
    remaining : ndarray
        Number of tokens from each token to the end of its sequence, itself included; int64.
    """

    neuron: npt.NDArray[np.int64]
    branch: npt.NDArray[np.int64]
    occurrence: npt.NDArray[np.int64]
    remaining: npt.NDArray[np.int64]


def gather_batch(blocks: Sequence[EncodedBlock]) -> SequenceBatch:
    """Collect the sequences of blocks that are divided into columns; the others train nothing."""
    pieces: list[tuple[npt.NDArray[np.int64], ...]] = []
    for block in blocks:
        lengths = np.diff(block.offsets)
        trained = np.repeat(block.status == CANDIDATE, lengths)
        remaining = np.repeat(block.offsets[1:], lengths) - np.arange(int(block.offsets[-1]))
        neuron = pack_neuron(block.column[trained], block.feature[trained])
        branch = block.branch[trained].astype(np.int64)
        pieces.append((neuron, branch, block.occurrence[trained].astype(np.int64), remaining[trained]))
    empty = np.zeros(0, np.int64)
    columns = zip(*pieces, strict=True) if pieces else [[empty]] * 4
    return SequenceBatch(*(np.concatenate(column) for column in columns))


def connect_batch(
    blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement, device: torch.device
) -> dict[int, Run]:
    """Return the increments of all connections that a batch of sequences makes.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sequences to train, each once.
    specification : Specification
        Segment layout and increments.
    placement : Placement
        Deals source neurons to regions.
    device : torch.device
        Where pairs are formed and sorted.

    Returns
    -------
    dict of int to Run
        Aggregated increments by region; regions that are not touched are absent.
    """
    batch = gather_batch(blocks)
    if len(batch.neuron) == 0:
        return {}
    neurons, local = np.unique(batch.neuron, return_inverse=True)
    region = placement.regions_of(neurons)
    # Sources are numbered by region first, so that one sort also groups the increments by region.
    by_region = np.argsort(region, kind="stable")
    rank = np.empty_like(by_region)
    rank[by_region] = np.arange(len(by_region))
    layout = _layout(len(neurons), specification)
    keys = _sort(_pair_keys(batch, rank[local], local, layout, specification, device))
    if len(keys) == 0:
        return {}
    connections = sum_connections(keys, neurons, specification.increments(), layout)
    return _split_by_region(connections, neurons[by_region], region[by_region])


def _layout(neurons: int, specification: Specification) -> KeyLayout:
    layout = KeyLayout(
        max(neurons - 1, 1).bit_length(),
        (specification.segments - 1).bit_length(),
        (specification.branches - 1).bit_length(),
        (specification.maximum_tokens - 1).bit_length(),
    )
    if layout.bits > 63:
        raise StrengthOverflowError(
            f"a batch has {neurons} distinct neurons", "keys of at most 63 bits", "choose smaller batches"
        )
    return layout


def _pair_keys(
    batch: SequenceBatch,
    source: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    layout: KeyLayout,
    specification: Specification,
    device: torch.device,
) -> torch.Tensor:
    """Return a key for each of the two segments of every ordered pair; int64, unsorted.

    The pairs of one distance are one masked operation; a batch has as many distances as its
    longest sequence has tokens, however many sequences it holds.
    """
    remaining = torch.from_numpy(batch.remaining).to(device)
    occurrence = torch.from_numpy(batch.occurrence).to(device)
    high = torch.from_numpy(source << layout.source_shift).to(device)
    low = torch.from_numpy((target << layout.target_shift) | (batch.branch << layout.branch_shift)).to(device)
    column_segments, feature_segments = specification.column_segments, specification.feature_segments
    longest = int(batch.remaining.max())
    # A sequence of n tokens has n - d pairs at distance d, n (n - 1) / 2 in all, each on two segments.
    keys = torch.empty(2 * int((batch.remaining - 1).sum()), dtype=torch.int64, device=device)
    filled = 0
    first = torch.arange(len(batch.neuron), device=device)
    for distance in range(1, longest):
        first = first[remaining[first] > distance]
        second = first + distance
        pair = high[first] | low[second] | distance
        feature_segment = column_segments + feature_segments - min(distance, feature_segments)
        column_segment = (column_segments - 1 - (occurrence[second] - occurrence[first])).clamp_(min=0)
        count = len(first)
        keys[filled : filled + count] = pair | (feature_segment << layout.segment_shift)
        filled += count
        keys[filled : filled + count] = pair | (column_segment << layout.segment_shift)
        filled += count
    return keys


def _sort(keys: torch.Tensor) -> npt.NDArray[np.int64]:
    """Sort on the device; on the CPU with NumPy, which is several times faster than torch there."""
    if keys.device.type == "cpu":
        array: npt.NDArray[np.int64] = keys.numpy()
        array.sort()
        return array
    ordered: npt.NDArray[np.int64] = torch.sort(keys).values.cpu().numpy()
    return ordered


def _split_by_region(
    connections: Connections, neurons: npt.NDArray[np.int64], region: npt.NDArray[np.int64]
) -> dict[int, Run]:
    """Cut connections, whose sources are numbered by region first, into one run per region."""
    pointer = connections.pointer
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
