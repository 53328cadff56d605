"""What stands for the runs of a network on a cluster.

Covers: a run by its future, and all runs as of some round. Does not cover: how they come about (`regions`) and how
they are committed (`committing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from distributed import Future

from giaann_dask.network.placement import Split
from giaann_dask.network.region import RankedRun


@dataclass(frozen=True, eq=False)
class RunHandle:
    """A run of a region on the cluster.

    Attributes
    ----------
    identity : str
        Name in the store: region and the rounds it sums up.
    future : Future
        Its value, a `RegionRun` or a `PackedRegionRun`.
    size : Future
        Its `RunSize`.
    first_round, last_round : int
        The rounds it sums up.
    stored : bool
        Whether a commit holds it.
    packed : bool
        Whether its value is the encoded form.
    """

    identity: str
    future: Future
    size: Future
    first_round: int
    last_round: int
    stored: bool = False
    packed: bool = False


Runs = tuple[RankedRun[RunHandle], ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The runs of all regions as of some round.

    Attributes
    ----------
    runs : dict of int to Runs
        By live region.
    rounds : int
        Rounds that the network has seen by then.
    splits : tuple of Split
        Of the regions by then.
    """

    runs: dict[int, Runs]
    rounds: int
    splits: tuple[Split, ...]

    def handles(self) -> list[tuple[int, RankedRun[RunHandle]]]:
        """Return region and run of every run."""
        return [(region, run) for region, runs in self.runs.items() for run in runs]
