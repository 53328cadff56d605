"""Draw the charts and drawings of a report, as SVG whose colours follow the page.

Growth, degrees, strengths, segments and regions by matplotlib, the best connected columns in several colours, and the
density of the network. `page` puts them together.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from giaann_dask.diagnostics.network_report.counting import STRENGTH_EDGES, Degrees, Figures
from giaann_dask.diagnostics.network_report.gathering import RegionSize
from giaann_dask.diagnostics.pictures.choosing import Words, choose_graph
from giaann_dask.diagnostics.pictures.density import Density, plot_density
from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.diagnostics.pictures.drawing import caption_of, draw_graph
from giaann_dask.diagnostics.pictures.files import rendered
from giaann_dask.diagnostics.pictures.schemes import DARK, LIGHT, Theme, colour_graph, theme_of
from giaann_dask.models import model_of
from giaann_dask.models.columns.scanning import read_columns
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Of light pages; the page names the same of dark ones.
_VARIABLES = {getattr(LIGHT, name): name for name in Theme._fields if name not in ("page", "mark")}
_WIDTH = 10.5
_STYLES = {"-": "", "--": " (dashed)", ":": " (dotted)"}


def style_variables(dark: bool) -> str:
    """Return the colours of charts and drawings as variables of a style sheet."""
    theme = DARK if dark else LIGHT
    return "; ".join(f"--{name}: {getattr(theme, name)}" for name in Theme._fields)


def as_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an SVG element of a page.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Drawn in the colours of `LIGHT`, which become variables of the page.
    name : str
        Unlike that of any other figure of the page: identifiers begin with it.
    label : str
        What the figure shows, for those who do not see it.
    """
    figure.patch.set_visible(False)
    text = rendered(figure, "svg", text=True).decode()
    text = text[text.index("<svg") :]
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    # Without a width of its own it is as wide as its place.
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {box[0]} {names} role="img" aria-label="{html.escape(label)}"'
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    for before, after in ((r' id="', f' id="{name}-'), (r'href="#', f'href="#{name}-'), (r"url\(#", f"url(#{name}-")):
        rest = re.sub(before, after, rest)
    for colour, variable in _VARIABLES.items():
        rest = rest.replace(colour, f"var(--{variable})")
    return Markup(f"{head}>{rest}")


def draw_growth(growth: Sequence[Manifest]) -> Figure:
    """Draw the sizes of a network over the sequences that its commits had counted."""
    figure, axes = _subplots(2, 3.0)
    sequences = [manifest.sequences for manifest in growth]
    lines = (
        *(("connections", 0, LIGHT.external, "-"), ("neurons", 1, LIGHT.internal, "-")),
        *(("saved_concepts", 1, LIGHT.prime, "--"), ("saved_features", 1, LIGHT.text, ":")),
    )
    titles: tuple[list[str], list[str]] = ([], [])
    for name, place, colour, style in lines:
        values = [getattr(manifest, name) for manifest in growth]
        # A model of words has words alone.
        if any(values):
            look = {"marker": "o", "markersize": 3.5, "linewidth": 1.8}
            axes[place].plot(sequences, values, color=colour, linestyle=style, **look)
            titles[place].append(f"{name.removeprefix('saved_')}{_STYLES[style]}")
    for place, title in zip(axes, titles, strict=True):
        place.set_title(", ".join(title), loc="left", size=11, color=LIGHT.text)
        place.set_xlim(left=0)
        place.set_ylim(bottom=0)
        place.set_xlabel("counted sequences", color=LIGHT.text)
        _thousands(place, "xy")
    return figure


def draw_degrees(figures: Figures, names: tuple[str, str] = ("neuron", "neuron")) -> Figure:
    """Draw which share of sources and of targets has at least so many connections, both axes logarithmic."""
    figure, axes = _subplots(2, 3.6)
    sides = (
        (axes[0], figures.out_degrees, LIGHT.external, f"outgoing connections of a {names[0]}"),
        (axes[1], figures.in_degrees, LIGHT.internal, f"incoming connections of a {names[1]}"),
    )
    for place, degrees, colour, label in sides:
        _share_above(place, degrees, colour)
        place.set_xlabel(label, color=LIGHT.text)
        text = f"mean {degrees.mean:,.1f}\nmedian {degrees.median:,}\nlargest {int(degrees.degree.max(initial=0)):,}"
        place.text(0.04, 0.06, text, transform=place.transAxes, va="bottom", size=9, color=LIGHT.text)
    axes[0].set_ylabel("share with at least as many", color=LIGHT.text)
    return figure


def draw_strengths(figures: Figures, specification: Specification) -> Figure:
    """Draw how many connections are how strong, and on which segments or in which kinds of contexts they are."""
    counts = not specification.traits.columns
    kinds = len(figures.by_segment) if counts else specification.segments
    figure, axes = _subplots(2, max(3.4, 0.22 * np.count_nonzero(figures.by_segment[:kinds]) + 0.8))
    left, right = axes
    used = np.flatnonzero(figures.by_strength)
    low, high = int(used[0]), int(used[-1]) + 1
    left.stairs(figures.by_strength[low:high], STRENGTH_EDGES[low : high + 1], fill=True, color=LIGHT.external)
    left.set(xscale="log", yscale="log")
    left.set_xlabel("count" if counts else "strength", color=LIGHT.text)
    left.set_ylabel("connections", color=LIGHT.text)
    segments = [at for at in range(kinds) if figures.by_segment[at]]
    named = model_of(specification).names(specification, Vocabulary()).segments
    names = [named[at] if counts else f"{at}: {named[at]}" for at in segments]
    columns = specification.column_segments
    shades = [LIGHT.internal if not counts and at < columns else LIGHT.external for at in segments]
    right.barh(range(len(segments)), figures.by_segment[segments], color=shades, height=0.68)
    right.set_yticks(range(len(segments)), names, size=8)
    right.invert_yaxis()
    right.set_xlabel(f"connections by {'kind of context' if counts else 'segment'}", color=LIGHT.text)
    right.grid(axis="y", visible=False)
    _thousands(right, "x")
    return figure


