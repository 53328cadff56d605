"""Plan the compaction of a region's runs by the logarithmic method.

A round adds one run of rank 0, and two runs of the same rank become one of the next (or four one of the next but
one). So each connection is rewritten a logarithmic number of times, and the task graph can be built without knowing
any size. `merging` merges the runs, and `splitting` splits a region that has grown too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Ranked(Protocol):
    """A run of a region, or a reference to one, that sums up about ``2 ** rank`` rounds."""

    @property
    def rank(self) -> int:
        """Its rank."""
        ...


AnyRun = TypeVar("AnyRun", bound=Ranked)


@dataclass(frozen=True)
class Compaction(Generic[AnyRun]):
    """Plan for adding a run to a region.

    Attributes
    ----------
    kept : tuple
        Runs that stay as they are, of falling rank.
    merged : tuple
        Runs to be added up into one, oldest first; a single one needs no work.
    rank : int
        Rank of the result.
    """

    kept: tuple[AnyRun, ...]
    merged: tuple[AnyRun, ...]
    rank: int


def plan_compaction(runs: tuple[AnyRun, ...], added: AnyRun, together: int = 2) -> Compaction[AnyRun]:
    """Plan how a region takes one more run, as a counter takes one more: as soon as there are enough of a rank.

    Parameters
    ----------
    runs : tuple
        The region's runs, of falling rank.
    added : Ranked
        The new run; runs of lower ranks are added up with it.
    together : int
        So many runs of a rank become one, 2 or a larger power of two: the more, the more runs a region has, and
        the less often a connection is rewritten (a third less with 4). It may differ from call to call.

    Returns
    -------
    Compaction

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Named(NamedTuple):
    ...     rank: int
    ...     name: str
    >>> plan = plan_compaction((Named(2, "a"), Named(1, "b"), Named(0, "c")), Named(0, "d"))
    >>> plan.kept, [run.name for run in plan.merged], plan.rank
    ((), ['a', 'b', 'c', 'd'], 3)
    >>> plan_compaction((Named(0, "a"), Named(0, "b")), Named(0, "c"), together=4).merged
    (Named(rank=0, name='c'),)
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
