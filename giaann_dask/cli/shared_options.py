"""Define and read the options that several commands share.

These say where tasks run, how text and rows are read, and what is printed. Options of one command are in `commands`.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.cli.click_ext import PLAIN, options_of, section
from giaann_dask.cli.output import json_option, log_options, say
from giaann_dask.device import finds_cuda
from giaann_dask.errors import InputFormatError, InputMissingError, OptionError
from giaann_dask.local_files import local_name, local_path, read_utf8
from giaann_dask.object_urls import ObjectUrl, StorageOptions, is_in_memory, is_object_store, object_path

if TYPE_CHECKING:
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.models.generation_options import Feed, PredictionRules
    from giaann_dask.text.inputs import Files

Command = TypeVar("Command", bound=Callable[..., Any])

LOCAL = 0
_STORAGE = "giaann_dask.storage_options"

_output = section("Output and logging")
_cluster = partial(
    options_of,
    "cluster",
    "giaann_dask.cluster.cluster_options.ClusterOptions",
    "Cluster",
    first=("scheduler", "workers"),
)


def as_files(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Files:
    """Convert the inputs of a command, which are names, for functions that take texts, too."""
    from giaann_dask.text.input_files import names_url
    from giaann_dask.text.inputs import Files, expand_lists

    return Files(reached(name) if names_url(name) else name for name in expand_lists(value))


def reached(url: str) -> ObjectUrl:
    """Return a URL with the storage options of the command that runs."""
    context = click.get_current_context(silent=True)
    return ObjectUrl(url, None if context is None else context.meta.get(_STORAGE))


def network_path(name: str | Path) -> Path:
    """Return the path of a network or a corpus; a URL keeps its two slashes, and has the options of the command."""
    if isinstance(name, Path):
        return name
    return object_path(reached(name)) if is_object_store(name) else local_path(name)


def _read_storage(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    """Keep the storage options of a command for the URLs among its other options and arguments."""
    context.meta[_STORAGE] = StorageOptions.parse(value)


# Applies to all URLs that a command names.
_storage_option = section("Storage")(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="KEY=VALUE",
    is_eager=True,
    expose_value=False,
    callback=_read_storage,
    help="How object stores that URLs name are reached, such as endpoint, region or access_key_id; repeatable. "
    "What is left out comes from the environment.",
)


class _Path(click.ParamType[Path]):
    """Place that a function makes of a name."""

    name = "path"

    def __init__(self, place: Callable[[Any], Path]) -> None:
        self._place = place

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return a path, or a `giaann_dask.object_urls.ObjectPath`."""
        return self._place(value)


def _written_path(name: str) -> Path:
    """Return the place of what a command writes, with a warning where that ends with the command."""
    path = network_path(name)
    if is_in_memory(path):
        say(f"{path} is in the memory of this command, and gone when it ends")
    return path


