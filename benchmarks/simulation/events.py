"""Simulate the rounds of a training on hardware by discrete events, with contention for cores, links and memory.

What is done follows `workloads`: rounds, selection, placement, owners and compaction are those of training. Only time
is simulated. A stage of a worker in a round is one event, so that rounds of ten thousand workers take seconds.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from simpy import Environment, Event

from giaann_dask.cluster.worker_speeds import REACTIONS, Reaction
from giaann_dask.errors import require_at_least, require_between, require_one_of, require_option
from giaann_dask.keys import Integers
from giaann_dask.runs.placement import FIRST_REGIONS
from giaann_dask.training.region_budgets import SMALL_BYTES, regions_ahead
from giaann_dask.training.training_options import RoundShape, TrainingOptions, choose_exchange
from simulation.configuration import (
    BLOCK_TASKS,
    CHAIN,
    COMMIT_TASKS,
    DECODED_BYTES,
    TrainingConfiguration,
    region_limit,
)
from simulation.hardware import SHARED_TIERS, Hardware, Tier
from simulation.simulated_cluster import (
    JudgedWorkers,
    SerialServer,
    SharedLinks,
    WorkerPool,
    sum_by_number,
    then,
    traffic_of,
)
from simulation.workloads import (
    ComposedRound,
    Floats,
    LiveRegions,
    SequenceSample,
    SimulatedRegions,
    owners_of,
)

# Seconds until a worker that is lost has been started again.
_RESTART_S = 10.0
# Share of the time from which cores are busy, although some worker is busier.
_BUSY = 0.8
# Tasks of a block of text that is encoded already.
_READ_TASKS = 3
# Share of the memory of data for rounds in flight (`giaann_dask.training.trainer`).
_IN_FLIGHT_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of a simulation.

    Parameters
    ----------
    rounds : int, optional
        Rounds of sequences drawn from the sample; by default the sample is trained once.
    encode_text : bool
        Whether workers also encode the text. Blocks of a sample that is trained once are read, at least.
    block_characters : int
        Text of a block.
    network_bytes : int
        Packed bytes that the storage workers have at the beginning.
    stragglers : float
        Share of workers that are slow.
    slowdown : float
        Factor by which slow workers are slower.
    slow_workers : {"report", "adapt", "retire"}
        How to handle a worker that is slower than its peers; see `giaann_dask.TrainingOptions`.
    commit_seconds : float
        Time between two commits; there is one at the end.
    seed : int
        Seed for drawing sequences, slow workers and failures.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    rounds: int | None = None
    encode_text: bool = False
    block_characters: int = TrainingOptions().block_characters
    network_bytes: int = 0
    stragglers: float = 0.0
    slowdown: float = 4.0
    slow_workers: Reaction = "adapt"
    commit_seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, "rounds", "block_characters", "slowdown")
        require_at_least(0, self, "network_bytes", "seed")
        require_between(0, 1, self, "stragglers")
        require_one_of("slow_workers", self.slow_workers, REACTIONS)
        require_option(self.commit_seconds > 0, "commit_seconds", self.commit_seconds, "more than 0")


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
        From the start of the first round until the last one was integrated, and of the training until the last commit.
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
    slow_workers : mapping of str to str
        How each worker was judged last that was slower than its peers, by its number.
    memory_bytes : float
        Most memory that a storage worker took.
    events : int
        Events.
    digest : int
        Checksum of all events and their times.
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
    slow_workers: Mapping[str, str]
    memory_bytes: float
    events: int
    digest: int

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


class _Simulation:
    """State of one simulation."""

    def __init__(
        self,
        workload: SequenceSample,
        hardware: Hardware,
        configuration: TrainingConfiguration,
        options: SimulationOptions,
    ) -> None:
        self._env = Environment()
        self._workload, self._hardware = workload, hardware
        self._configuration, self._options = configuration, options
        self._rates = rates = hardware.rates
        kinds = hardware.workers
        count = sum(kind.count for kind in kinds)
        self._rng = np.random.default_rng(options.seed)
        slow = self._rng.random(count) < options.stragglers
        self._events, self._digest = 0, 0
        slowness = np.where(slow, options.slowdown, 1.0)
        self._pool = WorkerPool(self._env, hardware, slowness)
        self._judged = JudgedWorkers(self._pool, slowness, options.slow_workers)
        self._shares: Mapping[str, float] = {}
        self._links = SharedLinks(hardware, self._pool)
        self._scheduler = SerialServer(self._env, rates.tasks_per_s)
        self._driver = SerialServer(self._env, rates.driver_per_s)
        storing = hardware.storage_workers
        self._placed = workload.place(configuration, max(configuration.regions, storing), storing)
        # Rounds of drawn sequences are those in the course of a training, whose regions have been split.
        few = (
            min(configuration.regions, FIRST_REGIONS) if options.rounds is None and not options.network_bytes else None
        )
        self._live = LiveRegions(self._placed, few)
        self._owner = owners_of(hardware, self._live)
        begun = np.bincount(self._owner, self._placed.share * options.network_bytes, minlength=count)
        held = begun.astype(np.float64)
        self._regions = SimulatedRegions(hardware, workload.growth, self._live, self._owner, held)
        self._region_limit = region_limit(hardware)
        whole = DECODED_BYTES * workload.growth.connections.at(max(len(workload.touches), 1))
        self._wanted = max(configuration.regions, regions_ahead(whole, self._region_limit))
        # Regions that are to be split, and whether it is known where.
        self._pivots: dict[int, bool] = {}
        self._in_flight = 0
        self._largest_round = 0.0
        self._changed: Event = self._env.event()
        self._unfinished = 0
        self._uncommitted: list[ComposedRound] = []
        self._commit_took = 0.0
        self._sequences = self._tasks = self._messages = self._failures = self._recounted = 0
        self._entries = self._overlapping = 0
        # Messages by which tasks are submitted.
        self._submitted = 0
        self._rounds_s = self._busy_scheduler = 0.0
        self._busy_workers = np.zeros(count)
        # Of a worker for a task without work; from one task to the next that depends on it, it takes longer.
        self._task_s = min(rates.task_s, 1 / rates.tasks_per_s + rates.worker_message_s)
        growth = workload.growth
        self._pair_scale = growth.pairs / growth.trained / rates.sequence_pairs
        # Sequences of the text that rates were measured with, in those of this text.
        self._character_scale = growth.characters / growth.trained / rates.sequence_characters
        self._text_s = self._character_scale / rates.text_per_s

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
            compute_workers=self._hardware.compute_workers,
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
            slow_workers=self._judged.named(),
            memory_bytes=self._regions.most,
            events=self._events,
            digest=self._digest,
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
        yield env.timeout(self._rates.start_s)
        began = env.now
        width = self._judged.width
        composed = self._workload.compose(self._configuration, self._placed, width, options.rounds, options.seed)
        committed = env.now
        texts: deque[tuple[ComposedRound, Event]] = deque()
        for number, batches in enumerate(self._read_ahead(composed, texts)):
            yield texts.popleft()[1]
            while self._in_flight >= self._allowed_in_flight():
                yield self._wait()
            self._in_flight += 1
            self._pool.turn = float(number)
            env.process(self._round(number, batches))
            if env.now - committed > max(options.commit_seconds, self._commit_took):
                committed = env.now
                env.process(self._commit())
        while self._in_flight:
            yield self._wait()
        yield env.timeout(self._host_s(env.now - began))
        self._rounds_s = env.now - began
        self._busy_workers, self._busy_scheduler = self._pool.busy.copy(), self._scheduler.busy
        while self._unfinished:
            yield self._wait()
        while self._find_pivots():
            while not all(self._pivots.values()):
                yield self._wait()
            yield self._split_found()
        yield env.process(self._commit(last=True))

    def _host_s(self, seconds: float) -> float:
        """Return what the cores of the only host, which driver and scheduler share, need more than some seconds."""
        cores, rates = self._hardware.only_host_cores, self._rates
        if not cores:
            return 0.0
        driver_s = self._scheduler.busy + self._driver.busy + self._submitted * rates.driver_message_s
        # Messages are counted apart.
        waited = self._tasks * (self._task_s - rates.worker_task_s)
        workers_s = self._pool.busy @ self._pool.threads - waited + self._submitted * rates.worker_message_s
        return max((driver_s + float(workers_s)) / (rates.rounds_busy * cores) - seconds, driver_s - seconds, 0.0)

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
        """Return the event that the blocks of a round are there, and the words of text in the dictionaries."""
        event, options = self._env.event(), self._options
        if not options.encode_text and options.rounds is not None:
            event.succeed()
            return event
        total, growth = batches.sequences, self._workload.growth
        blocks = max(1, round(total * growth.characters / growth.trained / options.block_characters))
        each, tasks = (total / blocks, BLOCK_TASKS) if options.encode_text else (0.0, _READ_TASKS)
        self._tasks += tasks * blocks
        self._submitted += tasks * blocks
        self._scheduler.reserve(tasks * blocks)
        left = [blocks]

        def extended(_: Event) -> None:
            left[0] -= 1
            if not left[0]:
                event.succeed()

        def tagged(_: int) -> None:
            then(self._env.timeout(self._driver.reserve(self._character_scale * each)), extended)

        for _ in range(blocks):
            self._pool.run(each * self._text_s + tasks * self._task_s, tagged)
        return event

    def _wait(self) -> Event:
        """Return the event that a round, a sum or a commit has ended."""
        if self._changed.triggered:
            self._changed = self._env.event()
        return self._changed

    def _notify(self) -> None:
        if not self._changed.triggered:
            self._changed.succeed()

    def _find_pivots(self) -> bool:
        """Find out where to split regions that are too large; return whether there are any that are to be split."""
        for region in self._live.shares():
            if region in self._pivots or not self._live.is_divisible(region):
                continue
            few = len(self._live) + len(self._pivots) < self._wanted
            limit = min(self._region_limit, SMALL_BYTES) if few else self._region_limit
            if self._regions.decoded_bytes(region) > limit:
                self._pivots[region] = False
                self._tasks += 1
                then(self._env.timeout(self._scheduler.reserve(1)), partial(self._find_pivot, region))
        return bool(self._pivots)

    def _find_pivot(self, region: int, _: Event) -> None:
        def found(_: int) -> None:
            self._pivots[region] = True
            self._notify()

        self._pool.run(self._task_s, found, int(self._owner[region]))

    def _split_found(self) -> Event:
        """Split the regions of which it is known where; return the event that owners have done it."""
        seconds, working = np.zeros(len(self._pool.host)), np.zeros(len(self._pool.host), np.bool_)
        before = self._owner.copy()
        for region in [region for region, found in self._pivots.items() if found]:
            del self._pivots[region]
            # Each run is cut twice, and both parts are measured.
            tasks = 4 * self._regions.runs(region)
            self._tasks += tasks
            self._scheduler.reserve(tasks)
            second, took = self._regions.split(region)
            seconds += took
            seconds[self._owner[region]] += tasks * self._task_s
            working[self._owner[region]] = True
            before[self._live.number == second] = -1
        if working.any():
            self._assign(before)
        return self._pool.run_each(seconds, working)

    def _assign(self, before: Integers) -> None:
        """Assign regions to owners, given those until now, and move what others have from now on."""
        owned, now = self._owner, self._env.now
        self._owner = owners_of(self._hardware, self._live, before, self._shares)
        nbytes = self._regions.move(self._owner)
        for tier in SHARED_TIERS:
            number = self._links.numbers[tier]
            crossing = np.where(number[owned] != number[self._owner], nbytes, 0.0)
            for received, ends in ((False, owned), (True, self._owner)):
                self._links.carry(tier, received, sum_by_number(ends, crossing, len(number)), now)

    def _allowed_in_flight(self) -> int:
        """Return how many rounds may be in flight, as training limits them by memory."""
        if not self._largest_round:
            return self._configuration.rounds_in_flight
        stores = np.unique(self._owner)
        rounds = int(_IN_FLIGHT_SHARE * self._regions.limit[stores].sum() / self._largest_round)
        return max(1, min(self._configuration.rounds_in_flight, rounds))

    def _count_s(self, batches: ComposedRound) -> Floats:
        """Return the seconds in which a core counts each batch: a part for each call, and one for each pair."""
        rates, table = self._rates, batches.table
        size = min(self._configuration.batch_sequences, max(float(table.sequences.mean()), 1.0))
        per_pair = 1 / max(rates.counted_per_s)
        each = max(1 / rates.counted(size) - per_pair, 0.0)
        seconds = table.sequences * each + table.cost * self._pair_scale * per_pair + 2 * self._task_s
        return np.asarray(seconds[batches.kind], np.float64)

    def _round(self, number: int, batches: ComposedRound) -> Generator[Event, Any, None]:
        """Count the batches of a round, send their increments to the owners, and add them up there."""
        rates = self._rates
        self._largest_round = max(self._largest_round, batches.nbytes)
        if not self._hardware.only_host_cores:
            # The driver submits each step once; on one host, its work is added at the end.
            yield self._env.timeout(self._driver.reserve(CHAIN * rates.driver_message_s * rates.driver_per_s))
        worker = yield from self._count(batches, number)
        self._log("counted", number)
        traffic = traffic_of(batches.within(self._live), worker, self._owner, self._links)
        entries = int(batches.within(self._live).times.sum())
        self._entries += entries
        self._overlapping += entries - int(traffic.touched.sum())
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
        self._submitted += min(tasks + 2 * len(worker), CHAIN * len(self._pool.host))
        self._messages += int(traffic.messages.sum())
        scheduled = self._scheduler.reserve(tasks)
        yield self._env.timeout(2 * rates.task_s)
        if by_tasks and len(owners) > 1:
            yield self._pool.run_each(
                np.asarray(traffic.messages * self._task_s, np.float64), traffic.messages > 0, turn=number
            )
        arrived = self._links.move(traffic, self._env.now, self._env.now + scheduled)
        # A worker that exchanges takes all of its regions in one task.
        seconds = traffic.owned / rates.integrated_bytes_per_s + self._task_s * (traffic.touched if by_tasks else 1)
        seconds += traffic.received["host"] / self._hardware.links["host"].bandwidth
        seconds += self._regions.spilled_s(traffic.owned)
        yield self._pool.run_each(seconds, traffic.touched > 0, arrived, number)
        yield self._sum_at_owners(self._regions.add(batches))
        self._log("integrated", number)
        self._sequences += batches.sequences
        self._uncommitted.append(batches)
        self._judge(batches)
        self._split_found()
        self._find_pivots()
        self._in_flight -= 1
        self._notify()

    def _judge(self, batches: ComposedRound) -> None:
        """Judge the workers by their work, and move the regions of slow ones to others."""
        table = batches.table
        self._judged.review(np.unique(self._owner).tolist())
        self._judged.measure(float(table.nbytes.sum()) / len(table.sequences), float(self._count_s(batches).mean()))
        shares = self._judged.region_shares()
        if shares != self._shares:
            self._shares = shares
            self._assign(self._owner)

    def _count(self, batches: ComposedRound, turn: float | None = None) -> Generator[Event, Any, Integers]:
        """Count batches on any workers, or by the shares of slow ones; return which worker counted each."""
        finished, count, kind = self._env.event(), len(batches.kind), batches.kind
        worker, left = np.zeros(count, np.int64), [count]
        nbytes = np.bincount(batches.table.batch, batches.table.nbytes, minlength=len(batches.table.sequences))
        each = self._count_s(batches).tolist()
        on = self._judged.next_workers(each)

        def counted(batch: int, seconds: float, by: int) -> None:
            worker[batch] = by
            self._judged.note(by, float(nbytes[kind[batch]]), seconds)
            self._log("batch", by)
            left[0] -= 1
            if not left[0]:
                finished.succeed()

        def release(batch: int, seconds: float, _: Event) -> None:
            self._pool.run(seconds, partial(counted, batch, seconds), on[batch], turn)

        self._tasks += 2 * count
        for batch, seconds in enumerate(each):
            then(self._env.timeout(self._scheduler.reserve(2)), partial(release, batch, seconds))
        yield finished
        return worker

    def _sum_at_owners(self, seconds: Floats) -> Event:
        """Return the event that owners have done the sums of their regions."""
        working = seconds > 0
        self._tasks += 2 * int(working.sum())
        self._scheduler.reserve(2 * int(working.sum()))
        return self._pool.run_each(seconds, working)

    def _commit(self, last: bool = False) -> Generator[Event, Any, None]:
        """Pack and write what is new, and add up stored runs afterwards."""
        self._unfinished += 1
        began, rates = self._env.now, self._rates
        new, seconds = self._regions.write()
        self._uncommitted.clear()
        self._tasks += COMMIT_TASKS * len(new)
        self._scheduler.reserve(COMMIT_TASKS * len(new))
        if last:
            self._regions.finish(seconds)
        yield self._pool.run_each(seconds, seconds > 0)
        packed_s, cores = self._env.now - began, self._hardware.only_host_cores
        # The first regions are in the commit of a few sentences.
        first = min(len(new), FIRST_REGIONS)
        more_s, spared = rates.commit_region_s * (len(new) - first), first * rates.run_s
        alone_s = packed_s - spared / max(int(np.count_nonzero(seconds)), 1)
        # While no round goes on, all processes share the cores of the only host.
        shared_s = (float(seconds.sum()) - spared + more_s) / (rates.commit_busy * cores) if last and cores else 0.0
        yield self._env.timeout(max(rates.commit_s + max(alone_s, more_s, shared_s) - packed_s, 0.0))
        self._log("committed", len(new))
        self._commit_took = self._env.now - began
        if not last:
            yield self._sum_at_owners(self._regions.fold(new))
        self._unfinished -= 1
        self._notify()

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
            seconds = np.zeros(len(self._pool.host))
            seconds[worker] = nbytes / self._rates.integrated_bytes_per_s + nbytes / self._rates.packed_bytes_per_s
            yield self._pool.run_each(seconds, seconds > 0)
        self._log("recovered", worker)
        self._unfinished -= 1
        self._notify()


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
