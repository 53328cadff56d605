"""Define the commands about machines: ``compile``, ``doctor``, and ``cluster``, which starts workers and stops them.

``compile`` compiles numba functions ahead of their first use. Numba caches the compiled code in the folders of the
modules, or in ``NUMBA_CACHE_DIR``. The checks of ``doctor`` are in `giaann_dask.diagnostics.checkup`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from giaann_dask.cli.click_ext import Command, CommandGroup, options_of
from giaann_dask.cli.output import answer, figures, is_json, json_option, log_options, say, show
from giaann_dask.cli.process import stop_on_signals
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    NETWORK_PATH,
    output_options,
    require_cluster,
    running_options,
    silence_dask,
)
from giaann_dask.diagnostics.progress import FunctionsLeft
from giaann_dask.errors import MissingDependencyError
from giaann_dask.registry import PROFILES, Profile
from giaann_dask.representations import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.diagnostics.checkup import Finding
    from giaann_dask.serving.serving_options import ServingOptions

CHECK_FAILED = 3
_PIPE_WIDTH = 160
_MARKS = {"good": "[green]good[/]", "note": "[yellow]note[/]", "bad": "[bold red]bad[/]"}
_LINES = 30
_PROMPT = "The old miller carried the flour"


@click.command("compile", cls=Command)
@click.argument("profiles", nargs=-1, type=click.Choice(PROFILES))
@running_options
@json_option
@log_options
def compile_ahead(profiles: tuple[Profile, ...], cluster: ClusterOptions | None) -> None:
    """Compile code ahead of first use, for all PROFILES or the named ones.

    Run it for every installation. It takes up to two minutes of processor time, once, and saves that time in the first
    training, evaluation and generation. With a scheduler, it runs once on each host of its workers, or once for each
    cache if workers have separate caches; valid caches are skipped. Workers started with
    `dask worker --preload giaann_dask.cluster.compilation` compile themselves.
    """
    if cluster is not None:
        silence_dask()
        _compile_on_workers(profiles, cluster)
        return
    seconds: dict[str, float] = {}
    for profile in profiles or PROFILES:
        started = time.perf_counter()
        with waiting(f"compile {profile}", FunctionsLeft()):
            try:
                _use(profile)
            except MissingDependencyError as error:
                if profiles:
                    raise
                say(f"profile {profile} is not compiled: {error}")
                continue
        seconds[profile] = round(time.perf_counter() - started, 1)
    answer({"seconds": seconds}, figures(seconds, *seconds))


def _compile_on_workers(profiles: tuple[Profile, ...], cluster: ClusterOptions) -> None:
    from giaann_dask.cluster import connect
    from giaann_dask.cluster.compilation import compile_on_workers

    started = time.perf_counter()
    with waiting("compile on the workers"), connect(options=cluster) as client:
        compiled = compile_on_workers(client, profiles)
    counts: dict[str, object] = {"caches": len(compiled), "seconds": round(time.perf_counter() - started, 1)}
    lines = [f"{worker}  {place}" for worker, place in compiled.items()]
    answer({**counts, "workers": compiled}, [*figures(counts, *counts), *lines])


def _use(profile: Profile) -> None:
    """Train, evaluate, continue, compact and hash a network of a profile, in this process.

    What needs no text for that is compiled by two processes before.
    """
    import numba  # noqa: F401 - without it, little is done by functions that are not compiled

    import giaann_dask as gd
    from giaann_dask.cluster.compilation import compile_beside
    from giaann_dask.data import sample_text
    from giaann_dask.models import model_of
    from giaann_dask.store.network_store import NetworkStore
    from giaann_dask.training.maintenance import compact_network

    rule = gd.Specification(profile=profile, regions=2)
    compile_beside(partial(model_of(rule).compile_steps, rule))
    with tempfile.TemporaryDirectory() as folder, gd.connect(workers=0) as client:
        text = Path(folder, "text.txt")
        with sample_text().open(encoding="utf-8") as lines:
            text.write_text("".join(islice(lines, _LINES)), encoding="utf-8")
        options = gd.TrainingOptions(batch_sequences=10, selection=gd.SelectionOptions(order="least-overlap"))
        network = gd.train(text, Path(folder, "net"), client=client, specification=rule, options=options)
        network.evaluate(text, client=client)
        network.generate(_PROMPT, client=client, options=gd.GenerationOptions(max_tokens=2))
        compact_network(client, NetworkStore(network.path))
        network.digest()


@click.command(cls=Command)
@click.option("--network", type=NETWORK_PATH, help="Also check that this network can be read.")
@click.option("--all-runs", is_flag=True, help="Decode all runs of its commit instead of a sample.")
@click.option("--ref", metavar="NAME", help="Check an older commit, tag or branch of the network.")
@running_options
@options_of("serving", "giaann_dask.serving.serving_options.ServingOptions", "Server", only=("port",))
@output_options
def doctor(
    network: Path | None,
    all_runs: bool,
    ref: str | None,
    cluster: ClusterOptions | None,
    serving: ServingOptions,
) -> int:
    """Check this machine, and a network or cluster if given; advise how to fix problems.

    Checks versions, devices, memory, disks, ports and caches, and changes nothing, except that it writes a token into
    the network's writer.lock, which the workers of a cluster read. The exit code is 0 if no check is bad, else 3.
    """
    from giaann_dask.diagnostics.checkup import check_cluster, check_machine, check_network

    if ref is not None and network is None:
        raise click.UsageError("Missing option '--network' beside '--ref'.")
    ports = (("scheduler", 8786), ("dashboard", 8787), ("server", serving.port))
    with waiting("look"):
        findings = list(check_machine(network or Path.cwd(), ports))
        if network is not None:
            findings += check_network(network, all_runs, ref)
        if cluster is not None:
            silence_dask()
            findings += check_cluster(cluster, network)
    bad = sum(finding.status == "bad" for finding in findings)
    values = {"well": not bad, "findings": [finding.as_dict() for finding in findings]}
    if is_json():
        answer(values, [])
    else:
        show(f"{findings_table(findings)}\n{f'{bad} to mend' if bad else 'all is well'}")
    return CHECK_FAILED if bad else 0


def findings_table(findings: Sequence[Finding]) -> str:
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


@click.group(cls=CommandGroup)
@click.option("--storage", type=int, default=2, show_default=True, help="Workers that store columns.")
@click.option("--compute", type=int, default=2, show_default=True, help="Workers that compute.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the scheduler; any free one by default."
)
@click.option("--scheduler-file", type=FILE_PATH, help="Write the address to this file.")
@options_of(
    "options",
    "giaann_dask.cluster.cluster_options.ClusterOptions",
    "Workers",
    only=("threads", "memory_limit", "protocol", "hang_timeout_s", "dashboard"),
    defaults={"dashboard": "127.0.0.1:8787"},
)
@json_option
@log_options
@click.pass_context
def cluster(
    context: click.Context,
    /,
    storage: int,
    compute: int,
    port: int,
    scheduler_file: Path | None,
    options: ClusterOptions,
) -> None:
    """Start a scheduler and workers with roles on this machine, until Ctrl-C.

    Other commands use it with --scheduler or --scheduler-file. On other machines, workers join with
    `dask worker ADDRESS --resources "storage=1"` or `"compute=1"`.
    """
    if context.invoked_subcommand is not None:
        return
    from distributed import Client

    from giaann_dask.cluster import start_cluster
    from giaann_dask.diagnostics.monitoring.reporter import add_monitoring
    from giaann_dask.storage import require_writable, write_file

    if scheduler_file is not None:
        require_writable(scheduler_file)
    with stop_on_signals("stopping the cluster") as stop, ExitStack() as resources:
        with waiting(f"start {storage + compute} workers"):
            started = resources.enter_context(start_cluster({"storage": storage, "compute": compute}, options, port))
        with Client(started.scheduler_address, timeout=options.connect_timeout_s) as client:
            add_monitoring(client)
        ready = {"scheduler": started.scheduler_address, "dashboard": started.dashboard_link}
        if scheduler_file is not None:
            # Written atomically, as other processes wait for the file.
            write_file(scheduler_file, json.dumps({"address": started.scheduler_address}), "the scheduler file")
        answer(ready)
        # In short intervals, so that signals are handled, or until ``cluster stop`` is run.
        while started.scheduler.status.name == "running" and not stop.wait(0.5):
            pass
        if not stop.is_set():
            # Closing would ask it to end, and wait 30 seconds for it to answer.
            started.sync(started.scheduler.finished)
            started.shutdown_scheduler = False
    if scheduler_file is not None:
        scheduler_file.unlink(missing_ok=True)


@cluster.command("stop")
@running_options
@json_option
@log_options
def stop_cluster(cluster: ClusterOptions | None) -> None:
    """Stop a running scheduler and its workers, on whatever machines they are.

    For processes that were started by hand, or left by an SSHCluster whose client died. Work in progress is lost;
    commits are kept.
    """
    from giaann_dask.cluster import connect

    options = require_cluster(cluster)
    with waiting("stop the cluster"):
        client = connect(options=options, same_versions=False)
        stopped = {
            "scheduler": client.scheduler.address,
            "workers": len(client.scheduler_info(n_workers=-1)["workers"]),
        }
        client.shutdown()
    answer(stopped)
