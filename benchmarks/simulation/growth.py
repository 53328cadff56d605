"""Fit how a network grows from a sample of its corpus, which is counted exactly in this process.

Connections and bytes follow a power of the sequences (Heaps' law).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from giaann_dask.errors import EmptyInputError
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import FIRST_REGIONS, Placement
from giaann_dask.runs.summing import count_union
from giaann_dask.spec import Specification
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
_LEAST_SEQUENCES = 64


class PowerLaw(NamedTuple):
    """The law ``scale * x ** exponent``, fitted to measured values."""

    scale: float
    exponent: float

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> PowerLaw:
        """Return the law of positive values at two or more places."""
        exponent, scale = np.polyfit(np.log(x), np.log(y), 1)
        return cls(float(np.exp(scale)), float(exponent))

    def at(self, x: float) -> float:
        """Return the value at a place."""
        return float(self.scale * x**self.exponent)


class BatchFigures(NamedTuple):
    """Trained sequences of a batch, and bytes of its increment on average."""

    sequences: int
    nbytes: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of the network of a corpus, as a sample of it says.

    Parameters
    ----------
    trained, tokens, pairs, characters : int
        Trained sequences of the sample, their tokens and pairs of tokens, and characters of its text.
    connections, packed_bytes : PowerLaw
        Of trained sequences: distinct connections, and bytes of the network in one run.
    batches : mapping of str to tuple of BatchFigures
        By order of selection, ascending by size.
    """

    trained: int
    tokens: int
    pairs: int
    characters: int
    connections: PowerLaw
    packed_bytes: PowerLaw
    batches: Mapping[Order, tuple[BatchFigures, ...]]

    def increment_bytes(self, order: Order, sequences: float) -> float:
        """Return the bytes of the increment of a batch; larger ones than those of the sample grow in proportion."""
        figures = self.batches[order if order in self.batches else "corpus"]
        sizes, values = zip(*figures, strict=True)
        if sequences > sizes[-1]:
            return float(values[-1] * sequences / sizes[-1])
        return float(np.exp(np.interp(np.log(sequences), np.log(sizes), np.log(values))))


def measure_growth(blocks: Sequence[EncodedBlock], specification: Specification, characters: int) -> Growth:
    """Count a sample, in the order of the corpus, and fit how its network grows.

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
    connections, nbytes = _fit(blocks, specification, trained)
    lengths = np.concatenate([np.diff(block.offsets)[block.status == CANDIDATE] for block in blocks])
    return Growth(
        trained=trained,
        tokens=int(lengths.sum()),
        pairs=int((lengths * (lengths - 1) // 2).sum()),
        characters=characters,
        connections=connections,
        packed_bytes=nbytes,
        batches={
            order: tuple(_batches(blocks, specification, order, trained)) for order in ("corpus", "least-overlap")
        },
    )


def _fit(blocks: Sequence[EncodedBlock], specification: Specification, trained: int) -> tuple[PowerLaw, PowerLaw]:
    """Return the laws of connections and bytes of the sequences."""
    ends = [round(share * trained) for share in _SHARES]
    slices = np.searchsorted(ends, np.random.default_rng(_SEED).permutation(trained), side="right")
    runs: list[PackedRegionRun] = []
    connections = []
    for number in range(len(ends)):
        increment = tasks.count_selected(blocks, slices, number, Placement(1), specification, ())
        runs.append(tasks.compact(*increment.values()))
        connections.append(count_union([run.connections for run in runs]))
    # Each slice is a run of a network of so many sequences.
    packed = PowerLaw.fit(np.diff([0, *ends])[1:].tolist(), [run.nbytes for run in runs[1:]])
    return PowerLaw.fit(ends, connections), packed


def _batches(
    blocks: Sequence[EncodedBlock], specification: Specification, order: Order, trained: int
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
        # Spread over the sample, as its beginning is not like the rest.
        figures = [
            measure_touches(
                tasks.count_selected(blocks, batch, number, Placement(FIRST_REGIONS), specification, ())
            ).nbytes
            for number in np.unique(np.linspace(0, count - 1, _BATCHES).astype(np.int64)).tolist()
        ]
        yield BatchFigures(size, max(float(np.mean(figures)), 1.0))
