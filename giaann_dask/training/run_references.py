"""What stands for the runs of a network on a cluster.

Covers: a run by its future, one that is in the store and not in memory, and all runs as of some round. Does not
cover: how they come about (`regions`) and how they are committed (`committing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from distributed import Future

from giaann_dask.cluster import results
from giaann_dask.runs.compaction import RankedRun
from giaann_dask.runs.placement import Split
from giaann_dask.training.tasks import RunSize


class StoredValue:
    """The value of a run that is in the store: a worker reads it when something needs it for the first time.

    So what a training adds to a network costs what it touches of it, not what the network has.

    Parameters
    ----------
    read : callable
        Submits the task that reads it.
    """

    def __init__(self, read: Callable[[], Future]) -> None:
        self._read = read
        self._future: Future | None = None

    @property
    def held(self) -> bool:
        """Whether a worker holds it, or is about to."""
        return self._future is not None

    def unread(self) -> StoredValue:
        """Return the same value, held by no worker on this one's account."""
        return StoredValue(self._read)

    def future(self) -> Future:
        """Return the value, and have it read if it has not been."""
        if self._future is None:
            self._future = self._read()
        return self._future


Runs: TypeAlias = "tuple[RankedRun[RunHandle], ...]"


@dataclass(frozen=True, eq=False)
class RunHandle:
    """A run of a region on the cluster.

    Attributes
    ----------
    identity : str
        Name in the store: region and the rounds it sums up.
    value : Future or StoredValue
        A `RegionRun` or a `PackedRegionRun`.
    size : Future or RunSize
        Its size.
    first_round, last_round : int
        The rounds it sums up.
    stored : bool
        Whether a commit holds it.
    packed : bool
        Whether its value is the encoded form.
    leaves : tuple of RankedRun
        Stored runs that it adds up, if all that it adds up is stored: what a commit takes while it is not there.
    """

    identity: str
    value: Future | StoredValue
    size: Future | RunSize
    first_round: int
    last_round: int
    stored: bool = False
    packed: bool = False
    leaves: Runs = ()

    @property
    def settled(self) -> bool:
        """Whether all that it adds up is in the store."""
        return self.stored or bool(self.leaves)

    @property
    def future(self) -> Future:
        """Its value, which is read from now on if it was in the store only."""
        return self.value.future() if isinstance(self.value, StoredValue) else self.value

    @property
    def held(self) -> bool:
        """Whether a worker holds its value, or is about to."""
        return not isinstance(self.value, StoredValue) or self.value.held

    @property
    def measured(self) -> bool:
        """Whether its size is known without waiting."""
        return isinstance(self.size, RunSize) or self.size.done()


@dataclass(frozen=True)
class CountedRuns:
    """How many distinct neurons and connections some runs of a region have together.

    Attributes
    ----------
    identities : frozenset of str
        Of the runs.
    neurons, connections : int
        What they have.
    """

    identities: frozenset[str]
    neurons: int
    connections: int


def leaves_of(runs: Runs) -> Runs:
    """Return the stored runs that some runs add up, without keeping them in memory; none if one is not settled."""
    if not all(run.handle.settled for run in runs):
        return ()
    return tuple(leaf for run in runs for leaf in run.handle.leaves or (_unread(run),))


def _unread(run: RankedRun[RunHandle]) -> RankedRun[RunHandle]:
    value = run.handle.value
    assert isinstance(value, StoredValue), "a stored run can be read again"
    return replace(run, handle=replace(run.handle, value=value.unread()))


def to_commit(run: RankedRun[RunHandle], awaited: Set[str]) -> Runs:
    """Return a run, or what it adds up if that is in the store, the run is not there, and no commit awaits it."""
    handle = run.handle
    return handle.leaves if handle.leaves and handle.identity not in awaited and not handle.future.done() else (run,)


def sizes_of(handles: Sequence[RunHandle]) -> list[RunSize]:
    """Return the sizes of runs, and wait for those that are not known yet."""
    found = iter(results([handle.size for handle in handles if isinstance(handle.size, Future)]))
    return [handle.size if isinstance(handle.size, RunSize) else next(found) for handle in handles]


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
