"""Hold the runs of a network on a cluster, whose values are futures or are read from the store when needed.

`RegionRuns` has references to those of all regions; `regions` decides which are made and replaced, and `committing`
commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, cast

from distributed import Future

from giaann_dask.cluster import results
from giaann_dask.events import RegionMeasured
from giaann_dask.runs.placement import Split
from giaann_dask.runs.run import RunSize
from giaann_dask.training.tasks import InTable, RunTable

Runs: TypeAlias = "tuple[RunReference, ...]"


@dataclass(frozen=True, eq=False)
class PendingSize:
    """Size of a run that is being measured together with others.

    Attributes
    ----------
    measured : Future
        The `RunSize` of each of these runs.
    place : int
        Place of this one among them.
    """

    measured: Future
    place: int = 0


@dataclass(eq=False)
class RunReference:
    """Reference to a run of a region.

    Nothing changes in it but `value`, which is set when a stored run is read for the first time. So what a training
    adds to a network costs what it touches of it, not the size of the network.

    Attributes
    ----------
    region : int
        Which.
    first_round, last_round : int
        The rounds that it sums up.
    rank : int
        It sums up about ``2 ** rank`` rounds.
    size : PendingSize or RunSize
        Its size.
    value : Future or None
        A `RegionRun` or a `PackedRegionRun`; None for a stored run that has not been read.
    read : callable or None
        Submits the task that reads a stored run.
    packed : bool
        Whether its value is the encoded form.
    inputs : tuple of RunReference
        Stored runs that it adds up, if all that it adds up is stored: a commit takes these until its value is computed.
    together : int
        Regions of the table that is its value (`giaann_dask.training.tasks.RunTable`); 0 for a value of its own.
    """

    region: int
    first_round: int
    last_round: int
    rank: int
    size: PendingSize | RunSize
    value: Future | None = None
    read: Callable[[], Future] | None = None
    packed: bool = False
    inputs: Runs = ()
    together: int = 0

    @cached_property
    def identity(self) -> str:
        """Name in the store: region and the rounds that the run sums up."""
        return run_identity(self.region, self.first_round, self.last_round)

    @property
    def stored(self) -> bool:
        """Whether a commit has it."""
        return self.read is not None

    @property
    def persisted(self) -> bool:
        """Whether it, or everything that it adds up, is in the store."""
        return self.stored or bool(self.inputs)

    @property
    def future(self) -> Future:
        """Its value or the table that has it, which is read now if it was only in the store."""
        if self.value is None:
            assert self.read is not None, "a run without a value is in the store"
            self.value = self.read()
        return self.value

    @property
    def argument(self) -> Future | InTable:
        """Future or place in a table, for tasks that take both (`giaann_dask.training.tasks.takes_runs`)."""
        # Of a table that is being submitted, there is a future only.
        return InTable(cast(RunTable, self.future), self.region) if self.together else self.future

    @property
    def key(self) -> str:
        """Identity of its value in the keys of tasks."""
        return f"{self.future.key}/{self.region}" if self.together else self.future.key

    @property
    def in_memory(self) -> bool:
        """Whether its value is in the memory of a worker, or is being computed."""
        return self.value is not None

    @property
    def measured(self) -> bool:
        """Whether its size is known without waiting."""
        return isinstance(self.size, RunSize) or self.size.measured.done()

    def unread(self) -> RunReference:
        """Return a reference to the same stored run that does not keep its value in memory."""
        assert self.stored, "only a stored run can be read again"
        return replace(self, value=None, together=0)

    def waits(self, awaited: Set[str]) -> bool:
        """Return whether it is to be committed before it may be added to other runs."""
        return not self.stored and self.identity in awaited

    def to_commit(self, awaited: Set[str]) -> Runs:
        """Return this run, or its stored inputs if its value is not computed yet and no commit awaits it."""
        return self.inputs if self.inputs and self.identity not in awaited and not self.future.done() else (self,)


@dataclass(frozen=True, eq=False)
class StoredRuns:
    """Runs that a commit has added to the store.

    Attributes
    ----------
    reads : mapping of str to callable
        Submits the task that reads a run, by identity.
    tables : sequence of tuple
        Runs that continue in one table: their identities by region, and what submits the task that reads some of them.
    """

    reads: Mapping[str, Callable[[], Future]]
    tables: Sequence[tuple[Mapping[int, str], Callable[[Mapping[int, str]], Future]]] = ()


def inputs_of(runs: Runs) -> Runs:
    """Return the stored runs that some runs add up, without keeping them in memory; none unless all are persisted."""
    if not all(run.persisted for run in runs):
        return ()
    return tuple(stored for run in runs for stored in run.inputs or (run.unread(),))


def run_identity(region: int, first_round: int, last_round: int) -> str:
    """Return the name of a run in the store."""
    return f"{region:05d}.{first_round:08d}-{last_round:08d}"


def rounds_of(identity: str) -> tuple[int, int]:
    """Return the first and the last round of a run, given its name in the store.

    Examples
    --------
    >>> rounds_of(run_identity(3, 5, 7))
    (5, 7)
    """
    first, last = identity.partition(".")[2].split("-")
    return int(first), int(last)


def sizes_of(runs: Sequence[RunReference]) -> list[RunSize]:
    """Return the sizes of runs, and wait for those that are not known yet."""
    pending = {run.size.measured.key: run.size.measured for run in runs if isinstance(run.size, PendingSize)}
    found = dict(zip(pending, results(list(pending.values())), strict=True))
    return [run.size if isinstance(run.size, RunSize) else found[run.size.measured.key][run.size.place] for run in runs]


class RunSizes:
    """Sizes of the runs of a network, as far as they have been computed."""

    def __init__(self) -> None:
        self._known: dict[str, RunSize] = {}
        # Of runs before they were packed or stored, for observers until they are measured again.
        self._before: dict[str, RunSize] = {}

    def fetch(self, runs: Sequence[RunReference], *, wait: bool = False) -> None:
        """Fetch the sizes of all runs that have been computed since the last time, or wait for all of them."""
        known = {run.identity: self._known[run.identity] for run in runs if run.identity in self._known}
        new = [run for run in runs if run.identity not in known and (wait or run.measured)]
        self._known = known | {run.identity: size for run, size in zip(new, sizes_of(new), strict=True)}
        before = {**self._before, **self._known}
        self._before = {run.identity: before[run.identity] for run in runs if run.identity in before}

    def forget(self, identity: str) -> None:
        """Forget the size of a run that is packed or stored now."""
        self._known.pop(identity, None)

    def of(self, run: RunReference) -> RunSize | None:
        """Return the size of a run as of the last `fetch`, None if it was not known."""
        return self._known.get(run.identity)

    def last_of(self, run: RunReference) -> RunSize | None:
        """Return the size of a run, or the one that it had before it was packed or stored."""
        return self._known.get(run.identity, self._before.get(run.identity))

    def hot_and_packed(self, runs: Sequence[RunReference]) -> tuple[int, int]:
        """Return the bytes in memory of decoded and of packed runs of known size."""
        totals = [0, 0]
        for run in runs:
            size = self.of(run) if run.in_memory else None
            totals[run.packed] += size.nbytes if size else 0
        return totals[0], totals[1]


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

    def references(self) -> list[RunReference]:
        """Return the references to all runs."""
        return [run for runs in self.runs.values() for run in runs]


class RegionRuns(Mapping[int, Runs]):
    """Runs by live region, and their sizes; only the methods of this class change them.

    Parameters
    ----------
    regions : iterable of int
        Live regions, which have no runs yet.

    Attributes
    ----------
    sizes : RunSizes
        Of the runs, as far as they are known.
    """

    def __init__(self, regions: Iterable[int]) -> None:
        self._runs: dict[int, Runs] = dict.fromkeys(regions, ())
        self.sizes = RunSizes()

    def __getitem__(self, region: int) -> Runs:
        """Return the runs of a region, in order."""
        return self._runs[region]

    def __iter__(self) -> Iterator[int]:
        """Return the live regions."""
        return iter(self._runs)

    def __len__(self) -> int:
        """Return the number of live regions."""
        return len(self._runs)

    def all(self) -> list[RunReference]:
        """Return the runs of all regions."""
        return [run for runs in self._runs.values() for run in runs]

    def put(self, region: int, runs: Runs) -> None:
        """Set the runs of a region, which becomes live if it was not."""
        self._runs[region] = runs

    def pop(self, region: int) -> Runs:
        """Remove a region, and return its runs."""
        return self._runs.pop(region)

    def clear(self) -> None:
        """Leave every region without runs."""
        self._runs = dict.fromkeys(self._runs, ())

    def replace(self, changed: Mapping[str, RunReference], *, forget: bool = True) -> None:
        """Replace runs by references of the same identity, by default with sizes that are not known yet."""
        for identity in changed if forget else ():
            self.sizes.forget(identity)
        for region, runs in self._runs.items():
            self._runs[region] = tuple(changed.get(run.identity, run) for run in runs)

    def contents(self) -> dict[int, int]:
        """Return the bytes of the decoded runs of each region that has runs, as far as their sizes are known."""
        return {region: self.decoded_bytes(region) for region, runs in self._runs.items() if runs}

    def decoded_bytes(self, region: int) -> int:
        """Return the bytes of the decoded runs of a region of known size."""
        sizes = map(self.sizes.of, self._runs[region])
        return sum(size.decoded_bytes for size in sizes if size)

    def measured(self, touches: Mapping[int, int], owners: Mapping[int, str]) -> tuple[RegionMeasured, ...]:
        """Return the measured contents of each region, with the column touches and the owners by region."""
        return tuple(
            self._measured(region, touches.get(region, 0), owners.get(region, "")) for region in sorted(self._runs)
        )

    def _measured(self, region: int, touches: int, owner: str) -> RegionMeasured:
        runs = self._runs[region]
        sized = [(size, run) for run in runs if (size := self.sizes.last_of(run)) is not None]
        in_memory = [(size.connections, run) for size, run in sized if run.in_memory]
        largest = (
            [max(in_memory, key=lambda pair: pair[0])[1]] if in_memory else [run for run in runs[-1:] if run.in_memory]
        )
        return RegionMeasured(
            region,
            sum(size.connections for size, _ in sized),
            sum(size.neurons for size, _ in sized),
            sum(size.nbytes for size, _ in sized),
            len(runs),
            touches,
            str(largest[0].future.key) if largest else "",
            owner,
        )
