"""Describe hardware: kinds of workers, links between them in tiers, and measured rates of this software.

The built-in rates were measured on two cores of a server with nothing else running (2026, two workers of one thread).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, get_args

import numpy as np

from giaann_dask.errors import require_at_least, require_one_of, require_option

WorkerRole = Literal["both", "storage", "compute"]
Tier = Literal["device", "host", "rack", "site"]
TIERS: tuple[Tier, ...] = get_args(Tier)
SHARED_TIERS = TIERS[1:]
"""Tiers of links that workers share."""
COMPRESSED = 0.5
"""Bytes of increments between hosts, compressed by Dask, in those in memory.

Increments of 256 to 8,192 sequences of two novels have 0.42 to 0.54 (docs/explanation/scaling.md).
"""


@dataclass(frozen=True, kw_only=True)
class WorkerKind:
    """Workers of one kind; a worker is a process.

    Parameters
    ----------
    name : str
        Of the kind.
    count : int
        Workers.
    memory_bytes : int
        Memory limit of each.
    cores : int
        Threads of each.
    role : {"both", "storage", "compute"}
        Whether it stores columns, computes, or both.
    per_host : int
        Workers of a host.
    host_cores : int
        Cores that the workers of a host share; 0 for as many as they have threads.
    hours_between_failures : float
        Mean time between two failures of each. By default that of a GPU in the published training of Llama 3
        (419 interruptions in 54 days of 16,384).

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    name: str
    count: int
    memory_bytes: int
    cores: int = 1
    role: WorkerRole = "both"
    per_host: int = 1
    host_cores: int = 0
    hours_between_failures: float = 50_000.0

    def __post_init__(self) -> None:
        require_at_least(1, self, "count", "memory_bytes", "cores", "per_host")
        require_at_least(0, self, "host_cores")
        require_one_of("role", self.role, get_args(WorkerRole))
        hours = self.hours_between_failures
        require_option(hours > 0, "hours_between_failures", hours, "more than 0")

    @property
    def hosts(self) -> int:
        """Hosts of these workers."""
        return -(-self.count // self.per_host)

    @property
    def processors(self) -> int:
        """Cores that all of these workers have together."""
        threads = self.count * self.cores
        return min(threads, self.hosts * self.host_cores) if self.host_cores else threads

    @property
    def stores(self) -> bool:
        """Whether these workers store columns."""
        return self.role != "compute"

    @property
    def computes(self) -> bool:
        """Whether these workers count batches."""
        return self.role != "storage"


@dataclass(frozen=True, kw_only=True)
class Link:
    """Link of a tier.

    Parameters
    ----------
    bandwidth : float
        Bytes per second in each direction. Of tier ``device`` between the memories of a worker and of its GPU, of
        ``host`` what a worker exchanges with others of its host, of ``rack`` what a host exchanges with others, and
        of ``site`` what a rack exchanges with others.
    latency : float
        Seconds until the first byte of a message has come.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        require_option(self.bandwidth > 0, "bandwidth", self.bandwidth, "more than 0")
        require_option(self.latency >= 0, "latency", self.latency, "0 or more")

    def seconds(self, nbytes: float, messages: float = 1) -> float:
        """Return how long some messages take, one after another.

        Examples
        --------
        >>> Link(bandwidth=1e6, latency=0.5).seconds(2e6)
        2.5
        """
        return nbytes / self.bandwidth + messages * self.latency


# A network of 10 Gbit/s; within a host as measured between two processes.
_LINKS: Mapping[Tier, Link] = {
    "device": Link(bandwidth=12e9, latency=1e-5),
    "host": Link(bandwidth=1e9, latency=5e-4),
    "rack": Link(bandwidth=1.25e9, latency=1e-3),
    "site": Link(bandwidth=1.25e9, latency=2e-3),
}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of this software, of one core unless noted.

    Parameters
    ----------
    sequence_pairs, sequence_characters : float
        Pairs of tokens and characters of a sequence of the text that they were measured with.
    batch_sizes : tuple of int
        Sequences of a batch, ascending.
    counted_per_s : tuple of float
        Sequences that a core counts in a second, in batches of each of these sizes.
    text_per_s : float
        Sequences of text that a core tags and encodes in a second.
    driver_per_s : float
        Sequences of text that driver and scheduler handle in a second of their processor: their blocks are submitted,
        and their words added to the dictionaries.
    integrated_bytes_per_s : float
        Bytes of increments that are put together in a second.
    packed_bytes_per_s : float
        Bytes of increments that are added up and packed in a second.
    merged_bytes_per_s : float
        Bytes of packed runs that are added up in a second.
    written_bytes_per_s : float
        Bytes of packed runs that a worker writes to the store in a second.
    tasks_per_s : float
        Tasks that driver and scheduler handle in a second of their processor, of many that are submitted together.
    task_s : float
        Seconds of a worker from one task without work to the next, each of which is submitted alone.
    driver_message_s, worker_message_s : float
        Processor seconds of driver and scheduler, and of a worker, for the message by which the tasks of a step of a
        round are submitted to this worker, beside those of the tasks.
    start_s : float
        Seconds of a training of a few sentences, its commit excepted.
    commit_s : float
        Seconds of a commit of a few sentences, in as many regions as a training begins with.
    commit_region_s : float
        Seconds of the driver that each further changed region adds to a commit.
    run_s : float
        Seconds of a worker's core for a run that is packed and written, of few bytes as of many.
    rounds_busy, commit_busy : float
        Share of the time in which the cores of a cluster's only host are busy, in rounds and in a commit. Otherwise
        driver, scheduler and workers wait for each other. The time in which links carry increments is not counted.

    Raises
    ------
    OptionError
        If a rate is not positive, or sizes are not ascending or not as many as rates.
    """

    sequence_pairs: float = 435.0
    sequence_characters: float = 158.0
    batch_sizes: tuple[int, ...] = (1, 16, 256, 2048, 8192)
    counted_per_s: tuple[float, ...] = (1_500.0, 17_000.0, 77_000.0, 85_000.0, 77_000.0)
    text_per_s: float = 37_000.0
    driver_per_s: float = 170_000.0
    integrated_bytes_per_s: float = 460e6
    packed_bytes_per_s: float = 75e6
    merged_bytes_per_s: float = 16e6
    written_bytes_per_s: float = 41e6
    tasks_per_s: float = 1_300.0
    task_s: float = 6e-3
    driver_message_s: float = 10e-3
    worker_message_s: float = 8e-3
    start_s: float = 0.13
    commit_s: float = 0.46
    commit_region_s: float = 0.04
    run_s: float = 0.05
    rounds_busy: float = 0.88
    commit_busy: float = 0.81

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            values = value if isinstance(value, tuple) else (value,)
            valid = len(values) > 0 and all(number > 0 for number in values)
            require_option(valid, each.name, value, "more than 0")
        sizes = self.batch_sizes
        require_option(list(sizes) == sorted(set(sizes)), "batch_sizes", sizes, "ascending numbers")
        matching = len(self.counted_per_s) == len(sizes)
        require_option(matching, "counted_per_s", self.counted_per_s, f"{len(sizes)} rates, one for each batch size")

    @property
    def worker_task_s(self) -> float:
        """Processor seconds of a worker for a task without work, of many that are submitted together."""
        return min(self.task_s, 1 / self.tasks_per_s)

    def counted(self, batch_sequences: float) -> float:
        """Return how many sequences a core counts in a second, in batches of a size between the measured ones.

        Examples
        --------
        >>> rates = Rates(batch_sizes=(1, 100), counted_per_s=(10.0, 1000.0))
        >>> round(rates.counted(10)), rates.counted(1000)
        (100, 1000.0)
        """
        sizes, rates = np.log(self.batch_sizes), np.log(self.counted_per_s)
        return round(float(np.exp(np.interp(np.log(batch_sequences), sizes, rates))), 6)


class WorkerPlace(NamedTuple):
    """Host and rack of a worker.

    Attributes
    ----------
    kind : WorkerKind
        Of the worker.
    host, rack : int
        Numbers of its host, and of the rack of this.
    """

    kind: WorkerKind
    host: int
    rack: int


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Workers, the links between them, and the rates of this software on them.

    Parameters
    ----------
    workers : tuple of WorkerKind
        Kinds of workers. Each kind has hosts of its own.
    links : mapping of str to Link
        By tier: ``device``, ``host``, ``rack``, ``site``. By default a network of 10 Gbit/s.
    rates : Rates
        Measured, or built in.
    hosts_per_rack : int
        Hosts of a rack.

    Raises
    ------
    OptionError
        If no worker stores or none computes, two kinds have one name, or a tier is unknown.

    Examples
    --------
    >>> kind = WorkerKind(name="node", count=4, memory_bytes=16 << 30, per_host=2)
    >>> hardware = Hardware(workers=(kind,), hosts_per_rack=1)
    >>> [(place.host, place.rack) for place in hardware.places()]
    [(0, 0), (0, 0), (1, 1), (1, 1)]
    """

    workers: tuple[WorkerKind, ...]
    links: Mapping[Tier, Link] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    hosts_per_rack: int = 32

    def __post_init__(self) -> None:
        for tier in self.links:
            require_one_of("links", tier, TIERS)
        object.__setattr__(self, "links", {tier: self.links.get(tier, _LINKS[tier]) for tier in TIERS})
        require_at_least(1, self, "hosts_per_rack")
        names = [kind.name for kind in self.workers]
        require_option(len(set(names)) == len(names), "workers", names, "a different name for each kind of workers")
        for role, having in (("storage", self.storing()), ("compute", self.computing())):
            require_option(bool(having), "workers", names, f"workers of role {role} or both")

    def storing(self) -> list[WorkerKind]:
        """Return the kinds that store columns."""
        return [kind for kind in self.workers if kind.stores]

    def computing(self) -> list[WorkerKind]:
        """Return the kinds that count batches."""
        return [kind for kind in self.workers if kind.computes]

    @property
    def storage_workers(self) -> int:
        """Workers that store columns."""
        return sum(kind.count for kind in self.storing())

    @property
    def compute_workers(self) -> int:
        """Workers that count batches."""
        return sum(kind.count for kind in self.computing())

    @property
    def storage_cores(self) -> int:
        """Cores of the workers that store columns."""
        return sum(kind.processors for kind in self.storing())

    @property
    def compute_cores(self) -> int:
        """Cores of the workers that count batches."""
        return sum(kind.processors for kind in self.computing())

    @property
    def only_host_cores(self) -> int:
        """Cores of the only host, which driver and scheduler share; 0 where there are several, or it is not told."""
        return sum(kind.host_cores for kind in self.workers) if sum(kind.hosts for kind in self.workers) == 1 else 0

    def places(self) -> Iterator[WorkerPlace]:
        """Yield where each worker is: kind by kind, with as many on each host as the kind says."""
        host = 0
        for kind in self.workers:
            for number in range(kind.count):
                at = host + number // kind.per_host
                yield WorkerPlace(kind, at, at // self.hosts_per_rack)
            host += kind.hosts
