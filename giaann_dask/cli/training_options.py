"""Define and read the options of ``train`` that say how training is distributed and committed.

The options that define a new network are in `specification_options`, those of every command in `options`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.cli.click_ext import section
from giaann_dask.cli.options import APPENDED_FILE, read_size
from giaann_dask.cli.specification_options import network_options

if TYPE_CHECKING:
    from giaann_dask.training.options import TrainingOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_rounds, _commits, _memory = section("Training rounds"), section("Commits"), section("Memory")

_OPTIONS = (
    _rounds("--max-sequences", type=int, help="Stop when N sentences of the input that pass the length filter count."),
    _rounds(
        "--batch-sequences", type=int, default=8192, show_default=True, help="Sequences of one task, about; 1 is exact."
    ),
    _rounds(
        "--selection",
        type=click.Choice(["corpus", "random", "least-overlap"]),
        default="corpus",
        show_default=True,
        help="Which sequences train at the same time, and which share a batch.",
    ),
    _rounds(
        "--accumulate",
        type=int,
        default=1,
        show_default=True,
        metavar="K",
        help="Add up the increments of K batches where they are computed before they are sent.",
    ),
    _rounds(
        "--train-on",
        type=click.Choice(["all", "misses"]),
        default="all",
        show_default=True,
        help="Train connections to all tokens, or only to those that the network does not predict.",
    ),
    _rounds(
        "--refresh",
        "refresh_sequences",
        type=int,
        default=10_000,
        show_default=True,
        metavar="N",
        help="With misses: predict N sequences with one commit, train them, commit, and continue.",
    ),
    _commits("--commit-seconds", type=float, default=60.0, show_default=True, help="Least time between commits."),
    _commits("--commit-sequences", type=int, metavar="N", help="Commit also when N sequences are new."),
    _commits(
        "--keep-commits",
        type=int,
        metavar="N",
        help="Delete all but the last N commits while training, and the data that only they need.  [default: all]",
    ),
    _memory(
        "--region-size",
        default="256MiB",
        show_default=True,
        metavar="SIZE",
        help="Split a region when its decoded runs take more memory.",
    ),
    _memory(
        "--hot-memory",
        metavar="SIZE",
        help="Decoded runs of all workers; further ones are compressed in memory.  [default: 0.4 of their limits]",
    ),
    section("Output and logging")(
        "--rounds",
        type=APPENDED_FILE,
        metavar="FILE",
        help="Append what every round moved: bytes, messages, overlaps, busiest region; a JSON object a line.",
    ),
)


def training_options(command: Command) -> Command:
    """Add the options of ``train``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return network_options(command)


def read_training_options(values: dict[str, Any]) -> TrainingOptions:
    """Return how training is distributed and committed, from the command's values."""
    from giaann_dask.training.options import TrainingOptions
    from giaann_dask.training.selection import SelectionOptions

    names = (
        *("batch_sequences", "accumulate", "commit_seconds", "commit_sequences", "keep_commits", "device"),
        *("train_on", "refresh_sequences"),
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
