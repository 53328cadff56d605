"""Evaluate the last commit, write a report and check whether accuracy has fallen: ``giaann-dask job weekly``.

Options are in `giaann_dask.cli.jobs`; locks and histories are in `history`, evaluation is in `measuring`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributed import Client

from giaann_dask.api.network import Network
from giaann_dask.events import Observer, ignore
from giaann_dask.storage import read_json_lines
from giaann_dask.workflows.exits import CheckFailedError
from giaann_dask.workflows.job_options import WeeklyOptions
from giaann_dask.workflows.measuring import has_fallen, last_passed, measure

JOB = "weekly"


def work(
    options: WeeklyOptions, entry: dict[str, Any], history: Path, client: Client, observer: Observer = ignore
) -> None:
    """Evaluate, write the report, and compare with the last run that passed on the same text.

    Raises
    ------
    CheckFailedError
        If accuracy fell by more than the tolerance. The report is written nevertheless.
    """
    network = Network(options.network, options.commit)
    measured = measure(network, options.evaluation, client, observer)
    entry |= {"commit": network.commit, "evaluation": measured.figures()}
    name = f"{entry['started'].replace(':', '').replace('+0000', 'Z')}-{network.commit[:8]}.html"
    entry["report"] = str(measured.save(options.reports / name))
    before = last_passed(read_json_lines(history), JOB, measured.identity)
    if before is None:
        return
    earlier = float(before["evaluation"]["top1"])
    entry["before"] = {"commit": before["commit"], "top1": earlier, "started": before["started"]}
    if has_fallen(measured.top1, earlier, options.tolerance) and not options.accept:
        raise CheckFailedError(
            f"top-1 of network {options.network} fell from {earlier:.4f} (commit {before['commit']}) to "
            f"{measured.top1:.4f}",
            f"no more than {options.tolerance:g} less",
            f"see {entry['report']}; accept accepts it as the new reference",
            names=("accept",),
        )
