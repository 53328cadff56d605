"""Select the columns, neurons and connections that a picture shows, with the properties of their words.

Reads a commit without decoding more than a region at a time. Has the connections of every pair by
segment and branch, and the flags and parts of speech that a network stores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.errors import EmptyInputError, OptionError
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.connection_table import ConnectionTable, Neuron
from giaann_dask.models.columns.naming import segment_names
from giaann_dask.models.columns.scanning import find_best_columns, find_columns, read_columns, require_columns
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.ever_pos import PARTS, EverPos

if TYPE_CHECKING:
    import networkx as nx


PART_NAMES = {"VERB": "verb", "ADP": "adposition", "CCONJ": "conjunction", "SCONJ": "conjunction"}


@dataclass(frozen=True, kw_only=True)
class Words:
    """Properties of a network's features besides their names.

    Attributes
    ----------
    delimiter : callable
        Of a feature: ``"delimiter"``, ``"probable delimiter"`` or ``"other word"``.
    part : callable or None
        Of a feature's name: the part of speech that it can be, ``"several of these"`` or ``"other word"``;
        None where the network stores none.
    segments : tuple of str
        What each segment means, the soma's included.
    column_segments, feature_segments, branches : int
        Sizes of the layout of segments.
    """

    delimiter: Callable[[int], str]
    part: Callable[[str], str] | None
    segments: tuple[str, ...]
    column_segments: int
    feature_segments: int
    branches: int

    @classmethod
    def of(cls, reader: CommitReader) -> Words:
        """Read the connections of a commit."""
        vocabulary, specification = reader.saved_vocabulary(), reader.manifest().specification
        later = vocabulary.delimiter_since

        def delimiter(feature: int) -> str:
            if vocabulary.delimiter[feature] if later is None else later[feature] >= 0:
                return "delimiter"
            return "probable delimiter" if vocabulary.probable_since[feature] >= 0 else "other word"

        ever_pos = reader.ever_pos()
        known = specification.tokens != "subwords" and ever_pos != EverPos()
        return cls(
            delimiter=delimiter,
            part=(lambda word: part_of(word, ever_pos)) if known else None,
            column_segments=specification.column_segments,
            feature_segments=specification.feature_segments,
            segments=tuple(segment_names(specification)),
            branches=specification.branches,
        )

    def require_part(self) -> Callable[[str], str]:
        """Return `part`; an OptionError where the network stores no parts of speech."""
        if self.part is None:
            raise OptionError(
                "colours by part of speech for a network that stores none",
                "a network of words, with the lexicon that training stores",
                "draw it with colour delimiters",
                names=("colour",),
            )
        return self.part


def part_of(word: str, ever_pos: EverPos) -> str:
    """Return the part of speech that a lexicon allows a word.

    Examples
    --------
    >>> part_of("sat", EverPos(verb=frozenset(["sat"]), adp=frozenset(["on"])))
    'verb'
    >>> part_of("the", EverPos(verb=frozenset(["sat"])))
    'other word'
    """
    found = {PART_NAMES[part] for part in PARTS if ever_pos.is_ever(word.lower(), part)}
    if len(found) > 1:
        return "several of these"
    return found.pop() if found else "other word"


def choose_table(reader: CommitReader, options: DrawOptions) -> tuple[ConnectionTable, list[int]]:
    """Return the columns to draw, and the connections among them.

    Raises
    ------
    OptionError
        If a named concept is not in the network, or if it has no columns.
    EmptyInputError
        If the network has no connections.
    """
    require_columns(reader)
    require_connections(reader.manifest().connections)
    columns = find_columns(reader, options.concepts) or find_best_columns(reader, options.max_columns)
    return read_columns(reader, columns), columns


def require_connections(connections: int) -> None:
    """Raise an EmptyInputError when a selection has no connections."""
    if connections == 0:
        raise EmptyInputError("a network without connections", "a trained one to draw", "train it first")


def choose_graph(
    table: ConnectionTable,
    columns: list[int],
    options: DrawOptions,
    neurons: Collection[Neuron] | None = None,
) -> nx.DiGraph:
    """Return the strongest neurons and connections of some columns as a graph.

    Returns
    -------
    networkx.DiGraph
        Of `giaann_dask.models.columns.connection_table.ConnectionTable.graph`; edges also have ``parts``: segment,
        branch and strength of each of their connections, the strongest first.
    """
    graph = table.graph(
        columns,
        max_features=options.max_features,
        max_connections=options.max_connections,
        neurons=neurons,
    )
    source, target = pack_neuron(table.src_col, table.src_feat), pack_neuron(table.tgt_col, table.tgt_feat)
    ends = [np.unique([int(pack_neuron(*edge[end])) for edge in graph.edges]) for end in (0, 1)]
    at = np.flatnonzero(np.isin(source, ends[0]) & np.isin(target, ends[1]))
    names = ("src_col", "src_feat", "tgt_col", "tgt_feat", "seg", "branch", "strength")
    parts = defaultdict(list)
    for a, b, c, d, *part in zip(*(getattr(table, name)[at].tolist() for name in names), strict=True):
        parts[(a, b), (c, d)].append(tuple(part))
    for s, t, edge in graph.edges(data=True):
        edge["parts"] = tuple(sorted(parts[s, t], key=lambda part: (-part[2], part)))
    return graph
