"""Draw one concept column and the strongest connections that leave it, as a small picture for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.diagnostics.pictures.choosing import choose_graph
from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.diagnostics.pictures.drawing import draw_graph, wrapped
from giaann_dask.diagnostics.pictures.schemes import colour_graph, theme_of
from giaann_dask.models.columns.connection_table import ConnectionTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = DrawOptions(max_columns=4, max_features=4, max_connections=20, width_inches=7.0)


def draw_column(table: ConnectionTable, column: int, options: DrawOptions = SMALL) -> Figure:
    """Draw a column, the columns that its strongest connections lead to, and these connections.

    Parameters
    ----------
    table : ConnectionTable
        The connections that leave the column.
    column : int
        Its number.
    options : DrawOptions
        How much is drawn, and how large.
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
