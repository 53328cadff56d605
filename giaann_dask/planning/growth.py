"""Fit how a network grows from a sample of its corpus, which is counted exactly in this process.

Columns, connections and bytes follow a power of the sequences (Heaps' law), and the connections of columns one of
their rank (Zipf's law). The error of a fit is that of what the first half of the sample predicts for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import unpack_neuron
from giaann_dask.runs.column_placement import column_usage, place_columns
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import FIRST_REGIONS, Placement, row_weights
from giaann_dask.runs.summing import count_union
from giaann_dask.spec import PlacementKind, Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training import tasks
from giaann_dask.training.selection import touches_of
from giaann_dask.training.training_options import Order, SelectionOptions
from giaann_dask.training.training_report import measure_touches

# Sequences of the sample are counted in random order up to these shares, so that the law is not that of one chapter.
_SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
_SEED = 1
# Sequences of a batch, and batches of each size that are counted, at most.
BATCH_SIZES = (1, 16, 256, 2048, 8192)
_BATCHES = 8
# Numbers of regions whose use by batches is counted.
REGION_COUNTS = (1, 4, 16, 64, 256, 1024)
# Columns by rank to which Zipf's law is fitted: those in the middle, as the first and the last ones bend.
_FIRST_RANK, _LAST_SHARE = 10, 0.5
_LEAST_SEQUENCES = 64


@dataclass(frozen=True)
class PowerLaw:
    """The law ``scale * x ** exponent``, fitted to measured values.

    Parameters
    ----------
    scale, exponent : float
        Of the law.
    exponent_error : float
        Standard error of the exponent.
    error : float
        Relative error of what the law predicts for values that were held out; 0 where none were.

    Examples
    --------
    >>> law = PowerLaw.fit([1, 10, 100], [3, 30, 300])
    >>> round(law.at(1000)), round(law.inverse(3000)), round(law.error, 9)
    (3000, 1000, 0.0)
    """

    scale: float
    exponent: float
    exponent_error: float = 0.0
    error: float = 0.0

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> PowerLaw:
        """Return the law of positive values at two or more places, without an error of prediction."""
        log_x, log_y = np.log(np.asarray(x, np.float64)), np.log(np.asarray(y, np.float64))
        centred = log_x - log_x.mean()
        exponent = float(centred @ log_y / (centred @ centred))
        scale = float(log_y.mean() - exponent * log_x.mean())
        rest = log_y - scale - exponent * log_x
        deviation = float(np.sqrt(rest @ rest / max(len(log_x) - 2, 1) / (centred @ centred)))
        return cls(float(np.exp(scale)), exponent, deviation)

    def at(self, x: float) -> float:
        """Return the value at a place."""
        return float(self.scale * x**self.exponent)

    def inverse(self, y: float) -> float:
        """Return the place with a value."""
        return float((y / self.scale) ** (1 / self.exponent))


class BatchFigures(NamedTuple):
    """Figures of the increment of one batch, on average.

    Attributes
    ----------
    sequences : int
        Trained sequences of the batch.
    nbytes : float
        Bytes of its increment.
    regions : mapping
        Regions that it touches, by placement and number of regions.
    """

    sequences: int
    nbytes: float
    regions: Mapping[tuple[PlacementKind, int], float]


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of the network of a corpus, as a sample of it says.

    Parameters
    ----------
    sequences, trained, tokens, pairs, characters : int
        Counted sequences of the sample, those that are trained, the tokens and pairs of tokens of these, and
        characters of its text.
    columns, connections, packed_bytes : PowerLaw
        Of trained sequences: distinct columns and connections, and bytes of the network in one run.
    zipf : PowerLaw
        Connections of a column, of its rank.
    batches : mapping of str to tuple of BatchFigures
        By order of selection, ascending by size.
    largest_column, largest_row, used_row : float
        Share in all connections of the largest column, of the largest neuron, and of the neuron that a step of a prompt
        uses, on average.
    region_shares : mapping
        Share of the largest region in all connections, by placement and number of regions.
    """

    sequences: int
    trained: int
    tokens: int
    pairs: int
    characters: int
    columns: PowerLaw
    connections: PowerLaw
    packed_bytes: PowerLaw
    zipf: PowerLaw
    batches: Mapping[Order, tuple[BatchFigures, ...]]
    largest_column: float
    largest_row: float
    used_row: float
    region_shares: Mapping[tuple[PlacementKind, int], float] = field(default_factory=dict)

    @property
    def placements(self) -> tuple[PlacementKind, ...]:
        """Placements that were measured."""
        return tuple(dict.fromkeys(kind for kind, _ in self.region_shares))

    @property
    def connection_bytes(self) -> float:
        """Bytes of a connection of the whole sample."""
        return self.packed_bytes.at(self.trained) / self.connections.at(self.trained)

    def increment_bytes(self, order: Order, sequences: float) -> float:
        """Return the bytes of the increment of a batch; larger ones than those of the sample grow in proportion."""
        return self._batch(order, sequences, lambda each: each.nbytes)

    def touched_regions(self, order: Order, sequences: float, placement: PlacementKind, regions: int) -> float:
        """Return how many regions a batch touches."""
        counts = np.log(REGION_COUNTS)
        found = [
            self._batch(order, sequences, lambda each, count=count: each.regions[placement, count])  # type: ignore[misc]
            for count in REGION_COUNTS
        ]
        touched = float(np.exp(np.interp(np.log(regions), counts, np.log(found))))
        return min(touched, regions)

    def region_share(self, placement: PlacementKind, regions: int) -> float:
        """Return the share of the largest of some regions, none of which was split for its size."""
        shares = [self.region_shares[placement, count] for count in REGION_COUNTS]
        return float(np.exp(np.interp(np.log(regions), np.log(REGION_COUNTS), np.log(shares))))

    def _batch(self, order: Order, sequences: float, value: Callable[[BatchFigures], float]) -> float:
        figures = self.batches[order if order in self.batches else "corpus"]
        sizes = [each.sequences for each in figures]
        values = [value(each) for each in figures]
        if sequences > sizes[-1]:
            return float(values[-1] * sequences / sizes[-1])
        return float(np.exp(np.interp(np.log(sequences), np.log(sizes), np.log(values))))


