"""Define and read the options that several commands share.

These say where tasks run, how text and rows are read, what is printed, and what a new network is (``--profile``,
``--set`` and ``--specification``). Options of one command are in `commands`.
"""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import click

from giaann_dask.cli.click_ext import FILE_FIELDS, PLAIN, options_of, read_items, section
from giaann_dask.cli.output import json_option, log_options, place_name, say
from giaann_dask.cluster.waiting import silence_ended_waits
from giaann_dask.device import finds_cuda
from giaann_dask.errors import InputFormatError, InputMissingError, OptionError, require_one_of, require_option
from giaann_dask.local_files import local_name, local_path, read_utf8
from giaann_dask.object_urls import ObjectUrl, StorageOptions, absolute_place, is_in_memory, is_object_store
from giaann_dask.registry import FLAGS, name_model

if TYPE_CHECKING:
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.models.generation_options import Feed, PredictionRules
    from giaann_dask.spec import Specification
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
    """Convert the inputs of a command, which are names, for functions that take texts, too.

    Names that lead to nothing are refused, before workers are started; documents may also be identities in a ledger.
    """
    from giaann_dask.text.input_files import names_url
    from giaann_dask.text.inputs import Files, expand_lists, require_there
    from giaann_dask.text.ledger import is_identity

    found = Files(reached(name) if names_url(name) else name for name in expand_lists(value))
    require_there(name for name in found if parameter.name != "documents" or not is_identity(name))
    return found


def reached(url: str) -> ObjectUrl:
    """Return a URL with the storage options of the command that runs."""
    context = click.get_current_context(silent=True)
    return ObjectUrl(url, None if context is None else context.meta.get(_STORAGE))


def network_path(name: str | Path) -> Path:
    """Return the place of a network or a corpus, the same for each of its names: absolute, with links followed.

    A URL of an object store has the storage options of the command.
    """
    return absolute_place(reached(name) if isinstance(name, str) and is_object_store(name) else name)


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
    help="Option of the object stores of URLs, such as endpoint, region or access_key_id; repeatable. "
    "Other settings come from the environment.",
)


