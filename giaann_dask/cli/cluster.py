"""Define the commands about workers and the runs of a network: ``cluster``, ``persist``, ``unpersist``, ``compact``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, CommandGroup, options_of, section
from giaann_dask.cli.output import answer, figures, log_options
from giaann_dask.cli.process import stop_on_signals
from giaann_dask.cli.progress import progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    LOCAL,
    NETWORK,
    NETWORK_PATH,
    common_options,
    json_option,
    output_options,
    prepared,
    running_options,
)
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from giaann_dask.cluster import ClusterOptions

_output = section("Output and logging")


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
@_output("--json", "as_json", is_flag=True, help="Print one JSON object when the cluster is ready.")
@log_options
@click.pass_context
def cluster(
    context: click.Context,
    /,
    storage: int,
    compute: int,
    port: int,
    scheduler_file: Path | None,
    as_json: bool,
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
        answer(ready, as_json, figures(ready, *ready))
        # In short intervals, so that signals are handled, or until ``cluster stop`` is run.
        while started.scheduler.status.name == "running" and not stop.wait(0.5):
            pass
    if scheduler_file is not None:
        scheduler_file.unlink(missing_ok=True)


def _required(cluster: ClusterOptions | None) -> ClusterOptions:
    """Return the options that name a running cluster.

    Raises
    ------
    OptionError
        If none is named.
    """
    if cluster is None:
        raise OptionError("no scheduler is named", "that of a running cluster", "give --scheduler or --scheduler-file")
    return cluster


@cluster.command("stop")
@running_options
@json_option
@log_options
def stop_cluster(cluster: ClusterOptions | None, as_json: bool) -> None:
    """Stop a running scheduler and its workers, on whatever machines they are.

    For processes that were started by hand, and those that an SSHCluster has left behind, whose client died. Work in
    progress is lost, what networks have committed is not.
    """
    from giaann_dask.cluster import connect

    options = _required(cluster)
    with waiting("stop the cluster"):
        client = connect(options=options, same_versions=False)
        stopped = {
            "scheduler": client.scheduler.address,
            "workers": len(client.scheduler_info(n_workers=-1)["workers"]),
        }
        client.shutdown()
    answer(stopped, as_json, figures(stopped, *stopped))


@click.command(cls=Command)
@click.argument("network", required=False, type=NETWORK_PATH, metavar="[NETWORK]")
@running_options
@click.option("--ref", default=None, metavar="NAME", help="Commit, tag or branch.  [default: the last commit]")
@output_options
def persist(network: Path | None, cluster: ClusterOptions | None, ref: str | None, **values: Any) -> None:
    """Keep a commit in the memory of a cluster's workers, or list what is kept.

    Every command on that cluster uses it instead of the store, and its commits take its place.
    """
    from giaann_dask.api.network import open as open_network
    from giaann_dask.cluster import connect
    from giaann_dask.cluster.persistence import published_commits

    with connect(options=_required(cluster)) as client:
        if network is not None:
            with waiting("open the regions"):
                open_network(network, ref).persist(client)
        found = published_commits(client)
    answer({"persisted": [each.as_dict() for each in found]}, values["as_json"], [repr(each) for each in found])


@click.command(cls=Command)
@NETWORK
@running_options
@output_options
def unpersist(network: Path, cluster: ClusterOptions | None, **values: Any) -> None:
    """Release a network from the memory of a cluster's workers; the store keeps it."""
    from giaann_dask.cluster import connect
    from giaann_dask.training.committing import unpersist_network

    with connect(options=_required(cluster)) as client:
        kept = unpersist_network(client, str(network))
    answer({"released": kept}, values["as_json"], ["released" if kept else "it was not persisted"])


@click.command(cls=Command)
@NETWORK
@click.option("--keep-commits", type=int, metavar="N", help="Delete all but the last N commits.  [default: keep all]")
@common_options
def compact(network: Path, keep_commits: int | None, **values: Any) -> None:
    """Merge the runs of a network and remove data that no commit needs.

    The connections stay the same. The runs of older commits stay on disk until these commits are deleted.
    """
    from giaann_dask.cluster import connect
    from giaann_dask.store.network_store import NetworkStore
    from giaann_dask.training.maintenance import check_kept, compact_network

    check_kept(keep_commits)
    store = NetworkStore(network)
    with connect(options=prepared(values["cluster"], LOCAL)) as client, progress() as observer:
        report = compact_network(client, store, keep_commits, observer)
    counts = report.as_dict()
    answer(counts, values["as_json"], [f"network {network}", *figures(counts, *counts)])
