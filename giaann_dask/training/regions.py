"""Add rounds to the regions of a network; compact, split and replace their runs.

`run_references.RegionRuns` holds the runs: all changes are made by its methods. `CompactionPolicy` adds them up,
`PendingCommits` keeps those that a commit awaits, and `Regions` takes rounds. `rounds` makes the increments,
`region_tasks` submits the tasks about runs to the owners of regions, `region_budgets` decides what to split and to
pack, and `committing` commits the runs.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from distributed import Client, Future

from giaann_dask.cluster import result
from giaann_dask.cluster.devices import DeviceShare
from giaann_dask.cluster.regions import STORED_TOGETHER
from giaann_dask.runs.merging import plan_compaction
from giaann_dask.runs.placement import Placement, SequencePart, Split
from giaann_dask.runs.run import RunSize
from giaann_dask.store.manifest import StoredRun
from giaann_dask.training.region_tasks import RegionTasks
from giaann_dask.training.run_references import (
    PendingSize,
    RegionRuns,
    RunReference,
    Runs,
    Snapshot,
    StoredRuns,
    rounds_of,
)
from giaann_dask.training.training_options import ROUNDS_TOGETHER, SUMS_TOGETHER, Exchange, choose_exchange
from giaann_dask.training.training_report import RoundReport

_LOG = logging.getLogger(__name__)

# Stored runs of a rank that become one when memory is short; else `STORED_TOGETHER`.
_STORED_TOGETHER_SHORT = 4


class LastRuns(NamedTuple):
    """Replacement of the last runs of a region.

    Attributes
    ----------
    kept : int
        Runs at the beginning that stay.
    value : Future or None
        A `PackedRegionRun` in place of the others, or a table that has it; None for nothing.
    size : PendingSize or None
        Its size.
    regions : int
        Regions of the table; 0 for a value of its own.
    """

    kept: int
    value: Future | None = None
    size: PendingSize | None = None
    regions: int = 0


@dataclass(eq=False)
class CountedRound:
    """Increments of a round, which are added to the regions that they touch as soon as it is known which these are.

    Attributes
    ----------
    number : int
        Of the round in the network.
    report : Future
        Its `RoundReport`.
    increments : list of Future
        Increments by region, each a mapping. Where owners fetch their parts, they are kept until `release`, as Dask
        moves and recomputes what is wanted; else until they were added.
    added : list of Future
        Runs of regions that they became.
    figures : RoundReport
        What was reported, once they were added.
    """

    number: int
    report: Future
    increments: list[Future]
    added: list[Future] = field(default_factory=list)
    figures: RoundReport = field(default_factory=RoundReport)

    def release(self) -> None:
        """Let go of the increments, when the runs that they became are computed."""
        self.increments = []


class CompactionPolicy:
    """Decide which runs of regions are added up into one, and submit the tasks that do it.

    Parameters
    ----------
    runs : RegionRuns
        The runs of all regions.
    tasks : RegionTasks
        Submits the tasks.

    Attributes
    ----------
    short : bool
        Whether memory is short, so that not all runs could be decoded simultaneously, as of `limit_decoded`.
    """

    def __init__(self, runs: RegionRuns, tasks: RegionTasks) -> None:
        self._runs, self._tasks = runs, tasks
        self.short = False

    def limit_decoded(self, nbytes: float) -> None:
        """Find out whether all decoded runs exceed these bytes, so that they are not added up to one at the end."""
        self.short = sum(self._runs.contents().values()) > nbytes

    def add(self, added: Mapping[int, tuple[Runs, Runs, RunReference]]) -> None:
        """Set regions to fixed runs, and others of falling rank with one added, merged if enough have a rank."""
        stored = _STORED_TOGETHER_SHORT if self.short else STORED_TOGETHER
        plans = {
            region: plan_compaction(runs, run, *((stored,) if run.persisted else (ROUNDS_TOGETHER, SUMS_TOGETHER)))
            for region, (_, runs, run) in added.items()
        }
        merged = {region: (plan.merged, plan.rank) for region, plan in plans.items() if len(plan.merged) > 1}
        sums = self._tasks.compact_all(merged, self._known_bytes)
        for region, plan in plans.items():
            self._runs.put(region, (*added[region][0], *plan.kept, sums.get(region, plan.merged[0])))

    def compact_all(self, regions: Iterable[int]) -> None:
        """Add up all runs of each of some regions into one."""
        # All in one task, instead of some of them first.
        every = {
            region: tuple(part for run in self._runs[region] for part in run.to_commit(set())) for region in regions
        }
        self._replace_by_sums({region: ((), runs) for region, runs in every.items() if len(runs) > 1})

    def merge_decoded(self, awaited: Set[str]) -> None:
        """Add up the decoded runs at the end of each region, which a commit would pack one by one."""
        found = {}
        for region, runs in self._runs.items():
            begin = _changeable(runs, lambda run: run.packed or run.persisted or run.waits(awaited))
            if len(runs) - begin > 1:
                found[region] = (runs[:begin], runs[begin:])
        self._replace_by_sums(found)

    def _replace_by_sums(self, runs: Mapping[int, tuple[Runs, Runs]]) -> None:
        """Set the runs of regions to the first of those given, and the sum of the second."""
        wanted = {region: (summed, _rank_of(summed)) for region, (_, summed) in runs.items()}
        for region, run in self._tasks.compact_all(wanted, self._known_bytes).items():
            self._runs.put(region, (*runs[region][0], run))

    def _known_bytes(self, run: RunReference) -> int:
        size = self._runs.sizes.last_of(run)
        return size.nbytes if size else 0


class PendingCommits:
    """Keep which snapshots are to be committed, and continue from the store when they are.

    Until then, runs of a snapshot are not added to others: the lineage of the sums would begin at the text instead of
    the commit, and so would that of all later runs.

    Parameters
    ----------
    runs : RegionRuns
        The runs of all regions.
    tasks : RegionTasks
        Measures stored runs.
    compaction : CompactionPolicy
        Adds up the runs that had to wait for a commit.
    """

    def __init__(self, runs: RegionRuns, tasks: RegionTasks, compaction: CompactionPolicy) -> None:
        self._runs, self._tasks, self._compaction = runs, tasks, compaction
        # Snapshots that are to be committed, and runs that have been stored since these were taken, by identity.
        self._awaited: list[Snapshot] = []
        self._stored: dict[str, RunReference] = {}

    def names(self) -> set[str]:
        """Return the identities of the runs that are to be committed."""
        return {run.identity for snapshot in self._awaited for run in snapshot.references()}

    def add(self, snapshot: Snapshot) -> None:
        """Wait for the commit of a snapshot."""
        self._awaited.append(snapshot)

    def with_stored(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with references to the store for runs that an earlier commit has stored since."""
        runs = {
            region: tuple(self._stored.get(run.identity, run) for run in runs) for region, runs in snapshot.runs.items()
        }
        return replace(snapshot, runs=runs)

    def on_committed(self, snapshot: Snapshot, stored: StoredRuns, empty: Set[str]) -> None:
        """Continue from the commit of a snapshot, and add up the runs that had to wait for it.

        Stored runs are added up with stored runs only, so that neither rounds nor commits wait for that.

        Parameters
        ----------
        snapshot : Snapshot
            The committed snapshot.
        stored : StoredRuns
            Its runs that are new in the store.
        empty : set of str
            Identities of empty runs, which no commit has; they are removed, or their lineage would begin at the text.
        """
        with self._tasks.submitter.together():
            self.continue_stored(stored)
            self._awaited.remove(snapshot)
            awaited = self.names()
            self._stored = {name: run for name, run in self._stored.items() if name in awaited}
            self._fold_persisted(awaited, empty)
            self._release_remnants()

    def continue_stored(self, stored: StoredRuns, *, measure: bool = True) -> None:
        """Replace runs that have been stored, if they still exist as runs, by references to the store.

        Parameters
        ----------
        stored : StoredRuns
            See `on_committed`.
        measure : bool
            Whether they are measured again. Else the futures of their sizes keep their earlier tasks in the scheduler.
        """
        runs = {run.identity: run for run in self._runs.all()}
        continued = {}
        with self._tasks.submitter.together():
            for identities, read in stored.tables:
                present = {region: name for region, name in identities.items() if name in runs}
                if present:
                    value = read(present)
                    sizes = self._tasks.measured_table(value, list(present))
                    for size, name in zip(sizes, present.values(), strict=True):
                        continued[name] = replace(runs[name], value=value, size=size, together=len(present))
            for identity in stored.reads.keys() & runs.keys() - continued.keys():
                value = stored.reads[identity]()
                pending = self._tasks.measure(value) if measure else runs[identity].size
                continued[identity] = replace(runs[identity], value=value, size=pending, together=0)
        continued = {
            name: replace(run, read=stored.reads[name], packed=True, inputs=()) for name, run in continued.items()
        }
        self._runs.replace(continued)
        self._stored |= continued

    def clear(self) -> None:
        """Wait for no commit any more."""
        self._stored, self._awaited = {}, []

    def _fold_persisted(self, awaited: Set[str], empty: Set[str]) -> None:
        """Add up the persisted runs at the beginning of each region as if they were added one by one."""
        queues, others = {}, {}
        for region, every in self._runs.items():
            runs = tuple(run for run in every if run.identity not in empty)
            fixed = [run.waits(awaited) or not run.persisted for run in runs]
            free = fixed.index(True) if True in fixed else len(runs)
            queues[region], others[region] = deque(runs[:free]), runs[free:]
        self._runs.clear()
        while queues := {region: queue for region, queue in queues.items() if queue}:
            self._compaction.add(
                {region: ((), self._runs[region], queue.popleft()) for region, queue in queues.items()}
            )
        for region, runs in others.items():
            self._runs.put(region, (*self._runs[region], *runs))

    def _release_remnants(self) -> None:
        """Let stored runs be read again when needed where most of the table that has them is of no use any more."""
        used = Counter(run.future.key for run in self._runs.all() if run.together)
        remnants = {
            run.identity: run.unread()
            for run in self._runs.all()
            if run.stored and run.together and 2 * used[run.future.key] < run.together
        }
        self._runs.replace(remnants, forget=False)


