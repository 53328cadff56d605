"""Write the page of a report: one file for the screen, light and dark, and for print.

Each section shows what applies to the network's profile. Its charts are SVG whose colours follow the page: growth,
degrees, strengths, segments and regions by matplotlib, the best connected columns in several colours, and the density
of the network.
"""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from giaann_dask.diagnostics.evaluation_report import accuracy_values, render
from giaann_dask.diagnostics.network_report.gathering import (
    STRENGTH_EDGES,
    Degrees,
    Figures,
    Hub,
    RegionSize,
    ReportData,
    gather,
)
from giaann_dask.diagnostics.pictures.density import Density, plot_density
from giaann_dask.diagnostics.pictures.draw_options import DrawOptions, check_suffix, rendered
from giaann_dask.diagnostics.pictures.drawing import caption_of, draw_graph
from giaann_dask.diagnostics.pictures.layout import Words, choose_graph
from giaann_dask.diagnostics.pictures.schemes import DARK, LIGHT, Theme, colour_graph, theme_of
from giaann_dask.local_files import local_path
from giaann_dask.models import model_of
from giaann_dask.models.columns.export import read_columns
from giaann_dask.models.results import EvaluationReport
from giaann_dask.representations import format_bytes
from giaann_dask.spec import Specification
from giaann_dask.storage import write_file
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
# Columns among which the ones to draw are chosen: the strongest, whose connections are held at once.
_CONSIDERED = 48
_OPTIONS = DrawOptions(max_columns=5, max_features=7, max_connections=90, width_inches=11)
# Of light pages; the page names the same of dark ones.
_VARIABLES = {getattr(LIGHT, name): name for name in Theme._fields if name not in ("page", "mark")}
_WIDTH = 10.5
_LINES = {"-": "", "--": " (dashed)", ":": " (dotted)"}


class HubTable(NamedTuple):
    """A table of hubs, which also counts those that the ends name: ``from``, ``to``."""

    title: str
    ends: tuple[str, ...]
    hubs: Sequence[Hub]
    weight: str

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of its columns."""
        return ("", *self.ends, self.weight)

    @property
    def largest(self) -> float:
        """The largest strength."""
        return max(hub.strength for hub in self.hubs)

    def counts(self, hub: Hub) -> list[str]:
        """Return the cells of a hub after its name."""
        return [*(f"{hub.sent if end == 'from' else hub.received:,}" for end in self.ends), short_count(hub.strength)]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page: anchor, title and what the template shows in it, in this order."""

    name: str
    title: str
    text: str = ""
    quiet: bool = False
    drawings: Sequence[Drawing] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    hubs: Sequence[HubTable] = ()


@dataclass(frozen=True, eq=False)
class NetworkReport:
    """A report on a network.

    Attributes
    ----------
    title : str
        Of the page.
    gathered : ReportData
        What was counted.
    evaluation : EvaluationReport or None
        Accuracy, where inputs were given.
    html : str
        The page.
    """

    title: str
    gathered: ReportData
    evaluation: EvaluationReport | None
    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page; the same report gives the same bytes.

        Raises
        ------
        OptionError
            If the name does not end in ``.html``.
        StoreWriteError
            If the disk is full.
        """
        path = local_path(path)
        check_report_path(path)
        return write_file(path, self.html, "the report")

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks."""
        page = html.escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:720px;border:1px solid #8884"></iframe>'


def check_report_path(path: Path) -> None:
    """Raise an OptionError when no report can be written under a name."""
    check_suffix(path, (".html",))


def report_network(
    store: NetworkStore,
    reader: CommitReader,
    *,
    client: Client | None = None,
    evaluation: EvaluationReport | None = None,
) -> NetworkReport:
    """Make a report on a commit.

    Parameters
    ----------
    store : NetworkStore
        Of the network, for its earlier commits.
    reader : CommitReader
        The commit, of any profile.
    client : Client, optional
        Of a cluster that counts the regions; without one this process does, one after the other.
    evaluation : EvaluationReport, optional
        Accuracy to show.
    """
    gathered = gather(store, reader, client)
    manifest, title = gathered.manifest, f"Network {reader.path.name}"
    rules = manifest.specification.describe()
    values = {}
    if evaluation is not None:
        values = accuracy_values(evaluation, lambda figure: as_svg(figure, "accuracy-chart", "Accuracy"))
    page = render(
        "network.html",
        title=title,
        light=style_variables(dark=False),
        dark=style_variables(dark=True),
        style=Markup(_STYLE),
        manifest=manifest,
        commit=gathered.commit,
        cards=_cards(reader, gathered),
        training_rules=", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rules.items()),
        sections=list(_sections(reader, gathered, evaluation is not None)),
        **values,
    )
    return NetworkReport(title, gathered, evaluation, page)


