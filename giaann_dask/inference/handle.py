"""Open a commit for inference: tasks that read its regions, flags and placement onto workers.

Other tasks get whole regions or request rows, depending on the workers' memory. Does not cover: row requests
(`giaann_dask.inference.rows.remote`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import query_scheduler, roles_of, task_key, wait_all
from giaann_dask.cluster.regions import (
    merge_region,
    open_region,
    region_places,
    submit_by_region,
    submit_runs,
)
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import register
from giaann_dask.inference.rows.health import find_trouble, is_lost
from giaann_dask.inference.rows.remote import RegionKeys, RowOptions
from giaann_dask.inference.state.name_order import NameOrder
from giaann_dask.inference.state.sequence import FlagTable
from giaann_dask.runs.minhash import MinHashes, merge_minhashes, minhash_neighbours, similar_by_neighbours
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.attachments import NEIGHBOURS, Attachments, attach
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

# Workers have imported Dask when tasks are loaded there; a client registers what it submits.
if "dask" in sys.modules:
    register()


@dataclass(frozen=True, slots=True, eq=False)
class FlagChange:
    """Difference of an expanded vocabulary's flags from those of a commit.

    Attributes
    ----------
    features : int
        Features of the commit's saved dictionaries.
    delimiter : ndarray
        Delimiter flag of each feature added since; bool.
    changed : ndarray
        Features whose probable flag has been set since; int64.
    since : ndarray
        Sequence that set each of them; int64.
    delimited, delimited_since : ndarray
        The same of delimiter flags that can be set later than at the first occurrence; int64.
    """

    features: int
    delimiter: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.int64]
    since: npt.NDArray[np.int64]
    delimited: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    delimited_since: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def between(
        cls, base: FlagTable, vocabulary: Vocabulary, features: npt.NDArray[np.integer] | None = None
    ) -> FlagChange:
        """Return the difference of a vocabulary from the flags of the saved one.

        Parameters
        ----------
        base : FlagTable
            Saved flags.
        vocabulary : Vocabulary
            One that has grown from the saved one.
        features : ndarray of int, optional
            Those by which it has, when it is known: only their flags are looked at.
        """
        known = len(base.probable_since)
        used = np.arange(len(vocabulary.features)) if features is None else np.unique(features).astype(np.int64)
        since = np.array([vocabulary.probable_since[f] for f in used.tolist()], np.int64)
        before = np.where(used < known, base.probable_since[np.minimum(used, known - 1)], -1)
        added = np.array(vocabulary.delimiter[known:], np.bool_)
        if vocabulary.delimiter_since is None or base.delimiter_since is None:
            return cls(known, added, used[since != before], since[since != before])
        # Where delimiter flags can be set later, all features are known from the beginning.
        later = np.array([vocabulary.delimiter_since[f] for f in used.tolist()], np.int64)
        new = later != base.delimiter_since[used]
        return cls(known, added, used[since != before], since[since != before], used[new], later[new])


def open_flags(path: str, commit: str) -> FlagTable:
    """Read the stored flags from which inference starts, as a task."""
    reader = open_commit(path, commit)
    return flags_of(reader.saved_vocabulary(), reader.manifest().specification.is_order_free)


def flags_of(vocabulary: Vocabulary, by_name: bool = False) -> FlagTable:
    """Return the flags that a vocabulary has stored, and whether equally active neurons are in the order of names."""
    later = vocabulary.delimiter_since
    return FlagTable(
        np.array(vocabulary.delimiter, np.bool_),
        np.array(vocabulary.probable_since, np.int64),
        None if later is None else np.array(later, np.int64),
        order=NameOrder.of(vocabulary) if by_name else NameOrder(),
    )


def changed_flags(base: FlagTable, change: FlagChange) -> FlagTable:
    """Return the stored flags with a change applied."""
    since = np.concatenate([base.probable_since, np.full(len(change.delimiter), -1, np.int64)])
    since[change.changed] = change.since
    delimiter = np.concatenate([base.delimiter, change.delimiter])
    if base.delimiter_since is None:
        return replace(base, delimiter=delimiter, probable_since=since)
    later = base.delimiter_since.copy()
    later[change.delimited] = change.delimited_since
    return replace(base, delimiter=delimiter, probable_since=since, delimiter_since=later)


@dataclass(frozen=True, eq=False)
class RegionHandles:
    """The regions of a commit on a cluster, kept there as long as this value exists.

    Attributes
    ----------
    futures : tuple of Future
        Of a merged `Run` for each live region, in the order of `Placement.live`; where rows are requested, of a
        `PackedRegionRun` for each run.
    keys : RegionKeys or None
        Keys for row requests to the regions' workers; None where tasks get the regions themselves.
    asking : dict
        Arguments of `Client.submit` for tasks that use the regions, which restrict those that request rows to compute
        workers.
    """

    futures: tuple[Future, ...]
    keys: RegionKeys | None
    asking: dict[str, Any]

    @property
    def argument(self) -> list[Future] | RegionKeys:
        """Argument of a task for `giaann_dask.inference.rows.remote.row_source`."""
        return list(self.futures) if self.keys is None else self.keys

    @property
    def identity(self) -> tuple[object, ...]:
        """Part of the keys of tasks that use the regions."""
        return (self.keys is None, [future.key for future in self.futures])


class CommitHandle:
    """A commit opened on a cluster for prediction: its regions, flags, placement and dictionaries.

    Everything is kept on the workers as long as this value exists.

    Parameters
    ----------
    client : Client
        Of the cluster.
    reader : CommitReader
        The commit.
    rows : RowOptions, optional
        How tasks get at the rows of the regions.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """

    def __init__(self, client: Client, reader: CommitReader, rows: RowOptions | None = None) -> None:
        self._client, self._reader = client, reader
        self.specification = reader.manifest().specification
        self.regions = open_regions(client, reader, rows or RowOptions())

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The saved dictionaries, from which inference starts; a copy of them may be expanded."""
        return self._reader.saved_vocabulary()

    @cached_property
    def _saved(self) -> FlagTable:
        return flags_of(self.vocabulary)

    def change(self, expanded: Vocabulary) -> FlagChange:
        """Return the difference of an expanded vocabulary's flags from the saved ones."""
        return FlagChange.between(self._saved, expanded)

    @cached_property
    def placement(self) -> Future:
        """Future of the `Placement`."""
        return submit_placement(self._client, self._reader, **self.regions.asking)

    def flags(self, auxiliary: tuple[str, ...] = ()) -> Future:
        """Return the future of the stored flags, with the auxiliary source neurons of these kinds."""
        return submit_flags(self._client, self._reader, auxiliary, **self.regions.asking)

    def trouble(self, within_s: float) -> str | None:
        """Return why rows are unavailable now; see `giaann_dask.inference.rows.health.find_trouble`."""
        return None if self.regions.keys is None else find_trouble(self._client, self.regions.keys, within_s)

    def lost(self) -> bool:
        """Return whether rows will never be had again, because the cluster that held them is lost."""
        return self.regions.keys is not None and is_lost(self._client, self.regions.keys)

    def submit(
        self, task: Callable[..., object], *arguments: object, key: str, where: Mapping[str, Any] | None = None
    ) -> Future:
        """Submit a task that predicts, to a worker that can get at the rows.

        Parameters
        ----------
        task : callable
            Called with the arguments.
        *arguments
            Of the task; futures stand for their results.
        key : str
            Of the task.
        where : mapping, optional
            Arguments of `Client.submit` that name other workers, such as those with a GPU.
        """
        return self._client.submit(task, *arguments, key=key, **(self.regions.asking if where is None else where))


