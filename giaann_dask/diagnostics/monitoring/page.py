"""Serve the page ``/giaann`` of Dask's dashboard.

The page is updated while a browser has it open. `board` has its figures, `plots` its style. The module imports bokeh,
so it is imported only where a dashboard has loaded bokeh already.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, Div, RadioButtonGroup
from bokeh.server.tornado import BokehTornado
from distributed import Scheduler
from distributed.dashboard.components import add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from giaann_dask.cluster.locality import ROW_BOUNDS_S, bucket_names
from giaann_dask.diagnostics.monitoring import plots
from giaann_dask.diagnostics.monitoring.board import SPANS, Board, RegionState, Sample, quantile, rates
from giaann_dask.diagnostics.monitoring.plots import Look, Series
from giaann_dask.representations import format_bytes

_PERIOD_MS = int(1000 * SPANS[0].period_s)
_REGIONS_SHOWN = 24
_STAGES_SHOWN = 13
_COMMITS_SHOWN = 6
_SHORTEST_S = 120.0
_LOW, _HALF = 92, 106
_COLUMNS = "repeat(auto-fit, minmax(min(380px, 100%), 1fr))"
_TIERS = ("decoded_bytes", "packed_bytes", "spilled_bytes", "device_bytes", "process_bytes")
_TOOLTIPS = {
    "connections": "@connections{0,0}",
    "neurons": "@neurons{0,0}",
    "runs": "@runs",
    "worker": "@worker",
}


def add_page(board: Board, scheduler: Scheduler, name: str) -> Callable[[], None]:
    """Add the page to a scheduler's dashboard and its navigation; return a function that stops its timers."""
    applications = scheduler.http_application.applications
    dashboard = next(each for each in applications if isinstance(each, BokehTornado))
    shared = template_variables(scheduler)

    def document(server: Scheduler, extra: dict[str, Any], doc: Any) -> None:
        page = MonitoringPage(board)
        add_periodic_callback(doc, page, _PERIOD_MS)
        doc.title = "Dask: GIAANN"
        doc.add_root(page.root)
        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)
        doc.theme = BOKEH_THEME

    application = BokehApplication({f"/{name}": document}, scheduler, dashboard.prefix, shared)
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()
    # All pages of the dashboard show this list.
    if name not in shared["pages"]:
        shared["pages"].append(name)
    return application.stop  # type: ignore[no-any-return]


