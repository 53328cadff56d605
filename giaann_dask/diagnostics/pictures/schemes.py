"""Assign colours to neurons and connections by a scheme, on light and on dark pages.

Each scheme maps a graph to the colours of every neuron and connection and to the entries of the legend. `prediction`
has the activation that one of them shows; `drawing` and `interactive` draw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.diagnostics.pictures.layout import Line, Words
from giaann_dask.errors import OptionError
from giaann_dask.models.columns.connection_table import Neuron

if TYPE_CHECKING:
    import networkx as nx


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


_CONCEPT, _OTHER = "concept (noun)", "other word"


class NeuronLook(NamedTuple):
    """Colours of a neuron, and of its word; how its border is drawn."""

    fill: str
    edge: str
    word: str
    width: float = 1.0
    dashed: bool = False


class Entry(NamedTuple):
    """A line of the legend: a patch (with a border) or a stroke, and its label."""

    label: str
    colour: str
    edge: str | None = None
    dashed: bool = False
    width: float = 1.0


class Scale(NamedTuple):
    """A scale of colours from 0 to the largest value."""

    label: str
    largest: float
    stops: tuple[str, ...]


@dataclass(frozen=True)
class Colouring:
    """The look of a picture.

    Attributes
    ----------
    neurons : dict
        Look of every neuron of the graph.
    lines : list of Line
        Connections, the weakest first.
    legend : list of Entry
        What the colours mean.
    scale : Scale or None
        What the fill of neurons means, where that is a number.
    """

    neurons: dict[Neuron, NeuronLook]
    lines: list[Line]
    legend: list[Entry]
    scale: Scale | None = None


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The part of the state after a step that a picture shows.

    Attributes
    ----------
    value : mapping of Neuron to float
        Activation of the neurons that have any.
    source : Neuron
        The neuron that sent.
    candidates : collection of Neuron
        Those that could have been predicted.
    winner : Neuron or None
        The one that was; None in the prompt, and where the prediction ended.
    largest : float
        Activation at the upper end of the scale.
    """

    value: Mapping[Neuron, float]
    source: Neuron
    candidates: Sequence[Neuron] = ()
    winner: Neuron | None = None
    largest: float = field(default=0.0)


def colour_graph(
    graph: nx.DiGraph, theme: Theme, colour: str, words: Words | None = None, activity: Activity | None = None
) -> Colouring:
    """Return the look of a graph in a colour scheme.

    Parameters
    ----------
    graph : networkx.DiGraph
        From `giaann_dask.diagnostics.pictures.layout.choose_graph`.
    theme : Theme
        Of the page.
    colour : str
        One of `giaann_dask.diagnostics.pictures.draw_options.Colour`.
    words : Words, optional
        What the network knows of its features; all schemes but ``default`` and ``activation`` need it.
    activity : Activity, optional
        What ``activation`` shows.

    Raises
    ------
    OptionError
        If a scheme lacks what it shows.
    """
    if colour == "activation":
        if activity is None:
            raise OptionError(
                "colour activation without a prompt", "a prompt to predict from", "name one", names=("colour",)
            )
        return _by_activation(graph, theme, activity)
    if colour == "default":
        return _by_kind(graph, theme)
    assert words is not None, "commits have words"
    if colour == "parts":
        part = words.require_part()
        order = ("verb", "adposition", "conjunction", "several of these")
        return _by_word(graph, theme, order, lambda feature: part(graph.graph["words"][feature]))
    if colour == "delimiters":
        return _by_word(graph, theme, ("delimiter", "probable delimiter"), words.delimiter)
    return _by_end(graph, theme, words, colour)


def _by_kind(graph: nx.DiGraph, theme: Theme) -> Colouring:
    """Prime concept and feature neurons, connections inside a column and between columns."""

    def line(source: Neuron, target: Neuron, strength: float) -> Line:
        return Line(source, target, strength, theme.internal if source[0] == target[0] else theme.external)

    lines = _sorted(line(*edge) for edge in graph.edges(data="strength"))
    return Colouring(
        _plain(graph, theme),
        lines,
        [
            *_plain_legend(theme),
            Entry("connection inside a column", theme.internal),
            Entry("connection to another column", theme.external),
        ],
    )


def _by_end(graph: nx.DiGraph, theme: Theme, words: Words, colour: str) -> Colouring:
    """Segments or branches on which connections end, one row for each, limited to the strongest connections."""
    key, looks = (0, _segment_styles(words)) if colour == "segments" else (1, _branch_styles(words))
    lines: list[Line] = []
    for source, target, parts in graph.edges(data="parts"):
        total: dict[int, float] = defaultdict(float)
        for part in parts:
            total[part[key]] += part[2]
        lines += [Line(source, target, strength, looks[at].colour, looks[at].dashed) for at, strength in total.items()]
    lines = _sorted(lines)[-graph.number_of_edges() :] if lines else []
    used = [look for look in looks if any((line.colour, line.dashed) == (look.colour, look.dashed) for line in lines)]
    return Colouring(_plain(graph, theme), lines, [*_plain_legend(theme), *used])


