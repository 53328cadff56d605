"""Describe the machines of a training, from a TOML file or a connected cluster, and the rates of this software on them.

The built-in rates are processor seconds of trainings of eight novels by one worker with a scheduler of its own
(docs/how-to/plan.md).
"""

from __future__ import annotations

import math
import os
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import giaann_dask as gd
from giaann_dask.errors import InputFormatError, InputMissingError, OptionError, require_one_of, require_option
from giaann_dask.keywords import names_keywords

if TYPE_CHECKING:
    from distributed import Client

Role = Literal["both", "storage", "compute"]
TARGET = 0.6
"""Share of a worker's memory limit up to which Dask holds results in memory, and plans use it."""
_Made = TypeVar("_Made")
# Largest value of a field: sizes and rates beyond it are mistakes, and their products would not be numbers any more.
_MOST = float(1 << 60)


def _require_numbers(options: Any, **least: float) -> None:
    """Check fields of a dataclass against their smallest values, 0 exclusive, and the largest one of all."""
    for name, low in least.items():
        value = getattr(options, name)
        require_option((value >= low if low else value > 0) and value <= _MOST, name, value, f"{low:g} to {_MOST:.3g}")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines of one kind.

    Parameters
    ----------
    count : int
        Machines.
    memory_bytes : int
        Memory of each that workers may use.
    cores : int
        Cores of each.
    workers : int
        Worker processes of each, which divide its memory and cores.
    role : {"both", "storage", "compute"}
        Whether the workers hold the network, count text, or both.
    bandwidth : float
        Bytes per second of its network in each direction.
    speed : float
        Speed of a core relative to the machine of the built-in rates.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    count: int
    memory_bytes: int
    cores: int = 1
    workers: int = 1
    role: Role = "both"
    bandwidth: float = 1.25e9
    speed: float = 1.0

    def __post_init__(self) -> None:
        _require_numbers(self, count=1, memory_bytes=1, cores=1, workers=1, bandwidth=0, speed=0)
        require_one_of("role", self.role, get_args(Role))

    @property
    def worker_bytes(self) -> int:
        """Memory limit of a worker process."""
        return self.memory_bytes // self.workers


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of this software on a core of speed 1.

    Parameters
    ----------
    characters_per_s : float
        Characters of text that a worker's core tags and encodes in a second, for profiles with columns.
    words_characters_per_s : float
        The same for profiles without columns, which need no tags.
    increment_bytes_per_s : float
        Bytes of increments that a worker's core counts, adds up, packs and writes in a second.
    driver_characters_per_s : float
        Characters of text for which the driver extends the dictionaries and submits tasks in a second.
    scheduler_characters_per_s : float
        Characters of text whose tasks the scheduler assigns in a second.
    encoded_factor : float
        How many times as fast driver and scheduler are with an encoded corpus.
    start_s : float
        Seconds of the start and the last commit of a training.

    Raises
    ------
    OptionError
        If a rate is not positive.
    """

    characters_per_s: float = 4.1e6
    words_characters_per_s: float = 8e6
    increment_bytes_per_s: float = 44e6
    driver_characters_per_s: float = 14e6
    scheduler_characters_per_s: float = 30e6
    encoded_factor: float = 2.0
    start_s: float = 1.0

    def __post_init__(self) -> None:
        _require_numbers(self, **{each.name: 0 for each in fields(self)})


@names_keywords
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Machines of a cluster, and the rates of this software on them.

    Parameters
    ----------
    machines : tuple of Machines
        By kind.
    rates : Rates
        Built in, or measured.

    Raises
    ------
    OptionError
        If no machine holds the network, or none counts text.

    Examples
    --------
    >>> hardware = Hardware(machines=(Machines(count=40, memory_bytes=64 << 30, cores=8),))
    >>> hardware.count
    40
    """

    machines: tuple[Machines, ...]
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        for role in ("storage", "compute"):
            roles = [kind.role for kind in self.machines]
            require_option(any(each in ("both", role) for each in roles), "machines", roles, f"role {role} or both")

    def storing(self) -> list[Machines]:
        """Return the machines that hold the network."""
        return [kind for kind in self.machines if kind.role != "compute"]

    @property
    def count(self) -> int:
        """All machines."""
        return sum(kind.count for kind in self.machines)

    @classmethod
    def read(cls, path: str | Path) -> Hardware:
        """Return the hardware that a TOML file describes.

        Parameters
        ----------
        path : str or Path
            File with tables ``[[machines]]`` and ``[rates]``, which have the fields of `Machines` and `Rates`. Bytes
            may have a unit, as in ``"64 GiB"``.

        Raises
        ------
        InputMissingError
            If the file cannot be read.
        InputFormatError
            If it is not TOML, a field is unknown or missing, or a value is out of range.
        """
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputMissingError(f"{path} cannot be read ({error.strerror})", "", "check the path") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputFormatError(f"{path} is not TOML: {error}", "TOML", "correct the file") from error
        kinds = content.get("machines", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        given = {**content, "machines": tuple(_made(Machines, each, f"{path}: machines") for each in kinds)}
        if "rates" in content:
            given["rates"] = _made(Rates, content["rates"], f"{path}: rates")
        return _made(cls, given, str(path))

    @classmethod
    def of_cluster(cls, client: Client) -> Hardware:
        """Return the machines of a connected cluster; workers with the same host, role and limits are one."""
        roles, found = gd.roles_of(client), client.scheduler_info(n_workers=-1)["workers"]
        cores = client.run(os.cpu_count)
        by_host: dict[tuple[Any, ...], list[str]] = {}
        for address, each in found.items():
            stores, computes = address in roles.storage, address in roles.compute
            role = "both" if stores == computes else "storage" if stores else "compute"
            by_host.setdefault((each["host"], role, each["memory_limit"] or 1 << 50, each["nthreads"]), []).append(
                address
            )
        kinds: dict[tuple[Any, ...], int] = {}
        for (host, role, memory, threads), addresses in by_host.items():
            on_host = sum(each["nthreads"] for each in found.values() if each["host"] == host)
            # Workers of a host share its cores.
            share = min(1.0, (cores.get(addresses[0]) or on_host) / on_host)
            used = max(1, round(share * threads * len(addresses)))
            kind = (role, memory * len(addresses), used, len(addresses))
            kinds[kind] = kinds.get(kind, 0) + 1
        return cls(
            machines=tuple(
                Machines(count=count, memory_bytes=memory, cores=used, workers=workers, role=role)
                for (role, memory, used, workers), count in kinds.items()
            )
        )


def _made(kind: type[_Made], given: Any, place: str) -> _Made:
    """Return a dataclass made of a table of TOML."""
    if not isinstance(given, dict):
        raise InputFormatError(f"{place} is {given!r}", "a table", "correct the file")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    required = {name for name, each in known.items() if each.default is each.default_factory is MISSING}
    wrong = sorted(given.keys() - known.keys()) or sorted(required - given.keys())
    if wrong:
        received = "does not know" if wrong[0] in given else "has no"
        names = ", ".join(map(repr, known))
        raise InputFormatError(f"{place} {received} {wrong[0]!r}", f"fields of {names}", "correct the file")
    try:
        return kind(**{name: _value(name, str(known[name].type), value) for name, value in given.items()})
    except OptionError as error:
        # In quotes, so that no command takes the field for its option.
        name, _, rest = error.received.partition(" ")
        raise InputFormatError(f"{place}: {name!r} {rest}", error.expected, "correct the file") from error


def _value(name: str, kind: str, value: Any) -> Any:
    """Return the value of a field; a text may be a number of bytes with a unit."""
    if kind not in ("int", "float"):
        return value
    from dask.utils import parse_bytes

    try:
        if isinstance(value, str) and (name.endswith("_bytes") or name == "bandwidth"):
            value = parse_bytes(value)
        if isinstance(value, bool | str) or not math.isfinite(value) or (kind == "int" and value != int(value)):
            raise ValueError
        return int(value) if kind == "int" else float(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise OptionError(f"{name} is {value!r}", "a number" if kind == "float" else "a whole number") from error