class MonitoringPage:
    """An open page in a browser.

    Parameters
    ----------
    board : Board
        Whose figures are shown.

    Attributes
    ----------
    root : bokeh model
        All of it.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._axis = plots.TimeAxis()
        self._drawn: Sample | None = None
        self._over_time = ColumnDataSource({name: [] for name in time_columns([], time.time(), 60.0)}, name="over_time")
        self._stages = ColumnDataSource({"stage": [], "running": [], "waiting": [], "seconds": []}, name="stages")
        self._sizes = ColumnDataSource(region_columns([], "nbytes"), name="sizes")
        self._busiest = ColumnDataSource(region_columns([], "share"), name="busiest")
        self._tiles = Div(name="tiles", sizing_mode="stretch_width")
        self._commits = Div(name="commits", sizing_mode="stretch_width", min_height=_HALF - 4)
        self._span = RadioButtonGroup(labels=[span.name for span in SPANS], active=0, width=240)
        self._span.on_change("active", self._choose)
        self._stage_plot = plots.stage_bars(self._stages, Look(title="Tasks under way, by stage"))
        self._size_plot, self._busiest_plot = self._region_plots()
        self.root = self._layout()
        self.update()

    def update(self) -> None:
        """Update all plots and tables; called by the document."""
        board, now = self._board, time.time()
        span = SPANS[self._span.active]
        samples = board.histories.of(span.name)
        if samples and samples[-1] is not self._drawn:
            self._drawn = samples[-1]
            reached = max(now - samples[0].time_s, _SHORTEST_S)
            unit = self._axis.show(min(reached, span.period_s * span.samples))
            self._over_time.data = time_columns(samples, now, unit)
        self._show_stages()
        self._show_regions(board)
        self._tiles.text = tiles(board, now)
        self._commits.text = commit_table(board, now)

    def _choose(self, attribute: str, old: int, new: int) -> None:
        """Draw another span."""
        self._drawn = None
        self.update()

    def _layout(self) -> Any:
        time_plots = {
            name: draw(self._over_time, series, self._axis, look) for name, (draw, series, look) in PLOTS.items()
        }
        rows = column(time_plots["requests"], time_plots["latencies"], sizing_mode="stretch_width")
        used = column(self._commits, time_plots["prompts"], sizing_mode="stretch_width")
        cells = (
            *(time_plots["sequences"], time_plots["connections"], self._stage_plot),
            *(self._size_plot, self._busiest_plot, time_plots["memory"]),
            *(time_plots["moved"], rows, used),
        )
        wide = {"sizing_mode": "stretch_width"}
        # Three beside each other where the window is wide, one where it is narrow.
        grid = column(*cells, **wide, styles={"display": "grid", "grid-template-columns": _COLUMNS})
        return column(self._tiles, self._span, grid, **wide)

    def _region_plots(self) -> tuple[Any, Any]:
        sizes = Look(title="Regions by size, as they are held", unit="bytes")
        busiest = Look(title="Column touches by region, last minute", unit="percent")
        told = {"region": "@name", **_TOOLTIPS}
        return (
            plots.bars(self._sizes, sizes, told | {"size": "@text"}, "region, the largest first"),
            plots.bars(self._busiest, busiest, told | {"share": "@text"}, "region, the busiest first"),
        )

    def _show_stages(self) -> None:
        seen = [stage for stage in self._board.stages if stage.seconds or stage.running or stage.waiting]
        # The first stage on top.
        shown = seen[-_STAGES_SHOWN:][::-1]
        columns = ("stage", "waiting", "running", "seconds")
        names = [stage.name for stage in shown]
        if self._stage_plot.y_range.factors != names:
            self._stage_plot.y_range.factors = names
        self._stages.data = {name: [stage[at] for stage in shown] for at, name in enumerate(columns)}

    def _show_regions(self, board: Board) -> None:
        for source, plot, by in (
            (self._sizes, self._size_plot, "nbytes"),
            (self._busiest, self._busiest_plot, "share"),
        ):
            found = region_columns(board.regions, by)
            plots.fit_legend(plot, found["worker"])
            plots.fit_ticks(plot, found["name"])
            if plot.x_range.factors != found["name"]:
                plot.x_range.factors = found["name"]
            source.data = found


PLOTS: dict[str, tuple[Any, Sequence[Series], Look]] = {
    "sequences": (
        plots.lines,
        (
            Series("encoded", "encoded", plots.GREY),
            Series("evaluated", "evaluated", plots.PURPLE),
            Series("trained", "trained", plots.BLUE),
        ),
        Look(title="Sequences per second"),
    ),
    "connections": (
        plots.lines,
        (Series("connections", "strengthened", plots.GREEN),),
        Look(title="Connections strengthened per second"),
    ),
    "memory": (
        plots.areas,
        (
            Series("decoded_bytes", "decoded", plots.BLUE),
            Series("packed_bytes", "packed", plots.GREEN),
            Series("spilled_bytes", "spilled", plots.ORANGE),
            Series("device_bytes", "device", plots.PURPLE),
            Series("process_bytes", "processes", plots.FAINT, dashed=True),
        ),
        Look(title="Memory of the cluster, by tier", unit="bytes"),
    ),
    "moved": (
        plots.areas,
        (
            Series("stayed_bytes", "stayed", plots.BLUE),
            Series("increment_bytes", "increments", plots.ORANGE),
            Series("stolen_bytes", "stolen", plots.PURPLE),
            Series("reassigned_bytes", "new owner", plots.GREEN),
            Series("read_bytes", "store", plots.GREY),
            Series("spilling_bytes", "spilled", plots.FAINT, dashed=True),
        ),
        Look(title="Region data per round: stayed or moved", unit="bytes", height=2 * _HALF),
    ),
    "requests": (
        plots.lines,
        (Series("row_requests", "requests", plots.BLUE),),
        Look(title="Row service: requests answered per second", height=_LOW),
    ),
    "latencies": (
        plots.lines,
        (
            Series("answer_ms", "mean", plots.BLUE),
            Series("late_ms", "95 % below", plots.ORANGE),
            Series("asked_ms", "mean as asked", plots.PURPLE),
        ),
        Look(title="Row service: time to answer", unit="milliseconds", height=2 * _HALF - _LOW),
    ),
    "prompts": (
        plots.lines,
        (Series("prompts_in_flight", "prompts", plots.PURPLE),),
        Look(title="Prompts in flight", whole=True, height=_HALF),
    ),
}


def time_columns(samples: Sequence[Sample], now: float, unit_s: float) -> dict[str, list[float]]:
    """Return the columns of all plots over time.

    Parameters
    ----------
    samples : sequence of Sample
        The oldest first.
    now : float
        Seconds since 1970.
    unit_s : float
        Seconds of the unit in which ``ago`` counts, below 0.
    """
    found: dict[str, list[float]] = {"ago": [(sample.time_s - now) / unit_s for sample in samples]}
    for name in ("trained", "encoded", "evaluated"):
        found[name] = rates(samples, "sequences" if name == "trained" else f"{name}_sequences")
    found["connections"] = rates(samples, "connections")
    for name in ("stayed_bytes", "increment_bytes", "stolen_bytes", "reassigned_bytes", "read_bytes"):
        found[name] = rates(samples, f"data_{name}", "rounds")
    found["spilling_bytes"] = rates(samples, "data_spilled_bytes", "rounds")
    found["row_requests"] = rates(samples, "row_requests")
    found["answer_ms"] = [1000 * value for value in rates(samples, "row_seconds", "row_requests")]
    found["asked_ms"] = [1000 * value for value in rates(samples, "asked_seconds", "asked_requests")]
    found["late_ms"] = [0.0] * len(samples)
    if any(found["row_requests"]):
        buckets = zip(*(rates(samples, name) for name in bucket_names()), strict=True)
        found["late_ms"] = [1000 * quantile(counts, ROW_BOUNDS_S, 0.95) for counts in buckets]
    for name in (*_TIERS, "prompts_in_flight"):
        found[name] = [sample[name] for sample in samples]
    return found


def region_columns(regions: Sequence[RegionState], by: str) -> dict[str, list[Any]]:
    """Return the columns of a plot of regions, the largest or busiest first, as many as can be read."""
    shown = sorted(regions, key=lambda region: (-getattr(region, by), region.region))[:_REGIONS_SHOWN]
    colours = plots.worker_colours([region.worker for region in regions])
    texts = [f"{100 * r.share:.1f} %" if by == "share" else format_bytes(r.nbytes) for r in shown]
    return {
        "name": [str(region.region) for region in shown],
        "value": [getattr(region, by) for region in shown],
        "text": texts,
        "colour": [colours[region.worker] for region in shown],
        "worker": [region.worker or "no worker" for region in shown],
        **{name: [getattr(region, name) for region in shown] for name in ("connections", "neurons", "runs")},
    }


def tiles(board: Board, now: float) -> str:
    """Return the figures at the top of the page."""
    samples, gauges = board.histories.of(SPANS[0].name), board.gauges(now)
    latest = {name: rates(samples, name)[-1] if samples else 0.0 for name in ("sequences", "connections")}
    shown = (
        ("sequences trained", short(board.totals["sequences"])),
        ("sequences/s", short(latest["sequences"])),
        ("connections/s", short(latest["connections"])),
        ("rounds", short(board.totals["rounds"])),
        ("rounds counting + integrating", _rounds_by_stage(gauges)),
        ("regions", short(board.region_count)),
        *((("slow workers", short(gauges["slow_workers"])),) if gauges.get("slow_workers") else ()),
        ("prompts in flight", short(gauges.get("prompts_in_flight", 0))),
        ("last commit", f"{ago(now - board.commits[-1].time_s)} ago" if board.commits else "none"),
    )
    style = (
        f"font-family:{plots.FONT};flex:1 1 0;padding:4px 10px;border-left:3px solid {plots.BLUE};white-space:nowrap"
    )
    cells = "".join(
        f'<div style="{style}"><div style="font-size:20px;color:{plots.INK}">{html.escape(value)}</div>'
        f'<div style="font-size:11px;color:{plots.FAINT}">{html.escape(name)}</div></div>'
        for name, value in shown
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:6px;width:100%">{cells}</div>'


def _rounds_by_stage(gauges: Mapping[str, float]) -> str:
    """Return how many rounds are at which stage: their increments are computed, or go into their regions."""
    counting = gauges.get("rounds_counting", 0)
    return f"{short(counting)} + {short(gauges.get('rounds_in_flight', 0) - counting)}"


def commit_table(board: Board, now: float) -> str:
    """Return the last commits as a table."""
    cell = "padding:1px 12px 1px 0;text-align:right"
    first = cell.replace("right", "left")
    lines = "".join(
        f'<tr><td style="{first};font-family:monospace">{html.escape(each.commit[:12])}</td>'
        f'<td style="{cell}">{each.sequences:,}</td><td style="{cell}">{each.seconds:.1f} s</td>'
        f'<td style="{cell}">{ago(now - each.time_s)} ago</td></tr>'
        for each in list(board.commits)[-_COMMITS_SHOWN + 2 :][::-1]
    )
    heads = "".join(
        f'<th style="{first if name == "commit" else cell};font-weight:normal;color:{plots.FAINT}">{name}</th>'
        for name in ("commit", "sequences", "took", "when")
    )
    title = f"Commits, the last of {board.totals['commits']:,.0f}" if board.commits else "Commits: none yet"
    table = f"<table style='border-collapse:collapse;font-size:12px'><tr>{heads}</tr>{lines}</table>"
    style = f"font-family:{plots.FONT};color:{plots.INK};margin:4px 0 0 14px"
    return f'<div style="{style}"><b style="font-size:13px">{title}</b>{table if board.commits else ""}</div>'


def short(value: float) -> str:
    """Return a number in few characters.

    Examples
    --------
    >>> short(1234567), short(12.34), short(0)
    ('1.23M', '12.3', '0')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"


def ago(seconds: float) -> str:
    """Return a time span in few characters.

    Examples
    --------
    >>> ago(5), ago(600), ago(90000)
    ('5 s', '10 min', '25 h')
    """
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{max(seconds, 0) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