class Regions:
    """The runs of all regions.

    Parameters
    ----------
    client : Client
        Where tasks run.
    placement : Placement
        Where neurons belong so far.
    rounds : int
        Rounds that the network has seen.
    summing : DeviceShare, optional
        Share of the sums of pairs that devices compute; none by default.
    exchange : {"auto", "tasks", "workers"}
        How increments reach regions.

    Attributes
    ----------
    columns : Placement or Future
        Where columns belong, without splits; changed by `place_columns`.
    splits : tuple of Split
        Of regions so far.
    rounds : int
        Rounds that the network has seen.
    tasks : RegionTasks
        Submits the tasks about runs.
    runs : RegionRuns
        The runs by live region, with their sizes.
    compaction : CompactionPolicy
        Adds up runs.
    pending : PendingCommits
        Snapshots that are to be committed.
    counts : mapping of int to tuple
        Known counts of regions: identities of runs, and their distinct neurons and connections.
    shares : mapping of str to float
        Of slow workers, which own fewer regions.
    single_block : bool
        Whether the training has no more than a block of text, so that there is one commit of it.
    """

    def __init__(
        self,
        client: Client,
        placement: Placement,
        rounds: int,
        summing: DeviceShare | None = None,
        exchange: Exchange = "auto",
    ) -> None:
        self.tasks = RegionTasks(client, summing)
        # Devices sum the pairs of one region at a time.
        self._exchange: Exchange = "tasks" if exchange == "auto" and self.tasks.sums_on_devices else exchange
        self.runs = RegionRuns(placement.live())
        self.compaction = CompactionPolicy(self.runs, self.tasks)
        self.pending = PendingCommits(self.runs, self.tasks, self.compaction)
        self.counts: Mapping[int, tuple[frozenset[str], RunSize]] = {}
        self._first_regions = placement.first_regions
        self.columns: Placement | Future = replace(placement, splits=())
        self.splits = placement.splits
        # Rounds whose increments have not been added, in order; they were counted for the present regions.
        self._counted: deque[CountedRound] = deque()
        self.rounds = rounds
        self.shares: Mapping[str, float] = {}
        self.single_block = False

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """Return the runs of all regions as of now, to be committed; later rounds do not change it.

        Decoded runs are added up first, so that a commit has fewer (`PendingCommits`).

        Parameters
        ----------
        whole : bool
            Whether to wait for stored runs that are being added up, instead of committing these as they are.
        """
        self.integrate()
        awaited = self.pending.names()
        with self.tasks.submitter.together():
            self.compaction.merge_decoded(awaited)
        now = Snapshot(dict(self.runs), self.rounds, self.splits)
        if not whole:
            # The commit of an earlier snapshot stores these runs instead of their inputs.
            runs = {
                region: tuple(part for run in runs for part in run.to_commit(awaited))
                for region, runs in now.runs.items()
            }
            now = replace(now, runs=runs)
        self.pending.add(now)
        return now

    def place_columns(self, columns: Placement | Future) -> None:
        """Continue with a placement of columns that later rounds have extended, or that was read from the store."""
        self.columns = columns

    def assign_owners(self) -> None:
        """Assign the regions to the present workers that store columns."""
        self.tasks.assign(dict.fromkeys(self.runs, 0) | self.runs.contents(), self.shares)

    def add_counted(self, increments: Iterable[Future], report: Future) -> CountedRound:
        """Add the increments of a round that are being counted; `integrate` waits until it is known what they touch.

        Parameters
        ----------
        increments : iterable of Future
            Mappings of regions to increments.
        report : Future
            The `RoundReport` of these increments.
        """
        self._counted.append(CountedRound(self.rounds, report, list(increments)))
        self.rounds += 1
        return self._counted[-1]

    def integrate(self, leave: int = 0) -> None:
        """Add the increments of counted rounds to the regions that they touch.

        Parameters
        ----------
        leave : int
            Rounds that are not waited for, the last ones; none by default.
        """
        while len(self._counted) > leave or (self._counted and self._counted[0].report.done()):
            self._integrate(self._counted[0])
            self._counted.popleft()

    def _integrate(self, counted: CountedRound) -> None:
        counted.figures = result(counted.report)
        touched = [set(regions) for regions in counted.figures.touched]
        parts = list(zip(counted.increments, touched, strict=True))
        if not self.tasks.owners.keys() >= set().union(*touched):
            self.assign_owners()
        awaited = self.pending.names()
        alone = self.single_block and len(self.tasks.roles.storage) == 1
        nbytes = counted.figures.increment_bytes if alone else None
        choose = partial(choose_exchange, self._exchange, nbytes=nbytes)
        with self.tasks.submitter.together():
            new = self.tasks.integrate(parts, counted.number, choose)
            added = {}
            for region, run in new.items():
                runs = self.runs[region]
                begin = _changeable(runs, lambda run: run.persisted or run.waits(awaited))
                added[region] = (runs[:begin], runs[begin:], run)
            self.compaction.add(added)
            futures = (self.runs[region][-1].future for region in new)
            counted.added = list({future.key: future for future in futures}.values())
            if not any(run.together for run in new.values()):
                counted.increments = []

    def replace_by(self, sums: Mapping[int, Future]) -> None:
        """Replace all runs of every region by one packed run that was computed elsewhere, as one round does.

        Parameters
        ----------
        sums : mapping of int to Future
            A `PackedRegionRun` for each region that has connections.
        """
        last, rank = self.rounds, self.rounds.bit_length()
        self.runs.clear()
        for region, value in sums.items():
            run = RunReference(region, 0, last, rank, self.tasks.measure(value), value, packed=True)
            self.runs.put(region, (run,))
        self.rounds += 1

    def replace_last(self, last: Mapping[int, LastRuns]) -> None:
        """Replace the last runs of regions by packed ones that were computed elsewhere, as one round does."""
        for region, each in last.items():
            self.runs.put(region, self._after(region, each))
        self.rounds += 1

    def identities_after(self, region: int, last: LastRuns) -> list[str]:
        """Return the identities of the runs of a region that `replace_last` leaves."""
        return [run.identity for run in self._after(region, last)]

    def _after(self, region: int, last: LastRuns) -> Runs:
        """Return the runs of a region with the last ones replaced."""
        kept, replaced = self.runs[region][: last.kept], self.runs[region][last.kept :]
        if last.value is None or last.size is None:
            return kept
        first, rank = (replaced[0].first_round, _rank_of(replaced)) if replaced else (self.rounds, 0)
        run = RunReference(region, first, self.rounds, rank, last.size, last.value, packed=True, together=last.regions)
        return (*kept, run)

    def add_round(self, sums: Mapping[int, Future], rank: int) -> None:
        """Add one packed run that was computed elsewhere to every region, as a round does.

        Parameters
        ----------
        sums : mapping of int to Future
            A `PackedRegionRun` for each region that gets connections.
        rank : int
            Of these runs: about the logarithm of the rounds that would have had as many sequences.
        """
        added = {}
        for region, value in sums.items():
            run = RunReference(region, self.rounds, self.rounds, rank, self.tasks.measure(value), value, packed=True)
            added[region] = ((), self.runs[region], run)
        self.compaction.add(added)
        self.rounds += 1

    def continue_from(self, run: StoredRun, read: Callable[[], Future]) -> None:
        """Add a stored run to its region, after earlier ones."""
        # Commits leave runs of any ranks; here they are added one by one.
        self.compaction.add({run.region: ((), self.runs[run.region], _reference_to(run, read))})

    def append(self, run: StoredRun, read: Callable[[], Future]) -> None:
        """Append a stored run to its region, which is not added to earlier ones."""
        self.runs.put(run.region, (*self.runs[run.region], _reference_to(run, read)))

    def release(self) -> None:
        """Forget all runs, of which the cluster keeps those that others refer to.

        Stored runs refer to the regions that read them, so without this they would wait for the garbage collector.
        """
        self.runs.clear()
        self.pending.clear()

    def split(self, region: int, pivot: int, target: int = 0) -> None:
        """Split a region at a neuron into two new ones, or at a target of its row (`Split`)."""
        self.integrate()
        low = self._first_regions + 2 * len(self.splits)
        self.splits = (*self.splits, Split(region, pivot, target))
        _LOG.info("region %s was split into %s and %s", region, low, low + 1)
        runs = self.runs.pop(region)
        parts = Placement(self._first_regions, splits=self.splits).sequence_parts()
        below = parts[pivot][low] if target else SequencePart()
        for new, upper in ((low, False), (low + 1, True)):
            self.runs.put(new, tuple(self.tasks.part(run, new, (pivot, target, upper, below)) for run in runs))
        self.tasks.split(region, low)


def _reference_to(run: StoredRun, read: Callable[[], Future]) -> RunReference:
    """Return a reference to a stored run."""
    first, last = rounds_of(run.identity)
    return RunReference(run.region, first, last, run.rank, run.size, read=read, packed=True)


def _rank_of(runs: Runs) -> int:
    """Return the rank of a sum of runs."""
    return (sum(1 << run.rank for run in runs) - 1).bit_length()


def _changeable(runs: Runs, fixed: Callable[[RunReference], bool]) -> int:
    """Return the number of runs at the beginning up to the last that is fixed; those after it may be added up."""
    return max((at + 1 for at, run in enumerate(runs) if fixed(run)), default=0)
