"""Pictures of a network: some concept columns, their neurons and their strongest connections.

Covers: the picture and writing it to a file. Does not cover: getting the table of connections out of
a network (`giaann_dask.network.exporting`), the choice of columns, neurons and connections
(`giaann_dask.network.table`) and pictures of what the cluster does (Dask's own dashboard).

A column is a box with its prime concept neuron at the foot and its feature neurons above, the
strongest lowest. Connections between prime concept neurons hang below the boxes; inside a column
they lead up on the right and down on the left. Everything is laid out in inches.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.errors import EmptyInputError, OptionError
from giaann_dask.network.table import ConnectionTable, Neuron
from giaann_dask.storage import writing

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
Point = tuple[float, float]
_LIMITS = (("maximum_columns", 1, 12), ("maximum_features", 0, 40), ("maximum_connections", 1, 5000))
_DOTS_PER_INCH, _MARGIN, _LINE = 140, 0.35, 0.2
_ROW, _NODE, _PRIME, _PADDING = 0.52, 0.3, 0.4, 0.12
_WIDEST_NODE, _WIDEST_GAP, _LEAST_ARC, _WIDEST_ARC = 1.1, 2.0, 0.36, 0.7
# Characters of the caption per inch, and the width from which on the legend stands in one line.
_CHARACTERS, _WIDE = 13.5, 8.5


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """What is drawn of a network, and how large.

    Parameters
    ----------
    concepts : tuple of str
        Names of the concept columns to draw, from left to right; none chooses those that are best
        connected with each other.
    maximum_columns : int
        Most columns to draw, 1 to 12.
    maximum_features : int
        Most feature neurons of a column, besides its prime concept neuron, 0 to 40.
    maximum_connections : int
        Most connections to draw, 1 to 5000; the strongest are kept.
    width_inches : float
        Width of the picture, 5 to 40; its height follows from the number of neurons.
    dark : bool
        Light on dark instead of dark on light.

    Raises
    ------
    OptionError
        If a value is out of range, or more concepts are named than columns may be drawn.
    """

    concepts: tuple[str, ...] = ()
    maximum_columns: int = 6
    maximum_features: int = 8
    maximum_connections: int = 120
    width_inches: float = 12.0
    dark: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (*_LIMITS, ("width_inches", 5, 40)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise OptionError(f"{name} is {value!r}", f"{low} to {high}", "choose another value")
        if len(self.concepts) > self.maximum_columns:
            received, expected = f"{len(self.concepts)} concepts", f"at most {self.maximum_columns}"
            raise OptionError(received, expected, "name fewer of them or raise maximum_columns")


class _Theme(NamedTuple):
    """Colours of a picture."""

    page: str
    box: str
    frame: str
    node: str
    faint: str
    text: str
    prime: str
    internal: str
    external: str


_LIGHT = _Theme("#fff", "#f3f5f8", "#d5dbe3", "#fff", "#66727f", "#1c2430", "#7b3fa0", "#2b74b8", "#d9731a")
_DARK = _Theme("#14181e", "#1d232b", "#343d49", "#262e38", "#96a1ad", "#eee", "#95c", "#6ae", "#f0954a")


def draw_network(table: ConnectionTable, options: DrawOptions | None = None) -> Figure:
    """Draw some concept columns with their neurons and strongest connections.

    Parameters
    ----------
    table : ConnectionTable
        All connections of a network.
    options : DrawOptions, optional
        What is drawn, and how large.

    Returns
    -------
    matplotlib.figure.Figure
        Made without pyplot, so that no window opens; a notebook shows it as PNG.

    Raises
    ------
    OptionError
        If a named concept is not in the network; the message names those that are spelled alike.
    EmptyInputError
        If the network has no connections.
    """
    from matplotlib.figure import Figure

    options = options or DrawOptions()
    if len(table) == 0:
        raise EmptyInputError("a network without connections", "a trained one to draw", "train it first")
    columns = table.find_columns(options.concepts) or table.best_connected(options.maximum_columns)
    graph = table.graph(
        columns,
        maximum_features=options.maximum_features,
        maximum_connections=options.maximum_connections,
    )
    theme = _DARK if options.dark else _LIGHT
    caption = _caption(graph, options.width_inches)
    page = _Page.of(graph, options.width_inches, len(caption))
    figure = Figure(figsize=(page.width, page.height), dpi=_DOTS_PER_INCH, facecolor=theme.page)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, page.width), ylim=(0, page.height))
    axes.set_axis_off()
    _draw_columns(axes, graph, page, theme)
    _draw_connections(axes, graph, page, theme)
    _draw_neurons(axes, graph, page, theme)
    _draw_legend(axes, page, theme)
    for number, line in enumerate(reversed(caption)):
        axes.text(_MARGIN, _MARGIN + number * _LINE, line, size=9, color=theme.faint, va="center")
    # A notebook knows how to show figures only after pyplot has been imported.
    figure._repr_png_ = functools.partial(rendered, figure, "png")  # type: ignore[attr-defined]
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a picture; the same picture gives the same bytes.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        From `draw_network`.
    path : str or Path
        A file that ends in ``.svg``, ``.png`` or ``.pdf``; its folder is made where it is missing.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OptionError
        If the name ends otherwise.
    StoreWriteError
        If the disk is full.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"the picture {path}", f"a name that ends in {', '.join(SUFFIXES)}", "rename it")
    with writing(f"the picture {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rendered(figure, suffix[1:]))
    return path


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the bytes of a picture, without a date and with reproducible identifiers."""
    import matplotlib

    buffer, dates = io.BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "giaann_dask"}):
        figure.savefig(buffer, format=kind, metadata=dates.get(kind))
    return buffer.getvalue()


