"""Share the cores and links of simulated hosts, racks and sites among workers.

Workers may be slow or be started again. Slow ones are judged as those of a training are. Times are those of an
environment of simpy. Does not cover: what workers do and what rounds send (`simulation`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster.worker_speeds import Reaction, Work
from giaann_dask.keys import Integers
from giaann_dask.training.slow_workers import SlowWorkers
from simulation.hardware import COMPRESSED, SHARED_TIERS, Hardware, Tier
from simulation.workloads import ComposedRound, Floats, address_of

if TYPE_CHECKING:
    from simpy import Environment, Event

# Transfers that a worker of Dask receives at the same time (`distributed.worker.connections.incoming`).
_CONNECTIONS = 10

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

    def __init__(self, env: Environment, hardware: Hardware, slowness: Floats) -> None:
        self._env, self._slowness = env, slowness
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

        def submit(worker: str, _: str) -> Future[None]:
            task = Future[None]()

            def ended(number: int) -> None:
                task.set_result(None)
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


class Traffic(NamedTuple):
    """Bytes that the workers of a round send and receive, by the tier of link; float64 by worker."""

    sent: dict[Tier, Floats]
    received: dict[Tier, Floats]
    messages: Integers
    owned: Floats
    touched: Integers
    # Worker and kind of each batch; kinds of batches, and the owners to whom they send.
    worker: Integers
    kind: Integers
    entry: Integers
    owner: Integers


class SharedLinks:
    """Links of all tiers in both directions; each carries its bytes one after another."""

    def __init__(self, hardware: Hardware, pool: WorkerPool) -> None:
        self._links = hardware.links
        self.numbers: dict[Tier, Integers] = {"host": np.arange(len(pool.host)), "rack": pool.host, "site": pool.rack}
        count = {tier: int(numbers.max()) + 1 for tier, numbers in self.numbers.items()}
        ways = [(tier, received) for tier in SHARED_TIERS for received in (False, True)]
        self._free = {way: np.zeros(count[way[0]]) for way in ways}
        self.busy = {way: np.zeros(count[way[0]]) for way in ways}
        self.tier_bytes: dict[Tier, float] = dict.fromkeys(SHARED_TIERS, 0.0)

    def carry(self, tier: Tier, received: bool, nbytes: Floats, begin: Floats | float) -> Floats:
        """Return until when the links of a tier have carried the bytes of each worker."""
        link, numbers, way = self._links[tier], self.numbers[tier], (tier, received)
        load = sum_by_number(numbers, nbytes, len(self._free[way]))
        used = np.flatnonzero(load)
        began = np.zeros(len(load))
        np.maximum.at(began, numbers, np.broadcast_to(begin, numbers.shape))
        start = np.maximum(began, self._free[way])[used]
        end = start + load[used] / link.bandwidth
        self._free[way][used] = end
        self.busy[way][used] += end - start
        self.tier_bytes[tier] += 0.0 if received else float(load.sum())
        done = np.array(began)
        done[used] = end
        return np.where(nbytes > 0, done[numbers], 0.0)

    def move(self, traffic: Traffic, now: float, ready: float) -> Floats:
        """Return when the increments of a round have come to each owner, which takes them from a time on.

        Parameters
        ----------
        traffic : Traffic
            Of the round.
        now, ready : float
            When increments are sent, and from when on owners take them.
        """
        gone = np.full(len(traffic.messages), now)
        latency = np.zeros(len(gone))
        for tier in SHARED_TIERS:
            gone = np.maximum(gone, self.carry(tier, False, traffic.sent[tier], now))
            turns = np.ceil(traffic.messages / _CONNECTIONS) * (traffic.sent[tier] > 0)
            latency = np.maximum(latency, turns * self._links[tier].latency)
        # An owner has everything when the slowest of those that send to it has sent.
        slowest = np.zeros(int(traffic.kind.max(initial=-1)) + 1)
        np.maximum.at(slowest, traffic.kind, (gone + latency)[traffic.worker])
        arrived = np.full(len(gone), ready)
        np.maximum.at(arrived, traffic.owner, slowest[traffic.entry])
        for tier in SHARED_TIERS:
            begin = now + np.where(traffic.received[tier] > 0, self._links[tier].latency, 0.0)
            arrived = np.maximum(arrived, self.carry(tier, True, traffic.received[tier], begin))
        return arrived


def traffic_of(batches: ComposedRound, worker: Integers, owner_of: Integers, links: SharedLinks) -> Traffic:
    """Return what the counted batches of a round send to the owners of regions.

    Parameters
    ----------
    batches : ComposedRound
        The round.
    worker : ndarray
        Which worker counted each batch.
    owner_of : ndarray
        The owner of each region.
    links : SharedLinks
        Between workers.
    """
    table, kind = batches.table, batches.kind
    total, kinds = len(links.numbers["host"]), len(table.sequences)
    pairs, inverse = np.unique(table.batch * total + owner_of[table.region], return_inverse=True)
    nbytes = sum_by_number(inverse, table.nbytes, len(pairs))
    entry, owner = pairs // total, pairs % total
    alike = np.bincount(kind, minlength=kinds)
    whole = sum_by_number(entry, nbytes, kinds)
    sent: dict[Tier, Floats] = {}
    received: dict[Tier, Floats] = {}
    for tier, number in links.numbers.items():
        places = int(number.max()) + 1
        inside = _sums_of(entry * places + number[owner], nbytes, kind * places + number[worker])
        sent[tier] = sum_by_number(worker, np.maximum(whole[kind] - inside, 0.0), total)
        sent[tier][sent[tier] < 1e-6 * sent[tier].max(initial=0)] = 0.0
        near = _sums_of(kind * places + number[worker], np.ones(len(worker)), entry * places + number[owner])
        received[tier] = sum_by_number(owner, nbytes * (alike[entry] - near), total)
        if tier != "host":
            sent[tier], received[tier] = COMPRESSED * sent[tier], COMPRESSED * received[tier]
    touched = np.flatnonzero(np.bincount(table.region, batches.times))
    messages = np.bincount(worker, np.bincount(entry, minlength=kinds)[kind], minlength=total).astype(np.int64)
    return Traffic(
        sent=sent,
        received=received,
        messages=messages,
        owned=sum_by_number(owner, nbytes * alike[entry], total),
        touched=np.bincount(owner_of[touched], minlength=total),
        worker=worker,
        kind=kind,
        entry=entry,
        owner=owner,
    )


def _sums_of(keys: Integers, values: Floats, wanted: Integers) -> Floats:
    """Return for each wanted key the sum of the values with this key."""
    known, inverse = np.unique(keys, return_inverse=True)
    sums = sum_by_number(inverse, values, len(known))
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, sums[at], 0.0)


def sum_by_number(numbers: Integers, values: Floats, count: int) -> Floats:
    """Return the sum of the values of each number, of so many or more."""
    return np.bincount(numbers, values, minlength=count).astype(np.float64)