class _LocalPath(click.ParamType[Path]):
    """Place that a function makes of a name."""

    name = "path"

    def __init__(self, place: Callable[[Any], Path]) -> None:
        self._place = place

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return a path, or a `giaann_dask.object_urls.ObjectPath`."""
        if value == "":
            # As a path it would be the working directory.
            self.fail("an empty name; expected a path.", param, ctx)
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


FILE_PATH = _LocalPath(local_path)
APPENDED_FILE = _AppendedFile()
NETWORK_PATH, WRITTEN_PATH = _LocalPath(network_path), _LocalPath(_written_path)
NETWORK = click.argument("network", type=NETWORK_PATH)
INPUTS = click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", callback=as_files)


def _name_models(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    """Let stored networks that the command opens have the models that it names."""
    for name in value:
        name_model(name)


# Commands that define networks have their own option of this name, which names the model, too.
_model_option = section("Storage")(
    "--profile",
    multiple=True,
    metavar="MODULE:NAME",
    expose_value=False,
    is_eager=True,
    callback=_name_models,
    help="Import path of a stored network's model, where no installed package has it; the module is run. Repeatable.",
)


def output_options(command: Command) -> Command:
    """Add the options of every command: storage, models of stored networks, logging and ``--json``."""
    return json_option(_storage_option(_model_option(log_options(command))))


def common_options(command: Command) -> Command:
    """Add the options of the commands that use a cluster of ordinary workers: where it is, logging, and ``--json``."""
    return _cluster(fixed={"device": "cpu"})(output_options(command))


# Options that name a running cluster; commands get None where none is named.
running_options = _cluster(only=("scheduler", "scheduler_file"), optional=True)


def dense_options(command: Command) -> Command:
    """Add the options of the commands that compute densely: those of `common_options`, and ``--device``."""
    return _cluster()(output_options(command))


def evaluating_options(command: Command) -> Command:
    """Add the options of `dense_options` to a command whose ``--protocol`` is that of the evaluation."""
    return _cluster(without=("protocol",))(output_options(command))


# Options of how files are read, and of how text is read that is counted.
_READ_OPTIONS = "giaann_dask.text.read_options.ReadOptions"
_READING = ("text_field", "id_field", "read_as", "markup", "window_log", "split")
reading_options = options_of("reading", _READ_OPTIONS, "Text", only=_READING)
_counted_options = options_of("reading", _READ_OPTIONS, "Text", only=(*_READING, "count_repeats"))


def _text_options(*names: str, counted: bool = False) -> Callable[[Command], Command]:
    text = options_of("text", "giaann_dask.api.text_options.TextOptions", "Text", only=names, first=("tagger",))
    return lambda command: text(_counted_options(command) if counted else reading_options(command))


# Options of how text is read and tagged: of a network that is there, of a new one, and of a corpus.
text_options = _text_options("tagger")
new_text_options = _text_options("tagger", "language", "ever_pos", "tokenizer", counted=True)
corpus_text_options = _text_options("tagger", "language", "ever_pos", "tokenizer", "parts_of_speech", counted=True)


def inference_options(command: Command) -> Command:
    """Add the rules of inference of profiles ``v1`` and ``v2``."""
    rules = {"without": ("feed", "sources"), "optional": True}
    place = "giaann_dask.models.generation_options.PredictionRules"
    command = options_of("shared_rules", place, "Inference", only=("sources",))(command)
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
    return replace(chosen, feed=feed, sources=values["shared_rules"].sources)


def prepared(cluster: ClusterOptions, default: int | None = None) -> ClusterOptions:
    """Return where a command runs; `default` workers when neither a scheduler nor workers are named.

    This prepares what worker processes import, so call it before importing modules that compute.
    """
    from dataclasses import replace

    if cluster.scheduler is None and cluster.scheduler_file is None and cluster.workers is None:
        cluster = replace(cluster, workers=default)
    silence_ended_waits()
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


_new_network = section("New network")

_OPTIONS = (
    _new_network(
        "--profile",
        first=True,
        metavar="NAME",
        help="Profile of a new network, which sets the defaults of its specification.  [default: v1]",
    ),
    _new_network(
        "--set",
        "settings",
        first=True,
        multiple=True,
        metavar="FIELD=VALUE",
        help="Set a field of the specification, such as seed_tokens=12, lif=false, regions=16 or "
        "pos_factors=VERB=10,ADJ=3; repeatable. Takes precedence over --specification.",
    ),
    _new_network(
        "--specification",
        "specification_file",
        type=FILE_PATH,
        metavar="FILE",
        help="TOML file with fields of the specification.",
    ),
    _new_network(
        "--tokenizer",
        first=True,
        metavar="FILE|learn:SIZE|tiktoken:NAME|none",
        help="Divide text into subwords with the tokenizer of a file, one learned from the text, or an encoding of "
        "tiktoken; none uses words.  [default: none]",
    ),
    _new_network(
        "--flags",
        first=True,
        type=click.Choice(FLAGS),
        help="How delimiters are determined: by the word alone (canonical), which add, forget and islands need, or "
        "by its first occurrences (history).  [default: canonical; history with subwords or random branches]",
    ),
)


_TRACE = _new_network(
    "--trace",
    first=True,
    is_flag=True,
    help="Also build an index, by which the command trace names the sentences behind a prediction.",
)


def _read_model_options(_: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    """Return options of a model of another package, which only its predictions read."""
    fields = _read_settings(value)
    for name in fields:
        require_one_of(str(parameter.name), name, ("model_options",))
    found: dict[str, Any] = fields.get("model_options", {})
    return found


# Options of a model of another package, for one prediction.
model_options = section("Inference")(
    "--set",
    "model_options",
    multiple=True,
    callback=_read_model_options,
    metavar="model_options=NAME=VALUE,...",
    help="Options of a model of your own that only predictions read, instead of those of the network; repeatable.",
)


def specification_options(command: Command) -> Command:
    """Add the options that define how text is encoded for a new network."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def network_options(command: Command) -> Command:
    """Add the options that define a new network."""
    return specification_options(_TRACE(command))


