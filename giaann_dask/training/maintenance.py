"""Maintenance of a stored network: adding up its runs and removing what no commit needs.

Covers: what ``compact`` does. Does not cover: the compaction that training does as it goes
(`giaann_dask.network.region`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distributed import Client

from giaann_dask.cluster import attempt
from giaann_dask.errors import OptionError, parameter
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.network.store import NetworkStore
from giaann_dask.text.ledger import Ledger
from giaann_dask.training.committing import Progress, commit_regions, load_regions
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_handles import sizes_of


@dataclass(frozen=True)
class CompactionReport:
    """What compaction did.

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
    if keep_commits is not None and keep_commits < 1:
        raise OptionError(
            f"{parameter('keep_commits')} is {keep_commits}", "1 or more", "the last commit is always kept"
        )


@attempt()
def compact_network(
    client: Client, store: NetworkStore, keep_commits: int | None = None, observer: Observer = ignore
) -> CompactionReport:
    """Add up the runs of every region into one, commit, and remove what no commit needs.

    The connections stay the same, to the byte of what is exported.

    Parameters
    ----------
    client : Client
        Where runs are added.
    store : NetworkStore
        The network.
    keep_commits : int, optional
        Forget all but the last so many commits; all are kept by default, with their runs.
    observer : callable, optional
        Told of every region that is added up.

    Raises
    ------
    OptionError
        If no commit would be kept.
    StoreWriteError
        If the disk is full or another process writes to the network.
    """
    check_kept(keep_commits)
    with store.lock():
        commit = store.head()
        reader = store.open(commit)
        manifest = reader.manifest()
        regions = Regions(client, reader.placement(), manifest.rounds)
        load_regions(store, commit, regions)
        if len(manifest.runs) > len({run.region for run in manifest.runs}):
            for region in regions.runs:
                regions.compact_all(region)
            for done, runs in enumerate(regions.runs.values(), 1):
                sizes_of([run.handle for run in runs])
                observer(StageAdvanced("compact", done, len(regions.runs), "regions"))
            progress = Progress(manifest, reader.vocabulary(), Ledger(reader.ledger()))
            commit = commit_regions(store, regions, regions.snapshot(whole=True), progress, last=True)
        freed = store.collect(keep_commits)
        after = store.open(commit).manifest()
    return CompactionReport(len(manifest.runs), len(after.runs), freed, commit)
