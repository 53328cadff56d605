"""Segment tagged blocks into columns: map tokens and stored flags to neurons and branches.

Implements rules 4 and 5 of the contract for a whole block without a loop over sentences, and their variants in
profile ``v2``.

Does not cover: how the stored flags are set (`vocabulary`) and training (`giaann_dask.models.columns.connections`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import Integers
from giaann_dask.spec import FEATURE_BITS, Specification
from giaann_dask.text.blocks import CANDIDATE, DELIMITER, NO_DELIMITER, PROBABLE, TaggedBlock
from giaann_dask.text.vocabulary import BlockMapping

UNASSIGNED = -1
# Of random blocks: tokens of a sequence, in columns of four.
TOKENS = 25
# Largest numbers of concepts and of features.
CONCEPTS, FEATURES = 20_000, 10_000


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class EncodedBlock:
    """Sequences as neurons, the input of training and evaluation.

    Attributes
    ----------
    offsets : ndarray
        Sequence q has the tokens ``offsets[q]:offsets[q + 1]``; int64, shape ``(sequences + 1,)``.
    status : ndarray
        Index into `giaann_dask.text.blocks.STATUS_NAMES` per sequence; 0 for a sequence with columns.
    column : ndarray
        Concept column of each token; int32. In a sequence without delimiter, nouns have their own
        column and other tokens -1.
    feature : ndarray
        Feature of each token, 0 for a noun; int32.
    branch : ndarray
        Dendritic branch of each token; uint8.
    occurrence : ndarray
        Index of the token's column occurrence in its sequence; uint16.
    flags : ndarray
        Per token properties by its own sentence (see `TaggedBlock`); uint8.
    surface : ndarray
        Index of a noun token's word in `surfaces`, else -1; int32.
    document, sentence : ndarray
        Origin of each sequence; int32.
    surfaces : tuple of str
        Noun words of the block.
    first_sequence : int
        Number of the block's first sequence.
    train_mask : ndarray, optional
        Mask of the tokens to which connections are trained; bool. None for all.
    """

    offsets: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    column: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    branch: npt.NDArray[np.uint8]
    occurrence: npt.NDArray[np.uint16]
    flags: npt.NDArray[np.uint8]
    surface: npt.NDArray[np.int32]
    document: npt.NDArray[np.int32]
    sentence: npt.NDArray[np.int32]
    surfaces: tuple[str, ...]
    first_sequence: int
    train_mask: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Return the number of counted sequences."""
        return len(self.status)


def encode_block(
    block: TaggedBlock,
    mapping: BlockMapping,
    specification: Specification,
) -> EncodedBlock:
    """Divide a block's sequences into columns and number its tokens' branches.

    Parameters
    ----------
    block : TaggedBlock
        Tokens with block-local symbols.
    mapping : BlockMapping
        Identifiers and stored flags from the ordered merge.
    specification : Specification
        Its rules for columns and branches.

    Returns
    -------
    EncodedBlock
        The first ``mapping.sequences`` sequences. The result does not depend on the division of the text into
        blocks.
    """
    count = mapping.sequences
    tokens = int(block.offsets[count])
    offsets = block.offsets[: count + 1]
    noun = block.noun[:tokens]
    symbol = block.symbol[:tokens]
    sequence = np.repeat(np.arange(count), np.diff(offsets))
    concept = np.full(tokens, UNASSIGNED, np.int32)
    concept[noun] = mapping.concepts[symbol[noun]]
    feature = np.zeros(tokens, np.int32)
    feature[~noun] = mapping.features[symbol[~noun]]
    boundary, failed = _boundaries(
        _stored_flags(block, mapping, sequence), noun, sequence, specification.invented_boundaries
    )
    status = block.status[:count].copy()
    status[failed] = NO_DELIMITER
    occurrence = _occurrences(boundary, sequence, offsets)
    divided = status[sequence] == CANDIDATE
    column = np.where(divided, _columns(concept, noun, occurrence, sequence), concept)
    neuron = (column.astype(np.int64) << FEATURE_BITS) | feature
    branch_of = hash_branches if specification.branch_order == "random" else number_branches
    document = block.document[:count]
    sentence = block.sentence[:count].copy()
    if mapping.first_sentence and count:
        sentence[document == block.document_sentences[0][0]] += mapping.first_sentence
    return EncodedBlock(
        offsets=offsets.copy(),
        status=status,
        column=column.astype(np.int32),
        feature=feature,
        branch=branch_of(neuron, sequence, specification.branches),
        occurrence=np.where(divided, occurrence, 0).astype(np.uint16),
        flags=block.flags[:tokens].copy(),
        surface=block.surface[:tokens].copy(),
        document=document.copy(),
        sentence=sentence,
        surfaces=block.surfaces,
        first_sequence=mapping.first_sequence,
    )


