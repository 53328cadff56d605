"""Publish the runs of a commit on a scheduler, so that they stay in memory beyond the client that opened them.

Dask keeps the futures of a published dataset, and computes again what is lost with a worker. A policy of Dask's active
memory manager moves runs when workers join or leave. Does not cover: opening runs (`giaann_dask.training.committing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed import Client, Future, Scheduler
from distributed.active_memory_manager import ActiveMemoryManagerPolicy

from giaann_dask.cluster.roles import assign_regions, roles_among
from giaann_dask.cluster.waiting import query_scheduler, timeout_s
from giaann_dask.library_internals import call_within
from giaann_dask.representations import Summarised, Summary, format_bytes

if TYPE_CHECKING:
    from distributed.active_memory_manager import Suggestion

_PREFIX = "giaann-dask "


@dataclass(frozen=True, kw_only=True, repr=False)
class PersistedCommit(Summarised):
    """Commit whose runs stay in the memory of workers.

    Attributes
    ----------
    network, commit : str
        Folder or URL of the network, and the identity of the commit.
    runs, held : int
        Runs of its regions, and how many of them workers have in memory or compute again: none after
        ``client.restart()``, until the network is persisted again. What no worker has is read from the store.
    workers : dict of str to int
        Bytes of these runs that each worker holds, in memory or spilled to its disk, by address.
    """

    network: str
    commit: str
    runs: int
    held: int
    workers: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of the runs on all workers."""
        return sum(self.workers.values())

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**vars(self), "workers": dict(self.workers), "nbytes": self.nbytes}

    def summary(self) -> Summary:
        """Return the lines that represent it."""
        held = tuple((worker, format_bytes(nbytes)) for worker, nbytes in sorted(self.workers.items()))
        lost = f"{self.held} of {self.runs} in memory; persist the network again"
        runs = str(self.runs) if self.held == self.runs else lost
        return Summary(f"Persisted {self.network}", (("commit", self.commit), ("runs", runs), *held))


def dataset_of(path: str) -> str:
    """Return the name under which the runs of a network are published."""
    return _PREFIX + path


def publish_runs(client: Client, path: str, commit: str, runs: Mapping[int, Sequence[Future]]) -> None:
    """Publish the runs of a commit instead of those of an earlier commit of the same network.

    Parameters
    ----------
    client : Client
        Of the cluster.
    path, commit : str
        The network and the commit.
    runs : mapping of int to sequence of Future
        Runs by region.
    """
    name, limit = dataset_of(path), timeout_s()
    futures = [future for its in runs.values() for future in its]
    call_within(limit, client, "publish_dataset", futures, name=name, override=True)
    published = PublishedRuns(commit, {future.key: region for region, its in runs.items() for future in its})
    call_within(limit, client, "run_on_scheduler", _balance, name=name, published=published)


def unpublish_runs(client: Client, path: str) -> bool:
    """Stop keeping the runs of a network in memory; return whether they were kept."""
    kept = is_published(client, path)
    if kept:
        call_within(timeout_s(), client, "unpublish_dataset", dataset_of(path))
    return kept


def is_published(client: Client, path: str) -> bool:
    """Return whether a commit of a network stays in memory on the client's cluster."""
    return dataset_of(path) in query_scheduler(client, "publish_list")


def published_commits(client: Client) -> list[PersistedCommit]:
    """Return the commits whose runs stay in memory on the client's cluster, in the order of their networks' names.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    found = call_within(timeout_s(), client, "run_on_scheduler", _describe_published)
    return [PersistedCommit(**each) for each in found]


def _describe_published(dask_scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return the fields of the `PersistedCommit` of each published commit; called on the scheduler."""
    datasets, policy = dask_scheduler.extensions["publish"].datasets, _policy_of(dask_scheduler)
    found = []
    for name, (commit, regions) in sorted({} if policy is None else policy.published.items()):
        if name not in datasets:
            continue
        # A restart of the workers forgets all tasks, and leaves what is published.
        tasks = [ts for key in regions if (ts := dask_scheduler.tasks.get(key)) is not None]
        workers: dict[str, int] = {}
        for ts in tasks:
            for ws in ts.who_has or ():
                workers[ws.address] = workers.get(ws.address, 0) + max(ts.nbytes, 0)
        network = name.removeprefix(_PREFIX)
        found.append(
            {"network": network, "commit": commit, "runs": len(regions), "held": len(tasks), "workers": workers}
        )
    return found


