"""Collect the contents of a report: figures region by region, growth, regions, hubs by name.

Regions are counted in this process, one decoded at a time, or by one task a region on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from giaann_dask.cluster import results, task_key
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import register
from giaann_dask.diagnostics.network_report.counting import Figures, NeuronSums, add_figures, count_connections
from giaann_dask.keys import word_key
from giaann_dask.models.columns.prompts import word_and_column
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.ordered_connections import read_runs, runs_together
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client

register()

# Commits whose sizes are read, at most: opening each takes some milliseconds.
_COMMITS = 60
_SHOWN = 15


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
class Gathered:
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


def gather(store: NetworkStore, reader: CommitReader, client: Client | None = None) -> Gathered:
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
    return Gathered(
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
    """Count the connections of a region, or of a group of regions that have rows in common, as a task."""
    return _count(open_commit(path, commit), region)


def _count(reader: CommitReader, region: int) -> Figures:
    specification = reader.manifest().specification
    columns = reader.manifest().concepts if specification.traits.columns else 0
    return count_connections(read_runs(reader, runs_together(reader)[region]), specification, columns)


def _parts(reader: CommitReader, client: Client | None) -> Iterator[Figures]:
    live = list(runs_together(reader))
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
