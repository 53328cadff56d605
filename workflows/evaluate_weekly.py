"""Evaluate the last commit of a network, write a report, and exit with code 3 when accuracy has fallen.

Top-1 is compared with that of the last run that passed on the same text; failed runs do not count, so the
alarm stays until the network is better or --accept is given. See docs/how-to/workflows.md.
Exit codes: 0 done, 2 bad input, 3 accuracy fell, 75 try again later (no cluster, another run, disk full).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.options import cluster_options, common_options, read_text_options, text_options
from giaann_dask.cli.progress import Workload, progress
from giaann_dask.cli.showing import answer, figures
from giaann_dask.workflows.exits import run_script
from giaann_dask.workflows.settings import job_command


@job_command("evaluate-weekly")
@click.option("--network", required=True, type=click.Path(path_type=Path), help="Folder of the network.")
@click.option("--evaluate", multiple=True, required=True, metavar="INPUT", help="Held-out text; repeatable.")
@click.option("--evaluate-sequences", type=int, metavar="N", help="Evaluate no more than N sentences.")
@click.option("--tolerance", type=float, default=0.01, show_default=True, metavar="SHARE",
              help="By how much top-1 (0 to 1) may fall.")  # fmt: skip
@click.option("--accept", is_flag=True, help="Accept the accuracy as the new reference.")
@click.option("--commit", help="Evaluate an older commit.")
@click.option("--reports", type=click.Path(path_type=Path), help="Folder for the pages.  [default: NETWORK.reports]")
@click.option(
    "--history", type=click.Path(path_type=Path), help="File of JSON lines.  [default: NETWORK.history.jsonl]"
)
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait so long for another run to end.")
@text_options
@common_options
def evaluate_weekly(network: Path, evaluate: tuple[str, ...], **values: Any) -> None:
    """Evaluate a network, write a report, and check that it has not become worse."""
    where = cluster_options(values)
    from giaann_dask import Network
    from giaann_dask.cluster import connect
    from giaann_dask.workflows.history import history_of, read_lines, recorded
    from giaann_dask.workflows.measuring import Measure, last_passed
    from giaann_dask.workflows.weekly import JOB, WeeklyOptions, work

    text = read_text_options(values)
    options = WeeklyOptions(
        network=network,
        evaluation=Measure(inputs=evaluate, text=text, maximum_sequences=values["evaluate_sequences"]),
        reports=values["reports"] or network.with_name(network.name + ".reports"),
        tolerance=values["tolerance"],
        accept=values["accept"],
        commit=values["commit"],
    )
    history = history_of(network, values["history"])
    # What is not there is bad input before anything is written.
    commit, identity = Network(network, options.commit).commit, options.evaluation.identity()
    if values["dry_run"]:
        before = last_passed(read_lines(history), JOB, identity)
        found = {
            "network": str(network),
            "dry_run": True,
            "commit": commit,
            "compared_with": before and before["commit"],
        }
        answer(found, values["as_json"], figures(found, *found))
        return
    workload = Workload(evaluate, values["text_field"])
    with (
        recorded(JOB, network, history, values["wait"]) as entry,
        connect(options=where) as client,
        progress(workload) as observer,
    ):
        work(options, entry, history, client, observer)
    # That nothing was compared should not look like a check that was passed.
    shown = entry if "before" in entry else {**entry, "before": "no earlier run on this text that passed"}
    answer(entry, values["as_json"], figures(shown, *shown))


if __name__ == "__main__":
    sys.exit(run_script(evaluate_weekly))
