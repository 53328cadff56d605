"""Validate the options of a picture: which part of a network is drawn, and how large."""

from __future__ import annotations

from dataclasses import dataclass

from giaann_dask.errors import OptionError, parameter, require_one_of, require_option
from giaann_dask.keywords import names_keywords

COLOURS = ("default", "segments", "branches", "parts", "delimiters", "activation")
_LIMITS = (("maximum_columns", 1, 12), ("maximum_features", 0, 40), ("maximum_connections", 1, 5000))


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
        and between columns), ``choosing`` or ``branches`` (on which a connection ends), ``parts`` (of
        speech), ``delimiters`` (which words end a column) or ``activation`` (after a step of a prediction).
    maximum_columns : int
        Most columns to draw, 1 to 12.
    maximum_features : int
        Most feature neurons of a column, besides its prime concept neuron, 0 to 40.
    maximum_connections : int
        Most connections to draw, 1 to 5000; the strongest are kept.
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
    colour: str = "default"
    maximum_columns: int = 6
    maximum_features: int = 8
    maximum_connections: int = 120
    width_inches: float = 12.0
    dark: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (*_LIMITS, ("width_inches", 5, 40)):
            value = getattr(self, name)
            require_option(low <= value <= high, name, value, f"{low} to {high}")
        require_one_of("colour", self.colour, COLOURS)
        if len(self.concepts) > self.maximum_columns:
            received, expected = f"{len(self.concepts)} concepts", f"at most {self.maximum_columns}"
            raise OptionError(received, expected, f"name fewer of them or raise {parameter('maximum_columns')}")
