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

BLOCK_TASKS = 4
"""Tasks of a block of text."""
CHAIN = 6
"""Tasks of a round that run one after another."""
COMMIT_TASKS = 4
"""Tasks of a region in a commit: pack, measure, write, open."""
SPLIT_TASKS = 5
"""Tasks of a region that is split: find where, cut its run twice, measure both parts."""
SPLIT_CHAIN = 3
"""Those that run one after another."""
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
    integrated : int
        Rounds.
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
    integrated: int
    tasks: int
    regions: int
    trained: int
    increment_bytes: int
    written_bytes: int
    peak_bytes: int = 0

    def round_tasks(self, few: int) -> int:
        """Return the tasks of its rounds: without those of regions that it has split, beyond a few, and committed."""
        return max(self.tasks - COMMIT_TASKS * self.regions - SPLIT_TASKS * (self.regions - few), 0)

    def messages(self, few: int, workers: int) -> int:
        """Return the messages in which these are submitted: one for each step of a round and worker, at most."""
        text = BLOCK_TASKS * self.rounds.counts.get("tag", 0)
        return text + min(max(self.round_tasks(few) - text, 0), self.integrated * CHAIN * workers)

    @property
    def other_work(self) -> float:
        """Processor seconds of workers in its rounds that are in no task."""
        return self.rounds.workers - sum(self.rounds.tasks.values())


class CalibratedCluster(NamedTuple):
    """Cluster on which trainings were measured.

    Attributes
    ----------
    workers : int
        Workers.
    block : float
        Trained sequences of a block of the text.
    cores : int
        Of the only host; 0 if there are several.
    sending_s : float
        Seconds in which the links carry the increments of the last large training, and cores wait.
    """

    workers: int
    block: float
    cores: int = 0
    sending_s: float = 0.0


def rates_of(
    small: Sequence[MeasuredTraining],
    larger: Sequence[MeasuredTraining],
    divided: MeasuredTraining,
    rates: Rates,
    cluster: CalibratedCluster,
) -> dict[str, float]:
    """Return the rates that follow from some trainings of next to nothing, large ones, and one of many rounds.

    Parameters
    ----------
    small, larger, divided
        The trainings. Work is that of the last large one; cores are busy as in the one that waited least.
    rates : Rates
        With measured times of tasks, and other rates as they stay where they do not follow.
    cluster : CalibratedCluster
        Where they were measured.
    """

    def typical(value: Callable[[MeasuredTraining], float]) -> float:
        return float(median(value(each) for each in small))

    few, large, workers = small[0].regions, larger[-1], cluster.workers
    more = large.regions - few
    found = _message_rates(typical, large, divided, rates, cluster, few)
    messages_s = {name: found[f"{name}_message_s"] for name in ("driver", "worker")}
    splitting = SPLIT_CHAIN * min(workers, few) if more else 0
    read = _read(large, cluster.block)
    messages = large.messages(few, workers) - typical(lambda each: each.messages(few, workers))
    tasks = (large.round_tasks(few) - typical(lambda each: each.round_tasks(few))) / rates.tasks_per_s
    other = sum(value for name, value in large.rounds.tasks.items() if name not in _TEXT)
    text = large.rounds.workers - typical(lambda each: each.rounds.workers) - other - tasks
    text = max(text - messages * messages_s["worker"], _sum(large.rounds.tasks, _TEXT))
    run_s = typical(lambda each: each.ending.workers / each.regions)
    packing = _sum(large.ending.tasks, _PACKING)
    committing = max(large.ending.workers - large.regions * run_s - splitting * messages_s["worker"], packing)
    region_s = rates.commit_region_s
    if more:
        added = large.ending.driver - typical(lambda each: each.ending.driver) - splitting * messages_s["driver"]
        region_s = max(added / more, 1e-3)
    found |= {
        # The least time is that without other work on the machine.
        "start_s": max(min(each.seconds - each.commit_s for each in small), 0.01),
        "commit_s": max(typical(lambda each: each.commit_s), 0.01),
        "commit_region_s": region_s,
        "run_s": max(run_s, 1e-4),
    }
    if cluster.cores:
        shares = [_busy(small, each, cluster.cores, cluster.sending_s) for each in larger]
        found |= {name: max(each[name] for each in shares) for name in shares[0]}
    amounts = {
        "text_per_s": (read, text),
        "packed_bytes_per_s": (large.increment_bytes, _sum(large.rounds.tasks, _PACKING) + packing),
        "written_bytes_per_s": (large.written_bytes, max(committing - packing, _WRITING * committing)),
    }
    return found | {name: amount / seconds for name, (amount, seconds) in amounts.items() if amount > 0 < seconds}


