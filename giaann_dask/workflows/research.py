"""Compare rules on one slice of text: ``giaann-dask job research``.

Each rule trains a new network on the same text, evaluates it on the same other text, and has one row of figures. Rows
are kept in a history (`giaann_dask.workflows.history`), so that a research that was stopped goes on with the rules
that have no row. `giaann_dask.workflows.comparing` compares profiles by the amount of text instead.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.diagnostics import MemorySampler

import giaann_dask as gd
from giaann_dask.api.text_options import TextOptions
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.device import device_bytes
from giaann_dask.errors import GiaannError, OptionError, StoreExistsError
from giaann_dask.events import Observer
from giaann_dask.keywords import arguments_of
from giaann_dask.models import model_of
from giaann_dask.representations import format_bytes
from giaann_dask.spec import Specification
from giaann_dask.storage import bytes_on_disk, read_json_lines, require_local, writing
from giaann_dask.text.inputs import Files
from giaann_dask.text.reading import read_parts
from giaann_dask.workflows.comparing import markdown_table
from giaann_dask.workflows.exits import DONE, TRY_AGAIN, CheckFailedError, status_of
from giaann_dask.workflows.history import recorded

JOB = "research"
_PACKAGE = "giaann-dask"
# Functions whose arguments rules may set, by their tables.
_CALLS: dict[str, Callable[..., Any]] = {"train": gd.train, "evaluate": gd.Network.evaluate}
# What makes rows comparable is the same for all rules.
_FIXED = ("inputs", "max_sequences", "first_sequence")
# Arguments that are no rules: the job has its own.
_TAKEN = ("network", "client", "observer", "progress", "wait", "stop", "branch", "specification", "options", "text")
_FIGURES = (
    *("top1", "protocol", "prediction_tokens", "network_bytes", "training_seconds", "seconds"),
    *("peak_memory_bytes", "peak_device_bytes"),
)

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule to train and evaluate by.

    Attributes
    ----------
    name : str
        As the table has it.
    train, evaluate : dict of str to Any
        Keyword arguments of `giaann_dask.train` and `giaann_dask.Network.evaluate`.
    """

    name: str
    train: dict[str, Any]
    evaluate: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ResearchOptions:
    """Text, rules and output folder of a research.

    Parameters
    ----------
    train, evaluate : mapping of str to Any
        Keyword arguments of `giaann_dask.train` and `giaann_dask.Network.evaluate` for all rules, with ``inputs``, the
        files of each, and ``max_sequences``, the slice.
    rules : sequence of mapping
        Each has a ``name``, and arguments of its own by ``train`` and ``evaluate``. By default one without any.
    grid : mapping of str to mapping
        Under ``train`` and ``evaluate`` lists of values by argument; every rule is tried with every combination.
    output : Path
        Folder of the table, its history and the network.

    Raises
    ------
    OptionError
        If an argument is unknown, wrong or not to be varied, or two rules are the same.
    GiaannError
        If no network can be trained by a rule.
    """

    train: Settings
    evaluate: Settings
    rules: Sequence[Settings] = ({},)
    grid: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    output: Path

    def __post_init__(self) -> None:
        require_local(self.output)
        for rule in self.rules:
            _require_names(rule, ("name", *_CALLS), "a rule")
        _require_names(self.grid, tuple(_CALLS), "the grid")
        for call in _CALLS:
            _require_names(getattr(self, call), None, call)
            if not getattr(self, call).get("inputs"):
                raise OptionError(f"no inputs to {call}", "files, folders or datasets", f"set inputs in [{call}]")
            for name, values in self.grid.get(call, {}).items():
                if not (isinstance(values, list | tuple) and values):
                    raise OptionError(f"{name!r} of the grid is {values!r}", "a list of values", "write it in brackets")
            varied = {name for each in (*self.rules, self.grid) for name in each.get(call, {})}
            for name in sorted(varied & {*_FIXED}):
                raise OptionError(
                    f"{name!r} of {call} varies", "the same text for all rules", f"set it in [{call}] alone"
                )
        found = [(rule.train, rule.evaluate) for rule in self.each()]
        for number, (train, evaluate) in enumerate(found):
            if (train, evaluate) in found[:number]:
                raise OptionError(f"the rule {self.each()[number].name!r} twice", "rules that differ", "leave one out")
            specification = arguments_of(gd.train, train).get("specification")
            specification = specification or Specification(profile=train.get("profile", Specification.profile))
            model_of(specification).require_trainable(specification)
            arguments_of(gd.Network.evaluate, evaluate)

    def each(self) -> list[Rule]:
        """Return every rule with every combination of the grid, in order."""
        axes = [(call, name, values) for call, those in self.grid.items() for name, values in those.items()]
        found = []
        for rule in self.rules or ({},):
            for values in product(*(values for *_, values in axes)):
                chosen: dict[str, dict[str, Any]] = {call: dict(rule.get(call, {})) for call in _CALLS}
                for (call, name, _), value in zip(axes, values, strict=True):
                    chosen[call][name] = value
                own = [f"{name}={json.dumps(value)}" for those in chosen.values() for name, value in those.items()]
                fixed = [f"{name}={json.dumps(value)}" for (_, name, _), value in zip(axes, values, strict=True)]
                named = " ".join([rule["name"], *fixed]) if "name" in rule else " ".join(own)
                both = (_plain({**getattr(self, call), **chosen[call]}) for call in _CALLS)
                found.append(Rule(name=named or "baseline", **dict(zip(_CALLS, both, strict=True))))
        return found


