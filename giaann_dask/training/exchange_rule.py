"""Choose how the increments of a round reach regions: a task for each region and batch, or one for each worker.

The choice follows the number of tasks, of which a scheduler does about 900 in a second. Nothing of a cluster is needed
to make it, so that it can be planned; both ways give the same network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Exchange = Literal["auto", "tasks", "workers"]
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)

TASKS_PER_S = 900.0
"""Tasks that Dask's scheduler does in a second, as measured."""
# Of the scheduler's time, for the tasks of regions; the rest is for encoding, counting and commits.
_SHARE = 0.25
# Every eighth round of a region makes a sum, every eighth sum another one, with a task that measures each.
_SUMS = 2 / 7


@dataclass(frozen=True, kw_only=True)
class RoundShape:
    """Batches, owners and regions that a round touches.

    Attributes
    ----------
    batches : int
        Batches, or sums of accumulated batches.
    owners : int
        Workers that own regions which it touches.
    regions : int
        Regions that it touches.
    routes : int
        Pairs of a batch and an owner whose regions it touches.
    """

    batches: int
    owners: int
    regions: int
    routes: int

    @classmethod
    def full(cls, batches: int, owners: int, regions: int) -> RoundShape:
        """Return the shape of a round whose batches touch all regions.

        Examples
        --------
        >>> RoundShape.full(2, 4, 8).routes
        8
        """
        owners = min(owners, regions)
        return cls(batches=batches, owners=owners, regions=regions, routes=batches * owners)


def expected_tasks(shape: RoundShape, exchange: Exchange) -> float:
    """Return about how many tasks a round has, sums of earlier rounds included.

    Parameters
    ----------
    shape : RoundShape
        What it touches.
    exchange : {"tasks", "workers"}
        By which way.

    Examples
    --------
    >>> thousand = RoundShape.full(2, 2, 1024)
    >>> round(expected_tasks(thousand, "tasks")), round(expected_tasks(thousand, "workers"))
    (1328, 15)
    """
    counting = 2 * shape.batches + 1
    between = shape.owners > 1
    if exchange == "workers":
        # Where rounds touch different regions, each owner may have a sum to make in each of them.
        return counting + between * shape.batches + 4 * shape.owners
    return counting + between * shape.routes + shape.owners + (1 + _SUMS) * shape.regions


def choose_exchange(wanted: Exchange, shape: RoundShape, seconds: float = 1.0) -> Exchange:
    """Return the way of a round.

    Parameters
    ----------
    wanted : {"auto", "tasks", "workers"}
        With ``"auto"`` a choice is made, else this is returned.
    shape : RoundShape
        What it touches.
    seconds : float
        How long its batches take to count; rounds of default size take about a second.

    Returns
    -------
    {"tasks", "workers"}
        By workers where tasks would take more than a quarter of the scheduler's time, and workers less than half of
        these tasks.

    Examples
    --------
    >>> choose_exchange("auto", RoundShape.full(2, 2, 8)), choose_exchange("auto", RoundShape.full(2, 2, 1024))
    ('tasks', 'workers')
    >>> choose_exchange("auto", RoundShape.full(100, 100, 400))
    'workers'
    """
    if wanted != "auto":
        return wanted
    tasks, workers = expected_tasks(shape, "tasks"), expected_tasks(shape, "workers")
    return "workers" if tasks > _SHARE * TASKS_PER_S * seconds and workers < tasks / 2 else "tasks"
