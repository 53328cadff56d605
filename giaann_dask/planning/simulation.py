"""Simulate the rounds of a training on hardware by discrete events, with contention for cores, links and memory.

What is done follows `workloads`: rounds, selection, placement, owners and compaction are those of training. Only time
is simulated. A stage of a worker in a round is one event, so that rounds of ten thousand workers take seconds.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import data_budget
from giaann_dask.cluster.regions import STORED_TOGETHER
from giaann_dask.errors import require_at_least, require_option
from giaann_dask.keys import Integers
from giaann_dask.keywords import names_keywords
from giaann_dask.lazy import import_optional
from giaann_dask.planning.costs import TrainingConfiguration
from giaann_dask.planning.hardware import Hardware, Tier
from giaann_dask.planning.workloads import ComposedRound, Floats, SequenceSample, owners_of
from giaann_dask.runs.merging import plan_compaction
from giaann_dask.training.exchange_rule import RoundShape, choose_exchange

if TYPE_CHECKING:
    from simpy import Environment, Event

Flags = npt.NDArray[np.bool_]

# Transfers that a worker of Dask receives at the same time (`distributed.worker.connections.incoming`).
_CONNECTIONS = 10
# Tiers whose links workers share, and by what a link is numbered.
_SHARED: tuple[Tier, ...] = ("host", "rack", "site")
# Seconds until a worker that is lost has been started again.
_RESTART_S = 10.0
# Share of the time from which cores are busy, although some worker is busier.
_BUSY = 0.8
# Tasks of a region in a commit: pack, measure, write, open. Characters and tasks of a block of text.
_COMMIT_TASKS, _BLOCK, _BLOCK_TASKS = 4, 262_144, 4
# Runs of rounds that become one, share of the memory of data for rounds in flight, and what is left of small runs
# at the end (`giaann_dask.training.regions`, `giaann_dask.training.trainer`).
_TOGETHER, _IN_FLIGHT_SHARE, _COMPACT_FRACTION = 8, 1 / 3, 1 / 2


@names_keywords
@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of a simulation.

    Parameters
    ----------
    rounds : int, optional
        Rounds of sequences that are drawn from the sample; by default the sample is trained once.
    text : bool
        Whether workers also encode the text.
    hierarchical : bool
        Whether workers of a host add up and pack their increments before these cross to another host.
    network_bytes : int
        Packed bytes that the storage workers have at the beginning.
    stragglers : float
        Share of workers that are slow.
    slowdown : float
        Times that a slow worker takes.
    commit_seconds : float
        Time between two commits; there is one at the end.
    seed : int
        Of what is drawn: sequences, slow workers, failures.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    rounds: int | None = None
    text: bool = False
    hierarchical: bool = False
    network_bytes: int = 0
    stragglers: float = 0.0
    slowdown: float = 4.0
    commit_seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, "rounds", "slowdown")
        require_at_least(0, self, "network_bytes", "seed")
        require_option(0 <= self.stragglers <= 1, "stragglers", self.stragglers, "0 to 1")
        require_option(self.commit_seconds > 0, "commit_seconds", self.commit_seconds, "more than 0")


class Transfer(NamedTuple):
    """Bytes that some links of a tier carried in one round.

    Attributes
    ----------
    tier : str
        Of the links.
    received : bool
        Whether it was received, else sent.
    link : ndarray
        Numbers of workers, hosts or racks; int64.
    begin, end, nbytes : ndarray
        Seconds, and bytes; float64.
    """

    tier: Tier
    received: bool
    link: Integers
    begin: Floats
    end: Floats
    nbytes: Floats


@dataclass(frozen=True, kw_only=True)
class SimulatedTraining:
    """Outcome of a simulation.

    Attributes
    ----------
    workers, compute_workers : int
        Workers, and those that compute.
    sequences : int
        Sequences of all rounds, each integrated once.
    rounds_s, seconds : float
        Until the last round was integrated, and until the last commit.
    used : mapping of str to float
        Share of the time of rounds in which cores, scheduler, driver and the busiest link of each tier were used.
    tier_bytes : mapping of str to float
        Bytes that crossed links, by tier.
    tasks, messages : int
        Tasks of rounds and commits, and increments that were sent to another worker.
    shared_touches : float
        Share of the messages to a region that met another of the round.
    failures, recounted : int
        Workers that were lost, and sequences that were counted again for that.
    memory_bytes : float
        Most memory that a storage worker took.
    events : int
        Events.
    digest : int
        Checksum of all events and their times.
    transfers : tuple of Transfer
        What links carried.
    """

    workers: int
    compute_workers: int
    sequences: int
    rounds_s: float
    seconds: float
    used: Mapping[str, float]
    tier_bytes: Mapping[Tier, float]
    tasks: int
    messages: int
    shared_touches: float
    failures: int
    recounted: int
    memory_bytes: float
    events: int
    digest: int
    transfers: tuple[Transfer, ...] = field(repr=False, compare=False)

    @property
    def rate(self) -> float:
        """Sequences per second while rounds go on."""
        return self.sequences / self.rounds_s

    @property
    def cause(self) -> str:
        """Most used resource, cores if they were; ``latency of rounds`` where nothing was used for half of the time."""
        name = max(self.used, key=self.used.__getitem__)
        name = "cores" if self.used["cores"] >= _BUSY else name
        return name if self.used[name] >= 0.5 else "latency of rounds"


class _Run(NamedTuple):
    """Run of a region."""

    rank: int
    sequences: float
    # Bytes of its increments, as they came.
    nbytes: float
    packed: bool = False
    stored: bool = False


class _Server:
    """Server that does one thing after another, in the order of arrival."""

    def __init__(self, env: Environment, per_s: float) -> None:
        self._env, self._per_s = env, per_s
        self.free = self.busy = 0.0

    def reserve(self, amount: float) -> float:
        """Return the time from now until so much is done."""
        self.free = max(self.free, self._env.now) + amount / self._per_s
        self.busy += amount / self._per_s
        return self.free - self._env.now


class _Job(NamedTuple):
    seconds: float
    done: Callable[[int], None]


class _Pool:
    """Workers whose threads share the cores of hosts; each does its own jobs first, then those that any may do."""

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
        self._own: list[deque[_Job]] = [deque() for _ in places]
        self._any: deque[_Job] = deque()
        self._running: list[dict[int, tuple[_Job, bool]]] = [{} for _ in places]
        self._number = 0
        self._down: set[int] = set()
        self._idle = deque(range(len(self._members)))
        self._is_idle = [True] * len(self._members)
        self.busy = np.zeros(len(places))

    def run(self, seconds: float, done: Callable[[int], None], worker: int | None = None) -> None:
        """Do a job on a worker, or on any that computes; call a function with the number of the worker at its end."""
        job = _Job(seconds, done)
        if worker is not None:
            self._own[worker].append(job)
            self._fill(int(self.host[worker]))
            return
        self._any.append(job)
        for _ in range(len(self._idle)):
            host = self._idle.popleft()
            self._is_idle[host] = False
            self._fill(host)
            if not self._any:
                return

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
        _then(self._env.timeout(seconds), partial(self._restart, worker))
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
                own = bool(self._own[worker])
                if own or (self._any and self.computes[worker]):
                    self._begin(worker, (self._own[worker] if own else self._any).popleft(), own)
                    break
            else:
                if not self._is_idle[host]:
                    self._is_idle[host] = True
                    self._idle.append(host)
                return

    def _begin(self, worker: int, job: _Job, own: bool) -> None:
        self._threads[worker] -= 1
        self._cores[int(self.host[worker])] -= 1
        self._number += 1
        self._running[worker][self._number] = job, own
        seconds = job.seconds * self._slowness[worker]
        _then(self._env.timeout(seconds), partial(self._end, worker, self._number, seconds))

    def _end(self, worker: int, number: int, seconds: float, _: Event) -> None:
        found = self._running[worker].pop(number, None)
        if found is None:
            # The worker was lost meanwhile.
            return
        self.busy[worker] += seconds / self.threads[worker]
        host = int(self.host[worker])
        self._threads[worker] += 1
        self._cores[host] += 1
        found[0].done(worker)
        self._fill(host)


class _Links:
    """Links of all tiers in both directions; each carries its bytes one after another."""

    def __init__(self, hardware: Hardware, pool: _Pool) -> None:
        self._links = hardware.links
        self.numbers: dict[Tier, Integers] = {"host": np.arange(len(pool.host)), "rack": pool.host, "site": pool.rack}
        count = {tier: int(numbers.max()) + 1 for tier, numbers in self.numbers.items()}
        ways = [(tier, received) for tier in _SHARED for received in (False, True)]
        self._free = {way: np.zeros(count[way[0]]) for way in ways}
        self.busy = {way: np.zeros(count[way[0]]) for way in ways}
        self.tier_bytes: dict[Tier, float] = dict.fromkeys(_SHARED, 0.0)
        self.transfers: list[Transfer] = []

    def carry(self, tier: Tier, received: bool, nbytes: Floats, begin: Floats | float) -> Floats:
        """Return until when the links of a tier have carried the bytes of each worker."""
        link, numbers, way = self._links[tier], self.numbers[tier], (tier, received)
        load = _by(numbers, nbytes, len(self._free[way]))
        used = np.flatnonzero(load)
        began = np.zeros(len(load))
        np.maximum.at(began, numbers, np.broadcast_to(begin, numbers.shape))
        start = np.maximum(began, self._free[way])[used]
        end = start + load[used] / link.bandwidth
        self._free[way][used] = end
        self.busy[way][used] += end - start
        self.tier_bytes[tier] += 0.0 if received else float(load.sum())
        self.transfers.append(Transfer(tier, received, used, start, end, load[used]))
        done = np.array(began)
        done[used] = end
        return np.where(nbytes > 0, done[numbers], 0.0)


class _Traffic(NamedTuple):
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


class _Simulation:
    """State of one simulation."""

    def __init__(
        self,
        workload: SequenceSample,
        hardware: Hardware,
        configuration: TrainingConfiguration,
        options: SimulationOptions,
    ) -> None:
        simpy = import_optional("simpy", "plan")
        self._env: Environment = simpy.Environment()
        self._workload, self._hardware = workload, hardware
        self._configuration, self._options = configuration, options
        self._rates = rates = hardware.rates
        kinds = hardware.workers
        count = sum(kind.count for kind in kinds)
        self._rng = np.random.default_rng(options.seed)
        slow = self._rng.random(count) < options.stragglers
        self._events, self._digest = 0, 0
        self._pool = _Pool(self._env, hardware, np.where(slow, options.slowdown, 1.0), self._log)
        self._links = _Links(hardware, self._pool)
        self._scheduler = _Server(self._env, rates.tasks_per_s)
        self._driver = _Server(self._env, rates.driver_per_s)
        self._width = sum(kind.count for kind in hardware.computing())
        storing = sum(kind.count for kind in hardware.storing())
        regions = max(configuration.regions, storing)
        self._placed = workload.place(configuration, regions, storing)
        self._owner = owners_of(hardware, self._placed)
        self._runs: dict[int, tuple[_Run, ...]] = {}
        limits = np.array([place.kind.memory_bytes for place in hardware.places()], np.float64)
        self._limit = np.array([data_budget(int(limit)) for limit in limits], np.float64)
        self._held = np.bincount(self._owner, self._placed.share * options.network_bytes, minlength=count)
        self._most = float(self._held.max())
        self._in_flight = 0
        self._largest_round = 0.0
        self._changed: Event = self._env.event()
        self._unfinished = 0
        self._uncommitted: list[ComposedRound] = []
        self._commit_took = 0.0
        self._sequences = self._tasks = self._messages = self._failures = self._recounted = 0
        self._entries = self._overlapping = 0
        self._rounds_s = self._busy_scheduler = 0.0
        self._busy_workers = np.zeros(count)
        growth = workload.growth
        self._pair_scale = growth.pairs / growth.trained / rates.sequence_pairs
        self._text_s = growth.characters / growth.trained / rates.sequence_characters / rates.text_per_s

    def run(self) -> SimulatedTraining:
        """Simulate until the last commit."""
        done = self._env.process(self._drive())
        self._env.process(self._lose_workers())
        self._env.run(until=done)
        return self._outcome()

    def _log(self, name: str, number: int) -> None:
        self._events += 1
        self._digest = zlib.crc32(f"{name} {number} {self._env.now!r}".encode(), self._digest)

    def _outcome(self) -> SimulatedTraining:
        seconds = max(self._rounds_s, 1e-9)
        used = {
            "cores": float(self._busy_workers @ self._pool.threads) / (seconds * self._pool.cores),
            "busiest worker": float(self._busy_workers.max()) / seconds,
            "scheduler": self._busy_scheduler / seconds,
            "driver": self._driver.busy / seconds,
            **self._busy_links(seconds),
        }
        return SimulatedTraining(
            workers=len(self._pool.host),
            compute_workers=self._width,
            sequences=self._sequences,
            rounds_s=self._rounds_s,
            seconds=self._env.now,
            used={name: min(value, 1.0) for name, value in used.items()},
            tier_bytes={**self._links.tier_bytes},
            tasks=self._tasks,
            messages=self._messages,
            shared_touches=self._overlapping / max(self._entries, 1),
            failures=self._failures,
            recounted=self._recounted,
            memory_bytes=self._most,
            events=self._events,
            digest=self._digest,
            transfers=tuple(self._links.transfers),
        )

    def _busy_links(self, seconds: float) -> dict[str, float]:
        tiers: dict[str, float] = {}
        for (tier, _), busy in self._links.busy.items():
            name = f"links of tier {tier}"
            tiers[name] = max(tiers.get(name, 0.0), float(busy.max()) / seconds)
        return tiers

    def _drive(self) -> Generator[Event, Any, None]:
        """Submit the rounds, as many at a time as memory allows, and commit."""
        env, options = self._env, self._options
        composed = self._workload.compose(self._configuration, self._placed, self._width, options.rounds, options.seed)
        committed = env.now
        texts: deque[tuple[ComposedRound, Event]] = deque()
        for number, batches in enumerate(self._read_ahead(composed, texts)):
            yield texts.popleft()[1]
            while self._in_flight >= self._allowed_in_flight():
                yield self._wait()
            self._in_flight += 1
            env.process(self._round(number, batches))
            if env.now - committed > max(options.commit_seconds, self._commit_took):
                committed = env.now
                env.process(self._commit())
        while self._in_flight:
            yield self._wait()
        self._rounds_s = env.now
        self._busy_workers, self._busy_scheduler = self._pool.busy.copy(), self._scheduler.busy
        while self._unfinished:
            yield self._wait()
        yield env.process(self._commit(last=True))

    def _read_ahead(
        self, composed: Iterable[ComposedRound], texts: deque[tuple[ComposedRound, Event]]
    ) -> Generator[ComposedRound, None, None]:
        """Yield the rounds; the text of some later ones is being encoded meanwhile."""
        ahead = iter(composed)
        while True:
            while len(texts) < 2:
                batches = next(ahead, None)
                if batches is None:
                    break
                texts.append((batches, self._encoded(batches)))
            if not texts:
                return
            yield texts[0][0]

    def _encoded(self, batches: ComposedRound) -> Event:
        """Return the event that the text of a round is encoded, and its words are in the dictionaries."""
        event = self._env.event()
        total = batches.sequences
        if not self._options.text:
            event.succeed()
            return event
        blocks = max(1, round(total * self._workload.growth.characters / self._workload.growth.trained / _BLOCK))
        self._tasks += _BLOCK_TASKS * blocks
        self._scheduler.reserve(_BLOCK_TASKS * blocks)
        left = [blocks]

        def extended(_: Event) -> None:
            left[0] -= 1
            if not left[0]:
                event.succeed()

        def tagged(_: int) -> None:
            _then(self._env.timeout(self._driver.reserve(total / blocks)), extended)

        for _ in range(blocks):
            self._pool.run(total / blocks * self._text_s + _BLOCK_TASKS * self._rates.task_s, tagged)
        return event

    def _wait(self) -> Event:
        """Return the event that a round, a sum or a commit has ended."""
        if self._changed.triggered:
            self._changed = self._env.event()
        return self._changed

    def _notify(self) -> None:
        if not self._changed.triggered:
            self._changed.succeed()

    def _allowed_in_flight(self) -> int:
        """Return how many rounds may be in flight, as training limits them by memory."""
        if not self._largest_round:
            return self._configuration.rounds_in_flight
        stores = np.unique(self._owner)
        rounds = int(_IN_FLIGHT_SHARE * self._limit[stores].sum() / self._largest_round)
        return max(1, min(self._configuration.rounds_in_flight, rounds))

    def _count_s(self, batches: ComposedRound) -> Floats:
        """Return the seconds in which a core counts each batch: a part for each call, and one for each pair."""
        rates, table = self._rates, batches.table
        size = min(self._configuration.batch_sequences, max(float(table.sequences.mean()), 1.0))
        per_pair = 1 / max(rates.counted_per_s)
        each = max(1 / rates.counted(size) - per_pair, 0.0)
        seconds = table.sequences * each + table.cost * self._pair_scale * per_pair + 2 * rates.task_s
        return np.asarray(seconds[batches.kind], np.float64)

    def _round(self, number: int, batches: ComposedRound) -> Generator[Event, Any, None]:
        """Count the batches of a round, send their increments to the owners, and add them up there."""
        rates = self._rates
        self._largest_round = max(self._largest_round, batches.nbytes)
        worker = yield from self._count(batches)
        self._log("counted", number)
        traffic = self._traffic(batches, worker)
        owners = np.flatnonzero(traffic.touched)
        shape = RoundShape(
            batches=len(worker),
            owners=max(len(owners), 1),
            regions=max(int(traffic.touched.sum()), 1),
            routes=int(traffic.messages.sum()),
        )
        # As in training, which does not know how long batches take.
        by_tasks = choose_exchange(self._configuration.exchange, shape) == "tasks"
        routes = shape.routes if by_tasks else len(worker)
        tasks = 1 + len(owners) + (int(traffic.touched.sum()) if by_tasks else len(owners)) + routes * (len(owners) > 1)
        self._tasks += tasks
        self._messages += int(traffic.messages.sum())
        scheduled = self._scheduler.reserve(tasks)
        yield self._env.timeout(2 * rates.task_s)
        if by_tasks and len(owners) > 1:
            yield self._all(np.asarray(traffic.messages * rates.task_s, np.float64), traffic.messages > 0)
        if self._options.hierarchical:
            traffic = yield from self._sum_hosts(batches, traffic)
        arrived = self._move(traffic, scheduled)
        # A worker that exchanges takes all of its regions in one task.
        seconds = traffic.owned / rates.integrated_bytes_per_s + rates.task_s * (traffic.touched if by_tasks else 1)
        seconds += traffic.received["host"] / self._hardware.links["host"].bandwidth
        yield self._all(seconds + self._spilled_s(traffic.owned), traffic.touched > 0, arrived)
        yield self._add_runs(batches)
        self._log("integrated", number)
        self._sequences += batches.sequences
        self._uncommitted.append(batches)
        self._in_flight -= 1
        self._notify()

    def _count(self, batches: ComposedRound) -> Generator[Event, Any, Integers]:
        """Count batches on any workers; return which worker counted each."""
        finished, count = self._env.event(), len(batches.kind)
        worker, left = np.zeros(count, np.int64), [count]

        def counted(batch: int, by: int) -> None:
            worker[batch] = by
            self._log("batch", by)
            left[0] -= 1
            if not left[0]:
                finished.succeed()

        def release(batch: int, seconds: float, _: Event) -> None:
            self._pool.run(seconds, partial(counted, batch))

        self._tasks += 2 * count
        for batch, seconds in enumerate(self._count_s(batches).tolist()):
            _then(self._env.timeout(self._scheduler.reserve(2)), partial(release, batch, seconds))
        yield finished
        return worker

    def _all(self, seconds: Floats, working: Flags, begin: Floats | None = None) -> Event:
        """Return the event that some workers have done a job each, which begin at once or at their times."""
        finished, workers = self._env.event(), np.flatnonzero(working).tolist()
        left = [len(workers)]

        def done(_: int) -> None:
            left[0] -= 1
            if not left[0]:
                finished.succeed()

        def run(worker: int, _: Event | None = None) -> None:
            self._pool.run(float(seconds[worker]), done, worker)

        for worker in workers:
            if begin is None:
                run(worker)
            else:
                _then(self._env.timeout(max(float(begin[worker]) - self._env.now, 0.0)), partial(run, worker))
        if not workers:
            finished.succeed()
        return finished

    def _traffic(self, batches: ComposedRound, worker: Integers) -> _Traffic:
        """Return what the counted batches of a round send to the owners of regions."""
        table, kind = batches.table, batches.kind
        total, kinds = len(self._pool.host), len(table.sequences)
        pairs, inverse = np.unique(table.batch * total + self._owner[table.region], return_inverse=True)
        nbytes = _by(inverse, table.nbytes, len(pairs))
        entry, owner = pairs // total, pairs % total
        alike = np.bincount(kind, minlength=kinds)
        whole = _by(entry, nbytes, kinds)
        sent: dict[Tier, Floats] = {}
        received: dict[Tier, Floats] = {}
        for tier, number in self._links.numbers.items():
            places = int(number.max()) + 1
            inside = _sums(entry * places + number[owner], nbytes, kind * places + number[worker])
            sent[tier] = _by(worker, np.maximum(whole[kind] - inside, 0.0), total)
            sent[tier][sent[tier] < 1e-6 * sent[tier].max(initial=0)] = 0.0
            near = _sums(kind * places + number[worker], np.ones(len(worker)), entry * places + number[owner])
            received[tier] = _by(owner, nbytes * (alike[entry] - near), total)
        touched = np.flatnonzero(np.bincount(table.region, batches.times))
        self._entries += int(batches.times.sum())
        self._overlapping += int(batches.times.sum()) - len(touched)
        messages = np.bincount(worker, np.bincount(entry, minlength=kinds)[kind], minlength=total).astype(np.int64)
        return _Traffic(
            sent=sent,
            received=received,
            messages=messages,
            owned=_by(owner, nbytes * alike[entry], total),
            touched=np.bincount(self._owner[touched], minlength=total),
            worker=worker,
            kind=kind,
            entry=entry,
            owner=owner,
        )

    def _sum_hosts(self, batches: ComposedRound, traffic: _Traffic) -> Generator[Event, Any, _Traffic]:
        """Add up and pack within each host what crosses to others; return what then moves."""
        members = np.bincount(self._pool.host)[self._pool.host].astype(np.float64)
        crossing = traffic.sent["rack"]
        within = _by(self._pool.host, crossing, 0)[self._pool.host] / members
        moved = np.where(members > 1, crossing * (members - 1) / members, 0.0)
        done = self._links.carry("host", False, moved, self._env.now)
        done = np.maximum(done, self._links.carry("host", True, within * (members - 1) / members, self._env.now))
        yield self._all(within / self._rates.packed_bytes_per_s, within > 0, done)
        share = self._packed_share(batches.sequences * members.max() / len(members))
        scaled = {tier: 1.0 if tier == "host" else share for tier in _SHARED}
        away = traffic.received["rack"]
        return traffic._replace(
            sent={tier: nbytes * scaled[tier] for tier, nbytes in traffic.sent.items()},
            received={tier: nbytes * scaled[tier] for tier, nbytes in traffic.received.items()},
            messages=np.ceil(traffic.messages / members).astype(np.int64),
            owned=traffic.owned - away * (1 - share),
        )

    def _move(self, traffic: _Traffic, scheduled: float) -> Floats:
        """Return when the increments of a round have come to each owner."""
        now, links = self._env.now, self._hardware.links
        gone = np.full(len(traffic.messages), now)
        latency = np.zeros(len(gone))
        for tier in _SHARED:
            gone = np.maximum(gone, self._links.carry(tier, False, traffic.sent[tier], now))
            turns = np.ceil(traffic.messages / _CONNECTIONS) * (traffic.sent[tier] > 0)
            latency = np.maximum(latency, turns * links[tier].latency)
        # An owner has everything when the slowest of those that send to it has sent.
        slowest = np.zeros(int(traffic.kind.max(initial=-1)) + 1)
        np.maximum.at(slowest, traffic.kind, (gone + latency)[traffic.worker])
        arrived = np.full(len(gone), now + scheduled)
        np.maximum.at(arrived, traffic.owner, slowest[traffic.entry])
        for tier in _SHARED:
            begin = now + np.where(traffic.received[tier] > 0, links[tier].latency, 0.0)
            arrived = np.maximum(arrived, self._links.carry(tier, True, traffic.received[tier], begin))
        return arrived

    def _packed_share(self, sequences: float) -> float:
        """Return the bytes of the packed sum of some sequences, in those of their increments."""
        growth = self._workload.growth
        raw = growth.increment_bytes("corpus", max(growth.trained, 1)) / growth.trained
        return min(growth.packed_bytes.at(max(sequences, 1.0)) / (max(sequences, 1.0) * raw), 1.0)

    def _size(self, run: _Run) -> float:
        """Return the bytes of a run in memory."""
        return run.nbytes * (self._packed_share(run.sequences) if run.packed else 1.0)

    def _sum_s(self, runs: Iterable[_Run]) -> float:
        """Return how long runs take to be added up and packed."""
        rates = self._rates
        return sum(
            self._size(run) / (rates.merged_bytes_per_s if run.packed else rates.packed_bytes_per_s) for run in runs
        )

    def _spilled_s(self, nbytes: Floats) -> Floats:
        """Return how long workers wait for their disks, for what they hold beyond their memory."""
        beyond = np.maximum(1 - self._limit / np.maximum(self._held, 1.0), 0.0)
        return np.asarray(beyond * nbytes / self._rates.written_bytes_per_s, np.float64)

    def _add_runs(self, batches: ComposedRound) -> Event:
        """Add the runs of a round to their regions; return the event that those which are enough are added up."""
        table = batches.table
        by_region = np.bincount(table.region, table.nbytes * batches.times)
        seconds = np.zeros(len(self._held))
        for region in np.flatnonzero(by_region).tolist():
            added = _Run(0, batches.sequences, float(by_region[region]), self._options.hierarchical)
            runs = self._runs.get(region, ())
            stored = tuple(run for run in runs if run.stored)
            plan = plan_compaction(runs[len(stored) :], added, _TOGETHER)
            self._runs[region] = (*stored, *plan.kept, self._merged(region, plan.merged, plan.rank, seconds))
            self._held[self._owner[region]] += self._size(added)
        self._most = max(self._most, float(self._held.max()))
        return self._sum_at_owners(seconds)

    def _sum_at_owners(self, seconds: Floats) -> Event:
        """Return the event that owners have done the sums of their regions."""
        working = seconds > 0
        self._tasks += 2 * int(working.sum())
        self._scheduler.reserve(2 * int(working.sum()))
        return self._all(seconds, working)

    def _merged(self, region: int, runs: tuple[_Run, ...], rank: int, seconds: Floats) -> _Run:
        """Return the sum of runs of a region, and add how long it takes to those of the owner."""
        if len(runs) == 1:
            return runs[0]
        owner = self._owner[region]
        seconds[owner] += self._sum_s(runs)
        made = _Run(
            rank,
            sum(run.sequences for run in runs),
            sum(run.nbytes for run in runs),
            packed=True,
            stored=runs[0].stored,
        )
        self._held[owner] += self._size(made) - sum(map(self._size, runs))
        return made

    def _commit(self, last: bool = False) -> Generator[Event, Any, None]:
        """Pack and write what is new, and add up stored runs afterwards."""
        self._unfinished += 1
        began, rates = self._env.now, self._rates
        seconds = np.zeros(len(self._held))
        new: list[int] = []
        for region, runs in self._runs.items():
            stored = tuple(run for run in runs if run.stored)
            fresh = runs[len(stored) :]
            if not fresh:
                continue
            new.append(region)
            packed = tuple(run for run in fresh if run.packed)
            rest = fresh[len(packed) :]
            owner = self._owner[region]
            if len(rest) == 1:
                seconds[owner] += self._sum_s(rest)
            made = (*packed, *((self._merged(region, rest, _rank_of(rest), seconds),) if rest else ()))
            made = tuple(run._replace(packed=True, stored=True) for run in made)
            seconds[owner] += sum(map(self._size, made)) / rates.written_bytes_per_s
            self._runs[region] = (*stored, *made)
        self._uncommitted.clear()
        self._tasks += _COMMIT_TASKS * len(new)
        self._scheduler.reserve(_COMMIT_TASKS * len(new))
        if last:
            self._finish(seconds)
        yield self._all(seconds, seconds > 0)
        yield self._env.timeout(rates.commit_s + rates.commit_region_s * len(new))
        self._log("committed", len(new))
        self._commit_took = self._env.now - began
        if not last:
            yield self._fold(new)
        self._unfinished -= 1
        self._notify()

    def _fold(self, regions: Iterable[int]) -> Event:
        """Return the event that stored runs are added up, as if they had come one by one."""
        seconds = np.zeros(len(self._held))
        for region in regions:
            runs = self._runs[region]
            folded: tuple[_Run, ...] = ()
            for run in runs:
                if run.stored:
                    plan = plan_compaction(folded, run, STORED_TOGETHER)
                    folded = (*plan.kept, self._merged(region, plan.merged, plan.rank, seconds))
            self._runs[region] = (*folded, *(run for run in runs if not run.stored))
        return self._sum_at_owners(seconds)

    def _finish(self, seconds: Floats) -> None:
        """Leave each region with one run where that costs little; count the connections of others."""
        for region, runs in self._runs.items():
            if len(runs) > 1:
                weights = [1 << run.rank for run in runs]
                small = sum(weights) - max(weights) >= _COMPACT_FRACTION * max(weights)
                if small:
                    self._runs[region] = (self._merged(region, runs, _rank_of(runs), seconds),)
                else:
                    seconds[self._owner[region]] += self._sum_s(runs)

    def _lose_workers(self) -> Generator[Event, Any, None]:
        """Let workers fail at random times."""
        hours = np.array([place.kind.hours_between_failures for place in self._hardware.places()])
        chance = 1 / (3600 * hours)
        while True:
            yield self._env.timeout(float(self._rng.exponential(1 / chance.sum())))
            worker = int(self._rng.choice(len(hours), p=chance / chance.sum()))
            if self._pool.is_down(worker):
                continue
            self._failures += 1
            self._log("failed", worker)
            self._pool.fail(worker, _RESTART_S)
            if worker in self._owner and self._uncommitted:
                self._env.process(self._recover(worker, tuple(self._uncommitted)))

    def _recover(self, worker: int, rounds: tuple[ComposedRound, ...]) -> Generator[Event, Any, None]:
        """Count again what a lost worker had of rounds that no commit has."""
        self._unfinished += 1
        own = self._owner == worker
        for batches in rounds:
            self._recounted += batches.sequences
            yield from self._count(batches)
            table = batches.table
            nbytes = float((table.nbytes * batches.times)[own[table.region]].sum())
            seconds = np.zeros(len(self._held))
            seconds[worker] = nbytes / self._rates.integrated_bytes_per_s + nbytes / self._rates.packed_bytes_per_s
            yield self._all(seconds, seconds > 0)
        self._log("recovered", worker)
        self._unfinished -= 1
        self._notify()


def _then(event: Event, call: Callable[[Event], None]) -> None:
    """Call a function when an event has happened."""
    assert event.callbacks is not None, "it has not happened yet"
    event.callbacks.append(call)


def _sums(keys: Integers, values: Floats, wanted: Integers) -> Floats:
    """Return for each wanted key the sum of the values with this key."""
    known, inverse = np.unique(keys, return_inverse=True)
    sums = _by(inverse, values, len(known))
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, sums[at], 0.0)


def _by(numbers: Integers, values: Floats, count: int) -> Floats:
    """Return the sum of the values of each number, of so many or more."""
    return np.bincount(numbers, values, minlength=count).astype(np.float64)


def _rank_of(runs: Iterable[_Run]) -> int:
    """Return the rank of a sum of runs."""
    return (sum(1 << run.rank for run in runs) - 1).bit_length()


def simulate_training(
    workload: SequenceSample, hardware: Hardware, configuration: TrainingConfiguration, options: SimulationOptions
) -> SimulatedTraining:
    """Simulate how long a training takes.

    Parameters
    ----------
    workload : SequenceSample
        What is trained.
    hardware : Hardware
        Where.
    configuration : TrainingConfiguration
        How it is divided; there are at least as many regions as storage workers.
    options : SimulationOptions
        What is simulated.

    Returns
    -------
    SimulatedTraining

    Raises
    ------
    MissingDependencyError
        If simpy is not installed.
    """
    return _Simulation(workload, hardware, configuration, options).run()
