"""Compute what the lengths and columns of sequences imply for the totals of strengths of a network of columns.

Every pair of tokens adds an amount that depends on its distance alone (and on the class of its source token), so the
total on each feature segment is determined by how many sequences there are of each length, and the total on each
column segment by how many pairs of each distance lie so many columns apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.models.columns.connections import gather_batch
from giaann_dask.models.columns.scaling import class_bits, distance_bits, feature_reach, increment_table, token_classes
from giaann_dask.models.totals import GroupCounts, Totals, require, totals_of
from giaann_dask.runs.packed_rows import among
from giaann_dask.runs.run import RegionRun
from giaann_dask.spec import MAXIMUM_SEGMENTS
from giaann_dask.text.segmentation import EncodedBlock


class ColumnTotals(Totals):
    """Totals of connections by segment, from counts of pairs of tokens."""

    def count_pairs(self, blocks: Sequence[EncodedBlock]) -> tuple[tuple[int, int, int], ...]:
        """Count the pairs of tokens by column segment and increment."""
        batch, specification = gather_batch(blocks), self.specification
        columns, bits = specification.column_segments, distance_bits(specification)
        beyond = 0 if specification.column_catch_all else columns
        table = np.zeros((columns + 1, 1 << (class_bits(specification) + bits)), np.int64)
        classes = token_classes(blocks, specification) if specification.pos_factors else np.zeros(0, np.int64)
        for distance in range(specification.least_distance, int(batch.remaining.max(initial=1))):
            first = np.flatnonzero(batch.remaining > distance)
            apart = batch.occurrence[first + distance] - batch.occurrence[first]
            segment = np.where(apart < columns, columns - 1 - apart, beyond)
            index = np.full(len(first), distance)
            if len(classes):
                scaled = classes[first] if specification.pos_scope == "all" else np.where(apart == 0, 0, classes[first])
                index |= scaled << bits
            np.add.at(table, (segment, index), 1)
        return tuple((s, i, int(table[s, i])) for s, i in np.argwhere(table).tolist())

    def check_pairs(self, counts: GroupCounts) -> None:
        """See `Totals.check_pairs`."""
        longest = self.specification.longest_sequence
        require(all(length <= longest for length, _ in counts.lengths), f"sequences of at most {longest} tokens")
        implied = _implied_pairs(counts, self.specification.least_distance)
        require(self._by_distance(counts) == implied, "the pairs of tokens that its lengths have")

    def expected(self, counts: GroupCounts) -> list[int]:
        """See `Totals.expected`."""
        totals, specification = [0] * MAXIMUM_SEGMENTS, self.specification
        columns, (features, reach) = specification.column_segments, feature_reach(specification)
        increments, mask = increment_table(specification).tolist(), (1 << distance_bits(specification)) - 1
        for segment, index, number in counts.pairs:
            # A token is adjacent to itself.
            distance, strength = max(index & mask, 1), number * increments[index]
            if segment < columns:
                totals[segment] += strength
            if distance <= reach:
                totals[columns + features - min(distance, features)] += strength
        return totals

    def bound(self, tokens: int) -> int:
        """See `Totals.bound`."""
        table, bits = increment_table(self.specification), distance_bits(self.specification)
        longest = self.specification.longest_sequence
        by_distance = [int(table[distance :: 1 << bits].max()) for distance in range(longest)]
        return tokens * max(1, sum(by_distance))

    def check_keys(self, run: RegionRun, counts: GroupCounts, sizes: tuple[int, int]) -> None:
        """See `Totals.check_keys`."""
        neurons = run.neurons.source
        column, feature = unpack_neuron(neurons)
        named = int(column.max(initial=-1)) < sizes[0] and int(feature.max(initial=-1)) < sizes[1]
        require(named, "neurons with names")
        _, target, branch = unpack_target(run.connections.target)
        ends = bool(among(run.connections.source, neurons).all() and among(np.unique(target), neurons).all())
        require(ends, "connections of trained neurons alone")
        _, none, own_branch = unpack_target(run.neurons.target)
        require(not none.any(), "own strengths of neurons alone")
        for branches in (branch, own_branch):
            require(int(branches.max(initial=0)) < self.specification.branches, "branches that there are")
        self._check_own(totals_of(run.neurons), counts)

    def _by_distance(self, counts: GroupCounts) -> dict[int, int]:
        """Return the counted pairs by distance, after checking that their segments and increments exist."""
        specification = self.specification
        bits, found = distance_bits(specification), dict[int, int]()
        rows = specification.column_segments + (not specification.column_catch_all)
        indices = len(increment_table(specification))
        for segment, index, number in counts.pairs:
            distance = index & ((1 << bits) - 1)
            possible = segment < rows and index < indices and distance >= specification.least_distance
            require(possible, "pairs that there can be")
            found[distance] = found.get(distance, 0) + number
        return found

    def _check_own(self, found: Sequence[int], counts: GroupCounts) -> None:
        """Check the totals of the neurons' own strengths: every token counts, on the first segment of each kind."""
        specification = self.specification
        columns = specification.column_segments
        if specification.own_strengths == "tokens":
            expected = [0] * len(found)
            expected[specification.last_segment] = counts.tokens
            require(list(found) == expected, f"own strengths of {counts.tokens} tokens")
            return
        kinds = (found[:columns], found[columns : columns + specification.feature_segments])
        for kind in kinds:
            falling = all(a >= b for a, b in pairwise(kind))
            require(not kind or (kind[0] == counts.tokens and falling), f"own strengths of {counts.tokens} tokens")
        require(not any(found[columns + specification.feature_segments :]), "own strengths on segments that there are")


def _implied_pairs(counts: GroupCounts, least: int) -> dict[int, int]:
    """Return the pairs by distance, from the least one: a sequence of n tokens has n - d at distance d."""
    longest = max((length for length, _ in counts.lengths), default=0)
    return {
        distance: sum((length - distance) * number for length, number in counts.lengths if length > distance)
        for distance in range(least, longest)
    }