def _read(training: MeasuredTraining, block: float) -> float:
    """Return the sequences of the text that a training has read, in whole blocks."""
    return max(training.rounds.counts.get("tag", 0) * block, training.trained)


def _message_rates(
    typical: Callable[[Callable[[MeasuredTraining], float]], float],
    large: MeasuredTraining,
    divided: MeasuredTraining,
    rates: Rates,
    cluster: CalibratedCluster,
    few: int,
) -> dict[str, float]:
    """Return `Rates.driver_message_s`, `Rates.worker_message_s` and `Rates.driver_per_s`.

    The work of the driver beyond small trainings and its tasks is that of text and of messages. A large training has
    most of the text, one of many rounds most of the messages.
    """

    def beyond(training: MeasuredTraining, value: Callable[[MeasuredTraining], float]) -> float:
        return value(training) - typical(value)

    def tasks_s(training: MeasuredTraining) -> float:
        return beyond(training, lambda each: each.round_tasks(few)) / rates.tasks_per_s

    both = large, divided
    text, more_text = (_read(each, cluster.block) - typical(lambda small: small.trained) for each in both)
    messages, more_messages = (beyond(each, lambda some: some.messages(few, cluster.workers)) for each in both)
    driver, more_driver = (beyond(each, lambda some: some.rounds.driver) - tasks_s(each) for each in both)
    independent = text * more_messages - more_text * messages
    message_s = (text * more_driver - more_text * driver) / independent if independent > 0 else 0.0
    message_s = max(message_s, 1e-4)
    worker_s = (beyond(divided, lambda each: each.other_work) - tasks_s(divided)) / max(more_messages, 1)
    found = {"driver_message_s": message_s, "worker_message_s": max(worker_s, 1e-4)}
    # The dictionaries alone take as long as was measured before.
    text_s = max(driver - messages * message_s, text / rates.driver_per_s)
    return found | ({"driver_per_s": text / text_s} if text > 0 < text_s else {})


def _busy(small: Sequence[MeasuredTraining], large: MeasuredTraining, cores: int, sending_s: float) -> dict[str, float]:
    """Return `Rates.rounds_busy` and `Rates.commit_busy`: by what a large training uses and takes beyond small ones."""

    def share(
        pieces: int, value: Callable[[MeasuredTraining], tuple[ProcessorTimes, float]], sending_s: float = 0.0
    ) -> float:
        used, took = (
            figure(*value(large)) - median(figure(*value(each)) for each in small)
            for figure in (lambda times, _: times.driver + times.workers, lambda _, seconds: seconds)
        )
        took -= sending_s
        # The driver, and workers for each of the pieces that there are.
        return min(used / (min(cores, pieces + 1) * took), 1.0) if used > 0 < took else 1.0

    pieces = int(large.rounds.counts.get("tag", 1))
    return {
        "rounds_busy": share(pieces, lambda each: (each.rounds, each.rounds_s), sending_s),
        "commit_busy": share(large.regions, lambda each: (each.ending, each.seconds - each.rounds_s)),
    }


def _sum(seconds: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(seconds.get(name, 0.0) for name in names)