def measure_growth(blocks: Sequence[EncodedBlock], specification: Specification, characters: int) -> Growth:
    """Count a sample and fit how its network grows.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sequences of the sample in the order of the corpus.
    specification : Specification
        What training computes.
    characters : int
        Of the text of the sample.

    Raises
    ------
    EmptyInputError
        If the sample has fewer than 64 sequences that can be trained.
    """
    trained = sum(int((block.status == CANDIDATE).sum()) for block in blocks)
    if trained < _LEAST_SEQUENCES:
        raise EmptyInputError(
            f"a sample of {trained} sequences that can be trained",
            f"{_LEAST_SEQUENCES} or more",
            "give a longer text, or a larger sample",
        )
    laws, runs = _fit(blocks, specification, trained)
    earlier, _ = _fit(blocks, specification, trained // 2)
    columns, connections, nbytes = (
        replace(law, error=abs(before.at(trained) / law.at(trained) - 1))
        for law, before in zip(laws, earlier, strict=True)
    )
    sources, weights = _sources(runs)
    used, inverse = np.unique(unpack_neuron(sources)[0], return_inverse=True)
    by_column = np.bincount(inverse, weights)
    falling = np.sort(by_column)[::-1]
    first, last = _FIRST_RANK, max(_FIRST_RANK + 2, round(_LAST_SHARE * len(falling)))
    ranked = [value for value in falling[first:last].tolist() if value > 0]
    zipf = PowerLaw.fit(range(first + 1, first + 1 + len(ranked)), ranked) if len(ranked) > 1 else PowerLaw(1, 0)
    placements = _placements(blocks, specification)
    shares = {
        key: float(np.bincount(placed.first_regions_of(used), by_column).max() / by_column.sum())
        for key, placed in placements.items()
    }
    lengths = np.concatenate([np.diff(block.offsets)[block.status == CANDIDATE] for block in blocks])
    return Growth(
        sequences=sum(len(block.status) for block in blocks),
        trained=trained,
        tokens=int(lengths.sum()),
        pairs=int((lengths * (lengths - 1) // 2).sum()),
        characters=characters,
        columns=columns,
        connections=connections,
        packed_bytes=nbytes,
        zipf=zipf,
        batches={
            order: tuple(_batches(blocks, specification, order, placements, trained))
            for order in (("corpus", "least-overlap") if specification.traits.columns else ("corpus",))
        },
        largest_column=float(falling[0] / falling.sum()),
        largest_row=float(weights.max() / weights.sum()),
        used_row=float((weights**2).sum() / weights.sum() ** 2),
        region_shares=shares,
    )


def _fit(
    blocks: Sequence[EncodedBlock], specification: Specification, trained: int
) -> tuple[list[PowerLaw], list[PackedRegionRun]]:
    """Return the laws of columns, connections and bytes of the first sequences, and runs of all of these."""
    ends = [round(share * trained) for share in _SHARES]
    slices = np.full(sum(int((block.status == CANDIDATE).sum()) for block in blocks), len(ends))
    slices[np.random.default_rng(_SEED).permutation(trained)] = np.searchsorted(ends, np.arange(trained), side="right")
    runs: list[PackedRegionRun] = []
    sizes = []
    for number in range(len(ends)):
        increment = tasks.count_selected(blocks, slices, number, Placement(1), specification, ())
        runs.append(tasks.compact(*increment.values()))
        sources, _ = _sources(runs)
        connections = count_union([run.connections for run in runs])
        columns = len(np.unique(unpack_neuron(sources)[0]))
        sizes.append((columns, connections))
    # Each slice is a run of a network of so many sequences.
    packed = PowerLaw.fit(np.diff([0, *ends])[1:].tolist(), [run.nbytes for run in runs[1:]])
    return [*(PowerLaw.fit(ends, values) for values in zip(*sizes, strict=True)), packed], runs


def _sources(runs: Sequence[PackedRegionRun]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the source neurons of some runs, and the connections of each, summed over the runs."""
    found = [row_weights(table) for run in runs for table in (run.connections, run.neurons)]
    sources, inverse = np.unique(np.concatenate([source for source, _ in found]), return_inverse=True)
    weights = np.bincount(inverse, np.concatenate([weight for _, weight in found]).astype(np.float64))
    return sources, weights.astype(np.float64)


def _placements(
    blocks: Sequence[EncodedBlock], specification: Specification
) -> dict[tuple[PlacementKind, int], Placement]:
    """Return how columns are placed, by kind of placement and number of regions."""
    found: dict[tuple[PlacementKind, int], Placement] = {("hash", count): Placement(count) for count in REGION_COUNTS}
    if specification.traits.columns:
        usages = [column_usage(block) for block in blocks]
        for count in REGION_COUNTS:
            found["co-occurrence", count] = place_columns(Placement(count), usages, "co-occurrence")
    return found


def _batches(
    blocks: Sequence[EncodedBlock],
    specification: Specification,
    order: Order,
    placements: Mapping[tuple[PlacementKind, int], Placement],
    trained: int,
) -> Iterator[BatchFigures]:
    """Yield the figures of batches of each size that the sample has."""
    touches = touches_of(blocks) if order != "corpus" else None
    for size in BATCH_SIZES:
        if size > trained:
            return
        count = trained // size
        if touches is None:
            batch = np.arange(trained) // size
        else:
            plan = tasks.RoundPlan(count, 1, single=size == 1)
            batch = tasks.assign(touches, plan, SelectionOptions(order=order))
        figures = []
        # Spread over the sample, as its beginning is not like the rest.
        for number in np.unique(np.linspace(0, count - 1, _BATCHES).astype(np.int64)).tolist():
            increments = tasks.count_selected(blocks, batch, number, Placement(FIRST_REGIONS), specification, ())
            touched = measure_touches(increments)
            regions = [len(np.unique(placed.first_regions_of(touched.column))) for placed in placements.values()]
            figures.append((touched.nbytes, *regions))
        nbytes, *used = np.maximum(np.mean(figures, axis=0), 1).tolist()
        yield BatchFigures(size, nbytes, dict(zip(placements, used, strict=True)))
