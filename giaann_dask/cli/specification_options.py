"""Define and read the options that define a new network: ``--profile``, ``--set`` and ``--specification``.

Each field of `giaann_dask.spec.Specification` is set by ``--set FIELD=VALUE`` or in a TOML file. How training is
distributed and committed is read by `training_options`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import click

from giaann_dask.cli.click_ext import FILE_FIELDS, read_items, section
from giaann_dask.cli.shared_options import FILE_PATH, read_toml
from giaann_dask.errors import OptionError, require_one_of, require_option
from giaann_dask.registry import FLAGS

if TYPE_CHECKING:
    from giaann_dask.spec import Specification

Command = TypeVar("Command", bound=Callable[..., Any])

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
        help="What tells delimiters: the word alone (canonical), which add, forget and islands need, or its first "
        "occurrences (history).  [default: canonical; history with subwords or random branches]",
    ),
)


_TRACE = _new_network(
    "--trace",
    first=True,
    is_flag=True,
    help="Train an index along, by which the command trace names the sentences behind a prediction.",
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
    return fields | options | settings


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
    from giaann_dask.tracing.trace import require_index
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
            f"network {network} has {', '.join(f'{name} {getattr(stored, name)}' for name in fields)}",
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
