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
    larger: tuple[MeasuredTraining, MeasuredTraining],
    divided: MeasuredTraining,
    rates: Rates,
    cluster: CalibratedCluster,
) -> dict[str, float]:
    """Return the rates that follow from some trainings of next to nothing, large ones, and one of many rounds.

    Parameters
    ----------
    small, larger, divided
        The trainings. Of two large ones, the first is smaller and has as many regions.
    rates : Rates
        With measured times of tasks, and other rates as they stay where they do not follow.
    cluster : CalibratedCluster
        Where they were measured.
    """
    measured = _MeasuredTrainings(small, *larger, divided, rates, cluster)
    found = measured.message_rates()
    found |= measured.text_rates(found["worker_message_s"])
    found |= measured.commit_rates(found["driver_message_s"], found["worker_message_s"])
    found["start_s"] = max(measured.typical(lambda each: each.seconds - each.commit_s), 0.01)
    return found | (measured.busy_shares() if cluster.cores else {})


class _MeasuredTrainings(NamedTuple):
    """Trainings of a calibration; small ones have what every training takes."""

    small: Sequence[MeasuredTraining]
    middle: MeasuredTraining
    large: MeasuredTraining
    divided: MeasuredTraining
    rates: Rates
    cluster: CalibratedCluster

    @property
    def few(self) -> int:
        """Regions with which a training begins."""
        return self.small[0].regions

    @property
    def read(self) -> float:
        """Sequences of the text that the large training has read, in whole blocks."""
        return max(self.large.rounds.counts.get("tag", 0) * self.cluster.block, self.large.trained)

    @property
    def splitting(self) -> int:
        """Messages by which regions are split after all rounds."""
        return SPLIT_CHAIN * min(self.cluster.workers, self.few) if self.large.regions > self.few else 0

    def typical(self, value: Callable[[MeasuredTraining], float]) -> float:
        """Return the median value of the small trainings."""
        return float(median(value(each) for each in self.small))

    def beyond(self, training: MeasuredTraining, value: Callable[[MeasuredTraining], float]) -> float:
        """Return by how much the value of a training is more than that of the small ones."""
        return value(training) - self.typical(value)

    def tasks_s(self, training: MeasuredTraining) -> float:
        """Return the seconds of tasks without work of the rounds of a training, of the driver or of workers."""
        return self.beyond(training, lambda each: each.round_tasks(self.few)) / self.rates.tasks_per_s

    def messages(self, training: MeasuredTraining) -> float:
        """Return the messages by which these are submitted."""
        return self.beyond(training, lambda each: each.messages(self.few, self.cluster.workers))

    def message_rates(self) -> dict[str, float]:
        """Return `Rates.driver_message_s`, `Rates.worker_message_s` and `Rates.driver_per_s`.

        The work of the driver beyond tasks is that of text and of messages. The large training has most of the text,
        the one of many rounds most of the messages.
        """
        text = self.read - self.typical(lambda each: each.trained)
        more_text = self.beyond(self.divided, lambda each: each.trained)
        messages, more_messages = self.messages(self.large), self.messages(self.divided)
        driver, more_driver = (
            self.beyond(each, lambda some: some.rounds.driver) - self.tasks_s(each)
            for each in (self.large, self.divided)
        )
        independent = text * more_messages - more_text * messages
        message_s = (text * more_driver - more_text * driver) / independent if independent > 0 else 0.0
        other_s = self.beyond(self.divided, lambda each: each.other_work) - self.tasks_s(self.divided)
        found = {
            "driver_message_s": max(message_s, 1e-4),
            "worker_message_s": max(other_s / max(more_messages, 1), 1e-4),
        }
        # The dictionaries alone take as long as was measured before.
        text_s = max(driver - messages * found["driver_message_s"], text / self.rates.driver_per_s)
        return found | ({"driver_per_s": text / text_s} if text > 0 < text_s else {})

    def text_rates(self, message_s: float) -> dict[str, float]:
        """Return `Rates.text_per_s`, given the seconds of a worker for a message."""
        large = self.large
        other = sum(value for name, value in large.rounds.tasks.items() if name not in _TEXT)
        other += self.tasks_s(large) + self.messages(large) * message_s
        text_s = self.beyond(large, lambda each: each.rounds.workers) - other
        return _divided({"text_per_s": (self.read, max(text_s, _sum(large.rounds.tasks, _TEXT)))})

    def commit_rates(self, driver_message_s: float, worker_message_s: float) -> dict[str, float]:
        """Return the rates of commits, of packing and of writing, given the seconds of a message."""
        large, more, splitting = self.large, self.large.regions - self.few, self.splitting
        packing = _sum(large.ending.tasks, _PACKING)
        work_s = large.ending.workers - splitting * worker_message_s
        if more:
            increments_s = self._increments_s(packing)
            run_s = (work_s - increments_s - self.typical(lambda each: each.ending.workers)) / more
        else:
            run_s = self.typical(lambda each: each.ending.workers / each.regions)
            increments_s = max(work_s - large.regions * run_s, packing)
        region_s = self.rates.commit_region_s
        if more:
            added = self.beyond(large, lambda each: each.ending.driver) - splitting * driver_message_s
            region_s = max(added / more, 1e-3)
        found = {
            "commit_s": max(self.typical(lambda each: each.commit_s), 0.01),
            "commit_region_s": region_s,
            "run_s": max(run_s, 1e-4),
        }
        amounts = {
            "packed_bytes_per_s": (large.increment_bytes, _sum(large.rounds.tasks, _PACKING) + packing),
            "written_bytes_per_s": (large.written_bytes, max(increments_s - packing, _WRITING * increments_s)),
        }
        return found | _divided(amounts)

    def _increments_s(self, packing: float) -> float:
        """Return what workers do for the increments of the large training at its end, beside what regions take.

        It follows from the one with as many regions and fewer increments; it is what tasks pack, at least.
        """
        more = self.large.increment_bytes - self.middle.increment_bytes
        if self.middle.regions != self.large.regions or more <= 0:
            return packing
        work_s = self.large.ending.workers - self.middle.ending.workers
        return max(work_s * self.large.increment_bytes / more, packing)

    def busy_shares(self) -> dict[str, float]:
        """Return `Rates.rounds_busy` and `Rates.commit_busy`: by what the large training uses and takes beyond others.

        For some of the time links carry increments, and steps of splitting regions wait for each other.
        """
        rounds = self.beyond(self.large, lambda each: each.rounds.driver + each.rounds.workers)
        rounds_s = self.beyond(self.large, lambda each: each.rounds_s) - self.cluster.sending_s
        ending = self.beyond(self.large, lambda each: each.ending.driver + each.ending.workers)
        ending_s = self.beyond(self.large, lambda each: each.seconds - each.rounds_s)
        ending_s -= SPLIT_CHAIN * self.rates.task_s if self.splitting else 0.0

        def share(used: float, took: float, pieces: int) -> float:
            # The driver, and workers for each of the pieces that there are.
            return min(used / (min(self.cluster.cores, pieces + 1) * took), 1.0) if used > 0 < took else 1.0

        blocks = int(self.large.rounds.counts.get("tag", 1))
        return {
            "rounds_busy": share(rounds, rounds_s, blocks),
            "commit_busy": share(ending, ending_s, self.large.regions),
        }


def _divided(amounts: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return amounts by the seconds that they took, where both are known."""
    return {name: amount / seconds for name, (amount, seconds) in amounts.items() if amount > 0 < seconds}


def _sum(seconds: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(seconds.get(name, 0.0) for name in names)
