"""Define the command ``giaann-dask compile``, which compiles numba functions ahead of their first use.

Numba caches the compiled code in the folders of the modules, or in ``NUMBA_CACHE_DIR``.
"""

from __future__ import annotations

import tempfile
import time
from itertools import islice
from pathlib import Path

import click

from giaann_dask.cli.click_ext import Command, section
from giaann_dask.cli.logs import log_options
from giaann_dask.cli.output import answer, figures, say
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import json_option, silence_dask
from giaann_dask.errors import MissingDependencyError
from giaann_dask.registry import PROFILES, Profile

_LINES = 30
_PROMPT = "The old miller carried the flour"


@click.command("compile", cls=Command)
@click.argument("profiles", nargs=-1, type=click.Choice(PROFILES))
@section("Cluster")(
    "--scheduler",
    metavar="ADDRESS",
    help="Compile on the hosts of the workers of this scheduler instead of here.",
)
@section("Cluster")("--scheduler-file", metavar="FILE", help="Likewise, of the scheduler that wrote this file.")
@json_option
@log_options
def compile_ahead(
    profiles: tuple[Profile, ...], scheduler: str | None, scheduler_file: str | None, as_json: bool
) -> None:
    """Compile ahead of first use, for all PROFILES or those named.

    Run it once for every installation. It takes about a minute and saves that time in the first training, evaluation
    and generation. With a scheduler, it runs once on each host of its workers, or for each cache where workers have
    caches of their own, and not again where it has run; workers that are started with `dask worker --preload
    giaann_dask.cluster.compilation` do it themselves.
    """
    if scheduler is not None or scheduler_file is not None:
        silence_dask()
        _compile_on_workers(profiles, scheduler, scheduler_file, as_json)
        return
    seconds: dict[str, float] = {}
    for profile in profiles or PROFILES:
        started = time.perf_counter()
        with waiting(f"compile {profile}"):
            try:
                _use(profile)
            except MissingDependencyError as error:
                if profiles:
                    raise
                say(f"profile {profile} is not compiled: {error}")
                continue
        seconds[profile] = round(time.perf_counter() - started, 1)
    answer({"seconds": seconds}, as_json, figures(seconds, *seconds))


def _compile_on_workers(
    profiles: tuple[Profile, ...], scheduler: str | None, scheduler_file: str | None, as_json: bool
) -> None:
    from giaann_dask.cluster import ClusterOptions, connect
    from giaann_dask.cluster.compilation import compile_on_workers

    started = time.perf_counter()
    with (
        waiting("compile on the workers"),
        connect(options=ClusterOptions(scheduler=scheduler, scheduler_file=scheduler_file)) as client,
    ):
        compiled = compile_on_workers(client, profiles)
    counts: dict[str, object] = {"caches": len(compiled), "seconds": round(time.perf_counter() - started, 1)}
    lines = [f"{worker}  {place}" for worker, place in compiled.items()]
    answer({**counts, "workers": compiled}, as_json, [*figures(counts, *counts), *lines])


def _use(profile: Profile) -> None:
    """Train, evaluate, continue, compact and hash a network of a profile, in this process."""
    import giaann_dask as gd
    from giaann_dask.data import sample_text
    from giaann_dask.store.network_store import NetworkStore
    from giaann_dask.training.maintenance import compact_network

    with tempfile.TemporaryDirectory() as folder, gd.connect(workers=0) as client:
        text = Path(folder, "text.txt")
        with sample_text().open(encoding="utf-8") as lines:
            text.write_text("".join(islice(lines, _LINES)), encoding="utf-8")
        options = gd.TrainingOptions(batch_sequences=10, selection=gd.SelectionOptions(order="least-overlap"))
        rule = gd.Specification(profile=profile, regions=2)
        network = gd.train(text, Path(folder, "net"), client=client, specification=rule, options=options)
        network.evaluate(text, client=client)
        network.generate(_PROMPT, client=client, options=gd.GenerationOptions(max_tokens=2))
        compact_network(client, NetworkStore(network.path))
        network.digest()