def read_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a specification that a command's options set.

    A file gives way to options, and other options give way to ``--set``.

    Parameters
    ----------
    values : dict of str to Any
        The command's values.

    Raises
    ------
    OptionError
        If a field does not exist, or its value cannot be read.
    InputMissingError, InputFormatError
        If the file cannot be read or is not TOML.
    """
    fields = {} if values["specification_file"] is None else _read_file(values["specification_file"])
    in_file = set(fields)
    options: dict[str, Any] = {}
    if values["profile"] is not None:
        options["profile"] = values["profile"]
    if values["flags"] is not None:
        options["flags"] = values["flags"]
    if values.get("trace"):
        options["trace"] = True
    if values["tokenizer"] is not None:
        options["tokens"] = "words" if values["tokenizer"] == "none" else "subwords"
    settings = _read_settings(values["settings"])
    _name_by_key(in_file - {*options, *settings})
    found = fields | options | settings
    name_model(str(found.get("profile", "")))
    return found


def _name_by_key(names: Set[str]) -> None:
    """Let errors about fields name them as the file of this command does."""
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[FILE_FIELDS] = names


def read_specification(network: Path, values: dict[str, Any]) -> Specification | None:
    """Return the specification that the network has or that the options set; None where neither exists.

    Raises
    ------
    OptionError
        If the network exists with another specification.
    SpecificationError
        If no network can be trained with it.
    """
    from dataclasses import replace

    from giaann_dask.models import model_of
    from giaann_dask.spec import Specification
    from giaann_dask.tracing import require_index
    from giaann_dask.training.target import open_store

    store, fields = open_store(network), read_fields(values)
    reader = None if store is None else store.open(store.head())
    stored = None if reader is None else reader.manifest().specification
    if reader is not None and fields.get("trace"):
        require_index(reader)
    if not fields:
        return stored
    if stored is None:
        specification = Specification(**fields)
        model_of(specification).require_trainable(specification)
        return specification
    # Flags that are not asked for are those that go with the other fields: only what is asked for is compared.
    asked = {"flags": None, **fields}
    if "model_options" in fields:
        # The model completes and checks them where no package is named.
        asked |= {"package": "", "model_options": {**dict(stored.model_options), **fields["model_options"]}}
    same = fields.get("profile", stored.profile) == stored.profile
    if not same or any(getattr(replace(stored, **asked), name) != getattr(stored, name) for name in fields):
        raise OptionError(
            f"network {place_name(network)} has {', '.join(f'{name} {getattr(stored, name)}' for name in fields)}",
            f"{', '.join(f'{name} {value}' for name, value in fields.items())} as asked for",
            "leave it out to train it further, or name a new network",
            names=tuple(fields),
        )
    return stored


def _read_file(path: Path) -> dict[str, Any]:
    """Return the fields that a TOML file sets; dashes in their names count as underscores."""
    read = {name.replace("-", "_"): value for name, value in read_toml(path, "--specification").items()}
    for name in read:
        _require_field(name, f"{path} has {name!r}")
    _name_by_key(set(read))
    kept = {"model_options": read.pop("model_options")} if isinstance(read.get("model_options"), Mapping) else {}
    return kept | {name: _read_value(name, _as_text(value)) for name, value in read.items()}


def _read_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that ``--set FIELD=VALUE`` sets; of a field that is repeated, the last value."""
    fields = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not separator:
            raise OptionError(f"--set {setting!r}", "FIELD=VALUE, such as regions=16", "add the value")
        _require_field(name, f"--set {setting!r}")
        fields[name] = _read_value(name, text.strip())
    return fields


def _require_field(name: str, received: str) -> None:
    """Raise an `OptionError` unless a name is a field of `Specification`."""
    from giaann_dask.spec import Specification

    # The package follows from the profile.
    known = sorted(name for name in get_type_hints(Specification) if name[0] != "_" and name != "package")
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        remedy = f"did you mean {' or '.join(map(repr, near))}?" if near else "name one of these"
        raise OptionError(received, f"a field of the specification ({', '.join(map(repr, known))})", remedy)


def _as_text(value: Any) -> str:
    """Return a value of a TOML file as it is written after ``--set FIELD=``."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_value(name: str, text: str) -> Any:
    """Return the value that a text sets a field of `Specification` to.

    Raises
    ------
    OptionError
        If the text cannot be read as a value of the field's type.
    """
    from giaann_dask.models.contexts.specification import CONTEXT_NAMES
    from giaann_dask.spec import Specification

    if name == "pos_factors":
        return _read_factors(text)
    if name == "model_options":
        return _read_options(text)
    if name == "contexts":
        return CONTEXT_NAMES if text == "all" else tuple(part.strip() for part in text.split(","))
    if name == "segment_counts":
        counts = read_items(name, text, int, "a number of column segments and one of feature segments, such as 4,4")
        if len(counts) != 2:
            raise OptionError(f"{name} is {text!r}", "two numbers such as 4,4", "write both")
        return counts
    hint = get_type_hints(Specification)[name]
    kinds = get_args(hint) or (hint,)
    if bool in kinds:
        require_one_of(name, text.lower(), ("true", "false"))
        return text.lower() == "true"
    for kind, expected in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                require_option(False, name, text, expected)
    return text


def _read_options(text: str) -> dict[str, Any]:
    """Return options of a model of another package, ``NAME=VALUE,...`` with values as in TOML, or text."""
    found = {}
    for name, equals, value in (part.partition("=") for part in text.split(",") if part.strip()):
        if not equals:
            raise OptionError(f"model_options is {text!r}", "options such as reach=2", "write NAME=VALUE for each")
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found


def _read_factors(text: str) -> dict[str, float]:
    """Return the factors that ``published`` or ``UPOS=FACTOR,...`` stand for."""
    from giaann_dask.models.columns.scaling import PUBLISHED_FACTORS

    if text == "published":
        return dict(PUBLISHED_FACTORS)
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        raise OptionError(
            f"pos_factors is {text!r}",
            "published, or such as VERB=10,ADJ=3",
            "write a number for each part of speech",
        ) from None
