"""Define the colours of pictures, on light and on dark pages.

Covers: the colours of pages, boxes and words, and palettes whose colours most colour-blind readers
tell apart, each also by its lightness where it has an order. Does not cover: what they mean
(`schemes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Theme(NamedTuple):
    """Colours of a picture."""

    page: str
    box: str
    frame: str
    node: str
    faint: str
    text: str
    prime: str
    internal: str
    external: str
    mark: str


LIGHT = Theme(
    *("#ffffff", "#f3f5f8", "#d5dbe3", "#fffffe", "#66727f", "#1c2430"), "#7b3fa0", "#2b74b8", "#d9731a", "#d55e00"
)
DARK = Theme(
    *("#14181e", "#1d232b", "#343d49", "#262e38", "#96a1ad", "#eeeeee"), "#9955cc", "#66aaee", "#f0954a", "#ff9a4d"
)

# Okabe and Ito's colours, chosen for readers with any kind of colour blindness.
CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8c6d31", "#999999")
# Two ordered families that differ in hue and in lightness: the nearest segment is the darkest.
_BLUES = ("#08306b", "#2171b5", "#6baed6", "#a6cbe3")
_ORANGES = ("#7f2704", "#c84807", "#f07f22", "#f9b062", "#f7d08a")
# The lower end is lighter than any word on it is dark, the upper end the other way round.
ACTIVATION = ("#fdfbd8", "#d0ecc0", "#83cdbb", "#43a3c0", "#2868ab", "#1a3a7c")


def theme_of(dark: bool) -> Theme:
    """Return the theme of light or of dark pages."""
    return DARK if dark else LIGHT


def ordered(count: int, family: str) -> list[str]:
    """Return so many colours of a family (``"blue"`` or ``"orange"``), from dark to light.

    Examples
    --------
    >>> ordered(2, "blue")
    ['#08306b', '#a6cbe3']
    """
    stops = _BLUES if family == "blue" else _ORANGES
    return [blend(stops, place / max(count - 1, 1)) for place in range(count)]


def blend(stops: Sequence[str], share: float) -> str:
    """Return the colour at a share, 0 to 1, of the way along some colours.

    Examples
    --------
    >>> blend(("#000000", "#ffffff"), 0.5)
    '#808080'
    """
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    at = min(int(place), len(stops) - 2)
    low, high, rest = _channels(stops[at]), _channels(stops[at + 1]), place - at
    return "#" + "".join(f"{round(a + (b - a) * rest):02x}" for a, b in zip(low, high, strict=True))


def lightness(colour: str) -> float:
    """Return the relative luminance of a colour, 0 (black) to 1 (white), as WCAG defines it."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def word_on(colour: str) -> str:
    """Return the colour of words, dark or white, that is read better on a colour.

    Examples
    --------
    >>> word_on("#ffffff"), word_on("#7b3fa0")
    ('#1c2430', '#ffffff')
    """
    shade = lightness(colour) + 0.05
    dark = lightness(LIGHT.text) + 0.05
    return LIGHT.text if shade / dark > 1.05 / shade else "#ffffff"


def _channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
