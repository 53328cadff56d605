"""Define the command ``plan``, which says what a training costs on given hardware."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, section
from giaann_dask.cli.dataclass_options import PLAIN, options_of
from giaann_dask.cli.output import answer
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import FILE_PATH, INPUTS, common_options, new_text_options, prepared
from giaann_dask.cli.specification_options import network_options, read_fields

if TYPE_CHECKING:
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.planning.search import PlanTarget

_sample, _rates = section("Sample"), section("Rates")


@click.command(cls=Command)
@INPUTS
@click.option("--hardware", type=FILE_PATH, metavar="FILE", help="TOML file that describes it.  [default: the cluster]")
@options_of("target", "giaann_dask.planning.search.PlanTarget", PLAIN)
@_sample("--sample-sequences", type=int, default=10_000, show_default=True, help="Sequences of the sample.")
@_rates(
    "--calibrate", first=True, is_flag=True, help="Measure the cluster first, which takes a minute, and keep the rates."
)
@_rates("--write-hardware", type=FILE_PATH, metavar="FILE", help="Write the description of the hardware.")
@network_options
@new_text_options
@common_options
def plan(
    inputs: tuple[str, ...],
    hardware: Path | None,
    target: PlanTarget,
    sample_sequences: int,
    calibrate: bool,
    write_hardware: Path | None,
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Plan a training: what it costs on given hardware, what limits it, and the command that trains so.

    The first sequences of the text are counted and nothing is stored. What does not fit into the
    memory of the workers is refused.
    """
    where = prepared(cluster)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.planning import plan as plan_training
    from giaann_dask.spec import Specification
    from giaann_dask.storage import require_writable, write_file

    if write_hardware is not None:
        require_writable(write_hardware)
    with connect(options=where) as client, waiting("plan"):
        found = plan_training(
            inputs,
            client=client,
            hardware=hardware,
            target=target,
            specification=Specification(**read_fields(values)),
            text=text,
            sample_sequences=sample_sequences,
            calibrate=calibrate,
            command=f"giaann-dask train {shlex.join(inputs)} --network NETWORK",
        )
    if write_hardware is not None:
        write_file(write_hardware, found.hardware.toml(), "the description of the hardware")
    answer(found.as_dict(), values["as_json"], found.summary().text().split("\n"))
    found.require_fit()