class PublishedRuns(NamedTuple):
    """Commit whose runs are published, and the region of each run, by its key."""

    commit: str
    regions: Mapping[str, int]


class _Assigned(NamedTuple):
    """Owners of regions, and the runs and workers among which they were assigned."""

    owners: Mapping[int, str]
    regions: Mapping[str, int]
    workers: Set[str]


class OwnerBalance(ActiveMemoryManagerPolicy):  # type: ignore[misc]
    """Move published runs to the workers that own their regions after workers have joined or left.

    Owners are assigned by memory, as those of a training (`giaann_dask.cluster.roles.assign_regions`).
    """

    def __init__(self) -> None:
        # By name of the dataset.
        self.published: dict[str, PublishedRuns] = {}
        self._assigned: dict[str, _Assigned] = {}

    def run(self) -> Iterator[Suggestion]:
        """Suggest copies at new owners, and the removal of those elsewhere; called by Dask every two seconds."""
        scheduler = self.manager.scheduler
        datasets = scheduler.extensions["publish"].datasets
        self.published = {name: published for name, published in self.published.items() if name in datasets}
        self._assigned = {name: assigned for name, assigned in self._assigned.items() if name in self.published}
        for name, (_, regions) in self.published.items():
            runs = [(ts, region) for key, region in regions.items() if (ts := scheduler.tasks.get(key)) is not None]
            owners = self._owners(name, runs)
            for ts, region in runs:
                yield from _suggestions(ts, scheduler.workers.get(owners.get(region)))

    def _owners(self, name: str, runs: Sequence[tuple[Any, int]]) -> Mapping[int, str]:
        """Return the owners of the regions of a dataset; they are assigned when its runs or the workers change."""
        scheduler, regions = self.manager.scheduler, self.published[name].regions
        known = self._assigned.get(name)
        if known is not None and known.regions is regions and known.workers == scheduler.workers.keys():
            return known.owners
        weights = dict.fromkeys(regions.values(), 0)
        for ts, region in runs:
            weights[region] += max(ts.nbytes, 0)
        before = (
            {region: ws.address for ts, region in runs for ws in ts.who_has or ()} if known is None else known.owners
        )
        # It describes every worker.
        roles = roles_among(scheduler.identity(n_workers=-1)["workers"])
        owners = assign_regions(before, weights, roles)
        # Until all runs are there, the sizes that decide are not known.
        if all(ts.who_has for ts, _ in runs):
            self._assigned[name] = _Assigned(owners, regions, frozenset(scheduler.workers))
        return owners


def _suggestions(ts: Any, owner: Any) -> Iterator[Suggestion]:
    """Suggest what brings a run to its owner and to no other worker."""
    from distributed.active_memory_manager import Suggestion

    if owner is None or not ts.who_has:
        return
    if owner not in ts.who_has:
        yield Suggestion("replicate", ts, {owner})
    elif len(ts.who_has) > 1:
        for other in ts.who_has - {owner}:
            yield Suggestion("drop", ts, {other})


def _balance(dask_scheduler: Scheduler, name: str, published: PublishedRuns) -> None:
    """Have the policy keep the runs of a dataset at the owners of their regions; called on the scheduler."""
    policy = _policy_of(dask_scheduler)
    if policy is None:
        policy = OwnerBalance()
        dask_scheduler.extensions["amm"].add_policy(policy)
    policy.published = {**policy.published, name: published}


def _policy_of(scheduler: Scheduler) -> OwnerBalance | None:
    """Return the policy of a scheduler, None where nothing was published."""
    return next((each for each in scheduler.extensions["amm"].policies if isinstance(each, OwnerBalance)), None)
