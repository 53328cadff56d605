"""Index the tokens of a batch of sequences by neuron, with all that the increments of a pair depend on.

So the share of every sequence in a connection is computed from the postings of its two neurons alone
(`pair_increments`), without the text, by the rule of `connections`: rule 6 of the contract for one connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.scaling import class_bits, distance_bits, feature_reach, increment_table, token_classes
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings, divide_postings
from giaann_dask.runs.run import Run, join_ranges
from giaann_dask.spec import BRANCH_BITS, Specification
from giaann_dask.text.segmentation import EncodedBlock, places_of

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
