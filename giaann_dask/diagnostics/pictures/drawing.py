"""Draw some concept columns, their neurons and their strongest connections, by matplotlib.

Draws a graph in a colour scheme, with words, legend and caption. `layout` selects its contents and positions,
`schemes` its colours, and `draw_options` writes it.
"""

from __future__ import annotations

import functools
import math
import re
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions, rendered
from giaann_dask.diagnostics.pictures.layout import (
    LINE,
    MARGIN,
    Page,
    Point,
    Words,
    choose_graph,
    choose_table,
    curve,
    height_of,
    line_ends,
)
from giaann_dask.diagnostics.pictures.schemes import Colouring, Entry, Scale, Theme, colour_graph, theme_of
from giaann_dask.models.columns.connection_table import ConnectionTable
from giaann_dask.representations import printable
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TEXT_LINE = 0.3
# Between words without a space, so that a frame around one does not touch the other.
_SIZE, _SPACE, _NO_SPACE = 13, 0.1, 0.02

Placed = tuple[float, str, str]


def text_lines(words: Sequence[tuple[str, str]], width: float) -> list[list[Placed]]:
    """Wrap words into lines that fit a page of some width, each word with its position in inches and its kind.

    Words hold the spaces before them, which are not drawn.
    """
    lines: list[list[Placed]] = []
    x = width
    for text, kind in words:
        word = text.strip() or text
        wide = width_of(word, _SIZE, "normal")
        x += _SPACE if text.startswith(" ") else _NO_SPACE
        if x + wide > width - MARGIN:
            lines.append([])
            x = MARGIN
        lines[-1].append((x, word, kind))
        x += wide
    return lines


def draw_text(axes: Axes, lines: list[list[Placed]], theme: Theme) -> None:
    """Draw running text at the foot of a picture: predicted tokens in colour, later tokens pale."""
    colours = {"given": theme.text, "predicted": theme.external, "next": theme.mark, "waiting": theme.frame}
    for number, line in enumerate(reversed(lines)):
        for x, word, kind in line:
            if kind == "hidden":
                continue
            box = {"boxstyle": "round,pad=0.12", "facecolor": "none", "edgecolor": theme.mark, "linewidth": 1.4}
            marked = kind in ("next", "given next")
            place = x, MARGIN - 0.02 + number * TEXT_LINE
            colour = colours.get(kind, theme.text)
            axes.text(
                *place,
                printable(word),
                size=_SIZE,
                color=colour,
                va="center",
                parse_math=False,
                bbox=box if marked else None,
            )