@dataclass(frozen=True)
class Research:
    """The rules of a research with the rows that there are.

    Attributes
    ----------
    options : ResearchOptions
        Text, rules and output folder.
    keys : tuple of str
        Hash of the text, the slice, the version of this package and the name and arguments of each rule.
    """

    options: ResearchOptions
    keys: tuple[str, ...]

    @classmethod
    def of(cls, options: ResearchOptions) -> Research:
        """Read the text of both calls once, and return the research.

        Raises
        ------
        OptionError
            If text to evaluate on is trained on, too.
        """
        prints = {call: _fingerprints(call, getattr(options, call)) for call in _CALLS}
        if shared := {*prints["train"]} & {*prints["evaluate"]}:
            received = f"{len(shared)} parts of the text to evaluate on among those to train on"
            raise OptionError(received, "held-out text", "name other files")
        text = [part.hex() for parts in prints.values() for part in parts]
        keys = []
        for rule in options.each():
            arguments = {call: {k: v for k, v in vars(rule)[call].items() if k != "inputs"} for call in _CALLS}
            named = json.dumps([version(_PACKAGE), rule.name, text, arguments], sort_keys=True, default=str)
            keys.append(hashlib.blake2b(named.encode(), digest_size=8).hexdigest())
        return cls(options, tuple(keys))

    @property
    def history(self) -> Path:
        """File of all rows, a JSON line each."""
        return self.options.output / "research.jsonl"

    def rows(self) -> list[tuple[Rule, dict[str, Any] | None]]:
        """Return the rules, each with its last row, or the last one that has figures; None where there is none."""
        found: dict[str, dict[str, Any]] = {}
        for row in read_json_lines(self.history):
            if row["exit"] == DONE or found.get(row["key"], row)["exit"] != DONE:
                found[row["key"]] = row
        return [(rule, found.get(key)) for rule, key in zip(self.options.each(), self.keys, strict=True)]

    def waiting(self) -> list[tuple[Rule, str]]:
        """Return the rules that are not done, with their keys."""
        rows = zip(self.rows(), self.keys, strict=True)
        return [(rule, key) for (rule, row), key in rows if row is None or row["exit"] != DONE]

    def run(self, client: Client, observer: Observer) -> Iterator[dict[str, Any]]:
        """Try the rules that are not done, and yield the row of each; the table is written anew after each.

        Raises
        ------
        CheckFailedError
            At the end, if rules failed.
        GiaannError
            If the cluster or the disk cannot be used now.
        """
        network, failed = self.options.output / "network", []
        if network.exists() and not self.history.exists():
            raise StoreExistsError(
                f"{network} exists, and was not written by this job", "", "name another output folder, or remove it"
            )
        for rule, key in self.waiting():
            row: dict[str, Any] = {}
            try:
                with recorded(JOB, network, self.history) as row:
                    row |= {"rule": rule.name, "key": key, "version": version(_PACKAGE)}
                    row |= {"train": rule.train, "evaluate": rule.evaluate}
                    row |= try_rule(rule, network, client, observer)
            except GiaannError as error:
                if status_of(error) == TRY_AGAIN:
                    raise
                failed.append(rule.name)
            self.write()
            yield row
        if failed:
            raise CheckFailedError(f"the rules {', '.join(failed)} failed", "figures of all", f"see {self.history}")

    def write(self) -> None:
        """Write the table as Markdown."""
        rows = []
        for rule, row in self.rows():
            known = row or {}
            shown = {name: known.get(name) for name in _FIGURES}
            rows.append({"rule": rule.name, **shown, "error": known.get("error", "" if row else "not tried")})
        path = self.options.output / "research.md"
        with writing(str(path)):
            path.write_text(markdown_table(rows), encoding="utf-8")


