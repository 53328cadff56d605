"""Decide by memory when regions are split and runs packed or added up, and how many rounds are in flight.

`regions` changes the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil

from distributed import Future

from giaann_dask.cluster import data_budget, region_budget, result, wait_all
from giaann_dask.cluster.regions import WRITTEN_SHARE
from giaann_dask.spec import Specification
from giaann_dask.training import tasks
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import RunReference
from giaann_dask.training.training_options import TrainingOptions

SMALL_BYTES = 1 << 22
"""Decoded size from which the content of a region costs more than its tasks and files."""
# Share of the input from which on it says how large the network will be, and the most regions that are made for that.
_LEAST_READ, _MOST_AHEAD = 1 / 200, 64
# Of the storage workers' data budgets, for decoded runs and for increments in flight; the rest is for packed runs.
_HOT_SHARE, _IN_FLIGHT_SHARE = 2 / 3, 1 / 3
# A region's small runs are added to its largest one at the end when they are not much smaller.
COMPACT_FRACTION = 1 / 2
# Decoded runs take so many times as much as packed ones, at least.
_PACKED = 4


def regions_ahead(nbytes: float, region_bytes: float) -> int:
    """Return how many regions, half full, a network of some decoded bytes needs.

    To split a region later, when it is full, costs as much as what it has been compacted for then.
    """
    return min(ceil(2 * nbytes / region_bytes), _MOST_AHEAD)


class BudgetPolicy:
    """Decide by memory which regions to split, and which runs to pack or to add up.

    Parameters
    ----------
    regions : Regions
        Regions of a network on a cluster.
    specification : Specification
        Of the network. Until there are as many regions as it says, or as the rest of the input will need, one is split
        as soon as its runs take more than 4 MB, decoded, so that a large network has as many, and a small one few.
    options : TrainingOptions
        Sizes from which regions are split (`region_bytes`) and runs packed (`hot_bytes`).
    """

    def __init__(self, regions: Regions, specification: Specification, options: TrainingOptions) -> None:
        self._regions = regions
        self._wanted, self._options = specification.regions, options
        # Where regions that have grown too large are to be split, and regions that cannot be.
        self._pivots: dict[int, Future] = {}
        self._unsplittable: set[int] = set()
        # Share of the input that has been read, and decoded bytes of the network before.
        self._read, self._before = 0.0, -1

    def expect(self, read: float) -> None:
        """Take the share of the input into account that has been read: the rest adds as much for its size, about."""
        self._read = read

    def _ahead(self, contents: Mapping[int, int], region_bytes: int) -> int:
        """Return how many regions the network needs at the end of the input, as far as that is known."""
        now = sum(contents.values())
        if self._before < 0:
            self._before = now
        if self._read < _LEAST_READ:
            return 0
        return regions_ahead(self._before + (now - self._before) / self._read, region_bytes)

    def apply(self) -> None:
        """Split regions and pack runs that have grown too large, by the sizes that are known without waiting."""
        self._regions.runs.sizes.fetch(self._regions.runs.all())
        self._split_found()
        self._find_pivots()
        asked = self._options.hot_bytes
        hot_bytes = _HOT_SHARE * self._data_bytes() if asked is None else asked
        self._regions.compaction.limit_decoded(hot_bytes)
        self._pack_beyond(hot_bytes)

    def _can_decode(self, region: int) -> bool:
        """Return whether there is memory to decode all runs of a region while other regions do the same."""
        return not self._regions.compaction.short or self._regions.runs.decoded_bytes(region) <= SMALL_BYTES

    def split_all(self) -> None:
        """Split regions until none is too large, waiting for their sizes, before the last commit of a training.

        In a training of few rounds, the sizes of runs may be computed too late for `apply`.
        """
        while True:
            self._regions.runs.sizes.fetch(self._regions.runs.all(), wait=True)
            self._find_pivots()
            if not self._pivots:
                return
            wait_all(list(self._pivots.values()))
            self._split_found()

    def _split_found(self) -> None:
        """Split the regions whose pivots have been found."""
        for region in [region for region, pivot in self._pivots.items() if pivot.done()]:
            self._split(region, self._pivots[region])

    def _find_pivots(self) -> None:
        """Submit the tasks that find the pivots of regions that are too large."""
        regions = self._regions
        # No worker can add up a region that takes too much of its memory.
        limits = [memory.limit for memory in regions.tasks.roles.memory.values() if memory.limit]
        region_bytes = min([self._options.region_bytes, *map(region_budget, limits)])
        contents = regions.runs.contents()
        wanted = max(self._wanted, self._ahead(contents, region_bytes))
        for region in sorted(contents.keys() - self._pivots.keys() - self._unsplittable):
            few = len(regions.runs) + len(self._pivots) < wanted
            if contents[region] > (min(region_bytes, SMALL_BYTES) if few else region_bytes):
                values, keys = zip(*((run.argument, run.key) for run in regions.runs[region]), strict=True)
                self._pivots[region] = regions.tasks.submit("pivot", tasks.find_pivot, *values, key_of=list(keys))

    def _split(self, region: int, found: Future) -> None:
        """Split a region at its pivot, or mark it as indivisible if there is none."""
        pivot: tuple[int, int] | None = result(found)
        del self._pivots[region]
        if pivot is None:
            self._unsplittable.add(region)
        else:
            self._regions.split(region, *pivot)

    def compact_small_runs(self) -> None:
        """Leave each region with one run where that costs little, before the last commit of a training."""
        small, sizes = [], self._regions.runs.sizes
        sizes.fetch(self._regions.runs.all(), wait=True)
        for region, runs in self._regions.runs.items():
            if not self._can_decode(region):
                continue
            weights = [size.connections + size.neurons for run in runs if (size := sizes.of(run)) is not None]
            if len(runs) > 1 and sum(weights) - max(weights) >= COMPACT_FRACTION * max(weights):
                small.append(region)
        self._regions.compaction.compact_all(small)

    def rounds_in_flight(self, round_bytes: int) -> int:
        """Return how many rounds of so many bytes may be in flight: as many as asked for, or memory allows."""
        most = self._options.rounds_in_flight
        return max(1, min(most, int(min(most, _IN_FLIGHT_SHARE * self._data_bytes() / max(round_bytes, 1)))))

    def stay_in_memory(self) -> bool:
        """Return whether the runs stay in memory after the last commit: if they fit into what owners keep."""
        hot, packed = self._regions.runs.sizes.hot_and_packed(self._regions.runs.all())
        return hot // _PACKED + packed <= WRITTEN_SHARE * self._data_bytes()

    def _data_bytes(self) -> float:
        """Return how many bytes of results the storage workers have memory for; infinity without limits."""
        limits = [memory.limit for memory in self._regions.tasks.roles.memory.values()]
        return sum(map(data_budget, limits)) if limits and all(limits) else float("inf")

    def _pack_beyond(self, hot_bytes: float) -> None:
        """Pack runs until the decoded ones are within a budget, the largest first: they wait longest for compaction."""
        # A table is in memory as long as any of its runs is hot.
        values: dict[str, list[RunReference]] = {}
        nbytes: Counter[str] = Counter()
        for run in self._regions.runs.all():
            if not run.packed and (size := self._regions.runs.sizes.of(run)) is not None:
                values.setdefault(run.future.key, []).append(run)
                nbytes[run.future.key] += size.nbytes
        total, chosen = nbytes.total(), list[RunReference]()
        for key in sorted(values, key=lambda key: (-nbytes[key], values[key][0].identity)):
            if total <= hot_bytes:
                break
            total -= nbytes[key]
            chosen += values[key]
        packed = self._regions.tasks.pack_all(chosen)
        self._regions.runs.replace({run.identity: run for run in packed})
