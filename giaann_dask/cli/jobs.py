"""Define the commands ``giaann-dask job``, which cron, systemd timers and the like run.

Each reads its options from the command line, the environment and a TOML file, in this order of precedence. Every
option ``--some-name`` is also ``GIAANN_SOME_NAME`` in the environment and ``some-name`` in the TOML file, in the table
that has the name of the job (``[nightly]``), or in ``[common]``, which applies to all jobs. Unknown names are refused.

The work is in `giaann_dask.workflows`. Exit codes: 0 done, 2 bad input, 3 a check failed, 75 try again later (no
cluster, another job, disk full); all are in docs/how-to/workflows.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.click_ext import FILE_FIELDS, PLAIN, Command, Group, Items, options_of, section, without_dashes
from giaann_dask.cli.output import answer, figures, is_json, say
from giaann_dask.cli.process import stop_on_signals
from giaann_dask.cli.progress import event_log, events_option, progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    NETWORK_PATH,
    as_files,
    dense_options,
    network_options,
    new_text_options,
    output_options,
    prepared,
    read_specification,
    read_toml,
    text_options,
    training_options,
)
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import GiaannError, OptionError
from giaann_dask.workflows.exits import BAD_INPUT, message_of, status_of

_NETWORK = click.option("--network", required=True, type=NETWORK_PATH, help="Folder or URL of the network.")
_job = section("Job")
_OPTIONS = "giaann_dask.workflows.job_options."
_HISTORY = _job("--history", type=FILE_PATH, help="File of JSON lines.  [default: NETWORK.history.jsonl]")
_WAIT = options_of("waits", "giaann_dask.workflows.history.recorded", "Job", only=("wait_s",))
_SEQUENCES = _job("--evaluate-sequences", type=int, metavar="N", help="Evaluate at most N sentences.")
_TEXT: dict[str, Any] = {"multiple": True, "metavar": "INPUT", "callback": as_files}
# Table of the file that applies to all jobs.
COMMON = "common"
# How alike the name of a table and that of a job are at least, so that one is suggested for the other.
_ALIKE = 0.5


class JobCommand(Command):
    """A command that a scheduler runs, with a table in the file of settings and exit codes of its own."""

    def _expanded(self) -> list[click.Parameter]:
        """Return the parameters, options with variables of the environment."""
        found = super()._expanded()
        for option in found:
            if isinstance(option, click.Option) and option.envvar is None:
                option.envvar = "GIAANN_" + without_dashes(option).replace("-", "_").upper()
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the job; return its exit code after errors that a scheduler treats otherwise than bad input."""
        try:
            return super().invoke(ctx)
        except GiaannError as error:
            if status_of(error) == BAD_INPUT:
                raise
            say(message_of(error))
            return status_of(error)


def job_command(name: str) -> Callable[[Callable[..., Any]], JobCommand]:
    """Return a decorator that makes a function with options a job.

    Parameters
    ----------
    name : str
        Name of the command, and of its table in the TOML file.
    """

    def decorate(function: Callable[..., Any]) -> JobCommand:
        dry = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
        config = click.option(
            "--config",
            type=FILE_PATH,
            is_eager=True,
            expose_value=False,
            callback=_read_config,
            help="TOML file with settings, which options and the environment override.",
        )
        return click.command(name, cls=JobCommand)(config(dry(function)))

    return decorate


