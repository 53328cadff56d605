"""Validate the options of a picture, and write it as SVG, PNG or PDF by matplotlib.

Options say which part of a network is drawn, and how large. The same picture has the same bytes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from giaann_dask.errors import OptionError, require_between, require_one_of
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import local_path
from giaann_dask.representations import xml_text
from giaann_dask.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Colour = Literal["default", "segments", "branches", "parts", "delimiters", "activation"]
ColumnOrder = Literal["appearance", "region"]
SUFFIXES = (".svg", ".png", ".pdf")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Options of a picture: which part of a network is drawn, and how large.

    Parameters
    ----------
    concepts : tuple of str
        Names of the concept columns to draw, from left to right; none chooses those that are best
        connected with each other.
    colour : str
        What colours mean: ``default`` (prime concept and feature neurons, connections inside a column
        and between columns), ``segments`` or ``branches`` (on which a connection ends), ``parts`` (of
        speech), ``delimiters`` (which words end a column) or ``activation`` (after a step of a prediction).
    max_columns : int
        Maximum number of columns to draw, 1 to 12.
    max_features : int
        Maximum number of feature neurons of a column, besides its prime concept neuron, 0 to 40.
    max_connections : int
        Maximum number of connections to draw, 1 to 5000; the strongest are drawn.
    width_inches : float
        Width of the picture, 5 to 40; its height follows from the number of neurons.
    dark : bool
        Light on dark instead of dark on light.

    Raises
    ------
    OptionError
        If a value is out of range, or more concepts are named than columns may be drawn.
    """

    concepts: tuple[str, ...] = ()
    colour: Colour = "default"
    max_columns: int = 6
    max_features: int = 8
    max_connections: int = 120
    width_inches: float = 12.0
    dark: bool = False

    def __post_init__(self) -> None:
        require_between(1, 12, self, "max_columns")
        require_between(0, 40, self, "max_features")
        require_between(1, 5000, self, "max_connections")
        require_between(5, 40, self, "width_inches")
        require_one_of("colour", self.colour, get_args(Colour))
        if len(self.concepts) > self.max_columns:
            received, expected = f"{len(self.concepts)} concepts", f"at most {self.max_columns}"
            raise OptionError(received, expected, "name fewer of them or raise max_columns")


@dataclass(frozen=True, kw_only=True)
class DensityOptions:
    """Options of the density picture of a whole network.

    Parameters
    ----------
    order : str
        Order of the columns on both axes: by first ``appearance`` in the text, or by ``region``.
    cells : int
        Cells along each axis, 16 to 2000; a cell is a square of neighbouring columns.
    width_inches : float
        Width of the picture, 4 to 40.
    dark : bool
        Light on dark instead of dark on light.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    order: ColumnOrder = "appearance"
    cells: int = 400
    width_inches: float = 9.0
    dark: bool = False

    def __post_init__(self) -> None:
        require_one_of("order", self.order, get_args(ColumnOrder))
        require_between(16, 2000, self, "cells")
        require_between(4, 40, self, "width_inches")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a picture; the same picture gives the same bytes.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        From one of the functions of this package.
    path : str or Path
        A file that ends in ``.svg``, ``.png`` or ``.pdf``; its folder is made where it is missing.

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
    suffix = path.suffix.lower()
    check_suffix(path, SUFFIXES)
    return write_picture(path, rendered(figure, suffix[1:]))


def check_suffix(path: Path, suffixes: tuple[str, ...]) -> None:
    """Raise an OptionError when the name of a picture ends otherwise."""
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"the file name {path}", f"a name that ends in {', '.join(suffixes)}", "rename it")


def write_picture(path: Path, content: bytes) -> Path:
    """Write the bytes of a picture, making its folder where it is missing; a StoreWriteError if the disk is full."""
    return write_file(path, content, "the picture")


def rendered(figure: Figure, kind: str, *, text: bool = False) -> bytes:
    """Return the bytes of a picture, without a date and with reproducible identifiers.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The picture.
    kind : str
        ``svg``, ``png`` or ``pdf``.
    text : bool
        Keep words of an SVG as words in the reader's own font, instead of outlines.
    """
    import matplotlib

    buffer, dates = io.BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "giaann_dask", "svg.fonttype": "none" if text else "path"}):
        figure.savefig(buffer, format=kind, metadata=dates.get(kind))
    return xml_text(buffer.getvalue().decode()).encode() if kind == "svg" else buffer.getvalue()
