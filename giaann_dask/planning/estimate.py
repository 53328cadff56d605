"""Estimate what the training of a text costs on some machines: whether it fits, memory, time, and what limits the rate.

A rate is the least of four limits: cores of the workers, driver, scheduler and network; the lowest one binds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dask.utils import format_time

import giaann_dask as gd
from giaann_dask.api.cluster import ClientLike, use_client
from giaann_dask.api.texts import Inputs, read_inputs
from giaann_dask.errors import HardwareTooSmallError, OptionError, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.planning.growth import GROUPS, Growth, Interval, measure_corpora, measure_text
from giaann_dask.planning.hardware import TARGET, Hardware, Machines
from giaann_dask.planning.sampling import PIECE, sample_inputs
from giaann_dask.representations import Summarised, Summary, format_bytes
from giaann_dask.store.corpus import is_corpus

SAMPLE = 5_000
"""Sequences of a sample, about."""
_MOST_SAMPLE, _MOST_SEQUENCES = 1_000_000, 1 << 60
# Characters of a sequence, about; those of an encoded corpus are not known.
_SEQUENCE_CHARACTERS = 150
# Bytes of an idle worker, of an idle driver, of an entry of its dictionaries, and of a part of the text in its ledger.
_WORKER_BYTES, _DRIVER_BYTES, _ENTRY_BYTES, _PART_BYTES = 300 << 20, 200 << 20, 400, 1024
# Connections of the worker that has most, in those of an equal share.
_UNEVEN = 1.2
# Standard error of the stored bytes of a connection, relative, and share of bytes that compression leaves of transfers.
_BYTES_ERROR, _COMPRESSED = 0.1, 0.5
# Rate of a smaller cluster from which it counts as that of the whole one.
_SAME_RATE = 0.98
# Figures of a plan for programs.
_FIGURES = (
    *("sequences", "connections", "network_bytes", "driver_bytes", "rate"),
    *("binding", "raised_by", "smallest", "unread"),
)
_CORES, _DRIVER, _SCHEDULER, _NETWORK = "cores of the workers", "driver", "scheduler", "network"
_DIVIDE = "train several networks on parts of the text at the same time, and add them (giaann-dask add)"
_RAISED_BY = {
    _CORES: "more machines or cores",
    _DRIVER: _DIVIDE,
    _SCHEDULER: f"larger batches, or {_DIVIDE}",
    _NETWORK: "a faster network, or more machines",
}


class Memory(NamedTuple):
    """Memory of a worker of one kind of machines.

    Attributes
    ----------
    machines : Machines
        Their kind.
    nbytes : Interval
        What the process, its share of the network and the rounds in flight take.
    """

    machines: Machines
    nbytes: Interval

    @property
    def usable(self) -> float:
        """Bytes up to which a worker is filled."""
        return TARGET * self.machines.worker_bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingPlan(Summarised):
    """Estimated cost of a training; intervals hold the truth in 80 % of cases.

    Attributes
    ----------
    hardware : Hardware
        Machines of the plan.
    growth : Growth
        Measured growth of the sample's network.
    size : float
        Of the whole text, in the unit of `Growth.size`.
    characters : float
        Characters of the whole text.
    encoded : bool
        Whether the inputs are encoded corpora.
    columns : bool
        Whether the profile divides text into columns.
    counted : int, optional
        Sequences of the whole text, if they are known.
    unread : tuple of str
        Inputs that were sampled from their beginning only.
    """

    hardware: Hardware
    growth: Growth
    size: float
    characters: float
    encoded: bool
    columns: bool
    counted: int | None = None
    unread: tuple[str, ...] = ()

    @property
    def sequences(self) -> Interval:
        """Sequences of the text."""
        counted = self.counted
        return Interval.around(counted, 0.0) if counted else self.growth.total(self.growth.sequences, self.size)

    @property
    def connections(self) -> Interval:
        """Distinct connections of the network."""
        return self.growth.distinct(self.size)

    @property
    def network_bytes(self) -> Interval:
        """Bytes of the network, in the store as in the memory of the workers together."""
        found = self.connections.times(self.growth.connection_bytes)
        return found.widened(_BYTES_ERROR if self.size > self.growth.size.sum() else 0.0)

    @property
    def driver_bytes(self) -> float:
        """Memory of the driver: process, dictionaries, and the list of trained parts of the text."""
        parts = self.characters / gd.ReadOptions().part_characters
        return _DRIVER_BYTES + _ENTRY_BYTES * self.growth.dictionary(self.size) + _PART_BYTES * parts

    def memory(self, scale: float = 1.0) -> list[Memory]:
        """Return what a worker of each kind takes, with a multiple of the machines."""
        options, growth = gd.TrainingOptions(), self.growth
        batch = options.batch_sequences * growth.increment_bytes.sum() / growth.sequences.sum()
        flight = min(options.rounds_in_flight * batch, self._increments().high)
        storing = self.hardware.storing()
        # Regions are assigned by memory.
        total = scale * sum(kind.count * kind.memory_bytes for kind in storing)
        found = []
        for kind in self.hardware.machines:
            share = min(_UNEVEN * kind.worker_bytes / total, 1.0) if kind in storing else 0.0
            needs = (_WORKER_BYTES + flight + share * nbytes for nbytes in self.network_bytes)
            found.append(Memory(kind, Interval(*needs)))
        return found

    def fits(self, scale: float = 1.0, *, surely: bool = True) -> bool:
        """Return whether the memory of all workers suffices, at the high end of the intervals or as it is likely."""
        needs = ((each.nbytes.high if surely else each.nbytes.likely, each.usable) for each in self.memory(scale))
        return all(need <= usable for need, usable in needs)

    def limits(self, scale: float = 1.0) -> dict[str, Interval]:
        """Return the seconds of the training if one thing alone took time, with a multiple of the machines."""
        rates, machines = self.hardware.rates, self.hardware.machines
        text_rate = rates.characters_per_s if self.columns else rates.words_characters_per_s
        text_s = 0.0 if self.encoded else self.characters / text_rate
        cores = scale * sum(kind.count * kind.cores * kind.speed for kind in machines)
        factor = rates.encoded_factor if self.encoded else 1.0
        count = max(scale * self.hardware.count, 1.0)
        bandwidth = scale * sum(kind.count * kind.bandwidth for kind in machines)
        driver_s = self.characters / (factor * rates.driver_characters_per_s)
        scheduler_s = self.characters / (factor * rates.scheduler_characters_per_s)
        # Of one machine, driver and scheduler use the cores, too.
        text_s += driver_s + scheduler_s if count == 1 else 0.0
        increments = self._increments()
        return {
            _CORES: Interval(*((text_s + each / rates.increment_bytes_per_s) / cores for each in increments)),
            _DRIVER: Interval.around(driver_s, 0.0),
            _SCHEDULER: Interval.around(scheduler_s, 0.0),
            _NETWORK: increments.times(_COMPRESSED * (1 - 1 / count) / bandwidth),
        }

    def seconds(self, scale: float = 1.0) -> Interval:
        """Return the time of the training: start, reading, tagging, counting, sums, packing and commits."""
        limits = self.limits(scale).values()
        return Interval(*(self.hardware.rates.start_s + max(values) for values in zip(*limits, strict=True)))

    @property
    def rate(self) -> float:
        """Sequences per second, from the start to the last commit."""
        return self.sequences.likely / self.seconds().likely

    @property
    def binding(self) -> str:
        """Resource that limits the rate."""
        limits = self.limits()
        return max(limits, key=lambda name: limits[name].likely)

    @property
    def smallest(self) -> int:
        """Machines of the smallest cluster that surely fits and has the same rate; all where these do not fit."""
        total, wanted = self.hardware.count, self.seconds().likely / _SAME_RATE
        low, high = 1, total
        while low < high:
            middle = (low + high) // 2
            scale = middle / total
            enough = self.seconds(scale).likely <= wanted and self.fits(scale)
            low, high = (low, middle) if enough else (middle + 1, high)
        return high

    @property
    def raised_by(self) -> str:
        """Change that would raise the rate."""
        encode = "" if self.encoded or not self.columns else "encode the text first (giaann-dask encode), or "
        return (encode if self.binding in (_DRIVER, _SCHEDULER) else "") + _RAISED_BY[self.binding]

    def require_fit(self) -> None:
        """Raise a `HardwareTooSmallError` if a worker probably lacks memory."""
        if self.fits(surely=False):
            return
        worst = max(self.memory(), key=lambda each: each.nbytes.likely / each.usable)
        scale = 1.0
        while not self.fits(scale) and scale < 1 << 30:
            scale *= 1.25
        more = math.ceil(scale * self.hardware.count)
        raise HardwareTooSmallError(
            f"a worker would need {format_bytes(round(worst.nbytes.likely))} and may use "
            f"{format_bytes(round(worst.usable))}, {TARGET:.0%} of its {format_bytes(worst.machines.worker_bytes)}",
            "machines that have room for the network",
            f"describe about {more:,} such machines, or larger ones" if self.fits(scale) else "describe larger workers",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, intervals as dictionaries."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _FIGURES}
        found |= {"fits": self.fits(), "seconds": self.seconds(), "machines": self.hardware.count}
        found |= {f"{name} alone": seconds for name, seconds in self.limits().items()}
        shown = {name: each._asdict() if isinstance(each, Interval) else each for name, each in found.items()}
        workers = [{"usable": each.usable, **each.nbytes._asdict()} for each in self.memory()]
        return {**shown, "workers": workers, "sample_sequences": int(self.growth.sequences.sum())}

    def summary(self) -> Summary:
        """Return the lines that represent the plan."""
        surely, likely, count = self.fits(), self.fits(surely=False), self.hardware.count
        fits = "yes" if surely else "probably, not at the high end" if likely else "no"
        idle = f"; {count - self.smallest:,} of your {count:,} would idle" if surely and self.smallest < count else ""
        places = "the beginning" if self.encoded else "places all over the text"
        unread = f"; only the beginning of {', '.join(self.unread)}" if self.unread else ""
        included = "encoded text" if self.encoded else "reading, tagging"
        included += ", counting, sums, packing, commits; not the start of workers, failures or other load"
        memory = [f"{_range(each.nbytes, _size)} of {_size(each.usable)}" for each in self.memory()]
        rows = (
            ("sample", f"{self.growth.sequences.sum():,.0f} sequences from {places}{unread}"),
            ("sequences", _range(self.sequences, _count)),
            ("connections", _range(self.connections, _count)),
            ("network", f"{_range(self.network_bytes, _size)}, in the store, and in the workers together"),
            ("fits", f"{fits}, in memory up to {TARGET:.0%} of the limits, where Dask begins to spill"),
            *(("a worker", f"{each}: process, its part of the network, rounds in flight") for each in memory),
            ("driver", f"{_size(self.driver_bytes)}: process, dictionaries, list of trained parts"),
            ("rate", f"{self.rate:,.0f} sequences/s from start to commit, bound by {self.binding}"),
            ("time", f"{_range(self.seconds(), format_time)}: {included}"),
            ("of that alone", ", ".join(f"{name} {format_time(each.likely)}" for name, each in self.limits().items())),
            ("smallest cluster", f"{self.smallest:,} of {count:,} machines at the same rate{idle}"),
            ("faster by", self.raised_by),
        )
        return Summary("Plan" if likely else "Plan that does not fit", rows)

    def _increments(self) -> Interval:
        return self.growth.total(self.growth.increment_bytes, self.size)


@names_keywords
def plan(
    inputs: Inputs,
    *,
    client: ClientLike | None = None,
    hardware: Hardware | str | Path | None = None,
    sequences: int | None = None,
    specification: gd.Specification | None = None,
    text: gd.TextOptions | None = None,
    sample_sequences: int = SAMPLE,
    storage_options: Mapping[str, object] | None = None,
    **keywords: Any,
) -> TrainingPlan:
    """Estimate the cost of a training from a sample that is spread over all of the text.

    The sample is trained in this process into a temporary network.

    Parameters
    ----------
    inputs : str, Path, Files or iterable of texts
        As for `train`.
    client : Client, cluster or str, optional
        Cluster whose machines count, if no hardware is given; see `train`.
    hardware : Hardware, str or Path, optional
        Machines of the training: a description, or the TOML file of one. By default the connected cluster.
    sequences : int, optional
        Sequences of the whole text, if the inputs are only a sample of it.
    specification : Specification, optional
        Of the network.
    text : TextOptions, optional
        How text is tagged.
    sample_sequences : int
        Sequences of the sample, about.
    storage_options : mapping of str to str or bool, optional
        How the object stores of URLs among these arguments are reached.
    **keywords
        Fields of `specification` and `text`, and of the options within these, by their names.

    Returns
    -------
    TrainingPlan
        `TrainingPlan.require_fit` raises an error if it does not fit.

    Raises
    ------
    GiaannError
        If inputs, options or cluster have an error, or the sample has fewer than 64 sequences to train.

    Examples
    --------
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> machines = gd.Machines(count=40, memory_bytes=64 << 30, cores=8)
    >>> found = gd.plan(sample_text(), hardware=gd.Hardware(machines=(machines,)))
    >>> found.fits(), found.smallest < 40
    (True, True)
    """
    require_option(0 < sample_sequences <= _MOST_SAMPLE, "sample_sequences", sample_sequences, f"1 to {_MOST_SAMPLE:,}")
    valid = sequences is None or 0 < sequences <= _MOST_SEQUENCES
    require_option(valid, "sequences", sequences, f"1 to {_MOST_SEQUENCES:,}")
    described = Hardware.read(hardware) if isinstance(hardware, str | Path) else hardware
    if described is None:
        with use_client(client) as used:
            described = Hardware.of_cluster(used)
    read, chosen = read_inputs(inputs, text, storage_options)
    corpora = [gd.EncodedCorpus(each) for each in read if is_corpus(each)]
    unread: tuple[str, ...] = ()
    if corpora:
        if len(corpora) < len(read):
            raise OptionError("encoded corpora and text", "one of them", "plan each of them")
        growth, size = measure_corpora(corpora, sample_sequences, specification)
        counted = float(sum(map(len, corpora)))
        characters, columns = _SEQUENCE_CHARACTERS * counted, True
    else:
        wanted = specification or gd.Specification()
        wanted_size = max(_SEQUENCE_CHARACTERS * sample_sequences, GROUPS * PIECE)
        sample = sample_inputs(read, chosen.reading, wanted_size, GROUPS)
        growth = measure_text(sample, wanted, chosen)
        size = float(growth.size.sum() if sample.whole else sample.size)
        counted = growth.total(growth.sequences, size).likely
        characters, columns, unread = size / sample.density, wanted.traits.columns, sample.unread
    factor = (sequences or counted) / counted
    return TrainingPlan(
        hardware=described,
        growth=growth,
        size=factor * size,
        characters=factor * characters,
        encoded=bool(corpora),
        columns=columns,
        counted=sequences or (round(counted) if corpora else None),
        unread=unread,
    )


def _range(interval: Interval, shown: Any) -> str:
    """Return an estimate with its interval, where there is one."""
    low, likely, high = map(shown, interval)
    return str(likely) if low == high else f"{likely} (80 %: {low} to {high})"


def _count(value: float) -> str:
    """Return a number with three digits.

    Examples
    --------
    >>> _count(950), _count(63_418_939)
    ('950', '63,400,000')
    """
    return f"{float(f'{value:.3g}'):,.0f}"


def _size(nbytes: float) -> str:
    return format_bytes(round(nbytes))
