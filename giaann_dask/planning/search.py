"""Search the configuration in which a training takes least time on given hardware, and say what it costs.

All configurations are estimated; those for which a worker lacks memory are refused.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from giaann_dask.errors import HardwareTooSmallError, OptionError, require_at_least
from giaann_dask.keywords import names_keywords
from giaann_dask.planning.costs import Costs, Estimate, TrainingConfiguration, with_roles
from giaann_dask.planning.growth import Growth, PowerLaw
from giaann_dask.planning.hardware import Hardware
from giaann_dask.representations import Summarised, Summary, format_bytes
from giaann_dask.spec import PLACEMENTS, Specification
from giaann_dask.training.training_options import TrainingOptions

# Values of a configuration that are tried, by its fields.
_TRIED: Mapping[str, Sequence[Any]] = {
    "batch_sequences": (16, 256, 2048, 8192, 32_768, 131_072),
    "accumulate": (1, 4),
    "rounds_in_flight": (4, 8),
    "order": ("corpus", "least-overlap"),
    "placement": PLACEMENTS,
    "regions": (4, 64, 1024),
    "exchange": ("tasks", "workers"),
}
# Of workers of both roles: as they are, or so many of them store and the others compute.
_STORAGE_SHARES = (0.0, 0.25, 0.5, 0.75)
# A configuration whose options differ from the defaults has to be quicker by so much.
_GAIN = 1.02
_PROMPT_TOKENS = 20
# Fields of a configuration that are options of training, and those that are fields of a specification.
_OPTIONS = ("batch_sequences", "accumulate", "rounds_in_flight", "exchange")
_SPECIFIED = ("regions", "placement")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class PlanTarget:
    """Text or network to be trained; by default all of the text.

    Parameters
    ----------
    sequences : int, optional
        Sequences of the whole text, of which the given text is a sample.
    columns : int, optional
        Concept columns of the network, instead.
    column_bytes : int, optional
        Bytes of a column, on average.

    Raises
    ------
    OptionError
        If a number is out of range, or columns and their bytes are not given together and alone.
    """

    sequences: int | None = None
    columns: int | None = None
    column_bytes: int | None = None

    def __post_init__(self) -> None:
        require_at_least(1, self, "sequences", "columns", "column_bytes")
        given = [name for name, value in vars(self).items() if value is not None]
        if given not in ([], ["sequences"], ["columns", "column_bytes"]):
            raise OptionError(
                " and ".join(given),
                "either sequences, or columns and column_bytes",
                "leave the others out",
                names=("sequences", "columns"),
            )

    def costs(self, growth: Growth, hardware: Hardware, trained: float) -> Costs:
        """Return the costs of this target; `trained` are the sequences of the text, as far as they are trained."""
        if self.columns is not None and self.column_bytes is not None:
            nbytes = float(self.columns) * self.column_bytes
            sequences = growth.packed_bytes.inverse(nbytes)
            return Costs(growth=growth, hardware=hardware, sequences=sequences, network_bytes=nbytes)
        if self.sequences is not None:
            trained = self.sequences * growth.trained / growth.sequences
        return Costs(growth=growth, hardware=hardware, sequences=trained)


@dataclass(frozen=True, repr=False)
class TrainingPlan(Summarised):
    """TrainingConfiguration of a training, and what it costs.

    Attributes
    ----------
    growth : Growth
        Growth of the network, extrapolated from the sample.
    hardware : Hardware
        Workers with the roles of the plan.
    sequences : float
        Sequences that are trained.
    columns : float
        Concept columns of the network.
    estimate : Estimate
        Estimate of the best configuration; if none fits, of the one that lacks least memory.
    refused : int
        Configurations for which a worker lacks memory.
    command : str
        That trains so.
    """

    growth: Growth
    hardware: Hardware
    sequences: float
    columns: float
    estimate: Estimate
    refused: int
    command: str

    def options(self, base: TrainingOptions | None = None) -> TrainingOptions:
        """Return options of training with those of the plan where they are the defaults."""
        chosen, base, default = self.estimate.configuration, base or TrainingOptions(), TrainingOptions()
        free = [name for name in _OPTIONS if getattr(base, name) == getattr(default, name)]
        selection = (
            replace(base.selection, order=chosen.order) if base.selection == default.selection else base.selection
        )
        return replace(base, selection=selection, **{name: getattr(chosen, name) for name in free})

    def specification(self, base: Specification) -> Specification:
        """Return a specification with regions and placement of the plan; it trains the same connections.

        Those that are not the defaults stay.
        """
        chosen, default = self.estimate.configuration, Specification(profile=base.profile)
        free = [name for name in _SPECIFIED if getattr(base, name) == getattr(default, name)]
        return replace(base, **{name: getattr(chosen, name) for name in free})

    def require_fit(self) -> None:
        """Raise a `HardwareTooSmallError` if no configuration fits."""
        if self.estimate.fits:
            return
        worst = self.estimate.worst
        data = worst.nbytes - worst.data_bytes
        spare = worst.kind.memory_bytes - data
        more = math.ceil(worst.kind.count * worst.data_bytes / spare) if worst.data_bytes and spare > 0 else 0
        raise HardwareTooSmallError(
            f"a worker of kind {worst.kind.name!r} would need {format_bytes(worst.nbytes)} and has "
            f"{format_bytes(worst.kind.memory_bytes)}",
            "hardware that has room for the network",
            f"describe about {more:,} such workers, or larger ones" if more else "describe larger workers",
        )

    def as_dict(self) -> dict[str, object]:
        """Return JSON-ready values."""
        estimate = self.estimate
        return {
            **{name: value for name, value in vars(estimate).items() if isinstance(value, int | float)},
            "sequences": self.sequences,
            "columns": self.columns,
            "connections": estimate.network_bytes / self.growth.connection_bytes,
            "rate": estimate.rate,
            "configuration": vars(estimate.configuration),
            "limits": [limit._asdict() for limit in estimate.limits],
            "stages": dict(estimate.stages),
            "tier_bytes": dict(estimate.tier_bytes),
            "link_bytes_per_s": dict(estimate.link_bytes_per_s),
            "memory": {need.kind.name: need.nbytes for need in estimate.memory},
            "fits": estimate.fits,
            "refused": self.refused,
            "command": self.command,
        }

    def summary(self) -> Summary:
        """Return the lines that represent the plan."""
        growth, estimate = self.growth, self.estimate
        connections = estimate.network_bytes / growth.connection_bytes
        stages = sorted(estimate.stages.items(), key=lambda item: -item[1])
        total = sum(estimate.stages.values())
        far = {tier: value for tier, value in estimate.tier_bytes.items() if value}
        rows = (
            ("sequences", f"{self.sequences:,.0f} trained, known from {growth.trained:,} of the sample"),
            ("columns", f"{self.columns:,.0f} (exponent {_law(growth.columns)})"),
            ("connections", f"{connections:,.0f} (exponent {_law(growth.connections)})"),
            ("column by rank", f"exponent {growth.zipf.exponent:.2f} ± {growth.zipf.exponent_error:.2f}"),
            ("network", f"{_size(estimate.network_bytes)} in {estimate.regions:,} regions"),
            ("largest region", _size(estimate.largest_region_bytes)),
            ("largest column", _size(estimate.network_bytes * growth.largest_column)),
            ("largest neuron", _size(estimate.network_bytes * growth.largest_row)),
            *(
                (f"memory of {need.kind.name}", f"{_size(need.nbytes)} of {_size(need.kind.memory_bytes)}")
                for need in estimate.memory
            ),
            ("rate", f"{estimate.rate:,.0f} sequences/s, bound by {estimate.binding.name}"),
            ("moved by", estimate.binding.moved_by),
            ("next limits", "\n".join(f"{limit.rate:,.0f}/s {limit.name}" for limit in estimate.limits[1:4])),
            ("work", ", ".join(f"{name} {value / total:.0%}" for name, value in stages if value > 0.005 * total)),
            ("moved", ", ".join(f"{tier} {_size(value * self.sequences)}" for tier, value in far.items()) or "nothing"),
            (
                "busiest link",
                ", ".join(f"{t} {_size(v)}/s" for t, v in estimate.link_bytes_per_s.items() if v) or "none",
            ),
            ("tasks", f"{estimate.tasks:,.0f}, {estimate.tasks / estimate.seconds:,.1f}/s"),
            ("B", f"{estimate.compute_workers:,.1f} compute workers saturate the rest"),
            ("commit", _commit(estimate)),
            ("last commit", _time(estimate.last_commit_s)),
            ("time", _time(estimate.seconds)),
            *((("price", f"{estimate.cost:,.2f}"),) if estimate.cost else ()),
            ("a token", _time(estimate.token_s)),
            ("prompts", f"{_rate(estimate.tokens_per_s / _PROMPT_TOKENS)} of {_PROMPT_TOKENS} tokens"),
            *((("refused", f"{self.refused:,} configurations lack memory"),) if self.refused else ()),
            ("command", self.command),
        )
        return Summary("Plan" if estimate.fits else "Plan that does not fit", rows)


def search(costs: Costs, *, columns: float | None = None, command: str = "giaann-dask train") -> TrainingPlan:
    """Return the plan of least time among all configurations.

    Parameters
    ----------
    costs : Costs
        Of the target on the hardware.
    columns : float, optional
        Columns of the target, where they do not follow from its sequences.
    command : str
        Command with its arguments, to which options are added.

    Returns
    -------
    TrainingPlan
        Of the hardware in the roles that are best.
    """
    found: list[tuple[Costs, Estimate]] = []
    for share in _STORAGE_SHARES:
        hardware = with_roles(costs.hardware, share) if share else costs.hardware
        if share and hardware == costs.hardware:
            continue
        each = replace(costs, hardware=hardware)
        found += [(each, each.estimate(configuration)) for configuration in _configurations(costs)]
    fitting = [pair for pair in found if pair[1].fits]
    chosen, estimate = min(
        fitting or found,
        key=lambda pair: (0 if fitting else _lack(pair[1]), _seconds(pair[1])),
    )
    return TrainingPlan(
        growth=costs.growth,
        hardware=chosen.hardware,
        sequences=costs.sequences,
        columns=columns or costs.growth.columns.at(costs.sequences),
        estimate=estimate,
        refused=len(found) - len(fitting),
        command=_command(command, estimate.configuration),
    )


def _configurations(costs: Costs) -> Iterator[TrainingConfiguration]:
    """Yield the configurations that are tried, the default one first."""
    known = {"order": costs.growth.batches, "placement": costs.growth.placements}
    tried = [[value for value in values if value in known.get(name, values)] for name, values in _TRIED.items()]
    yield TrainingConfiguration()
    for values in itertools.product(*tried):
        configuration = TrainingConfiguration(**dict(zip(_TRIED, values, strict=True)))
        together = configuration.batch_sequences * configuration.accumulate
        if configuration.accumulate == 1 or together <= max(_TRIED["batch_sequences"]):
            yield configuration


def _seconds(estimate: Estimate) -> float:
    """Return the time by which configurations are compared: each option that is not the default has to gain some."""
    default, chosen = vars(TrainingConfiguration()), vars(estimate.configuration)
    return float(estimate.seconds * _GAIN ** sum(chosen[name] != value for name, value in default.items()))


def _lack(estimate: Estimate) -> float:
    """Return about how many times the memory of the worst worker is needed."""
    return round(estimate.worst.nbytes / estimate.worst.kind.memory_bytes, 1)


def _command(command: str, configuration: TrainingConfiguration) -> str:
    """Return a command with the options that differ from the defaults."""
    default = TrainingConfiguration()
    options = (
        ("batch_sequences", "--batch-sequences"),
        ("accumulate", "--accumulate"),
        ("rounds_in_flight", "--rounds-in-flight"),
        ("exchange", "--exchange"),
        ("order", "--selection-order"),
        ("regions", "--set regions="),
        ("placement", "--set placement="),
    )
    parts: Sequence[str] = [
        option + ("" if option.endswith("=") else " ") + shlex.quote(str(getattr(configuration, name)))
        for name, option in options
        if getattr(configuration, name) != getattr(default, name)
    ]
    return " ".join([command, *parts])


def _commit(estimate: Estimate) -> str:
    """Return how long a commit takes, and how often one is best."""
    takes, interval = _time(estimate.commit_s), _time(estimate.commit_interval_s)
    if estimate.commit_s > estimate.commit_interval_s:
        return f"{takes}, longer than the {interval} between two failures: few commits would be completed"
    return f"{takes}, best every {interval}"


def _law(law: PowerLaw) -> str:
    return f"{law.exponent:.2f} ± {law.exponent_error:.2f}, held-out error {law.error:.0%}"


def _size(nbytes: float) -> str:
    return format_bytes(round(nbytes))


def _rate(per_s: float) -> str:
    """Return a number per second, or how long one takes.

    Examples
    --------
    >>> _rate(2000), _rate(1e-5)
    ('2,000.0/s', 'one in 27.8 h')
    """
    return f"{per_s:,.1f}/s" if per_s >= 0.1 else f"one in {_time(1 / per_s)}"


def _time(seconds: float) -> str:
    """Return a time in the unit that fits.

    Examples
    --------
    >>> _time(0.00015), _time(5), _time(600), _time(1e6)
    ('0.15 ms', '5.00 s', '10.0 min', '11.6 days')
    """
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.2f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"), (6e7, 86_400, "days")):
        if seconds < limit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds / 31_557_600:,.4g} years"
