"""Commit the regions of a cluster to a network's store, load them from it, and keep them in memory for every client.

A commit has three steps: `Regions.snapshot` when its last round is submitted, `commit_regions` when that round is
integrated, and `Regions.on_committed`, with which regions continue from the store.

Runs that are not stored yet are packed and written on the workers that have them in memory; afterwards the lineage of
later runs begins at the store. The format is in `giaann_dask.store.commits`.

The last commit of a training counts the distinct neurons and connections of each region. If the count of some stored
runs of a region is known, as that of a single run is, only entries that its other runs add are counted, which reads no
more of the store than the rows that both have. `giaann_dask.runs.summing` counts runs.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client, Future

from giaann_dask.cluster import result, results, task_key, wait_all
from giaann_dask.cluster.held_runs import install_entries, remove_entries
from giaann_dask.cluster.persistence import is_published, publish_runs, unpublish_runs
from giaann_dask.cluster.regions import RunPlace, open_run, run_key, run_places
from giaann_dask.cluster.worker_services import remove_service
from giaann_dask.encoding.stream import BlockStatistics, MergedBlock
from giaann_dask.events import RegionMeasured
from giaann_dask.models import model_of
from giaann_dask.models.base import DerivedTables
from giaann_dask.rows.protocol import NAME
from giaann_dask.rows.service import install
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RunSize
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitContent, CommitReader, StoredRepeats
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.origins import Origins, SequenceRange
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.region_tasks import RegionTasks, tables_of
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import RunReference, Snapshot, StoredRuns, sizes_of

# Regions up to which repeats are summed up: each region has some for every other.
_REPEATING_REGIONS = 256
# Writing repeats reads all counts, so it waits until so large a share of them was added or removed.
_REPEATING_SHARE = 0.1
# Connections of a run that counts, for a later training, as that of one round.
_RANKED = 1 << 10


@dataclass(frozen=True, eq=False)
class CommitContents:
    """Contents of a commit in addition to the runs.

    Attributes
    ----------
    manifest : Manifest
        Counts and sizes; its runs, connections and rounds are filled in here.
    vocabulary : Vocabulary
        Dictionaries, possibly further than the manifest.
    ledger : Ledger
        Parts of text that have been counted.
    rewritten : bool
        Whether dictionaries, ledger and origins are others than those of the last commit, not only longer.
    origins : Origins, optional
        Where the sequences come from, of a network with an index; those of the last commit by default.
    note : str
        Further text of the commit's message.
    """

    manifest: Manifest
    vocabulary: Vocabulary
    ledger: Ledger
    rewritten: bool = False
    origins: Origins | None = None
    note: str = ""

    def content(self, placement: Placement) -> CommitContent:
        """Return what a commit has besides the runs and the manifest, given where neurons belong."""
        return CommitContent(
            self.manifest,
            self.vocabulary,
            self.ledger.entries,
            placement,
            rewritten=self.rewritten,
            origins=self.origins,
        )

    def counted(self, block: MergedBlock, counts: BlockStatistics, *, misses: bool = False) -> CommitContents:
        """Return the contents after one more block, whose parts are recorded in the ledger and in the origins.

        Parameters
        ----------
        block : MergedBlock
            The next one.
        counts : BlockStatistics
            Of its sequences.
        misses : bool
            Whether it was trained only to the tokens that the network missed.
        """
        by_status = tuple(a + b for a, b in zip(self.manifest.by_status, counts.by_status, strict=True))
        changes: dict[str, Any] = {}
        if counts.last_trained >= 0:
            saved_concepts, saved_features = block.sizes_after(counts.last_trained)
            changes = {
                "saved_concepts": saved_concepts,
                "saved_features": saved_features,
                "last_trained": block.mapping.first_sequence + counts.last_trained,
            }
        manifest = replace(
            self.manifest,
            by_status=by_status,
            tokens=self.manifest.tokens + counts.trained_tokens,
            concepts=block.sizes[0],
            features=block.sizes[1],
            trained_on_misses=self.manifest.trained_on_misses or misses,
            **changes,
        )
        for update in block.ledger:
            part = self.ledger.record(update.entry)
            if self.origins is not None:
                counted = SequenceRange(part, update.skip, update.entry.sequences - update.skip)
                self.origins.record(counted, update.place)
        return replace(self, manifest=manifest)


class _Attempt(NamedTuple):
    """Attempt to commit.

    Attributes
    ----------
    path, before : str
        The network, and its last commit.
    name : str
        Unique: data of a session that was not committed may have been removed since.
    kept_for : str
        The name, under which workers keep what they write until it is opened; empty for a commit after which no run
        stays in memory.
    """

    path: str
    before: str
    name: str
    kept_for: str


@dataclass(frozen=True, eq=False)
class Counting:
    """Count of a region that is being computed.

    Attributes
    ----------
    region : int
        Which.
    neurons, connections : int
        Known counts.
    more : Future or None
        A `RunSize` of what is added to it.
    """

    region: int
    neurons: int
    connections: int
    more: Future | None = None


def load_regions(reader: CommitReader, regions: Regions) -> None:
    """Load the runs of a commit into the regions as references that are read from the store when needed."""
    _take_runs(reader, regions, regions.continue_from)
    _open_columns(regions, reader.path, reader.commit, reader.manifest().specification)


def open_regions(client: Client, reader: CommitReader) -> Regions:
    """Return the regions of a commit with its runs as these are, which are read from the store when needed."""
    regions = Regions(client, reader.placement(), reader.manifest().rounds)
    _take_runs(reader, regions, regions.append)
    return regions


def _take_runs(reader: CommitReader, regions: Regions, take: Callable[[StoredRun, Callable[[], Future]], None]) -> None:
    """Give the runs of a commit to a method of the regions, with what reads each, and the regions their counts."""
    manifest = reader.manifest()
    regions.tasks.begin_with(reader, list(regions.runs))
    for run in manifest.runs:
        place = RunPlace(str(reader.path), reader.commit, run.identity)
        take(run, partial(_open, regions, run.region, place, reader.commit_of(run.identity)))
    regions.counts = known_counts(manifest)


def compute_commit(regions: Regions, snapshot: Snapshot, place: tuple[str, str]) -> list[Future]:
    """Compute what a last commit writes and counts, and return results that save `commit_regions` doing it again.

    Parameters
    ----------
    regions, snapshot
        See `commit_regions`.
    place : tuple of (str, str)
        Path of the network, and the commit that the regions continue.
    """
    with regions.tasks.submitter.together():
        packed = regions.tasks.pack_all(regions.pending.with_stored(snapshot).references())
    kept, sizes = _filled(packed)
    counts = submit_counts(regions, kept, sizes, place)
    computed = [run.future for run in kept if not run.stored]
    computed += [counting.more for counting in counts if counting.more is not None]
    wait_all(computed)
    return computed


def _filled(packed: Sequence[RunReference]) -> tuple[list[RunReference], dict[str, RunSize]]:
    """Wait for the sizes of runs; return them by identity, and the runs without the empty ones."""
    sizes = {run.identity: size for run, size in zip(packed, sizes_of(packed), strict=True)}
    return [run for run in packed if not sizes[run.identity].empty], sizes


def commit_regions(
    store: NetworkStore,
    regions: Regions,
    snapshot: Snapshot,
    contents: CommitContents,
    *,
    last: bool = False,
    before: CommitReader | None = None,
    opens: bool = False,
) -> str:
    """Commit the runs of all regions as of some round, while later rounds go on.

    Where runs of the network are kept in memory for every client, those of a last commit replace them.

    Parameters
    ----------
    store : NetworkStore
        An existing network.
    regions : Regions
        The present regions; runs that are committed continue from the store afterwards.
    snapshot : Snapshot
        What to commit.
    contents : CommitContents
        Counts, dictionaries and ledger as of the same round.
    last : bool
        Whether no round follows, so that the distinct entries of regions are counted.
    before : CommitReader, optional
        Commit that the regions continue; the last one by default.
    opens : bool
        Whether the runs of a last commit stay in memory as those of any other do, to be opened for prediction.

    Returns
    -------
    str
        Identity of the commit.

    Raises
    ------
    StoreWriteError
        If the disk is full. The last commit stays as it was.
    StoreConflictError
        If another process has committed since. Likewise.
    StoreUnsharedError
        If a worker cannot access the store. Likewise.
    """
    published = last and is_published(regions.tasks.client, str(store.path))
    opens = opens or published
    # Each run is packed and written as soon as it is computed, while others are still being added up.
    stored = store.open(store.head()) if before is None else before
    session, place = store.begin(stored.commit), (str(store.path), stored.commit)
    fork, name = store.fork(session), uuid.uuid4().hex
    attempt = _Attempt(*place, name, "" if last and not opens else name)
    with regions.tasks.submitter.together():
        packed = regions.tasks.pack_all(regions.pending.with_stored(snapshot).references())
        written = _write(regions, fork, attempt, [run for run in packed if not run.stored])
    placement = placement_of(regions, snapshot)
    store.write_content(session, stored, contents.content(placement))
    # Runs of rounds that did not touch their region are empty, and left out.
    kept, sizes = _filled(packed)
    # Counting the distinct entries of a region reads its runs, so it is done once at the end.
    countings = submit_counts(regions, kept, sizes, place) if last else []
    derived = model_of(contents.manifest.specification).derived(contents.manifest.specification) if last else None
    repeats = []
    connections = [(run.region, sizes[run.identity].connections) for run in kept]
    if derived is not None and derives_tables(contents.manifest, connections, stored.repeated_connections):
        repeats = _write_derived(regions, derived, (fork, name), kept, placement)
    counts = counts_of(countings)
    measured = [(run, sizes[run.identity]) for run in kept]
    manifest = _manifest(replace(contents.manifest, rounds=snapshot.rounds), placement, measured, counts, last=last)
    forks, summary = _wait_written(written, repeats, name)
    commit = store.commit(session, forks, stored, manifest, repeats=summary, note=contents.note)
    if last and not opens:
        return commit
    continued = _continued(regions, [run for run in kept if not run.stored], commit, attempt)
    if last:
        # One by one, as predictions look for them.
        regions.pending.continue_stored(replace(continued, tables=()), measure=False)
        if published:
            persist_commit(regions.tasks.client, store.open(commit))
        return commit
    regions.pending.on_committed(snapshot, continued, sizes.keys() - {run.identity for run in kept})
    _open_columns(regions, store.path, commit, manifest.specification)
    return commit


def _wait_written(
    written: Sequence[Future], repeats: Sequence[Future], name: str
) -> tuple[list[bytes], StoredRepeats | None]:
    """Return the sessions of what workers have written, and the summary of the repeats among it, if there are any.

    Where a region has none, as its counts contradict each other, those of the others are left out.
    """
    forks = [fork for fork in results(written) if fork]
    found = results(repeats)
    if not found or None in found:
        return forks, None
    more, small = zip(*found, strict=True)
    return [*forks, *more], StoredRepeats(name, sum(small))


def _continued(regions: Regions, new: Sequence[RunReference], commit: str, attempt: _Attempt) -> StoredRuns:
    """Return how the runs that a commit has added are opened from the store."""
    reads = {
        run.identity: partial(
            _open, regions, run.region, RunPlace(attempt.path, commit, run.identity), commit, attempt.kept_for
        )
        for run in new
    }
    read_table = partial(_open_table, regions, commit, attempt)
    tables = [({run.region: run.identity for run in table}, read_table) for table in tables_of(new)]
    return StoredRuns(reads, tables)


def stored_regions(
    manifest: Manifest, touches: Mapping[int, int], owners: Mapping[int, str]
) -> tuple[RegionMeasured, ...]:
    """Return the stored contents of the regions of a commit, with the column touches and the owners by region."""
    return tuple(
        RegionMeasured(
            region,
            sum(run.connections for run in runs),
            sum(run.neurons for run in runs),
            sum(run.nbytes for run in runs),
            len(runs),
            touches.get(region, 0),
            owner=owners.get(region, ""),
        )
        for region, runs in sorted(manifest.runs_by_region().items())
    )


def _write(regions: Regions, fork: bytes, attempt: _Attempt, new: Sequence[RunReference]) -> list[Future]:
    """Submit tasks that write runs into forks of a session, which are merged into it; empty ones have none."""
    written = [
        regions.tasks.submit(
            "commit",
            tasks.write_stored,
            *(fork, run.identity, attempt.kept_for, run.future),
            key_of=(*attempt, run.identity, run.key),
        )
        for run in new
        if not run.together
    ]
    for group in tables_of(new):
        identities, table = {run.region: run.identity for run in group}, group[0].future
        arguments = (fork, identities, attempt.kept_for, table)
        key = (*attempt, identities, table.key)
        written.append(regions.tasks.submit("commit", tasks.write_table, *arguments, key_of=key))
    return written


def _manifest(
    manifest: Manifest,
    placement: Placement,
    runs: Sequence[tuple[RunReference, RunSize]],
    counts: Mapping[int, RunSize],
    *,
    last: bool,
) -> Manifest:
    """Return a manifest with its runs, how they are placed, and how many neurons and connections they have.

    `counts` are of the distinct entries of each region; only those of a last commit have been counted.
    """
    runs_of = Counter(run.region for run, _ in runs)
    totals = list(counts.values()) if last else [size for _, size in runs]
    ranks = [rank_of(size.connections, run.rank) if last else run.rank for run, size in runs]
    return replace(
        manifest,
        runs=tuple(
            StoredRun.of(run.identity, run.region, rank, size) for (run, size), rank in zip(runs, ranks, strict=True)
        ),
        neurons=sum(total.neurons for total in totals),
        connections=sum(total.connections for total in totals),
        exact=last or len(runs_of) == len(runs),
        splits=placement.splits,
        load=tuple(placement.load.tolist()),
        counts={region: count for region, count in counts.items() if runs_of[region] > 1},
    )


def rank_of(connections: int, rank: int = 0) -> int:
    """Return the rank of a run that a last commit stores, given its connections, and at least what it has.

    What is trained later may be small: runs of a few sentences are not added to one of a library by their number.
    """
    return max(rank, (connections // _RANKED).bit_length())


def derives_tables(manifest: Manifest, runs: Iterable[tuple[int, int]], before: int) -> bool:
    """Return whether a commit stores tables that its model derives; commits without them are opened as a whole.

    Parameters
    ----------
    manifest : Manifest
        Of the commit.
    runs : iterable of (int, int)
        Region and connections of each run.
    before : int
        Connections when tables were last written.
    """
    # Of what pruning leaves, all counts are not known.
    if manifest.pruned_below:
        return False
    regions, sizes = zip(*runs, strict=True) if (runs := list(runs)) else ((), ())
    few = 0 < len({*regions}) <= _REPEATING_REGIONS
    return few and abs(sum(sizes) - before) >= _REPEATING_SHARE * sum(sizes)


def _write_derived(
    regions: Regions,
    derived: DerivedTables,
    place: tuple[bytes, str],
    runs: Sequence[RunReference],
    placement: Placement,
) -> list[Future]:
    """Submit tasks that write what a model derives from all counts; the place is fork and commit.

    There are two tasks for each region, or for each group of regions that have rows in common.
    """
    fork, name = place
    first = {region: group[0] for group in placement.groups() for region in group}
    by_region: dict[int, list[RunReference]] = {region: [] for region in sorted({*first.values()})}
    for run in runs:
        by_region[first[run.region]].append(run)
    parts = {
        region: regions.tasks.submit_at_owner(
            region,
            task_key("derive", name, [run.key for run in runs]),
            tasks.collect_derived,
            derived,
            placement,
            [run.region for run in runs],
            *(run.argument for run in runs),
        )
        for region, runs in by_region.items()
    }
    path = StoredRepeats(name, np.zeros(0, np.int64)).path
    return [
        regions.tasks.submit_at_owner(
            region,
            task_key("commit", name, region, "repeats"),
            tasks.write_derived,
            *(derived, fork, path(region), region, own, list(parts.values())),
        )
        for region, own in parts.items()
    ]


def placement_of(regions: Regions, snapshot: Snapshot) -> Placement:
    """Return the placement as of a snapshot; columns of later rounds may have their region already."""
    columns = regions.columns if isinstance(regions.columns, Placement) else result(regions.columns)
    return replace(columns, splits=snapshot.splits)


def _open(regions: Regions, region: int, place: RunPlace, written_in: str, attempt: str = "") -> Future:
    """Submit the task that has a run of a commit, on the owner of its region, which may have written it just now."""
    return regions.tasks.submit_at_owner(
        region, run_key(place.path, written_in, place.identity), open_run, *place, attempt
    )


def _open_table(regions: Regions, commit: str, attempt: _Attempt, identities: Mapping[int, str]) -> Future:
    """Submit the task that has runs of a commit, by region, on the owner of the first of these."""
    place = (attempt.path, commit, dict(identities), attempt.kept_for)
    key = task_key("open_run", "table", *place)
    return regions.tasks.submit_at_owner(min(identities), key, tasks.open_table, *place)


def _open_columns(regions: Regions, path: Path, commit: str, specification: Specification) -> None:
    """Continue from the stored table of columns, if there is one."""
    if specification.placement != "hash":
        place = (str(path), commit)
        columns = regions.tasks.submit("open", tasks.open_columns, *place, key_of=(*place, "columns"))
        regions.place_columns(columns)


def known_counts(manifest: Manifest) -> dict[int, tuple[frozenset[str], RunSize]]:
    """Return the runs of each region of a commit and their joint counts, where these are known."""
    found = {}
    for region, runs in manifest.runs_by_region().items():
        known = RunSize(runs[0].neurons, runs[0].connections) if len(runs) == 1 else manifest.counts.get(region)
        if known is not None:
            found[region] = frozenset(run.identity for run in runs), known
    return found


def submit_counts(
    regions: Regions,
    runs: Sequence[RunReference],
    sizes: Mapping[str, RunSize],
    place: tuple[str, str],
) -> list[Counting]:
    """Submit the tasks that count the distinct neurons and connections of every region.

    Parameters
    ----------
    regions : Regions
        The regions, with the counts of their first stored runs.
    runs : sequence of RunReference
        Packed runs.
    sizes : mapping of str to RunSize
        Of each, by identity.
    place : tuple of (str, str)
        Path of the store and a commit that has all runs that are stored.
    """
    by_region: dict[int, list[RunReference]] = {}
    for run in runs:
        by_region.setdefault(run.region, []).append(run)
    return [_counting(regions, region, every, sizes, place) for region, every in by_region.items()]


def counts_of(countings: Sequence[Counting]) -> dict[int, RunSize]:
    """Wait for the counts of regions."""
    found = iter(results([counting.more for counting in countings if counting.more is not None]))
    none = RunSize(0, 0)
    more = [none if counting.more is None else next(found) for counting in countings]
    return {
        known.region: RunSize(known.neurons + size.neurons, known.connections + size.connections)
        for known, size in zip(countings, more, strict=True)
    }


def _counting(
    regions: Regions,
    region: int,
    runs: Sequence[RunReference],
    sizes: Mapping[str, RunSize],
    place: tuple[str, str],
) -> Counting:
    """Begin to count one region."""
    if len(runs) == 1:
        size = sizes[runs[0].identity]
        return Counting(region, size.neurons, size.connections)
    identities, known = _known(regions, region, runs, sizes)
    more = [run for run in runs if run.identity not in identities]
    values, keys = [run.argument for run in more], [run.key for run in more]
    if not identities:
        return Counting(region, 0, 0, regions.tasks.submit("count", tasks.count_region, *values, key_of=keys))
    if not more:
        return Counting(region, known.neurons, known.connections)
    stored = sorted(identities)
    added = regions.tasks.submit("count", tasks.count_more, *place, stored, *values, key_of=(*place, stored, keys))
    return Counting(region, known.neurons, known.connections, added)


def _known(
    regions: Regions, region: int, runs: Sequence[RunReference], sizes: Mapping[str, RunSize]
) -> tuple[frozenset[str], RunSize]:
    """Return stored runs of a region that need not be counted, with their counts: its first ones, or the largest."""
    began = regions.counts.get(region)
    if began is not None and began[0] <= {run.identity for run in runs}:
        return began
    stored = [(sizes[run.identity], run.identity) for run in runs if run.stored]
    if not stored:
        return frozenset(), RunSize(0, 0)
    size, identity = max(stored, key=lambda pair: (pair[0].connections, pair[1]))
    return frozenset([identity]), size


def persist_commit(client: Client, reader: CommitReader) -> None:
    """Keep the runs of a commit in the memory of the workers that own its regions, until they are unpublished.

    Runs that workers have are used; the others are read from the store, by the owner of their region. An earlier commit
    of the network is let go.

    Parameters
    ----------
    client : Client
        Of the cluster.
    reader : CommitReader
        The commit.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    StoreUnsharedError
        If a worker cannot access the network.
    """
    places = dict(run_places(reader))
    nbytes = dict.fromkeys(places, 0)
    for run in reader.manifest().runs:
        nbytes[run.region] += run.nbytes
    tasks = RegionTasks(client)
    tasks.begin_with(reader, list(places))
    tasks.assign(nbytes)
    with tasks.submitter.together():
        runs: dict[int, list[Future]] = {
            region: [tasks.submit_at_owner(region, key, open_run, *place) for key, place in its.items()]
            for region, its in places.items()
        }
    wait_all([future for its in runs.values() for future in its])
    # Rows that workers have decoded stay there between prompts.
    install(client, str(reader.path))
    install_entries(client, str(reader.path))
    publish_runs(client, str(reader.path), reader.commit, runs)


def unpersist_network(client: Client, path: str) -> bool:
    """Let workers release the runs of a network that `persist_commit` keeps; return whether there were any.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    kept = unpublish_runs(client, path)
    # The scheduler logs a traceback where it has no such service.
    if kept:
        remove_service(client, f"{NAME}-{path}")
        remove_entries(client, path)
    return kept
