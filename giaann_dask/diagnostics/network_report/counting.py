"""Count the figures of a report in a region, and sum them over regions.

These are degrees, strengths, segments, columns and the strongest neurons, in arrays whose size depends on the number of
neurons and not of connections. `gathering` reads the regions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.diagnostics.pictures.density import count_cells
from giaann_dask.keys import Integers, unpack_neuron, unpack_target
from giaann_dask.models import model_of
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

Floats = npt.NDArray[np.float64]

# Two bins for each doubling, from far below any strength to far above.
STRENGTH_EDGES = 2.0 ** (np.arange(-60, 121) / 2)
DENSITY_CELLS = 300
# Neurons that each region proposes as hubs.
_HUBS = 40


class Degrees(NamedTuple):
    """Number of neurons by degree; both int64, ascending degree."""

    degree: Integers
    neurons: Integers

    @classmethod
    def of(cls, connections: Integers) -> Degrees:
        """Count the neurons by their connections."""
        degree, neurons = np.unique(connections, return_counts=True)
        return cls(degree, neurons.astype(np.int64))

    @property
    def mean(self) -> float:
        """Connections of a neuron on average; 0 without neurons."""
        return float(np.average(self.degree, weights=self.neurons)) if len(self.degree) else 0.0

    @property
    def median(self) -> int:
        """Most connections that half of the neurons have; 0 without neurons."""
        if not len(self.degree):
            return 0
        total = np.cumsum(self.neurons)
        return int(self.degree[np.searchsorted(total, total[-1] / 2)])


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class NeuronSums:
    """Connections and strengths that some neurons send or receive.

    Attributes
    ----------
    neuron : ndarray
        Keys, ascending, int64, shape ``(neurons,)``.
    connections : ndarray
        Number of connections of each, int64.
    strength : ndarray
        Sum of their strengths, float64.
    """

    neuron: Integers
    connections: Integers
    strength: Floats

    @classmethod
    def of(cls, neuron: Integers, connections: Integers, strength: Floats) -> NeuronSums:
        """Sum the values of each neuron, in any order."""
        found, where = np.unique(neuron, return_inverse=True)
        count = np.bincount(where, connections, len(found)).astype(np.int64)
        return cls(found, count, np.bincount(where, strength, len(found)).astype(np.float64))

    @classmethod
    def joined(cls, parts: Iterable[NeuronSums]) -> NeuronSums:
        """Add up parts, one at least."""
        one, *more = parts
        return cls.of(
            np.concatenate([one.neuron, *(part.neuron for part in more)]),
            np.concatenate([one.connections, *(part.connections for part in more)]),
            np.concatenate([one.strength, *(part.strength for part in more)]),
        )

    def strongest(self, count: int) -> NeuronSums:
        """Return the neurons with the largest sums of strengths, the strongest first."""
        at = np.lexsort((self.neuron, -self.strength))[:count]
        return NeuronSums(self.neuron[at], self.connections[at], self.strength[at])


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """Figures counted of connections; those of regions are summed.

    Attributes
    ----------
    out_degree, out_neurons : ndarray
        Connections that leave a neuron, and how many neurons have so many; int64, ascending.
    senders, receivers : NeuronSums
        The strongest neurons by what they send, and all by what they receive. In profile ``contexts`` a
        receiver is a word.
    by_strength : ndarray
        Connections by the bins of `STRENGTH_EDGES`, int64.
    strength_sum : float
        Sum of all strengths.
    by_segment, by_branch : ndarray
        Connections by segment and by branch, int64, shapes ``(segments,)`` and ``(branches,)``.
    sent, received : ndarray
        Number and strength of the connections from and to every column, float64, shape ``(2, columns)``.
    inside : int
        Connections whose two ends lie in one column.
    density : ndarray
        Connections by target and source column, `DENSITY_CELLS` cells or as many as there are columns
        along each axis; int64.
    """

    out_degree: Integers
    out_neurons: Integers
    senders: NeuronSums
    receivers: NeuronSums
    by_strength: Integers
    strength_sum: float
    by_segment: Integers
    by_branch: Integers
    sent: Floats
    received: Floats
    inside: int
    density: Integers

    @property
    def connections(self) -> int:
        """Number of connections."""
        return int(self.by_segment.sum())

    @property
    def out_degrees(self) -> Degrees:
        """Neurons by the connections that leave them."""
        return Degrees(self.out_degree, self.out_neurons)

    @property
    def in_degrees(self) -> Degrees:
        """Neurons by the connections that lead to them."""
        return Degrees.of(self.receivers.connections)

    def quantile(self, share: float) -> float:
        """Return about the strength that a share of the connections does not pass: the upper edge of a bin."""
        total = np.cumsum(self.by_strength)
        return float(STRENGTH_EDGES[1 + int(np.searchsorted(total, share * total[-1]))]) if total[-1] else 0.0


def count_connections(run: Run, specification: Specification, columns: int) -> Figures:
    """Count the connections of a region.

    Parameters
    ----------
    run : Run
        All connections of the region: sources of one region are in no other one.
    specification : Specification
        Of the network.
    columns : int
        Number of concept columns, 0 in models of words.
    """
    degree = np.diff(run.pointer)
    strength = specification.strengths(run.strength).astype(np.float64)
    segment, target, branch = unpack_target(run.target)
    # Counts that others imply, as those of a context in longer ones, lead to no word.
    words = segment != model_of(specification).implied_segment
    out, neurons = Degrees.of(degree)
    row_strength = np.add.reduceat(strength, run.pointer[:-1]) if len(run.source) else np.zeros(0)
    bins = np.clip(np.searchsorted(STRENGTH_EDGES, strength, side="right") - 1, 0, len(STRENGTH_EDGES) - 2)
    source = np.repeat(unpack_neuron(run.source)[0], degree) if columns else np.zeros(0, np.int64)
    aim = unpack_neuron(target)[0] if columns else np.zeros(0, np.int64)
    weights = strength if columns else np.zeros(0)
    return Figures(
        out_degree=out,
        out_neurons=neurons,
        senders=NeuronSums(run.source, degree, row_strength).strongest(_HUBS),
        receivers=NeuronSums.of(target[words], np.ones(len(target), np.int64)[words], strength[words]),
        by_strength=np.bincount(bins, minlength=len(STRENGTH_EDGES) - 1),
        strength_sum=float(strength.sum()),
        by_segment=np.bincount(segment, minlength=specification.segments),
        by_branch=np.bincount(branch, minlength=specification.branches),
        sent=_by_column(source, weights, columns),
        received=_by_column(aim, weights, columns),
        inside=int((source == aim).sum()),
        density=count_cells(source, aim, columns, min(columns, DENSITY_CELLS)),
    )


def add_figures(parts: Iterable[Figures]) -> Figures | None:
    """Add up the figures of regions; None of none."""
    total: Figures | None = None
    for part in parts:
        total = part if total is None else _add(total, part)
    return total


def _add(one: Figures, other: Figures) -> Figures:
    out = np.concatenate([one.out_degree, other.out_degree]), np.concatenate([one.out_neurons, other.out_neurons])
    degree, where = np.unique(out[0], return_inverse=True)
    return Figures(
        out_degree=degree,
        out_neurons=np.bincount(where, out[1], len(degree)).astype(np.int64),
        senders=NeuronSums.joined((one.senders, other.senders)).strongest(_HUBS),
        receivers=NeuronSums.joined((one.receivers, other.receivers)),
        by_strength=one.by_strength + other.by_strength,
        strength_sum=one.strength_sum + other.strength_sum,
        by_segment=_padded(one.by_segment, other.by_segment),
        by_branch=_padded(one.by_branch, other.by_branch),
        sent=one.sent + other.sent,
        received=one.received + other.received,
        inside=one.inside + other.inside,
        density=one.density + other.density,
    )


def _padded(one: Integers, other: Integers) -> Integers:
    """Add arrays of counts that may differ in length."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def _by_column(column: Integers, strength: Floats, columns: int) -> Floats:
    count = np.bincount(column, minlength=columns).astype(np.float64)
    return np.stack([count, np.bincount(column, strength, columns).astype(np.float64)])
