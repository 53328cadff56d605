"""Draw the difference of two networks: how many connections changed, and the largest changes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.algebra.comparison import KINDS, NetworkDifference
from giaann_dask.diagnostics.pictures.schemes import LIGHT
from giaann_dask.keywords import names_keywords
from giaann_dask.representations import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of new, gone, stronger and weaker connections; told apart with any kind of colour blindness.
_COLOURS = dict(zip(KINDS, ("#0072b2", "#d55e00", "#56b4e9", "#e69f00"), strict=True))
_NAME = 44


@names_keywords
def draw_difference(difference: NetworkDifference) -> Figure:
    """Return a picture of a difference.

    Parameters
    ----------
    difference : NetworkDifference
        Result of `giaann_dask.diff`.

    Returns
    -------
    matplotlib.figure.Figure
        At the left how many connections are new, gone, stronger, weaker and equal, on a logarithmic axis; at the right
        the largest changes, those of one kind together, the largest first. `save_figure` of
        `giaann_dask.diagnostics.pictures.draw_options` writes it.
    """
    from matplotlib.figure import Figure

    shown = difference.largest
    figure = Figure(figsize=(11, 1.6 + max(2.0, 0.24 * len(shown))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    counts = difference.connections
    left.barh(list(counts), list(counts.values()), color=[_COLOURS.get(kind, LIGHT.faint) for kind in counts])
    for place, count in enumerate(counts.values()):
        left.text(max(count, 1), place, f" {count:,}", va="center", size=8, color=LIGHT.text)
    left.set_xscale("symlog", linthresh=1)
    left.set_xlim(0, 12 * max(1, *counts.values()))
    left.set_title("connections", loc="left", size=11)
    names = [f"{_short(each.source)} \N{RIGHTWARDS ARROW} {_short(each.target)}" for each in shown]
    right.barh(range(len(shown)), [each.change for each in shown], color=[_COLOURS[each.kind] for each in shown])
    right.set_yticks(range(len(shown)), names, size=7, parse_math=False)
    right.axvline(0, color=LIGHT.faint, linewidth=0.8)
    right.set_title("largest changes of strength", loc="left", size=11)
    for axes in (left, right):
        _arrange(axes)
    figure.suptitle(
        f"{_short(difference.new)} against {_short(difference.old)}", x=0.01, ha="left", size=9, parse_math=False
    )
    return figure


def _arrange(axes: Axes) -> None:
    axes.invert_yaxis()
    axes.tick_params(colors=LIGHT.text, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _short(name: str) -> str:
    """Return a name that fits into the picture; of a path its end."""
    name = printable(name)
    return name if len(name) <= _NAME else f"\N{HORIZONTAL ELLIPSIS}{name[-_NAME:]}"
