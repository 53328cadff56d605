"""Define and read the options that several commands share.

These say where tasks run, how text and rows are read, and what is printed. Options of one command are in `commands`.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.cli.click_ext import section
from giaann_dask.cli.logs import log_options
from giaann_dask.cli.output import say
from giaann_dask.device import finds_cuda
from giaann_dask.errors import InputFormatError, InputMissingError, OptionError, parameter
from giaann_dask.local_files import local_name, local_path, read_utf8
from giaann_dask.models.columns.state.options import InferenceOptions
from giaann_dask.object_urls import ObjectUrl, StorageOptions, is_in_memory, is_object_store, object_path

if TYPE_CHECKING:
    from giaann_dask.api.texts import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.models.options import BeamOptions
    from giaann_dask.models.rules import Feed, PredictionRules
    from giaann_dask.rows.remote import RowOptions
    from giaann_dask.text.inputs import Files

Command = TypeVar("Command", bound=Callable[..., Any])

LOCAL = 0
_STORAGE = "giaann_dask.storage_options"

_cluster, _output, _text = section("Cluster"), section("Output and logging"), section("Text")
# Rules of profile v1 that have options, with their default values.
V1_DEFAULTS: dict[str, Any] = {
    name: getattr(InferenceOptions(), name) for name in ("timing", "activations", "sequential")
}

_inference, _beam, _rows = section("Inference"), section("Beam search"), section("Rows")


def as_files(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Files:
    """Convert the inputs of a command, which are names, for functions that take texts, too."""
    from giaann_dask.text.inputs import Files, expand_lists
    from giaann_dask.text.remote_inputs import names_url

    return Files(reached(name) if names_url(name) else name for name in expand_lists(value))


def reached(url: str) -> ObjectUrl:
    """Return a URL with the storage options of the command that runs."""
    context = click.get_current_context(silent=True)
    return ObjectUrl(url, None if context is None else context.meta.get(_STORAGE))


def network_path(name: str) -> Path:
    """Return the path of a network or a corpus; a URL keeps its two slashes, and has the options of the command."""
    return object_path(reached(name)) if is_object_store(name) else local_path(name)


def _read_storage(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    """Keep the storage options of a command for the URLs among its other options and arguments."""
    context.meta[_STORAGE] = StorageOptions.parse(value)


def storage_option(command: Command) -> Command:
    """Add ``--storage-option``, which applies to all URLs that a command names."""
    return section("Storage")(
        "--storage-option",
        "storage_options",
        multiple=True,
        metavar="KEY=VALUE",
        is_eager=True,
        expose_value=False,
        callback=_read_storage,
        help="How object stores that URLs name are reached, such as endpoint, region or access_key_id; repeatable. "
        "What is left out comes from the environment.",
    )(command)


class _NetworkPath(click.ParamType[Path]):
    """Folder or URL of a network or a corpus; see `network_path`."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return a path, or a `giaann_dask.object_urls.ObjectPath`."""
        return value if isinstance(value, Path) else network_path(value)


class _WrittenPath(_NetworkPath):
    """Folder or URL of what a command writes, with a warning where that ends with the command."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return a path, or a `giaann_dask.object_urls.ObjectPath`."""
        path = super().convert(value, param, ctx)
        if is_in_memory(path):
            say(f"{path} is in the memory of this command, and gone when it ends")
        return path


class _FilePath(click.ParamType[Path]):
    """Path of a file or folder of this machine; see `giaann_dask.local_files`."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, with the home folder and ``file://`` resolved."""
        return local_path(value)