def _caption(graph: nx.DiGraph, width: float) -> list[str]:
    """Return the lines that say what the picture shows and what it leaves out."""
    strengths = [strength for *_, strength in graph.edges(data="strength")]
    columns, concepts, total = len(graph.graph["columns"]), graph.graph["concepts"], graph.graph["total"]
    text = f"{columns} of {concepts:,} concept columns, {len(graph) - columns} feature neurons. "
    if strengths:
        text += (
            f"Only the strongest {len(strengths):,} of the {total:,} connections among these columns "
            f"are drawn, {total - len(strengths):,} are left out. The wider the line, the stronger the "
            f"connection, over all branches and segments: {min(strengths):,.1f} to {max(strengths):,.1f}."
        )
    else:
        text += f"No connections are drawn, {total:,} are left out."
    return textwrap.wrap(text, int(_CHARACTERS * (width - 2 * _MARGIN)))


class _Page(NamedTuple):
    """Where things are, in inches from the lower left corner."""

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
    def of(cls, graph: nx.DiGraph, width: float, caption_lines: int) -> _Page:
        """Divide the width into columns and gaps; the height follows from the highest column."""
        columns = len(graph.graph["columns"])
        rows = 1 + max(row for _, row in graph.nodes(data="row"))
        room = width - 2 * _MARGIN
        share = room / (columns + 0.45 * (columns - 1))
        node = min(max(share - 2 * _LEAST_ARC, 0.5 * share), _WIDEST_NODE)
        box = min(share, node + 2 * _WIDEST_ARC)
        gap = min((room - columns * box) / max(columns - 1, 1), _WIDEST_GAP)
        place = dict(graph.nodes(data="place"))
        span = max((abs(place[s] - place[t]) for s, t in graph.edges if s[1] == t[1] == 0), default=0)
        foot = 1.6 * _MARGIN + caption_lines * _LINE + _depth(span)
        top = foot + rows * _ROW + 2 * _PADDING
        height = top + (0.75 if width >= _WIDE else 0.95)
        left = (width - columns * box - (columns - 1) * gap) / 2
        return cls(width, height, left, foot, top, node, box, gap, rows)

    def centre(self, neuron: dict[str, Any]) -> Point:
        """Return the middle of a neuron."""
        x = self.left + neuron["place"] * (self.box + self.gap) + self.box / 2
        return x, self.foot + _PADDING + (neuron["row"] + 0.5) * _ROW


