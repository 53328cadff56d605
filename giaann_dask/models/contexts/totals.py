"""Compute what the lengths of sentences imply for the totals of counts of contexts.

Every token adds one for each context that fits into its sentence, so that lengths determine all totals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from giaann_dask.keys import unpack_target
from giaann_dask.models.contexts.continuation_counts import EMPTY_CONTEXT
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, EXTENDS, SINGLE
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.totals import GroupCounts, Totals, require
from giaann_dask.runs.packed_rows import among
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import MAXIMUM_SEGMENTS
from giaann_dask.text.segmentation import EncodedBlock


class ContextTotals(Totals):
    """Totals of counts by kind of context.

    Examples
    --------
    >>> from giaann_dask.spec import Specification
    >>> one = GroupCounts(by_status=(1, 0, 0, 0, 0), lengths=((3, 1),))
    >>> totals = ContextTotals(Specification(profile="contexts"))
    >>> totals.expected(one)[:5], totals.bound(1000)
    ([3, 3, 2, 1, 0], 3000)
    """

    def count_pairs(self, blocks: Sequence[EncodedBlock]) -> tuple[tuple[int, int, int], ...]:
        """Return no pairs: lengths are enough."""
        return ()

    def check_pairs(self, counts: GroupCounts) -> None:
        """See `Totals.check_pairs`."""
        require(not counts.pairs, "no pairs in profile contexts")

    def expected(self, counts: GroupCounts) -> list[int]:
        """See `Totals.expected`."""
        totals = [0] * MAXIMUM_SEGMENTS
        for kind in (CONTEXT_NAMES.index(name) for name in self.specification.contexts):
            totals[kind] = _fitting(counts, max((distance for _, distance in CONTEXTS[kind].parts), default=0))
        totals[EXTENDS] = sum(_fitting(counts, kind + 1) for kind in range(1, CHAIN))
        return totals

    def bound(self, tokens: int) -> int:
        """See `Totals.bound`."""
        # A context can extend a shorter one of each length, should their keys be the same by chance.
        return tokens * (CHAIN - 1)

    def check_keys(self, run: RegionRun, counts: GroupCounts, sizes: tuple[int, int]) -> None:
        """See `Totals.check_keys`."""
        require(not len(run.neurons), "no own strengths in profile contexts")
        _check_contexts(run.connections)


def _fitting(counts: GroupCounts, distance: int) -> int:
    """Return how many tokens have a context that reaches so far; the place before a sentence counts as a token."""
    return sum((length - max(distance - 1, 0)) * number for length, number in counts.lengths if length >= distance)


def _check_contexts(run: Run) -> None:
    """Check that words that follow contexts are counted by themselves, too, as often at least."""
    kind, word, branch = unpack_target(run.target)
    require(not branch.any(), "words without branches")
    row, strength = np.repeat(np.arange(run.rows), np.diff(run.pointer)), run.strength
    alone, named = kind == 0, kind != EXTENDS
    require(bool((run.source[row[alone]] == EMPTY_CONTEXT).all()), "words alone after nothing")
    words = word[alone]
    require(bool(among(np.unique(word[named]), words).all()), "words that are counted alone")
    # Sums of no more than the tokens of a group, which floats hold exactly.
    place = kind[named] * len(words) + np.searchsorted(words, word[named])
    totals = np.bincount(place, strength[named], EXTENDS * len(words)).reshape(EXTENDS, len(words))
    require(bool((totals <= totals[0]).all()), "no word more often after contexts than alone")
    # Before every token there is one, or the beginning of its sentence.
    require(bool((totals[SINGLE[1]] == totals[0]).all()), "every word after the one before it")
    longer = (kind > 1) & (kind <= CHAIN)
    counted, extending = (np.bincount(row[which], strength[which], run.rows) for which in (longer, ~named))
    require(bool((counted == extending).all()), "longer contexts that each extend a shorter one")
