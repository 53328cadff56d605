"""Lay out the columns, neurons and connections of a picture, in inches.

A column is a box with its prime concept neuron at the bottom and its feature neurons above, the strongest lowest.
Connections between prime concept neurons are drawn below the boxes; inside a column they lead up on the right and
down on the left. The module needs no drawing library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.models.columns.connection_table import Neuron

if TYPE_CHECKING:
    import networkx as nx

Point = tuple[float, float]
MARGIN, LINE = 0.35, 0.2
NODE, PRIME = 0.3, 0.4
_ROW, _PADDING = 0.52, 0.12
_WIDEST_NODE, _WIDEST_GAP, _LEAST_ARC, _WIDEST_ARC = 1.1, 2.0, 0.36, 0.7


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
