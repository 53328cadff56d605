"""Draw the rate and the efficiency of simulated trainings by the sequences that are trained at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.diagnostics.pictures.schemes import LIGHT
from giaann_dask.planning.scaling import ScalingReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ("-", "--", ":", "-.")


def draw_scaling(report: ScalingReport) -> Figure:
    """Draw rate and efficiency by sequences at once, a line for each variant, with the knee of the first.

    Parameters
    ----------
    report : ScalingReport
        Simulated trainings.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, variant in enumerate(report.variants):
        points = report.of(variant)
        at_once = [point.at_once for point in points]
        look = {"linestyle": _STYLES[number % len(_STYLES)], "marker": "o", "markersize": 3, "label": variant}
        left.plot(at_once, [point.rate for point in points], **look)
        right.plot(at_once, [point.efficiency for point in points], **look)
    if knee := report.knee(report.variants[0]):
        for axes in (left, right):
            axes.axvline(knee.at_once, color=LIGHT.text, linewidth=0.8)
        right.text(knee.at_once, 1.02, f" knee: {knee.cause}", size=8, transform=right.get_xaxis_transform())
    left.set(xscale="log", yscale="log", xlabel="sequences at once", ylabel="sequences per second")
    right.set(xscale="log", xlabel="sequences at once", ylabel="efficiency", ylim=(0, None))
    left.legend(fontsize=8)
    return figure
