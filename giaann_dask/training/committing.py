"""Committing the regions of a cluster to a network's store.

Covers: packing and writing the runs that no commit holds yet, on the workers that hold them, and
cutting the lineage of what follows. Does not cover: the format (`giaann_dask.network.store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distributed import Future

from giaann_dask.cluster import result, results
from giaann_dask.events import RegionMeasured
from giaann_dask.network.manifest import Manifest, StoredRun
from giaann_dask.network.placement import Placement
from giaann_dask.network.region import RankedRun
from giaann_dask.network.run_writing import fork_session, write_run
from giaann_dask.network.store import CommitChange, NetworkStore
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_handles import RunHandle, Snapshot


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


def load_regions(store: NetworkStore, commit: str, regions: Regions) -> None:
    """Let every region continue from the runs of a commit."""
    for run in store.open(commit).manifest().runs:
        regions.open_run(run.region, run.rank, run.identity, _open(regions, store, commit, run.identity))
    _open_columns(regions, store, commit)


def commit_regions(
    store: NetworkStore, regions: Regions, snapshot: Snapshot, progress: Progress, *, last: bool = False
) -> str:
    """Commit the runs of all regions as of some round, while later rounds go on.

    Parameters
    ----------
    store : NetworkStore
        An existing network.
    regions : Regions
        The present regions; runs that are committed continue from the store afterwards.
    snapshot : Snapshot
        What to commit.
    progress : Progress
        Counts, dictionaries and ledger as of the same round.
    last : bool
        Whether nothing follows, so that no run has to be opened again.

    Returns
    -------
    str
        Identity of the commit.

    Raises
    ------
    StoreWriteError
        If the disk is full. The last commit stays as it was.
    """
    handles = regions.with_stored(snapshot).handles()
    # Each run is packed as soon as it is there, while others are still being added up.
    packed = {run.handle.identity: regions.packed(run.handle) for _, run in handles}
    sizes: list[tasks.RunSize] = results([run.handle.size for _, run in handles])
    # Runs of rounds that did not touch their region are empty, and left out.
    empty = {run.handle.identity for (_, run), size in zip(handles, sizes, strict=True) if size.empty}
    kept = [(region, run) for region, run in handles if run.handle.identity not in empty]
    # What the runs of a region have together takes reading all of them, so it is counted once at the end.
    totals: list[tasks.RunSize] = (
        results(_counts(regions, kept, packed)) if last else [size for size in sizes if not size.empty]
    )
    new = [run.handle for _, run in kept if not run.handle.stored]
    packed_sizes: list[tasks.RunSize] = results([packed[run.handle.identity].size for _, run in kept])
    head, session = store.head(), store.begin()
    # A session that was forked wants its forks back.
    fork = fork_session(session) if new else b""
    written = [
        regions.submit(
            "commit",
            write_run,
            *(fork, handle.identity, packed[handle.identity].future),
            key_of=(str(store.path.resolve()), head, handle.identity, packed[handle.identity].future.key),
        )
        for handle in new
    ]
    placement = _placement(regions, snapshot)
    manifest = replace(
        progress.manifest,
        runs=tuple(
            StoredRun(run.handle.identity, region, run.rank, size.neurons, size.connections, size.nbytes)
            for (region, run), size in zip(kept, packed_sizes, strict=True)
        ),
        neurons=sum(total.neurons for total in totals),
        connections=sum(total.connections for total in totals),
        exact=last or len({region for region, _ in kept}) == len(kept),
        rounds=snapshot.rounds,
        splits=placement.splits,
        load=tuple(placement.load.tolist()),
    )
    change = CommitChange(manifest, progress.vocabulary, progress.ledger.entries, placement)
    commit = store.commit(session, results(written), store.open(head), change)
    if last:
        return commit
    stored = {handle.identity: _open(regions, store, commit, handle.identity) for handle in new}
    regions.settle(snapshot, stored, empty)
    _open_columns(regions, store, commit)
    return commit


def stored_regions(manifest: Manifest, touches: Mapping[int, int]) -> tuple[RegionMeasured, ...]:
    """Return what the regions of a commit hold in the store, with the column touches given by region."""
    by_region: dict[int, list[StoredRun]] = {}
    for run in manifest.runs:
        by_region.setdefault(run.region, []).append(run)
    return tuple(
        RegionMeasured(
            region,
            sum(run.connections for run in runs),
            sum(run.neurons for run in runs),
            sum(run.nbytes for run in runs),
            len(runs),
            touches.get(region, 0),
        )
        for region, runs in sorted(by_region.items())
    )


def _placement(regions: Regions, snapshot: Snapshot) -> Placement:
    """Return where neurons belong as of a snapshot; columns of later rounds may have their region already."""
    columns = regions.columns if isinstance(regions.columns, Placement) else result(regions.columns)
    return replace(columns, splits=snapshot.splits)


def _counts(
    regions: Regions, runs: Sequence[tuple[int, RankedRun[RunHandle]]], packed: Mapping[str, RunHandle]
) -> list[Future]:
    """Submit, for every region, the counting of what its runs have together."""
    by_region: dict[int, list[Future]] = {}
    for region, run in runs:
        by_region.setdefault(region, []).append(packed[run.handle.identity].future)
    return [
        regions.submit("count", tasks.count_region, *futures, key_of=[future.key for future in futures])
        for futures in by_region.values()
    ]


def _open(regions: Regions, store: NetworkStore, commit: str, identity: str) -> Future:
    path = str(store.path.resolve())
    return regions.submit("open", tasks.open_run, path, commit, identity, key_of=(path, commit, identity))


def _open_columns(regions: Regions, store: NetworkStore, commit: str) -> None:
    """Let later rounds continue from the stored table of columns, where there is one."""
    path = str(store.path.resolve())
    if store.open(commit).manifest().specification.placement != "hash":
        regions.columns = regions.submit("open", tasks.open_columns, path, commit, key_of=(path, commit, "columns"))
