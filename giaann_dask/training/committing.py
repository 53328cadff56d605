"""Commit the regions of a cluster to a network's store, and load them from it.

A commit has three steps: `take_snapshot` when its last round is submitted, `commit_regions` when that round is
integrated, and `settle`, with which regions continue from the store.

Runs that are not stored yet are packed and written on the workers that have them in memory; afterwards the lineage of
later runs begins at the store. The format is in `giaann_dask.store.network_store`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import icechunk
from distributed import Future

from giaann_dask.cluster import result, results
from giaann_dask.events import RegionMeasured
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RunSize
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import CommitChange, NetworkStore
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.region_counts import counts_of, known_counts, submit_counts
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import RunReference, Runs, Snapshot, sizes_of


@dataclass(frozen=True, eq=False)
class Progress:
    """Contents of a commit in addition to the runs.

    Attributes
    ----------
    manifest : Manifest
        Counts and sizes; its runs, connections and rounds are filled in here.
    vocabulary : Vocabulary
        Dictionaries, possibly further than the manifest.
    ledger : Ledger
        Parts of text that have been counted.
    """

    manifest: Manifest
    vocabulary: Vocabulary
    ledger: Ledger


def load_regions(store: NetworkStore, commit: str, regions: Regions) -> None:
    """Let every region continue from the runs of a commit, which stay in the store until something needs them."""
    manifest = store.open(commit).manifest()
    for run in manifest.runs:
        regions.continue_from(run, _reading(regions, store, commit, run.identity))
    regions.counted = known_counts(manifest)
    _open_columns(regions, store, commit)


def take_snapshot(regions: Regions, *, whole: bool = False) -> Snapshot:
    """Return the runs of all regions as of now, to be committed; later rounds do not change it.

    Until `settle`, its runs are not added to others: the lineage of the sums would begin at the text instead of
    the commit, and so would that of all later runs.

    Parameters
    ----------
    regions : Regions
        The present regions.
    whole : bool
        Whether to wait for stored runs that are being added up, instead of committing these as they are.
    """
    now = regions.now()
    if not whole:
        # The commit of an earlier snapshot stores these runs instead of their inputs.
        awaited = regions.awaited_names()
        runs = {
            region: tuple(part for run in runs for part in run.to_commit(awaited)) for region, runs in now.runs.items()
        }
        now = replace(now, runs=runs)
    regions.awaited.append(now)
    return now


def with_stored(regions: Regions, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with references to the store for runs that an earlier commit has stored since."""
    runs = {
        region: tuple(regions.stored.get(run.identity, run) for run in runs) for region, runs in snapshot.runs.items()
    }
    return replace(snapshot, runs=runs)


def settle(regions: Regions, snapshot: Snapshot, stored: Mapping[str, Callable[[], Future]], empty: Set[str]) -> None:
    """Continue from the commit of a snapshot, and add up the runs that had to wait for it.

    Stored runs are added up with stored runs only, so that neither rounds nor commits wait for that.

    Parameters
    ----------
    regions : Regions
        The present regions.
    snapshot : Snapshot
        The committed snapshot.
    stored : mapping of str to callable
        Submits the task that reads a run, for its runs that are new in the store, by identity.
    empty : set of str
        Identities of empty runs, which no commit has; they are removed, or their lineage would begin at the text.
    """
    _continue_from(regions, stored)
    regions.awaited.remove(snapshot)
    awaited = regions.awaited_names()
    regions.stored = {name: run for name, run in regions.stored.items() if name in awaited}
    for region, every in regions.runs.items():
        runs = tuple(run for run in every if run.identity not in empty)
        regions.runs[region] = _folded(regions, region, runs, awaited)


def _folded(regions: Regions, region: int, runs: Runs, awaited: Set[str]) -> Runs:
    """Return runs of which the persisted ones at the beginning are added up as if they were added one by one."""
    fixed = [run.waits(awaited) or not run.persisted for run in runs]
    free = fixed.index(True) if True in fixed else len(runs)
    folded: Runs = ()
    for run in runs[:free]:
        folded = regions.with_run(region, folded, run)
    return (*folded, *runs[free:])


