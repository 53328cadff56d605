"""Train new files of a folder, evaluate on held-out text, keep the last commits, write a line of history.

A file is new by its content: one that was renamed or copied is not trained again, one that was changed is new text
from the first changed part on. A run that was killed goes on where its last commit was. More is in
docs/how-to/workflows.md.
Exit codes: 0 done, 2 bad input, 3 accuracy too low, 75 try again later (no cluster, another run, disk full).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.event_files import round_log
from giaann_dask.cli.options import cluster_options, common_options, ever_pos_option, read_text_options, text_options
from giaann_dask.cli.progress import Workload, progress
from giaann_dask.cli.showing import answer, figures
from giaann_dask.cli.specification_options import read_specification
from giaann_dask.cli.stopping import stop_on_signals
from giaann_dask.cli.training_options import read_training_options, training_options
from giaann_dask.workflows.exits import run_script
from giaann_dask.workflows.settings import job_command


@job_command("train-nightly")
@click.option("--text", "inputs", multiple=True, required=True, metavar="INPUT", help="Folder to train on; repeatable.")
@click.option("--network", required=True, type=click.Path(path_type=Path), help="Folder of the network, new or not.")
@click.option("--evaluate", multiple=True, metavar="INPUT", help="Held-out text to evaluate on; repeatable.")
@click.option("--evaluate-sequences", type=int, metavar="N", help="Evaluate no more than N sentences.")
@click.option("--least-top1", type=float, default=0.0, metavar="SHARE", help="Exit with code 3 below this.")
@click.option("--settle", type=float, default=60.0, show_default=True, metavar="SECONDS",
              help="Leave files that were changed in the last SECONDS for the next run.")  # fmt: skip
@click.option("--skip-unreadable", is_flag=True, help="Leave out files that cannot be read instead of failing.")
@click.option(
    "--max-seconds", type=float, metavar="SECONDS", help="Commit and stop after so long; continue the next night."
)
@click.option(
    "--history", type=click.Path(path_type=Path), help="File of JSON lines.  [default: NETWORK.history.jsonl]"
)
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait so long for another run to end.")
@training_options
@text_options
@ever_pos_option
@common_options
def train_nightly(network: Path, inputs: tuple[str, ...], evaluate: tuple[str, ...], **values: Any) -> None:
    """Train the new files of a folder, evaluate, and delete old commits (--keep-commits)."""
    where = cluster_options(values)
    from giaann_dask.cluster import connect
    from giaann_dask.workflows.history import history_of, recorded
    from giaann_dask.workflows.measuring import Measure
    from giaann_dask.workflows.nightly import NightlyOptions, plan, work

    text = read_text_options(values, values["ever_pos"])
    options = NightlyOptions(
        inputs=inputs,
        network=network,
        text=text,
        training=read_training_options({**values, "keep_commits": None}),
        specification=read_specification(network, values),
        evaluation=Measure(inputs=evaluate, text=text, maximum_sequences=values["evaluate_sequences"])
        if evaluate
        else None,
        least_top1=values["least_top1"],
        settle_s=values["settle"],
        skip_unreadable=values["skip_unreadable"],
        keep_commits=values["keep_commits"],
        maximum_s=values["max_seconds"],
    )
    if values["dry_run"]:
        found = {"network": str(network), "dry_run": True, **plan(options).as_dict()}
        answer(found, values["as_json"], figures(found, *found))
        return
    history = history_of(network, values["history"])
    workload = Workload(inputs, values["text_field"])
    with (
        recorded("train_nightly", network, history, values["wait"]) as entry,
        connect(options=where) as client,
        progress(workload) as observer,
        stop_on_signals() as stop,
    ):
        work(options, entry, client, round_log(values["rounds"], observer), stop)
    answer(entry, values["as_json"], figures(entry, *entry))


if __name__ == "__main__":
    sys.exit(run_script(train_nightly))
