"""Write pictures as SVG, PNG or PDF by matplotlib, the same bytes for the same picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.errors import OptionError
from giaann_dask.local_files import local_path
from giaann_dask.printable import xml_text
from giaann_dask.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")


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