def _stored_flags(
    block: TaggedBlock, mapping: BlockMapping, sequence: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks of the delimiters and of the probable delimiters among the tokens."""
    tokens = len(sequence)
    if block.own_flags:
        flags = block.flags[:tokens]
        return (flags & DELIMITER) != 0, (flags & PROBABLE) != 0
    other, symbol = ~block.noun[:tokens], block.symbol[:tokens]
    delimiter = np.zeros(tokens, np.bool_)
    delimiter[other] = mapping.delimiter[symbol[other]]
    since = np.full(tokens, -1, np.int64)
    since[other] = mapping.probable_since[symbol[other]]
    return delimiter, (since >= 0) & (since <= mapping.first_sequence + sequence)


def _boundaries(
    flags: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    noun: npt.NDArray[np.bool_],
    sequence: npt.NDArray[np.int64],
    invented: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the boundary tokens and the sequences that lack one.

    The boundary between two neighbouring nouns is the rightmost delimiter, else the rightmost probable
    delimiter, else, with `invented`, the last token before the right noun.
    """
    delimiter, probable = flags
    tokens = len(noun)
    position = np.arange(tokens)
    last_delimiter = np.maximum.accumulate(np.where(delimiter, position, -1)) if tokens else position
    last_probable = np.maximum.accumulate(np.where(probable, position, -1)) if tokens else position
    nouns = np.flatnonzero(noun)
    left, right = nouns[:-1], nouns[1:]
    same = sequence[left] == sequence[right]
    left, right = left[same], right[same]
    found = np.where(last_delimiter[right] > left, last_delimiter[right], last_probable[right])
    missing = found <= left
    if invented:
        found[missing] = right[missing] - 1
        missing[:] = False
    return found[~missing], np.unique(sequence[left[missing]])


def _occurrences(
    boundary: npt.NDArray[np.int64], sequence: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the column occurrence of each token; a boundary is the last token of its column."""
    ends = np.zeros(len(sequence) + 1, np.int64)
    ends[boundary + 1] = 1
    total = np.cumsum(ends[:-1])
    return total - total[offsets[:-1][sequence]] if len(sequence) else total


def _columns(
    concept: npt.NDArray[np.int32],
    noun: npt.NDArray[np.bool_],
    occurrence: npt.NDArray[np.int64],
    sequence: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """Return each token's column: the concept of the only noun of its column occurrence."""
    if len(concept) == 0:
        return concept
    starts = np.ones(len(concept), np.bool_)
    starts[1:] = (np.diff(sequence) != 0) | (np.diff(occurrence) != 0)
    group = np.cumsum(starts) - 1
    of_group = np.full(int(group[-1]) + 1, UNASSIGNED, np.int32)
    of_group[group[noun]] = concept[noun]
    columns: npt.NDArray[np.int32] = of_group[group]
    return columns


def number_branches(
    neuron: npt.NDArray[np.int64], sequence: npt.NDArray[np.int64], branches: int
) -> npt.NDArray[np.uint8]:
    """Return the number of earlier tokens of the same neuron in the same sequence (rule 5).

    Parameters
    ----------
    neuron : ndarray of int64
        Neuron key of each token.
    sequence : ndarray of int64
        Sequence of each token, ascending.
    branches : int
        Number of branches; the result is at most ``branches - 1``.

    Returns
    -------
    ndarray of uint8

    Examples
    --------
    >>> number_branches(np.array([5, 7, 5, 5, 5]), np.array([0, 0, 0, 0, 1]), 2).tolist()
    [0, 0, 1, 1, 0]
    """
    if len(neuron) == 0:
        return np.zeros(0, np.uint8)
    order = np.argsort(neuron, kind="stable")
    same = (np.diff(neuron[order]) == 0) & (np.diff(sequence[order]) == 0)
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    branch = np.empty(len(order), np.uint8)
    branch[order] = np.minimum(rank, branches - 1)
    return branch


def hash_branches(
    neuron: npt.NDArray[np.int64], sequence: npt.NDArray[np.int64], branches: int
) -> npt.NDArray[np.uint8]:
    """Assign each token a branch by a hash of its sequence's neurons and its position.

    Parameters
    ----------
    neuron, sequence, branches
        See `number_branches`.

    Returns
    -------
    ndarray of uint8
        Equal for equal sequences, independent of preceding text.

    Examples
    --------
    >>> twice = hash_branches(np.array([5, 7, 5, 5, 7, 5]), np.array([0, 0, 0, 1, 1, 1]), 64)
    >>> (twice[:3] == twice[3:]).all(), len(set(twice[:3].tolist()))
    (np.True_, 3)
    """
    if len(neuron) == 0:
        return np.zeros(0, np.uint8)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(sequence) != 0]))
    lengths = np.diff(np.append(starts, len(neuron)))
    place = (np.arange(len(neuron)) - np.repeat(starts, lengths)).astype(np.uint64)
    each = _mix(neuron.astype(np.uint64) + _mix(place))
    # Sums of uint64 wrap around, so they do not depend on the order of addition.
    whole = np.add.reduceat(each, starts)
    return (_mix(np.repeat(_mix(whole), lengths) + place) % np.uint64(branches)).astype(np.uint8)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def places_of(block: EncodedBlock) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
    """Return sequence and position of each trained token of a block, and which tokens of the block these are."""
    lengths = np.diff(block.offsets)
    trained = np.repeat(block.status == CANDIDATE, lengths)
    sequence = np.repeat(block.first_sequence + np.arange(len(block)), lengths)
    place = np.arange(int(block.offsets[-1])) - np.repeat(block.offsets[:-1], lengths)
    return sequence[trained], place[trained], trained


