"""Compute the increment of one sequence in a dense tensor of its columns and features, as published.

The tensor has the shape ``(branches, segments, columns, features, columns, features)``, of the distinct columns and
features of the sequence alone: source before target, and the target's branch. Its entries that the sequence reaches are
the increment, in the same integers as those of `connections`, which counts batches of sequences in a fraction of the
time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from giaann_dask.device import one_thread, torch
from giaann_dask.keys import Integers, pack_neuron, pack_target, unpack_neuron
from giaann_dask.models.columns.connections import SequenceBatch, gather_batch, index_neurons
from giaann_dask.models.columns.scaling import distance_bits, feature_reach, increment_table, token_classes
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run, divide_rows, narrow_strength
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import EncodedBlock

if TYPE_CHECKING:
    from torch import Tensor


class _SequenceTokens(NamedTuple):
    """The tokens of a sequence, int64 tensors of one device; columns and features are numbers within the sequence."""

    column: Tensor
    feature: Tensor
    branch: Tensor
    occurrence: Tensor
    position: Tensor
    token_class: Tensor


class _DenseEntries(NamedTuple):
    """Amounts to add to entries of a dense tensor, with the place of each on every axis in the published order."""

    places: tuple[Tensor, ...]
    amount: Tensor


def count_dense(
    blocks: Sequence[EncodedBlock],
    specification: Specification,
    placement: Placement,
    device: torch.device | None = None,
) -> dict[int, RegionRun]:
    """Return the increments of one sequence by region, from a dense tensor of what it trains.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        At most one of their sequences has the status ``CANDIDATE``.
    specification : Specification
        Segment layout and increments.
    placement : Placement
        Assigns source neurons to regions.
    device : torch.device, optional
        Where the tensor is; the CPU by default.

    Returns
    -------
    dict of int to RegionRun
        The sums of what `giaann_dask.models.columns.connections.connect_batch` returns.
    """
    batch = gather_batch(blocks)
    if len(batch.neuron) == 0:
        return {}
    assert len(batch.neuron) == batch.remaining[0], "a dense tensor has the columns of one sequence"
    column, feature = unpack_neuron(batch.neuron)
    names = np.unique(column), np.unique(feature)
    with one_thread():
        tokens = _tokens_of(batch, blocks, specification, names, device)
        sizes = tuple(map(len, names))
        own = _run(_own_entries(tokens, specification), (*_places(specification), *sizes), names)
        connections = _run(
            _pair_entries(tokens, batch, specification), (*_places(specification), *sizes, *sizes), names
        )
    strengths, parts = (divide_rows(run, placement.regions_of(run.source)) for run in (own, connections))
    places = index_neurons(blocks, specification, placement) if specification.trace else {}
    return {r: RegionRun(parts.get(r, Run.empty()), run, places.get(r)) for r, run in strengths.items()}


def _places(specification: Specification) -> tuple[int, int]:
    """Return the numbers of branches and of segments."""
    return specification.branches, specification.column_segments + feature_reach(specification)[0]


def _tokens_of(
    batch: SequenceBatch,
    blocks: Sequence[EncodedBlock],
    specification: Specification,
    names: tuple[Integers, Integers],
    device: torch.device | None,
) -> _SequenceTokens:
    column, feature = unpack_neuron(batch.neuron)
    scaled = bool(specification.pos_factors)
    arrays = (
        *(np.searchsorted(names[0], column), np.searchsorted(names[1], feature)),
        *(batch.branch, batch.occurrence, batch.position),
        token_classes(blocks, specification) if scaled else np.zeros(len(column), np.int64),
    )
    return _SequenceTokens(*(torch.from_numpy(array).to(device or "cpu") for array in arrays))


def _pair_entries(tokens: _SequenceTokens, batch: SequenceBatch, specification: Specification) -> _DenseEntries:
    """Return what every ordered pair of tokens adds, to a column segment and a feature segment."""
    count, device = len(tokens.column), tokens.column.device
    source, target = torch.triu_indices(count, count, offset=specification.least_distance, device=device)
    if batch.train_mask is not None:
        trained = torch.from_numpy(batch.train_mask).to(device)[target]
        source, target = source[trained], target[trained]
    columns, (features, reach) = specification.column_segments, feature_reach(specification)
    distance, ahead = target - source, tokens.occurrence[target] - tokens.occurrence[source]
    by_column = columns - 1 - ahead
    if specification.column_catch_all:
        by_column = by_column.clamp(min=0)
    # A token is adjacent to itself.
    nearness = distance.clamp(min=1)
    by_feature = columns + features - nearness.clamp(max=features)
    classes = tokens.token_class[source]
    if specification.pos_scope == "external":
        classes = torch.where(ahead == 0, 0, classes)
    increments = torch.from_numpy(increment_table(specification)).to(device)
    amount = increments[(classes << distance_bits(specification)) | distance]
    segment = torch.cat([by_column, by_feature])
    kept = torch.cat([by_column >= 0, nearness <= reach])
    segment, source, target = segment[kept], source.repeat(2)[kept], target.repeat(2)[kept]
    branch = _node(tokens.branch[target], segment, specification)
    neurons = (tokens.column[source], tokens.feature[source], tokens.column[target], tokens.feature[target])
    return _DenseEntries((branch, segment, *neurons), amount.repeat(2)[kept])


def _own_entries(tokens: _SequenceTokens, specification: Specification) -> _DenseEntries:
    """Return what every token adds to segments of its own neuron (`giaann_dask.models.columns.connections`)."""
    columns, device = specification.column_segments, tokens.column.device
    if specification.own_strengths == "tokens":
        token = torch.arange(len(tokens.column), device=device)
        segment = torch.full_like(token, specification.last_segment)
    else:
        every = torch.arange(columns + specification.feature_segments, device=device)
        reached = torch.where(every < columns, tokens.occurrence[:, None], tokens.position[:, None])
        place = torch.where(every < columns, every, every - columns)
        token, segment = (place <= reached).nonzero(as_tuple=True)
    branch = _node(tokens.branch[token], segment, specification)
    return _DenseEntries((branch, segment, tokens.column[token], tokens.feature[token]), torch.ones_like(token))


def _node(branch: Tensor, segment: Tensor, specification: Specification) -> Tensor:
    """Return the branch of a segment, which is halved from segment to segment in a tree."""
    if not specification.branch_tree:
        return branch
    columns = specification.column_segments
    return branch >> torch.where(segment < columns, segment, segment - columns)


def _run(entries: _DenseEntries, shape: tuple[int, ...], names: tuple[Integers, Integers]) -> Run:
    """Add entries to a dense tensor, and return those that were reached as a run."""
    device = entries.amount.device
    dense = torch.zeros(shape, dtype=torch.int64, device=device)
    dense.index_put_(entries.places, entries.amount, accumulate=True)
    # A connection that gains less than half a unit is a connection, too.
    reached = torch.zeros(shape, dtype=torch.bool, device=device)
    reached[entries.places] = True
    # In the order of the keys: source column and feature, segment, target column and feature, branch.
    order = (2, 3, 1, *range(4, len(shape)), 0)
    found = reached.permute(order).nonzero(as_tuple=True)
    strength = dense.permute(order)[found].cpu().numpy()
    column, feature, segment, *target, branch = (index.cpu().numpy() for index in found)
    columns, features = names
    neuron = pack_neuron(columns[target[0]], features[target[1]]) if target else np.zeros_like(column)
    source, counts = np.unique(pack_neuron(columns[column], features[feature]), return_counts=True)
    pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Run(source, pointer, pack_target(segment, neuron, branch), narrow_strength(strength))
