"""Draw the plots of the dashboard page in one style: lines and stacked areas over time, and bars.

The module imports bokeh, so it is imported only where a dashboard has loaded bokeh already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJSTickFormatter,
    FactorRange,
    HoverTool,
    Legend,
    LegendItem,
    LinearAxis,
    Range1d,
)
from bokeh.plotting import figure

INK, FAINT, GRID, PAPER = "#1c2430", "#66727f", "#e6eaef", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#2266aa", "#e08a1e", "#2a9d76", "#7b5ea7", "#c8553d", "#9aa5b1"
# Of workers, in the order of their names.
WORKERS = (BLUE, ORANGE, GREEN, PURPLE, RED, "#5bb0d6", "#b59b00", "#d27aa6", "#6b8e23", "#8d6e63")
FONT = "system-ui, sans-serif"

# In pixels.
LOW = 150
# Of a legend beside the vertical axis, where the window is narrow; of an entry without its label, and of a character.
_LEGEND, _ENTRY, _CHARACTER = 300, 26, 7
_LEGEND_LINES = 4

Unit = Literal["count", "bytes", "percent", "milliseconds"]

# Short, so that they fit beside an axis: 1.2M, 340 KiB.
_COUNT = """
const units = ["", "k", "M", "G", "T"]; let value = tick, at = 0;
while (Math.abs(value) >= 1000 && at < 4) { value /= 1000; at += 1 }
return Number(value.toPrecision(3)) + units[at]
"""
_BYTES = """
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]; let value = tick, at = 0;
while (Math.abs(value) >= 1024 && at < 5) { value /= 1024; at += 1 }
return Number(value.toPrecision(3)) + " " + units[at]
"""
_FORMATS: Mapping[Unit, str] = {
    "count": _COUNT,
    "bytes": _BYTES,
    "percent": "return Number((100 * tick).toPrecision(3)) + ' %'",
    "milliseconds": "return Number(tick.toPrecision(3)) + ' ms'",
}
_AGE_FORMATTER = "return tick == 0 ? 'now' : String(Number((-tick).toPrecision(3)))"


@dataclass(frozen=True)
class Series:
    """A line or a layer of a plot over time.

    Attributes
    ----------
    name : str
        Of its column in the source.
    label : str
        For people.
    colour : str
        Of the line or area.
    dashed : bool
        Whether the line is.
    """

    name: str
    label: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Look:
    """Title, unit and axis of a plot.

    Attributes
    ----------
    title : str
        What is shown, with its unit.
    unit : {"count", "bytes", "percent", "milliseconds"}
        How values are written.
    whole : bool
        Whether only whole numbers stand beside the axis.
    height : int
        In pixels; low plots do without the name of their horizontal axis.
    """

    title: str
    unit: Unit = "count"
    whole: bool = False
    height: int = 206


@dataclass
class TimeAxis:
    """The horizontal axis that all plots over time share: how long ago.

    Attributes
    ----------
    range : Range1d
        From so many units ago until now.
    axes : list of LinearAxis
        Of all plots, for the name of the unit.
    """

    range: Range1d = field(default_factory=lambda: Range1d(-20, 0))
    axes: list[LinearAxis] = field(default_factory=list)

    def show(self, seconds: float) -> float:
        """Show so many seconds; return the seconds of the unit in which the axis counts now."""
        name, unit = next((n, s) for n, s in (("days", 86400), ("hours", 3600), ("minutes", 60)) if seconds >= 2 * s)
        if self.range.start != -seconds / unit:
            self.range.start = -seconds / unit
        for axis in self.axes:
            if axis.axis_label != f"{name} ago":
                axis.axis_label = f"{name} ago"
        return float(unit)


def lines(source: ColumnDataSource, series: Sequence[Series], axis: TimeAxis, look: Look) -> figure:
    """Return lines over time; a low plot of one line has no legend."""
    plot = _over_time(axis, look)
    drawn = {}
    for each in series:
        style = "dashed" if each.dashed else "solid"
        line = plot.line("ago", each.name, source=source, color=each.colour, line_width=2, line_dash=style)
        drawn[each.label] = line
    _explain(plot, {label: [line] for label, line in drawn.items()} if len(drawn) > 1 or look.height > LOW else {})
    return plot


def areas(source: ColumnDataSource, layers: Sequence[Series], axis: TimeAxis, look: Look) -> figure:
    """Return areas on top of each other over time; layers that are dashed are lines instead."""
    plot = _over_time(axis, look)
    stacked = [each for each in layers if not each.dashed]
    names, colours = [each.name for each in stacked], [each.colour for each in stacked]
    found = plot.varea_stack(names, x="ago", source=source, color=colours, alpha=0.75)
    drawn = {each.label: [area] for each, area in zip(stacked, found, strict=True)}
    for each in layers:
        if each.dashed:
            line = plot.line("ago", each.name, source=source, color=each.colour, line_width=1.5, line_dash="dashed")
            drawn[each.label] = [line]
    _explain(plot, drawn)
    return plot


def bars(source: ColumnDataSource, look: Look, hover: Mapping[str, str], label: str) -> figure:
    """Return upright bars coloured by the worker of each; columns ``name``, ``value``, ``colour`` and ``worker``."""
    plot = _plain(look, x_range=FactorRange(), y_range_start=0)
    drawn = plot.vbar(x="name", top="value", width=0.8, source=source, color="colour", legend_field="worker", alpha=0.9)
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[(name, column) for name, column in hover.items()]))
    legend = plot.legend[0]
    plot.center.remove(legend)
    plot.add_layout(legend, "above")
    _style_legend(legend)
    plot.xaxis.axis_label = label
    return plot


def stage_bars(source: ColumnDataSource, look: Look) -> figure:
    """Return lying bars of running and waiting tasks by stage; columns ``stage``, ``running`` and ``waiting``."""
    plot = _plain(look, y_range=FactorRange(), x_range_start=0)
    drawn = plot.hbar_stack(
        ["running", "waiting"], y="stage", height=0.72, source=source, color=[BLUE, "#b9cfe6"], line_color=None
    )
    tips = [
        ("stage", "@stage"),
        ("running", "@running"),
        ("waiting", "@waiting"),
        ("spent", "@seconds{0,0.0} s"),
    ]
    plot.add_tools(HoverTool(renderers=list(drawn), tooltips=tips))
    _explain(plot, {"running": [drawn[0]], "waiting": [drawn[1]]})
    plot.ygrid.grid_line_color, plot.xgrid.grid_line_color = None, GRID
    plot.xaxis.formatter, plot.xaxis.ticker = CustomJSTickFormatter(code=_COUNT), BasicTicker(min_interval=1)
    plot.xaxis.axis_label = "tasks"
    return plot


def fit_legend(plot: figure, labels: Sequence[str]) -> None:
    """Divide a legend into lines that the narrowest plot has space for; one of too many lines is not shown.

    Examples
    --------
    >>> from bokeh.models import Legend
    >>> plot = figure()
    >>> plot.add_layout(Legend(), "above")
    >>> fit_legend(plot, [f"storage-{number}" for number in range(8)])
    >>> plot.legend[0].ncols, plot.legend[0].visible
    (3, True)
    """
    legend, widths = plot.legend[0], [_ENTRY + _CHARACTER * len(label) for label in dict.fromkeys(labels)]

    def width(columns: int) -> int:
        return sum(max(widths[at::columns]) for at in range(columns))

    legend.ncols = next((count for count in range(len(widths), 1, -1) if width(count) <= _LEGEND), 1)
    legend.visible = len(widths) <= legend.ncols * _LEGEND_LINES


def fit_ticks(plot: figure, names: Sequence[str]) -> None:
    """Write the names below upright bars upwards where they are too long beside each other."""
    wide = _CHARACTER * sum(len(name) + 1 for name in names) > _LEGEND
    plot.xaxis.major_label_orientation = "vertical" if wide else "horizontal"


def worker_colours(workers: Sequence[str]) -> dict[str, str]:
    """Return a colour for each worker, stable while the set of workers is unchanged.

    Examples
    --------
    >>> worker_colours(["b", "a"])["a"] == BLUE
    True
    """
    return {name: WORKERS[at % len(WORKERS)] for at, name in enumerate(sorted(set(workers)))}


def _over_time(axis: TimeAxis, look: Look) -> figure:
    plot = _plain(look, x_range=axis.range, y_range_start=0)
    plot.xaxis.formatter = CustomJSTickFormatter(code=_AGE_FORMATTER)
    if look.height > LOW:
        axis.axes.append(plot.xaxis[0])
    return plot


def _plain(look: Look, **ranges: Any) -> figure:
    starts = {name.removesuffix("_start"): ranges.pop(name) for name in list(ranges) if name.endswith("_start")}
    plot = figure(
        title=look.title,
        height=look.height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        **ranges,
    )
    for name, start in starts.items():
        getattr(plot, name).start = start
    plot.background_fill_color = plot.border_fill_color = PAPER
    plot.outline_line_color, plot.min_border_right, plot.min_border_left = None, 14, 62
    plot.title.text_font, plot.title.text_font_size, plot.title.text_color = FONT, "13px", INK
    plot.xgrid.grid_line_color, plot.ygrid.grid_line_color = None, GRID
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
        axis.major_label_text_font = axis.axis_label_text_font = FONT
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "11px"
        axis.major_label_text_color = axis.axis_label_text_color = FAINT
        axis.axis_label_text_font_style, axis.axis_label_standoff = "normal", 2
    if "y_range" not in ranges:
        plot.yaxis.formatter = CustomJSTickFormatter(code=_FORMATS[look.unit])
        whole = {"min_interval": 1} if look.whole else {}
        tick = {"base": 1024, "mantissas": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]} if look.unit == "bytes" else whole
        plot.yaxis.ticker = BasicTicker(desired_num_ticks=4 if look.height > LOW else 2, **tick)
    return plot


def _explain(plot: figure, drawn: Mapping[str, Sequence[Any]]) -> None:
    """Put a legend above a plot."""
    if drawn:
        legend = Legend(items=[LegendItem(label=label, renderers=list(its)) for label, its in drawn.items()])
        plot.add_layout(legend, "above")
        _style_legend(legend)
        fit_legend(plot, list(drawn))


def _style_legend(legend: Legend) -> None:
    legend.orientation, legend.location = "horizontal", "left"
    legend.padding, legend.margin, legend.spacing, legend.border_line_color = 0, 2, 9, None
    legend.label_text_font, legend.label_text_font_size, legend.label_text_color = FONT, "11px", FAINT
    legend.glyph_width = legend.glyph_height = legend.label_height = 12
    legend.label_standoff, legend.background_fill_alpha = 4, 0.0