def _cards(reader: CommitReader, gathered: ReportData) -> dict[str, str]:
    """Return the sizes, those that the network does not have empty."""
    manifest = gathered.manifest
    return {
        "connections": f"{manifest.connections:,}",
        "neurons": f"{manifest.neurons:,}" if manifest.neurons else "",
        "concept columns": f"{manifest.saved_concepts:,}" if manifest.saved_concepts else "",
        "words": f"{manifest.saved_features - 1:,}",
        "sequences, trained": f"{manifest.trained:,}",
        "sequences, skipped": f"{manifest.sequences - manifest.trained:,}",
        "tokens": f"{manifest.tokens:,}",
        "commits": f"{gathered.commits:,}",
        "runs, compressed": format_bytes(sum(run.nbytes for run in manifest.runs)),
        "on disk, all commits": format_bytes(StorePlace(str(reader.path)).size()),
    }


def _sections(reader: CommitReader, gathered: ReportData, evaluated: bool) -> Iterator[Section]:
    """Yield the sections that apply to the network."""
    specification, figures = gathered.manifest.specification, gathered.figures
    words = not specification.traits.columns
    yield _growth(gathered)
    if figures is not None and figures.connections:
        names = ("context", "word") if words else ("neuron", "neuron")
        degrees = as_svg(draw_degrees(figures, names), "degrees", "Share of neurons by their connections")
        what = "A context is a source, a word a target. " if words else ""
        told = f"{what}Both axes are logarithmic: a straight line is a power law."
        yield Section(name="degrees", title="Degrees", drawings=[Drawing("", degrees, told)])
        quantiles = [figures.quantile(share) for share in (0.5, 0.99)]
        # Counts are whole numbers.
        middle = [f"{math.floor(q):,}" if words else f"{q:,.3g}" for q in quantiles]
        kind = "Counts" if words else "Strengths"
        what = "counted" if words else "of a strength of"
        told = f"Half of the connections are {what} at most about {middle[0]}, 99 % at most about {middle[1]}."
        if not words:
            share = figures.inside / figures.connections
            told += f" {100 * share:.1f} % of the connections lie inside a column. Blue: segments of columns."
        strengths = as_svg(draw_strengths(figures, specification), "strengths", f"{kind} of connections")
        yield Section(name="strengths", title=kind, drawings=[Drawing("", strengths, told)])
        yield _hubs(gathered)
    yield _regions(gathered)
    if evaluated:
        yield Section(name="accuracy", title="Accuracy")
    if words:
        told = f"A network of profile {specification.profile} counts words: it has no columns and neurons to draw."
        yield Section(name="drawings", title="Drawings", text=told)
    elif figures is not None and figures.connections:
        yield from _drawings(reader, gathered)


def _growth(gathered: ReportData) -> Section:
    # A network begins with a commit of nothing.
    growth = [manifest for manifest in gathered.growth if manifest.sequences] or gathered.growth
    told, drawings = "All of it was counted in one commit; growth shows from the second one on.", []
    if len(growth) > 1:
        caption = f"Each dot is a commit; {len(growth)} of {gathered.commits:,} are shown."
        told, drawings = "", [Drawing("", as_svg(draw_growth(growth), "growth", "Sizes over commits"), caption)]
    rows = [
        (f"{m.sequences:,}", f"{m.tokens:,}", f"{m.saved_concepts:,}", f"{m.saved_features:,}", f"{m.connections:,}")
        for m in growth[-8:]
    ]
    heads = ("sequences", "tokens", "concepts", "features", "connections")
    return Section(name="growth", title="Growth", text=told, drawings=drawings, heads=heads, rows=rows)


def _hubs(gathered: ReportData) -> Section:
    words = not gathered.manifest.specification.traits.columns
    weight = "counts" if words else "strength"
    tables = [
        HubTable("Columns", ("from", "to"), gathered.columns, weight),
        HubTable("Neurons that send most", ("from",), gathered.senders, weight),
        HubTable(
            "Words that follow most" if words else "Neurons that receive most", ("to",), gathered.receivers, weight
        ),
    ]
    told = (
        "“to” counts the contexts that a word follows, “counts” adds up how often."
        if words
        else "Ordered by the sum of strengths; “from” and “to” count connections."
    )
    return Section(name="hubs", title="Hubs", text=told, quiet=True, hubs=[each for each in tables if each.hubs])


def _regions(gathered: ReportData) -> Section:
    regions, total = gathered.regions, max(sum(r.connections for r in gathered.regions), 1)
    largest = max((region.connections for region in regions), default=0)
    share, times = 100 * largest / total, largest * len(regions) / total
    told = (
        f"{len(regions)} regions in {sum(r.runs for r in regions)} runs; the largest holds {share:.1f} % of the "
        f"connections, {times:.2f} times the average."
    )
    sizes = as_svg(draw_regions(regions), "regions", "Sizes of regions")
    return Section(name="regions", title="Regions", drawings=[Drawing("", sizes, told)])


def _drawings(reader: CommitReader, gathered: ReportData) -> Iterator[Section]:
    assert gathered.figures is not None
    told = "Each cell is a square of neighbouring columns; the scale of connections is logarithmic."
    picture = draw_density_pictures(gathered.figures, reader.manifest().concepts)
    yield Section(name="density", title="All connections", drawings=[Drawing("", picture, told)])
    yield Section(name="drawings", title="Best connected columns", drawings=draw_columns(reader, gathered.figures))


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
            titles[place].append(f"{name.removeprefix('saved_')}{_LINES[style]}")
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
