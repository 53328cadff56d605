"""Give slow workers less work, and retire those that only delay the others, as `worker_speeds` judges them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

import numpy as np
from distributed import Client

from giaann_dask.cluster import directed, query_scheduler
from giaann_dask.cluster.worker_speeds import ROUNDS, STEPS, Reaction, Verdict, Work, WorkerSpeeds
from giaann_dask.errors import ClusterError
from giaann_dask.events import WorkerJudged

_LOG = logging.getLogger(__name__)
# How long the other workers may take to receive what a retired one holds, until training goes on meanwhile.
_RETIRING_S = 60.0

Places = Mapping[str, tuple[int, float]]
"""Batches of a round for each worker, and its share; worker "" for any."""


class Measurement(Protocol):
    """Task, submitted or simulated, that measures a worker."""

    def done(self) -> bool:
        """Return whether it has ended."""


class SlowWorkers:
    """Judgement of the workers of a training, or of a simulated one, and what follows from it.

    Parameters
    ----------
    reaction : {"report", "adapt", "retire"}
        To slow workers, at most.
    retire : callable
        Lets a worker, given by its address, leave the cluster.
    """

    def __init__(self, reaction: Reaction, retire: Callable[[str], None]) -> None:
        self._reaction, self._retire = reaction, retire
        self._speeds = WorkerSpeeds()
        # Batches that each worker is owed, where blocks are divided.
        self._owed: dict[str, float] = {}
        self._named: dict[str, Verdict] = {}
        # Of workers that get no batches: when each was measured last, and the task that does.
        self._reviews = 0
        self._measured: dict[str, tuple[int, Measurement]] = {}

    def review(
        self, number: int, work: Mapping[str, Work], present: Set[str], needed: Set[str] = frozenset()
    ) -> list[WorkerJudged]:
        """Judge the present workers by their work until the end of a round; return what has changed.

        Nothing changes where workers did not answer. Those that are needed are not retired.
        """
        if not work:
            return []
        before, told = self._speeds.slow(), {each: work.get(each, Work()) for each in sorted(present)}
        self._speeds, self._reviews = self._speeds.review(told, self._reaction, needed), self._reviews + 1
        slow = self._speeds.slow()
        self._named |= slow
        events = []
        for worker in sorted(before.keys() | slow.keys()):
            now = self._speeds.verdicts.get(worker)
            if now is None or now.step == before.get(worker, Verdict()).step:
                continue
            events.append(WorkerJudged(number, worker, STEPS[now.step], now.cause, round(now.speed, 3)))
            if now.step == len(STEPS) - 1:
                self._retire(worker)
        return events

    def _shares(self, workers: Sequence[str]) -> dict[str, float]:
        return {} if self._reaction == "report" else self._speeds.shares(workers)

    def places(self, workers: Sequence[str], batches: int) -> Places:
        """Return the batches of a round for each worker, given those of an equal one, and its share."""
        shares = self._shares(workers)
        if not shares:
            return {"": (max(1, len(workers)) * batches, 1.0)}
        return {worker: (batches, share) for worker, share in shares.items()}

    def width(self, workers: Sequence[str]) -> int:
        """Return how many batches of equal size some workers count in the time of the fastest one."""
        shares = self._shares(workers)
        return max(1, round(sum(shares.values())) if shares else len(workers))

    def next_workers(self, workers: Sequence[str], count: int = 1) -> list[str]:
        """Return the workers for the next batches, by shares; empty names for any, where all are equal."""
        shares = self._shares(workers)
        if not shares:
            return [""] * count
        # Of several that are owed the same the last by name.
        names = sorted(shares, reverse=True)
        share = np.array([shares[worker] for worker in names])
        owed, total = np.array([self._owed.get(worker, 0.0) for worker in names]), float(share.sum())
        found = []
        for _ in range(count):
            owed += share
            place = int(np.argmax(owed))
            owed[place] -= total
            found.append(names[place])
        self._owed = dict(zip(names, owed.tolist(), strict=True))
        return found

    def measure(self, workers: Sequence[str], submit: Callable[[str, str], Measurement]) -> None:
        """Measure the workers that get no batches again, one task at a time, which nothing waits for.

        Parameters
        ----------
        workers : sequence of str
            That compute.
        submit : callable
            Given such a worker and the fastest one, submits a task for the first whose result the second receives.
        """
        shares = self._shares(workers)
        idle = [worker for worker in workers if shares and worker not in shares]
        self._measured = {worker: self._measured[worker] for worker in idle if worker in self._measured}
        fastest = max(shares, key=lambda each: shares[each], default="")
        for worker in idle:
            reviews, task = self._measured.get(worker, (self._reviews - ROUNDS, None))
            if self._reviews - reviews >= ROUNDS and (task is None or task.done()):
                self._measured[worker] = self._reviews, submit(worker, fastest)

    def region_shares(self) -> dict[str, float]:
        """Return the share of regions of each slow worker."""
        return {} if self._reaction == "report" else self._speeds.region_shares()

    def named(self) -> dict[str, str]:
        """Return how each worker was judged last that has been slow."""
        return {worker: f"{_speed(verdict)}, {STEPS[verdict.step]}" for worker, verdict in sorted(self._named.items())}


def at(worker: str) -> dict[str, object]:
    """Return the arguments of `Client.submit` that prefer a worker; none without."""
    return directed((worker,) if worker else ())


def retire_worker(client: Client, worker: str) -> None:
    """Let Dask move what a worker holds to others, and close it."""
    try:
        query_scheduler(client, "retire_workers", limit_s=_RETIRING_S, workers=[worker], close_workers=True)
    except ClusterError as error:
        # It gets no work, and the training goes on without its end.
        _LOG.warning("worker %s could not be retired: %s", worker, error)


def describe(judged: WorkerJudged, reaction: Reaction = "retire") -> str:
    """Return what has become of a worker, for a person.

    Examples
    --------
    >>> describe(WorkerJudged(7, "tcp://a:1", STEPS[2], "link", 0.25))
    'worker tcp://a:1 is slow (link, 0.25 times as fast as its peers): it loses its regions'
    """
    if not judged.cause:
        return f"worker {judged.worker} is as fast as its peers again"
    follows = "" if reaction == "report" else f": it {judged.step}"
    return f"worker {judged.worker} is slow ({_speed(judged)}){follows}"


def _speed(judged: WorkerJudged | Verdict) -> str:
    return f"{judged.cause}, {judged.speed:.2f} times as fast as its peers"
