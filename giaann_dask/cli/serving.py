"""Define the command ``serve``, which serves a network over HTTP.

The server is in `giaann_dask.serving`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, section
from giaann_dask.cli.options import (
    LOCAL,
    NETWORK_PATH,
    TAGGER,
    cluster_options,
    common_options,
    device_option,
    inference_options,
    read_inference_options,
    read_row_options,
    read_size,
    row_options,
)
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.stopping import stop_on_signals
from giaann_dask.errors import OptionError, parameter
from giaann_dask.local_files import local_path

if TYPE_CHECKING:
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.models.options import GenerationOptions
    from giaann_dask.rows.remote import RowOptions
    from giaann_dask.serving.options import ServingOptions


_http, _limits, _cluster = section("HTTP"), section("Limits"), section("Cluster")


class _NamedNetwork(click.ParamType):  # type: ignore[type-arg]
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
@click.argument("networks", nargs=-1, required=True, type=_NamedNetwork(), metavar="[NAME=]NETWORK...")
@_http(
    "--host",
    first=True,
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; all but localhost need a key.",
)
@_http("--port", first=True, type=int, default=8000, show_default=True, help="Port; 0 takes any free one.")
@_http(
    "--api-key",
    first=True,
    envvar="GIAANN_API_KEY",
    metavar="KEY",
    help="Accept only requests with this key.  [env: GIAANN_API_KEY, which other users cannot see]",
)
@_http("--model-name", first=True, metavar="NAME", help="Name of the first model.  [default: that of its folder]")
@_limits(
    "--max-slots",
    "slots",
    first=True,
    type=int,
    default=32,
    show_default=True,
    help="Prompts that are continued simultaneously.",
)
@_limits(
    "--max-waiting",
    "waiting",
    type=int,
    default=64,
    show_default=True,
    help="Prompts in the queue; further ones get status 429.",
)
@_limits(
    "--max-wait",
    "wait_s",
    type=float,
    default=10,
    show_default=True,
    help="Most seconds that a prompt waits.",
)
@_limits(
    "--timeout",
    "timeout_s",
    first=True,
    type=float,
    default=60,
    show_default=True,
    help="Seconds that a request may take.",
)
@_limits(
    "--drain",
    "drain_s",
    type=float,
    default=30,
    show_default=True,
    help="Seconds to finish requests when stopped.",
)
@_limits(
    "--max-tokens",
    type=int,
    default=1000,
    show_default=True,
    help="Most tokens for a prompt; of more, so many are generated.",
)
@_limits("--max-prompts", type=int, default=64, show_default=True, help="Most prompts, and choices, of a request.")
@_limits("--max-prompt", type=int, default=10_000, show_default=True, help="Most characters of a prompt.")
@_limits("--max-body", type=int, default=1 << 20, show_default=True, help="Most bytes of a request.")
@_cluster(
    "--compute-workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Workers that continue prompts; 0 continues them in the server's process.  [default: all that compute]",
)
@_limits(
    "--network-memory",
    metavar="SIZE",
    help="Memory for open networks; of several, those unused for the longest are closed.  [default: no limit]",
)
@_limits(
    "--state-memory",
    metavar="SIZE",
    help="Memory in a process for the activation of a prompt where all of it is needed; the rest is kept on "
    "workers.  [default: 1GiB]",
)
@inference_options
@row_options
@click.option("--ref", "commit", metavar="NAME", help="Serve an older commit, tag or branch.")
@TAGGER
@device_option
@common_options
def serve(networks: tuple[tuple[str | None, Path], ...], **values: Any) -> None:
    """Serve completions over HTTP with OpenAI's API, until Ctrl-C, SIGTERM or SIGHUP.

    A page to try it is at /, the API at /v1/completions. Requests name a network by the field model; the first is
    opened at the start, others on demand. One commit of each is used, also when it is trained further. When the
    connection to the scheduler is lost, the server retries until it is connected again; meanwhile requests get status
    503. After a signal to stop, it finishes running requests and exits with code 0.
    """
    from giaann_dask.lazy import import_optional

    for package in ("starlette", "uvicorn", "prometheus_client"):
        import_optional(package, "serve")
    from giaann_dask.api.cluster import connect
    from giaann_dask.models import model_of
    from giaann_dask.models.options import StateOptions
    from giaann_dask.serving.app import build_app
    from giaann_dask.serving.models import Models
    from giaann_dask.serving.opening import EngineOpener
    from giaann_dask.serving.reopening import SharedClient
    from giaann_dask.serving.server import address_of, bind
    from giaann_dask.serving.server import serve as run_server
    from giaann_dask.store.network_store import NetworkStore

    options = _serving_options(values)
    generation = _generation_options(values, options.timeout_s)
    memory = read_size("state_memory", values["state_memory"])
    cluster = cluster_options(values, LOCAL)
    clients = SharedClient(lambda: connect(options=cluster))
    opener = EngineOpener(
        clients=clients,
        generation=generation,
        slots=options.queue.slots,
        state=StateOptions() if memory is None else StateOptions(state_bytes=memory),
        workers=_compute_workers(values, cluster),
    )
    stores = [NetworkStore(place) for _, place in networks]
    commits = [store.open(values["commit"] or store.head()) for store in stores]
    # Before a cluster is started.
    for reader in commits:
        specification = reader.manifest().specification
        model_of(specification).require_fit(specification, generation)
    names = [options.name or networks[0][0], *(name for name, _ in networks[1:])]
    models = Models(
        [opener.source(reader, name) for name, reader in zip(names, commits, strict=True)],
        budget=read_size("network_memory", values["network_memory"]),
    )
    with bind(options) as bound, stop_on_signals("finishing running requests") as stop:
        shown: dict[str, Any] = {"url": address_of(bound), "model": models.default.name, "commit": commits[0].commit}
        if len(commits) > 1:
            shown["models"] = {source.name: source.commit for source in models.sources}
        with closing(clients), closing(models):
            with waiting("open the network"):
                models.open_default()
            run_server(
                build_app(models, options),
                bound,
                options,
                stop=stop,
                ready=lambda: answer(shown, values["as_json"], figures(shown, *shown)),
            )
            if values["as_json"]:
                answer(asdict(models.statistics()), True, [])


def _serving_options(values: dict[str, Any]) -> ServingOptions:
    """Return the options of the server."""
    from giaann_dask.serving.options import Limits, QueueOptions, ServingOptions

    return ServingOptions(
        **{name: values[name] for name in ("host", "port", "api_key", "timeout_s", "drain_s")},
        name=values["model_name"],
        limits=Limits(
            body_bytes=values["max_body"],
            prompts=values["max_prompts"],
            prompt_characters=values["max_prompt"],
            tokens=values["max_tokens"],
        ),
        queue=QueueOptions(**{name: values[name] for name in ("slots", "waiting", "wait_s")}),
    )


def _generation_options(values: dict[str, Any], timeout_s: float) -> GenerationOptions:
    """Return the options of all prompts."""
    from giaann_dask.models.options import GenerationOptions

    return GenerationOptions(
        inference=read_inference_options(values, "prediction"),
        tagger=values["tagger"],
        device=values["device"],
        rows=_in_time(read_row_options(values), timeout_s),
    )


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
            f"{parameter('compute_workers')} is {asked} without a cluster",
            "workers to use",
            f"set {parameter('workers')} or {parameter('scheduler')}, too",
        )
    return 0


def _in_time(rows: RowOptions, timeout_s: float) -> RowOptions:
    """Return row options with timeouts below that of a request, so that the client gets the reason of a failure."""
    return replace(rows, timeout_s=min(rows.timeout_s, timeout_s / 2), request_s=min(rows.request_s, timeout_s / 4))
