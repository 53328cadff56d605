"""Compact a stored network: add up the runs of each region, and remove data that no commit needs.

`giaann_dask.runs.merging` plans the compaction during training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distributed import Client

from giaann_dask.cluster import attempt, roles_of
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.errors import StoreFullError, require_option
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.models import model_of
from giaann_dask.representations import format_bytes
from giaann_dask.runs.packing import RUN_ARRAYS
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import StoredRun
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.ledger import Ledger
from giaann_dask.training.committing import CommitContents, commit_regions, load_regions
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import sizes_of

# Files of a stored run at most: connections, neurons and postings, two for each array.
_FILES = 3 * 2 * len(RUN_ARRAYS)


@dataclass(frozen=True)
class CompactionReport:
    """Result of the compaction of a stored network.

    Attributes
    ----------
    runs_before, runs : int
        Runs of the network before and after.
    freed_bytes : int
        Bytes that were removed from the disk.
    commit : str
        Identity of the last commit.
    """

    runs_before: int
    runs: int
    freed_bytes: int
    commit: str

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


def check_kept(keep_commits: int | None) -> None:
    """Raise an `OptionError` when no commit would be kept; None keeps all."""
    valid = keep_commits is None or keep_commits >= 1
    require_option(valid, "keep_commits", keep_commits, "1 or more, as the last commit is always kept")


@attempt()
def compact_network(
    client: Client, store: NetworkStore, keep_commits: int | None = None, observer: Observer = ignore
) -> CompactionReport:
    """Merge the runs of every region into one, commit, and remove data that no commit needs.

    The connections stay the same, to the byte of what is exported.

    Parameters
    ----------
    client : Client
        Where runs are added.
    store : NetworkStore
        The network.
    keep_commits : int, optional
        Forget all but the last so many commits; all are kept by default, with their runs. Tables of profile
        ``contexts`` of others are removed from the user's cache folder here and on all workers.
    observer : callable, optional
        Called with an event for every region that has been added up.

    Raises
    ------
    OptionError
        If no commit would be kept.
    StoreFullError
        If the disk is too full for the new runs; the network stays as it was.
    StoreWriteError
        If another process writes to the network.
    StoreUnsharedError
        If a worker cannot access the network.
    """
    check_kept(keep_commits)
    # A lost or closed cluster is an error before anything is removed, also when there is nothing to add up.
    roles_of(client)
    with store.lock() as held:
        commit = store.head()
        reader = store.open(commit)
        manifest = reader.manifest()
        several = [runs for runs in manifest.runs_by_region().values() if len(runs) > 1]
        freed = 0
        if several:
            with _explaining_full_disk(store, several):
                # Unneeded data first, also that of failed commits: this may free enough space.
                freed = store.collect(keep_commits)
                SharedPlace(client, held).require()
                commit = _add_up(client, store, reader, observer)
        freed += store.collect(keep_commits)
        if keep_commits is not None:
            current = {store.head(), *store.other_commits()}
            model_of(manifest.specification).clear_tables(client, str(store.path), current, ())
        after = store.open(commit).manifest()
    return CompactionReport(len(manifest.runs), len(after.runs), freed, commit)


def _add_up(client: Client, store: NetworkStore, reader: CommitReader, observer: Observer) -> str:
    """Add up the runs of every region of a commit into one, and return the identity of the commit that has them."""
    manifest = reader.manifest()
    regions = Regions(client, reader.placement(), manifest.rounds)
    load_regions(reader, regions)
    regions.compaction.compact_all(regions.runs)
    for done, runs in enumerate(regions.runs.values(), 1):
        sizes_of(runs)
        observer(StageAdvanced("compact", done, len(regions.runs), "regions"))
    contents = CommitContents(manifest, reader.vocabulary(), Ledger(reader.ledger()))
    return commit_regions(store, regions, regions.snapshot(whole=True), contents, last=True)


@contextmanager
def _explaining_full_disk(store: NetworkStore, several: Sequence[Sequence[StoredRun]]) -> Iterator[None]:
    """Name the required space and a remedy in the error of a full disk, as compaction itself needs space."""
    try:
        yield
    except StoreFullError as error:
        # For each array, a file of values and one of metadata are written, which take whole blocks.
        blocks = len(several) * _FILES * os.statvfs(store.path).f_frsize
        nbytes = blocks + sum(run.nbytes for runs in several for run in runs)
        raise StoreFullError(
            error.received,
            f"about {format_bytes(nbytes)} of free space, because runs are rewritten before the old ones are removed",
            "remove other files from that disk, or move the network to a larger one and compact it there; where fewer "
            "commits are kept, the others are removed first; the network is as it was",
        ) from error
