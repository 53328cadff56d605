"""Submit the tasks about the runs of regions, directed to the storage workers that regions are assigned to.

`giaann_dask.cluster.roles` chooses the owners by memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from distributed import Client, Future

from giaann_dask.cluster import assign_regions, directed, roles_of, task_key
from giaann_dask.cluster.devices import DeviceShare
from giaann_dask.cluster.regions import region_holders, sum_key
from giaann_dask.cluster.stages import SUM
from giaann_dask.cluster.submitting import Submitted, TaskSubmitter
from giaann_dask.cluster.worker_services import install_service, remove_service
from giaann_dask.runs.placement import SequencePart
from giaann_dask.store.commits import CommitReader
from giaann_dask.training import exchange, tasks
from giaann_dask.training.run_references import PendingSize, RunReference, Runs, inputs_of
from giaann_dask.training.tasks import RunTable
from giaann_dask.training.training_options import Exchange, RoundShape

# Bytes of the runs that one task adds up for several regions.
_TABLE_BYTES = 64 << 20


class RegionTasks:
    """Submitter of tasks about runs, which knows the storage worker that owns each region.

    Nothing here waits for the tasks.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    summing : DeviceShare, optional
        Share of the sums of pairs that devices compute; none by default.

    Attributes
    ----------
    submitter : TaskSubmitter
        Of all tasks of a training.
    roles : Roles
        Workers at the last assignment.
    client : Client
        Where tasks run.
    """

    def __init__(self, client: Client, summing: DeviceShare | None = None) -> None:
        self.client = client
        self._summing = summing or DeviceShare()
        self.submitter = TaskSubmitter(client)
        self._owners: dict[int, str] = {}
        # Values that are kept at the owners, for tasks that depend on them.
        self._anchors: dict[int, Future] = {}
        self.roles = roles_of(client)
        self.submitter.anywhere = self.roles.anywhere()
        # Name of the service by which owners fetch their parts, once a round has needed it.
        self._service: str | None = None

    @property
    def sums_on_devices(self) -> bool:
        """Whether devices compute some of the sums of pairs."""
        return self._summing.wanted

    @property
    def owners(self) -> Mapping[int, str]:
        """Address of the owner of each region that has one."""
        return MappingProxyType(self._owners)

    def begin_with(self, reader: CommitReader, regions: Sequence[int]) -> None:
        """Assign regions of a commit to workers that have them in memory, as after an earlier training.

        `assign` keeps those that store columns.
        """
        self._owners = region_holders(reader, regions, self.client)

    def assign(self, weights: Mapping[int, int], shares: Mapping[str, float] = MappingProxyType({})) -> None:
        """Read which workers are present, and assign regions to those that store columns.

        Parameters
        ----------
        weights : mapping of int to int
            Bytes of every live region.
        shares : mapping of str to float
            Of workers that get fewer regions than their memory has room for.
        """
        self.roles = roles_of(self.client)
        self._owners = assign_regions(self._owners, weights, self.roles, shares)
        self.submitter.anywhere = self.roles.anywhere()

    def split(self, region: int, low: int) -> None:
        """Keep the first part of a split region at its owner; `assign` chooses one for the second part."""
        self._anchors.pop(region, None)
        if region in self._owners:
            self._owners = {**self._owners, low: self._owners[region]}

    def groups(self, regions: Iterable[int]) -> list[tuple[int, ...]]:
        """Return regions grouped by their owner; all in one group where one worker stores columns."""
        by_owner: dict[str, list[int]] = {}
        for region in regions:
            owner = self._owners.get(region, "") if len(self.roles.storage) > 1 else ""
            by_owner.setdefault(owner, []).append(region)
        return [tuple(group) for group in by_owner.values()]

    def _at_owner(self, region: int) -> dict[str, Any]:
        """Return arguments of `Client.submit` that direct a task to a region's owner.

        Dask alone would follow the increments. Where all workers store columns, the owner is preferred, also
        where it is the only one: tasks that may run anywhere and have no inputs, as those that take over what
        the owner has just written, are held back while it has others, by which time it may have forgotten that.
        Where some only compute, tasks must never leave the storage workers, which a preference does not
        ensure; so they depend on a value that is kept at the owner, and that is computed again at another
        one when it is lost.
        """
        owner = self._owners.get(region, "")
        storing = self.roles.storing()
        if not storing:
            return directed(owner)
        if not owner or len(self.roles.storage) == 1:
            return storing
        key = task_key("owner_anchor", region, owner)
        anchor = self._anchors.get(region)
        if anchor is None or anchor.key != key:
            # Without the role's resource: a task with both may be sent to a worker without it, which dies of it.
            anchor = self.client.submit(tasks.owner_anchor, region, key=key, **directed(owner))
            self._anchors[region] = anchor
        return {**storing, "owner_anchor": anchor}

    def packed(self, run: RunReference) -> RunReference:
        """Return a reference to the packed form of a run."""
        if run.packed:
            return run
        key = task_key("pack", run.key)
        future = self.submitter.submit(key, tasks.pack_run, run.argument, **self._sums([run]), **self.roles.storing())
        return replace(run, value=future, size=self.measure(future), packed=True, together=0)

    def pack_all(self, runs: Sequence[RunReference]) -> list[RunReference]:
        """Return references to the packed forms of runs; those of a table are packed together."""
        packed: dict[str, RunReference] = {}
        for group in tables_of(run for run in runs if not run.packed):
            regions, table = [run.region for run in group], group[0].future
            future = self.submit("pack", tasks.pack_table, regions, table, key_of=(table.key, regions))
            for size, run in zip(self.measured_table(future, regions), group, strict=True):
                packed[run.identity] = replace(run, value=future, size=size, packed=True, together=len(group))
        return [packed.get(run.identity) or self.packed(run) for run in runs]

    def alone(self, run: RunReference) -> Future:
        """Return the packed value of a run, outside of any table."""
        if not run.together:
            return self.packed(run).future
        return self.submit("pack", tasks.pack_run, run.argument, key_of=run.key)

    def submit(self, name: str, function: Callable[..., object], *arguments: object, key_of: object) -> Future:
        """Submit a task whose result is stored on a storage worker."""
        return self.submitter.submit(task_key(name, key_of), function, *arguments, **self.roles.storing())

    def submit_at_owner(self, region: int, key: str, function: Callable[..., object], *arguments: object) -> Future:
        """Submit a task whose result is stored on the owner of a region."""
        return self.submitter.submit(key, function, *arguments, **self._at_owner(region))

    def integrate(
        self,
        increments: Sequence[tuple[Future, Set[int]]],
        number: int,
        choose: Callable[[RoundShape], Exchange],
    ) -> dict[int, RunReference]:
        """Submit the tasks that add a round's increments to regions.

        Parameters
        ----------
        increments : sequence of tuple
            Increments by region, and the regions that each touches; there are tasks for these alone.
        number : int
            Of the round.
        choose : callable
            By which way, given what is touched.

        Returns
        -------
        dict of int to RunReference
            Runs by touched region.
        """
        every = sorted(set().union(*(regions for _, regions in increments)))
        owned = [(group, set(group)) for group in self.groups(every)]
        parts = [[(part, some) for part, regions in increments if (some := regions & its)] for _, its in owned]
        shape = RoundShape(batches=len(increments), owners=len(owned), regions=len(every), routes=sum(map(len, parts)))
        found: dict[int, RunReference] = {}
        if choose(shape) == "workers":
            offered = self._offered([part for part, _ in increments])
            add = exchange.collect if offered else tasks.integrate_table
            for (group, _), its in zip(owned, parts, strict=True):
                found |= self._integrate_together(group, add, [offered.get(part.key, part) for part, _ in its], number)
        else:
            for (group, _), its in zip(owned, parts, strict=True):
                found |= self._integrate(group, [self._routed(*each) for each in its], number)
        return found

    def _offered(self, increments: Sequence[Future]) -> dict[str, Submitted]:
        """Submit the tasks that offer increments, by key, where several workers own regions."""
        if len(self.roles.storage) <= 1:
            return {}
        if self._service is None:
            self._service = user = install_service(self.client, exchange.PartService)
            weakref.finalize(self, remove_service, self.client, user).atexit = False
        where = self.roles.computing()
        return {
            part.key: self.submitter.pass_on(task_key("offer", part.key), exchange.offer, part, part.key, **where)
            for part in increments
        }

    def _routed(self, increments: Future, regions: Set[int]) -> tuple[Submitted, Set[int]]:
        """Submit the task that cuts increments to the part for regions of one owner, where several workers own some."""
        if len(self.roles.storage) <= 1:
            return increments, regions
        # On compute workers: idle storage workers would fetch a whole increment for one part of it.
        key, part = task_key("route", increments.key, sorted(regions)), sorted(regions)
        return self.submitter.pass_on(key, tasks.route, increments, part, **self.roles.computing()), regions

    def _integrate(
        self, group: tuple[int, ...], parts: Sequence[tuple[Submitted, Set[int]]], number: int
    ) -> dict[int, RunReference]:
        """Submit the tasks that add up the parts of a round for the regions of one owner."""
        sums = []
        for region in group:
            those = [part for part, regions in parts if region in regions]
            key = task_key("integrate", region, _keys(those))
            sums.append(self.submit_at_owner(region, key, tasks.integrate, region, *those))
        measured = self.submit_at_owner(group[0], task_key("measure", _keys(sums)), tasks.measure_runs, *sums)
        return {
            region: RunReference(region, number, number, 0, PendingSize(measured, at), value)
            for at, (region, value) in enumerate(zip(group, sums, strict=True))
        }

    def _integrate_together(
        self, group: tuple[int, ...], add: Callable[..., RunTable], parts: Sequence[Submitted], number: int
    ) -> dict[int, RunReference]:
        """Submit the task that adds up a round's increments, or offers of these, for all regions of one owner."""
        key = task_key("integrate", group, _keys(parts))
        table = self.submit_at_owner(group[0], key, add, group, *parts)
        measured = self.submit_at_owner(group[0], task_key("measure", key), tasks.measure_table, group, table)
        return {
            region: RunReference(region, number, number, 0, PendingSize(measured, at), table, together=len(group))
            for at, region in enumerate(group)
        }

    def compact_all(
        self, wanted: Mapping[int, tuple[Runs, int]], nbytes: Callable[[RunReference], int]
    ) -> dict[int, RunReference]:
        """Submit the tasks that add up runs of several regions into one for each region.

        Parameters
        ----------
        wanted : mapping of int to tuple
            By region, the runs and the rank of their sum. Where some are in tables, one task adds up those of several
            regions of an owner.
        nbytes : callable
            Bytes of a run as far as they are known; a task has no more than some of these, or one region.

        Returns
        -------
        dict of int to RunReference
            The sums by region.
        """
        shared = {region for region, (runs, _) in wanted.items() if any(run.together for run in runs)}
        found = {region: self.compact(*each) for region, each in wanted.items() if region not in shared}
        for group in self.groups(sorted(shared)):
            weights = [sum(map(nbytes, wanted[region][0])) for region in group]
            for part in divide(group, weights, _TABLE_BYTES):
                found |= self._compact_together({region: wanted[region] for region in part})
        return found

    def _compact_together(self, wanted: Mapping[int, tuple[Runs, int]]) -> dict[int, RunReference]:
        """Submit the task that adds up runs of several regions, given with the ranks of their sums."""
        values = {run.future.key: run.future for runs, _ in wanted.values() for run in runs}
        at = {key: number for number, key in enumerate(values)}
        places = {region: [at[run.future.key] for run in runs] for region, (runs, _) in wanted.items()}
        regions, identity = list(places), (list(values), places)
        table = self.submit("compact", tasks.compact_table, places, *values.values(), key_of=identity)
        sizes = self.measured_table(table, regions)
        return {
            region: replace(_sum_of(runs, rank, size, table), together=len(regions))
            for size, (region, (runs, rank)) in zip(sizes, wanted.items(), strict=True)
        }

    def compact(self, runs: Runs, rank: int) -> RunReference:
        """Submit the task that adds up runs of a region into one."""
        those = [run.argument for run in runs]
        # Packed at once: all regions decoded would take ten times as much memory, and a commit packs their runs.
        where, key = self.roles.storing(), sum_key([run.key for run in runs])
        future = self.submitter.submit(key, tasks.compact, *those, **self._sums(runs), **where)
        return _sum_of(runs, rank, self.measure(future), future)

    def _sums(self, runs: Sequence[RunReference]) -> dict[str, Future]:
        """Submit the summing of the pairs of runs where a device does that; return the argument of their packing."""
        pairs = [run for run in runs if not run.packed]
        where = self._summing.place(self.roles) if pairs else None
        if where is None:
            return {}
        # Without the strengths of neurons, which a device does not need.
        keys = [run.key for run in pairs]
        tables = self.submit("pairs", tasks.pairs_of, *(run.argument for run in pairs), key_of=keys)
        sums = self.submitter.submit(task_key(SUM, tables.key), tasks.sum_on_device, tables, **where)
        self._summing.add(sums)
        return {"sums": sums}

    def measure(self, future: Future) -> PendingSize:
        """Submit the task that measures a run."""
        return PendingSize(self.submit("measure", tasks.measure_runs, future, key_of=[future.key]))

    def measured_table(self, future: Future, regions: Sequence[int]) -> list[PendingSize]:
        """Submit the task that measures the runs of some regions of a table."""
        sizes = self.submit("measure", tasks.measure_table, list(regions), future, key_of=(future.key, list(regions)))
        return [PendingSize(sizes, at) for at in range(len(regions))]

    def part(self, run: RunReference, region: int, place: tuple[int, int, bool, SequencePart]) -> RunReference:
        """Submit the task that cuts the part of a run for a new region, given the other arguments of `tasks.split`."""
        future = self.submit("split", tasks.split, run.argument, *place, key_of=(run.key, place))
        size = self.measure(future)
        return replace(run, region=region, value=future, read=None, size=size, inputs=(), together=0)


