"""Compute the increment of a batch of encoded sequences by the training rule.

Rule 6 of the contract, for a batch of sequences: every ordered pair of tokens adds to two segments of one connection,
or to those that reach so far, and every token to segments of its own neuron. Where blocks mark the tokens that are
trained, pairs that end at others add nothing.

A pair's increment depends on its distance alone (and on the class of its source where the specification scales by
part of speech, see `scaling`), so a connection and its distance pack into one integer. Only the pairs are written here
(`pairs`). They are summed later, those of several batches at once: by a processor (`giaann_dask.runs.pair_tables`) or
on a device (`giaann_dask.runs.device_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.own_strengths import OwnTokens, count_own
from giaann_dask.models.columns.pairs import Tokens, tabulate_pairs
from giaann_dask.models.columns.places import index_neurons
from giaann_dask.models.columns.scaling import token_classes
from giaann_dask.runs.pair_tables import PairRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run
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
    tokens = Tokens(source, local, batch.branch, batch.occurrence, batch.remaining, batch.token_class, batch.train_mask)
    pairs = tabulate_pairs(tokens, neurons, ordered, specification)
    own = OwnTokens(source, batch.branch, batch.occurrence, batch.position)
    strengths = count_own(own, ordered, specification)
    # Every token strengthens its own neuron, so these are the regions of the postings, too.
    places = index_neurons(blocks, specification, placement) if specification.trace else {}
    return {
        r: PairRegionRun(pairs[r], run, places.get(r)) if r in pairs else RegionRun(Run.empty(), run, places.get(r))
        for r, run in strengths.items()
    }
