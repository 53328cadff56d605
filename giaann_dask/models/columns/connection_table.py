"""Represent connections as coordinate arrays with the names of their columns and features.

This is the table that is exported and drawn, with its checks, the sum over branches and segments, and the choice of
columns, neurons and connections for a graph. `giaann_dask.store.export` makes it from a network;
`giaann_dask.runs.run` is the compact form that the engine computes with.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import ConceptMissingError, InputFormatError
from giaann_dask.keys import pack_neuron, unpack_neuron
from giaann_dask.representations import Summarised, Summary
from giaann_dask.text.blocks import noun_name
from giaann_dask.text.names import Names

if TYPE_CHECKING:
    import networkx as nx

Neuron = tuple[int, int]
COORDINATES = ("src_col", "src_feat", "branch", "seg", "tgt_col", "tgt_feat")


class NeuronPairs(NamedTuple):
    """Strengths between neurons, summed over branches and segments.

    Attributes
    ----------
    source, target : ndarray
        Neuron keys (see `giaann_dask.keys`), every pair once, int64, shape ``(pairs,)``.
    strength : ndarray
        Sums of strengths, float64, shape ``(pairs,)``.
    """

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    strength: npt.NDArray[np.float64]

    def strongest_features(self, column: int) -> list[int]:
        """Return the features of a column but the prime one, by falling sum of strengths."""
        total: dict[int, float] = defaultdict(float)
        for ends in (self.source, self.target):
            columns, features = unpack_neuron(ends)
            here = (columns == column) & (features > 0)
            for feature, strength in zip(features[here].tolist(), self.strength[here].tolist(), strict=True):
                total[feature] += strength
        return sorted(total, key=lambda feature: (-total[feature], feature))

    def strongest(
        self, count: int, features: int, neurons: Collection[Neuron] | None = None
    ) -> list[tuple[Neuron, Neuron, float]]:
        """Return the strongest pairs among the strongest neurons of each column.

        Parameters
        ----------
        count : int
            Most pairs to return.
        features : int
            Feature neurons that each column keeps, besides its prime concept neuron.
        neurons : collection of (int, int), optional
            The neurons to keep instead.

        Returns
        -------
        list of tuple
            Source and target as (column, feature), and strength, the strongest first.
        """
        ends = [list(zip(*(part.tolist() for part in unpack_neuron(keys)), strict=True)) for keys in self[:2]]
        if neurons is None:
            neurons = {
                (column, feature)
                for column in {column for keys in ends for column, _ in keys}
                for feature in (0, *self.strongest_features(column)[:features])
            }
        order = np.lexsort((self.target, self.source, -self.strength)).tolist()
        found = [
            (ends[0][at], ends[1][at], float(self.strength[at]))
            for at in order
            if ends[0][at] in neurons and ends[1][at] in neurons
        ]
        return found[:count]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConnectionTable(Summarised):
    """Connections, one per position of seven arrays of equal length, in any order.

    Attributes
    ----------
    src_col, src_feat : ndarray
        Concept column and feature of the source neuron; any integer type, shape ``(connections,)``.
    branch, seg : ndarray
        Dendritic branch and segment of the target neuron; any integer type, same shape.
    tgt_col, tgt_feat : ndarray
        Concept column and feature of the target neuron; any integer type, same shape.
    strength : ndarray
        Strengths, float32, same shape.
    concepts : sequence of str
        Name of every concept column.
    features : sequence of str
        Name of every feature; feature 0 is the prime concept neuron of whatever column it is in.

    Raises
    ------
    InputFormatError
        If the arrays differ in length, are not of the types above, or hold columns or features
        that have no name.

    Examples
    --------
    >>> one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    >>> table = ConnectionTable(
    ...     zero, zero, zero, one, zero, one, np.float32([5]), ("dog", "cat"), ("", "barks"))
    >>> len(table), len(table.select_columns([1]))
    (1, 0)
    """

    src_col: npt.NDArray[np.integer[Any]]
    src_feat: npt.NDArray[np.integer[Any]]
    branch: npt.NDArray[np.integer[Any]]
    seg: npt.NDArray[np.integer[Any]]
    tgt_col: npt.NDArray[np.integer[Any]]
    tgt_feat: npt.NDArray[np.integer[Any]]
    strength: npt.NDArray[np.float32]
    concepts: Sequence[str]
    features: Sequence[str]

    def summary(self) -> Summary:
        """Return the lines that represent the table."""
        branches, segments = (int(numbers.max(initial=-1)) + 1 for numbers in (self.branch, self.seg))
        rows = (
            ("connections", f"{len(self):,}"),
            ("concepts", f"{len(self.concepts):,}"),
            ("features", f"{len(self.features):,}"),
            ("branches", f"{branches:,}"),
            ("segments", f"{segments:,}"),
            ("sum of strengths", f"{self.strength.sum(dtype=np.float64):,.1f}"),
        )
        return Summary("Connections", rows)

    def __post_init__(self) -> None:
        shapes = {name: getattr(self, name).shape for name in (*COORDINATES, "strength")}
        _require(
            len(set(shapes.values())) == 1 and self.strength.ndim == 1,
            f"arrays of connections with the shapes {shapes}",
            "one axis of the same length",
        )
        for name in COORDINATES:
            array = getattr(self, name)
            _require(np.issubdtype(array.dtype, np.integer), f"{name} of type {array.dtype}", "integers")
        _require(self.strength.dtype == np.float32, f"strength of type {self.strength.dtype}", "float32")
        for end in ("src", "tgt"):
            _require_named(f"{end}_col", getattr(self, f"{end}_col"), len(self.concepts), "concepts")
            _require_named(f"{end}_feat", getattr(self, f"{end}_feat"), len(self.features), "features")

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self.strength)

    def select_columns(self, columns: Iterable[int]) -> ConnectionTable:
        """Return the connections between some columns.

        Parameters
        ----------
        columns : iterable of int
            Numbers of concept columns.

        Returns
        -------
        ConnectionTable
            In the same order, with the same numbers and names.

        Raises
        ------
        InputFormatError
            If there is no such column.
        """
        numbers = np.fromiter(columns, np.int64)
        _require_named("column", numbers, len(self.concepts), "concepts")
        chosen = np.isin(np.arange(len(self.concepts)), numbers)
        kept = chosen[self.src_col] & chosen[self.tgt_col]
        arrays = {name: getattr(self, name)[kept] for name in (*COORDINATES, "strength")}
        return dataclasses.replace(self, **arrays)

    def find_columns(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of concept columns by name, each once, in the order given.

        Parameters
        ----------
        names : iterable of str
            Names of concepts; capitals do not matter.

        Raises
        ------
        ConceptMissingError
            If there is no such concept; the message names those that are spelled alike.

        Examples
        --------
        >>> none = np.zeros(0, np.int32)
        >>> table = ConnectionTable(*[none] * 6, np.zeros(0, np.float32), ("dog", "cat", "wild_cat"), ("",))
        >>> table.find_columns(["Cat", "cat", "wild cat"])
        [1, 2]
        """
        concepts, columns = _as_names(self.concepts), []
        for name in names:
            spelled = (name, name.lower(), noun_name(name.lower().split(" ")))
            column = next((at for at in map(concepts.find, spelled) if at is not None), None)
            if column is None:
                raise missing_concept(name, self.concepts)
            columns.append(column)
        return list(dict.fromkeys(columns))

    def best_connected(self, count: int) -> list[int]:
        """Return the columns that are most strongly connected with each other.

        The first one has the largest sum of strengths from and to other columns, each further one
        the largest sum from and to those already chosen; of equals, the lowest number.

        Parameters
        ----------
        count : int
            Number of columns; fewer are returned when fewer have connections.
        """
        concepts = len(self.concepts)
        pairs, where = np.unique(self.src_col.astype(np.int64) * concepts + self.tgt_col, return_inverse=True)
        return best_of_pairs(pairs, np.bincount(where, self.strength, len(pairs)).astype(np.float64), concepts, count)

    def added_up(self) -> NeuronPairs:
        """Return the connections summed over branches and segments, by source, then target."""
        source, target = pack_neuron(self.src_col, self.src_feat), pack_neuron(self.tgt_col, self.tgt_feat)
        order = np.lexsort((target, source))
        source, target = source[order], target[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        pair = np.cumsum(first) - 1
        strength = np.bincount(pair, self.strength[order]).astype(np.float64)
        return NeuronPairs(source[first], target[first], strength)

    def graph(
        self,
        columns: Sequence[int],
        *,
        max_features: int,
        max_connections: int,
        neurons: Collection[Neuron] | None = None,
    ) -> nx.DiGraph:
        """Return the strongest neurons and connections of some columns as a graph.

        Parameters
        ----------
        columns : sequence of int
            Numbers of concept columns, from left to right.
        max_features : int
            Most feature neurons of a column, besides its prime concept neuron.
        max_connections : int
            Most connections.
        neurons : collection of (int, int), optional
            The neurons of the graph, instead of the strongest ones.

        Returns
        -------
        networkx.DiGraph
            Nodes are (column, feature): the prime concept neuron of every column, and the feature
            neurons that have one of the strongest connections. They have a ``name``, a ``place`` (of
            the column, from 0 at the left) and a ``row`` (0 for the prime concept neuron, then by
            falling strength). Edges have a ``strength``, summed over branches and segments. The
            graph has ``columns`` (their names), ``concepts`` (number of all columns) and ``total``
            (number of connections among all neurons of these columns, added up in the same way).

        Raises
        ------
        InputFormatError
            If there is no such column.
        """
        import networkx as nx

        pairs = self.select_columns(columns).added_up()
        edges = pairs.strongest(max_connections, max_features, neurons)
        shown = {end for source, target, _ in edges for end in (source, target)} if neurons is None else set(neurons)
        names = [self.concepts[column] for column in columns]
        graph = nx.DiGraph(columns=names, concepts=len(self.concepts), total=len(pairs.strength))
        for place, column in enumerate(columns):
            graph.add_node((column, 0), name=names[place], place=place, row=0)
            features = [f for f in pairs.strongest_features(column) if (column, f) in shown]
            # Requested neurons without a connection here are last.
            features += sorted(f for c, f in shown - {(column, f) for f in (0, *features)} if c == column)
            for row, feature in enumerate(features, start=1):
                graph.add_node((column, feature), name=self.features[feature], place=place, row=row)
        graph.add_weighted_edges_from(edges, weight="strength")
        return graph


def missing_concept(name: object, concepts: Sequence[str]) -> ConceptMissingError:
    """Return the error for a name that is no concept's; it names those that are spelled alike."""
    if not isinstance(name, str):
        received = f"no concept {name!r}, which is of type {type(name).__name__}, in the network"
        first = concepts[0] if len(concepts) else "miller"
        return ConceptMissingError(received, "the name of one concept", f"name it as text, such as {first!r}")
    close = _as_names(concepts).similar(name.lower(), 5)
    remedy = f"did you mean {', '.join(close)}?" if close else "concepts are lemmas of nouns"
    return ConceptMissingError(f"no concept {name!r} in the network", "one of its concepts", remedy)


def _as_names(names: Sequence[str]) -> Names:
    """Return names that are found without reading all of them, where they are packed."""
    return names if isinstance(names, Names) else Names(names)


def best_of_pairs(
    pairs: npt.NDArray[np.int64], weight: npt.NDArray[np.float64], concepts: int, count: int
) -> list[int]:
    """Return the columns that are most strongly connected with each other; see `ConnectionTable.best_connected`.

    Parameters
    ----------
    pairs : ndarray
        ``source * concepts + target`` of every connected pair of columns, each once; int64.
    weight : ndarray
        Sum of strengths of each pair, float64.
    concepts : int
        Number of all columns.
    count : int
        Number of columns to return.
    """
    source, target = pairs // max(concepts, 1), pairs % max(concepts, 1)
    weight = np.where(source == target, 0.0, weight)
    left = np.isin(np.arange(concepts), np.union1d(source, target))
    gain = np.zeros(concepts)
    gain += np.bincount(source, weight, concepts) + np.bincount(target, weight, concepts)
    chosen: list[int] = []
    while len(chosen) < count and left.any():
        last = int(np.argmax(np.where(left, gain, -1.0)))
        gain = gain if chosen else np.zeros(concepts)
        gain += np.bincount(source, weight * (target == last), concepts)
        gain += np.bincount(target, weight * (source == last), concepts)
        left[last] = False
        chosen.append(last)
    return chosen


def _require_named(name: str, numbers: npt.NDArray[np.integer[Any]], count: int, names: str) -> None:
    """Raise an InputFormatError when a column or a feature has no name."""
    if len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        expected = f"0 to {count - 1}, since there are {count} {names}"
        _require(low >= 0 and high < count, f"{name} from {low} to {high}", expected)


def _require(valid: bool, received: str, expected: str) -> None:
    """Raise an InputFormatError when a table contradicts itself."""
    if not valid:
        raise InputFormatError(received, expected, "build the table from one network's export")