def divide(regions: Sequence[int], weights: Sequence[int], most: int) -> list[list[int]]:
    """Return regions in groups that weigh no more than some bytes together, or of one region.

    Examples
    --------
    >>> divide([4, 6, 9, 11], [3, 5, 20, 1], 8)
    [[4, 6], [9], [11]]
    """
    groups: list[list[int]] = []
    total = 0
    for region, weight in zip(regions, weights, strict=True):
        if not groups or total + weight > most:
            groups, total = [*groups, []], 0
        groups[-1].append(region)
        total += weight
    return groups


def tables_of(runs: Iterable[RunReference]) -> list[list[RunReference]]:
    """Return the runs that are in tables, grouped by table."""
    found: dict[str, list[RunReference]] = {}
    for run in runs:
        if run.together:
            found.setdefault(run.future.key, []).append(run)
    return list(found.values())


def _sum_of(runs: Runs, rank: int, size: PendingSize, value: Future) -> RunReference:
    """Return a reference to the packed sum of runs of a region."""
    first, last = runs[0], runs[-1]
    inputs = inputs_of(runs)
    return RunReference(first.region, first.first_round, last.last_round, rank, size, value, packed=True, inputs=inputs)


def _keys(futures: Sequence[Submitted]) -> list[str]:
    return [future.key for future in futures]
