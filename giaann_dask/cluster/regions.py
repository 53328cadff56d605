"""Open the runs of a commit in tasks whose keys depend on the run alone, and merge those of a region.

A run that a training, a prediction or a table has in the memory of a worker is used there by all of them, also by those
of another commit that has it. What no worker has is read from the store. `giaann_dask.models.columns.predictor` opens
all regions of a commit for prediction, `giaann_dask.training.committing` those of a training.

After a commit, the lineage of a run begins at the store, so that it can be computed again without the text. The task
that stands for it would read it from the store, though its bytes are still in the memory of its region's owner. So
the task that writes a run leaves it in `WRITTEN`, and the task that opens it on the same worker takes it. What is not
there, as on another worker or after a restart, is read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from giaann_dask.cluster.locality import count_read, count_used
from giaann_dask.cluster.sharing import naming_worker, open_commit
from giaann_dask.cluster.submitting import TaskSubmitter
from giaann_dask.cluster.waiting import current_client, query_scheduler, task_key
from giaann_dask.dask_types import register
from giaann_dask.errors import StoreDamagedError, StoreMissingError
from giaann_dask.lazy import LazyModule
from giaann_dask.runs.merging import merge_runs, plan_compaction
from giaann_dask.runs.packing import PackedRegionRun, pack_targets
from giaann_dask.runs.run import Run
from giaann_dask.runs.summing import sum_in_blocks
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore

if TYPE_CHECKING:
    from distributed import Client, Future

    from giaann_dask.cluster import memory_budget
else:
    # Opening regions in a process without a cluster does not import Dask's scheduler.
    memory_budget = LazyModule("giaann_dask.cluster.memory_budget")

# Workers have imported Dask when tasks are loaded there; a client registers what it submits.
if "dask" in sys.modules:
    register()

Found = TypeVar("Found")
# Stored runs of a rank that a training adds up into one.
STORED_TOGETHER = 2
# Commits that a process remembers between tasks that open their runs; a sum of networks opens those of several.
_OPENED_COMMITS = 4
# Of the data budget of a worker: runs that are kept here cannot be spilled.
WRITTEN_SHARE = 1 / 4


@dataclass
class WrittenRunCache:
    """Runs that were written in one attempt to commit.

    Attributes
    ----------
    taken, missed : int
        Runs that were taken over from memory since the process began, and runs that were not here.
    """

    taken: int = 0
    missed: int = 0
    _attempt: str = ""
    _runs: dict[str, PackedRegionRun] = field(default_factory=dict)
    _nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, attempt: str, identity: str, packed: PackedRegionRun) -> None:
        """Keep a run that was written, if there is memory for it; forget those of other attempts.

        Parameters
        ----------
        attempt : str
            Name of the attempt to commit; no two are the same. Empty if nothing will be opened after it.
        identity : str
            Name of the run.
        packed : PackedRegionRun
            The run.
        """
        limit = memory_budget.worker_memory_limit()
        nbytes = packed.nbytes
        with self._lock:
            if attempt != self._attempt:
                self._attempt, self._runs, self._nbytes = attempt, {}, 0
            if attempt and (not limit or self._nbytes + nbytes <= WRITTEN_SHARE * memory_budget.data_budget(limit)):
                self._runs[identity] = packed
                self._nbytes += nbytes

    def take(self, attempt: str, identity: str) -> PackedRegionRun | None:
        """Return a run of an attempt and forget it; None if it is not here."""
        with self._lock:
            found = self._runs.pop(identity, None) if attempt and attempt == self._attempt else None
            if found is None:
                self.missed += 1
            else:
                self.taken += 1
                self._nbytes -= found.nbytes
        return found


WRITTEN = WrittenRunCache()
"""The runs that this process keeps."""


class RunPlace(NamedTuple):
    """Place of a stored run: the arguments of `open_run`.

    Attributes
    ----------
    path, commit, identity : str
        The network, a commit that has the run, and the run's name.
    """

    path: str
    commit: str
    identity: str


def open_run(
    path: str, commit: str, identity: str, attempt: str = "", owner_anchor: int | None = None
) -> PackedRegionRun:
    """Read a run of a commit, or take over what this process has written, as a task.

    A run never changes, so where the commit has been forgotten since, another one that has it will do.

    Parameters
    ----------
    path, commit, identity : str
        See `RunPlace`.
    attempt : str
        Name of the attempt to commit that wrote it in this cluster; see `giaann_dask.cluster.regions`.
    owner_anchor : int, optional
        Value that a worker has, on which the task shall run.
    """
    kept = WRITTEN.take(attempt, identity)
    if kept is not None:
        return kept
    # No worker has what this is the task of.
    run = read_commit(path, commit, [identity], lambda reader: reader.stored_run(identity))
    count_read(run.nbytes)
    return run


@lru_cache(maxsize=_OPENED_COMMITS)
def _opened_commit(path: str, commit: str) -> CommitReader:
    """Open a commit, or return the reader of a task before; opening takes as long as reading a run of a novel."""
    return NetworkStore(path).open(commit)


def open_any_commit(path: str, commit: str, needed: Sequence[str] = ()) -> CommitReader:
    """Open a commit, or one of the others where it has been forgotten since, with the runs that are needed of it."""
    with naming_worker(path):
        return _find_commit(path, commit, needed)


def read_commit(path: str, commit: str, needed: Sequence[str], read: Callable[[CommitReader], Found]) -> Found:
    """Return what is read of a commit that a task before may have opened, or of another one as `open_any_commit`."""
    with naming_worker(path):
        try:
            return read(_opened_commit(path, commit))
        except (StoreDamagedError, StoreMissingError):
            # Also where the commit was opened before it was forgotten.
            return read(_find_commit(path, commit, needed))


def _find_commit(path: str, commit: str, needed: Sequence[str]) -> CommitReader:
    """Open a commit as `open_any_commit` does; errors name no worker."""
    store = NetworkStore(path)
    try:
        return store.open(commit)
    except StoreMissingError:
        for identity, _ in store.commits():
            other = store.open(identity)
            if set(needed) <= {run.identity for run in other.manifest().runs}:
                return other
        # A worker with another network at the path has other ones.
        raise


def open_region(path: str, commit: str, identities: Sequence[str]) -> Run:
    """Read the runs of a region from the store and merge them."""
    reader = open_commit(path, commit)
    return merge_runs([reader.connections(identity) for identity in identities])


def merge_region(*runs: PackedRegionRun) -> Run:
    """Merge the connections of the runs of a region, as a task."""
    return merge_runs([run.connections for run in runs])


def region_places(reader: CommitReader) -> Iterator[tuple[int, tuple[str, str, list[str]]]]:
    """Yield every live region with the arguments of `open_region`: path, commit, and the identities of its runs."""
    path, runs = str(reader.path), reader.manifest().runs_by_region()
    for region in reader.placement().live():
        yield region, (path, reader.commit, [run.identity for run in runs.get(region, ())])


def run_places(reader: CommitReader) -> Iterator[tuple[int, dict[str, RunPlace]]]:
    """Yield every live region with its runs: their keys and the arguments of the tasks `open_run`."""
    for region, (path, commit, identities) in region_places(reader):
        yield (
            region,
            {
                run_key(path, reader.commit_of(identity), identity): RunPlace(path, commit, identity)
                for identity in identities
            },
        )


def run_key(path: str, written_in: str, identity: str) -> str:
    """Return the key of the task that opens a run, given the commit that wrote it."""
    return task_key(open_run.__name__, path, written_in, identity)


def region_key(reader: CommitReader, region: int, name: str = open_region.__name__) -> str:
    """Return the key of a task about a region of a commit; by default of the one that merges its runs."""
    return task_key(name, str(reader.path), reader.commit, region)


def sum_runs(*runs: PackedRegionRun) -> PackedRegionRun:
    """Add up packed runs of one region into one, which is never decoded as a whole."""
    count_used(runs)
    postings = [run.postings for run in runs if run.postings is not None]
    return PackedRegionRun(
        pack_targets(sum_in_blocks([run.connections for run in runs])),
        pack_targets(sum_in_blocks([run.neurons for run in runs])),
        pack_targets(sum_in_blocks(postings), gaps=True) if postings else None,
    )


def sum_key(keys: Sequence[str]) -> str:
    """Return the key of the task that adds up the results of others."""
    return task_key("compact", list(keys))


def submit_runs(client: Client, reader: CommitReader, **where: Any) -> dict[int, list[Future]]:
    """Open all runs of a commit on a cluster.

    A training adds stored runs up while later rounds go on, and then has their sum instead. So where a worker has the
    sum of some runs, that is opened; it is computed again from the runs if it is lost.

    Parameters
    ----------
    client : Client
        Of the cluster.
    reader : CommitReader
        The commit.
    **where
        Further arguments of `Client.submit`.

    Returns
    -------
    dict of int to list of Future
        A `PackedRegionRun` each, by live region.
    """
    return _submit_parts(client, _opened(client, reader), **where)


def held_runs(client: Client, reader: CommitReader) -> dict[int, list[Future]]:
    """Return what `submit_runs` does where workers have all of it in memory, so that nothing is read; else nothing.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    opened = _opened(client, reader)
    keys = [part.key for parts in opened.values() for part in parts]
    found = query_scheduler(client, "who_has", keys=keys) if keys else {}
    return _submit_parts(client, opened) if keys and all(found.get(key) for key in keys) else {}