def _height(neuron: dict[str, Any]) -> float:
    """Return the height of a neuron."""
    return _NODE if neuron["row"] else _PRIME


def _depth(span: int) -> float:
    """Return how far an arc over so many columns hangs below the boxes."""
    return 0.12 + 0.16 * span if span else 0.0


def _draw_columns(axes: Axes, graph: nx.DiGraph, page: _Page, theme: _Theme) -> None:
    """Draw the boxes and their names."""
    look = {"facecolor": theme.box, "edgecolor": theme.frame, "zorder": 0}
    font = {"color": theme.text, "weight": "bold", "size": 12}
    for place, name in enumerate(graph.graph["columns"]):
        x, _ = page.centre({"place": place, "row": 0})
        _draw_box(axes, (x - page.box / 2, page.foot), (page.box, page.top - page.foot), look)
        _draw_word(axes, name, (x, page.top + 0.16), page.box + page.gap / 2, font)


def _draw_neurons(axes: Axes, graph: nx.DiGraph, page: _Page, theme: _Theme) -> None:
    """Draw the neurons with their words."""
    look = {"facecolor": theme.node, "edgecolor": theme.faint, "zorder": 4}
    font = {"color": theme.text, "weight": "normal", "size": 9, "zorder": 5}
    prime_look = look | {"facecolor": theme.prime, "edgecolor": theme.prime}
    prime_font = font | {"color": "#ffffff", "weight": "bold"}
    for (_, feature), neuron in graph.nodes(data=True):
        x, y = page.centre(neuron)
        corner = (x - page.node / 2, y - _height(neuron) / 2)
        _draw_box(axes, corner, (page.node, _height(neuron)), look if feature else prime_look)
        _draw_word(axes, neuron["name"], (x, y), page.node - 0.1, font if feature else prime_font)


def _draw_box(axes: Axes, corner: Point, extent: Point, look: dict[str, Any]) -> None:
    """Draw a box with round corners."""
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(FancyBboxPatch(corner, *extent, boxstyle="round,pad=0,rounding_size=0.1", **look))