def try_rule(rule: Rule, network: Path, client: Client, observer: Observer) -> dict[str, Any]:
    """Remove a network, train it by a rule, evaluate it, and return the figures.

    Memory is that of all workers together, sampled twice a second; of devices, what workers have reserved after
    training and after the evaluation.
    """
    if network.exists():
        shutil.rmtree(network)
    memory, devices, began = MemorySampler(), [], time.perf_counter()
    with memory.sample(JOB, client=client):
        trained = gd.train(**_call(rule.train), network=network, client=client, progress=False, observer=observer)
        seconds = time.perf_counter() - began
        devices.append(sum(ask_workers(client, device_bytes).values()))
        report = trained.evaluate(**_call(rule.evaluate), client=client, progress=False, observer=observer)
        devices.append(sum(ask_workers(client, device_bytes).values()))
    return {
        "commit": trained.commit,
        "top1": report.top1,
        "protocol": report.as_dict()["protocol"],
        "prediction_tokens": report.prediction_tokens,
        "network_bytes": bytes_on_disk(network),
        "training_seconds": round(seconds, 3),
        "peak_memory_bytes": max(nbytes for _, nbytes in memory.samples[JOB]),
        "peak_device_bytes": max(devices),
    }


def summary(row: Mapping[str, Any]) -> list[str]:
    """Return the six lines of a row."""
    if "top1" not in row:
        return [f"rule    {row['rule']}", f"failed  {row['error']}"]
    return [
        f"rule     {row['rule']}",
        f"top-1    {row['top1']:.4f} of {row['prediction_tokens']:,} tokens, {row['protocol']}",
        f"network  {format_bytes(row['network_bytes'])}",
        f"time     {row['training_seconds']:.2f} s of training, {row['seconds']:.2f} s in all",
        f"memory   {format_bytes(row['peak_memory_bytes'])} at most, of all workers",
        f"devices  {format_bytes(row['peak_device_bytes'])}",
    ]


def _call(arguments: Settings) -> dict[str, Any]:
    """Return keyword arguments with the names of inputs as files."""
    return {**arguments, "inputs": Files(arguments["inputs"])}


def _plain(values: Settings) -> dict[str, Any]:
    """Return arguments with tuples instead of the lists of TOML, but for inputs."""
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    inputs = values["inputs"]
    return {**found, "inputs": [inputs] if isinstance(inputs, str) else list(inputs)}


def _fingerprints(call: str, arguments: Settings) -> list[bytes]:
    """Return the fingerprints of the parts of the inputs of a call."""
    arguments = _plain(arguments)
    text = arguments_of(_CALLS[call], arguments).get("text") or TextOptions()
    return [part.fingerprint() for part in read_parts(arguments["inputs"], text.reading)]


def _require_names(table: object, names: Sequence[str] | None, what: str) -> None:
    """Raise an `OptionError` unless something is a table of these names, or of arguments that rules may set."""
    if not isinstance(table, Mapping):
        raise OptionError(f"{what} is {table!r}", "a table of names and values", "write one")
    for name, value in table.items():
        if name not in names if names is not None else name in _TAKEN:
            expected = f"some of {', '.join(names)}" if names else "arguments of the call that the job does not set"
            raise OptionError(f"{what} has {name!r}", expected, "correct the name, or leave it out")
        if names is not None and name in _CALLS:
            _require_names(value, None, name)
