"""Define the command ``serve``, which serves a network over HTTP.

The server is in `giaann_dask.serving`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import SIZE, Command, options_of, section
from giaann_dask.cli.output import answer, is_json
from giaann_dask.cli.process import stop_on_signals
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import (
    LOCAL,
    NETWORK_PATH,
    dense_options,
    generation_options,
    inference_options,
    inference_rules,
    model_options,
    prepared,
    row_options,
)
from giaann_dask.errors import OptionError
from giaann_dask.local_files import local_path

if TYPE_CHECKING:
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.serving.serving_options import ServingOptions


_limits, _cluster = section("Limits"), section("Cluster")
_SERVING = "giaann_dask.serving.serving_options."


class NamedNetwork(click.ParamType):  # type: ignore[type-arg]
    """A network, or ``NAME=NETWORK``; converted to the name, or None, and the place."""

    name = "network"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | None, Any]:
        """Return the name, None where there is none, and the place."""
        if isinstance(value, tuple):
            return value
        name, equals, place = value.partition("=")
        if not equals or not name or "/" in name or local_path(value).exists():
            return None, NETWORK_PATH.convert(value, param, ctx)
        if not place:
            self.fail(f"{value!r} names no network after the equals sign.", param, ctx)
        return name, NETWORK_PATH.convert(place, param, ctx)


@click.command(cls=Command)
@click.argument("networks", nargs=-1, required=True, type=NamedNetwork(), metavar="[NAME=]NETWORK...")
@options_of(
    "serving",
    _SERVING + "ServingOptions",
    "HTTP",
    first=("host", "port", "api_key", "writable", "write_key", "model_name", "timeout_s"),
    settings={
        "api_key": {"envvar": "GIAANN_API_KEY", "show_envvar": True},
        "write_key": {"envvar": "GIAANN_WRITE_KEY", "show_envvar": True},
    },
)
@options_of("limits", _SERVING + "Limits", "Limits", prefix="max")
@options_of("queue", _SERVING + "QueueOptions", "Limits", prefix="max", first=("slots",))
@options_of("state", "giaann_dask.models.generation_options.StateOptions", "Limits", only=("state_bytes",))
@_cluster(
    "--compute-workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Workers that continue prompts; 0 continues them in the server's process.  [default: all that compute]",
)
@_limits(
    "--network-bytes",
    type=SIZE,
    help="Memory for open networks; the least recently used ones are closed.  [default: no limit]",
)
@inference_options
@model_options
@row_options
@click.option("--ref", "commit", metavar="NAME", help="Serve an older commit, tag or branch.")
@generation_options("tagger")
@dense_options
def serve(networks: tuple[tuple[str | None, Path], ...], **values: Any) -> None:
    """Serve completions over HTTP with OpenAI's API, until Ctrl-C, SIGTERM or SIGHUP.

    A page to try it is at /, the API at /v1/completions. Requests name a network by the field model; the first is
    opened at the start, others on demand. One commit of each is used, even if it is trained further. If the connection
    to the scheduler is lost, the server retries until it is connected again; meanwhile requests get status 503. On a
    signal, it finishes running requests and exits with code 0; while the first network is opened, a signal interrupts
    the command.
    """
    from giaann_dask.serving.network_server import Server, require_packages

    require_packages()
    from giaann_dask.api.cluster import connect
    from giaann_dask.models.generation_options import BatchOptions
    from giaann_dask.serving.models import EngineOpener, SharedClient

    options: ServingOptions = values["serving"]
    cluster = prepared(values["cluster"], LOCAL)
    opener = EngineOpener(
        clients=SharedClient(lambda: connect(options=cluster)),
        generation=replace(
            values["generation"],
            inference=inference_rules(values, "prediction"),
            model_options=values["model_options"],
        ),
        batch=BatchOptions(slots=options.queue.slots, state=values["state"]),
        workers=_compute_workers(values, cluster),
    )
    with Server(networks, opener, options, commit=values["commit"], budget=values["network_bytes"]) as server:
        # A signal interrupts it.
        with waiting("open the network"):
            server.open()
        models = server.models
        shown: dict[str, Any] = {"url": server.url, "model": models.default.name, "commit": models.default.commit}
        if len(networks) > 1:
            shown["models"] = {source.name: source.commit for source in models.sources}
        with stop_on_signals("finishing running requests") as stop:
            server.run(stop, lambda: answer(shown))
        if is_json():
            answer(asdict(models.statistics()), [])


def _compute_workers(values: dict[str, Any], cluster: ClusterOptions) -> int | None:
    """Return on how many workers prompts are continued at most: None for all, 0 for this process.

    Raises
    ------
    OptionError
        If workers shall continue prompts, and there are none.
    """
    asked: int | None = values["compute_workers"]
    if cluster.workers != 0:
        return asked
    if asked:
        raise OptionError(
            f"--compute-workers is {asked} without a cluster",
            "a cluster",
            "set --workers or --scheduler, too",
        )
    return 0