def _submit_parts(client: Client, opened: Mapping[int, Sequence[_RunSum]], **where: Any) -> dict[int, list[Future]]:
    """Submit the tasks that open the parts of each region, and those that these are added up from."""
    register()
    submitter = TaskSubmitter(client)

    def task_of(part: _RunSum) -> tuple[Any, ...]:
        if not part.summed:
            return part.key, open_run, *part.place
        return part.key, sum_runs, *(submitter.pass_on(*task_of(each), **where) for each in part.summed)

    with submitter.together():
        return {
            region: [submitter.submit(*task_of(part), **where) for part in parts] for region, parts in opened.items()
        }


def _opened(client: Client, reader: CommitReader) -> dict[int, list[_RunSum]]:
    """Return what to open of each live region: its runs, or the sums of some that workers have."""
    ranks = {run.identity: run.rank for run in reader.manifest().runs}
    planned = {
        region: _as_added_up([_RunSum(key, ranks[place.identity], place) for key, place in runs.items()])
        for region, runs in run_places(reader)
    }
    sums = [part.key for parts in planned.values() for part in parts if part.summed]
    found = query_scheduler(client, "who_has", keys=sums) if sums else {}
    return {
        region: [each for part in parts for each in ((part,) if found.get(part.key) else part.runs())]
        for region, parts in planned.items()
    }


