"""Define the commands ``giaann-dask job``, which cron, systemd timers and the like run.

Each reads its options from the command line, the environment or a TOML file (`job_settings`); the work is in
`giaann_dask.workflows`. Exit codes: 0 done, 2 bad input, 3 a check failed, 75 try again later (no cluster, another
job, disk full); all are in docs/how-to/workflows.md.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.click_ext import Group, section
from giaann_dask.cli.dataclass_options import PLAIN, options_of
from giaann_dask.cli.event_files import round_log, rounds_option
from giaann_dask.cli.job_settings import job_command
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import Workload, progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    NETWORK_PATH,
    as_files,
    dense_options,
    new_text_options,
    output_options,
    prepared,
    read_toml,
    text_options,
    training_options,
)
from giaann_dask.cli.specification_options import network_options, read_specification
from giaann_dask.cli.stopping import stop_on_signals
from giaann_dask.errors import OptionError

_NETWORK = click.option("--network", required=True, type=NETWORK_PATH, help="Folder or URL of the network.")
_job = section("Job")
_OPTIONS = "giaann_dask.workflows.job_options."
_HISTORY = _job("--history", type=FILE_PATH, help="File of JSON lines.  [default: NETWORK.history.jsonl]")
_WAIT = _job("--wait-s", type=float, default=0.0, metavar="SECONDS", help="Wait so long for another job to end.")
_SEQUENCES = _job("--evaluate-sequences", type=int, metavar="N", help="Evaluate no more than N sentences.")
_TEXT: dict[str, Any] = {"multiple": True, "metavar": "INPUT", "callback": as_files}


@click.group(cls=Group)
def job() -> None:
    """Run a job of a scheduler: train every night, evaluate every week, copy a network.

    Settings are options, variables of the environment (GIAANN_NETWORK for --network) or a TOML file (--config).
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
@rounds_option
@new_text_options
@dense_options
def nightly(network: Path, inputs: tuple[str, ...], evaluate: tuple[str, ...], **values: Any) -> None:
    """Train the new files of a folder, evaluate, and delete old commits (--keep-commits).

    A file is new by its content: one that was renamed or copied is not trained again, one that was changed is new
    text from the first changed part on. A run that was killed continues from its last commit.
    """
    where = prepared(values["cluster"])
    from giaann_dask.cluster import connect
    from giaann_dask.workflows.history import history_of, recorded
    from giaann_dask.workflows.job_options import Measure
    from giaann_dask.workflows.nightly import plan, work

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
        answer(found, values["as_json"], figures(found, *found))
        return
    history = history_of(network, values["history"])
    workload = Workload(inputs, text.reading.text_field)
    with (
        recorded("nightly", network, history, values["wait_s"]) as entry,
        connect(options=where) as client,
        progress(workload) as observer,
        stop_on_signals() as stop,
    ):
        work(options, entry, client, round_log(values["rounds"], observer), stop)
    answer(entry, values["as_json"], figures(entry, *entry))


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

    Top-1 is compared with that of the last run that passed on the same text; failed runs do not count, so the
    alarm stays until the network is better or --accept is given.
    """
    where = prepared(values["cluster"])
    from giaann_dask.api.network import Network
    from giaann_dask.cluster import connect
    from giaann_dask.storage import read_json_lines
    from giaann_dask.workflows.history import beside, history_of, recorded
    from giaann_dask.workflows.job_options import Measure
    from giaann_dask.workflows.measuring import last_passed
    from giaann_dask.workflows.weekly import JOB, work

    text = values["text"]
    options = values["options"](
        evaluation=Measure(inputs=evaluate, text=text, max_sequences=values["evaluate_sequences"]),
        reports=values["reports"] or beside(network, ".reports"),
    )
    history = history_of(network, values["history"])
    # What is not there is bad input before anything is written.
    commit, identity = Network(network, options.commit).commit, options.evaluation.identity()
    if values["dry_run"]:
        before = last_passed(read_json_lines(history), JOB, identity)
        compared = before and before["commit"]
        found = {"network": str(network), "dry_run": True, "commit": commit, "compared_with": compared}
        answer(found, values["as_json"], figures(found, *found))
        return
    workload = Workload(evaluate, text.reading.text_field)
    with (
        recorded(JOB, network, history, values["wait_s"]) as entry,
        connect(options=where) as client,
        progress(workload) as observer,
    ):
        work(options, entry, history, client, observer)
    # That nothing was compared should not look like a check that was passed.
    shown = entry if "before" in entry else {**entry, "before": "no earlier run on this text that passed"}
    answer(entry, values["as_json"], figures(shown, *shown))


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

    The copy is a network that every command reads; a later copy writes only what is new. An incomplete copy is not
    visible. With source and destination exchanged, it restores.
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
        answer(found, values["as_json"], figures(found, *found))
        return
    with recorded("backup", near, history_of(near, values["history"]), values["wait_s"]) as entry, waiting("copy"):
        entry |= {"network": str(network), "to": str(destination)}
        entry["copied"] = copy_commit(source, target, values["commit"], values["keep"]).as_dict()
    shown = {**entry, **entry["copied"]}
    answer(entry, values["as_json"], figures(shown, "network", "to", *entry["copied"], "seconds"))


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
    """Compare profiles by the amount of text they were trained on: a table and a plot.

    Each is trained on the first sentences of a text and evaluated on another, beside n-grams of the same tokens.
    Networks that exist already are not trained again.
    """
    where = prepared(values["cluster"], default=1)
    from giaann_dask.workflows import comparing

    options = values["options"](where=where)
    if values["dry_run"]:
        found = {"output": str(output), "networks": [f"{name}-{size}" for name, size in options.networks()]}
        answer(found, values["as_json"], figures(found, *found))
        return
    with progress() as observer:
        rows = comparing.compare(options, observer)
    table = comparing.write(rows, output)
    answer({"rows": [asdict(row) for row in rows]}, values["as_json"], table.splitlines())


@job_command("research")
@click.argument("rules", metavar="CONFIG", type=FILE_PATH)
@click.option("--output", type=FILE_PATH, help="Folder for table and network.  [default: CONFIG without its suffix]")
@dense_options
def research(rules: Path, output: Path | None, **values: Any) -> None:
    """Compare rules: train and evaluate by each on the same text, and keep a table.

    CONFIG is a TOML file with the tables train and evaluate, and with rules or a grid that vary them. Rules that have
    figures in the table are not tried again.
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
    options = ResearchOptions(**tables, output=output or rules.with_suffix(""))
    found = Research.of(options)
    if values["dry_run"]:
        waiting = {"output": str(options.output), "dry_run": True, "rules": [rule.name for rule, _ in found.waiting()]}
        answer(waiting, values["as_json"], figures(waiting, *waiting))
        return
    with connect(options=where) as client, progress() as observer:
        for row in found.run(client, observer):
            if not values["as_json"]:
                answer(row, False, summary(row))
    if values["as_json"]:
        answer({"rows": [row for _, row in found.rows()]}, True, [])


for command in (nightly, weekly, backup, compare, research):
    job.add_command(command)
