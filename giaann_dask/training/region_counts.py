"""Count the distinct neurons and connections of each region at the end of a training.

If the count of some stored runs of a region is known, as that of a single run is, only entries that its other runs add
are counted, which reads no more of the store than the rows that both have. `giaann_dask.runs.counting` counts runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distributed import Future

from giaann_dask.cluster import results
from giaann_dask.runs.run import RunSize
from giaann_dask.store.manifest import Manifest
from giaann_dask.training import tasks
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import RunReference


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


def known_counts(manifest: Manifest) -> dict[int, tuple[frozenset[str], RunSize]]:
    """Return the runs of each region of a commit and their joint counts, where these are known."""
    names: dict[int, list[str]] = {}
    for run in manifest.runs:
        names.setdefault(run.region, []).append(run.identity)
    alone = {run.region: RunSize(run.neurons, run.connections) for run in manifest.runs if len(names[run.region]) == 1}
    known = {**manifest.counts, **alone}
    return {region: (frozenset(names[region]), known[region]) for region in names if region in known}


def submit_counts(
    regions: Regions,
    runs: Sequence[tuple[int, RunReference]],
    sizes: Mapping[str, RunSize],
    place: tuple[str, str],
) -> list[Counting]:
    """Submit the tasks that count the distinct neurons and connections of every region.

    Parameters
    ----------
    regions : Regions
        The regions, with the counts of their first stored runs.
    runs : sequence of (int, RunReference)
        Packed runs, by region.
    sizes : mapping of str to RunSize
        Of each, by identity.
    place : tuple of (str, str)
        Path of the store and a commit that has all runs that are stored.
    """
    by_region: dict[int, list[RunReference]] = {}
    for region, run in runs:
        by_region.setdefault(region, []).append(run)
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