def _draw_word(axes: Axes, word: str, middle: Point, width: float, font: dict[str, Any]) -> None:
    """Draw a word, smaller or shortened where it would be wider than its place."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    # A full stop alone would be hard to see.
    size = font["size"] if any(map(str.isalnum, word)) else font["size"] + 4
    measured = FontProperties(size=size, weight=font["weight"])

    def share(shown: str) -> float:
        # A dollar sign would begin a formula, and blanks have no outline; an S is about as wide.
        outline = TextPath((0, 0), re.sub(r"[$\s]", "S", shown) or "S", prop=measured)
        return float(outline.get_extents().width) / 72 / width

    if share(word) > 4 / 3:
        length = max((n for n in range(1, len(word)) if share(word[:n] + "…") <= 4 / 3), default=0)
        word = word[:length] + "…"
    size /= max(share(word), 1.0)
    axes.text(*middle, word, **font | {"size": size, "ha": "center", "va": "center_baseline", "parse_math": False})


def _draw_connections(axes: Axes, graph: nx.DiGraph, page: _Page, theme: _Theme) -> None:
    """Draw the connections, the strongest on top."""
    from matplotlib.patches import FancyArrowPatch

    ports = _ports(graph, page)
    edges = sorted(graph.edges(data="strength"), key=lambda edge: edge[2])
    for source, target, strength in edges:
        share = (strength / edges[-1][2]) ** 0.6
        ends = ports[source, target, 0], ports[source, target, 1]
        arrow = FancyArrowPatch(
            path=_curve(page, (graph.nodes[source], graph.nodes[target]), ends),
            arrowstyle="-|>,head_length=3.4,head_width=1.5",
            mutation_scale=1.0 + 0.6 * share,
            linewidth=0.5 + 1.9 * share,
            color=theme.internal if source[0] == target[0] else theme.external,
            alpha=0.45 + 0.5 * share,
            zorder=2 + share,
            joinstyle="miter",
        )
        axes.add_patch(arrow)


def _side(here: dict[str, Any], there: dict[str, Any], leaving: bool) -> str:
    """Return the side of a neuron at which a connection with another one leaves or arrives."""
    if here["place"] != there["place"]:
        if here["row"] == there["row"] == 0:
            return "foot"
        return "right" if here["place"] < there["place"] else "left"
    if here["row"] == there["row"]:
        return "loop"
    return "right" if (here["row"] < there["row"]) == leaving else "left"


def _ports(graph: nx.DiGraph, page: _Page) -> dict[tuple[Neuron, Neuron, int], Point]:
    """Return where connections leave (0) and arrive (1), spread over the sides of the neurons."""
    users = defaultdict(list)
    for edge in graph.edges:
        both = [graph.nodes[neuron] for neuron in edge]
        for end in (0, 1):
            there, side = both[1 - end], _side(both[end], both[1 - end], leaving=end == 0)
            order = (there["place"], end) if side == "foot" else (there["row"], there["place"], end)
            users[edge[end], side].append((order, (*edge, end)))
    ports = {}
    for (neuron, side), found in users.items():
        x, y = page.centre(graph.nodes[neuron])
        height = _height(graph.nodes[neuron])
        for number, (_, port) in enumerate(sorted(found)):
            shift = (number + 1) / (len(found) + 1) - 0.5
            ports[port] = {
                "foot": (x + 0.9 * page.node * shift, y - height / 2),
                "loop": (x + 0.75 * shift, y + height / 2),
                "left": (x - page.node / 2, y + 0.9 * height * shift),
                "right": (x + page.node / 2, y + 0.9 * height * shift),
            }[side]
    return ports


def _curve(page: _Page, neurons: tuple[dict[str, Any], dict[str, Any]], ends: tuple[Point, Point]) -> Any:
    """Return the path between two ports: a loop, an arc beside or below, or a sweep across."""
    from matplotlib.path import Path as Curve

    source, target, (x0, y0), (x1, y1) = *neurons, *ends
    side, span = _side(source, target, leaving=True), abs(source["row"] - target["row"])
    if side == "loop":
        height = 0.95 * (_ROW - (_NODE + _height(source)) / 2)
        controls = [(x0 - 0.02, y0 + height), (x1 + 0.02, y1 + height)]
    elif side == "foot":
        depth = (y0 - page.foot + _depth(abs(source["place"] - target["place"]))) * 4 / 3
        controls = [(x0 + 0.1 * (x1 - x0), y0 - depth), (x1 - 0.1 * (x1 - x0), y1 - depth)]
    elif source["place"] == target["place"]:
        bow = (page.box - page.node) * (0.2 + 0.43 * span / page.rows) * (1 if side == "right" else -1)
        controls = [(x0 + bow, y0), (x1 + bow, y1)]
    else:
        controls = [(x0 + 0.45 * (x1 - x0), y0), (x1 - 0.45 * (x1 - x0), y1)]
    return Curve([(x0, y0), *controls, (x1, y1)], [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])


def _draw_legend(axes: Axes, page: _Page, theme: _Theme) -> None:
    """Explain the colours at the head of the picture."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=theme.prime, label="prime concept neuron"),
        Patch(facecolor=theme.node, edgecolor=theme.faint, label="feature neuron"),
        Line2D([], [], color=theme.internal, linewidth=2.2, label="connection inside a column"),
        Line2D([], [], color=theme.external, linewidth=2.2, label="connection to another column"),
    ]
    look: dict[str, Any] = {"frameon": False, "fontsize": 9, "columnspacing": 1.6, "handlelength": 1.6}
    look |= {"labelcolor": theme.text, "ncols": 4 if page.width >= _WIDE else 2}
    look |= {"loc": "upper center", "bbox_to_anchor": (0.5, 1 - 0.08 / page.height)}
    axes.legend(handles=handles, **look)