def read_tables(path: Path, jobs: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file.

    Parameters
    ----------
    path : Path
        The file.
    jobs : collection of str
        Names of all jobs.

    Raises
    ------
    InputMissingError, InputFormatError
        If it cannot be read, or is not TOML.
    OptionError
        If it has a table that belongs to no job, or settings outside of a table.
    """
    tables = read_toml(path, "--config")
    known = (COMMON, *jobs)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise OptionError(f"{path} has {name!r}", f"tables {', '.join(known)}", "move it into one of these")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=_ALIKE)
            remedy = f"name it [{near[0]}]" if near else "name it as its job"
            raise OptionError(f"{path} has the table {name!r}", f"tables {', '.join(known)}", remedy)
    return tables


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use settings of a TOML file as the defaults of a command."""
    if path is None:
        return
    assert isinstance(context.command, JobCommand)
    assert context.parent is not None
    assert isinstance(context.parent.command, click.Group)
    tables, table = read_tables(path, context.parent.command.commands), str(context.command.name)
    options = {without_dashes(option): option for option in context.command.params if isinstance(option, click.Option)}
    chosen: dict[str, Any] = {}
    for where in (COMMON, table):
        for name, value in tables.get(where, {}).items():
            option = options.get(name)
            if option is not None:
                chosen[str(option.name)] = _as_given(option, value, path)
            elif where == table:
                near = difflib.get_close_matches(name, options, 1)
                raise OptionError(
                    f"{path} has {name!r} in [{table}]",
                    "an option of the job without its dashes" + (f", such as {near[0]}" if near else ""),
                    "correct it, or see --help",
                )
    context.default_map = chosen


def _as_given(option: click.Option, value: Any, path: Path) -> Any:
    """Return a value of the file as the command line would give it: as text, but for flags."""
    name = without_dashes(option)
    if isinstance(value, list) and isinstance(option.type, Items):
        return ",".join(_text(part, name, path) for part in value)
    if option.multiple:
        return [_text(part, name, path) for part in (value if isinstance(value, list) else [value])]
    if isinstance(value, bool) and (option.is_flag or option.count):
        return value
    return _text(value, name, path)


def _text(value: Any, name: str, path: Path) -> str:
    """Return one value of the file as text."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    kinds = {list: "a list", dict: "a table", bool: str(value).lower()}
    raise OptionError(f"{path} has {kinds.get(type(value), 'a time')} for {name}", "a text or a number", "name one")


@click.group(cls=Group)
def job() -> None:
    """Run a job of a scheduler: train every night, evaluate every week, copy a network.

    Settings are options, environment variables (GIAANN_NETWORK for --network) or a TOML file (--config).
    """


@job_command("nightly")
@click.option("--text", "inputs", required=True, **_TEXT, help="Folder or URL to train on; repeatable.")
@click.option("--network", required=True, type=NETWORK_PATH, help="Folder or URL of the network, new or not.")
@click.option("--evaluate", **_TEXT, help="Held-out text to evaluate on; repeatable.")
@_SEQUENCES
@options_of("options", _OPTIONS + "NightlyOptions", "Job", without=("keep_commits",), partial=True)
@_HISTORY
@_WAIT
@network_options
@training_options()
@events_option
@new_text_options
@dense_options
def nightly(network: Path, inputs: tuple[str, ...], evaluate: tuple[str, ...], **values: Any) -> None:
    """Train the new files of a folder, evaluate, and delete old commits (--keep-commits).

    Files are identified by content: a renamed or copied file is not trained again, an edited file is new text from the
    first changed part on. A killed run resumes from its last commit.
    """
    where = prepared(values["cluster"])
    from giaann_dask.cluster import connect
    from giaann_dask.workflows.history import history_of, recorded
    from giaann_dask.workflows.job_options import Measure
    from giaann_dask.workflows.recurring import plan, train_nightly

    text, training = values["text"], values["training"]
    measured = Measure(inputs=evaluate, text=text, max_sequences=values["evaluate_sequences"])
    options = values["options"](
        training=replace(training, keep_commits=None),
        specification=read_specification(network, values),
        evaluation=measured if evaluate else None,
        keep_commits=training.keep_commits,
    )
    if values["dry_run"]:
        found = {"network": str(network), "dry_run": True, **plan(options).as_dict()}
        answer(found)
        return
    history = history_of(network, values["history"])
    workload = Workload(inputs, text.reading)
    with (
        recorded("nightly", network, history, **values["waits"]) as entry,
        connect(options=where) as client,
        progress(workload) as observer,
        stop_on_signals() as stop,
    ):
        train_nightly(options, entry, client, event_log(values["events"], observer), stop)
    answer(entry)


@job_command("weekly")
@_NETWORK
@click.option("--evaluate", required=True, **_TEXT, help="Held-out text; repeatable.")
@_SEQUENCES
@options_of("options", _OPTIONS + "WeeklyOptions", "Job", only=("tolerance", "accept"), partial=True)
@_job("--ref", "commit", metavar="NAME", help="Evaluate an older commit, tag or branch.")
@_job("--reports", type=FILE_PATH, help="Folder for the pages.  [default: NETWORK.reports]")
@_HISTORY
@_WAIT
@text_options
@dense_options
def weekly(network: Path, evaluate: tuple[str, ...], **values: Any) -> None:
    """Evaluate a network, write a report, and check that it has not become worse.

    Top-1 is compared with that of the last run that passed on the same text; failed runs do not count, so the job fails
    until the network is better or --accept is given.
    """
    where = prepared(values["cluster"])
    from giaann_dask.api.network import Network
    from giaann_dask.cluster import connect
    from giaann_dask.storage import read_json_lines
    from giaann_dask.workflows.history import beside, history_of, recorded
    from giaann_dask.workflows.job_options import Measure
    from giaann_dask.workflows.recurring import WEEKLY, check_weekly, last_passed

    text = values["text"]
    options = values["options"](
        evaluation=Measure(inputs=evaluate, text=text, max_sequences=values["evaluate_sequences"]),
        reports=values["reports"] or beside(network, ".reports"),
    )
    history = history_of(network, values["history"])
    # What is not there is bad input before anything is written.
    commit, identity = Network(network, options.commit).commit, options.evaluation.identity()
    if values["dry_run"]:
        before = last_passed(read_json_lines(history), WEEKLY, identity)
        compared = before and before["commit"]
        found = {"network": str(network), "dry_run": True, "commit": commit, "compared_with": compared}
        answer(found)
        return
    workload = Workload(evaluate, text.reading)
    with (
        recorded(WEEKLY, network, history, **values["waits"]) as entry,
        connect(options=where) as client,
        progress(workload) as observer,
    ):
        check_weekly(options, entry, history, client, observer)
    # That nothing was compared should not look like a check that was passed.
    shown = entry if "before" in entry else {**entry, "before": "no earlier run on this text that passed"}
    answer(entry, figures(shown, *shown))


@job_command("backup")
@click.option("--network", required=True, type=NETWORK_PATH, metavar="PLACE",
              help="The network: a folder or a URL.")  # fmt: skip
@click.option("--to", "destination", required=True, type=NETWORK_PATH, metavar="PLACE",
              help="The copies: a folder or a URL.")  # fmt: skip
@_job("--ref", "commit", metavar="NAME", help="Copy an older commit, tag or branch.")
@click.option("--keep", type=int, metavar="N", help="Delete all but the last N copies.")
@_HISTORY
@_WAIT
@output_options
def backup(network: Path, destination: Path, **values: Any) -> None:
    """Copy a commit to another place and verify the copy.

    The copy is a network that every command can read; a later copy writes only new data. An incomplete copy is not
    visible. To restore, exchange source and destination.
    """
    from giaann_dask.store.backup import copy_commit
    from giaann_dask.store.places import StorePlace, answering
    from giaann_dask.workflows.history import history_of, recorded

    source, target = StorePlace(str(network)), StorePlace(str(destination))
    # The lock and the history are written next to the one that is a folder.
    near = source.folder or target.folder or Path("backup")
    with answering():
        source.repository()
    if values["dry_run"]:
        with answering():
            there = target.exists()
        found = {"network": str(network), "to": str(destination), "dry_run": True, "copies_there": there}
        answer(found)
        return
    with recorded("backup", near, history_of(near, values["history"]), **values["waits"]) as entry, waiting("copy"):
        entry |= {"network": str(network), "to": str(destination)}
        entry["copied"] = copy_commit(source, target, values["commit"], values["keep"]).as_dict()
    shown = {**entry, **entry["copied"]}
    answer(entry, figures(shown, "network", "to", *entry["copied"], "seconds"))


@job_command("compare")
@click.option("--train", required=True, **_TEXT, help="Text to train on; repeatable.")
@click.option("--evaluate", required=True, **_TEXT, help="Text to evaluate on; repeatable.")
@options_of(
    "options",
    _OPTIONS + "ComparisonOptions",
    PLAIN,
    only=("sizes", "profiles", "tagger", "seed_tokens"),
    partial=True,
)
@click.option("--output", required=True, type=FILE_PATH, help="Folder for networks, tables and plot.")
@dense_options
def compare(output: Path, **values: Any) -> None:
    """Compare profiles by the amount of training text: a table and a plot.

    Each is trained on the first sentences of a text and evaluated on another, and compared with n-grams of the same
    tokens. Existing networks are not trained again.
    """
    where = prepared(values["cluster"], default=1)
    from giaann_dask.workflows import comparing

    options = values["options"](where=where)
    if values["dry_run"]:
        found = {"output": str(output), "networks": [f"{name}-{size}" for name, size in options.networks()]}
        answer(found)
        return
    with progress() as observer:
        rows = comparing.compare(options, observer)
    table = comparing.write(rows, output)
    answer({"rows": [asdict(row) for row in rows]}, table.splitlines())


@job_command("research")
@click.argument("rules", metavar="CONFIG", type=FILE_PATH)
@click.option("--output", type=FILE_PATH, help="Folder for table and network.  [default: CONFIG without its suffix]")
@dense_options
def research(rules: Path, output: Path | None, **values: Any) -> None:
    """Compare rules: train and evaluate with each on the same text, and write a table.

    CONFIG is a TOML file with the tables train and evaluate, and with rules or a grid that vary them. Rules with
    figures in the table are not run again.
    """
    where = prepared(values["cluster"])
    from giaann_dask.cluster import connect
    from giaann_dask.workflows.research import Research, ResearchOptions, summary

    tables = read_toml(rules, "CONFIG")
    known = [each.name for each in fields(ResearchOptions) if each.name != "output"]
    for name in sorted({*tables} - {*known}):
        raise OptionError(f"{rules} has {name!r}", f"the tables {', '.join(known)}", "correct the name")
    for name in sorted({"train", "evaluate"} - {*tables}):
        raise OptionError(f"{rules} has no table {name!r}", f"the tables {', '.join(known)}", "add it")
    click.get_current_context().meta[FILE_FIELDS] = _names_in(tables)
    options = ResearchOptions(**tables, output=output or rules.with_suffix(""))
    found = Research.of(options)
    if values["dry_run"]:
        waiting = {"output": str(options.output), "dry_run": True, "rules": [rule.name for rule, _ in found.waiting()]}
        answer(waiting)
        return
    with connect(options=where) as client, progress() as observer:
        for row in found.run(client, observer):
            if not is_json():
                answer(row, summary(row))
    if is_json():
        answer({"rows": [row for _, row in found.rows()]}, [])


def _names_in(value: object) -> set[str]:
    """Return the names in a table of a file, which errors write as the file does, and in the tables inside it."""
    if isinstance(value, dict):
        return {*value}.union(*map(_names_in, value.values()))
    return set[str]().union(*map(_names_in, value)) if isinstance(value, list) else set()


for command in (nightly, weekly, backup, compare, research):
    job.add_command(command)