def draw_regions(regions: Sequence[RegionSize]) -> Figure:
    """Draw the connections and the bytes of every region."""
    figure, axes = _subplots(2, 2.6)
    sides = ((axes[0], "connections", 1, LIGHT.external), (axes[1], "MiB, compressed", 1 << 20, LIGHT.internal))
    for place, label, unit, colour in sides:
        values = [region.connections if unit == 1 else region.nbytes / unit for region in regions]
        place.bar(range(len(regions)), values, color=colour, width=0.72)
        place.axhline(sum(values) / max(len(values), 1), color=LIGHT.faint, linewidth=1, linestyle="--")
        place.set_xlabel("region (dashed: the average)", color=LIGHT.text)
        place.set_title(label, loc="left", size=11, color=LIGHT.text)
        every = -(-len(regions) // 16)
        shown = range(0, len(regions), every)
        place.set_xticks(shown, [str(regions[at].region) for at in shown])
        place.grid(axis="x", visible=False)
        _thousands(place, "y")
    return figure


def _share_above(axes: Axes, degrees: Degrees, colour: str) -> None:
    """Draw the share of neurons with at least each degree."""
    above = np.cumsum(degrees.neurons[::-1])[::-1] / max(int(degrees.neurons.sum()), 1)
    axes.step(degrees.degree, above, where="post", color=colour, linewidth=1.8)
    axes.set(xscale="log", yscale="log")


def _subplots(count: int, height: float) -> tuple[Figure, Any]:
    """Return a figure with adjacent subplots, in the style of the page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(1, count)
    for place in axes:
        place.set_facecolor("none")
        place.tick_params(colors=LIGHT.faint, labelcolor=LIGHT.text, labelsize=9, which="both", length=0)
        place.grid(color=LIGHT.frame, linewidth=0.7)
        place.set_axisbelow(True)
        for side in place.spines.values():
            side.set_visible(False)
    return figure, axes


def _thousands(axes: Axes, which: str) -> None:
    """Write numbers short: 2k, 1.5M."""
    for name in which:
        getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: short_count(value))


def short_count(value: float) -> str:
    """Return a count in thousands, millions or milliards.

    Examples
    --------
    >>> short_count(950), short_count(1500), short_count(2e6)
    ('950', '1.5k', '2M')
    """
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


# Columns among which the ones to draw are chosen: the strongest, whose connections are held at once.
_CONSIDERED = 48
_OPTIONS = DrawOptions(max_columns=5, max_features=7, max_connections=90, width_inches=11)


class Drawing(NamedTuple):
    """A drawing as HTML, with its title and caption."""

    title: str
    content: str
    caption: str


def draw_columns(reader: CommitReader, figures: Figures) -> list[Drawing]:
    """Return drawings of the columns that are best connected, in the colour schemes that the network has.

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``, with connections.
    figures : Figures
        Of all its regions.
    """
    strength = figures.sent[1] + figures.received[1]
    considered = np.argsort(-strength, kind="stable")[:_CONSIDERED]
    table = read_columns(reader, considered.tolist())
    columns = table.best_connected(_OPTIONS.max_columns)
    graph = choose_graph(table.select_columns(columns), columns, _OPTIONS)
    graph.graph["words"] = table.features
    words = Words.of(reader)
    schemes = [("default", "Neurons and connections"), ("delimiters", "Words that end a column")]
    if words.part is not None:
        schemes.append(("parts", "What words can be"))
    drawn = []
    for colour, title in schemes:
        figure = draw_graph(graph, colour_graph(graph, LIGHT, colour, words), _OPTIONS, caption=[])
        names = ", ".join(graph.graph["columns"])
        drawn.append(Drawing(title, as_svg(figure, f"draw-{colour}", f"{title}: {names}"), caption_of(graph)))
    return drawn


def draw_density_pictures(figures: Figures, concepts: int) -> str:
    """Return the density of a network as a picture for light and one for dark pages."""
    pictures = [
        base64.b64encode(rendered(_density(figures, concepts, dark), "png")).decode("ascii") for dark in (False, True)
    ]
    light, dark = (f"data:image/png;base64,{content}" for content in pictures)
    wanted = "screen and (prefers-color-scheme: dark)"
    return Markup(
        f'<picture><source media="{wanted}" srcset="{dark}">'
        f'<img alt="Connections by source and target column" src="{light}"></picture>'
    )


def _density(figures: Figures, concepts: int, dark: bool) -> Figure:
    from matplotlib.figure import Figure

    theme = theme_of(dark)
    figure = Figure(figsize=(7.6, 6.8), dpi=130, facecolor=theme.page, layout="constrained")
    plot_density(figure.subplots(), Density(figures.density, concepts, "appearance"), theme)
    return figure