def open_regions(client: Client, reader: CommitReader, options: RowOptions) -> RegionHandles:
    """Open the regions of a commit on the workers that store them.

    Runs that workers have in memory already, as those of a training, are used there. Where rows are requested, that is
    all that the cluster holds of the network; where regions are replicated, each is merged from its runs. For rows,
    this waits until all runs are there, as a task that requests rows occupies the thread of one that reads.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """
    if not rows_are_remote(client, reader, options):
        where = roles_of(client).anywhere()
        return RegionHandles(tuple(submit_by_region(client, reader, merge_region, **where)), None, where)
    from giaann_dask.inference.rows.service import install, remove

    user = install(client)
    roles = roles_of(client)
    runs = submit_runs(client, reader, **roles.storing())
    futures = tuple(future for its in runs.values() for future in its)
    wait_all(futures)
    keys = {region: tuple(str(future.key) for future in its) for region, its in runs.items()}
    snapshot = f"{reader.path} {reader.commit}"
    handles = RegionHandles(futures, RegionKeys(snapshot, keys, options), roles.computing())
    weakref.finalize(handles, remove, client, user).atexit = False
    return handles


def rows_are_remote(client: Client, reader: CommitReader, options: RowOptions) -> bool:
    """Return whether tasks request rows instead of getting all regions; see `RowOptions.mode`."""
    if options.mode != "auto":
        return options.mode == "remote"
    workers = query_scheduler(client, "identity", n_workers=-1)["workers"]
    if all(address.startswith("inproc://") for address in workers):
        return False
    limits = [int(worker["memory_limit"]) for worker in workers.values() if worker.get("memory_limit")]
    return bool(limits) and opened_bytes(reader) > options.replicated_share * min(limits)


