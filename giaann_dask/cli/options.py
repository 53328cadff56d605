"""Options that several commands share.

Covers: where tasks run, how text is read, and the form of the answer. Does not cover: options of
one command (`commands`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from giaann_dask.api import TextOptions
    from giaann_dask.cluster import ClusterOptions

Command = TypeVar("Command", bound=Callable[..., Any])

LOCAL = 0


def common_options(command: Command) -> Command:
    """Add the options of every command: ``--scheduler``, ``--workers``, ``--dashboard`` and ``--json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output."),
        click.option("--dashboard", metavar="ADDRESS", help="Serve the Dask dashboard, for example at :8787."),
        click.option(
            "--workers",
            type=int,
            metavar="N",
            help="Start N worker processes on this machine; 0 runs everything in this process.",
        ),
        click.option("--scheduler", metavar="ADDRESS", help="Use a running Dask scheduler, as tcp://host:8786."),
    ):
        command = option(command)
    return command


def text_options(command: Command) -> Command:
    """Add the options that say how text is read: ``--tagger``, ``--text-field`` and ``--split``."""
    for option in (
        click.option("--split", default="train", show_default=True, help="Split of a hf: dataset."),
        click.option(
            "--text-field", default="text", show_default=True, help="Field of JSON lines and of hf: datasets."
        ),
        click.option(
            "--tagger",
            default="lexicon",
            show_default=True,
            metavar="lexicon|spacy:MODEL|gold",
            help="How words get their part of speech; gold takes it from CoNLL-U files.",
        ),
    ):
        command = option(command)
    return command


def ever_pos_option(command: Command) -> Command:
    """Add ``--ever-pos``."""
    return click.option(
        "--ever-pos",
        metavar="lemminflect|corpus|FILE",
        help="Which words can ever be verbs, adpositions or conjunctions, and so end a column: a library's "
        "dictionary (default), the tags of the text itself, or a JSON file of UPOS to words.",
    )(command)


def cluster_options(
    scheduler: str | None, workers: int | None, dashboard: str | None, default: int | None
) -> ClusterOptions:
    """Return where a command runs; `default` workers when neither option was given."""
    from giaann_dask.cluster import ClusterOptions

    if scheduler is not None and workers is not None:
        raise OptionError("both --scheduler and --workers were given", "one of them", "leave one out")
    count = default if workers is None and scheduler is None else workers
    return ClusterOptions(scheduler=scheduler, workers=count, dashboard=dashboard)


def read_text_options(values: dict[str, Any], ever_pos: str | None = None) -> TextOptions:
    """Return how text is read, from a command's values."""
    from giaann_dask.api import TextOptions
    from giaann_dask.text.reading import ReadOptions

    reading = ReadOptions(text_field=values["text_field"], split=values["split"])
    return TextOptions(tagger=values["tagger"], ever_pos=ever_pos, reading=reading)