def random_block(sequences: int, seed: int = 1) -> EncodedBlock:
    """Return sequences of 25 tokens in columns of 4 with words of a Zipf distribution, for measurements.

    Examples
    --------
    >>> len(random_block(3).column)
    75
    """
    rng = np.random.default_rng(seed)
    tokens = sequences * TOKENS
    position = np.tile(np.arange(TOKENS), sequences)
    occurrence = position // 4
    concepts = np.minimum(rng.zipf(1.3, (sequences, TOKENS // 4 + 1)), CONCEPTS)
    column = concepts[np.repeat(np.arange(sequences), TOKENS), occurrence].astype(np.int32)
    # The second token of each column is its noun; the last column has one token, its noun.
    noun = (position % 4 == 1) | (position == TOKENS - 1)
    feature = np.where(noun, 0, np.minimum(rng.zipf(1.4, tokens), FEATURES)).astype(np.int32)
    sequence = np.repeat(np.arange(sequences), TOKENS)
    none = np.full(tokens, -1, np.int32)
    return EncodedBlock(
        offsets=np.arange(sequences + 1) * TOKENS,
        status=np.zeros(sequences, np.uint8),
        column=column,
        feature=feature,
        branch=number_branches((column.astype(np.int64) << 25) | feature, sequence, 2),
        occurrence=occurrence.astype(np.uint16),
        flags=(feature == 0).astype(np.uint8),
        surface=none,
        document=np.zeros(sequences, np.int32),
        sentence=np.arange(sequences, dtype=np.int32),
        surfaces=(),
        first_sequence=0,
    )
