"""Derive rates from the processor seconds of trainings that a calibration makes.

Those of whole processes count what no task does: messages, the chunks that a worker compresses and writes, and the
driver. What a small training takes is taken off a large one, so that the rest is in proportion to its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from giaann_dask.cluster.stages import ProcessorTimes
from giaann_dask.planning.hardware import Rates

COMMIT_TASKS = 4
"""Tasks of a region in a commit: pack, measure, write, open."""
SPLIT_TASKS = 5
"""Tasks of a region that is split: find where, cut its run twice, measure both parts."""
# Tasks that encode a block of text, and those that pack runs.
_TEXT, _PACKING = ("tag", "read", "summarise", "encode", "count_block"), ("pack", "compact")
# Least share of what a commit does for the bytes of runs that is writing them.
_WRITING = 0.05


class MeasuredTraining(NamedTuple):
    """Measured figures of a training.

    Attributes
    ----------
    seconds, commit_s, rounds_s : float
        That it took, its last commit, and from its start until the last round was integrated.
    rounds, ending : ProcessorTimes
        Until its last round was integrated, and from then on.
    tasks, regions, trained, increment_bytes, written_bytes : int
        Of its report, and bytes that the last commit wrote.
    peak_bytes : int
        Most memory of a worker; 0 where that is not known.
    """

    seconds: float
    commit_s: float
    rounds_s: float
    rounds: ProcessorTimes
    ending: ProcessorTimes
    tasks: int
    regions: int
    trained: int
    increment_bytes: int
    written_bytes: int
    peak_bytes: int = 0

    def round_tasks(self, few: int) -> int:
        """Return the tasks of its rounds: without those of regions that it has split, beyond a few, and committed."""
        return max(self.tasks - COMMIT_TASKS * self.regions - SPLIT_TASKS * (self.regions - few), 0)


def rates_of(
    small: Sequence[MeasuredTraining], larger: Sequence[MeasuredTraining], rates: Rates, block: float, cores: int = 0
) -> dict[str, float]:
    """Return the rates that follow from some trainings of next to nothing and large ones.

    Parameters
    ----------
    small, larger
        The trainings. Work is that of the last large one; cores are busy as in the one that waited least.
    rates : Rates
        With measured times of tasks, and other rates as they stay where they do not follow.
    block : float
        Trained sequences of a block of the large ones' text.
    cores : int
        Of the only host; 0 if there are several.
    """

    def typical(value: object) -> float:
        return float(median(value(each) for each in small))  # type: ignore[operator]

    few, large = small[0].regions, larger[-1]
    more = large.regions - few
    # A task that is submitted alone is one half work of the driver, and one of a worker.
    splitting = more * SPLIT_TASKS * rates.task_work_s / 2
    read = max(large.rounds.counts.get("tag", 0) * block, large.trained)
    # In a large training of few rounds, each has a message of its own.
    tasks = (large.round_tasks(few) - typical(lambda each: each.round_tasks(few))) / rates.tasks_per_s
    driver = large.rounds.driver - typical(lambda each: each.rounds.driver) - tasks * (1 + rates.alone_tasks)
    other = sum(value for name, value in large.rounds.tasks.items() if name not in _TEXT)
    text = large.rounds.workers - typical(lambda each: each.rounds.workers) - other - tasks
    text = max(text, _sum(large.rounds.tasks, _TEXT))
    run_s = typical(lambda each: each.ending.workers / each.regions)
    packing = _sum(large.ending.tasks, _PACKING)
    committing = max(large.ending.workers - large.regions * run_s - splitting, packing)
    region_s = rates.commit_region_s
    if more:
        added = large.ending.driver - typical(lambda each: each.ending.driver) - splitting
        region_s = max(added / more, 1e-3)
    # What a store takes without a processor is waited for; the least time is that without other work on the machine.
    waiting = typical(lambda each: each.ending.driver)
    waiting = max(waiting, min(each.commit_s - each.ending.workers for each in small))
    found = {
        "start_s": max(min(each.seconds - each.commit_s for each in small), 0.01),
        "commit_s": max(waiting - few * region_s, 0.01),
        "commit_region_s": region_s,
        "run_s": max(run_s, 1e-4),
    }
    if cores:
        shares = [_busy(small, each, cores) for each in larger]
        found |= {name: max(each[name] for each in shares) for name in shares[0]}
    divided = {
        "driver_per_s": (read - typical(lambda each: each.trained), driver),
        "text_per_s": (read, text),
        "packed_bytes_per_s": (large.increment_bytes, _sum(large.rounds.tasks, _PACKING) + packing),
        "written_bytes_per_s": (large.written_bytes, max(committing - packing, _WRITING * committing)),
    }
    return found | {name: amount / seconds for name, (amount, seconds) in divided.items() if amount > 0 < seconds}


def _busy(small: Sequence[MeasuredTraining], large: MeasuredTraining, cores: int) -> dict[str, float]:
    """Return `Rates.rounds_busy` and `Rates.commit_busy`: by what a large training uses and takes beyond small ones."""

    def share(pieces: int, value: Callable[[MeasuredTraining], tuple[ProcessorTimes, float]]) -> float:
        used, took = (
            figure(*value(large)) - median(figure(*value(each)) for each in small)
            for figure in (lambda times, _: times.driver + times.workers, lambda _, seconds: seconds)
        )
        # The driver, and workers for each of the pieces that there are.
        return min(used / (min(cores, pieces + 1) * took), 1.0) if used > 0 < took else 1.0

    return {
        "rounds_busy": share(int(large.rounds.counts.get("tag", 1)), lambda each: (each.rounds, each.rounds_s)),
        "commit_busy": share(large.regions, lambda each: (each.ending, each.seconds - each.rounds_s)),
    }


def _sum(seconds: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(seconds.get(name, 0.0) for name in names)
