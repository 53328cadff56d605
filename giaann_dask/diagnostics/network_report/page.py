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

from markupsafe import Markup

from giaann_dask.diagnostics.evaluation_report import accuracy_values, render
from giaann_dask.diagnostics.network_report.charts import (
    Drawing,
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
from giaann_dask.models.results import EvaluationReport
from giaann_dask.representations import format_bytes
from giaann_dask.storage import write_file
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace

if TYPE_CHECKING:
    from distributed import Client

_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


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
    gathered : Gathered
        What was counted.
    evaluation : EvaluationReport or None
        Accuracy, where inputs were given.
    html : str
        The page.
    """

    title: str
    gathered: Gathered
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


def _cards(reader: CommitReader, gathered: Gathered) -> dict[str, str]:
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


def _sections(reader: CommitReader, gathered: Gathered, evaluated: bool) -> Iterator[Section]:
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


def _growth(gathered: Gathered) -> Section:
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


def _hubs(gathered: Gathered) -> Section:
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


def _regions(gathered: Gathered) -> Section:
    regions, total = gathered.regions, max(sum(r.connections for r in gathered.regions), 1)
    largest = max((region.connections for region in regions), default=0)
    share, times = 100 * largest / total, largest * len(regions) / total
    told = (
        f"{len(regions)} regions in {sum(r.runs for r in regions)} runs; the largest holds {share:.1f} % of the "
        f"connections, {times:.2f} times the average."
    )
    sizes = as_svg(draw_regions(regions), "regions", "Sizes of regions")
    return Section(name="regions", title="Regions", drawings=[Drawing("", sizes, told)])


def _drawings(reader: CommitReader, gathered: Gathered) -> Iterator[Section]:
    assert gathered.figures is not None
    told = "Each cell is a square of neighbouring columns; the scale of connections is logarithmic."
    picture = draw_density_pictures(gathered.figures, reader.manifest().concepts)
    yield Section(name="density", title="All connections", drawings=[Drawing("", picture, told)])
    yield Section(name="drawings", title="Best connected columns", drawings=draw_columns(reader, gathered.figures))
