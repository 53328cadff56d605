"""Collect the contents of a report: figures region by region, growth, regions, hubs by name.

Figures are degrees, strengths, segments, columns and the strongest neurons, in arrays whose size depends on the number
of neurons and not of connections. They are counted in this process, or by one task a region on a cluster, of which some
rows are decoded at a time, and of these some connections are counted. So no row is needed as a whole: what is counted
of a part of a row is added to the other parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import results, task_key
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import register, register_arrays
from giaann_dask.diagnostics.pictures.density import count_cells
from giaann_dask.keys import Integers, unpack_neuron, unpack_target, word_key
from giaann_dask.models import model_of
from giaann_dask.models.columns.predictor import word_and_column
from giaann_dask.runs.run import Run, cut_rows
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.ordered_connections import read_blocks
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client

register()

# Commits whose sizes are read, at most: opening each takes some milliseconds.
_COMMITS = 60
_SHOWN = 15
Floats = npt.NDArray[np.float64]

# Two bins for each doubling, from far below any strength to far above.
STRENGTH_EDGES = 2.0 ** (np.arange(-60, 121) / 2)
DENSITY_CELLS = 300
# Neurons that each region proposes as hubs.
_HUBS = 40
# Connections that are counted in one go, about, which take some 90 bytes each.
COUNTED = 1 << 19


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

    def select(self, chosen: npt.NDArray[np.bool_] | Integers) -> NeuronSums:
        """Return some of the neurons."""
        return NeuronSums(self.neuron[chosen], self.connections[chosen], self.strength[chosen])

    def strongest(self, count: int) -> NeuronSums:
        """Return the neurons with the largest sums of strengths, the strongest first."""
        return self.select(np.lexsort((self.neuron, -self.strength))[:count])


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
    divided : NeuronSums
        What the neurons send of which these are a part of the connections; they are not among the others that send.
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
    divided: NeuronSums
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


def count_connections(
    run: Run, specification: Specification, columns: int, divided: Integers | Sequence[int] = ()
) -> Figures:
    """Count connections.

    Parameters
    ----------
    run : Run
        Some connections of a network.
    specification : Specification
        Of the network.
    columns : int
        Number of concept columns, 0 in models of words.
    divided : sequence of int
        Sources of which other connections are counted elsewhere.
    """
    degree = np.diff(run.pointer)
    strength = specification.strengths(run.strength).astype(np.float64)
    segment, target, branch = unpack_target(run.target)
    # Counts that others imply, as those of a context in longer ones, lead to no word.
    words = segment != model_of(specification).implied_segment
    row_strength = np.add.reduceat(strength, run.pointer[:-1]) if len(run.source) else np.zeros(0)
    whole = ~np.isin(run.source, divided)
    rows = NeuronSums(run.source, degree, row_strength)
    out, neurons = Degrees.of(degree[whole])
    bins = np.clip(np.searchsorted(STRENGTH_EDGES, strength, side="right") - 1, 0, len(STRENGTH_EDGES) - 2)
    source = np.repeat(unpack_neuron(run.source)[0], degree) if columns else np.zeros(0, np.int64)
    aim = unpack_neuron(target)[0] if columns else np.zeros(0, np.int64)
    weights = strength if columns else np.zeros(0)
    return Figures(
        out_degree=out,
        out_neurons=neurons,
        senders=rows.select(whole).strongest(_HUBS),
        receivers=NeuronSums.of(target[words], np.ones(len(target), np.int64)[words], strength[words]),
        divided=rows.select(~whole),
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
    """Add up the figures of all connections of a network, so that all rows are whole; None of none."""
    total = _sum(parts)
    if total is None or not len(total.divided.neuron):
        return total
    degrees = Degrees.of(total.divided.connections)
    out, neurons = _joined_degrees(total.out_degrees, degrees)
    return replace(
        total,
        out_degree=out,
        out_neurons=neurons,
        senders=NeuronSums.joined((total.senders, total.divided)).strongest(_HUBS),
        divided=total.divided.select(np.zeros(0, np.int64)),
    )


def _sum(parts: Iterable[Figures]) -> Figures | None:
    """Add up the figures of some connections; None of none."""
    total: Figures | None = None
    for part in parts:
        total = part if total is None else _add(total, part)
    return total


def _joined_degrees(one: Degrees, other: Degrees) -> Degrees:
    """Add up the neurons by degree."""
    degree, where = np.unique(np.concatenate([one.degree, other.degree]), return_inverse=True)
    neurons = np.bincount(where, np.concatenate([one.neurons, other.neurons]), len(degree))
    return Degrees(degree, neurons.astype(np.int64))


def _add(one: Figures, other: Figures) -> Figures:
    degree, neurons = _joined_degrees(one.out_degrees, other.out_degrees)
    return Figures(
        out_degree=degree,
        out_neurons=neurons,
        senders=NeuronSums.joined((one.senders, other.senders)).strongest(_HUBS),
        receivers=NeuronSums.joined((one.receivers, other.receivers)),
        divided=NeuronSums.joined((one.divided, other.divided)),
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


class Hub(NamedTuple):
    """A column or a neuron with many connections.

    Attributes
    ----------
    name : str
        Of the concept or the word.
    column : str
        Concept of its column; empty for a column itself and for a word of profile ``contexts``.
    sent, received : int
        Connections that leave it and lead to it; -1 where that is not known.
    strength : float
        Sum of strengths, of what the hub was chosen by.
    """

    name: str
    column: str
    sent: int
    received: int
    strength: float


class RegionSize(NamedTuple):
    """A region as the store holds it."""

    region: int
    runs: int
    connections: int
    nbytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportData:
    """Contents of a network report without its drawings and its accuracy.

    Attributes
    ----------
    manifest : Manifest
        Of the commit.
    commit : str
        Its identity.
    growth : tuple of Manifest
        Of this commit and those before it, oldest first; of many, some at even distances.
    commits : int
        How many there are.
    figures : Figures or None
        Counted over all regions; None without connections.
    regions : tuple of RegionSize
        The regions.
    columns, senders, receivers : tuple of Hub
        Columns with the largest strengths, neurons by what they send, and neurons (of profile ``contexts``
        words) by what they receive. Of profile ``contexts`` there are neither columns nor names of senders.
    """

    manifest: Manifest
    commit: str
    growth: tuple[Manifest, ...]
    commits: int
    figures: Figures | None
    regions: tuple[RegionSize, ...]
    columns: tuple[Hub, ...]
    senders: tuple[Hub, ...]
    receivers: tuple[Hub, ...]


def gather(store: NetworkStore, reader: CommitReader, client: Client | None = None) -> ReportData:
    """Collect the contents of a report on a commit.

    Parameters
    ----------
    store : NetworkStore
        Of the network, for its earlier commits.
    reader : CommitReader
        The commit.
    client : Client, optional
        Of a cluster whose workers read the store: each region is a task there. Without one they are read
        here, one after the other.

    Raises
    ------
    StoreDamagedError
        If the network cannot be read.
    ClusterError
        If the cluster fails.
    """
    manifest = reader.manifest()
    figures = add_figures(_parts(reader, client))
    vocabulary = reader.saved_vocabulary()
    columns = manifest.specification.traits.columns
    history = [name for name, _ in store.commits()]
    history = history[history.index(reader.commit) :] if reader.commit in history else [reader.commit]
    return ReportData(
        manifest=manifest,
        commit=reader.commit,
        growth=tuple(store.open(name).manifest() for name in reversed(_evenly_spaced(history))),
        commits=len(history),
        figures=figures,
        regions=tuple(_regions(reader)),
        columns=_columns(figures, vocabulary) if columns and figures is not None else (),
        senders=_senders(figures, vocabulary) if columns and figures is not None else (),
        receivers=() if figures is None else (_receivers if columns else _words)(figures, vocabulary),
    )


def count_region(path: str, commit: str, region: int) -> Figures:
    """Count the connections of a region, as a task."""
    return _count(open_commit(path, commit), region)


def _count(reader: CommitReader, region: int) -> Figures:
    """Count the connections of a region that has some; rows that other regions have parts of are left divided."""
    manifest = reader.manifest()
    columns = manifest.concepts if manifest.specification.traits.columns else 0
    divided = np.array(sorted(reader.placement().divided()), np.int64)

    def parts() -> Iterator[Figures]:
        for block in read_blocks(reader, manifest.runs_by_region()[region], size=COUNTED):
            for part in cut_rows(block, COUNTED):
                # Its first and its last row may go on in the next part.
                cut = part.source[[0, -1]] if len(part) < len(block) else ()
                yield count_connections(part, manifest.specification, columns, np.append(divided, cut))

    # Neurons may have strengths and no connections.
    return _sum(parts()) or count_connections(Run.empty(), manifest.specification, columns)


def _parts(reader: CommitReader, client: Client | None) -> Iterator[Figures]:
    live = [region for region, runs in reader.manifest().runs_by_region().items() if runs]
    if client is None:
        yield from (_count(reader, region) for region in live)
        return
    place: tuple[Any, ...] = (str(reader.path), reader.commit)
    keys = {region: task_key("count_region", *place, region) for region in live}
    yield from results([client.submit(count_region, *place, region, key=key) for region, key in keys.items()])


def _evenly_spaced(history: list[str]) -> list[str]:
    """Return some commits at even distances, the first and the last among them."""
    if len(history) <= _COMMITS:
        return history
    return [history[int(at)] for at in np.unique(np.linspace(0, len(history) - 1, _COMMITS).round())]


def _regions(reader: CommitReader) -> Iterator[RegionSize]:
    manifest = reader.manifest()
    by_region = manifest.runs_by_region()
    for region in reader.placement().live():
        runs, counted = by_region.get(region, []), manifest.counts.get(region)
        # Runs have connections in common; one that is alone has not been counted.
        connections = counted.connections if counted else sum(run.connections for run in runs)
        yield RegionSize(region, len(runs), connections, sum(run.nbytes for run in runs))


def _columns(figures: Figures, vocabulary: Vocabulary) -> tuple[Hub, ...]:
    strength = figures.sent[1] + figures.received[1]
    order = np.argsort(-strength, kind="stable")[:_SHOWN].tolist()
    return tuple(
        Hub(vocabulary.concepts[at], "", int(figures.sent[0, at]), int(figures.received[0, at]), float(strength[at]))
        for at in order
        if strength[at] > 0
    )


def _senders(figures: Figures, vocabulary: Vocabulary) -> tuple[Hub, ...]:
    return tuple(
        Hub(*word_and_column(neuron, vocabulary), count, -1, strength)
        for neuron, count, strength in _rows(figures.senders)
    )


def _receivers(figures: Figures, vocabulary: Vocabulary) -> tuple[Hub, ...]:
    return tuple(
        Hub(*word_and_column(neuron, vocabulary), -1, count, strength)
        for neuron, count, strength in _rows(figures.receivers)
    )


def _words(figures: Figures, vocabulary: Vocabulary) -> tuple[Hub, ...]:
    """Return words by the counts that lead to them; contexts have no names, for their keys are hashes."""
    rows = list(_rows(figures.receivers))
    wanted = {neuron for neuron, *_ in rows}
    name_of = {key: word for word in vocabulary.features[1:] if (key := word_key(word)) in wanted}
    return tuple(Hub(name_of.get(key, "?"), "", -1, count, strength) for key, count, strength in rows)


def _rows(sums: NeuronSums) -> Iterator[tuple[int, int, float]]:
    best = sums.strongest(_SHOWN)
    return zip(best.neuron.tolist(), best.connections.tolist(), best.strength.tolist(), strict=True)