def _continue_from(regions: Regions, stored: Mapping[str, Callable[[], Future]]) -> None:
    """Replace runs that have been stored, if they still exist as runs, by references to the store."""
    runs = {run.identity: run for _, run in regions.now().references()}
    continued = {}
    for identity in stored.keys() & runs.keys():
        read = stored[identity]
        value = read()
        # Measured again, or the future of its size would keep the run's earlier tasks in the scheduler.
        size = regions.measure(value)
        continued[identity] = replace(runs[identity], value=value, read=read, size=size, packed=True, inputs=())
    regions.replace_runs(continued)
    regions.stored |= continued


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
    StoreUnsharedError
        If a worker cannot access the store. Likewise.
    """
    runs = with_stored(regions, snapshot).references()
    # Each run is packed as soon as it is computed, while others are still being added up.
    packed = [(region, regions.packed(run)) for region, run in runs]
    sizes = {run.identity: size for (_, run), size in zip(runs, _sizes(runs), strict=True)}
    # Runs of rounds that did not touch their region are empty, and left out.
    empty = {identity for identity, size in sizes.items() if size.empty}
    kept = [(region, run) for region, run in packed if run.identity not in empty]
    session, place = store.begin(), _place(store)
    # Counting the distinct entries of a region reads its runs, so it is done once at the end.
    countings = submit_counts(regions, kept, sizes, place) if last else []
    new = [run for _, run in kept if not run.stored]
    written = _write(regions, store, place, session, new)
    placement = _placement(regions, snapshot)
    counts = counts_of(countings)
    runs_of = Counter(region for region, _ in kept)
    totals = list(counts.values()) if last else [sizes[run.identity] for _, run in kept]
    manifest = replace(
        progress.manifest,
        runs=tuple(
            StoredRun(run.identity, region, run.rank, size.neurons, size.connections, size.nbytes)
            for (region, run), size in zip(kept, _sizes(kept), strict=True)
        ),
        neurons=sum(total.neurons for total in totals),
        connections=sum(total.connections for total in totals),
        exact=last or len(runs_of) == len(kept),
        rounds=snapshot.rounds,
        splits=placement.splits,
        load=tuple(placement.load.tolist()),
        counts={region: count for region, count in counts.items() if runs_of[region] > 1},
    )
    change = CommitChange(manifest, progress.vocabulary, progress.ledger.entries, placement)
    commit = store.commit(session, results(written), store.open(place[1]), change)
    if last:
        return commit
    stored = {run.identity: _reading(regions, store, commit, run.identity) for run in new}
    settle(regions, snapshot, stored, empty)
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


def _place(store: NetworkStore) -> tuple[str, str]:
    """Return the path of the store and the identity of its last commit, for workers."""
    return str(store.path), store.head()


def _write(
    regions: Regions,
    store: NetworkStore,
    place: tuple[str, str],
    session: icechunk.Session,
    new: Sequence[RunReference],
) -> list[Future]:
    """Submit tasks that write runs into forks of a session, which are merged into it."""
    # The keys are unique: data of a session that was not committed may have been removed since.
    attempt = uuid.uuid4().hex
    fork = store.fork(session) if new else b""
    return [
        regions.submit(
            "commit",
            tasks.write_stored,
            *(fork, run.identity, run.future),
            key_of=(*place, attempt, run.identity, run.future.key),
        )
        for run in new
    ]


def _placement(regions: Regions, snapshot: Snapshot) -> Placement:
    """Return the placement as of a snapshot; columns of later rounds may have their region already."""
    columns = regions.columns if isinstance(regions.columns, Placement) else result(regions.columns)
    return replace(columns, splits=snapshot.splits)


def _sizes(runs: Sequence[tuple[int, RunReference]]) -> list[RunSize]:
    return sizes_of([run for _, run in runs])


def _reading(regions: Regions, store: NetworkStore, commit: str, identity: str) -> Callable[[], Future]:
    return partial(_open, regions, store, commit, identity)


def _open(regions: Regions, store: NetworkStore, commit: str, identity: str) -> Future:
    path = str(store.path)
    return regions.submit("open", tasks.open_run, path, commit, identity, key_of=(path, commit, identity))


def _open_columns(regions: Regions, store: NetworkStore, commit: str) -> None:
    """Let later rounds continue from the stored table of columns, where there is one."""
    path = str(store.path)
    if store.open(commit).manifest().specification.placement != "hash":
        regions.columns = regions.submit("open", tasks.open_columns, path, commit, key_of=(path, commit, "columns"))
