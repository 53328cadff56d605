"""The options of ``train``: what a new network is, and how training is spread and committed.

Covers: declaring them and reading them from a command's values. Does not cover: the options that
every command has (`options`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.cli.options import read_size
from giaann_dask.cli.profile_options import profile_options, read_profile
from giaann_dask.errors import OptionError, parameter

if TYPE_CHECKING:
    from giaann_dask.spec import Specification
    from giaann_dask.training.options import TrainingOptions

Command = TypeVar("Command", bound=Callable[..., Any])

# Options of a new network: names of `Specification` fields.
_SPECIFICATION = ("regions", "placement")

_OPTIONS = (
    click.option(
        "--max-sequences", type=int, help="Stop when N sentences of the input that pass the length filter count."
    ),
    click.option(
        "--regions",
        type=int,
        help="Regions of a new network, before large ones are split; beyond 16 as it grows.  [default: 8]",
    ),
    click.option(
        "--placement",
        type=click.Choice(["hash", "balanced", "co-occurrence"]),
        help="How the columns of a new network are dealt to regions: by a hash, by their connections, or so that "
        "columns that occur together share a region.  [default: hash]",
    ),
    click.option(
        "--batch-sequences", type=int, default=8192, show_default=True, help="Sequences of one task, about; 1 is exact."
    ),
    click.option(
        "--selection",
        type=click.Choice(["corpus", "random", "least-overlap"]),
        default="corpus",
        show_default=True,
        help="Which sequences train at the same time, and which share a batch.",
    ),
    click.option(
        "--accumulate",
        type=int,
        default=1,
        show_default=True,
        metavar="K",
        help="Add up the increments of K batches where they are computed before they travel.",
    ),
    click.option("--commit-seconds", type=float, default=60.0, show_default=True, help="Least time between commits."),
    click.option("--commit-sequences", type=int, metavar="N", help="Commit also when N sequences are new."),
    click.option(
        "--keep-commits",
        type=int,
        metavar="N",
        help="Forget all but the last N commits while training, and free what they alone need.  [default: all]",
    ),
    click.option(
        "--train-on",
        type=click.Choice(["all", "misses"]),
        default="all",
        show_default=True,
        help="Train connections to all tokens, or only to those that the network does not predict.",
    ),
    click.option(
        "--refresh",
        "refresh_sequences",
        type=int,
        default=10_000,
        show_default=True,
        metavar="N",
        help="With misses: predict so many sequences by one commit, train them, commit, and go on.",
    ),
    click.option(
        "--weakening", type=float, default=0.0, metavar="SHARE", help="No sum, so training refuses other than 0."
    ),
    click.option(
        "--rounds",
        type=click.File("a", encoding="utf-8", lazy=False),
        metavar="FILE",
        help="Append what every round moved: bytes, messages, overlaps, busiest region; a JSON object a line.",
    ),
    click.option(
        "--region-size",
        default="256MiB",
        show_default=True,
        metavar="SIZE",
        help="Split a region when its decoded runs take more memory.",
    ),
    click.option(
        "--hot-memory",
        metavar="SIZE",
        help="Decoded runs of all workers; what is beyond is compressed in memory.  [default: 0.4 of their limits]",
    ),
)

# Modes that limit, scale or forget the strengths of a new network; the last to be shown comes first.
_MODES = (
    click.option(
        "--permanence-decay",
        type=int,
        metavar="N",
        help="What unused connections lose; no sum, so training refuses it.",
    ),
    click.option(
        "--permanence-growth", type=int, metavar="N", help="What used connections gain; no sum, so training refuses it."
    ),
    click.option(
        "--pos-scope",
        type=click.Choice(["external", "all"]),
        help="Scale pairs of tokens between two columns or all pairs; new networks only.  [default: external]",
    ),
    click.option(
        "--pos-factors",
        metavar="UPOS=FACTOR,...|published",
        help="Strengthen connections more by the part of speech of their source; new networks only.",
    ),
    click.option(
        "--limit-scope",
        type=click.Choice(["connection", "pair"]),
        help="Limit a connection's total or what each pair of tokens adds; new networks only.  [default: connection]",
    ),
    click.option(
        "--strength-squash",
        type=click.Choice(["none", "tanh"]),
        help="Cut strengths off at the limit or approach it; new networks only.  [default: none]",
    ),
    click.option("--strength-limit", type=float, metavar="X", help="Largest strength; new networks only."),
)


def training_options(command: Command) -> Command:
    """Add the options of ``train``."""
    for option in (*_MODES, *reversed(_OPTIONS)):
        command = option(command)
    return profile_options(command)


def read_training_options(values: dict[str, Any]) -> TrainingOptions:
    """Return how training is spread and committed, from the command's values."""
    from giaann_dask.training.options import TrainingOptions
    from giaann_dask.training.selection import SelectionOptions

    names = (
        *("batch_sequences", "accumulate", "commit_seconds", "commit_sequences", "keep_commits", "device"),
        *("train_on", "refresh_sequences", "weakening"),
    )
    region_bytes = read_size("region_size", values["region_size"])
    assert region_bytes is not None
    return TrainingOptions(
        selection=SelectionOptions(order=values["selection"]),
        maximum_sequences=values["max_sequences"],
        region_bytes=region_bytes,
        hot_bytes=read_size("hot_memory", values["hot_memory"]),
        **{name: values[name] for name in names},
    )


def read_specification(network: Path, values: dict[str, Any]) -> Specification | None:
    """Return the specification that the network has or that the options ask for; None where both leave it open.

    Raises
    ------
    OptionError
        If the network exists with another one.
    SpecificationError
        If no network can be trained by it.
    """
    from dataclasses import replace

    from giaann_dask.increments.scaling import require_sums
    from giaann_dask.spec import Specification
    from giaann_dask.training.target import open_store

    store = open_store(network)
    stored = None if store is None else store.open(store.head()).manifest().specification
    wanted = {name: values[name] for name in _SPECIFICATION} | _read_modes(values) | read_profile(values, stored)
    asked = {name: value for name, value in wanted.items() if value is not None}
    if not asked:
        return stored
    if stored is None:
        require_sums(specification := Specification(**asked))
        return specification
    if asked.get("profile", stored.profile) != stored.profile or replace(stored, **asked) != stored:
        raise OptionError(
            f"network {network} has {', '.join(f'{parameter(name)} {getattr(stored, name)}' for name in asked)}",
            f"{', '.join(f'{parameter(name)} {value}' for name, value in asked.items())} as asked for",
            "leave it out to train it further, or name a new network",
        )
    return stored


def _read_modes(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a specification that modes set, from a command's values; None where left open.

    Raises
    ------
    OptionError
        If the factors are not of the form ``UPOS=FACTOR,...``.
    """
    names = ("strength_limit", "strength_squash", "limit_scope", "pos_scope", "permanence_growth", "permanence_decay")
    return {**{name: values[name] for name in names}, "pos_factors": _factors(values["pos_factors"])}


def _factors(text: str | None) -> dict[str, float] | None:
    """Return the factors that an option's text names."""
    from giaann_dask.increments.scaling import PUBLISHED_FACTORS

    if text is None or text == "published":
        return None if text is None else PUBLISHED_FACTORS
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        raise OptionError(
            f"{parameter('pos_factors')} is {text!r}",
            "published, or such as VERB=10,ADJ=3",
            "write a number for each part of speech",
        ) from None
