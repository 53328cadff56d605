"""Drawings of a report: the best connected columns in several colours, and the density of the network.

Covers: choosing columns within bounded memory, and pictures for light and dark pages. Does not cover:
pictures of their own (`giaann_dask.diagnostics.pictures`).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from giaann_dask.diagnostics.network_report.charts import as_svg
from giaann_dask.diagnostics.network_report.counting import Figures
from giaann_dask.diagnostics.pictures.choosing import Words, choose_graph
from giaann_dask.diagnostics.pictures.density import Density, plot_density
from giaann_dask.diagnostics.pictures.drawing import caption_of, draw_graph
from giaann_dask.diagnostics.pictures.files import rendered
from giaann_dask.diagnostics.pictures.options import DrawOptions
from giaann_dask.diagnostics.pictures.schemes import colour_graph
from giaann_dask.diagnostics.pictures.themes import LIGHT, theme_of
from giaann_dask.store.network_store import CommitReader
from giaann_dask.store.scanning import read_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns among which the ones to draw are chosen: the strongest, whose connections are held at once.
_CONSIDERED = 48
_OPTIONS = DrawOptions(maximum_columns=5, maximum_features=7, maximum_connections=90, width_inches=11)


class Drawing(NamedTuple):
    """A drawing as HTML, its title and what it shows."""

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
    columns = table.best_connected(_OPTIONS.maximum_columns)
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
    return (
        f'<picture><source media="{wanted}" srcset="{dark}">'
        f'<img alt="Connections by source and target column" src="{light}"></picture>'
    )


def _density(figures: Figures, concepts: int, dark: bool) -> Figure:
    from matplotlib.figure import Figure

    theme = theme_of(dark)
    figure = Figure(figsize=(7.6, 6.8), dpi=130, facecolor=theme.page, layout="constrained")
    plot_density(figure.subplots(), Density(figures.density, concepts, "appearance"), theme)
    return figure