class _AppendedFile(click.File):
    """Text file that a command appends to, open; ``-`` is standard output."""

    def __init__(self) -> None:
        super().__init__("a", encoding="utf-8", lazy=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file, opened; its name as that of `_FilePath`."""
        return super().convert(local_name(value) if isinstance(value, str | os.PathLike) else value, param, ctx)


FILE_PATH = _FilePath()
APPENDED_FILE = _AppendedFile()
NETWORK_PATH = _NetworkPath()
WRITTEN_PATH = _WrittenPath()
NETWORK = click.argument("network", type=NETWORK_PATH)
INPUTS = click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", callback=as_files)


def output_options(command: Command) -> Command:
    """Add the options of every command: storage, logging and ``--json``."""
    command = storage_option(log_options(command))
    return _output("--json", "as_json", first=True, is_flag=True, help="Print one JSON object on standard output.")(
        command
    )


def device_option(command: Command) -> Command:
    """Add ``--device``."""
    return _cluster(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where dense computations run; with CUDA and dask-cuda, a worker for each GPU beside the others.",
    )(command)


def common_options(command: Command) -> Command:
    """Add the options of the commands that use a cluster: where it is, logging, and ``--json``."""
    command = output_options(command)
    for option in reversed(
        (
            _cluster(
                "--scheduler", first=True, metavar="ADDRESS", help="Use a running scheduler: tcp:// or tls://host:port."
            ),
            _cluster("--scheduler-file", metavar="FILE", help="Use the scheduler that wrote this file."),
            _cluster(
                "--workers",
                first=True,
                type=int,
                metavar="N",
                help="Start N worker processes of the processor on this machine; 0 runs everything in this process.",
            ),
            _cluster("--threads", type=int, default=1, show_default=True, help="Threads of each worker."),
            _cluster("--memory-limit", metavar="SIZE", help="Memory of each worker, as 4GiB."),
            _cluster(
                "--protocol",
                type=click.Choice(["tcp", "ucx"]),
                default="tcp",
                show_default=True,
                help="How workers that are started exchange data: over TCP, or with UCX (needs ucxx).",
            ),
            _cluster(
                "--dashboard",
                metavar="ADDRESS",
                help="Serve the Dask dashboard, as at 127.0.0.1:8787; :8787 can be reached from other machines.",
            ),
        )
    ):
        command = option(command)
    return command


def text_options(command: Command) -> Command:
    """Add the options that say how text is read: ``--tagger``, ``--text-field`` and ``--split``."""
    for option in (
        _text("--split", default="train", show_default=True, help="Split of a hf: dataset."),
        _text("--text-field", default="text", show_default=True, help="Field of JSON lines and of hf: datasets."),
        _text(
            "--tagger",
            first=True,
            default="lexicon",
            show_default=True,
            metavar="lexicon|spacy:MODEL|gold",
            help="How words get their part of speech; gold takes it from CoNLL-U files.",
        ),
    ):
        command = option(command)
    return command


def inference_options(command: Command) -> Command:
    """Add the rules of inference: ``--settings`` and its kind for profile ``v2``, ``--timing`` and its for ``v1``."""
    for option in (
        _inference(
            "--auxiliary",
            metavar="KIND,...",
            help="Profile v2: let neurons with the same lemma, pos (part of speech), role (of a subword), a similar "
            "spelling or similar neighbours send signals, too, with a source.",
        ),
        _inference(
            "--enforce-delimiter",
            is_flag=True,
            help="Profile v2: after a delimiter, a column continues with delimiters only.",
        ),
        _inference(
            "--strict-reference",
            is_flag=True,
            help="Profile v2: select as the published implementation does, with its defects.",
        ),
        _inference(
            "--settings",
            first=True,
            type=click.Choice(["train", "test"]),
            help="Profile v2: constants for text that was trained on, or for other text.  [default: test]",
        ),
        _inference(
            "--sequential/--no-sequential",
            default=V1_DEFAULTS["sequential"],
            show_default=True,
            help="Profile v1: whether segments must activate in order.",
        ),
        _inference(
            "--activations",
            type=click.Choice(["boolf", "boolf+c", "intf+c"]),
            default=V1_DEFAULTS["activations"],
            show_default=True,
            help="Profile v1: values that are 0 or 1: those of feature segments, of all segments, or none.",
        ),
        _inference(
            "--timing",
            type=click.Choice(["exact", "biased", "none"]),
            default=V1_DEFAULTS["timing"],
            show_default=True,
            help="Profile v1: times of activations must fit (exact), lower the value by how far they are off (biased), "
            "or are ignored.",
        ),
    ):
        command = option(command)
    return command


def row_options(command: Command) -> Command:
    """Add the options of how rows of the network are read: ``--rows`` and ``--row-memory``."""
    for option in (
        _rows(
            "--row-memory",
            metavar="SIZE",
            help="Cache of rows from other workers, for each worker process.  [default: 128MiB]",
        ),
        _rows(
            "--rows",
            type=click.Choice(["auto", "replicated", "remote"]),
            default="auto",
            show_default=True,
            help="Replicate the network on all workers (replicated), request rows from the owners of regions (remote), "
            "or choose by memory (auto).",
        ),
    ):
        command = option(command)
    return command


def read_row_options(values: dict[str, Any]) -> RowOptions:
    """Return how rows are read, from a command's values."""
    from giaann_dask.rows.remote import RowOptions

    kept = read_size("row_memory", values["row_memory"])
    return RowOptions(mode=values["rows"], **({} if kept is None else {"cache_bytes": kept}))


TAGGER = _text(
    "--tagger",
    first=True,
    default="lexicon",
    show_default=True,
    metavar="lexicon|spacy:MODEL",
    help="How words of a prompt get their part of speech.",
)


def read_size(name: str, text: str | None) -> int | None:
    """Return the bytes that an option's text says, None where it is left out.

    Raises
    ------
    OptionError
        If it is no size.
    """
    if text is None:
        return None
    from dask.utils import parse_bytes

    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise OptionError(
            f"{parameter(name)} is {text!r}", "a size such as 256MiB", f"set {parameter(name)} to such a value"
        ) from error


def beam_options(command: Command) -> Command:
    """Add the options of beam search: ``--beam-width``, ``--beam-depth`` and ``--beam-score``."""
    for option in (
        _beam(
            "--beam-score",
            type=click.Choice(["activation", "connection", "both"]),
            default="activation",
            show_default=True,
            help="What paths are compared by: activations of their tokens, strengths of the connections between "
            "them, or both.",
        ),
        _beam("--beam-depth", type=int, default=1, show_default=True, help="Tokens to look ahead."),
        _beam(
            "--beam-width",
            first=True,
            type=int,
            default=1,
            show_default=True,
            help="Paths to follow before a token is chosen; 1 takes the most active neuron.",
        ),
    ):
        command = option(command)
    return command


def read_beam_options(values: dict[str, Any]) -> BeamOptions:
    """Return how far generation looks ahead, from a command's values."""
    from giaann_dask.models.options import BeamOptions

    return BeamOptions(width=values["beam_width"], depth=values["beam_depth"], score=values["beam_score"])


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


def read_numbers(name: str, text: str, expected: str = "whole numbers such as 1,5,10") -> tuple[int, ...]:
    """Return the whole numbers of an option's text, which are separated by commas.

    Raises
    ------
    OptionError
        If a part is no whole number.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise OptionError(
            f"{parameter(name)} is {text!r}", expected, f"set {parameter(name)} to such values"
        ) from error


def read_inference_options(values: dict[str, Any], feed: Feed) -> PredictionRules:
    """Return the rules of inference, from a command's values.

    Raises
    ------
    OptionError
        If options of both profiles are among them.
    """
    from giaann_dask.models.columns.v2.options import V2Settings
    from giaann_dask.models.rules import PredictionRules

    rules = InferenceOptions(feed=feed, **{name: values[name] for name in V1_DEFAULTS})
    flags = {name: values[name] for name in ("strict_reference", "enforce_delimiter")}
    kinds = tuple(kind.strip() for kind in (values.get("auxiliary") or "").split(",") if kind.strip())
    if values["settings"] is None and not any(flags.values()) and not kinds:
        return rules if rules.chosen else PredictionRules(feed=feed)
    if rules.chosen:
        raise OptionError(
            f"{parameter('timing')}, {parameter('activations')} or {parameter('sequential')} with "
            f"{parameter('settings')}, "
            f"{parameter('strict_reference')}, {parameter('enforce_delimiter')} or {parameter('auxiliary')}",
            "the former for networks of profile v1, the latter for profile v2",
            "leave one kind out",
        )
    return V2Settings(settings=values["settings"] or "test", feed=feed, auxiliary=kinds, **flags)


def ever_pos_option(command: Command) -> Command:
    """Add ``--ever-pos``."""
    return _text(
        "--ever-pos",
        metavar="lemminflect|corpus|FILE",
        help="Which words can ever be verbs, adpositions or conjunctions, and so end a column: a library's "
        "dictionary (default), the tags of the text itself, or a JSON file of UPOS to words.",
    )(command)


def cluster_options(values: dict[str, Any], default: int | None = None) -> ClusterOptions:
    """Return where a command runs; `default` workers when neither a scheduler nor workers are named.

    This prepares what worker processes import, so call it before importing modules that compute.
    """
    from giaann_dask.cluster import ClusterOptions

    names = ("scheduler", "scheduler_file", "workers", "threads", "memory_limit", "protocol", "dashboard")
    # Commands without dense computations have no option for their device, and start ordinary workers.
    chosen = {**{name: values[name] for name in names}, "device": values.get("device", "cpu")}
    if all(chosen[name] is None for name in ("scheduler", "scheduler_file", "workers")):
        chosen["workers"] = default
    options = ClusterOptions(**chosen)
    logging.getLogger("asyncio").addFilter(_is_failure)
    if options.distributes:
        from giaann_dask.cluster import prepare

        prepare(options)
        silence_dask()
    elif options.device == "cuda":
        # Where there is no such device, this says so before any work.
        finds_cuda(options.device)
    return options


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


def read_text_options(values: dict[str, Any], ever_pos: str | None = None) -> TextOptions:
    """Return how text is read, from a command's values."""
    from giaann_dask.api.texts import TextOptions
    from giaann_dask.text.reading import ReadOptions

    reading = ReadOptions(text_field=values["text_field"], split=values["split"])
    kept = bool(values.get("parts_of_speech"))
    return TextOptions(
        tagger=values["tagger"],
        ever_pos=ever_pos,
        reading=reading,
        parts_of_speech=kept,
        tokenizer=values.get("tokenizer"),
    )
