"""Hold runs of many regions in one value of a task, so that a stage has a task for each owner, not for each region.

`tasks` has the tasks about one run, which take runs of tables as well; `table_tasks` those about whole tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

from giaann_dask.dask_types import register_arrays
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.pair_tables import PairRegionRun
from giaann_dask.runs.run import RegionRun

# Increments of a region, or sums of these that are not packed yet.
Increment: TypeAlias = RegionRun | PairRegionRun
AnyRun: TypeAlias = Increment | PackedRegionRun

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class RunTable:
    """Runs of several regions.

    Attributes
    ----------
    runs : dict of int to RegionRun, PairRegionRun or PackedRegionRun
        By region.
    """

    runs: dict[int, AnyRun]


class InTable(NamedTuple):
    """Run of a region in a table, as an argument of a task.

    Attributes
    ----------
    table : RunTable
        The table; a future of it where the task is submitted.
    region : int
        The region.
    """

    table: RunTable
    region: int

    def run(self) -> AnyRun:
        """Return the run."""
        return self.table.runs[self.region]


def takes_runs(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a task take runs of tables (`InTable`) in place of runs; use it as a decorator.

    Examples
    --------
    >>> takes_runs(lambda *runs: runs)(InTable(RunTable({3: "a run"}), 3), "another")
    ('a run', 'another')
    """

    @wraps(function)
    def called(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        found = (each.run() if isinstance(each, InTable) else each for each in arguments)
        return function(*found, **named)  # type: ignore[arg-type]

    return called
