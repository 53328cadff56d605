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

import numpy as np
import numpy.typing as npt
import torch

from giaann_dask.network.keys import pack_neuron, pack_target
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
    layout = _KeyLayout.for_batch(len(neurons), specification)
    keys = _pair_keys(batch, rank[local], local, layout, specification, device)
    return _split_by_region(_sort(keys), neurons, by_region, region, layout, specification)


@dataclass(frozen=True)
class _KeyLayout:
    """Bit positions of (source, segment, target, branch, distance), lowest last."""

    neuron_bits: int
    segment_bits: int
    branch_bits: int
    distance_bits: int

    @classmethod
    def for_batch(cls, neurons: int, specification: Specification) -> _KeyLayout:
        layout = cls(
            max(neurons - 1, 1).bit_length(),
            (specification.segments - 1).bit_length(),
            (specification.branches - 1).bit_length(),
            (specification.maximum_tokens - 1).bit_length(),
        )
        assert layout.source_shift + layout.neuron_bits <= 63, "a batch has too many distinct neurons"
        return layout

    @property
    def branch_shift(self) -> int:
        return self.distance_bits

    @property
    def target_shift(self) -> int:
        return self.branch_shift + self.branch_bits

    @property
    def segment_shift(self) -> int:
        return self.target_shift + self.neuron_bits

    @property
    def source_shift(self) -> int:
        return self.segment_shift + self.segment_bits


def _pair_keys(
    batch: SequenceBatch,
    source: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    layout: _KeyLayout,
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
    keys: npt.NDArray[np.int64],
    neurons: npt.NDArray[np.int64],
    by_region: npt.NDArray[np.int64],
    region: npt.NDArray[np.int64],
    layout: _KeyLayout,
    specification: Specification,
) -> dict[int, Run]:
    """Sum equal connections of sorted keys and cut the result into one run per region."""
    if len(keys) == 0:
        return {}
    connection = keys >> layout.distance_bits
    starts = np.flatnonzero(np.concatenate([[True], connection[1:] != connection[:-1]]))
    distance = keys & ((1 << layout.distance_bits) - 1)
    strength = np.add.reduceat(specification.increments()[distance], starts)
    connection = connection[starts]
    target = _target_keys(connection, neurons, layout)
    source = connection >> (layout.source_shift - layout.distance_bits)
    row_starts = np.flatnonzero(np.concatenate([[True], source[1:] != source[:-1]]))
    rows = by_region[source[row_starts]]
    row_region = region[rows]
    pointer = np.append(row_starts, len(connection))
    edges = np.flatnonzero(np.concatenate([[True], row_region[1:] != row_region[:-1], [True]]))
    runs: dict[int, Run] = {}
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        low, high = int(pointer[begin]), int(pointer[end])
        runs[int(row_region[begin])] = Run(
            neurons[rows[begin:end]],
            pointer[begin : end + 1] - low,
            target[low:high].copy(),
            narrow_strength(strength[low:high]),
        )
    return runs


def _target_keys(
    connection: npt.NDArray[np.int64], neurons: npt.NDArray[np.int64], layout: _KeyLayout
) -> npt.NDArray[np.int64]:
    """Turn the low bits of batch-local connection keys into target keys."""
    branch = connection & ((1 << layout.branch_bits) - 1)
    local = (connection >> (layout.target_shift - layout.distance_bits)) & ((1 << layout.neuron_bits) - 1)
    segment = (connection >> (layout.segment_shift - layout.distance_bits)) & ((1 << layout.segment_bits) - 1)
    return pack_target(segment, neurons[local], branch)
