"""Compute what the lengths and columns of sequences imply for the totals of strengths, and compare runs with it.

Every pair of tokens adds an amount that depends on its distance alone (and on the class of its source token), so the
total on each feature segment is determined by how many sequences there are of each length, and the total on each
column segment by how many pairs of each distance lie so many columns apart. In profile ``best`` every token adds one
for each context that fits into its sentence, so that lengths determine all totals. Strengths that are moved from one
connection to another one of the same segment are not found here, only by counting the text again
(`giaann_dask.islands.counting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from giaann_dask.errors import BundleError
from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.models.columns.connections import SequenceBatch, gather_batch
from giaann_dask.models.columns.pairs import feature_reach
from giaann_dask.models.columns.scaling import class_bits, distance_bits, increment_table, token_classes
from giaann_dask.models.contexts.continuation_counts import EMPTY_CONTEXT
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, EXTENDS, SINGLE
from giaann_dask.runs.packed_rows import among
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import MAXIMUM_SEGMENTS, Specification
from giaann_dask.spec_profiles import CONTEXT_NAMES
from giaann_dask.text.blocks import CANDIDATE, STATUS_NAMES
from giaann_dask.text.segmentation import EncodedBlock

_HALF = 32
# Sequences of a group at most, and tokens: its text is counted in the memory of one worker.
_MOST = 1 << 31
LARGEST_STRENGTH = (1 << 63) - 1
"""Strength units that a connection can have."""


@dataclass(frozen=True, kw_only=True)
class GroupCounts:
    """Counts of a group of parts of text, which determine the totals of its strengths.

    Attributes
    ----------
    by_status : tuple of int
        Counted sequences by status, in the order of `giaann_dask.text.blocks.STATUS_NAMES`.
    lengths : tuple of (int, int)
        Length in tokens, ascending, and number of the trained sequences of that length.
    pairs : tuple of (int, int, int)
        Column segment (the number of column segments where a pair lies too far apart for any), index of the increment
        in `giaann_dask.models.columns.scaling.increment_table`, and number of such pairs of tokens; ascending. Empty in
        profile ``best``.
    """

    by_status: tuple[int, ...]
    lengths: tuple[tuple[int, int], ...]
    pairs: tuple[tuple[int, int, int], ...] = ()

    @property
    def sequences(self) -> int:
        """Counted sequences, trained or not."""
        return sum(self.by_status)

    @property
    def tokens(self) -> int:
        """Tokens of the trained sequences."""
        return sum(length * number for length, number in self.lengths)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> GroupCounts:
        """Rebuild stored counts; raise a ValueError, TypeError or KeyError where they are none."""
        by_status = tuple(stored["by_status"])
        lengths, pairs = (tuple(map(tuple, stored[name])) for name in ("lengths", "pairs"))
        rows: Sequence[tuple[int, ...]] = [by_status, *lengths, *pairs]
        if any(type(value) is not int or not 0 <= value < 1 << 48 for row in rows for value in row):
            raise ValueError("numbers of another kind")
        intact = len(by_status) == len(STATUS_NAMES) and all(row[-1] for row in (*lengths, *pairs))
        intact = intact and {*map(len, lengths)} <= {2} and {*map(len, pairs)} <= {3}
        ascending = all(a[:-1] < b[:-1] for rows in (lengths, pairs) for a, b in pairwise(rows))
        if not (intact and ascending and all(length >= 1 for length, *_ in lengths)):
            raise ValueError("counts that contradict each other")
        return cls(by_status=by_status, lengths=lengths, pairs=pairs)


def count_group(blocks: Sequence[EncodedBlock], specification: Specification) -> GroupCounts:
    """Count the sequences of blocks by status and length, and their pairs of tokens by distance and columns."""
    status = np.concatenate([block.status for block in blocks])
    lengths = np.concatenate([np.diff(block.offsets)[block.status == CANDIDATE] for block in blocks])
    by_status = tuple(np.bincount(status, minlength=len(STATUS_NAMES)).tolist())
    of_length = np.bincount(lengths)
    found = tuple((length, int(of_length[length])) for length in np.flatnonzero(of_length).tolist())
    pairs = _count_pairs(gather_batch(blocks), blocks, specification) if specification.has_columns else ()
    return GroupCounts(by_status=by_status, lengths=found, pairs=pairs)


def _count_pairs(
    batch: SequenceBatch, blocks: Sequence[EncodedBlock], specification: Specification
) -> tuple[tuple[int, int, int], ...]:
    """Count the pairs of tokens by column segment and increment."""
    columns, bits = specification.column_segments, distance_bits(specification)
    beyond = 0 if specification.column_catch_all else columns
    table = np.zeros((columns + 1, 1 << (class_bits(specification) + bits)), np.int64)
    classes = token_classes(blocks, specification) if specification.pos_factors else np.zeros(0, np.int64)
    for distance in range(1, int(batch.remaining.max(initial=1))):
        first = np.flatnonzero(batch.remaining > distance)
        apart = batch.occurrence[first + distance] - batch.occurrence[first]
        segment = np.where(apart < columns, columns - 1 - apart, beyond)
        index = np.full(len(first), distance)
        if len(classes):
            scaled = classes[first] if specification.pos_scope == "all" else np.where(apart == 0, 0, classes[first])
            index |= scaled << bits
        np.add.at(table, (segment, index), 1)
    return tuple((s, i, int(table[s, i])) for s, i in np.argwhere(table).tolist())


def check_counts(counts: GroupCounts, sequences: int, specification: Specification) -> None:
    """Check that the counts of a group agree with each other and with the sequences in its ledger.

    Raises
    ------
    BundleError
        If they do not.
    """
    _require(max(counts.sequences, counts.tokens) < _MOST, f"less than {_MOST:,} sequences and tokens")
    _require(counts.sequences == sequences, "as many sequences as its ledger has")
    _require(sum(number for _, number in counts.lengths) == counts.by_status[CANDIDATE], "a length for each sequence")
    if not specification.has_columns:
        _require(not counts.pairs, "no pairs in profile best")
        return
    longest = specification.longest_sequence
    _require(all(length <= longest for length, _ in counts.lengths), f"sequences of at most {longest} tokens")
    _require(_by_distance(counts, specification) == _implied_pairs(counts), "the pairs of tokens that its lengths have")


def _by_distance(counts: GroupCounts, specification: Specification) -> dict[int, int]:
    """Return the counted pairs by distance, after checking that their segments and increments exist."""
    bits, found = distance_bits(specification), dict[int, int]()
    rows = specification.column_segments + (not specification.column_catch_all)
    indices = len(increment_table(specification))
    for segment, index, number in counts.pairs:
        distance = index & ((1 << bits) - 1)
        _require(segment < rows and index < indices and distance > 0, "pairs that there can be")
        found[distance] = found.get(distance, 0) + number
    return found


def _implied_pairs(counts: GroupCounts) -> dict[int, int]:
    """Return the pairs by distance: a sequence of n tokens has n - d at distance d."""
    longest = max((length for length, _ in counts.lengths), default=0)
    return {
        distance: sum((length - distance) * number for length, number in counts.lengths if length > distance)
        for distance in range(1, longest)
    }


def expected_totals(counts: GroupCounts, specification: Specification) -> list[int]:
    """Return the total strength of all connections of a group by segment.

    Parameters
    ----------
    counts : GroupCounts
        Checked by `check_counts`.
    specification : Specification
        Segment layout and increments, or the counted contexts.

    Returns
    -------
    list of int
        Strength units, one for each of `MAXIMUM_SEGMENTS` segments.

    Examples
    --------
    >>> one = GroupCounts(by_status=(1, 0, 0, 0, 0), lengths=((3, 1),))
    >>> expected_totals(one, Specification(profile="best"))[:5]
    [3, 3, 2, 1, 0]
    """
    totals = [0] * MAXIMUM_SEGMENTS
    if not specification.has_columns:
        for kind in (CONTEXT_NAMES.index(name) for name in specification.contexts):
            totals[kind] = _fitting(counts, max((distance for _, distance in CONTEXTS[kind].parts), default=0))
        totals[EXTENDS] = sum(_fitting(counts, kind + 1) for kind in range(1, CHAIN))
        return totals
    columns, (features, reach) = specification.column_segments, feature_reach(specification)
    increments, mask = increment_table(specification).tolist(), (1 << distance_bits(specification)) - 1
    for segment, index, number in counts.pairs:
        distance, strength = index & mask, number * increments[index]
        if segment < columns:
            totals[segment] += strength
        if distance <= reach:
            totals[columns + features - min(distance, features)] += strength
    return totals


def strength_bound(tokens: int, specification: Specification) -> int:
    """Return strength units that no connection and no neuron of a network of so many trained tokens exceeds.

    Examples
    --------
    >>> strength_bound(1000, Specification(profile="best"))
    3000
    """
    if not specification.has_columns:
        # A context can extend a shorter one of each length, should their keys be the same by chance.
        return tokens * (CHAIN - 1)
    table, bits = increment_table(specification), distance_bits(specification)
    by_distance = [int(table[distance :: 1 << bits].max()) for distance in range(specification.longest_sequence)]
    return tokens * max(1, sum(by_distance))


def _fitting(counts: GroupCounts, distance: int) -> int:
    """Return how many tokens have a context that reaches so far; the place before a sentence counts as a token."""
    return sum((length - max(distance - 1, 0)) * number for length, number in counts.lengths if length >= distance)


def check_run(run: RegionRun, counts: GroupCounts, specification: Specification, sizes: tuple[int, int]) -> None:
    """Check the keys, strengths and totals of a group's increments.

    Parameters
    ----------
    run : RegionRun
        Increments of the whole group.
    counts : GroupCounts
        Checked by `check_counts`.
    specification : Specification
        Of the network.
    sizes : tuple of (int, int)
        Concepts and features, with the prime concept feature.

    Raises
    ------
    BundleError
        If they are not what some text of these counts could give.
    """
    for table in (run.connections, run.neurons):
        _require(not len(table) or int(table.strength.min()) > 0, "positive strengths")
        _require(bool(np.all(np.diff(table.pointer) > 0)), "neurons that have connections")
    totals = expected_totals(counts, specification)
    _require(_totals_of(run.connections) == totals, f"totals of strengths by segment {_named(totals)}")
    if not specification.has_columns:
        _require(not len(run.neurons), "no own strengths in profile best")
        _check_contexts(run.connections, specification)
        return
    neurons = run.neurons.source
    column, feature = unpack_neuron(neurons)
    _require(int(column.max(initial=-1)) < sizes[0] and int(feature.max(initial=-1)) < sizes[1], "neurons with names")
    _, target, branch = unpack_target(run.connections.target)
    ends = bool(among(run.connections.source, neurons).all() and among(np.unique(target), neurons).all())
    _require(ends, "connections of trained neurons alone")
    _, none, own_branch = unpack_target(run.neurons.target)
    _require(not none.any(), "own strengths of neurons alone")
    for branches in (branch, own_branch):
        _require(int(branches.max(initial=0)) < specification.branches, "branches that there are")
    _check_own(_totals_of(run.neurons), counts, specification)


def _check_contexts(run: Run, specification: Specification) -> None:
    """Check that words that follow contexts are counted by themselves, too, as often at least."""
    kind, word, branch = unpack_target(run.target)
    _require(not branch.any(), "words without branches")
    row, strength = np.repeat(np.arange(run.rows), np.diff(run.pointer)), run.strength
    alone, named = kind == 0, kind != EXTENDS
    _require(bool((run.source[row[alone]] == EMPTY_CONTEXT).all()), "words alone after nothing")
    words = word[alone]
    _require(bool(among(np.unique(word[named]), words).all()), "words that are counted alone")
    # Sums of no more than the tokens of a group, which floats hold exactly.
    place = kind[named] * len(words) + np.searchsorted(words, word[named])
    totals = np.bincount(place, strength[named], EXTENDS * len(words)).reshape(EXTENDS, len(words))
    _require(bool((totals <= totals[0]).all()), "no word more often after contexts than alone")
    # Before every token there is one, or the beginning of its sentence.
    _require(bool((totals[SINGLE[1]] == totals[0]).all()), "every word after the one before it")
    longer = (kind > 1) & (kind <= CHAIN)
    counted, extending = (np.bincount(row[which], strength[which], run.rows) for which in (longer, ~named))
    _require(bool((counted == extending).all()), "longer contexts that each extend a shorter one")


def _check_own(found: Sequence[int], counts: GroupCounts, specification: Specification) -> None:
    """Check the totals of the neurons' own strengths: every token counts, on the first segment of each kind."""
    columns = specification.column_segments
    if specification.own_strengths == "tokens":
        expected = [0] * len(found)
        expected[specification.last_segment] = counts.tokens
        _require(list(found) == expected, f"own strengths of {counts.tokens} tokens")
        return
    kinds = (found[:columns], found[columns : columns + specification.feature_segments])
    for kind in kinds:
        falling = all(a >= b for a, b in pairwise(kind))
        _require(not kind or (kind[0] == counts.tokens and falling), f"own strengths of {counts.tokens} tokens")
    _require(not any(found[columns + specification.feature_segments :]), "own strengths on segments that there are")


def _totals_of(run: Run) -> list[int]:
    """Return the total strength by segment, exactly: sums of halves cannot overflow."""
    segment = unpack_target(run.target)[0]
    strength = run.strength.astype(np.int64)
    totals = np.zeros((2, MAXIMUM_SEGMENTS), np.int64)
    np.add.at(totals[0], segment, strength >> _HALF)
    np.add.at(totals[1], segment, strength & ((1 << _HALF) - 1))
    return [(high << _HALF) + low for high, low in totals.T.tolist()]


def _named(totals: Sequence[int]) -> str:
    return ", ".join(f"{segment}: {total}" for segment, total in enumerate(totals) if total)


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise BundleError("increments that no text gives", expected)
