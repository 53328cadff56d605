"""Select the columns, neurons and connections that a picture shows, and lay them out, in inches.

Reads a commit without decoding more than a region at a time. Has the connections of every pair by segment and branch,
and the flags and parts of speech that a network stores.

A column is a box with its prime concept neuron at the bottom and its feature neurons above, the strongest lowest.
Connections between prime concept neurons are drawn below the boxes; inside a column they lead up on the right and
down on the left. The module needs no drawing library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.errors import EmptyInputError, OptionError
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.connection_table import ConnectionTable, Neuron
from giaann_dask.models.columns.export import (
    find_best_columns,
    find_columns,
    read_columns,
    require_columns,
    segment_names,
)
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.ever_pos import PARTS, EverPos

if TYPE_CHECKING:
    import networkx as nx

Point = tuple[float, float]
PART_NAMES = {"VERB": "verb", "ADP": "adposition", "CCONJ": "conjunction", "SCONJ": "conjunction"}
MARGIN, LINE = 0.35, 0.2
NODE, PRIME = 0.3, 0.4
_ROW, _PADDING = 0.52, 0.12
_WIDEST_NODE, _WIDEST_GAP, _LEAST_ARC, _WIDEST_ARC = 1.1, 2.0, 0.36, 0.7


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


class Line(NamedTuple):
    """A connection as it is drawn.

    Attributes
    ----------
    source, target : tuple of int
        Neurons as (column, feature).
    strength : float
        What its width shows.
    colour : str
        Its colour.
    dashed : bool
        Whether it is broken.
    bold : bool
        Whether it is well to be seen, however weak.
    """

    source: Neuron
    target: Neuron
    strength: float
    colour: str
    dashed: bool = False
    bold: bool = False

    def share(self, strongest: float) -> float:
        """Return how wide it is drawn, 0 to 1, where another one is the strongest."""
        share = float((self.strength / strongest) ** 0.6)
        return max(share, 0.6) if self.bold else share


class Page(NamedTuple):
    """Positions in inches from the lower left corner."""

    width: float
    height: float
    left: float
    foot: float
    top: float
    node: float
    box: float
    gap: float
    rows: int

    @classmethod
    def of(cls, graph: nx.DiGraph, width: float, *, foot: float, head: float) -> Page:
        """Divide the width into columns and gaps; the height follows from the highest column.

        Parameters
        ----------
        graph : networkx.DiGraph
            From `giaann_dask.models.columns.connection_table.ConnectionTable.graph`.
        width : float
            Of the page.
        foot, head : float
            Room for what stands below the connections, and above the names of columns.
        """
        columns = len(graph.graph["columns"])
        rows = 1 + max(row for _, row in graph.nodes(data="row"))
        room = width - 2 * MARGIN
        share = room / (columns + 0.45 * (columns - 1))
        node = min(max(share - 2 * _LEAST_ARC, 0.5 * share), _WIDEST_NODE)
        box = min(share, node + 2 * _WIDEST_ARC)
        gap = min((room - columns * box) / max(columns - 1, 1), _WIDEST_GAP)
        place = dict(graph.nodes(data="place"))
        span = max((abs(place[s] - place[t]) for s, t in graph.edges if s[1] == t[1] == 0), default=0)
        bottom = 1.6 * MARGIN + foot + _depth(span)
        top = bottom + rows * _ROW + 2 * _PADDING
        left = (width - columns * box - (columns - 1) * gap) / 2
        return cls(width, top + head, left, bottom, top, node, box, gap, rows)

    def centre(self, neuron: dict[str, Any]) -> Point:
        """Return the middle of a neuron."""
        x = self.left + neuron["place"] * (self.box + self.gap) + self.box / 2
        return x, self.foot + _PADDING + (neuron["row"] + 0.5) * _ROW


def height_of(neuron: dict[str, Any]) -> float:
    """Return the height of a neuron."""
    return NODE if neuron["row"] else PRIME


def line_ends(graph: nx.DiGraph, lines: Sequence[Line], page: Page) -> list[tuple[Point, Point]]:
    """Return the start and end of each line, spread over the sides of the neurons."""
    users = defaultdict(list)
    for number, line in enumerate(lines):
        both = [graph.nodes[line.source], graph.nodes[line.target]]
        for end, neuron in enumerate((line.source, line.target)):
            there, side = both[1 - end], _side(both[end], both[1 - end], leaving=end == 0)
            order = (there["place"], end) if side == "foot" else (there["row"], there["place"], end)
            users[neuron, side].append((order, line.source, line.target, number, end))
    places: dict[tuple[int, int], Point] = {}
    for (neuron, side), found in users.items():
        x, y = page.centre(graph.nodes[neuron])
        height = height_of(graph.nodes[neuron])
        for position, (*_, number, end) in enumerate(sorted(found)):
            shift = (position + 1) / (len(found) + 1) - 0.5
            places[number, end] = {
                "foot": (x + 0.9 * page.node * shift, y - height / 2),
                "loop": (x + 0.75 * shift, y + height / 2),
                "left": (x - page.node / 2, y + 0.9 * height * shift),
                "right": (x + page.node / 2, y + 0.9 * height * shift),
            }[side]
    return [(places[number, 0], places[number, 1]) for number in range(len(lines))]


def curve(
    page: Page, neurons: tuple[dict[str, Any], dict[str, Any]], ends: tuple[Point, Point]
) -> tuple[Point, Point, Point, Point]:
    """Return the cubic curve between two ends: a loop, an arc beside or below, or a sweep across."""
    source, target, (x0, y0), (x1, y1) = *neurons, *ends
    side, span = _side(source, target, leaving=True), abs(source["row"] - target["row"])
    if side == "loop":
        height = 0.95 * (_ROW - (NODE + height_of(source)) / 2)
        return (x0, y0), (x0 - 0.02, y0 + height), (x1 + 0.02, y1 + height), (x1, y1)
    if side == "foot":
        depth = (y0 - page.foot + _depth(abs(source["place"] - target["place"]))) * 4 / 3
        return (x0, y0), (x0 + 0.1 * (x1 - x0), y0 - depth), (x1 - 0.1 * (x1 - x0), y1 - depth), (x1, y1)
    if source["place"] == target["place"]:
        bow = (page.box - page.node) * (0.2 + 0.43 * span / page.rows) * (1 if side == "right" else -1)
        return (x0, y0), (x0 + bow, y0), (x1 + bow, y1), (x1, y1)
    return (x0, y0), (x0 + 0.45 * (x1 - x0), y0), (x1 - 0.45 * (x1 - x0), y1), (x1, y1)


def _depth(span: int) -> float:
    """Return how far an arc over so many columns hangs below the boxes."""
    return 0.12 + 0.16 * span if span else 0.0


def _side(here: dict[str, Any], there: dict[str, Any], leaving: bool) -> str:
    """Return the side of a neuron at which a connection with another one leaves or arrives."""
    if here["place"] != there["place"]:
        if here["row"] == there["row"] == 0:
            return "foot"
        return "right" if here["place"] < there["place"] else "left"
    if here["row"] == there["row"]:
        return "loop"
    return "right" if (here["row"] < there["row"]) == leaving else "left"