@functools.lru_cache(maxsize=4096)
def width_of(word: str, size: float, weight: str) -> float:
    """Return the width of a word in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    # A dollar sign would begin a formula, and blanks have no outline; an S is about as wide.
    outline = TextPath(
        (0, 0), re.sub(r"[$\s]", "S", printable(word)) or "S", prop=FontProperties(size=size, weight=weight)
    )
    # Outlines of letters reach as far as their control points; `get_extents` takes six times as long to find it.
    across = outline.vertices[outline.codes != outline.CLOSEPOLY, 0]
    return float(across.max() - across.min()) / 72


def draw_word(axes: Axes, word: str, middle: Point, width: float, font: dict[str, Any]) -> None:
    """Draw a word, smaller or shortened where it would be wider than its place."""
    word = printable(word)
    # A full stop alone would be hard to see.
    size = font["size"] if any(map(str.isalnum, word)) else font["size"] + 4

    def share(shown: str) -> float:
        return width_of(shown, size, font["weight"]) / width

    if share(word) > 4 / 3:
        longer = range(1, len(word))
        word = word[: bisect_right(longer, 4 / 3, key=lambda n: share(word[:n] + "…"))] + "…"
    size /= max(share(word), 1.0)
    axes.text(*middle, word, **font | {"size": size, "ha": "center", "va": "center_baseline", "parse_math": False})


_DOTS_PER_INCH = 140
# Characters of the caption per inch, and inches of a character of the legend.
_CHARACTERS, _LETTER = 13.5, 0.078
_SYMBOL, _SCALE_HEIGHT = 0.55, 0.5
# A picture of one column in a notebook.
_SMALL = DrawOptions(max_columns=4, max_features=4, max_connections=20, width_inches=7.0)


def draw_column(table: ConnectionTable, column: int, options: DrawOptions = _SMALL) -> Figure:
    """Draw a column, the columns that its strongest connections lead to, and these connections.

    Parameters
    ----------
    table : ConnectionTable
        The connections that leave the column.
    column : int
        Its number.
    options : DrawOptions
        How much is drawn, and how large.

    Returns
    -------
    matplotlib.figure.Figure
        Made without pyplot, so that no window opens; a notebook shows it as PNG.
    """
    strength = np.bincount(table.tgt_col, table.strength, len(table.concepts))
    strength[column] = 0
    order = np.argsort(-strength, kind="stable")[: options.max_columns - 1]
    columns = [column, *(int(target) for target in order if strength[target] > 0)]
    graph = choose_graph(table.select_columns(columns), columns, options)
    shown, name = graph.number_of_edges(), table.concepts[column]
    text = f"The strongest {shown:,} of the {graph.graph['total']:,} connections from {name} to these columns."
    colouring = colour_graph(graph, theme_of(options.dark), options.colour)
    return draw_graph(graph, colouring, options, wrapped(text, options.width_inches))


def draw_commit(reader: CommitReader, options: DrawOptions | None = None) -> Figure:
    """Draw some concept columns of a commit, of which no more than one region is decoded at a time.

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``.
    options : DrawOptions, optional
        What is drawn, in which colours, and how large; for ``activation`` see `prediction.draw_step`.

    Raises
    ------
    OptionError
        If a named concept is not in the network, or it does not store what the colours show.
    EmptyInputError
        If the network has no connections.
    """
    options = options or DrawOptions()
    graph, colouring = coloured_commit(reader, options)
    return draw_graph(graph, colouring, options)


def coloured_commit(reader: CommitReader, options: DrawOptions) -> tuple[nx.DiGraph, Colouring]:
    """Return the coloured graph that is drawn of a commit; see `draw_commit`."""
    words = Words.of(reader)
    if options.colour == "parts":
        words.require_part()
    table, columns = choose_table(reader, options)
    graph = choose_graph(table, columns, options)
    graph.graph["words"] = table.features
    return graph, colour_graph(graph, theme_of(options.dark), options.colour, words)


def draw_graph(
    graph: nx.DiGraph,
    colouring: Colouring,
    options: DrawOptions,
    caption: list[str] | None = None,
    text: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Draw a graph in its colours.

    Parameters
    ----------
    graph : networkx.DiGraph
        From `giaann_dask.diagnostics.pictures.layout.choose_graph`.
    colouring : Colouring
        From `giaann_dask.diagnostics.pictures.schemes.colour_graph`.
    options : DrawOptions
        Width, and light or dark.
    caption : list of str, optional
        Lines below; by default what the picture shows and what it leaves out.
    text : sequence of (str, str)
        Words below these, and what each is (see `giaann_dask.diagnostics.pictures.prediction.Word`).
    """
    from matplotlib.figure import Figure

    theme, width = theme_of(options.dark), options.width_inches
    caption = wrapped(caption_of(graph, options.colour), width) if caption is None else caption
    rows = -(-len(colouring.legend) // _legend_columns(colouring.legend, width))
    head = 0.55 + LINE * rows + (_SCALE_HEIGHT if colouring.scale else 0.0)
    running = text_lines(text, width)
    text_height = 0.15 + TEXT_LINE * len(running) if running else 0.0
    page = Page.of(graph, width, foot=len(caption) * LINE + text_height, head=head)
    figure = Figure(figsize=(page.width, page.height), dpi=_DOTS_PER_INCH, facecolor=theme.page)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, page.width), ylim=(0, page.height))
    axes.set_axis_off()
    _draw_columns(axes, graph, page, theme)
    _draw_connections(axes, graph, page, colouring)
    _draw_neurons(axes, graph, page, colouring)
    _draw_legend(axes, page, colouring.legend, theme)
    if colouring.scale is not None:
        _draw_scale(figure, page, colouring.scale, theme, page.height - 0.1 - LINE * rows)
    for number, line in enumerate(reversed(caption)):
        place = MARGIN, MARGIN + text_height + number * LINE
        axes.text(*place, printable(line), size=9, color=theme.faint, va="center", parse_math=False)
    draw_text(axes, running, theme)
    # A notebook knows how to show figures only after pyplot has been imported.
    figure._repr_png_ = functools.partial(rendered, figure, "png")  # type: ignore[attr-defined]
    return figure


def caption_of(graph: nx.DiGraph, colour: str = "default") -> str:
    """Return the caption: the contents of a picture and its omissions."""
    strengths = [strength for *_, strength in graph.edges(data="strength")]
    columns, concepts, total = len(graph.graph["columns"]), graph.graph["concepts"], graph.graph["total"]
    text = f"{columns} of {concepts:,} concept columns, {len(graph) - columns} feature neurons. "
    if not strengths:
        return text + f"No connections are drawn, {total:,} are left out."
    text += (
        f"Only the strongest {len(strengths):,} of the {total:,} connections among these columns "
        f"are drawn, {total - len(strengths):,} are left out. "
    )
    if colour in ("segments", "branches"):
        one = colour.removesuffix("es") if colour == "branches" else colour.removesuffix("s")
        return (
            text + f"Each is a line for every {one} on which it ends; of these, too, the strongest {len(strengths):,}."
        )
    return text + (
        "The wider the line, the stronger the connection, over all branches and segments: "
        f"{min(strengths):,.1f} to {max(strengths):,.1f}."
    )


def wrapped(text: str, width: float) -> list[str]:
    """Return the lines of a caption on a page of some width in inches."""
    return textwrap.wrap(text, int(_CHARACTERS * (width - 2 * MARGIN)))


