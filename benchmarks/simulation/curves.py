"""Simulate a training on more and more workers, and find where more of them do not help any more, and why."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from giaann_dask.errors import require_option
from simulation.configuration import TrainingConfiguration
from simulation.events import SimulatedTraining, SimulationOptions, simulate_training
from simulation.hardware import Hardware
from simulation.workloads import SequenceSample

# Efficiency at the knee.
_KNEE = 0.5
_ACCUMULATED = 8
CHOSEN = "as chosen"


class ScalingPoint(NamedTuple):
    """Simulated training on a number of workers.

    Attributes
    ----------
    variant : str
        What differs from the chosen configuration.
    workers : int
        All workers.
    at_once : int
        Sequences that are trained at once, the description's B: a batch for each compute worker.
    rate : float
        Sequences per second.
    efficiency : float
        Rate of a compute worker, in that of the same on the fewest workers.
    cause : str
        What was used most.
    training : SimulatedTraining
        All figures.
    """

    variant: str
    workers: int
    at_once: int
    rate: float
    efficiency: float
    cause: str
    training: SimulatedTraining


class Knee(NamedTuple):
    """Number of sequences at once from which more workers are used by less than half.

    Attributes
    ----------
    at_once : float
        Sequences at once, between two simulated numbers.
    cause : str
        What was used most beyond.
    """

    at_once: float
    cause: str


@dataclass(frozen=True)
class ScalingReport:
    """Simulated trainings on more and more workers.

    Attributes
    ----------
    points : tuple of ScalingPoint
        Variant by variant, each by rising number of workers.
    """

    points: tuple[ScalingPoint, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """Simulated variants, the chosen configuration first."""
        return tuple(dict.fromkeys(point.variant for point in self.points))

    def of(self, variant: str) -> list[ScalingPoint]:
        """Return the points of a variant."""
        return [point for point in self.points if point.variant == variant]

    def knee(self, variant: str = CHOSEN) -> Knee | None:
        """Return where the efficiency of a variant falls below a half; None where it does not."""
        points = self.of(variant)
        for before, after in pairwise(points):
            if after.efficiency < _KNEE <= before.efficiency:
                high, low = math.log(before.efficiency), math.log(after.efficiency)
                part = (high - math.log(_KNEE)) / (high - low)
                grown = math.log(after.at_once / before.at_once)
                return Knee(before.at_once * math.exp(part * grown), after.cause)
        return None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of figures for each point."""
        return [
            {
                **{name: getattr(point, name) for name in point._fields if name != "training"},
                "tasks": point.training.tasks,
                "messages": point.training.messages,
                "shared_touches": point.training.shared_touches,
                **{f"{tier}_bytes": nbytes for tier, nbytes in point.training.tier_bytes.items()},
                "memory_bytes": point.training.memory_bytes,
                "failures": point.training.failures,
                "recounted": point.training.recounted,
                "slow_workers": len(point.training.slow_workers),
                **point.training.used,
            }
            for point in self.points
        ]

    def csv(self) -> str:
        """Return the rows as comma-separated values."""
        rows, text = self.rows(), io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def text(self) -> str:
        """Return a line for each point, and the knee of each variant."""
        lines = []
        for variant in self.variants:
            lines.append(variant)
            lines += [
                f"{point.workers:>6,} workers  B {point.at_once:>11,}  {point.rate:>12,.0f} sequences/s"
                f"  {point.efficiency:>4.0%}  {point.cause}"
                for point in self.of(variant)
            ]
            knee = self.knee(variant)
            lines.append(f"knee at B = {knee.at_once:,.0f}: {knee.cause}" if knee else "no knee")
        return "\n".join(lines)


def resized(hardware: Hardware, workers: int) -> Hardware:
    """Return hardware of about so many workers, of its kinds in the same proportion, one of each at least."""
    total = sum(kind.count for kind in hardware.workers)
    kinds = tuple(replace(kind, count=max(1, round(kind.count * workers / total))) for kind in hardware.workers)
    return replace(hardware, workers=kinds)


def alternatives(configuration: TrainingConfiguration) -> Iterator[tuple[str, TrainingConfiguration]]:
    """Yield what differs from a choice in one point: selection, placement, accumulation, exchange."""
    changes: list[tuple[str, str, Any]] = [
        ("selection", "order", "random"),
        ("selection", "order", "least-overlap"),
        ("placement", "placement", "co-occurrence"),
        ("accumulate", "accumulate", _ACCUMULATED * configuration.accumulate),
        ("exchange", "exchange", "tasks"),
        ("exchange", "exchange", "workers"),
    ]
    yield CHOSEN, configuration
    for name, field, value in changes:
        if value != getattr(configuration, field):
            yield f"{name} {value}", replace(configuration, **{field: value})


def simulate_scaling(
    workload: SequenceSample,
    hardware: Hardware,
    configuration: TrainingConfiguration,
    options: SimulationOptions,
    sizes: Sequence[int],
    *,
    compare: bool = False,
) -> ScalingReport:
    """Simulate a training on some numbers of workers.

    Parameters
    ----------
    workload : SequenceSample
        What is trained.
    hardware : Hardware
        Kinds of workers, whose number varies.
    configuration : TrainingConfiguration
        How it is divided.
    options : SimulationOptions
        What is simulated.
    sizes : sequence of int
        Numbers of workers, ascending.
    compare : bool
        Whether alternatives are simulated, too.

    Raises
    ------
    OptionError
        If there are no sizes, or they are not ascending.
    """
    valid = bool(sizes) and list(sizes) == sorted(set(sizes)) and sizes[0] >= 1
    require_option(valid, "sizes", ", ".join(map(str, sizes)), "ascending numbers of workers, the first one 1 or more")
    points: list[ScalingPoint] = []
    for variant, chosen in alternatives(configuration):
        first = 0.0
        for size in sizes:
            found = simulate_training(workload, resized(hardware, size), chosen, options)
            each = found.rate / found.compute_workers
            first = first or each
            at_once = found.compute_workers * chosen.batch_sequences
            points.append(ScalingPoint(variant, found.workers, at_once, found.rate, each / first, found.cause, found))
        if not compare:
            break
    return ScalingReport(tuple(points))
