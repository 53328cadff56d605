"""Draw an interactive picture as one HTML page: zoom, tooltips, and links from neuron to neuron.

Bokeh writes the page with all scripts and data embedded, so that it opens without a network. Contents, colours and
layout are those of other pictures.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions, check_suffix, write_picture
from giaann_dask.diagnostics.pictures.drawing import caption_of, coloured_commit
from giaann_dask.diagnostics.pictures.layout import Page, Point, curve, height_of, line_ends
from giaann_dask.diagnostics.pictures.prediction import Prediction, colour_state, find_step, graph_of
from giaann_dask.diagnostics.pictures.schemes import Colouring, Entry, Theme, theme_of
from giaann_dask.lazy import import_optional
from giaann_dask.local_files import local_path
from giaann_dask.models.columns.connection_table import Neuron
from giaann_dask.representations import printable
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    import networkx as nx

PAGE_SUFFIXES = (".html",)
# Points of a curve, pixels of an inch and of a letter before zooming, and ends that are told of a line.
_POINTS, _PIXELS, _LETTERS, _LISTED = 25, 82, 12, 6
_TIP_LENGTH = 0.04
_FOLLOW = (Path(__file__).parent / "follow.js").read_text(encoding="utf-8")


class _Curve(NamedTuple):
    """A connection's curve, the middle of its tip and the direction in which it arrives."""

    x: list[float]
    y: list[float]
    tip: Point
    angle: float


def save_page(reader: CommitReader, path: str | Path, options: DrawOptions | None = None) -> Path:
    """Write an interactive picture.

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``.
    path : str or Path
        A file that ends in ``.html``; its folder is made where it is missing.
    options : DrawOptions, optional
        What is drawn, in which colours.

    Returns
    -------
    Path
        The file, of about 1.5 MB: it has all scripts in it.

    Raises
    ------
    OptionError
        If the name ends otherwise, or as `giaann_dask.diagnostics.pictures.drawing.draw_commit` does.
    MissingDependencyError
        If bokeh is not installed.
    """
    path, options = local_path(path), options or DrawOptions()
    check_suffix(path, PAGE_SUFFIXES)
    import_optional("bokeh", "pictures")
    graph, colouring = coloured_commit(reader, options)
    title = f"Network {reader.path.name}: {', '.join(graph.graph['columns'])}"
    return write_picture(path, page_of(graph, colouring, options, title).encode())


def save_step_page(prediction: Prediction, path: str | Path, step: int = 1, options: DrawOptions | None = None) -> Path:
    """Write a step of a prediction as a page; see `save_page` and `prediction.draw_step`."""
    path, options = local_path(path), options or DrawOptions(colour="activation")
    check_suffix(path, PAGE_SUFFIXES)
    at = find_step(prediction, step)
    graph = graph_of(prediction, [at], options)
    title = " ".join(word.text for word in prediction.text(at))
    page = page_of(graph, colour_state(prediction, at, graph, options), options, title, prediction.told(at))
    return write_picture(path, page.encode())


def page_of(graph: nx.DiGraph, colouring: Colouring, options: DrawOptions, title: str, caption: str = "") -> str:
    """Return a graph in its colours as one page that needs no other file.

    Parameters
    ----------
    graph, colouring, options
        As `giaann_dask.diagnostics.pictures.drawing.draw_graph` takes them.
    title : str
        Of the page.
    caption : str
        What the picture shows; by default which connections it has and leaves out.
    """
    embed, resources = (import_optional(f"bokeh.{name}", "pictures") for name in ("embed", "resources"))
    layouts, models = (import_optional(f"bokeh.{name}", "pictures") for name in ("layouts", "models"))
    theme = theme_of(options.dark)
    page = Page.of(graph, options.width_inches, foot=0.0, head=0.5)
    neurons = models.ColumnDataSource(neuron_values(graph, colouring, page), name="neurons")
    lines = models.ColumnDataSource(line_values(graph, colouring, page), name="connections")
    figure = _figure(graph, page, theme, (neurons, lines))
    look = {"color": theme.text, "font-size": "14px"}
    panel = models.Div(disable_math=True, text=_HINT, width=320, name="panel", styles=look)
    follow = models.CustomJS(args={"neurons": neurons, "lines": lines, "panel": panel, "hint": _HINT}, code=_FOLLOW)
    neurons.selected.js_on_change("indices", follow)
    caption = caption or caption_of(graph, options.colour)
    title = printable(title)
    told = _head(colouring, printable(caption), title)
    # No wider than the window: what is read stays in sight, and the panel goes below the figure where it must.
    head = models.Div(disable_math=True, text=told, styles={"color": theme.text, "max-width": "calc(100vw - 50px)"})
    both = layouts.row(figure, panel, styles={"flex-wrap": "wrap", "max-width": "calc(100vw - 50px)"})
    layout = layouts.column(head, both, styles={"background": theme.page, "padding": "12px"})
    made: str = embed.file_html(layout, resources.INLINE, title)
    return made.replace("<body>", f'<body style="background:{theme.page}">', 1)


