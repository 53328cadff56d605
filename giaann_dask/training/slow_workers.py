"""Ask workers what they have counted and moved after every round, and give slow ones less work.

Workers count bytes that stayed with the owners of regions or were moved, and their work
(`giaann_dask.cluster.locality`). Slow workers, as `giaann_dask.cluster.worker_speeds` judges them, get less work, and
those that only delay the others are retired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

import numpy as np
from distributed import Client

from giaann_dask.cluster import query_scheduler
from giaann_dask.cluster.locality import COUNTS, locality_of, total
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.cluster.worker_speeds import ROUNDS, STEPS, Reaction, Verdict, Work, WorkerSpeeds
from giaann_dask.errors import ClusterError
from giaann_dask.events import DataMoved, WorkerJudged

_LOG = logging.getLogger(__name__)
# How long the other workers may take to receive what a retired one holds, until training goes on meanwhile.
_RETIRING_S = 60.0
Places = Mapping[str, tuple[int, float]]
"""Batches of a round for each worker, and its share; worker "" for any."""

# What is moved so long after workers have changed is moved because of that.
_CHANGED_S = 5.0
# A worker that does not answer for so long may hang: nobody is asked again for some time, so that rounds go on.
_PATIENCE_S, _PAUSE_S = 2.0, 60.0


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


class DataMoves:
    """Sums of what workers have told, of which events are made.

    Parameters
    ----------
    client : Client
        Of the cluster.
    workers : set of str
        Addresses of its workers.

    Attributes
    ----------
    work : dict of str to Work
        Of each worker between the last two events; empty where workers did not answer.
    """

    def __init__(self, client: Client, workers: Set[str] = frozenset()) -> None:
        self._client, self._workers = client, workers
        # What workers told last, also of those that are gone; and the sums at the last event.
        self._told: dict[str, dict[str, int]] = {}
        self._before: dict[str, int] = {}
        self._worked: dict[str, Work] = {}
        self.work: dict[str, Work] = {}
        self._stayed = 0
        self._changed_at = float("-inf")
        self._ask_from = float("-inf")
        # What was moved before is left out.
        self.since(0)

    def note_workers(self, present: Set[str]) -> None:
        """Note and log which workers have left or joined, so that regions have other owners."""
        if present != self._workers:
            self._changed_at = time.monotonic()
        for event, changed in (("lost", self._workers - present), ("came", present - self._workers)):
            if changed:
                _LOG.info("workers %s: %s; now there are %s", event, ", ".join(sorted(changed)), len(present))
        self._workers = present

    def since(self, number: int) -> DataMoved:
        """Return the event of what was moved since the last one, up to the end of a round."""
        found = {}
        if time.monotonic() >= self._ask_from:
            try:
                found = ask_workers(self._client, locality_of, limit_s=_PATIENCE_S)
            except ClusterError:
                # Whether the cluster is lost is found out by those who need it.
                self._ask_from = time.monotonic() + _PAUSE_S
        counts = {worker: told for worker, told in found.items() if isinstance(told, dict)}
        worked = {worker: told.get("work", Work()) for worker, told in counts.items()}
        self.work = {worker: _new(work, self._worked.get(worker, Work())) for worker, work in worked.items()}
        self._worked |= worked
        self._take(counts)
        return self._event(number)

    def _take(self, told: Mapping[str, Mapping[str, int]]) -> None:
        for worker, counts in told.items():
            before = self._told.get(worker, {})
            self._told[worker] = {name: max(counts.get(name, 0), before.get(name, 0)) for name in COUNTS}

    def _event(self, number: int) -> DataMoved:
        sums = total(self._told.values())
        new = {name: sums[name] - self._before.get(name, 0) for name in COUNTS}
        self._before = sums
        # Of what is used, bytes that were received are counted earlier.
        stayed = max(sums["used_bytes"] - sums["increment_bytes"] - sums["run_bytes"], self._stayed)
        staying, self._stayed = stayed - self._stayed, stayed
        changed = time.monotonic() - self._changed_at < _CHANGED_S
        runs, read = new["run_bytes"], new["read_bytes"]
        return DataMoved(
            number,
            stayed_bytes=staying,
            increment_bytes=new["increment_bytes"],
            stolen_bytes=0 if changed else runs,
            reassigned_bytes=runs + read if changed else 0,
            read_bytes=0 if changed else read,
            spilled_bytes=new["spilled_bytes"],
            other_bytes=new["other_bytes"],
        )


def _new(work: Work, before: Work) -> Work:
    """Return the work since some earlier work; all of it where another worker has come at the same address."""
    return work if work.nbytes < before.nbytes or work.moved < before.moved else work.plus(before, -1)
