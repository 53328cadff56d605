"""Keep bounded histories of figures: the last minutes at a fine resolution, days and weeks at coarser ones.

A history has samples of counters and gauges at three resolutions, and the rates of the counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Span(NamedTuple):
    """Time span and resolution of a history.

    Attributes
    ----------
    name : str
        As people call it.
    period_s : float
        Seconds between samples.
    samples : int
        How many are kept.
    """

    name: str
    period_s: float
    samples: int


SPANS = (Span("20 minutes", 2.0, 600), Span("2 days", 120.0, 1440), Span("8 weeks", 3600.0, 1344))
# Rates are those of the last seconds, so that single rounds do not make them jump.
SMOOTHED_S = 10.0
# Counters that change seldom, as those of long rounds, are looked at over some changes.
_CHANGES = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures at one moment.

    Attributes
    ----------
    time_s : float
        Seconds since 1970.
    values : mapping of str to float
        Counters, which only grow, and gauges, by name; those that are left out are 0.
    """

    time_s: float
    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        """Return a figure."""
        return self.values.get(name, 0.0)


@dataclass
class Histories:
    """The same figures over several spans, each of bounded length.

    Attributes
    ----------
    spans : tuple of Span
        From the shortest to the longest.

    Examples
    --------
    >>> histories = Histories()
    >>> for second in range(5):
    ...     histories.add(Sample(float(second), {"sequences": 10.0 * second}))
    >>> [sample.time_s for sample in histories.of("20 minutes")]
    [0.0, 2.0, 4.0]
    """

    spans: tuple[Span, ...] = SPANS
    _samples: dict[str, deque[Sample]] = field(init=False)

    def __post_init__(self) -> None:
        self._samples = {span.name: deque(maxlen=span.samples) for span in self.spans}

    def add(self, sample: Sample) -> None:
        """Append a sample at every resolution whose interval has passed."""
        for span in self.spans:
            kept = self._samples[span.name]
            # Timers are late or early by a little.
            if not kept or sample.time_s - kept[-1].time_s >= 0.9 * span.period_s:
                kept.append(sample)

    def of(self, name: str) -> list[Sample]:
        """Return the samples of a span, the oldest first."""
        return list(self._samples[name])


def rates(samples: Sequence[Sample], name: str, smoothed_s: float = SMOOTHED_S) -> list[float]:
    """Return how fast a counter grew up to each sample, per second.

    Parameters
    ----------
    samples : sequence of Sample
        The oldest first.
    name : str
        Of the counter.
    smoothed_s : float
        Each rate is that of so many seconds before the sample, and of at least two changes of a counter
        that changes less often.

    Returns
    -------
    list of float
        One for each sample; 0 for the first.

    Examples
    --------
    >>> rates([Sample(0.0, {"n": 0}), Sample(2.0, {"n": 6}), Sample(4.0, {"n": 8})], "n", 2.0)
    [0.0, 3.0, 2.0]
    """
    return _slopes(samples, name, None, smoothed_s)


def ratios(samples: Sequence[Sample], name: str, per: str, smoothed_s: float = SMOOTHED_S) -> list[float]:
    """Return the growth of a counter per unit of another, as bytes per round; 0 where that did not grow.

    Parameters
    ----------
    samples : sequence of Sample
        The oldest first.
    name, per : str
        Of the counters.
    smoothed_s : float
        As for `rates`.

    Examples
    --------
    >>> ratios([Sample(0.0, {}), Sample(9.0, {"bytes": 600, "rounds": 3})], "bytes", "rounds")
    [0.0, 200.0]
    """
    return _slopes(samples, name, per, smoothed_s)


def _slopes(samples: Sequence[Sample], name: str, per: str | None, smoothed_s: float) -> list[float]:
    times = np.array([sample.time_s for sample in samples])
    values = np.array([sample[name] for sample in samples])
    under = times if per is None else np.array([sample[per] for sample in samples])
    window = max(smoothed_s, _CHANGES * _seconds_of_a_change(times, values))
    # The first sample of a window that lasts longer than the history is its oldest one.
    before = np.maximum(np.searchsorted(times, times - window, side="right") - 1, 0)
    grown, over = np.maximum(values - values[before], 0.0), under - under[before]
    found: list[float] = np.divide(grown, over, out=np.zeros(len(times)), where=over > 0).tolist()
    return found


def _seconds_of_a_change(times: Floats, values: Floats) -> float:
    """Return the median seconds between changes of a counter; 0 without changes."""
    changed = times[1:][np.diff(values) != 0]
    return float(np.median(np.diff(changed))) if len(changed) > 1 else 0.0


def quantile(counts: Sequence[float], bounds: Sequence[float], share: float) -> float:
    """Estimate a quantile of measurements from a histogram.

    Parameters
    ----------
    counts : sequence of float
        Measurements in each bucket, the last one without an upper bound.
    bounds : sequence of float
        Upper bounds of all buckets but the last, ascending.
    share : float
        From 0 to 1.

    Returns
    -------
    float
        Linear within a bucket; the largest bound for what is beyond it; 0 without measurements.

    Examples
    --------
    >>> quantile([0, 10, 0], [1.0, 3.0], 0.5)
    2.0
    """
    total, below, lower = share * sum(counts), 0.0, 0.0
    if not sum(counts) > 0:
        return 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count and below + count >= total:
            return lower + (upper - lower) * (total - below) / count
        below, lower = below + count, upper
    return float(bounds[-1])
