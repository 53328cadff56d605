"""Draw a whole network as a density: the number of connections between concept columns.

Connections are counted by pairs of columns, region by region. Columns are in the order of their first appearance or by
region, and the scale is logarithmic. Matplotlib draws the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from giaann_dask.diagnostics.pictures.draw_options import DensityOptions
from giaann_dask.diagnostics.pictures.layout import require_connections
from giaann_dask.diagnostics.pictures.schemes import Theme, theme_of
from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.export import columns_of, read_regions, require_columns
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 140
# More names of regions than that would overlap.
_NAMED_REGIONS = 24


@dataclass(frozen=True, eq=False)
class Density:
    """Connections by source and target column.

    Attributes
    ----------
    counts : ndarray
        Connections by target and source cell, int64, shape ``(cells, cells)``.
    concepts : int
        Number of concept columns, which the cells share out.
    order : str
        Order of the columns.
    regions : tuple of (int, int)
        Place of the first column of every region, and its number; empty where these are not the order.
    """

    counts: Integers
    concepts: int
    order: str
    regions: tuple[tuple[int, int], ...] = ()


def count_density(reader: CommitReader, options: DensityOptions | None = None) -> Density:
    """Count the connections of pairs of columns, region by region.

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``.
    options : DensityOptions, optional
        Order of the columns, and how fine the picture is.

    Raises
    ------
    OptionError
        If the network has no columns.
    EmptyInputError
        If it has no connections.
    """
    options = options or DensityOptions()
    require_columns(reader)
    manifest = reader.manifest()
    require_connections(manifest.connections)
    concepts = manifest.saved_concepts
    regions = reader.placement().regions_of(pack_neuron(np.arange(concepts), 0))
    place = np.arange(concepts)
    begins: tuple[tuple[int, int], ...] = ()
    if options.order == "region":
        order = np.argsort(regions, kind="stable")
        place[order] = np.arange(concepts)
        held = regions[order]
        first = np.flatnonzero(np.concatenate([[True], held[1:] != held[:-1]]))
        begins = tuple(zip(first.tolist(), held[first].tolist(), strict=True))
    cells = min(options.cells, concepts)
    total = np.zeros((cells, cells), np.int64)
    for run in read_regions(reader):
        source, target = columns_of(run)
        total += count_cells(place[source], place[target], concepts, cells)
    return Density(total, concepts, options.order, begins)


def count_cells(source: Integers, target: Integers, columns: int, cells: int) -> Integers:
    """Return connections by target and source cell, int64, shape ``(cells, cells)``; cells share out the columns.

    Parameters
    ----------
    source, target : ndarray
        Place of the source and target column of each connection, int64.
    columns : int
        Number of columns.
    cells : int
        Cells along each axis, no more than columns.
    """
    if not cells:
        return np.zeros((0, 0), np.int64)
    flat = (target * cells // columns) * cells + source * cells // columns
    return np.bincount(flat, minlength=cells * cells).reshape(cells, cells)


def draw_density(density: Density, options: DensityOptions | None = None) -> Figure:
    """Draw a density as a heat map on a logarithmic scale.

    Parameters
    ----------
    density : Density
        From `count_density`.
    options : DensityOptions, optional
        Width, and light or dark.

    Returns
    -------
    matplotlib.figure.Figure
        Made without pyplot, so that no window opens.
    """
    from matplotlib.figure import Figure

    options = options or DensityOptions()
    theme, width = theme_of(options.dark), options.width_inches
    figure = Figure(figsize=(width, 0.92 * width), dpi=_DOTS_PER_INCH, facecolor=theme.page, layout="constrained")
    axes = figure.subplots()
    plot_density(axes, density, theme)
    connections, cell = int(density.counts.sum()), density.concepts / len(density.counts)
    side = "each column" if cell <= 1 else f"{cell:,.1f} columns a cell"
    axes.set_title(
        f"{connections:,} connections among {density.concepts:,} concept columns, {side}",
        size=11,
        loc="left",
        pad=12,
        color=theme.text,
    )
    return figure


def plot_density(axes: Axes, density: Density, theme: Theme) -> None:
    """Draw a density with its scale of colours into a picture."""
    import matplotlib
    from matplotlib.colors import LogNorm

    counts = np.ma.masked_equal(density.counts, 0)
    edges = (-0.5, density.concepts - 0.5)
    look: dict[str, Any] = {"origin": "lower", "extent": (*edges, *edges), "interpolation": "nearest"}
    # More is darker on a light page, and lighter on a dark one.
    dark = theme.page != "#ffffff"
    colours = matplotlib.colormaps["viridis" if dark else "viridis_r"]
    shown = axes.imshow(counts, norm=LogNorm(1, max(int(density.counts.max()), 2)), cmap=colours, **look)
    axes.set_facecolor(theme.box)
    by = "first appearance in the text" if density.order == "appearance" else "region, then first appearance"
    for name in ("x", "y"):
        label = f"{'source' if name == 'x' else 'target'} column, by {by}"
        getattr(axes, f"set_{name}label")(label, color=theme.text, size=10)
        getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: f"{value:,.0f}")
    _draw_regions(axes, density, theme)
    axes.tick_params(colors=theme.faint, labelcolor=theme.text, labelsize=9)
    for side in axes.spines.values():
        side.set_color(theme.frame)
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(shown, ax=axes, shrink=0.82, pad=0.02)
    bar.set_label("connections", color=theme.text, size=10)
    bar.ax.tick_params(colors=theme.faint, labelcolor=theme.text, labelsize=9)
    bar.outline.set_edgecolor(theme.frame)


def _draw_regions(axes: Axes, density: Density, theme: Theme) -> None:
    """Draw the borders of regions, and name them at the head."""
    begins = [first for first, _ in density.regions]
    for border in begins[1:]:
        for draw in (axes.axvline, axes.axhline):
            draw(border - 0.5, color=theme.mark, linewidth=0.6, alpha=0.8)
    if not 0 < len(begins) <= _NAMED_REGIONS:
        return
    ends = [*begins[1:], density.concepts]
    for (first, region), end in zip(density.regions, ends, strict=True):
        name = f"region {region}" if len(begins) <= 8 else str(region)
        place = ((first + end) / 2, density.concepts * 1.004)
        axes.text(*place, name, size=8, color=theme.faint, ha="center", va="bottom")
