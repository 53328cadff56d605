"""Submit the tasks about the runs of regions, directed to the storage workers that regions are assigned to.

`giaann_dask.cluster.roles` chooses the owners by memory.
"""

from __future__ import annotations

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
from giaann_dask.store.commits import CommitReader
from giaann_dask.training import tasks
from giaann_dask.training.run_references import PendingSize, RunReference, Runs, inputs_of, run_identity


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
    """

    def __init__(self, client: Client, summing: DeviceShare | None = None) -> None:
        self._client = client
        self._summing = summing or DeviceShare()
        self.submitter = TaskSubmitter(client)
        self._owners: dict[int, str] = {}
        # Values that are kept at the owners, for tasks that depend on them.
        self._anchors: dict[int, Future] = {}
        self.roles = roles_of(client)
        self.submitter.anywhere = self.roles.anywhere()

    @property
    def owners(self) -> Mapping[int, str]:
        """Address of the owner of each region that has one."""
        return MappingProxyType(self._owners)

    def begin_with(self, reader: CommitReader, regions: Sequence[int]) -> None:
        """Assign regions of a commit to workers that have them in memory, as after an earlier training.

        `assign` keeps those that store columns.
        """
        self._owners = region_holders(reader, regions, self._client)

    def assign(self, weights: Mapping[int, int]) -> None:
        """Read which workers are present, and assign regions to those that store columns.

        Parameters
        ----------
        weights : mapping of int to int
            Bytes of every live region.
        """
        self.roles = roles_of(self._client)
        self._owners = assign_regions(self._owners, weights, self.roles)
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
        owner = (self._owners[region],) if region in self._owners else ()
        storing = self.roles.storing()
        if not storing:
            return directed(owner)
        if not owner or len(self.roles.storage) == 1:
            return storing
        key = task_key("owner_anchor", region, owner)
        anchor = self._anchors.get(region)
        if anchor is None or anchor.key != key:
            # Without the role's resource: a task with both may be sent to a worker without it, which dies of it.
            anchor = self._client.submit(tasks.owner_anchor, region, key=key, **directed(owner))
            self._anchors[region] = anchor
        return {**storing, "owner_anchor": anchor}

    def packed(self, run: RunReference) -> RunReference:
        """Return a reference to the packed form of a run."""
        if run.packed:
            return run
        key = task_key("pack", run.future.key)
        future = self.submitter.submit(key, tasks.pack_run, run.future, **self._sums([run]), **self.roles.storing())
        return replace(run, value=future, size=self.measure(future), packed=True)

    def submit(self, name: str, function: Callable[..., object], *arguments: object, key_of: object) -> Future:
        """Submit a task whose result is stored on a storage worker."""
        return self.submitter.submit(task_key(name, key_of), function, *arguments, **self.roles.storing())

    def submit_at_owner(self, region: int, key: str, function: Callable[..., object], *arguments: object) -> Future:
        """Submit a task whose result is stored on the owner of a region."""
        return self.submitter.submit(key, function, *arguments, **self._at_owner(region))

    def integrate(
        self, groups: Sequence[tuple[int, ...]], increments: Sequence[tuple[Future, Set[int]]], number: int
    ) -> dict[int, RunReference]:
        """Submit the tasks that add a round's increments to regions.

        Parameters
        ----------
        groups : sequence of tuple of int
            Touched regions by owner, from `groups`.
        increments : sequence of tuple
            Increments by region, and the regions that each touches; there are tasks for these alone.
        number : int
            Of the round.

        Returns
        -------
        dict of int to RunReference
            Runs by touched region.
        """
        found: dict[int, RunReference] = {}
        for group in groups:
            owned = set(group)
            parts = [(part, regions & owned) for part, regions in increments]
            found |= self._integrate(group, [self._routed(*each) for each in parts if each[1]], number)
        return found

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
            region: RunReference(
                run_identity(region, number, number), 0, number, number, PendingSize(measured, place), value
            )
            for place, (region, value) in enumerate(zip(group, sums, strict=True))
        }

    def compact(self, region: int, runs: Runs, rank: int) -> RunReference:
        """Submit the task that adds up runs of a region into one."""
        inputs = inputs_of(runs)
        first, last = runs[0].first_round, runs[-1].last_round
        futures = [run.future for run in runs]
        # Packed at once: all regions decoded would take ten times as much memory, and a commit packs their runs.
        where = self.roles.storing()
        future = self.submitter.submit(sum_key(_keys(futures)), tasks.compact, *futures, **self._sums(runs), **where)
        size = self.measure(future)
        return RunReference(
            run_identity(region, first, last), rank, first, last, size, future, packed=True, inputs=inputs
        )

    def _sums(self, runs: Sequence[RunReference]) -> dict[str, Future]:
        """Submit the summing of the pairs of runs where a device does that; return the argument of their packing."""
        pairs = [run.future for run in runs if not run.packed]
        where = self._summing.place(self.roles) if pairs else None
        if where is None:
            return {}
        # Without the strengths of neurons, which a device does not need.
        tables = self.submit("pairs", tasks.pairs_of, *pairs, key_of=_keys(pairs))
        sums = self.submitter.submit(task_key(SUM, tables.key), tasks.sum_on_device, tables, **where)
        self._summing.add(sums)
        return {"sums": sums}

    def measure(self, future: Future) -> PendingSize:
        """Submit the task that measures a run."""
        return PendingSize(self.submit("measure", tasks.measure_runs, future, key_of=[future.key]))

    def part(self, run: RunReference, region: int, pivot: int, upper: bool) -> RunReference:
        """Submit the task that cuts the part of a run for a new region."""
        arguments = (run.future, pivot, upper)
        future = self.submit("split", tasks.split, *arguments, key_of=(run.future.key, pivot, upper))
        name = run_identity(region, run.first_round, run.last_round)
        return replace(run, identity=name, value=future, read=None, size=self.measure(future), inputs=())


def _keys(futures: Sequence[Submitted]) -> list[str]:
    return [future.key for future in futures]
