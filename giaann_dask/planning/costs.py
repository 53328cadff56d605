"""Estimate what a configuration of training costs on given hardware, in closed forms.

A rate is the least of several limits (workers, scheduler, driver, links of each tier, rounds in flight); the lowest
limit binds. Each limit comes with what would move it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from giaann_dask.cluster import Roles, WorkerMemory, assign_regions, region_budget
from giaann_dask.errors import require_at_least, require_one_of
from giaann_dask.keywords import names_keywords
from giaann_dask.planning.growth import Growth
from giaann_dask.planning.hardware import COMPRESSED, SHARED_TIERS, TIERS, Hardware, Tier, WorkerKind
from giaann_dask.planning.measured_trainings import BLOCK_TASKS, CHAIN, COMMIT_TASKS, SPLIT_CHAIN
from giaann_dask.runs.placement import FIRST_REGIONS
from giaann_dask.spec import PLACEMENTS, PlacementKind, Specification
from giaann_dask.training.region_budgets import SMALL_BYTES, regions_ahead
from giaann_dask.training.training_options import (
    EXCHANGES,
    ROUNDS_TOGETHER,
    SUMS_TOGETHER,
    Exchange,
    Order,
    RoundShape,
    TrainingOptions,
    choose_exchange,
    expected_tasks,
)

# Characters of a block of text, and blocks that are joined where a text has many.
_JOINED, _MANY_BLOCKS = 4, 100
DECODED_BYTES = 12
"""Decoded bytes of a connection."""
# Bytes of a token of a block of text: in the memory of a worker, as it is sent, and compressed between hosts.
_TOKEN_BYTES, _SENT_TOKEN_BYTES, _COMPRESSED_TOKEN_BYTES = 40, 24, 5
_LINKS, _HOST = "links of tier ", "cores of the host"
# A larger share of a worker's memory than this is not opened by each of them (`giaann_dask.rows.regions`).
_OPENED_SHARE = 1 / 4
# Regions times workers from which regions are not assigned one by one.
_MANY_ASSIGNED = 1 << 16


@names_keywords
@dataclass(frozen=True, kw_only=True)
class TrainingConfiguration:
    """Division of a training into batches, rounds and regions.

    Parameters
    ----------
    batch_sequences, accumulate, rounds_in_flight : int
        As in `TrainingOptions`.
    order : {"corpus", "random", "least-overlap"}
        Selection.
    placement : {"hash", "balanced", "co-occurrence"}
        Of columns in regions.
    regions : int
        Most regions that are not split for their size.
    exchange : {"auto", "tasks", "workers"}
        As in `TrainingOptions`.
    """

    batch_sequences: int = 8192
    accumulate: int = 1
    rounds_in_flight: int = 4
    order: Order = "corpus"
    placement: PlacementKind = "hash"
    regions: int = Specification().regions
    exchange: Exchange = "auto"

    def __post_init__(self) -> None:
        require_at_least(1, self, "batch_sequences", "accumulate", "rounds_in_flight", "regions")
        require_one_of("placement", self.placement, PLACEMENTS)
        require_one_of("exchange", self.exchange, EXCHANGES)


class Limit(NamedTuple):
    """A limit of the rate.

    Attributes
    ----------
    name : str
        What limits it.
    rate : float
        Sequences per second.
    moved_by : str
        What would raise it.
    """

    name: str
    rate: float
    moved_by: str


class MemoryNeed(NamedTuple):
    """Memory of the worker that needs most of a kind.

    Attributes
    ----------
    kind : WorkerKind
        The workers.
    nbytes : int
        What it needs.
    data_bytes : int
        Part of it that may be on its disk instead.
    """

    kind: WorkerKind
    nbytes: int
    data_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Sufficiency of memory and disk."""
        beyond = self.nbytes - self.kind.memory_bytes
        return beyond <= min(self.data_bytes, self.kind.disk_bytes)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Costs of a training in one configuration.

    Attributes
    ----------
    configuration : TrainingConfiguration
        How it is divided.
    limits : tuple of Limit
        The lowest first, which binds.
    stages : mapping of str to float
        Seconds of a core that a sequence takes, by stage.
    tier_bytes : mapping of str to float
        Bytes that a sequence moves by tier of link.
    link_bytes_per_s : mapping of str to float
        Bytes per second on the busiest link of each tier.
    tasks : float
        Tasks of the whole training.
    seconds, cost : float
        To train, with commits and what failures take; and the price.
    regions : int
        Regions at the end.
    network_bytes, largest_region_bytes : float
        Of packed connections.
    memory : tuple of MemoryNeed
        By kind of workers.
    compute_workers : float
        Compute workers that saturate storage, scheduler and links.
    commit_s, commit_interval_s : float
        Seconds of a commit in the course of the training, and between two of them (Daly).
    last_commit_s : float
        Seconds of the last commit.
    token_s, tokens_per_s : float
        Latency of a generated token, and tokens of all prompts in a second.
    """

    configuration: TrainingConfiguration
    limits: tuple[Limit, ...]
    stages: Mapping[str, float]
    tier_bytes: Mapping[Tier, float]
    link_bytes_per_s: Mapping[Tier, float]
    tasks: float
    seconds: float
    cost: float
    regions: int
    network_bytes: float
    largest_region_bytes: float
    memory: tuple[MemoryNeed, ...]
    compute_workers: float
    commit_s: float
    commit_interval_s: float
    last_commit_s: float
    token_s: float
    tokens_per_s: float

    @property
    def binding(self) -> Limit:
        """The lowest limit."""
        return self.limits[0]

    @property
    def rate(self) -> float:
        """Sequences per second while training goes on."""
        return self.binding.rate

    @property
    def worst(self) -> MemoryNeed:
        """The kind of workers that lacks most memory, or has least to spare."""
        return max(self.memory, key=lambda need: need.nbytes / need.kind.memory_bytes)

    @property
    def fits(self) -> bool:
        """Sufficiency of the memory and disk of all workers."""
        return all(need.fits for need in self.memory)


def commit_interval(commit_s: float, failures_s: float) -> float:
    """Return the time between two commits that loses least (Daly, 2006; Young's of 1974 to first order).

    Parameters
    ----------
    commit_s : float
        Seconds that a commit takes.
    failures_s : float
        Mean seconds between two failures of the cluster.

    Examples
    --------
    >>> round(commit_interval(1.0, 5000.0), 1), round((2 * 1.0 * 5000) ** 0.5, 1)
    (99.3, 100.0)
    """
    if commit_s >= 2 * failures_s:
        return failures_s
    ratio = commit_s / (2 * failures_s)
    return math.sqrt(2 * commit_s * failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - commit_s


class _RoundDivision(NamedTuple):
    """Division of a training into rounds.

    Attributes
    ----------
    batch, sent : float
        Trained sequences of a batch, and of the accumulated ones that are sent together.
    width : int
        Compute workers that count in a round.
    number : float
        Rounds.
    """

    batch: float
    sent: float
    width: int
    number: float


@lru_cache(maxsize=64)
def _tier_shares(hardware_workers: tuple[WorkerKind, ...], hosts_per_rack: int) -> dict[str, float]:
    """Return the share of pairs of a compute and a storage worker by tier, and ``same`` of a worker with itself."""
    places = list(Hardware(workers=hardware_workers, hosts_per_rack=hosts_per_rack).places())
    compute = [place for place in places if place.kind.computes]
    storage = [place for place in places if place.kind.stores]
    total = len(compute) * len(storage)

    def share(first: list[int], second: list[int]) -> float:
        ours, theirs = Counter(first), Counter(second)
        return sum(count * theirs[at] for at, count in ours.items()) / total

    same = sum(place.kind.role == "both" for place in places) / total
    host = share([place.host for place in compute], [place.host for place in storage])
    rack = share([place.rack for place in compute], [place.rack for place in storage])
    return {"same": same, "device": 0.0, "host": host - same, "rack": rack - host, "site": 1 - rack}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of training some sequences on some hardware, for any configuration.

    Parameters
    ----------
    growth : Growth
        Of the corpus.
    hardware : Hardware
        What it is trained on.
    sequences : float
        Trained sequences of the whole corpus.
    network_bytes : float, optional
        Bytes of the packed network, where they do not follow from the sequences.
    """

    growth: Growth
    hardware: Hardware
    sequences: float
    network_bytes: float | None = None

    @property
    def characters(self) -> float:
        """Characters of the text."""
        return self.growth.characters * self.sequences / self.growth.trained

    def packed_bytes(self) -> float:
        """Return the bytes of the whole network, packed."""
        return self.network_bytes or self.growth.packed_bytes.at(self.sequences)

    def estimate(self, configuration: TrainingConfiguration) -> Estimate:
        """Return what the training costs in a configuration."""
        rounds = self._rounds(configuration)
        sent, round_sequences = rounds.sent, rounds.sent * rounds.width
        nbytes = self.growth.increment_bytes(configuration.order, sent) / sent
        regions = self._regions(configuration)
        round_tasks = self._round_tasks(configuration, rounds, regions)
        text_tasks = self._text_tasks(configuration)
        tasks = rounds.number * round_tasks + text_tasks
        messages = text_tasks + rounds.number * self._messages(round_tasks)
        rates = self.hardware.rates
        handled_s = tasks / rates.tasks_per_s + messages * rates.driver_message_s
        few = min(configuration.regions, FIRST_REGIONS)
        # Where all rounds are in flight before the first one is measured, regions are split after them.
        splits = math.log2(max(regions / few, 1)) if rounds.number <= configuration.rounds_in_flight else 0.0
        tasks_s = self._worker_tasks_s(tasks, messages)
        stages = self._stages(rounds.batch, nbytes, rounds.number, tasks_s, splits)
        busiest = self._busiest_worker(configuration, regions)
        commit_s = self._commit_s(nbytes, round_sequences, regions, busiest)
        counting_s = self._counting_s(round_sequences)
        tier_bytes = self._tier_bytes(nbytes)
        limits = [
            *self._worker_limits(stages, busiest),
            *self._host_limits(stages, handled_s),
            *self._service_limits(tasks, handled_s, text_tasks + CHAIN * rounds.number),
            *self._link_limits(tier_bytes, busiest, rounds.width),
            self._latency_limit(configuration, rounds, nbytes),
        ]
        limits.sort(key=lambda limit: limit.rate)
        rate = limits[0].rate
        failures_s = 3600 / sum(kind.count / kind.hours_between_failures for kind in self.hardware.workers)
        interval = commit_interval(commit_s, failures_s)
        waiting = min(self._waiting_sequences(round_sequences), self.sequences)
        spared, last = self._spared(stages, busiest, waiting), min(round_sequences, self.sequences)
        training_s = self._training_s(limits, spared, last, self._uneven_s(rounds, stages))
        # A failure repeats half an interval on average. Commits are made while training goes on; the last one packs and
        # writes what waits for it.
        ending_s = self._splitting_s(splits) + commit_s + counting_s
        seconds = self.hardware.rates.start_s + training_s * (1 + interval / (2 * failures_s)) + ending_s
        others = [limit.rate for limit in limits if limit.name not in ("compute workers", "workers", _HOST)]
        counting = sum(stages[name] for name in ("text", "count", "send", "tasks"))
        cores = self.hardware.compute_cores / self.hardware.compute_workers
        token_s, tokens_per_s = self._inference(busiest)
        return Estimate(
            configuration=configuration,
            limits=tuple(limits),
            stages=stages,
            tier_bytes=tier_bytes,
            link_bytes_per_s={
                tier: rate * load for tier, load in self._loads(tier_bytes, busiest, rounds.width).items()
            },
            tasks=tasks + regions * COMMIT_TASKS * (1 + training_s / interval),
            seconds=seconds,
            cost=sum(kind.count * kind.price_per_hour for kind in self.hardware.workers) * seconds / 3600,
            regions=regions,
            network_bytes=self.packed_bytes(),
            largest_region_bytes=self.packed_bytes() * self._largest_region(configuration, regions),
            memory=self._memory(configuration, rounds, nbytes, busiest),
            compute_workers=min(others) * counting / cores,
            commit_s=commit_s,
            commit_interval_s=interval,
            last_commit_s=commit_s + counting_s,
            token_s=token_s,
            tokens_per_s=tokens_per_s,
        )

    def sending_s(self, configuration: TrainingConfiguration) -> float:
        """Return the seconds in which the busiest link carries all blocks of text and increments."""
        links = (limit for limit in self.estimate(configuration).limits if limit.name.startswith(_LINKS))
        return max((self.sequences / limit.rate for limit in links), default=0.0)

    def _tier_bytes(self, nbytes: float) -> dict[Tier, float]:
        """Return the bytes that a sequence moves by tier, given those of its increments."""
        shares = _tier_shares(self.hardware.workers, self.hardware.hosts_per_rack)
        # Blocks of text move as well, to the workers that count them.
        tokens = self.growth.tokens / self.growth.trained
        near = nbytes + _SENT_TOKEN_BYTES * tokens
        far = COMPRESSED * nbytes + _COMPRESSED_TOKEN_BYTES * tokens
        return {tier: (far if tier in ("rack", "site") else near) * shares[tier] for tier in TIERS}

    def _rounds(self, configuration: TrainingConfiguration) -> _RoundDivision:
        """Return how the training is divided: batches are joined of whole blocks, so that a short text has one."""
        counted = self.sequences * self.growth.sequences / self.growth.trained
        batches = max(1, round(counted / configuration.batch_sequences))
        batch = self.sequences / batches
        sent = min(batch * configuration.accumulate, self.sequences)
        width = min(self.hardware.compute_workers, max(1, round(self.sequences / sent)))
        return _RoundDivision(batch, sent, width, max(1.0, self.sequences / (sent * width)))

    def _first_sequences(self) -> float:
        """Return the sequences of the first block of each worker, which are trained while a training starts."""
        blocks = sum(kind.processors for kind in self.hardware.computing())
        sequence = self.growth.characters / self.growth.trained
        return blocks * TrainingOptions().block_characters / sequence

    def _block_bytes(self) -> float:
        """Return the bytes of a sequence in a block of text."""
        return _TOKEN_BYTES * self.growth.tokens / self.growth.trained

    def _training_s(self, limits: Sequence[Limit], spared: Mapping[str, float], last: float, uneven_s: float) -> float:
        """Return the seconds of rounds: what takes longest of the work of workers, the host, services and links.

        Nothing is done while the increments of the last round are sent.
        """
        first = min(self._first_sequences(), self.sequences)
        # The first blocks are trained while nothing else can be.
        alone_s = self._first_block_s(first) + uneven_s
        used_s, sending_s = [0.0], 0.0
        for limit in limits:
            if limit.name in spared:
                trained, more_s = (self.sequences, 0.0) if limit.name == _HOST else (self.sequences - first, alone_s)
                used_s.append(trained / limit.rate + more_s - spared[limit.name])
            else:
                used_s.append((self.sequences - last) / limit.rate)
            if limit.name.startswith(_LINKS):
                sending_s = max(sending_s, last / limit.rate)
        return max(used_s) + sending_s

    def _spared(self, stages: Mapping[str, float], busiest: float, waiting: float) -> dict[str, float]:
        """Return by limit the seconds of rounds in which sequences that wait for the last commit would be packed."""
        packing = waiting * (stages["pack"] + stages["write"])
        least = packing * self._core_share(busiest)
        host = packing / max(self.hardware.only_host_cores * self.hardware.rates.rounds_busy, 1e-9)
        return {"compute workers": 0.0, "storage workers": least, "workers": least, _HOST: host}

    def _splitting_s(self, splits: float) -> float:
        """Return the seconds in which the last regions are split after all rounds."""
        rates, steps = self.hardware.rates, math.ceil(splits) * SPLIT_CHAIN
        work_s = rates.driver_message_s + rates.worker_message_s
        # Half of the work is that of the driver, which is one process.
        cores = rates.commit_busy * min(self.hardware.only_host_cores, 2) or 2
        return steps * max(rates.task_s, min(self.hardware.storage_workers, FIRST_REGIONS) * work_s / cores)

    def _first_block_s(self, first: float) -> float:
        """Return the seconds in which a core encodes the first block of text, and counts it."""
        block = min(first, self._first_sequences() / sum(kind.processors for kind in self.hardware.computing()))
        stages = self._stages(max(block, 1.0), 0.0, 1.0, 0.0, 0.0)
        return block * (stages["text"] + stages["count"])

    def _uneven_s(self, rounds: _RoundDivision, stages: Mapping[str, float]) -> float:
        """Return how long some cores have no block and no batch left while others work on the last ones."""
        cores = self.hardware.compute_cores

        def idle_s(pieces: float, stage: str) -> float:
            return stages[stage] * self.sequences / pieces * (math.ceil(pieces / cores) - pieces / cores)

        blocks = max(self.characters / TrainingOptions().block_characters, 1.0)
        batches = max(self.sequences / rounds.batch, 1.0)
        return idle_s(blocks, "text") + idle_s(batches, "count")

    def _regions(self, configuration: TrainingConfiguration) -> int:
        """Return how many regions there are at the end: none is larger than a worker can add up."""
        connections = self.packed_bytes() / self.growth.connection_bytes
        decoded = DECODED_BYTES * connections
        limit = region_limit(self.hardware)
        few = min(configuration.regions, FIRST_REGIONS)
        wanted = max(configuration.regions, regions_ahead(decoded, limit))
        split = min(wanted, max(few, int(2 * decoded / SMALL_BYTES)))
        return max(split, math.ceil(1.5 * decoded / limit))

    def _largest_region(self, configuration: TrainingConfiguration, regions: int) -> float:
        """Return the share of the largest region; those that are too large are split, rows of a neuron by target."""
        share = self.growth.region_share(configuration.placement, regions)
        limit = TrainingOptions().region_bytes / DECODED_BYTES * self.growth.connection_bytes
        return max(min(share, limit / self.packed_bytes()), 1 / regions)

    def _busiest_worker(self, configuration: TrainingConfiguration, regions: int) -> float:
        """Return the share of the storage worker with most of the connections, as regions are assigned."""
        return _busiest_share(self.hardware.workers, regions, self._largest_region(configuration, regions))

    def _round_tasks(self, configuration: TrainingConfiguration, rounds: _RoundDivision, regions: int) -> float:
        """Return the tasks of a round, compaction included."""
        growth, owners = self.growth, self.hardware.storage_workers
        sent, width = rounds.sent, rounds.width
        order, placement = configuration.order, configuration.placement
        touched = growth.touched_regions(order, sent, placement, regions)
        touched_round = growth.touched_regions(order, sent * width, placement, regions)
        shape = RoundShape(
            batches=width,
            owners=round(_reached(touched_round, owners)),
            regions=round(touched_round),
            routes=round(width * _reached(touched, owners)),
        )
        seconds = sent / self.hardware.rates.counted(rounds.batch)
        exchange = choose_exchange(configuration.exchange, shape, seconds)
        accumulated = width * configuration.accumulate if configuration.accumulate > 1 else 0
        return accumulated + 2 * (order != "corpus") + expected_tasks(shape, exchange)

    def _text_tasks(self, configuration: TrainingConfiguration) -> float:
        blocks = self.characters / TrainingOptions().block_characters
        blocks = blocks / _JOINED if blocks > _MANY_BLOCKS else max(blocks, 1)
        selected = configuration.order != "corpus" or configuration.batch_sequences * blocks < self.sequences
        placed = configuration.placement != "hash"
        return blocks * (BLOCK_TASKS + selected + placed)

    def _stages(self, batch: float, nbytes: float, rounds: float, tasks_s: float, splits: float) -> dict[str, float]:
        """Return the seconds of a core that a sequence takes, by stage."""
        rates, growth, sequences = self.hardware.rates, self.growth, self.sequences
        shares = _tier_shares(self.hardware.workers, self.hardware.hosts_per_rack)
        # Runs of sixteen rounds are packed, and their sums added up by sixteen, the last of them at the end.
        together = max(1.0, min(sequences, ROUNDS_TOGETHER * sequences / rounds))
        levels = math.ceil(math.log(max(sequences / together, 1), SUMS_TOGETHER))
        scale = self.packed_bytes() / growth.packed_bytes.at(sequences)
        packed = scale * growth.packed_bytes.at(together) / together
        # Rates are of sequences of the text that they were measured with.
        pairs = growth.pairs / growth.trained / rates.sequence_pairs
        return {
            "text": self._characters() / rates.text_per_s,
            "count": 1 / rates.counted(batch) + (pairs - 1) / max(rates.counted_per_s),
            "send": 2 * nbytes * (1 - shares["same"]) / self.hardware.links["host"].bandwidth,
            # Regions are divided by half until there are as many as wanted, which copies their runs.
            "integrate": nbytes / rates.integrated_bytes_per_s,
            "split": splits * nbytes / rates.integrated_bytes_per_s,
            "pack": nbytes / rates.packed_bytes_per_s,
            "merge": levels * packed / rates.merged_bytes_per_s,
            "write": packed / rates.written_bytes_per_s,
            "tasks": tasks_s / sequences,
        }

    def _driver_s(self, handled_s: float) -> float:
        """Return the processor seconds of driver and scheduler for a sequence."""
        rates = self.hardware.rates
        return self._characters() / rates.driver_per_s + handled_s / self.sequences

    def _messages(self, tasks: float) -> float:
        """Return the messages of a round: the tasks of a step are in one for each worker."""
        return min(tasks, CHAIN * sum(kind.count for kind in self.hardware.workers))

    def _worker_tasks_s(self, tasks: float, messages: float) -> float:
        """Return the processor seconds of workers for tasks without work, and for the messages by which they come."""
        rates = self.hardware.rates
        return tasks * rates.worker_task_s + messages * rates.worker_message_s

    def _characters(self) -> float:
        """Return the characters of a sequence, in those of the text with which rates were measured."""
        return self.growth.characters / self.growth.trained / self.hardware.rates.sequence_characters

    def _host_limits(self, stages: Mapping[str, float], handled_s: float) -> list[Limit]:
        """Return the limit of the cores of the only host, which all processes share."""
        if not self.hardware.only_host_cores:
            return []
        busy = self.hardware.only_host_cores * self.hardware.rates.rounds_busy
        rate = busy / (sum(stages.values()) + self._driver_s(handled_s))
        return [Limit(_HOST, rate, "more cores, or driver and scheduler on another host")]

    def _worker_limits(self, stages: Mapping[str, float], busiest: float) -> list[Limit]:
        """Return the limits of the workers' cores, of which one has most of the connections."""
        hardware = self.hardware
        computing = sum(stages[name] for name in ("text", "count", "send", "tasks"))
        storing = sum(stages.values()) - computing
        slowest = max(stages, key=stages.__getitem__)
        moved = f"more cores, or a faster stage {slowest} ({stages[slowest] / sum(stages.values()):.0%} of the work)"
        together = sum(kind.processors for kind in hardware.workers if kind.role == "both")
        storing *= self._core_share(busiest)
        if together == sum(kind.processors for kind in hardware.workers):
            return [Limit("workers", 1 / (computing / together + storing), moved)]
        return [
            Limit("compute workers", hardware.compute_cores / computing, f"more compute workers; {moved}"),
            Limit("storage workers", 1 / storing, f"more storage workers, or regions; {moved}"),
        ]

    def _core_share(self, busiest: float) -> float:
        """Return the share of a core of the busiest storage worker in what storage workers do."""
        hardware = self.hardware
        threads = sum(kind.count * kind.cores for kind in hardware.storing())
        return max(busiest * hardware.storage_workers / threads, 1 / hardware.storage_cores)

    def _service_limits(self, tasks: float, handled_s: float, submissions: float) -> list[Limit]:
        """Return the limits of scheduler and driver, of which there is one each; the driver submits steps of rounds."""
        rates = self.hardware.rates
        per_sequence = tasks / self.sequences
        driver_s = self._characters() / rates.driver_per_s + submissions / self.sequences * rates.driver_message_s
        if self.hardware.only_host_cores:
            # The scheduler is a thread of the driver's process.
            driver_s = self._driver_s(handled_s)
        return [
            Limit("scheduler", rates.tasks_per_s / per_sequence, "larger batches, fewer regions, or another exchange"),
            Limit("driver", 1 / driver_s, "text that is encoded before, or several networks that are added"),
        ]

    def _loads(self, tier_bytes: Mapping[Tier, float], busiest: float, width: int) -> dict[Tier, float]:
        """Return the bytes that a sequence sends through the busiest link of each tier, in rounds of some batches."""
        hardware = self.hardware
        crossing = {
            "host": sum(tier_bytes[tier] for tier in ("host", "rack", "site")),
            "rack": tier_bytes["rack"] + tier_bytes["site"],
            "site": tier_bytes["site"],
        }
        per_host = {
            "host": 1.0,
            "rack": max(kind.per_host for kind in hardware.storing()),
            "site": max(kind.per_host for kind in hardware.storing()) * hardware.hosts_per_rack,
        }
        senders = {
            "host": hardware.compute_workers,
            "rack": sum(kind.hosts for kind in hardware.computing()),
            "site": sum(kind.hosts for kind in hardware.computing()) / hardware.hosts_per_rack,
        }
        loads: dict[Tier, float] = {}
        for tier in SHARED_TIERS:
            received = min(1.0, busiest * per_host[tier])
            loads[tier] = crossing[tier] * max(received, 1 / max(min(senders[tier], width), 1))
        return loads

    def _link_limits(self, tier_bytes: Mapping[Tier, float], busiest: float, width: int) -> list[Limit]:
        moved = {
            "host": "larger batches, or accumulation",
            "rack": "larger batches, accumulation, more storage hosts, or a faster network",
            "site": "larger batches, accumulation, workers in fewer racks, or a faster network",
        }
        return [
            Limit(f"{_LINKS}{tier}", self.hardware.links[tier].bandwidth / load, moved[tier])
            for tier, load in self._loads(tier_bytes, busiest, width).items()
            if load > 0
        ]

    def _latency_limit(self, configuration: TrainingConfiguration, rounds: _RoundDivision, nbytes: float) -> Limit:
        """Return the limit of rounds, each of which takes some time, however little it has to do."""
        hardware, rates = self.hardware, self.hardware.rates
        shares = _tier_shares(hardware.workers, hardware.hosts_per_rack)
        farthest: Tier = max((tier for tier in TIERS if shares[tier] > 0), key=TIERS.index, default="host")
        link = hardware.links[farthest]
        seconds = rounds.sent / rates.counted(rounds.batch) + link.seconds(rounds.sent * nbytes)
        seconds += CHAIN * (rates.task_s + 2 * link.latency)
        rate = configuration.rounds_in_flight * rounds.width * rounds.sent / seconds
        return Limit("latency of rounds", rate, "larger batches, or more rounds in flight")

    def _commit_s(self, nbytes: float, round_sequences: float, regions: int, busiest: float) -> float:
        """Return the seconds of a commit: what waits unpacked, so many bytes a sequence, is packed and written."""
        rates, waiting = self.hardware.rates, self._waiting_sequences(round_sequences)
        # The first regions are in the commit of a few sentences.
        packing = max(self._packing_s(waiting, nbytes, regions) - FIRST_REGIONS * rates.run_s, 0.0)
        more_s = max(regions - FIRST_REGIONS, 0) * rates.commit_region_s
        alone_s = packing * max(self._core_share(busiest), 1 / regions)
        if not self.hardware.only_host_cores:
            return rates.commit_s + more_s + alone_s
        # All processes share the cores of the host, which are busy for a share of the time.
        busy = rates.commit_busy * self.hardware.only_host_cores
        return rates.commit_s + max((packing + more_s) / busy, alone_s)

    def _waiting_sequences(self, round_sequences: float) -> float:
        """Return the sequences whose increments are not packed yet, at most."""
        return min(ROUNDS_TOGETHER - 1, max(self.sequences / round_sequences, 1)) * round_sequences

    def _packing_s(self, sequences: float, nbytes: float, regions: int) -> float:
        """Return the seconds of a core to pack and write increments of sequences, of so many bytes each."""
        rates = self.hardware.rates
        packed = self.growth.packed_bytes.at(max(sequences, 1.0))
        packing_s = sequences * nbytes / rates.packed_bytes_per_s
        return packing_s + packed / rates.written_bytes_per_s + regions * rates.run_s

    def _counting_s(self, round_sequences: float) -> float:
        """Return the seconds in which the distinct connections of regions of several runs are counted at the end."""
        if self.sequences <= ROUNDS_TOGETHER * round_sequences:
            return 0.0
        return self.packed_bytes() / self.hardware.rates.merged_bytes_per_s / self.hardware.storage_cores

    def _memory(
        self, configuration: TrainingConfiguration, rounds: _RoundDivision, nbytes: float, busiest: float
    ) -> tuple[MemoryNeed, ...]:
        """Return the memory of the worker of each kind that needs most."""
        rates = self.hardware.rates
        increment = rounds.sent * nbytes
        data = self.packed_bytes() * busiest
        waiting = min(ROUNDS_TOGETHER, rounds.number) * increment * rounds.width * busiest
        in_flight = min(configuration.rounds_in_flight, rounds.number) * increment
        batch = rounds.sent * self._block_bytes()
        found = []
        for kind in self.hardware.workers:
            # Increments that wait were in flight before.
            moving = max(in_flight * kind.computes, waiting * kind.stores)
            needed = rates.process_bytes + batch * kind.computes + data * kind.stores + moving
            found.append(MemoryNeed(kind, int(needed), int(data * kind.stores)))
        return tuple(found)

    def _inference(self, busiest: float) -> tuple[float, float]:
        """Return the latency of a token, and the tokens of all prompts in a second, of which each moves a row."""
        hardware, rates = self.hardware, self.hardware.rates
        compute = hardware.compute_cores / rates.step_s
        memory = min(kind.memory_bytes for kind in hardware.computing())
        connections = self.packed_bytes() / self.growth.connection_bytes
        if connections * DECODED_BYTES <= _OPENED_SHARE * memory:
            return rates.step_s, compute
        row = self.growth.used_row * connections * DECODED_BYTES
        shares = _tier_shares(hardware.workers, hardware.hosts_per_rack)
        away = [tier for tier in TIERS if shares[tier] > 0]
        # Requests were measured on one host.
        near = hardware.links["host"].latency
        links = {tier: replace(link, latency=max(link.latency - near, 0.0)) for tier, link in hardware.links.items()}
        seconds = sum(shares[tier] * links[tier].seconds(row, 2) for tier in away)
        row_bytes: dict[Tier, float] = {tier: row * shares[tier] for tier in TIERS}
        loads = self._loads(row_bytes, busiest, hardware.compute_workers)
        linked = (hardware.links[tier].bandwidth / load for tier, load in loads.items() if load > 0)
        return rates.step_s + rates.row_s + seconds, min(compute, hardware.storage_cores / rates.row_s, *linked)


def region_limit(hardware: Hardware) -> int:
    """Return the decoded bytes from which a region is split: as many as a storage worker can add up, at most."""
    limits = (region_budget(kind.memory_bytes) for kind in hardware.storing())
    return max(1, min(TrainingOptions().region_bytes, *limits))


@lru_cache(maxsize=4096)
def _reached(regions: float, owners: int) -> float:
    """Return how many of some owners have one of some regions, which are dealt at random."""
    return float(owners * (1 - (1 - 1 / owners) ** regions))


@lru_cache(maxsize=4096)
def _busiest_share(kinds: tuple[WorkerKind, ...], regions: int, largest: float) -> float:
    """Return the share of the storage worker with most of the connections, as regions are assigned to workers."""
    limits = [kind.memory_bytes for kind in kinds if kind.stores for _ in range(kind.count)]
    if regions * len(limits) > _MANY_ASSIGNED or regions < 2:
        return max(largest, 1 / len(limits))
    # The largest region as measured, all others alike.
    rest = (1 - largest) / (regions - 1)
    weights = {0: round(1e9 * largest), **{region: round(1e9 * rest) for region in range(1, regions)}}
    names = tuple(map(str, range(len(limits))))
    memory = {name: WorkerMemory(limit=limit) for name, limit in zip(names, limits, strict=True)}
    load: Counter[str] = Counter()
    for region, owner in assign_regions({}, weights, Roles(names, (), memory=memory)).items():
        load[owner] += weights[region]
    return max(load.values()) / sum(weights.values())


def with_roles(hardware: Hardware, storage_share: float) -> Hardware:
    """Return hardware whose workers of both roles have one each, some of them that of storage.

    Parameters
    ----------
    hardware : Hardware
        With any workers.
    storage_share : float
        Share of the workers of each kind that store; at least one does, and one computes.
    """
    kinds: list[WorkerKind] = []
    for kind in hardware.workers:
        if kind.role != "both" or kind.count < 2:
            kinds.append(kind)
            continue
        storage = min(max(1, round(storage_share * kind.count)), kind.count - 1)
        kinds.append(replace(kind, name=f"{kind.name}-storage", count=storage, role="storage"))
        kinds.append(replace(kind, name=f"{kind.name}-compute", count=kind.count - storage, role="compute"))
    return replace(hardware, workers=tuple(kinds))
