"""Share the cores of simulated hosts among the jobs of their workers, which may be slow or be started again.

Slow ones are judged as those of a training are. Times are those of an environment of simpy. Does not cover: what the
jobs are (`simulation`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster.worker_speeds import Reaction, Work
from giaann_dask.planning.hardware import Hardware
from giaann_dask.planning.workloads import Floats, address_of
from giaann_dask.training.slow_workers import SlowWorkers

if TYPE_CHECKING:
    from simpy import Environment, Event

Flags = npt.NDArray[np.bool_]


def then(event: Event, call: Callable[[Event], None]) -> None:
    """Call a function when an event has happened."""
    assert event.callbacks is not None, "it has not happened yet"
    event.callbacks.append(call)


class SerialServer:
    """Server that does one thing after another, in the order of arrival."""

    def __init__(self, env: Environment, per_s: float) -> None:
        self._env, self._per_s = env, per_s
        self.free = self.busy = 0.0

    def reserve(self, amount: float) -> float:
        """Return the time from now until so much is done."""
        self.free = max(self.free, self._env.now) + amount / self._per_s
        self.busy += amount / self._per_s
        return self.free - self._env.now


class Job(NamedTuple):
    """Job of some seconds of its worker, with whose number a function is called at the end; earlier turns are first."""

    turn: float
    seconds: float
    done: Callable[[int], None]


class WorkerPool:
    """Workers whose threads share the cores of hosts.

    Each does its own jobs and those that any may do by their turns, as Dask does earlier submitted tasks first.

    Attributes
    ----------
    turn : float
        Of the jobs that are given next.
    """

    def __init__(self, env: Environment, hardware: Hardware, slowness: Floats, log: Callable[[str, int], None]) -> None:
        self._env, self._log, self._slowness = env, log, slowness
        places = list(hardware.places())
        self.host = np.array([place.host for place in places])
        self.rack = np.array([place.rack for place in places])
        self.computes = [place.kind.computes for place in places]
        self.threads = np.array([place.kind.cores for place in places])
        self._threads = self.threads.tolist()
        self._members: list[deque[int]] = [deque() for _ in range(int(self.host[-1]) + 1)]
        for number, place in enumerate(places):
            self._members[place.host].append(number)
        self._cores = [
            places[members[0]].kind.host_cores or sum(self._threads[each] for each in members)
            for members in self._members
        ]
        self.cores = sum(self._cores)
        self._own: list[deque[Job]] = [deque() for _ in places]
        self._any: deque[Job] = deque()
        self._running: list[dict[int, tuple[Job, bool]]] = [{} for _ in places]
        self._number = 0
        # Seconds of the jobs that only each of them does, and that it has not ended.
        self._occupied = [0.0] * len(places)
        self.turn = 0.0
        self._down: set[int] = set()
        self._idle = deque(range(len(self._members)))
        self._is_idle = [True] * len(self._members)
        self.busy = np.zeros(len(places))

    def run(
        self, seconds: float, done: Callable[[int], None], worker: int | None = None, turn: float | None = None
    ) -> None:
        """Do a job on a worker, or on any that computes; call a function with the number of the worker at its end."""
        job = Job(self.turn if turn is None else turn, seconds, done)
        if worker is not None:
            self._own[worker].append(job)
            self._occupied[worker] += seconds
            self._fill(int(self.host[worker]))
            return
        self._any.append(job)
        for _ in range(len(self._idle)):
            host = self._idle.popleft()
            self._is_idle[host] = False
            self._fill(host)
            if not self._any:
                return

    def run_each(
        self, seconds: Floats, working: Flags, begin: Floats | None = None, turn: float | None = None
    ) -> Event:
        """Return the event that some workers have done a job each, which begin at once or at their times.

        Parameters
        ----------
        seconds, working, begin
            Of each worker: of its job, whether it has one, and the time when this begins.
        turn : float, optional
            Of the jobs; by default that of those given now.
        """
        finished, workers = self._env.event(), np.flatnonzero(working).tolist()
        turn = self.turn if turn is None else turn
        left = [len(workers)]

        def done(_: int) -> None:
            left[0] -= 1
            if not left[0]:
                finished.succeed()

        def run(worker: int, _: Event | None = None) -> None:
            self.run(float(seconds[worker]), done, worker, turn)

        for worker in workers:
            if begin is None:
                run(worker)
            else:
                then(self._env.timeout(max(float(begin[worker]) - self._env.now, 0.0)), partial(run, worker))
        if not workers:
            finished.succeed()
        return finished

    def place(self, seconds: Sequence[float]) -> list[int]:
        """Return which worker does each of some jobs, given their seconds: the least occupied one.

        So does Dask, which does not know how slow workers are.
        """
        heap = [(self._occupied[at] / self.threads[at], at) for at, computes in enumerate(self.computes) if computes]
        heapq.heapify(heap)
        found = []
        for each in seconds:
            occupied, worker = heap[0]
            heapq.heapreplace(heap, (occupied + each / self.threads[worker], worker))
            found.append(worker)
        return found

    def retire(self, worker: int) -> None:
        """Give a worker no more jobs that any may do."""
        self.computes[worker] = False

    def is_down(self, worker: int) -> bool:
        """Return whether a worker is being started again."""
        return worker in self._down

    def fail(self, worker: int, seconds: float) -> None:
        """Stop a worker for some time; what it was doing is done again, by itself or any."""
        host = int(self.host[worker])
        self._down.add(worker)
        for job, own in self._running[worker].values():
            (self._own[worker] if own else self._any).appendleft(job)
            self._threads[worker] += 1
            self._cores[host] += 1
        self._running[worker].clear()
        then(self._env.timeout(seconds), partial(self._restart, worker))
        self._fill(host)

    def _restart(self, worker: int, _: Event) -> None:
        self._down.discard(worker)
        self._fill(int(self.host[worker]))

    def _fill(self, host: int) -> None:
        """Begin jobs on the free cores of a host."""
        members = self._members[host]
        while self._cores[host]:
            for _ in range(len(members)):
                worker = members[0]
                members.rotate(-1)
                if not self._threads[worker] or worker in self._down:
                    continue
                mine, others = self._own[worker], self._any if self.computes[worker] else ()
                if mine or others:
                    own = bool(mine and not (others and others[0].turn < mine[0].turn))
                    self._begin(worker, (mine if own else self._any).popleft(), own)
                    break
            else:
                if not self._is_idle[host]:
                    self._is_idle[host] = True
                    self._idle.append(host)
                return

    def _begin(self, worker: int, job: Job, own: bool) -> None:
        self._threads[worker] -= 1
        self._cores[int(self.host[worker])] -= 1
        self._number += 1
        self._running[worker][self._number] = job, own
        seconds = job.seconds * self._slowness[worker]
        then(self._env.timeout(seconds), partial(self._end, worker, self._number, seconds))

    def _end(self, worker: int, number: int, seconds: float, _: Event) -> None:
        found = self._running[worker].pop(number, None)
        if found is None:
            # The worker was lost meanwhile.
            return
        self.busy[worker] += seconds / self.threads[worker]
        if found[1]:
            self._occupied[worker] -= found[0].seconds
        host = int(self.host[worker])
        self._threads[worker] += 1
        self._cores[host] += 1
        found[0].done(worker)
        self._fill(host)


class _Measured:
    """Job that measures a worker without batches."""

    def __init__(self) -> None:
        self.ended = False

    def done(self) -> bool:
        """Return whether it has ended."""
        return self.ended


class JudgedWorkers:
    """Workers of a pool that count batches, judged by their simulated work as `SlowWorkers` judges real ones.

    Their links are not judged, as no simulated one is slower than others of its tier.

    Parameters
    ----------
    pool : WorkerPool
        The workers.
    slowness : ndarray
        Times that each takes, float64.
    reaction : {"report", "adapt", "retire"}
        To slow workers, at most.
    """

    def __init__(self, pool: WorkerPool, slowness: Floats, reaction: Reaction) -> None:
        self._pool, self._slowness = pool, slowness
        self._slow = SlowWorkers(reaction, self._retire)
        self._present = [address_of(worker) for worker in range(len(pool.host))]
        self._computing = [name for name, computes in zip(self._present, pool.computes, strict=True) if computes]
        self._work: dict[str, Work] = {}
        self._reviews = 0

    def _retire(self, worker: str) -> None:
        self._pool.retire(int(worker))
        for names in (self._present, self._computing):
            if worker in names:
                names.remove(worker)

    def width(self) -> int:
        """Return how many batches of equal size the workers count in the time of the fastest one."""
        return self._slow.width(self._computing)

    def next_workers(self, seconds: Sequence[float]) -> list[int]:
        """Return the workers for the next batches, given their seconds: by shares, where not all are equal."""
        chosen = self._slow.next_workers(self._computing, len(seconds))
        return [int(worker) for worker in chosen] if all(chosen) else self._pool.place(seconds)

    def note(self, worker: int, nbytes: float, seconds: float) -> None:
        """Note that a worker has counted increments of so many bytes, in seconds of one that is not slow."""
        took, name = seconds * float(self._slowness[worker] / self._pool.threads[worker]), address_of(worker)
        self._work[name] = self._work.get(name, Work()).plus(Work(nbytes, took))

    def review(self, owners: Iterable[int]) -> None:
        """Judge the workers by what they have done since the last time; owners of regions are not retired."""
        work, self._work = self._work, {}
        self._slow.review(self._reviews, work, {*self._present}, {*map(address_of, owners)})
        self._reviews += 1

    def measure(self, nbytes: float, seconds: float) -> None:
        """Let workers that get no batches count one, now and then."""

        def submit(worker: str, _: str) -> _Measured:
            task = _Measured()

            def ended(number: int) -> None:
                task.ended = True
                self.note(number, nbytes, seconds)

            self._pool.run(seconds, ended, int(worker))
            return task

        self._slow.measure(self._computing, submit)

    def region_shares(self) -> dict[str, float]:
        """Return the share of regions of each slow worker, by address."""
        return self._slow.region_shares()

    def named(self) -> dict[str, str]:
        """Return how each worker was judged last that has been slow, by address."""
        return self._slow.named()
