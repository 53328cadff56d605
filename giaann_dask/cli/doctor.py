"""Define the command ``giaann-dask doctor``, which checks a machine, a network and a cluster.

The checks are in `giaann_dask.diagnostics.findings` and `giaann_dask.diagnostics.checkup`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from giaann_dask.cli.click_ext import Command, section
from giaann_dask.cli.dataclass_options import options_of
from giaann_dask.cli.output import answer, show
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import NETWORK_PATH, output_options, silence_dask
from giaann_dask.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from giaann_dask.diagnostics.findings import Finding
    from giaann_dask.serving.serving_options import ServingOptions

CHECK_FAILED = 3
_PIPE_WIDTH = 160
_MARKS = {"good": "[green]good[/]", "note": "[yellow]note[/]", "bad": "[bold red]bad[/]"}


@click.command(cls=Command)
@click.option("--network", type=NETWORK_PATH, help="Also check whether this network can be read.")
@click.option("--all-runs", is_flag=True, help="Decode all runs of its commit instead of a sample.")
@click.option("--ref", metavar="NAME", help="Check an older commit, tag or branch of the network.")
@section("Cluster")("--scheduler", metavar="ADDRESS", help="Also check the cluster of this scheduler.")
@section("Cluster")("--scheduler-file", metavar="FILE", help="Likewise, of the scheduler that wrote this file.")
@options_of("serving", "giaann_dask.serving.serving_options.ServingOptions", "Server", only=("port",))
@output_options
def doctor(
    network: Path | None,
    all_runs: bool,
    ref: str | None,
    scheduler: str | None,
    scheduler_file: str | None,
    serving: ServingOptions,
    as_json: bool,
) -> int:
    """Check this machine, and a network or cluster if given; advise how to fix what is wrong.

    Checks versions, devices, memory, disks, ports and caches, and changes nothing, except that it writes a token into
    the network's writer.lock, which the workers of a cluster read. The exit code is 0 when nothing is bad, else 3.
    """
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.diagnostics.checkup import check_cluster, check_network
    from giaann_dask.diagnostics.findings import check_machine

    if ref is not None and network is None:
        raise click.UsageError("Missing option '--network' beside '--ref'.")
    options = ClusterOptions(scheduler=scheduler, scheduler_file=scheduler_file)
    named = scheduler is not None or scheduler_file is not None
    ports = (("scheduler", 8786), ("dashboard", 8787), ("server", serving.port))
    with waiting("look"):
        findings = list(check_machine(network or Path.cwd(), ports))
        if network is not None:
            findings += check_network(network, all_runs, ref)
        if named:
            silence_dask()
            findings += check_cluster(options, network)
    bad = sum(finding.status == "bad" for finding in findings)
    values = {"well": not bad, "findings": [finding.as_dict() for finding in findings]}
    if as_json:
        answer(values, True, [])
    else:
        show(f"{_table(findings)}\n{f'{bad} to mend' if bad else 'all is well'}")
    return CHECK_FAILED if bad else 0


def _table(findings: Sequence[Finding]) -> str:
    """Return findings as a table for the terminal, or for a file."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        shown = [escape(printable(text)) for text in (finding.check, finding.found, finding.remedy)]
        table.add_row(shown[0], _MARKS[finding.status], *shown[1:])
    # In a file or a pipe, lines can have any length.
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    with console.capture() as printed:
        console.print(table)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())
