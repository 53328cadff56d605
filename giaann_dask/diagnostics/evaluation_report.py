"""Write the report of an evaluation as one HTML page or one picture.

The picture shows accuracy by position in the sequence and by part of speech; the page embeds it beside all figures.
The figures are computed by `giaann_dask.models.columns.evaluation`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from giaann_dask.diagnostics.pictures.draw_options import SUFFIXES, rendered, save_figure
from giaann_dask.errors import OptionError
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import local_path
from giaann_dask.models.columns.evaluation.accuracy import StepGroup
from giaann_dask.models.results import EvaluationReport
from giaann_dask.representations import bar, printable, xml_text
from giaann_dask.storage import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT_SUFFIXES = (".html", *SUFFIXES)

# From dark to light, for growing k.
_SHADES = ("#1f5f99", "#3b82c4", "#6aa7dc", "#9cc6ea", "#c7dff4")
_INK, _FAINT = "#1c2430", "#66727f"
_LEAST_SCALE = 0.05


def draw_evaluation(report: EvaluationReport) -> Figure:
    """Draw the accuracy of an evaluation by position in the sequence and by part of speech.

    Parameters
    ----------
    report : EvaluationReport
        From `giaann_dask.api.network.Network.evaluate`.

    Returns
    -------
    matplotlib.figure.Figure
        Made without pyplot, so that no window opens. Bars of growing k lie one behind the other; a bar
        beside them is the share of steps without candidates.
    """
    from matplotlib.figure import Figure

    accuracy = report.groups()
    assert accuracy is not None, "checked before"
    rows = max(len(accuracy.by_position), len(accuracy.by_part), 1)
    figure = Figure(figsize=(11, 1.6 + 0.32 * rows), dpi=120, facecolor="#fff", layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_groups(left, accuracy.by_position, accuracy.top_k, "index of the token in its sequence")
    _draw_groups(right, accuracy.by_part, accuracy.top_k, "part of speech of the token")
    *handles, bare = left.get_legend_handles_labels()[0]
    handles = [*reversed(handles), bare]
    labels = [handle.get_label() for handle in handles]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, labelcolor=_INK)
    overall = ", ".join(f"top-{k} {accuracy.overall.share(k):.4f}" for k in accuracy.top_k)
    protocol = report.rules()["protocol"]
    figure.suptitle(
        f"{overall}; {protocol}, {report.prediction_tokens:,} tokens, commit {report.commit}", color=_INK, size=11
    )
    return figure


@names_keywords
def save_report(report: EvaluationReport, path: str | Path, *, notes: Sequence[str] = ()) -> Path:
    """Write the report of an evaluation; the same report gives the same bytes.

    Parameters
    ----------
    report : EvaluationReport
        From `giaann_dask.api.network.Network.evaluate`.
    path : str or Path
        ``.html`` for one page that needs no other file, ``.png``, ``.svg`` or ``.pdf`` for the picture
        alone; its folder is made where it is missing.
    notes : sequence of str
        Lines that the page shows below the figures, as of `giaann_dask.models.words.score_report.Baseline`.

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
    path = local_path(path)
    check_report_name(path, groups=report.groups() is not None)
    if path.suffix.lower() != ".html":
        return save_figure(draw_evaluation(report), path)
    return write_file(path, evaluation_page(report, notes), "the report")


def check_report_name(path: Path, *, groups: bool) -> None:
    """Raise an OptionError when no report can be written under a name.

    Parameters
    ----------
    path : Path
        The name.
    groups : bool
        Whether the evaluation has groups of steps, which a picture shows.
    """
    suffixes = REPORT_SUFFIXES if groups else REPORT_SUFFIXES[:1]
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"the report {path}", f"a name that ends in {', '.join(suffixes)}", "rename it")


def evaluation_page(report: EvaluationReport, notes: Sequence[str] = ()) -> str:
    """Return the report of an evaluation as one HTML page, its picture and style inside, with further lines."""

    def picture(figure: Figure) -> str:
        content = base64.b64encode(rendered(figure, "png")).decode("ascii")
        return f'<img alt="Accuracy by place and by part of speech" src="data:image/png;base64,{content}">'

    values = accuracy_values(report, picture) | {"notes": [printable(each) for each in notes]}
    return render("evaluation.html", title="Evaluation of a GIAANN network", **values)


def accuracy_values(report: EvaluationReport, picture: Callable[[Figure], str]) -> dict[str, Any]:
    """Return what the template ``accuracy.html`` shows: rules, a picture, and tables by place and part of speech.

    Parameters
    ----------
    report : EvaluationReport
        From `giaann_dask.api.network.Network.evaluate`.
    picture : callable
        Returns a figure as HTML.
    """
    values = {
        "report": report,
        "rules": ", ".join(f"{name} {value}" for name, value in report.rules().items()),
        "skipped": ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in report.omitted().items()),
        "picture": "",
        "tables": [],
        "notes": [],
    }
    if (accuracy := report.groups()) is not None:
        values |= {
            "picture": Markup(picture(draw_evaluation(report))),
            "tables": [
                ("By the index of the token in its sequence, counted from 0", accuracy.by_position),
                ("By the part of speech of the token", accuracy.by_part),
            ],
            "heads": ["", *(f"top-{k}" for k in accuracy.top_k), "without candidates", "steps"],
            "top_k": accuracy.top_k,
        }
    return values


def render(template: str, **values: Any) -> str:
    """Return a page of a template in ``diagnostics/templates``.

    Values are escaped, for HTML and where a terminal or a page would obey them (`giaann_dask.representations`).
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("giaann_dask.diagnostics"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    return xml_text(environment.get_template(template).render(bar=bar, **values))


def _draw_groups(axes: Axes, groups: Sequence[StepGroup], top_k: Sequence[int], title: str) -> None:
    """Draw one bar a group, the first group on top."""
    places = range(len(groups))
    # The widest bar first, so that those of smaller k lie on it.
    for number, k in sorted(enumerate(top_k), reverse=True):
        shares = [group.share(k) for group in groups]
        shade = _SHADES[min(number, len(_SHADES) - 1)]
        axes.barh(places, shares, height=0.62, color=shade, label=f"top-{k}", zorder=2)
    bare = [group.share_without_candidates for group in groups]
    axes.barh(
        [place + 0.4 for place in places], bare, height=0.12, color="#d9731a", label="without candidates", zorder=2
    )
    for place, group in enumerate(groups):
        share = f"{100 * group.share(top_k[0]):.1f} % of {group.steps:,}"
        widest = max(group.share(top_k[-1]), _LEAST_SCALE / 5)
        axes.text(widest, place, f" {share}", va="center", size=8, color=_FAINT, zorder=3)
    axes.set_yticks(list(places), [group.name for group in groups])
    axes.invert_yaxis()
    axes.set_xlim(0, max(_LEAST_SCALE, *bare, *(1.3 * group.share(top_k[-1]) for group in groups), 0))
    axes.set_xticks([share for share in axes.get_xticks() if share <= 1])
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.set_title(title, size=10, color=_INK, loc="left")
    axes.tick_params(colors=_FAINT, labelcolor=_INK, length=0)
    axes.grid(axis="x", color="#e3e7ec", zorder=0)
    for side in axes.spines.values():
        side.set_visible(False)
