"""Draw words in a picture: inside neurons, and running text below.

Covers: words that fit their place, and lines of text whose words have their own colours. Does not
cover: what they say (`prediction`) and where neurons stand (`layout`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from giaann_dask.diagnostics.pictures.layout import MARGIN, Point
from giaann_dask.diagnostics.pictures.themes import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT_LINE = 0.3
_SIZE, _SPACE = 13, 0.1

Placed = tuple[float, str, str]


def text_lines(words: Sequence[tuple[str, str]], width: float) -> list[list[Placed]]:
    """Return lines of words, each with its place in inches and what it is, that fit on a page of some width."""
    lines: list[list[Placed]] = []
    x = width
    for word, kind in words:
        wide = width_of(word, _SIZE, "normal")
        if x + wide > width - MARGIN:
            lines.append([])
            x = MARGIN
        lines[-1].append((x, word, kind))
        x += wide + _SPACE
    return lines


def draw_text(axes: Axes, lines: list[list[Placed]], theme: Theme) -> None:
    """Draw running text at the foot of a picture: what was predicted in colour, what is to come pale."""
    colours = {"given": theme.text, "predicted": theme.external, "next": theme.mark, "waiting": theme.frame}
    for number, line in enumerate(reversed(lines)):
        for x, word, kind in line:
            if kind == "hidden":
                continue
            box = {"boxstyle": "round,pad=0.12", "facecolor": "none", "edgecolor": theme.mark, "linewidth": 1.4}
            marked = kind in ("next", "given next")
            place = x, MARGIN - 0.02 + number * TEXT_LINE
            colour = colours.get(kind, theme.text)
            axes.text(
                *place, word, size=_SIZE, color=colour, va="center", parse_math=False, bbox=box if marked else None
            )


@functools.lru_cache(maxsize=4096)
def width_of(word: str, size: float, weight: str) -> float:
    """Return the width of a word in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    # A dollar sign would begin a formula, and blanks have no outline; an S is about as wide.
    outline = TextPath((0, 0), re.sub(r"[$\s]", "S", word) or "S", prop=FontProperties(size=size, weight=weight))
    return float(outline.get_extents().width) / 72


def draw_word(axes: Axes, word: str, middle: Point, width: float, font: dict[str, Any]) -> None:
    """Draw a word, smaller or shortened where it would be wider than its place."""
    # A full stop alone would be hard to see.
    size = font["size"] if any(map(str.isalnum, word)) else font["size"] + 4

    def share(shown: str) -> float:
        return width_of(shown, size, font["weight"]) / width

    if share(word) > 4 / 3:
        length = max((n for n in range(1, len(word)) if share(word[:n] + "…") <= 4 / 3), default=0)
        word = word[:length] + "…"
    size /= max(share(word), 1.0)
    axes.text(*middle, word, **font | {"size": size, "ha": "center", "va": "center_baseline", "parse_math": False})