def _draw_columns(axes: Axes, graph: nx.DiGraph, page: Page, theme: Theme) -> None:
    """Draw the boxes and their names."""
    look = {"facecolor": theme.box, "edgecolor": theme.frame, "zorder": 0}
    font = {"color": theme.text, "weight": "bold", "size": 12}
    for place, name in enumerate(graph.graph["columns"]):
        x, _ = page.centre({"place": place, "row": 0})
        _draw_box(axes, (x - page.box / 2, page.foot), (page.box, page.top - page.foot), look)
        draw_word(axes, name, (x, page.top + 0.16), page.box + page.gap / 2, font)


def _draw_neurons(axes: Axes, graph: nx.DiGraph, page: Page, colouring: Colouring) -> None:
    """Draw the neurons with their words."""
    for key, neuron in graph.nodes(data=True):
        look = colouring.neurons[key]
        x, y = page.centre(neuron)
        corner = (x - page.node / 2, y - height_of(neuron) / 2)
        box: dict[str, Any] = {"facecolor": look.fill, "edgecolor": look.edge, "linewidth": look.width}
        box |= {"linestyle": (0, (2.5, 1.5)) if look.dashed else "-", "zorder": 4}
        _draw_box(axes, corner, (page.node, height_of(neuron)), box)
        font = {"color": look.word, "weight": "normal" if key[1] else "bold", "size": 9, "zorder": 5}
        draw_word(axes, neuron["name"], (x, y), page.node - 0.1, font)


def _draw_box(axes: Axes, corner: Point, extent: Point, look: dict[str, Any]) -> None:
    """Draw a box with round corners."""
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(FancyBboxPatch(corner, *extent, boxstyle="round,pad=0,rounding_size=0.1", **look))


def _draw_connections(axes: Axes, graph: nx.DiGraph, page: Page, colouring: Colouring) -> None:
    """Draw the connections, the last on top."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    lines = colouring.lines
    strongest = max((line.strength for line in lines), default=1.0)
    for number, (line, ends) in enumerate(zip(lines, line_ends(graph, lines, page), strict=True)):
        share = line.share(strongest)
        points = curve(page, (graph.nodes[line.source], graph.nodes[line.target]), ends)
        arrow = FancyArrowPatch(
            path=Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]),
            arrowstyle="-|>,head_length=3.4,head_width=1.5",
            mutation_scale=1.0 + 0.6 * share,
            linewidth=0.5 + 1.9 * share,
            linestyle=(0, (4, 1.6)) if line.dashed else "-",
            color=line.colour,
            alpha=0.45 + 0.5 * share,
            zorder=2 + number / max(len(lines), 1),
            joinstyle="miter",
        )
        axes.add_patch(arrow)


def _legend_columns(entries: list[Entry], width: float) -> int:
    """Return how many entries of the legend stand beside each other; rows are about equally long."""
    widths, room = [_SYMBOL + _LETTER * len(entry.label) for entry in entries], width - 2 * MARGIN
    if sum(widths) <= room:
        return len(entries)
    most = max(math.floor(room / max(widths)), 1)
    return math.ceil(len(entries) / math.ceil(len(entries) / most))


def _draw_legend(axes: Axes, page: Page, entries: list[Entry], theme: Theme) -> None:
    """Explain the colours at the head of the picture."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def handle(entry: Entry) -> Any:
        style: Any = (0, (2.5, 1.2)) if entry.dashed else "-"
        if entry.edge is None:
            return Line2D([], [], color=entry.colour, linewidth=2.2, linestyle=style, label=entry.label)
        box = {"facecolor": entry.colour, "edgecolor": entry.edge, "linewidth": min(entry.width, 2.2)}
        return Patch(**box, linestyle=style, label=entry.label)  # type: ignore[arg-type]

    columns = _legend_columns(entries, page.width)
    look: dict[str, Any] = {"frameon": False, "fontsize": 9, "columnspacing": 1.6, "handlelength": 1.6}
    look |= {"labelcolor": theme.text, "ncols": columns, "labelspacing": 0.35}
    look |= {"loc": "upper center", "bbox_to_anchor": (0.5, 1 - 0.08 / page.height)}
    axes.legend(handles=[handle(entry) for entry in _by_rows(entries, columns)], **look)


def _by_rows(entries: list[Entry], columns: int) -> list[Entry]:
    """Return entries in the order in which a legend, which fills columns, shows them row after row."""
    return [entry for column in range(columns) for entry in entries[column::columns]]


def _draw_scale(figure: Figure, page: Page, scale: Scale, theme: Theme, top: float) -> None:
    """Draw a scale of colours below the legend, its upper edge so many inches above the foot."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    place = (0.36, (top - 0.2) / page.height, 0.28, 0.12 / page.height)
    bar = figure.add_axes(place)
    colours = LinearSegmentedColormap.from_list("activation", scale.stops)
    shown = ScalarMappable(Normalize(0, scale.largest), colours)
    made = figure.colorbar(shown, cax=bar, orientation="horizontal")
    made.outline.set_edgecolor(theme.frame)
    bar.tick_params(labelsize=8, colors=theme.faint, labelcolor=theme.text, length=2)
    bar.text(-0.03, 0.5, scale.label, transform=bar.transAxes, ha="right", va="center", size=9, color=theme.text)