def _segment_styles(words: Words) -> list[Entry]:
    """Return the style of every segment: blue and whole for columns, orange and broken for features."""
    columns, features = words.column_segments, words.feature_segments
    names = [f"segment {at}: {name}" for at, name in enumerate(words.segments)]
    shades = [*reversed(ordered(columns, "blue")), *reversed(ordered(features, "orange"))]
    shades += [CATEGORIES[2]] * (len(names) - len(shades))
    dashed = range(columns, columns + features)
    return [Entry(name, shade, dashed=at in dashed) for at, (name, shade) in enumerate(zip(names, shades, strict=True))]


def _branch_styles(words: Words) -> list[Entry]:
    """Return the style of every branch; beyond the palette, colours repeat with broken lines."""
    palette = CATEGORIES
    return [
        Entry(f"branch {at}", palette[at % len(palette)], dashed=at // len(palette) % 2 == 1)
        for at in range(words.branches)
    ]


def _by_word(graph: nx.DiGraph, theme: Theme, order: tuple[str, ...], kind_of: Callable[[int], str]) -> Colouring:
    """Kinds of words; connections stay in the background."""
    fills = {_CONCEPT: theme.prime, **dict(zip(order, CATEGORIES, strict=False)), _OTHER: theme.node}
    looks, used = {}, {_CONCEPT}
    for neuron in graph:
        kind = kind_of(neuron[1]) if neuron[1] else _CONCEPT
        used.add(kind)
        fill = fills[kind]
        edge = theme.faint if kind == _OTHER else fill
        looks[neuron] = NeuronLook(fill, edge, theme.text if kind == _OTHER else word_on(fill))
    lines = _sorted(Line(s, t, strength, theme.faint) for s, t, strength in graph.edges(data="strength"))
    legend = [
        Entry(kind, fill, theme.faint if kind == _OTHER else fill) for kind, fill in fills.items() if kind in used
    ]
    return Colouring(looks, lines, [*legend, Entry("connection", theme.faint)])


def _by_activation(graph: nx.DiGraph, theme: Theme, activity: Activity) -> Colouring:
    """Activation of neurons, the source and its connections, the candidates, and the prediction."""
    largest = activity.largest or max(activity.value.values(), default=0.0) or 1.0
    looks = {}
    for neuron in graph:
        value = activity.value.get(neuron, 0.0)
        fill = blend(ACTIVATION, value / largest) if value > 0 else theme.node
        edge, width, dashed = theme.faint, 1.0, False
        if neuron == activity.winner:
            edge, width = theme.mark, 3.2
        elif neuron == activity.source:
            edge, width = theme.text, 3.2
        elif neuron in activity.candidates:
            edge, width, dashed = theme.text, 1.6, True
        looks[neuron] = NeuronLook(fill, edge, word_on(fill) if value > 0 else theme.text, width, dashed)

    def line(source: Neuron, target: Neuron, strength: float) -> Line:
        sends = source == activity.source
        won = sends and target == activity.winner
        colour = theme.mark if won else theme.text if sends else theme.frame
        return Line(source, target, strength, colour, bold=sends)

    lines = _sorted(line(*edge) for edge in graph.edges(data="strength"))
    # What the source sends lies on top.
    lines.sort(key=lambda line: (line.source == activity.source, line.target == activity.winner))
    legend = [
        Entry("source", theme.node, theme.text, width=3.2),
        Entry("candidate", theme.node, theme.text, dashed=True, width=1.6),
        Entry("predicted", theme.node, theme.mark, width=3.2),
        Entry("from the source", theme.text),
        Entry("to what is predicted", theme.mark),
        Entry("other connection", theme.frame),
    ]
    return Colouring(looks, lines, legend, Scale("activation", largest, ACTIVATION))


def _plain(graph: nx.DiGraph, theme: Theme) -> dict[Neuron, NeuronLook]:
    prime = NeuronLook(theme.prime, theme.prime, "#ffffff")
    feature = NeuronLook(theme.node, theme.faint, theme.text)
    return {neuron: feature if neuron[1] else prime for neuron in graph}


def _plain_legend(theme: Theme) -> list[Entry]:
    return [
        Entry("prime concept neuron", theme.prime, theme.prime),
        Entry("feature neuron", theme.node, theme.faint),
    ]


def _sorted(lines: Any) -> list[Line]:
    """Return lines, the strongest last, so that it is drawn on top."""
    return sorted(lines, key=lambda line: line.strength)
