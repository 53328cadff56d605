"""Compose the rounds of a simulated training by the functions of training, and follow the runs of its regions.

The sequences are those of a sample, drawn again where more are needed. Nothing is counted; bytes of increments are
those that the growth of the sample says, in proportion to the pairs of tokens of the sequences. Rounds, selection,
placement, owners and the rule by which runs become one are those of training. Nothing waits here: seconds of owners
are returned (`simulation` spends them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import Roles, WorkerMemory, assign_regions, data_budget
from giaann_dask.cluster.regions import STORED_TOGETHER
from giaann_dask.keys import Integers
from giaann_dask.runs.column_placement import ColumnUsage, column_usage, place_columns
from giaann_dask.runs.merging import plan_compaction
from giaann_dask.runs.placement import Placement
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.region_budgets import COMPACT_FRACTION
from giaann_dask.training.selection import ColumnTouches, touches_of
from giaann_dask.training.tasks import assign, plan_rounds
from giaann_dask.training.training_options import ROUNDS_TOGETHER, SUMS_TOGETHER, SelectionOptions
from simulation.configuration import DECODED_BYTES, TrainingConfiguration
from simulation.growth import Growth
from simulation.hardware import Hardware

Floats = npt.NDArray[np.float64]

# Batches of more than one sequence that are composed; in wider rounds several workers have batches alike.
_COMPOSED = 64
# Weight of all regions.
_WEIGHT = 1e9


class BatchTable(NamedTuple):
    """Composed batches, by the regions that they touch.

    Attributes
    ----------
    sequences : ndarray
        Sequences of each batch; int64.
    cost : ndarray
        Cost of counting each, in that of the mean sequence; float64.
    offsets : ndarray
        Batch b has the entries ``offsets[b]`` to ``offsets[b + 1]``; int64.
    region, nbytes : ndarray
        Touched regions, ascending within a batch, and bytes of the increment for each; int64 and float64.
    """

    sequences: Integers
    cost: Floats
    offsets: Integers
    region: Integers
    nbytes: Floats

    def of(self, batches: Integers) -> BatchTable:
        """Return some of the batches."""
        offsets, entries = _entries_of(self.offsets, batches)
        return BatchTable(
            self.sequences[batches], self.cost[batches], offsets, self.region[entries], self.nbytes[entries]
        )

    @property
    def batch(self) -> Integers:
        """Batch of each entry."""
        return np.repeat(np.arange(len(self.sequences)), np.diff(self.offsets))


class ComposedRound(NamedTuple):
    """Batches of a round, of which several may be alike.

    Attributes
    ----------
    table : BatchTable
        Different batches.
    kind : ndarray
        Which of these each batch of the round is; int64.
    """

    table: BatchTable
    kind: Integers

    @property
    def sequences(self) -> int:
        """Sequences of the round."""
        return int(self.table.sequences[self.kind].sum())

    @property
    def times(self) -> Integers:
        """Number of batches of the round that are alike, for each entry of the table."""
        counts: Integers = np.bincount(self.kind, minlength=len(self.table.sequences))[self.table.batch]
        return counts

    @property
    def nbytes(self) -> float:
        """Bytes of its increments."""
        return float(self.table.nbytes @ self.times)

    def within(self, live: LiveRegions) -> ComposedRound:
        """Return the round by the live regions that its placed ones belong to."""
        if live.whole:
            return self
        table, regions = self.table, len(live.number)
        key = table.batch * regions + live.number[table.region]
        touched, inverse = np.unique(key, return_inverse=True)
        nbytes = np.bincount(inverse, table.nbytes, minlength=len(touched)).astype(np.float64)
        offsets = np.searchsorted(touched, np.arange(len(table.sequences) + 1) * regions).astype(np.int64)
        return self._replace(table=table._replace(offsets=offsets, region=touched % regions, nbytes=nbytes))


class PlacedColumns(NamedTuple):
    """Placement of columns, of which those of large regions are divided by neuron.

    Training splits a region for its bytes; here one is that has more than the share of a storage worker.

    Attributes
    ----------
    placement : Placement
        Before any split.
    parts, first : ndarray
        Parts of each region, and the number of the first of them; int64.
    share : ndarray
        Share of each part in the pairs of tokens; float64.
    """

    placement: Placement
    parts: Integers
    first: Integers
    share: Floats

    def regions_of(self, column: npt.NDArray[np.int32], seed: int) -> Integers:
        """Return the part of each touch of a column, of which several touches have different neurons."""
        region = self.placement.first_regions_of(column)
        drawn = np.random.default_rng(seed).random(len(region))
        numbers: Integers = self.first[region] + (drawn * self.parts[region]).astype(np.int64)
        return numbers


class LiveRegions:
    """Regions of a network in the course of a training, which begins with few and splits those that grow too large.

    Each consists of adjacent placed ones, and has the number of the first of these.

    Parameters
    ----------
    placed : PlacedColumns
        All regions that there may be.
    begun_with : int, optional
        Regions at the beginning, all of them by default.

    Attributes
    ----------
    number : ndarray
        Number of the live region of each placed one, int64.

    Examples
    --------
    >>> one = np.ones(4, np.int64)
    >>> live = LiveRegions(PlacedColumns(Placement(4), one, np.arange(4), np.full(4, 0.25)), 2)
    >>> live.split(2), live.number.tolist(), live.shares()
    (3, [0, 0, 2, 3], {0: 0.5, 2: 0.25, 3: 0.25})
    """

    def __init__(self, placed: PlacedColumns, begun_with: int | None = None) -> None:
        regions = len(placed.parts)
        few = min(begun_with or regions, regions)
        begins = placed.first[-(-np.arange(few) * regions // few)] if few < regions else np.arange(len(placed.share))
        self._share = placed.share
        self._set(begins)

    def _set(self, begins: Integers) -> None:
        self._begins = begins
        counts = np.diff(begins, append=len(self._share))
        self.number: Integers = np.repeat(begins, counts)

    @property
    def whole(self) -> bool:
        """Whether each is a placed one, so that none can be split."""
        return len(self._begins) == len(self._share)

    def __len__(self) -> int:
        """Return the number of live regions."""
        return len(self._begins)

    def shares(self) -> dict[int, float]:
        """Return the share of each region in the pairs of tokens."""
        sums = np.add.reduceat(self._share, self._begins)
        return dict(zip(self._begins.tolist(), sums.tolist(), strict=True))

    def is_divisible(self, region: int) -> bool:
        """Return whether a region has several placed ones."""
        return region + 1 < len(self.number) and int(self.number[region + 1]) == region

    def split(self, region: int) -> int:
        """Split a region into two whose shares are about the same; return the number of the second one."""
        end = int(np.searchsorted(self.number, region, side="right"))
        before = np.cumsum(self._share[region:end])
        second = region + 1 + int(np.argmin(np.abs(2 * before[:-1] - before[-1])))
        self._set(np.sort(np.append(self._begins, second)))
        return second


@dataclass(frozen=True, kw_only=True)
class SequenceSample:
    """Sequences to be trained, and how they are placed.

    Parameters
    ----------
    touches : ColumnTouches
        Of the trained sequences of the sample.
    usages : sequence of ColumnUsage
        Of its columns, for the placements that need them.
    growth : Growth
        Of its network.
    """

    touches: ColumnTouches
    usages: Sequence[ColumnUsage]
    growth: Growth

    @classmethod
    def of(cls, blocks: Sequence[EncodedBlock], growth: Growth) -> SequenceSample:
        """Return the workload of encoded blocks."""
        return cls(touches=touches_of(blocks), usages=[column_usage(block) for block in blocks], growth=growth)

    def with_columns(self, columns: int, seed: int = 0) -> SequenceSample:
        """Return sequences of as many columns each, drawn from so many columns by Zipf's law.

        Which columns occur together is lost, so placement by co-occurrence gains nothing.

        Parameters
        ----------
        columns : int
            Of the whole network.
        seed : int
            Of the draw.
        """
        frequency = np.sort(np.bincount(self.touches.column))[::-1]
        ranks = np.arange(1, np.count_nonzero(frequency) + 1)
        slope, _ = np.polyfit(np.log(ranks), np.log(frequency[: len(ranks)]), 1)
        share = np.cumsum(np.arange(1, columns + 1) ** float(slope))
        drawn = np.random.default_rng(seed).random(len(self.touches.column)) * share[-1]
        column = np.minimum(np.searchsorted(share, drawn), columns - 1).astype(np.int32)
        sequence = np.repeat(np.arange(len(self.touches)), np.diff(self.touches.offsets))
        key = np.unique((sequence << 32) | column)
        counts = np.bincount(key >> 32, minlength=len(self.touches))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        touches = ColumnTouches(offsets, (key & 0xFFFFFFFF).astype(np.int32), self.touches.length)
        return SequenceSample(touches=touches, usages=(), growth=self.growth)

    def place(self, configuration: TrainingConfiguration, regions: int, storing: int) -> PlacedColumns:
        """Return where columns belong, in so many regions before some are split among some storage workers."""
        placement = place_columns(Placement(regions), self.usages, configuration.placement)
        columns = np.diff(self.touches.offsets)
        cost = np.repeat(self.touches.cost / np.maximum(columns, 1), columns)
        load = np.bincount(placement.first_regions_of(self.touches.column), cost, minlength=regions)
        share = load / max(float(load.sum()), 1.0)
        parts = np.maximum(np.ceil(share * storing), 1).astype(np.int64)
        return PlacedColumns(placement, parts, np.cumsum(parts) - parts, np.repeat(share / parts, parts))

    def compose(
        self,
        configuration: TrainingConfiguration,
        placed: PlacedColumns,
        width: Callable[[], int],
        rounds: int | None,
        seed: int,
    ) -> Iterator[ComposedRound]:
        """Yield the batches of each round, accumulated ones as one.

        Parameters
        ----------
        configuration : TrainingConfiguration
            Size of batches, accumulation and selection.
        placed : PlacedColumns
            Where columns belong.
        width : callable
            Called at the beginning of each round: how many batches the compute workers count at once, most at first.
        rounds : int, optional
            Rounds of drawn sequences, more where they become narrower; by default those of the sample, which is trained
            once.
        seed : int
            Of the sequences that are drawn, and of their order.
        """
        size, accumulate = configuration.batch_sequences, configuration.accumulate
        if rounds is None:
            end = 0
            while end < len(self.touches):
                start, now = end, width()
                end = min(start + now * accumulate * size, len(self.touches))
                yield from self._rounds(_take(self.touches, np.arange(start, end)), configuration, placed, now, seed)
            return
        most, single = width(), size == 1
        composed = most if single else min(most, _COMPOSED)
        drawn = self._draw(size * accumulate * composed * (rounds if single else 1), seed)
        made = list(self._rounds(drawn, configuration, placed, composed, seed))
        rng = np.random.default_rng(seed)
        number, left = 0, rounds * most
        while left:
            made_round, count = made[number % len(made)], min(width(), left)
            kinds = len(made_round.kind)
            alike = rng.permutation(np.arange(count) % kinds) if kinds < most else made_round.kind[:count]
            used = np.arange(min(count, kinds))
            yield ComposedRound(made_round.table if count >= kinds else made_round.table.of(used), alike)
            number, left = number + 1, left - count

    def _rounds(
        self, touches: ColumnTouches, configuration: TrainingConfiguration, placed: PlacedColumns, width: int, seed: int
    ) -> Iterator[ComposedRound]:
        """Yield the rounds that some sequences are divided into."""
        size, accumulate = configuration.batch_sequences, configuration.accumulate
        plan = plan_rounds(len(touches), -(-len(touches) // size), width * accumulate, size)
        batch = assign(touches, plan, SelectionOptions(order=configuration.order, seed=seed))
        sums = -(-plan.width // accumulate)
        number_of = batch // plan.width * sums + batch % plan.width // accumulate
        table = self._table(touches, number_of, plan.rounds * sums, placed, configuration)
        for number in range(plan.rounds):
            chosen = np.arange(number * sums, (number + 1) * sums)
            chosen = chosen[table.sequences[chosen] > 0]
            yield ComposedRound(table.of(chosen), np.arange(len(chosen)))

    def _draw(self, count: int, seed: int) -> ColumnTouches:
        """Return the first sequences of the sample, or where it has too few, some of it at random."""
        total = len(self.touches)
        chosen = np.arange(count) if count <= total else np.random.default_rng(seed).integers(total, size=count)
        return _take(self.touches, chosen)

    def _table(
        self,
        touches: ColumnTouches,
        batch: Integers,
        batches: int,
        placed: PlacedColumns,
        configuration: TrainingConfiguration,
    ) -> BatchTable:
        """Return what each batch touches; a sequence's bytes are divided evenly among its columns."""
        mean = float(self.touches.cost.mean())
        sequences = np.bincount(batch, minlength=batches)
        cost = np.bincount(batch, touches.cost / mean, minlength=batches).astype(np.float64)
        typical = max(float(sequences.mean()), 1.0)
        nbytes = self.growth.increment_bytes(configuration.order, typical) / typical
        columns = np.diff(touches.offsets)
        each = np.repeat(touches.cost / mean * nbytes / np.maximum(columns, 1), columns)
        regions = len(placed.share)
        key = np.repeat(batch, columns) * regions + placed.regions_of(touches.column, len(touches))
        if batches * regions <= 4 * len(key):
            summed = np.bincount(key, each, minlength=batches * regions).astype(np.float64)
            touched = np.flatnonzero(summed)
            summed = summed[touched]
        else:
            touched, inverse = np.unique(key, return_inverse=True)
            summed = np.bincount(inverse, each).astype(np.float64)
        offsets = np.searchsorted(touched, np.arange(batches + 1) * regions).astype(np.int64)
        return BatchTable(sequences, cost, offsets, touched % regions, summed)


