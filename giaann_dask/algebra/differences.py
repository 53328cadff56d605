"""Subtract counts from the runs of regions: from the latest ones where these hold them, else from all of a region.

What is subtracted may come out of any runs of a region, as long as no strength becomes negative: the sum is the same.
So documents that were added lately are subtracted without reading what was trained before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distributed import Client, Future

from giaann_dask.algebra.documents import DocumentCounts
from giaann_dask.algebra.parts import submit_parts
from giaann_dask.cluster import result
from giaann_dask.cluster.regions import open_any_commit
from giaann_dask.errors import StoreDamagedError
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import KeptRowReader
from giaann_dask.runs.packing import PackedRegionRun, pack, pack_targets, unpack
from giaann_dask.runs.postings import SequenceNumbers, last_sequence, renumber_postings
from giaann_dask.runs.renaming import key_renaming
from giaann_dask.runs.run import RunSize
from giaann_dask.runs.summing import count_added, count_added_neurons, sum_in_blocks
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import StoredRun
from giaann_dask.training import tasks
from giaann_dask.training.committing import known_counts, open_regions
from giaann_dask.training.regions import LastRuns, Regions
from giaann_dask.training.small_changes import RunCache
from giaann_dask.training.tasks import Increment, RunTable

# Connections of the latest runs of a region that counts are subtracted from in one task for all regions.
RECENT = 1 << 20
"""See above; also those of runs that a purge adds up."""


class Difference(NamedTuple):
    """Runs of regions from which counts were subtracted.

    Attributes
    ----------
    runs : dict of int to PackedRegionRun
        The difference of the latest runs of each region where they hold the counts, unless nothing is left of it.
    kept : dict of int to int
        How many runs of these regions stay as they are.
    lost : dict of int to RunSize
        Neurons and connections that these regions no longer have.
    rest : dict of int to PackedRegionRun
        What is to be subtracted from all runs of the other regions that it concerns.
    """

    runs: dict[int, PackedRegionRun]
    kept: dict[int, int]
    lost: dict[int, RunSize]
    rest: dict[int, PackedRegionRun]


def subtract_counts(
    client: Client, reader: CommitReader, removed: DocumentCounts, sequences: SequenceNumbers | None
) -> Regions:
    """Subtract documents from a commit, and return its regions to be committed.

    Parameters
    ----------
    client : Client
        Where they are subtracted.
    reader : CommitReader
        The commit.
    removed : DocumentCounts
        The documents.
    sequences : SequenceNumbers or None
        New numbers of the sequences of a network with an index, which those of the documents are left out of.

    Raises
    ------
    StoreDamagedError
        If a connection would become negative.
    """
    regions = open_regions(client, reader)
    last: dict[int, LastRuns] = {}
    if removed.network is not None:
        names = key_renaming(reader.manifest().specification, removed.network.vocabulary(), reader.vocabulary())
        parts = submit_parts(client, removed.network, reader.placement(), names)
        gone = {region: tuple(each) for region, each in parts.items()}
        every = set(regions.runs) if sequences is not None else set()
        gone |= dict.fromkeys(every - gone.keys(), ())
    else:
        last, gone = _subtract_recent(regions, reader, removed, sequences)
    wholes = {region: [run.future for run in regions.runs[region]] for region in gone}
    for region, value in submit_differences(regions, wholes, gone, sequences).items():
        last[region] = LastRuns(0, value, regions.tasks.measure(value))
    regions.replace_last(last)
    return regions


def _subtract_recent(
    regions: Regions, reader: CommitReader, removed: DocumentCounts, sequences: SequenceNumbers | None
) -> tuple[dict[int, LastRuns], dict[int, tuple[Future, ...]]]:
    """Subtract documents from the latest runs, and return these, and by region what they do not hold."""
    submit = regions.tasks.submit
    with regions.tasks.submitter.together():
        counted = removed.submit_increments(regions.tasks)
        place = (str(reader.path), reader.commit)
        made = submit("subtract", subtract_recent, *place, sequences, counted, key_of=(*place, sequences, counted.key))
        outcome = submit("subtract", outcome_of, made, key_of=(made.key, "outcome"))
        table = submit("subtract", table_of, made, key_of=(made.key, "table"))
    kept, lost, left, rest = result(outcome)
    sizes = dict(zip(left, regions.tasks.measured_table(table, left), strict=True)) if left else {}
    last = {
        region: LastRuns(count, table, sizes[region], len(left)) if region in sizes else LastRuns(count)
        for region, count in kept.items()
    }
    regions.counts = _counts_after(reader, regions, last, lost)
    gone = {region: (submit("subtract", rest_of, made, region, key_of=(made.key, region)),) for region in rest}
    return last, gone


def _counts_after(
    reader: CommitReader, regions: Regions, last: Mapping[int, LastRuns], lost: Mapping[int, RunSize]
) -> dict[int, tuple[frozenset[str], RunSize]]:
    """Return the known counts of regions whose latest runs are replaced."""
    counts = {}
    for region, (_, size) in known_counts(reader.manifest()).items():
        if region in last:
            names = frozenset(regions.identities_after(region, last[region]))
            counts[region] = (names, size.without(lost[region]))
    return counts


def submit_differences(
    regions: Regions,
    wholes: Mapping[int, Sequence[Future]],
    parts: Mapping[int, Sequence[Future]],
    sequences: SequenceNumbers | None = None,
) -> dict[int, Future]:
    """Submit tasks that subtract packed runs from others, by region, with new numbers of these sequences."""
    sums = {}
    for region in sorted({*wholes, *parts}):
        whole, part = wholes.get(region, []), parts.get(region, [])
        key_of = [[future.key for future in futures] for futures in (whole, part)]
        key = [*key_of, sequences]
        sums[region] = regions.tasks.submit("subtract", subtract, len(whole), sequences, *whole, *part, key_of=key)
    return sums


def subtract(wholes: int, sequences: SequenceNumbers | None, *runs: PackedRegionRun) -> PackedRegionRun:
    """Return the sum of the first runs of a region without that of the others (a task).

    Parameters
    ----------
    wholes : int
        How many of the runs come first.
    sequences : SequenceNumbers or None
        New numbers of the sequences in their postings, which those of the others are left out of.
    *runs : PackedRegionRun
        The runs.

    Raises
    ------
    StoreDamagedError
        If a connection would become negative.
    """
    tables = []
    for name in ("connections", "neurons"):
        whole, less = ([getattr(run, name) for run in part] for part in (runs[:wholes], runs[wholes:]))
        tables.append(pack_targets(sum_in_blocks(whole, less)))
    connections, neurons = tables
    indexes = [run.postings for run in runs[:wholes] if run.postings is not None]
    if not indexes:
        return PackedRegionRun(connections, neurons)
    postings = merge_runs(indexes)
    postings = postings if sequences is None else renumber_postings(postings, sequences)
    return PackedRegionRun(connections, neurons, pack(postings, gaps=True))


def subtract_recent(
    path: str, commit: str, sequences: SequenceNumbers | None, increments: Mapping[int, Increment]
) -> Difference:
    """Subtract increments from the latest runs of each region of a commit, where these hold them (a task).

    Parameters
    ----------
    path, commit : str
        The network and the commit.
    sequences : SequenceNumbers or None
        See `subtract`. Runs with later sequences than the first that goes get their new numbers.
    increments : mapping of int to RegionRun or PairRegionRun
        What is subtracted, by region.
    """
    return subtract_from_latest(open_any_commit(path, commit), RunCache(), sequences, increments)


def subtract_from_latest(
    reader: CommitReader, opened: RunCache, sequences: SequenceNumbers | None, increments: Mapping[int, Increment]
) -> Difference:
    """Subtract increments as `subtract_recent` does, given a commit and what is open of its runs."""
    stored = reader.manifest().runs_by_region()
    made = Difference({}, {}, {}, {})
    for region in sorted(stored if sequences is not None else increments):
        less = tasks.compact(*[increments[region]] if region in increments else [])
        runs = stored.get(region, [])
        found = _of_latest(reader, opened, runs, less, sequences)
        if found is None:
            made.rest[region] = less
            continue
        kept, run = found
        if run is not None and not tasks.measure_run(run).empty:
            made.runs[region] = run
        if run is not None:
            made.kept[region] = kept
            made.lost[region] = _lost(reader, opened, runs[:kept], run, less)
    return made


def _of_latest(
    reader: CommitReader,
    opened: RunCache,
    runs: Sequence[StoredRun],
    less: PackedRegionRun,
    sequences: SequenceNumbers | None,
) -> tuple[int, PackedRegionRun | None] | None:
    """Return how many runs of a region stay, and the difference of the others; None where all are to be read.

    There is no difference where nothing changes.
    """
    latest = len(runs) if sequences is None else _first_renumbered(reader, runs, sequences)
    if tasks.measure_run(less).empty and latest == len(runs):
        return latest, None
    whole: list[PackedRegionRun] = []
    for kept in reversed(range(len(runs))):
        if sum(run.connections for run in runs[kept:]) > RECENT:
            break
        whole.insert(0, opened.run(reader, runs[kept].identity))
        if kept > latest:
            continue
        try:
            return kept, subtract(len(whole), sequences, *whole, less)
        except StoreDamagedError:
            # A strength would become negative: an earlier run has some of it.
            continue
    return None


def _first_renumbered(reader: CommitReader, runs: Sequence[StoredRun], sequences: SequenceNumbers) -> int:
    """Return the place of the first run that has a sequence whose number changes."""
    first = int(sequences.edges[:-1][sequences.begins != sequences.edges[:-1]].min(initial=sequences.edges[-1]))
    for place, run in enumerate(runs):
        postings = reader.postings(run.identity)
        if postings is not None and last_sequence(unpack(postings)) >= first:
            return place
    return len(runs)


def _lost(
    reader: CommitReader, opened: RunCache, kept: Sequence[StoredRun], made: PackedRegionRun, less: PackedRegionRun
) -> RunSize:
    """Return how many neurons and connections of what was subtracted no run of a region has any more."""
    rows = opened.rows(reader, kept)
    connections = [*(its for its, _ in rows), KeptRowReader(made.connections.read)]
    neurons = [*(its for _, its in rows), KeptRowReader(made.neurons.read)]
    return RunSize(count_added_neurons([less.neurons], neurons), count_added([less.connections], connections))


def outcome_of(made: Difference) -> tuple[dict[int, int], dict[int, RunSize], list[int], list[int]]:
    """Return what the driver needs to know of differences: kept, lost, and the regions of the others (a task)."""
    return made.kept, made.lost, list(made.runs), list(made.rest)


def table_of(made: Difference) -> RunTable:
    """Return the differences of the latest runs (a task)."""
    return RunTable({**made.runs})


def rest_of(made: Difference, region: int) -> PackedRegionRun:
    """Return what is to be subtracted from all runs of a region (a task)."""
    return made.rest[region]
