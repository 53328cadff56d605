"""Regions: the growing list of a region's runs.

Covers: the logarithmic method by which a region's runs are compacted: a round adds one run of rank
0, and two runs of the same rank become one of the next, so each connection is rewritten a
logarithmic number of times and the task graph is known without knowing any size.
Does not cover: the adding itself (`merging`), which neurons belong to a region (`placement`), where
one that has grown too large is split (`splitting`) and which worker holds it
(`giaann_dask.training`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Handle = TypeVar("Handle")


@dataclass(frozen=True)
class RankedRun(Generic[Handle]):
    """A run of a region, by whatever stands for it (a value, a future, a stored identity).

    Attributes
    ----------
    rank : int
        The run holds about ``2 ** rank`` rounds.
    handle : Handle
        What stands for the run.
    """

    rank: int
    handle: Handle


@dataclass(frozen=True)
class Compaction(Generic[Handle]):
    """What adding a run to a region asks for.

    Attributes
    ----------
    kept : tuple of RankedRun
        Runs that stay as they are, of falling rank.
    merged : tuple of Handle
        Runs to be added up into one, oldest first; a single one needs no work.
    rank : int
        Rank of the result.
    """

    kept: tuple[RankedRun[Handle], ...]
    merged: tuple[Handle, ...]
    rank: int


def plan_compaction(runs: tuple[RankedRun[Handle], ...], added: Handle) -> Compaction[Handle]:
    """Plan how a region takes one more run, as a binary counter takes one more bit.

    Parameters
    ----------
    runs : tuple of RankedRun
        The region's runs, of falling rank.
    added : Handle
        The new run, of rank 0.

    Returns
    -------
    Compaction

    Examples
    --------
    >>> plan = plan_compaction((RankedRun(2, "a"), RankedRun(1, "b"), RankedRun(0, "c")), "d")
    >>> plan.kept, plan.merged, plan.rank
    ((), ('a', 'b', 'c', 'd'), 3)
    """
    kept, rank = list(runs), 0
    merged = [added]
    while kept and kept[-1].rank <= rank:
        top = kept.pop()
        merged.insert(0, top.handle)
        rank = max(rank, top.rank) + 1
    return Compaction(tuple(kept), tuple(merged), rank)