class _AppendedFile(click.File):
    """Text file that a command appends to, open; ``-`` is standard output."""

    def __init__(self) -> None:
        super().__init__("a", encoding="utf-8", lazy=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file, opened; its name as that of `FILE_PATH`."""
        return super().convert(local_name(value) if isinstance(value, str | os.PathLike) else value, param, ctx)


FILE_PATH = _Path(local_path)
APPENDED_FILE = _AppendedFile()
NETWORK_PATH, WRITTEN_PATH = _Path(network_path), _Path(_written_path)
NETWORK = click.argument("network", type=NETWORK_PATH)
INPUTS = click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", callback=as_files)


def output_options(command: Command) -> Command:
    """Add the options of every command: storage, logging and ``--json``."""
    return json_option(_storage_option(log_options(command)))


def common_options(command: Command) -> Command:
    """Add the options of the commands that use a cluster of ordinary workers: where it is, logging, and ``--json``."""
    return _cluster(fixed={"device": "cpu"})(output_options(command))


# Options that name a running cluster; commands get None where none is named.
running_options = _cluster(only=("scheduler", "scheduler_file"), optional=True)


def dense_options(command: Command) -> Command:
    """Add the options of the commands that compute densely: those of `common_options`, and ``--device``."""
    return _cluster()(output_options(command))


# Options of how files are read.
reading_options = options_of(
    "reading", "giaann_dask.text.read_options.ReadOptions", "Text", only=("text_field", "split")
)


def _text_options(*names: str) -> Callable[[Command], Command]:
    text = options_of("text", "giaann_dask.api.text_options.TextOptions", "Text", only=names, first=("tagger",))
    return lambda command: text(reading_options(command))


# Options of how text is read and tagged: of a network that is there, of a new one, and of a corpus.
text_options = _text_options("tagger")
new_text_options = _text_options("tagger", "ever_pos", "tokenizer")
corpus_text_options = _text_options("tagger", "ever_pos", "tokenizer", "parts_of_speech")


def inference_options(command: Command) -> Command:
    """Add the rules of inference of profiles ``v1`` and ``v2``."""
    rules = {"without": ("feed",), "optional": True}
    place, first = "giaann_dask.models.columns.state.inference_options.V2Settings", ("settings",)
    command = options_of("v2_rules", place, "Inference of profile v2", first=first, **rules)(command)
    place = "giaann_dask.models.columns.state.inference_options.InferenceOptions"
    return options_of("v1_rules", place, "Inference of profile v1", **rules)(command)


# Options of how rows of the network are read.
row_options = options_of("rows", "giaann_dask.rows.protocol.RowOptions", "Rows", prefix="rows")
beam_options = options_of(
    "beam", "giaann_dask.models.generation_options.BeamOptions", "Beam search", prefix="beam", first=("width",)
)
sampling_options = options_of(
    "sampling", "giaann_dask.models.generation_options.SamplingOptions", "Inference", first=("temperature", "seed")
)


def training_options(**settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of how training is distributed and committed."""
    training = options_of(
        "training", "giaann_dask.training.training_options.TrainingOptions", "Training", shared=("device",), **settings
    )
    place = "giaann_dask.training.training_options.SelectionOptions"
    selection = options_of("selection", place, "Selection", prefix="selection")
    return lambda command: training(selection(command))


def generation_options(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds options of `GenerationOptions`."""
    place = "giaann_dask.models.generation_options.GenerationOptions"
    return options_of("generation", place, PLAIN, only=names, shared=("device",), **settings)


def evaluation_options(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds options of `EvaluationOptions`."""
    place = "giaann_dask.models.generation_options.EvaluationOptions"
    return options_of("evaluation", place, PLAIN, only=names, shared=("device",))


def require_cluster(cluster: ClusterOptions | None) -> ClusterOptions:
    """Return the options that name a running cluster.

    Raises
    ------
    OptionError
        If none is named.
    """
    if cluster is None:
        raise OptionError("no scheduler is named", "that of a running cluster", "give --scheduler or --scheduler-file")
    return cluster


def read_toml(path: Path, option: str) -> dict[str, Any]:
    """Return the content of a TOML file that an option names.

    Raises
    ------
    InputMissingError, InputEncodingError, InputFormatError
        If it cannot be read, or is not TOML in UTF-8.
    """
    try:
        return tomllib.loads(read_utf8(path))
    except OSError as error:
        raise InputMissingError(f"{path} cannot be read ({error.strerror})", "", f"check {option}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputFormatError(f"{path} is not TOML: {error}", "TOML", "correct the file") from error


def inference_rules(values: dict[str, Any], feed: Feed) -> PredictionRules:
    """Return the rules of inference, from a command's values.

    Raises
    ------
    OptionError
        If options of both profiles are among them.
    """
    from dataclasses import replace

    from giaann_dask.models.generation_options import PredictionRules

    v1, v2 = values["v1_rules"], values["v2_rules"]
    if v1 is not None and v2 is not None:
        raise OptionError(
            "timing, activations or sequential with settings, strict_reference, enforce_delimiter or auxiliary",
            "the former for networks of profile v1, the latter for profile v2",
            "leave one kind out",
            names=("timing", "activations", "sequential", "settings", "auxiliary"),
        )
    chosen: PredictionRules = v1 or v2 or PredictionRules()
    return replace(chosen, feed=feed)


def prepared(cluster: ClusterOptions, default: int | None = None) -> ClusterOptions:
    """Return where a command runs; `default` workers when neither a scheduler nor workers are named.

    This prepares what worker processes import, so call it before importing modules that compute.
    """
    from dataclasses import replace

    if cluster.scheduler is None and cluster.scheduler_file is None and cluster.workers is None:
        cluster = replace(cluster, workers=default)
    logging.getLogger("asyncio").addFilter(_is_failure)
    if cluster.distributes:
        from giaann_dask.cluster import prepare

        prepare(cluster)
        silence_dask()
    elif cluster.device == "cuda":
        # Where there is no such device, this says so before any work.
        finds_cuda(cluster.device)
    return cluster


def silence_dask() -> None:
    """Silence Dask on standard error: it logs a traceback for a lost connection, which one line of ours reports."""
    # Importing it replaces the handlers of some of its loggers by new ones.
    import distributed

    loggers = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == distributed.__name__]
    for handler in [handler for name in loggers for handler in logging.getLogger(name).handlers]:
        # Those of others, such as a file or what collects the records of a test, are of a derived class.
        if type(handler) is logging.StreamHandler:
            handler.setLevel(logging.CRITICAL)


def _is_failure(record: logging.LogRecord) -> bool:
    """Return whether a record of asyncio is about more than Dask's waiting for results, which Ctrl-C has ended."""
    return not record.exc_info or getattr(record.exc_info[0], "__name__", "") != "AllExit"
