"""Describe hardware: kinds of workers, links between them in tiers, and measured rates of this software.

A description is read from and written to TOML. The built-in rates were measured by `giaann-dask plan --calibrate` on
two cores of a server with nothing else running (2026, two workers of one thread); those of prompts are the tokens of a
network of eight novels, in a process and with its rows on two workers (docs/reference/measurements.md).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from giaann_dask.errors import (
    InputFormatError,
    InputMissingError,
    OptionError,
    require_at_least,
    require_one_of,
    require_option,
)
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import read_utf8

WorkerRole = Literal["both", "storage", "compute"]
Tier = Literal["device", "host", "rack", "site"]
TIERS: tuple[Tier, ...] = get_args(Tier)
SHARED_TIERS = TIERS[1:]
"""Tiers of links that workers share."""
COMPRESSED = 0.5
"""Bytes of increments between hosts, compressed by Dask, in those in memory.

Increments of 256 to 8,192 sequences of two novels have 0.42 to 0.54 (docs/explanation/scaling.md).
"""

Made = TypeVar("Made")


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
    device_memory_bytes : int
        Memory of its GPU; 0 without one. It is kept with the description: plans count time and memory of processors.
    disk_bytes : int
        Its disk for data that do not fit into its memory.
    role : {"both", "storage", "compute"}
        Whether it stores columns, computes, or both.
    per_host : int
        Workers of a host.
    host_cores : int
        Cores that the workers of a host share; 0 for as many as they have threads.
    price_per_hour : float
        Of each, in any currency.
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
    device_memory_bytes: int = 0
    disk_bytes: int = 0
    role: WorkerRole = "both"
    per_host: int = 1
    host_cores: int = 0
    price_per_hour: float = 0.0
    hours_between_failures: float = 50_000.0

    def __post_init__(self) -> None:
        require_at_least(1, self, "count", "memory_bytes", "cores", "per_host")
        require_at_least(0, self, "device_memory_bytes", "disk_bytes", "host_cores", "price_per_hour")
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
    step_s : float
        Seconds in which a worker evaluates one step of a prompt.
    row_s : float
        Seconds of a request for the rows of a step, to workers of the same host.
    process_bytes : int
        Memory of a worker without data.
    measured : str
        When and with which versions they were measured.

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
    step_s: float = 1.5e-4
    row_s: float = 3e-3
    process_bytes: int = 300 << 20
    measured: str = "built in"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            values = value if isinstance(value, tuple) else (value,)
            valid = isinstance(value, str) or (len(values) > 0 and all(number > 0 for number in values))
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


@names_keywords
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
        Measured by ``--calibrate``, or built in.
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
    >>> Hardware.from_toml(hardware.toml()) == hardware
    True
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

    @classmethod
    def from_toml(cls, text: str, place: str = "the description of hardware") -> Hardware:
        """Return the hardware that a text in TOML describes.

        Parameters
        ----------
        text : str
            Tables ``[[workers]]``, ``[links.TIER]`` and ``[rates]`` with the fields of `WorkerKind`, `Link` and
            `Rates`. Numbers may have units: ``"16 GiB"``, ``"500 us"``; a bandwidth is one of bytes.
        place : str
            Where the text is from, for errors.

        Raises
        ------
        InputFormatError
            If it is not TOML, a field is unknown, missing or of another type.
        OptionError
            If a value is out of range.
        """
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputFormatError(f"{place} is not TOML: {error}", "TOML", "correct the file") from error
        links = _table(content.get("links", {}), f"{place}: links")
        kinds = content.get("workers", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        given = {
            **content,
            "workers": tuple(_made(WorkerKind, each, f"{place}: workers") for each in kinds),
            "links": {tier: _made(Link, each, f"{place}: links.{tier}") for tier, each in links.items()},
            "rates": _made(Rates, content.get("rates", {}), f"{place}: rates"),
        }
        return _made(cls, given, place)

    @classmethod
    def read(cls, path: Path) -> Hardware:
        """Return the hardware that a file describes; see `from_toml`.

        Raises
        ------
        InputMissingError
            If it cannot be read.
        InputEncodingError, InputFormatError, OptionError
            If it describes no hardware.
        """
        try:
            text = read_utf8(path)
        except OSError as error:
            raise InputMissingError(f"{path} cannot be read ({error.strerror})", "", "check the path") from error
        return cls.from_toml(text, str(path))

    def toml(self) -> str:
        """Return the description as TOML, which `from_toml` reads."""
        parts = [f"hosts_per_rack = {self.hosts_per_rack}\n"]
        parts += [f"[[workers]]\n{_lines(kind)}" for kind in self.workers]
        parts += [f"[links.{tier}]\n{_lines(link)}" for tier, link in self.links.items()]
        return "\n".join([*parts, f"[rates]\n{_lines(self.rates)}"])


def _lines(values: Any) -> str:
    """Return the fields of a dataclass of numbers and texts as TOML, of which JSON writes these alike."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in asdict(values).items())


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputFormatError(f"{place} is {value!r}", "a table", "correct the file")
    return value


def _made(kind: type[Made], given: Any, place: str) -> Made:
    """Return a dataclass made of a table of TOML."""
    table = _table(given, place)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    required = {name for name, each in known.items() if each.default is each.default_factory is MISSING}
    wrong = sorted(table.keys() - known.keys()) or sorted(required - table.keys())
    if wrong:
        received = "does not know" if wrong[0] in table else "has no"
        raise InputFormatError(f"{place} {received} {wrong[0]!r}", f"fields of {', '.join(known)}", "correct the file")
    try:
        return kind(**{name: _number(name, str(known[name].type), value) for name, value in table.items()})
    except OptionError as error:
        raise error.at(place) from error


def _number(name: str, kind: str, value: Any) -> Any:
    """Return the value of a field, of a type as it is annotated; a text may be a number with a unit."""
    if kind.startswith(("tuple[int", "tuple[float")):
        part = kind[len("tuple[") :].partition(",")[0]
        values = value if isinstance(value, list) else [value]
        return tuple(_number(name, part, each) for each in values)
    if kind not in ("int", "float"):
        return value
    from dask.utils import parse_bytes, parse_timedelta

    try:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, str):
            value = parse_bytes(value) if name.endswith("_bytes") or name == "bandwidth" else parse_timedelta(value)
        return int(value) if kind == "int" else float(value)
    except (ValueError, TypeError, KeyError) as error:
        raise OptionError(f"{name} is {value!r}", "a number, or one with a unit", "correct it") from error