def _take(touches: ColumnTouches, chosen: Integers) -> ColumnTouches:
    """Return the touches of some sequences, in this order."""
    offsets, entries = _entries_of(touches.offsets, chosen)
    return ColumnTouches(offsets, touches.column[entries], touches.length[chosen])


def _entries_of(offsets: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """Return the offsets of some rows of a table one after another, and the entries that they have in the table."""
    counts = np.diff(offsets)[chosen]
    found = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return found, np.arange(found[-1]) + np.repeat(offsets[chosen] - found[:-1], counts)


def address_of(worker: int) -> str:
    """Return the address of a simulated worker; addresses are in the order of numbers."""
    return f"{worker:09d}"


def owners_of(
    hardware: Hardware,
    live: LiveRegions,
    before: Integers | None = None,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> Integers:
    """Return the worker that owns each placed region, as live ones are assigned by memory, to slow ones by shares.

    Parameters
    ----------
    hardware : Hardware
        With the workers.
    live : LiveRegions
        The regions.
    before : ndarray, optional
        Number of the owner of each placed region until now, negative for those without.
    shares : mapping of str to float
        Of slow workers, by address.
    """
    storing = [(number, place.kind) for number, place in enumerate(hardware.places()) if place.kind.stores]
    names = tuple(address_of(number) for number, _ in storing)
    memory = {name: WorkerMemory(limit=kind.memory_bytes) for name, (_, kind) in zip(names, storing, strict=True)}
    weights = {region: round(_WEIGHT * share) for region, share in live.shares().items()}
    known = {} if before is None else {each: int(before[each]) for each in weights}
    known_names = {region: address_of(owner) for region, owner in known.items() if owner >= 0}
    owners = assign_regions(known_names, weights, Roles(names, (), memory=memory), shares)
    return np.array([int(owners[region]) for region in live.number.tolist()], np.int64)


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
    live : LiveRegions
        The regions.
    owner : ndarray
        Worker that owns each placed region.
    held : ndarray
        Packed bytes that each worker has at the beginning, float64.

    Attributes
    ----------
    limit : ndarray
        Bytes of data that the memory of each worker takes.
    most : float
        Most bytes that a worker has held.
    """

    def __init__(self, hardware: Hardware, growth: Growth, live: LiveRegions, owner: Integers, held: Floats) -> None:
        self._rates, self._growth, self._live, self._owner, self._held = hardware.rates, growth, live, owner, held
        self._runs: dict[int, tuple[SimulatedRun, ...]] = {}
        limits = (data_budget(place.kind.memory_bytes) for place in hardware.places())
        self.limit = np.array(list(limits), np.float64)
        self.most = float(held.max())

    def add(self, batches: ComposedRound) -> Floats:
        """Add the runs of a round to their regions; return the seconds in which owners add up those that are enough."""
        batches = batches.within(self._live)
        by_region = np.bincount(batches.table.region, batches.table.nbytes * batches.times)
        seconds = np.zeros(len(self._held))
        for region in np.flatnonzero(by_region).tolist():
            added = SimulatedRun(0, batches.sequences, float(by_region[region]))
            stored, fresh = self._parted(region)
            plan = plan_compaction(fresh, added, ROUNDS_TOGETHER, SUMS_TOGETHER)
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
            seconds[owner] += len(made) * self._rates.run_s
            self._runs[region] = (*stored, *made)
        return new, seconds

    def decoded_bytes(self, region: int) -> float:
        """Return the bytes of the decoded runs of a region, two connections for each pair of those not packed."""
        growth, found = self._growth, 0.0
        raw = self._raw_bytes()
        for run in self._runs.get(region, ()):
            pairs = growth.pairs / growth.trained * run.sequences
            connections = growth.connections.at(run.sequences) if run.packed else 2 * pairs
            found += DECODED_BYTES * connections * run.nbytes / (run.sequences * raw)
        return found

    def split(self, region: int) -> tuple[int, Floats]:
        """Split a region, and its runs by the shares; return the number of the second part, and seconds of owners."""
        second = self._live.split(region)
        shares = self._live.shares()
        share = shares[second] / (shares[region] + shares[second])
        runs, seconds = self._runs.pop(region, ()), np.zeros(len(self._held))
        seconds[self._owner[region]] = sum(map(self._size, runs)) / self._rates.integrated_bytes_per_s
        self._runs[region] = tuple(run._replace(nbytes=(1 - share) * run.nbytes) for run in runs)
        self._runs[second] = tuple(run._replace(nbytes=share * run.nbytes) for run in runs)
        return second, seconds

    def runs(self, region: int) -> int:
        """Return the number of runs of a region."""
        return len(self._runs.get(region, ()))

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
                small = sum(weights) - max(weights) >= COMPACT_FRACTION * max(weights)
                if small:
                    self._runs[region] = (self._merged(region, runs, _rank_of(runs), seconds),)
                else:
                    seconds[self._owner[region]] += self._sum_s(runs)

    def _packed_share(self, sequences: float) -> float:
        """Return the bytes of the packed sum of some sequences, in those of their increments."""
        packed = self._growth.packed_bytes.at(max(sequences, 1.0))
        return min(packed / (max(sequences, 1.0) * self._raw_bytes()), 1.0)

    def _raw_bytes(self) -> float:
        """Return the bytes of the increments of a sequence."""
        growth = self._growth
        return growth.increment_bytes("corpus", max(growth.trained, 1)) / growth.trained

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
