"""Committing the regions of a cluster to a network's store.

Covers: packing and writing the runs that no commit holds yet, on the workers that hold them, and
cutting the lineage of what follows. Does not cover: the format (`giaann_dask.network.store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distributed import Client, Future

from giaann_dask.cluster import results, task_key
from giaann_dask.network.manifest import Manifest, StoredRun
from giaann_dask.network.region import RankedRun
from giaann_dask.network.store import CommitChange, NetworkStore, write_run
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.rounds import Regions, RunHandle


@dataclass(frozen=True, eq=False)
class Progress:
    """What a commit says besides the runs.

    Attributes
    ----------
    manifest : Manifest
        Counts and sizes; its runs, connections and rounds are filled in here.
    vocabulary : Vocabulary
        Dictionaries, possibly further than the manifest.
    ledger : Ledger
        Parts of text that count.
    """

    manifest: Manifest
    vocabulary: Vocabulary
    ledger: Ledger


def load_regions(client: Client, store: NetworkStore, commit: str, regions: Regions) -> None:
    """Let every region continue from the runs of a commit."""
    for run in store.open(commit).manifest().runs:
        future = _open(client, store, commit, run.identity)
        _, rounds = run.identity.split(".")
        first, last = (int(number) for number in rounds.split("-"))
        handle = RunHandle(run.identity, future, first, last, stored=True)
        regions.runs[run.region] = (*regions.runs[run.region], RankedRun(run.rank, handle))


def commit_regions(client: Client, store: NetworkStore, regions: Regions, progress: Progress) -> str:
    """Commit the present runs of all regions.

    Parameters
    ----------
    client : Client
        Where the runs are.
    store : NetworkStore
        An existing network.
    regions : Regions
        Runs; they continue from the commit afterwards.
    progress : Progress
        Counts, dictionaries and ledger to commit with them.

    Returns
    -------
    str
        Identity of the commit.

    Raises
    ------
    StoreWriteError
        If the disk is full. The last commit stays as it was.
    """
    _drop_empty_runs(client, regions)
    handles = list(_handles(regions))
    sizes = _measure(client, handles)
    totals: list[tasks.RunSize] = results([_count(client, runs) for runs in regions.runs if runs])
    stored = tuple(
        StoredRun(run.handle.identity, region, run.rank, size.neurons, size.connections)
        for (region, _, run), size in zip(handles, sizes, strict=True)
    )
    manifest = replace(
        progress.manifest,
        runs=stored,
        neurons=sum(total.neurons for total in totals),
        connections=sum(total.connections for total in totals),
        rounds=regions.rounds,
    )
    head, session = store.head(), store.begin()
    fork = session.fork()
    written = []
    for _, _, run in handles:
        if not run.handle.stored:
            packed = _task(client, "pack", tasks.pack_run, run.handle)
            key = task_key("commit", str(store.path.resolve()), head, run.handle.identity, packed.key)
            written.append(client.submit(write_run, fork, run.handle.identity, packed, key=key))
    change = CommitChange(manifest, progress.vocabulary, progress.ledger.entries)
    commit = store.commit(session, results(written), store.open(head), change)
    for region, index, run in handles:
        if not run.handle.stored:
            regions.replace_run(region, index, _open(client, store, commit, run.handle.identity))
    return commit


def _drop_empty_runs(client: Client, regions: Regions) -> None:
    """Forget runs of rounds that did not touch their region."""
    handles = list(_handles(regions))
    kept: list[list[RankedRun[RunHandle]]] = [[] for _ in regions.runs]
    for (region, _, run), size in zip(handles, _measure(client, handles), strict=True):
        if size.neurons:
            kept[region].append(run)
    regions.runs = [tuple(runs) for runs in kept]


def _measure(client: Client, handles: Sequence[tuple[int, int, RankedRun[RunHandle]]]) -> list[tasks.RunSize]:
    return results([_task(client, "measure", tasks.measure_run, run.handle) for _, _, run in handles])


def _handles(regions: Regions) -> Iterator[tuple[int, int, RankedRun[RunHandle]]]:
    for region, runs in enumerate(regions.runs):
        for index, run in enumerate(runs):
            yield region, index, run


def _task(client: Client, name: str, function: object, handle: RunHandle) -> Future:
    return client.submit(function, handle.future, key=task_key(name, handle.future.key))


def _count(client: Client, runs: tuple[RankedRun[RunHandle], ...]) -> Future:
    futures = [run.handle.future for run in runs]
    return client.submit(tasks.count_region, *futures, key=task_key("count", [f.key for f in futures]))


def _open(client: Client, store: NetworkStore, commit: str, identity: str) -> Future:
    path = str(store.path.resolve())
    return client.submit(tasks.open_run, path, commit, identity, key=task_key("open", path, commit, identity))
