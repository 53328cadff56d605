"""Count in how many distinct longer contexts each word followed a context of the chain, as sums over regions.

Smoothing counts a word after a context once for each longer context that it followed, and no row of counts tells
that: the longer contexts of a row are spread over all regions. But what a word was counted after a context beyond that
are its *repeats*: ``count - 1`` for each longer context. These add up over regions, and most are 0. So the counts of
each region give repeats of shorter contexts (`region_repeats`), each region adds up those of its own contexts
(`join_repeats`), and a commit stores them. A context that reaches the beginning of its sentence has no longer ones, so
no repeats, and keeps its counts.

`giaann_dask.models.contexts.context_rows` counts the same from all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, Integers, source_key
from giaann_dask.lazy import jit
from giaann_dask.models.contexts.kinds import CHAIN, EXTENDS
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run, divide_rows, narrow_strength
from giaann_dask.spec import BRANCH_BITS

# Counts that smoothing tells apart: 1, 2, 3 and 4.
SMALL_COUNTS = 4
# Source of the context without words, of which all others are extensions.
EMPTY_CONTEXT = int(source_key(0, [])[0])


class RegionRepeats(NamedTuple):
    """Repeats and small counts of one region.

    Attributes
    ----------
    repeats : dict of int to Run
        Repeats that its contexts cause, by the region of the shorter context; targets as in the counts.
    often : Run
        Its own counts of two and more that longer contexts may divide: those of the chain but for the longest.
    small : ndarray
        How many counts of 1 to `SMALL_COUNTS` each kind of the chain has that is not in `often`; int64, shape
        ``(CHAIN, SMALL_COUNTS)``.
    """

    repeats: dict[int, Run]
    often: Run
    small: Integers


def region_repeats(counts: Run, placement: Placement) -> RegionRepeats:
    """Return the repeats that the counts of a region cause.

    Parameters
    ----------
    counts : Run
        All counts of the region, merged.
    placement : Placement
        Assigns contexts to regions.
    """
    collect: Any = _collect
    small, repeated, own = collect(counts.source, counts.pointer, counts.target, counts.strength.astype(np.int64))
    repeats = _to_run(*repeated)
    return RegionRepeats(divide_rows(repeats, placement.groups_of(repeats.source)), _to_run(*own), small)


def join_repeats(region: int, parts: Sequence[RegionRepeats], own: RegionRepeats) -> tuple[Run, Integers] | None:
    """Add up the repeats of the contexts of a region.

    Parameters
    ----------
    region : int
        Which.
    parts : sequence of RegionRepeats
        Of all regions.
    own : RegionRepeats
        Of this region.

    Returns
    -------
    repeats : Run
        Repeats of its contexts; strengths are positive.
    small : ndarray
        How many words have 1 to `SMALL_COUNTS` continuations, by kind of the chain, as `RegionRepeats.small`.

    None where a word has more repeats than counts, as two contexts have one key by chance, or counts were forged.
    """
    repeats = merge_runs([part.repeats[region] for part in parts if region in part.repeats])
    gone = Run(repeats.source, repeats.pointer, repeats.target, -repeats.strength.astype(np.int64))
    often = Run(own.often.source, own.often.pointer, own.often.target, own.often.strength.astype(np.int64))
    left = merge_runs([often, gone]) if len(gone) else often
    small = own.small.copy()
    kind, found = left.target >> SEGMENT_SHIFT, left.strength
    if int(found[kind > 0].min(initial=1)) < 1:
        return None
    for length in range(CHAIN):
        of_kind = found[(kind == length + 1) & (found <= SMALL_COUNTS)].astype(np.int64)
        small[length] += np.bincount(np.maximum(of_kind, 0), minlength=SMALL_COUNTS + 1)[1:]
    return repeats, small


class ContinuationTables:
    """Rules by which a commit stores the repeats of its contexts; see `DerivedTables`."""

    def collect(self, counts: Run, placement: Placement) -> RegionRepeats:
        """See `region_repeats`."""
        return region_repeats(counts, placement)

    def join(self, region: int, parts: Sequence[Any], own: Any) -> tuple[Run, Integers] | None:
        """See `join_repeats`."""
        return join_repeats(region, parts, own)


@jit
def _collect(source, pointer, target, strength):  # type: ignore[no-untyped-def]
    """Return small counts, the repeats of shorter contexts, and the row's own counts that may be divided."""
    small = np.zeros((CHAIN, SMALL_COUNTS), np.int64)
    repeated = own = 0
    for entry in range(len(target)):
        kind = target[entry] >> SEGMENT_SHIFT
        if 1 <= kind <= CHAIN and strength[entry] > 1:
            repeated += 1
            own += kind < CHAIN
    shorter, words, more = (np.empty(repeated, np.int64), np.empty(repeated, np.int64), np.empty(repeated, np.int64))
    owner, targets, often = np.empty(own, np.int64), np.empty(own, np.int64), np.empty(own, np.int64)
    repeated = own = 0
    for row in range(len(source)):
        extended = np.int64(-1)
        for entry in range(pointer[row + 1] - 1, pointer[row] - 1, -1):
            if target[entry] >> SEGMENT_SHIFT != EXTENDS:
                break
            # The first of several, as where rows are counted at once.
            extended = (target[entry] >> BRANCH_BITS) & NEURON_MASK
        for entry in range(pointer[row], pointer[row + 1]):
            kind, count = target[entry] >> SEGMENT_SHIFT, strength[entry]
            if not 1 <= kind <= CHAIN:
                continue
            if count == 1 or (kind == CHAIN and count <= SMALL_COUNTS):
                small[kind - 1, count - 1] += 1
            if count == 1:
                continue
            if kind == 1 or extended >= 0:
                shorter[repeated] = EMPTY_CONTEXT if kind == 1 else extended
                words[repeated] = target[entry] - (np.int64(1) << SEGMENT_SHIFT)
                more[repeated] = count - 1
                repeated += 1
            if kind < CHAIN:
                owner[own], targets[own], often[own] = source[row], target[entry], count
                own += 1
    return small, (shorter[:repeated], words[:repeated], more[:repeated]), (owner, targets, often)


def _to_run(source: Integers, target: Integers, count: Integers) -> Run:
    """Return the sums of counts of pairs."""
    if not len(source):
        return Run.empty()
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    new_row = np.append(True, source[1:] != source[:-1])
    begin = np.flatnonzero(new_row | np.append(True, target[1:] != target[:-1]))
    rows = np.append(np.flatnonzero(new_row[begin]), len(begin))
    return Run(source[begin[rows[:-1]]], rows, target[begin], narrow_strength(np.add.reduceat(count[order], begin)))