def neuron_values(graph: nx.DiGraph, colouring: Colouring, page: Page) -> dict[str, list[Any]]:
    """Return the page's data of every neuron: name, column, position, style and strength of connections."""
    values: dict[str, list[Any]] = defaultdict(list)
    for neuron, node in graph.nodes(data=True):
        x, y = page.centre(node)
        look = colouring.neurons[neuron]
        outgoing = [strength for *_, strength in graph.out_edges(neuron, data="strength")]
        incoming = [strength for *_, strength in graph.in_edges(neuron, data="strength")]
        column = graph.graph["columns"][node["place"]]
        row = {"x": x, "y": y, "width": page.node, "height": height_of(node), "name": node["name"], "column": column}
        row |= {"kind": "feature neuron" if neuron[1] else "prime concept neuron"}
        row |= {
            "fill": look.fill,
            "edge": look.edge,
            "word": look.word,
            "border": look.width,
            "dash": "dashed" if look.dashed else "solid",
        }
        row |= {"weight": "normal" if neuron[1] else "bold", "alpha": 1.0, "shown": _short(node["name"])}
        row |= {"sends": len(outgoing), "sent": round(sum(outgoing), 3)}
        row |= {"receives": len(incoming), "received": round(sum(incoming), 3)}
        for name, value in row.items():
            values[name].append(printable(value) if isinstance(value, str) else value)
    return dict(values)


def line_values(graph: nx.DiGraph, colouring: Colouring, page: Page) -> dict[str, list[Any]]:
    """Return the page's data of every line: curve, style, ends, and the segments and branches of its end."""
    order: dict[Neuron, int] = {neuron: number for number, neuron in enumerate(graph)}
    strongest = max((line.strength for line in colouring.lines), default=1.0)
    values: dict[str, list[Any]] = defaultdict(list)
    for line, ends in zip(colouring.lines, line_ends(graph, colouring.lines, page), strict=True):
        both = graph.nodes[line.source], graph.nodes[line.target]
        bent = _sampled(curve(page, both, ends))
        parts = graph.edges[line.source, line.target]["parts"]
        shown = ", ".join(f"{segment}/{branch}: {strength:,.4g}" for segment, branch, strength in parts[:_LISTED])
        more = f" and {len(parts) - _LISTED} more" if len(parts) > _LISTED else ""
        share, columns = line.share(strongest), graph.graph["columns"]
        row = {"xs": bent.x, "ys": bent.y, "tip_x": bent.tip[0], "tip_y": bent.tip[1], "angle": bent.angle}
        row |= {"colour": line.colour, "width": 0.7 + 2.6 * share, "tip": 6 + 4 * share, "usual": 0.45 + 0.5 * share}
        row |= {"alpha": 0.45 + 0.5 * share, "dash": "dashed" if line.dashed else "solid"}
        row |= {"source": order[line.source], "target": order[line.target], "strength": line.strength}
        row |= {"source_name": both[0]["name"], "source_column": columns[both[0]["place"]]}
        row |= {"target_name": both[1]["name"], "target_column": columns[both[1]["place"]], "parts": shown + more}
        for name, value in row.items():
            values[name].append(printable(value) if isinstance(value, str) else value)
    return dict(values) or {name: [] for name in _LINE_NAMES}


def _figure(graph: nx.DiGraph, page: Page, theme: Theme, sources: tuple[Any, Any]) -> Any:
    """Return the picture with its tools."""
    plotting, models = (import_optional(f"bokeh.{name}", "pictures") for name in ("plotting", "models"))
    neurons, lines = sources
    ranges = {"x_range": models.Range1d(0, page.width), "y_range": models.Range1d(0, page.height)}
    size = {"width": round(_PIXELS * page.width), "height": round(_PIXELS * page.height)}
    figure = plotting.figure(tools="pan,wheel_zoom,reset,save", active_scroll="wheel_zoom", **ranges, **size)
    figure.axis.visible = figure.grid.visible = False
    figure.background_fill_color = figure.border_fill_color = theme.page
    figure.outline_line_color = None
    _draw_columns(figure, graph, page, theme)
    drawn = figure.multi_line(
        "xs", "ys", source=lines, color="colour", line_width="width", line_alpha="alpha", line_dash="dash"
    )
    look = {"fill_color": "colour", "line_color": None, "fill_alpha": "alpha", "angle": "angle", "size": "tip"}
    figure.scatter("tip_x", "tip_y", source=lines, marker="triangle", **look)
    shape = {"width": "width", "height": "height", "border_radius": 7, "line_width": "border", "line_dash": "dash"}
    boxes = figure.rect("x", "y", source=neurons, fill_color="fill", line_color="edge", alpha="alpha", **shape)
    boxes.nonselection_glyph = boxes.glyph
    font = {"text_align": "center", "text_baseline": "middle", "text_color": "word", "text_font_style": "weight"}
    words = figure.text("x", "y", "shown", source=neurons, text_font_size=f"{_LETTERS}px", text_alpha="alpha", **font)
    words.nonselection_glyph = words.glyph
    figure.add_tools(
        models.HoverTool(renderers=[boxes], tooltips=_NEURON_TIP),
        models.HoverTool(renderers=[drawn], tooltips=_LINE_TIP, line_policy="interp"),
        models.TapTool(renderers=[boxes]),
    )
    _scale_words(figure, models, page, words)
    return figure


