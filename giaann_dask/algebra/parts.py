"""Read the runs of a network on a cluster as parts of another network's regions, and write a new network of them.

`addition`, `removal`, `comparison` and `pruning` use these parts; no more than one region of a network is decoded at a
time in a task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from distributed import Client, Future

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import submit_runs
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.cluster.submitting import Submitted, TaskSubmitter
from giaann_dask.errors import SpecificationError, StoreExistsError, describe_difference
from giaann_dask.events import Observer, StageAdvanced
from giaann_dask.models import same_counts
from giaann_dask.runs.packing import PackedRegionRun, pack, pack_targets, unpack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import SequenceNumbers, renumber_postings
from giaann_dask.runs.renaming import Renaming, rename_parts, rename_sources
from giaann_dask.runs.run import Run, divide_rows
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.locking import locked
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.unfinished import removed_unless_finished
from giaann_dask.training import tasks
from giaann_dask.training.committing import CommitContents, commit_regions
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import sizes_of
from giaann_dask.training.target import open_store


def require_same_rules(first: CommitReader, other: CommitReader) -> None:
    """Raise a `SpecificationError` when two networks do not count alike, so that they have no sum or difference."""
    wanted, found = (reader.manifest().specification.profile for reader in (first, other))
    if found != wanted:
        # All other rules differ, too.
        raise SpecificationError(
            f"{other.path} is of profile {found}",
            f"profile {wanted} as in {first.path}",
            "train both with the same specification",
        )
    wanted_rules = first.manifest().specification
    one, two = (
        (
            same_counts(reader.manifest().specification, wanted_rules).without_regions(),
            reader.ever_pos().identity(),
            None if (tokenizer := reader.tokenizer()) is None else tokenizer.identity(),
        )
        for reader in (first, other)
    )
    require_alike(other.path, two, first.path, one, "train both with the same specification")


def require_alike(path: Path, found: Iterable[object], place: object, wanted: Iterable[object], remedy: str) -> None:
    """Raise a `SpecificationError` when the rules of the network at a path differ from those at a place.

    Parameters
    ----------
    path : Path
        Of the network.
    found, wanted : iterable of object
        Specification, identity of the ever-POS lexicon, and of the tokenizer, as far as they are compared.
    place : object
        Where the wanted ones are.
    remedy : str
        What to do.
    """
    for what, one, two in zip(
        ("the specification", "the ever-POS lexicon", "the tokenizer"), found, wanted, strict=False
    ):
        if one != two:
            shown, expected = describe_difference(one, two)
            raise SpecificationError(f"{what} of {path}: {shown}", f"{expected} as in {place}", remedy)


def require_same_index(first: CommitReader, other: CommitReader) -> None:
    """Raise a `SpecificationError` when only one of two networks has an index of its sequences."""
    traced = [reader.manifest().specification.trace for reader in (first, other)]
    if traced[0] != traced[1]:
        has, lacks = (first, other) if traced[0] else (other, first)
        raise SpecificationError(
            f"network {has.path} has an index of its sequences, and {lacks.path} has none",
            "networks that all have one, or none, as the sum cannot trace a part of its text alone",
            f"index it first: giaann-dask index {lacks.path} TEXT...",
        )


def submit_parts(
    client: Client,
    reader: CommitReader,
    placement: Placement,
    renaming: Renaming | None = None,
    sequences: SequenceNumbers | None = None,
) -> dict[int, list[Future]]:
    """Submit tasks that read a network's runs as packed parts of the regions of a placement.

    Parameters
    ----------
    client : Client
        Where they run.
    reader : CommitReader
        The network.
    placement : Placement
        Where neurons belong.
    renaming : Renaming, optional
        New identifiers of the network's names; the same by default.
    sequences : SequenceNumbers, optional
        New numbers of the network's sequences, of one with an index; the same by default.

    Returns
    -------
    dict of int to list of Future
        A `PackedRegionRun` each, by region.
    """
    parts = {region: runs for region, runs in submit_runs(client, reader).items() if runs}
    same_names = renaming is None or renaming.is_identity
    if same_names and sequences is None and _same_regions(reader.placement(), placement):
        return parts
    runs = [part for each in parts.values() for part in each]
    return divide_parts(TaskSubmitter(client), runs, placement, renaming, sequences)


def divide_parts(
    submitter: TaskSubmitter,
    runs: Sequence[Future],
    placement: Placement,
    renaming: Renaming | None = None,
    sequences: SequenceNumbers | None = None,
    **where: Any,
) -> dict[int, list[Submitted]]:
    """Submit tasks that rename the neurons of packed runs and divide these among the regions of a placement.

    Parameters
    ----------
    submitter : TaskSubmitter
        Submits them. Within its `together` the parts are for tasks of the same block; where these run at the same
        place, parts of results that the cluster has are not computed again.
    runs : sequence of Future
        A `PackedRegionRun` each.
    placement, renaming, sequences, and what is returned
        See `submit_parts`.
    **where
        Where the tasks run; see `TaskSubmitter.submit`.
    """
    parts: dict[int, list[Submitted]] = defaultdict(list)
    # A task, so that a worker that dies with it costs nothing.
    shared_key = task_key("keep", placement, renaming, sequences)
    shared = submitter.pass_on(shared_key, keep, placement, renaming, sequences, **where)
    for run in runs:
        key = task_key("rename", run.key, shared_key)
        divided = submitter.pass_on(key, rename_packed, run, shared, **where)
        for region in placement.live():
            routed = task_key("route", key, region)
            parts[region].append(submitter.pass_on(routed, select_region, divided, region, **where))
    return dict(parts)


def placement_for(reader: CommitReader, columns: int) -> Placement:
    """Return the placement of a commit with a fixed region for all columns of a larger dictionary."""
    placement = reader.placement()
    by_hash = reader.manifest().specification.placement == "hash"
    return placement if by_hash else placement.assigning(columns)


def add_parts(regions: Regions, parts: Mapping[int, Sequence[Submitted]]) -> dict[int, Future]:
    """Submit tasks that add the parts of each region, without decoding a sum as a whole."""
    return {
        region: regions.tasks.submit("compact", tasks.compact, *each, key_of=[part.key for part in each])
        for region, each in parts.items()
    }


def write_network(
    client: Client,
    out: Path,
    like: CommitReader,
    placement: Placement,
    contents: CommitContents,
    submit: Callable[[Regions], Mapping[int, Future]],
    observer: Observer,
) -> str:
    """Write a new network of packed runs that tasks make, and return the identity of its commit.

    Parameters
    ----------
    client : Client
        Where they run.
    out : Path
        Folder of the new network, absolute.
    like : CommitReader
        Network whose specification and lexicon it has.
    placement : Placement
        Where its neurons belong.
    contents : CommitContents
        Its counts, dictionaries and ledger.
    submit : callable
        Submits a task for each region that has connections, which returns its `PackedRegionRun`. Nothing else may
        refer to the futures that these need, or their values stay in memory.
    observer : callable
        Notified of every region.

    Raises
    ------
    StoreExistsError
        If there is a network at the path already.
    StoreWriteError, StoreUnsharedError
        If it cannot be written, or a worker cannot access it.
    """
    with locked(out) as held, removed_unless_finished(out):
        if open_store(out) is not None:
            raise StoreExistsError(f"{out} is a network already", "a new path", "write to another path")
        SharedPlace(client, held).require()
        regions = Regions(client, placement, 0)
        regions.replace_by(submit(regions))
        for done, runs in enumerate(regions.runs.values(), 1):
            sizes_of(runs)
            observer(StageAdvanced("write", done, len(regions.runs), "regions"))
        empty = replace(Manifest.new(like.manifest().specification), begun_with=like.manifest().begun_with)
        store = NetworkStore.create(out, empty, like.ever_pos(), like.tokenizer(), held, finished=False)
        store.held = held
        return commit_regions(store, regions, regions.snapshot(whole=True), contents, last=True)


def _same_regions(one: Placement, other: Placement) -> bool:
    """Return whether two placements send every neuron to the same region."""
    return (
        one.first_regions == other.first_regions
        and one.splits == other.splits
        and np.array_equal(one.assigned, other.assigned)
    )


_Shared: TypeAlias = "tuple[Placement, Renaming | None, SequenceNumbers | None]"


def keep(placement: Placement, renaming: Renaming | None, sequences: SequenceNumbers | None) -> _Shared:
    """Return a placement and new identifiers for tasks that share them (a task)."""
    return placement, renaming, sequences


def rename_packed(packed: PackedRegionRun, shared: _Shared) -> dict[int, PackedRegionRun]:
    """Rename the neurons of a run and return its parts by region (a task)."""
    placement, renaming, sequences = shared
    connections = {
        region: pack_targets(blocks)
        for region, blocks in rename_parts(packed.connections, renaming, placement.regions_of)
    }
    neurons, postings = unpack(packed.neurons), None if packed.postings is None else unpack(packed.postings)
    if postings is not None and sequences is not None:
        postings = renumber_postings(postings, sequences)
    if renaming is not None:
        neurons = rename_sources(neurons, renaming)
        postings = None if postings is None else rename_sources(postings, renaming)
    own, places = (divide_rows(each, placement.regions_of(each.source)) for each in (neurons, postings or Run.empty()))
    none = Run.empty()
    runs = {
        region: PackedRegionRun(
            connections.get(region) or pack(none),
            pack(own.get(region, none)),
            None if postings is None else pack(places.get(region, none), gaps=True),
        )
        for region in sorted({*connections, *own, *places})
    }
    return tasks.divide_at_targets(runs, placement)


def select_region(parts: dict[int, PackedRegionRun], region: int) -> PackedRegionRun:
    """Return the part of a run that belongs to a region (a task)."""
    return parts.get(region) or PackedRegionRun(pack(Run.empty()), pack(Run.empty()))
