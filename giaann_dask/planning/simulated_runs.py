"""Follow the runs of simulated regions: their sizes, and how long owners take to add them up, pack and write them.

Runs become one by the rule of training. Nothing waits here: seconds of owners are returned (`simulation` spends them).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from giaann_dask.cluster import data_budget
from giaann_dask.cluster.regions import STORED_TOGETHER
from giaann_dask.keys import Integers
from giaann_dask.planning.growth import Growth
from giaann_dask.planning.hardware import Hardware
from giaann_dask.planning.workloads import ComposedRound, Floats
from giaann_dask.runs.merging import plan_compaction

# Runs of rounds that become one, and what is left of small runs at the end (`giaann_dask.training.regions`,
# `giaann_dask.training.trainer`).
_TOGETHER, _COMPACT_FRACTION = 8, 1 / 2


class SimulatedRun(NamedTuple):
    """Run of a region."""

    rank: int
    sequences: float
    # Bytes of its increments, as they came.
    nbytes: float
    packed: bool = False
    stored: bool = False


class SimulatedRegions:
    """Runs of all regions, at their owners.

    Parameters
    ----------
    hardware : Hardware
        Whose rates and memory are used.
    growth : Growth
        Of the network with its text.
    owner : ndarray
        Worker that owns each region.
    held : ndarray
        Packed bytes that each worker has at the beginning, float64.

    Attributes
    ----------
    limit : ndarray
        Bytes of data that the memory of each worker takes.
    most : float
        Most bytes that a worker has held.
    """

    def __init__(self, hardware: Hardware, growth: Growth, owner: Integers, held: Floats) -> None:
        self._rates, self._growth, self._owner, self._held = hardware.rates, growth, owner, held
        self._runs: dict[int, tuple[SimulatedRun, ...]] = {}
        limits = (data_budget(place.kind.memory_bytes) for place in hardware.places())
        self.limit = np.array(list(limits), np.float64)
        self.most = float(held.max())

    def add(self, batches: ComposedRound) -> Floats:
        """Add the runs of a round to their regions; return the seconds in which owners add up those that are enough."""
        table = batches.table
        by_region = np.bincount(table.region, table.nbytes * batches.times)
        seconds = np.zeros(len(self._held))
        for region in np.flatnonzero(by_region).tolist():
            added = SimulatedRun(0, batches.sequences, float(by_region[region]))
            stored, fresh = self._parted(region)
            plan = plan_compaction(fresh, added, _TOGETHER)
            self._runs[region] = (*stored, *plan.kept, self._merged(region, plan.merged, plan.rank, seconds))
            self._held[self._owner[region]] += self._size(added)
        self.most = max(self.most, float(self._held.max()))
        return seconds

    def write(self) -> tuple[list[int], Floats]:
        """Pack and store what is new; return its regions, and the seconds of owners."""
        seconds = np.zeros(len(self._held))
        new: list[int] = []
        for region in self._runs:
            stored, fresh = self._parted(region)
            if not fresh:
                continue
            new.append(region)
            packed = tuple(run for run in fresh if run.packed)
            rest = fresh[len(packed) :]
            owner = self._owner[region]
            if len(rest) == 1:
                seconds[owner] += self._sum_s(rest)
            made = (*packed, *((self._merged(region, rest, _rank_of(rest), seconds),) if rest else ()))
            made = tuple(run._replace(packed=True, stored=True) for run in made)
            seconds[owner] += sum(map(self._size, made)) / self._rates.written_bytes_per_s
            self._runs[region] = (*stored, *made)
        return new, seconds

    def move(self, owner: Integers) -> Floats:
        """Give regions to other owners, with what was added to them; return the bytes of each region, float64."""
        nbytes = np.zeros(len(owner))
        for region, runs in self._runs.items():
            nbytes[region] = sum(map(self._size, runs))
        np.subtract.at(self._held, self._owner, nbytes)
        np.add.at(self._held, owner, nbytes)
        self._owner = owner
        return nbytes

    def fold(self, regions: Iterable[int]) -> Floats:
        """Add up stored runs as if they had come one by one; return the seconds of owners."""
        seconds = np.zeros(len(self._held))
        for region in regions:
            stored, fresh = self._parted(region)
            folded: tuple[SimulatedRun, ...] = ()
            for run in stored:
                plan = plan_compaction(folded, run, STORED_TOGETHER)
                folded = (*plan.kept, self._merged(region, plan.merged, plan.rank, seconds))
            self._runs[region] = (*folded, *fresh)
        return seconds

    def finish(self, seconds: Floats) -> None:
        """Leave each region with one run where that costs little; count the connections of others."""
        for region, runs in self._runs.items():
            if len(runs) > 1:
                weights = [1 << run.rank for run in runs]
                small = sum(weights) - max(weights) >= _COMPACT_FRACTION * max(weights)
                if small:
                    self._runs[region] = (self._merged(region, runs, _rank_of(runs), seconds),)
                else:
                    seconds[self._owner[region]] += self._sum_s(runs)

    def _packed_share(self, sequences: float) -> float:
        """Return the bytes of the packed sum of some sequences, in those of their increments."""
        growth = self._growth
        raw = growth.increment_bytes("corpus", max(growth.trained, 1)) / growth.trained
        return min(growth.packed_bytes.at(max(sequences, 1.0)) / (max(sequences, 1.0) * raw), 1.0)

    def spilled_s(self, nbytes: Floats) -> Floats:
        """Return how long workers wait for their disks, for what they hold beyond their memory."""
        beyond = np.maximum(1 - self.limit / np.maximum(self._held, 1.0), 0.0)
        return np.asarray(beyond * nbytes / self._rates.written_bytes_per_s, np.float64)

    def _parted(self, region: int) -> tuple[tuple[SimulatedRun, ...], tuple[SimulatedRun, ...]]:
        """Return the stored runs of a region, which come first, and the others."""
        runs = self._runs.get(region, ())
        stored = sum(run.stored for run in runs)
        return runs[:stored], runs[stored:]

    def _size(self, run: SimulatedRun) -> float:
        """Return the bytes of a run in memory."""
        return run.nbytes * (self._packed_share(run.sequences) if run.packed else 1.0)

    def _sum_s(self, runs: Iterable[SimulatedRun]) -> float:
        """Return how long runs take to be added up and packed."""
        rates = self._rates
        return sum(
            self._size(run) / (rates.merged_bytes_per_s if run.packed else rates.packed_bytes_per_s) for run in runs
        )

    def _merged(self, region: int, runs: tuple[SimulatedRun, ...], rank: int, seconds: Floats) -> SimulatedRun:
        """Return the sum of runs of a region, and add how long it takes to those of the owner."""
        if len(runs) == 1:
            return runs[0]
        owner = self._owner[region]
        seconds[owner] += self._sum_s(runs)
        sequences, nbytes = sum(run.sequences for run in runs), sum(run.nbytes for run in runs)
        made = SimulatedRun(rank, sequences, nbytes, packed=True, stored=runs[0].stored)
        self._held[owner] += self._size(made) - sum(map(self._size, runs))
        return made


def _rank_of(runs: Iterable[SimulatedRun]) -> int:
    """Return the rank of a sum of runs."""
    return (sum(1 << run.rank for run in runs) - 1).bit_length()
