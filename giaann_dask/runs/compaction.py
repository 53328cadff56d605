"""Plan the compaction of a region's runs by the logarithmic method.

A round adds one run of rank 0, and two runs of the same rank become one of the next (or four one of the next but
one). So each connection is rewritten a logarithmic number of times, and the task graph can be built without knowing
any size. `merging` merges the runs, and `splitting` splits a region that has grown too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Handle = TypeVar("Handle")


@dataclass(frozen=True)
class RankedRun(Generic[Handle]):
    """A run of a region, by a handle (a value, a future, a stored identity).

    Attributes
    ----------
    rank : int
        The run has the sums of about ``2 ** rank`` rounds.
    handle : Handle
        Value of the run, or a reference to it.
    """

    rank: int
    handle: Handle


@dataclass(frozen=True)
class Compaction(Generic[Handle]):
    """Plan for adding a run to a region.

    Attributes
    ----------
    kept : tuple of RankedRun
        Runs that stay as they are, of falling rank.
    merged : tuple of RankedRun
        Runs to be merged into one, oldest first; a single one needs no work.
    rank : int
        Rank of the result.
    """

    kept: tuple[RankedRun[Handle], ...]
    merged: tuple[RankedRun[Handle], ...]
    rank: int


def plan_compaction(
    runs: tuple[RankedRun[Handle], ...], added: RankedRun[Handle], together: int = 2
) -> Compaction[Handle]:
    """Plan the merges when a run is added to a region, like the carries of a counter: as soon as a rank is full.

    Parameters
    ----------
    runs : tuple of RankedRun
        The region's runs, of falling rank.
    added : RankedRun
        The new run; runs of lower ranks are merged with it.
    together : int
        So many runs of a rank become one, 2 or a larger power of two: the more, the more runs a region has, and
        the less often a connection is rewritten (a third less with 4). It may differ from call to call.

    Returns
    -------
    Compaction

    Examples
    --------
    >>> plan = plan_compaction((RankedRun(2, "a"), RankedRun(1, "b"), RankedRun(0, "c")), RankedRun(0, "d"))
    >>> plan.kept, [run.handle for run in plan.merged], plan.rank
    ((), ['a', 'b', 'c', 'd'], 3)
    >>> plan_compaction((RankedRun(0, "a"), RankedRun(0, "b")), RankedRun(0, "c"), together=4).merged
    (RankedRun(rank=0, handle='c'),)
    """
    assert together.bit_count() == 1 < together, "a power of two"
    rank = added.rank
    kept = sum(run.rank >= rank for run in runs)
    while True:
        same = sum(run.rank <= rank for run in runs[:kept])
        # The result of the merges so far counts as one run of its rank.
        if same + 1 < together:
            return Compaction(runs[:kept], (*runs[kept:], added), rank)
        rank += together.bit_length() - 1
        # Also the runs of ranks between, which another number of runs has left there.
        kept = sum(run.rank >= rank for run in runs[:kept])