def opened_bytes(reader: CommitReader) -> int:
    """Return an upper bound of the bytes that the regions of a commit take in memory.

    It is reached where runs of a region have no connections in common.
    """
    runs = reader.manifest().runs
    return sum(12 * run.connections + 16 * run.neurons for run in runs)


def open_placement(path: str, commit: str) -> Placement:
    """Read the placement of a commit, as a task."""
    return open_commit(path, commit).placement()


def submit_placement(client: Client, reader: CommitReader, **where: Any) -> Future:
    """Submit the reading of the placement; further arguments are those of `Client.submit`."""
    place = (str(reader.path), reader.commit)
    return client.submit(open_placement, *place, key=task_key("open_placement", *place), **where)


def submit_flags(client: Client, reader: CommitReader, auxiliary: tuple[str, ...] = (), **where: Any) -> Future:
    """Submit the reading of the stored flags, with the auxiliary source neurons of these kinds.

    Further arguments are those of `Client.submit` that say where tasks run.
    """
    place = (str(reader.path), reader.commit)
    flags = client.submit(open_flags, *place, key=task_key("open_flags", *place), **where)
    if not auxiliary:
        return flags
    signs = NEIGHBOURS in auxiliary
    signed = submit_by_region(client, reader, minhash_runs, "minhash_region", **where) if signs else []
    attaching = (*place, auxiliary)
    attached = client.submit(open_attachments, *attaching, signed, key=task_key("attach", *attaching), **where)
    return client.submit(add_attachments, flags, attached, key=task_key("add_attachments", *attaching), **where)


def minhash_runs(*runs: PackedRegionRun) -> MinHashes:
    """Return the MinHash signatures of the features' neighbours in the runs of a region, as a task."""
    return minhash_neighbours(merge_region(*runs))


def open_attachments(
    path: str, commit: str, auxiliary: tuple[str, ...], signatures: Sequence[MinHashes] = ()
) -> Attachments:
    """Attach the features of a commit to auxiliary source neurons, as a task."""
    return attachments_of(open_commit(path, commit).saved_vocabulary(), auxiliary, signatures)


def attachments_of(
    vocabulary: Vocabulary, auxiliary: tuple[str, ...], signatures: Sequence[MinHashes] = ()
) -> Attachments:
    """Return the auxiliary source neurons of a vocabulary's features; signatures are those of all regions."""
    alike = similar_by_neighbours(merge_minhashes(signatures))
    return attach(vocabulary.features, auxiliary, subwords=vocabulary.delimiter_since is not None, neighbours=alike)


def add_attachments(flags: FlagTable, attachments: Attachments) -> FlagTable:
    """Return flags with auxiliary source neurons, as a task."""
    return replace(flags, auxiliary=attachments)


def open_flags_with(reader: CommitReader, flags: FlagTable, auxiliary: tuple[str, ...]) -> FlagTable:
    """Return flags with auxiliary source neurons of these kinds, computed in this process."""
    regions = region_places(reader) if NEIGHBOURS in auxiliary else ()
    signed = [minhash_neighbours(open_region(*place)) for _, place in regions]
    return add_attachments(flags, attachments_of(reader.saved_vocabulary(), auxiliary, signed))