class _RunSum(NamedTuple):
    """Run of a region, or the sum of some.

    Attributes
    ----------
    key : str
        Of its task.
    rank : int
        It sums up about ``2 ** rank`` rounds.
    place : RunPlace
        Of the run; of a sum, of its first run.
    summed : tuple of _RunSum
        What it is the sum of; none for a run.
    """

    key: str
    rank: int
    place: RunPlace
    summed: tuple[_RunSum, ...] = ()

    def runs(self) -> tuple[_RunSum, ...]:
        """Return the runs that it adds up."""
        return tuple(run for part in self.summed for run in part.runs()) if self.summed else (self,)


def _as_added_up(runs: Sequence[_RunSum]) -> tuple[_RunSum, ...]:
    """Return stored runs of a region as a training adds them up."""
    parts: tuple[_RunSum, ...] = ()
    for run in runs:
        plan = plan_compaction(parts, run, STORED_TOGETHER)
        together = plan.merged
        if len(together) > 1:
            together = (_RunSum(sum_key([part.key for part in together]), plan.rank, together[0].place, together),)
        parts = (*plan.kept, *together)
    return parts


def submit_by_region(
    client: Client, reader: CommitReader, task: Callable[..., object], name: str = open_region.__name__, **where: Any
) -> list[Future]:
    """Submit a task of the runs of every live region, in their order, with a key of this name.

    Further arguments are those of `Client.submit` that say where tasks run.
    """
    return [
        client.submit(task, *runs, key=region_key(reader, region, name), **where)
        for region, runs in submit_runs(client, reader, **where).items()
    ]


def region_holders(reader: CommitReader, regions: Sequence[int], client: Client | None = None) -> dict[int, str]:
    """Return the worker that has each region in memory, merged or all its runs, of those that one has.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    regions : sequence of int
        Live regions.
    client : Client, optional
        Of the cluster; by default the current Dask client.

    Returns
    -------
    dict of int to str
        The address of a worker of the client's cluster, by region; of several the first by address. Empty where there
        is no client.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    client = client or current_client()
    if client is None:
        return {}
    runs = {region: list(its) for region, its in run_places(reader) if region in regions}
    merged = {region: region_key(reader, region) for region in runs}
    found = query_scheduler(client, "who_has", keys=[*merged.values(), *(key for its in runs.values() for key in its)])
    holders = {
        region: set(found.get(merged[region]) or ())
        or (set.intersection(*(set(found.get(key) or ()) for key in its)) if its else set())
        for region, its in runs.items()
    }
    return {region: min(its) for region, its in holders.items() if its}