def _draw_columns(figure: Any, graph: nx.DiGraph, page: Page, theme: Theme) -> None:
    """Draw the boxes of the columns and their names."""
    places = [page.centre({"place": place, "row": 0})[0] for place in range(len(graph.graph["columns"]))]
    middle, height = (page.foot + page.top) / 2, page.top - page.foot
    box = {"fill_color": theme.box, "line_color": theme.frame, "border_radius": 8}
    figure.rect(places, middle, page.box, height, **box)
    font = {"text_align": "center", "text_font_style": "bold", "text_color": theme.text, "text_font_size": "15px"}
    figure.text(places, page.top + 0.1, [_short(name) for name in graph.graph["columns"]], **font)


def _scale_words(figure: Any, models: Any, page: Page, words: Any) -> None:
    """Scale text with the drawing around it."""
    code = f"""
        const size = Math.max(3, {_LETTERS} * {page.height} / (range.end - range.start));
        for (const glyph of glyphs) glyph.text_font_size = {{value: size.toFixed(1) + "px"}};
    """
    scale = models.CustomJS(args={"range": figure.y_range, "glyphs": [words.glyph]}, code=code)
    figure.y_range.js_on_change("end", scale)
    figure.y_range.js_on_change("start", scale)


def _sampled(points: Sequence[Point]) -> _Curve:
    """Return a cubic curve as short straight lines."""
    at = np.linspace(0, 1, _POINTS)[:, None]
    a, b, c, d = (np.array(point) for point in points)
    drawn = a * (1 - at) ** 3 + 3 * b * at * (1 - at) ** 2 + 3 * c * at**2 * (1 - at) + d * at**3
    ahead = drawn[-1] - drawn[-3]
    # A triangle points upwards.
    angle = float(np.arctan2(ahead[1], ahead[0]) - np.pi / 2)
    tip = drawn[-1] - _TIP_LENGTH * ahead / max(float(np.hypot(*ahead)), 1e-9)
    x, y = np.round(drawn, 4).T.tolist()
    return _Curve(x, y, (round(float(tip[0]), 4), round(float(tip[1]), 4)), round(angle, 4))


def _short(word: str) -> str:
    # Two dollar signs would begin a formula, for which bokeh asks the network for a script.
    word = printable(word).replace("$$", "$\u200b$")
    return word if len(word) <= 14 else word[:13] + "…"


def _head(colouring: Colouring, caption: str, title: str) -> str:
    """Return the title, the legend of colours, and the omissions."""
    keys = "".join(
        f'<span style="margin-right:1.4em;white-space:nowrap"><span style="display:inline-block;width:22px;'
        f'margin-right:.4em;vertical-align:middle;{_swatch(entry)}"></span>{html.escape(entry.label)}</span>'
        for entry in colouring.legend
    )
    if colouring.scale is not None:
        scale = colouring.scale
        keys += (
            f'<span style="white-space:nowrap">{scale.label} 0 <span style="display:inline-block;width:9em;height:12px;'
            f'vertical-align:middle;background:linear-gradient(to right,{",".join(scale.stops)})"></span> '
            f"{scale.largest:.3g}</span>"
        )
    return (
        f'<h1 style="font:600 20px system-ui,sans-serif;margin:0 0 .4em">{html.escape(title)}</h1>'
        f'<p style="font:14px/1.7 system-ui,sans-serif;margin:0">{keys}</p>'
        f'<p style="font:13px/1.5 system-ui,sans-serif;margin:.3em 0;opacity:.75">{html.escape(caption)}</p>'
    )


def _swatch(entry: Entry) -> str:
    style = "dashed" if entry.dashed else "solid"
    if entry.edge is None:
        return f"border-top:3px {style} {entry.colour};height:0"
    return f"background:{entry.colour};border:1px {style} {entry.edge};height:12px;border-radius:3px"


_HINT = (
    '<p style="margin:0 0 .6em"><b>Scroll</b> to zoom, <b>drag</b> to move, <b>point</b> at a neuron or a connection '
    "to read about it.</p><p><b>Tap a neuron</b> to follow what it sends; tap one of its targets to go on.</p>"
)
_TIP = '<div style="max-width:22em;font:13px/1.5 system-ui,sans-serif">%s</div>'
_NEURON_TIP = _TIP % (
    "<b>@name</b> (@kind)<br>column <b>@column</b><br>"
    "sends @sends shown connections, strength @sent{0,0.0}<br>receives @receives, strength @received{0,0.0}"
)
_LINE_TIP = _TIP % (
    "<b>@source_name</b> [@source_column] → <b>@target_name</b> [@target_column]<br>"
    "strength @strength{0,0.0}<br>segment/branch: @parts"
)
_LINE_NAMES = (
    *("xs", "ys", "tip_x", "tip_y", "angle", "colour", "width", "tip", "usual", "alpha", "dash", "source", "target"),
    *("strength", "source_name", "source_column", "target_name", "target_column", "parts"),
)
