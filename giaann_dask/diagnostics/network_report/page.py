"""Write the page of a report: one file for the screen, light and dark, and for print.

Each section shows what applies to the network's profile.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from giaann_dask.diagnostics.evaluation_report import evaluation_body
from giaann_dask.diagnostics.network_report.charts import (
    as_svg,
    draw_columns,
    draw_degrees,
    draw_density_pictures,
    draw_growth,
    draw_regions,
    draw_strengths,
    short_count,
    style_variables,
)
from giaann_dask.diagnostics.network_report.gathering import Gathered, Hub, gather
from giaann_dask.diagnostics.pictures.files import check_suffix
from giaann_dask.local_files import local_path
from giaann_dask.models.columns.evaluation.evaluation import EvaluationReport
from giaann_dask.models.words.score_report import ScoreReport
from giaann_dask.printable import printable, xml_text
from giaann_dask.representations import format_bytes
from giaann_dask.storage import write_file
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace

if TYPE_CHECKING:
    from distributed import Client

_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ {light} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{head}
</header>
{body}
</body>
</html>
"""


class Section(NamedTuple):
    """A part of the page: anchor, title and HTML."""

    name: str
    title: str
    content: str


@dataclass(frozen=True, eq=False)
class NetworkReport:
    """A report on a network.

    Attributes
    ----------
    title : str
        Of the page.
    gathered : Gathered
        What was counted.
    evaluation : EvaluationReport, ScoreReport or None
        Accuracy, where inputs were given.
    html : str
        The page.
    """

    title: str
    gathered: Gathered
    evaluation: EvaluationReport | ScoreReport | None
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
    evaluation: EvaluationReport | ScoreReport | None = None,
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
    evaluation : EvaluationReport or ScoreReport, optional
        Accuracy to show.
    """
    gathered = gather(store, reader, client)
    title = f"Network {reader.path.name}"
    sections = list(_sections(reader, gathered, evaluation))
    links = "".join(f'<a href="#{section.name}">{section.title}</a>' for section in sections)
    body = "\n".join(f'<section id="{s.name}">\n<h2>{s.title}</h2>\n{s.content}\n</section>' for s in sections)
    page = _PAGE.format(
        title=html.escape(printable(title)),
        light=style_variables(dark=False),
        dark=style_variables(dark=True),
        style=_STYLE,
        head=f"{_head(reader, gathered)}\n<nav>{links}</nav>",
        body=body,
    )
    return NetworkReport(title, gathered, evaluation, xml_text(page))


def _head(reader: CommitReader, gathered: Gathered) -> str:
    """Return the commit, the rules and the sizes."""
    manifest = gathered.manifest
    rules = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in manifest.specification.describe().items())
    values = {
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
    cards = "".join(f'<div class="card"><b>{v}</b><span>{k}</span></div>' for k, v in values.items() if v)
    inexact = (
        "" if manifest.exact else "<p>Connections that two runs have are counted twice: training is under way.</p>"
    )
    return (
        f'<p class="quiet">Profile {manifest.specification.profile}, commit <code>{html.escape(gathered.commit)}</code>'
        f'</p><div class="cards">{cards}</div>{inexact}<details><summary class="quiet">Rules of training</summary>'
        f"<p>{html.escape(rules)}</p></details>"
    )


def _sections(
    reader: CommitReader, gathered: Gathered, evaluation: EvaluationReport | ScoreReport | None
) -> Iterator[Section]:
    """Yield the sections that apply to the network."""
    specification, figures = gathered.manifest.specification, gathered.figures
    words = not specification.traits.columns
    yield _growth(gathered)
    if figures is not None and figures.connections:
        names = ("context", "word") if words else ("neuron", "neuron")
        degrees = as_svg(draw_degrees(figures, names), "degrees", "Share of neurons by their connections")
        what = "A context is a source, a word a target. " if words else ""
        told = f"{what}Both axes are logarithmic: a straight line is a power law."
        yield Section("degrees", "Degrees", _figure(degrees, told))
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
        yield Section("strengths", kind, _figure(strengths, told))
        yield _hubs(gathered)
    yield _regions(gathered)
    if evaluation is not None:
        yield Section("accuracy", "Accuracy", _accuracy(evaluation))
    if words:
        told = f"A network of profile {specification.profile} counts words: it has no columns and neurons to draw."
        yield Section("drawings", "Drawings", f"<p>{told}</p>")
    elif figures is not None and figures.connections:
        yield from _drawings(reader, gathered)


def _growth(gathered: Gathered) -> Section:
    # A network begins with a commit of nothing.
    growth = [manifest for manifest in gathered.growth if manifest.sequences] or gathered.growth
    if len(growth) > 1:
        told = f"Each dot is a commit; {len(growth)} of {gathered.commits:,} are shown."
        content = _figure(as_svg(draw_growth(growth), "growth", "Sizes over commits"), told)
    else:
        content = "<p>All of it was counted in one commit; growth shows from the second one on.</p>"
    rows = [
        (f"{m.sequences:,}", f"{m.tokens:,}", f"{m.saved_concepts:,}", f"{m.saved_features:,}", f"{m.connections:,}")
        for m in growth[-8:]
    ]
    heads = ("sequences", "tokens", "concepts", "features", "connections")
    return Section("growth", "Growth", content + _table(heads, rows))


def _hubs(gathered: Gathered) -> Section:
    words = not gathered.manifest.specification.traits.columns
    tables = [
        ("Columns", ("from", "to"), gathered.columns),
        ("Neurons that send most", ("from",), gathered.senders),
        ("Words that follow most" if words else "Neurons that receive most", ("to",), gathered.receivers),
    ]
    weight = "counts" if words else "strength"
    content = "".join(_hub_table(title, ends, hubs, weight) for title, ends, hubs in tables if hubs)
    told = (
        "“to” counts the contexts that a word follows, “counts” adds up how often."
        if words
        else "Ordered by the sum of strengths; “from” and “to” count connections."
    )
    return Section("hubs", "Hubs", f'<p class="quiet">{told}</p><div class="tables">{content}</div>')


def _hub_table(title: str, ends: tuple[str, ...], hubs: Sequence[Hub], weight: str) -> str:
    largest = max(hub.strength for hub in hubs)
    rows = []
    for hub in hubs:
        of = f' <span class="of">[{html.escape(printable(hub.column))}]</span>' if hub.column else ""
        bar = f'<span class="share" style="width:{100 * hub.strength / largest:.1f}%"></span>'
        counts = [f"{hub.sent if end == 'from' else hub.received:,}" for end in ends]
        rows.append((f"{html.escape(printable(hub.name))}{of}{bar}", *counts, short_count(hub.strength)))
    return f"<div><h3>{title}</h3>{_table(('', *ends, weight), rows)}</div>"


def _regions(gathered: Gathered) -> Section:
    regions, total = gathered.regions, max(sum(r.connections for r in gathered.regions), 1)
    largest = max((region.connections for region in regions), default=0)
    share, times = 100 * largest / total, largest * len(regions) / total
    told = (
        f"{len(regions)} regions in {sum(r.runs for r in regions)} runs; the largest holds {share:.1f} % of the "
        f"connections, {times:.2f} times the average."
    )
    return Section("regions", "Regions", _figure(as_svg(draw_regions(regions), "regions", "Sizes of regions"), told))


def _accuracy(evaluation: EvaluationReport | ScoreReport) -> str:
    if isinstance(evaluation, ScoreReport):
        return evaluation.summary().html()
    return "\n".join(evaluation_body(evaluation, lambda figure: as_svg(figure, "accuracy-chart", "Accuracy")))


def _drawings(reader: CommitReader, gathered: Gathered) -> Iterator[Section]:
    assert gathered.figures is not None
    concepts = reader.manifest().concepts
    told = "Each cell is a square of neighbouring columns; the scale of connections is logarithmic."
    yield Section("density", "All connections", _figure(draw_density_pictures(gathered.figures, concepts), told))
    drawn = draw_columns(reader, gathered.figures)
    content = "".join(f"<h3>{d.title}</h3>{_figure(d.content, d.caption)}" for d in drawn)
    yield Section("drawings", "Best connected columns", content)


def _figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
