"""Committing the regions of a cluster to a network's store.

Covers: packing and writing the runs that no commit holds yet, on the workers that hold them, and
cutting the lineage of what follows. Does not cover: the format (`giaann_dask.network.store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distributed import Client, Future

from giaann_dask.cluster import results, task_key
from giaann_dask.network.manifest import Manifest, StoredRun
from giaann_dask.network.region import RankedRun
from giaann_dask.network.store import CommitChange, NetworkStore, write_run
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.rounds import Regions, RunHandle, Snapshot


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


def commit_regions(
    client: Client, store: NetworkStore, regions: Regions, snapshot: Snapshot, progress: Progress
) -> str:
    """Commit the runs of all regions as of some round, while later rounds go on.

    Parameters
    ----------
    client : Client
        Where the runs are.
    store : NetworkStore
        An existing network.
    regions : Regions
        The present regions; runs that are committed continue from the store afterwards.
    snapshot : Snapshot
        What to commit.
    progress : Progress
        Counts, dictionaries and ledger as of the same round.

    Returns
    -------
    str
        Identity of the commit.

    Raises
    ------
    StoreWriteError
        If the disk is full. The last commit stays as it was.
    """
    handles = snapshot.handles()
    sizes: list[tasks.RunSize] = results(
        [_task(client, "measure", tasks.measure_run, run.handle) for _, run in handles]
    )
    # Runs of rounds that did not touch their region are empty, and left out.
    kept = [(region, run, size) for (region, run), size in zip(handles, sizes, strict=True) if size.neurons]
    totals: list[tasks.RunSize] = results(_counts(client, [(region, run) for region, run, _ in kept]))
    stored = tuple(
        StoredRun(run.handle.identity, region, run.rank, size.neurons, size.connections) for region, run, size in kept
    )
    manifest = replace(
        progress.manifest,
        runs=stored,
        neurons=sum(total.neurons for total in totals),
        connections=sum(total.connections for total in totals),
        rounds=snapshot.rounds,
    )
    new = [run.handle for _, run, _ in kept if not run.handle.stored]
    head, session = store.head(), store.begin()
    fork = session.fork()
    written = []
    for handle in new:
        packed = _task(client, "pack", tasks.pack_run, handle)
        key = task_key("commit", str(store.path.resolve()), head, handle.identity, packed.key)
        written.append(client.submit(write_run, fork, handle.identity, packed, key=key))
    change = CommitChange(manifest, progress.vocabulary, progress.ledger.entries)
    commit = store.commit(session, results(written), store.open(head), change)
    regions.replace_runs({handle.identity: _open(client, store, commit, handle.identity) for handle in new})
    return commit


def _task(client: Client, name: str, function: object, handle: RunHandle) -> Future:
    return client.submit(function, handle.future, key=task_key(name, handle.future.key))


def _counts(client: Client, runs: Sequence[tuple[int, RankedRun[RunHandle]]]) -> list[Future]:
    """Submit, for every region, the counting of what its runs have together."""
    by_region: dict[int, list[Future]] = {}
    for region, run in runs:
        by_region.setdefault(region, []).append(run.handle.future)
    return [
        client.submit(tasks.count_region, *futures, key=task_key("count", [future.key for future in futures]))
        for futures in by_region.values()
    ]


def _open(client: Client, store: NetworkStore, commit: str, identity: str) -> Future:
    path = str(store.path.resolve())
    return client.submit(tasks.open_run, path, commit, identity, key=task_key("open", path, commit, identity))
