"""Evaluate the last commit, write a report and check whether accuracy has fallen: ``giaann-dask job weekly``.

Options are in `giaann_dask.cli.jobs`; locks and histories are in `history`, evaluation is in `measuring`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from giaann_dask.api.network import Network
from giaann_dask.errors import parameter, require_option
from giaann_dask.events import Observer, ignore
from giaann_dask.storage import read_json_lines, require_local
from giaann_dask.workflows.exits import CheckFailedError
from giaann_dask.workflows.measuring import Measure, has_fallen, last_passed, measure

JOB = "weekly"


@dataclass(frozen=True, kw_only=True)
class WeeklyOptions:
    """Text, report folder and tolerance of a weekly evaluation.

    Parameters
    ----------
    network : Path
        Folder of the network.
    evaluation : Measure
        What to evaluate.
    reports : Path
        Folder for the pages.
    tolerance : float
        By how much top-1, a share from 0 to 1, may fall.
    accept : bool
        Whether to accept the accuracy as the new reference, however far it fell.
    commit : str, optional
        The commit; the last one by default.

    Raises
    ------
    OptionError
        If the tolerance is out of range.
    """

    network: Path
    evaluation: Measure
    reports: Path
    tolerance: float = 0.01
    accept: bool = False
    commit: str | None = None

    def __post_init__(self) -> None:
        require_local(self.reports)
        require_option(0 <= self.tolerance <= 1, "tolerance", self.tolerance, "a share from 0 to 1")


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
            f"see {entry['report']}; {parameter('accept')} accepts it as the new reference",
        )
