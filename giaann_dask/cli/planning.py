"""Define the commands that say what a training would cost: ``plan`` on given hardware, ``simulate`` on more workers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import PLAIN, Command, Items, options_of, section
from giaann_dask.cli.output import answer
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    INPUTS,
    common_options,
    network_options,
    new_text_options,
    prepared,
    read_fields,
)

if TYPE_CHECKING:
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.planning.costs import TrainingConfiguration
    from giaann_dask.planning.search import PlanTarget
    from giaann_dask.planning.simulation import SimulationOptions

_rates, _files = section("Rates"), section("Files")
_HARDWARE = click.option(
    "--hardware", type=FILE_PATH, metavar="FILE", help="TOML file that describes it.  [default: the cluster]"
)


@click.command(cls=Command)
@INPUTS
@_HARDWARE
@options_of("target", "giaann_dask.planning.search.PlanTarget", PLAIN)
@options_of("sample", "giaann_dask.api.planning.plan", "Sample", only=("sample_sequences",))
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
    sample: dict[str, Any],
    calibrate: bool,
    write_hardware: Path | None,
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Plan a training: its cost on given hardware, its bottleneck, and the command of the plan.

    The first sequences of the text are counted and nothing is stored. A plan that does not fit into the memory of the
    workers is refused.
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
            calibrate=calibrate,
            command=f"giaann-dask train {shlex.join(inputs)} --network NETWORK",
            **sample,
        )
    if write_hardware is not None:
        write_file(write_hardware, found.hardware.toml(), "the description of the hardware")
    answer(found.as_dict(), [found])
    found.require_fit()


@click.command(cls=Command)
@INPUTS
@_HARDWARE
@click.option("--sizes", type=Items(int), help="Workers.  [default: 10, 30, 100, and so on to 10,000]")
@click.option("--compare", is_flag=True, help="Also simulate other selection, placement, accumulation and exchange.")
@_files("--csv", "csv_file", type=FILE_PATH, metavar="FILE", help="Write all figures as comma-separated values.")
@_files("--picture", type=FILE_PATH, metavar="FILE", help="Draw the curves, as .svg, .png or .pdf.")
@options_of(
    "configuration",
    "giaann_dask.planning.costs.TrainingConfiguration",
    "Division",
    without=("regions", "placement"),
)
@options_of("options", "giaann_dask.planning.simulation.SimulationOptions", "Simulation", first=("rounds",))
@options_of("sample", "giaann_dask.api.planning.simulate", "Sample", only=("columns", "sample_sequences"))
@network_options
@new_text_options
@common_options
def simulate(
    inputs: tuple[str, ...],
    hardware: Path | None,
    sizes: tuple[int, ...] | None,
    csv_file: Path | None,
    picture: Path | None,
    configuration: TrainingConfiguration,
    options: SimulationOptions,
    sample: dict[str, Any],
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Simulate a training on 10 to 10,000 workers: throughput, where it saturates, and why.

    The first sequences of the text are encoded; rounds, selection, placement and compaction are those
    of training, and only time is simulated. Needs the extra plan.
    """
    from dataclasses import replace

    from giaann_dask.lazy import require_optional

    require_optional("simpy", "plan")
    where = prepared(cluster)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.planning import SIZES
    from giaann_dask.api.planning import simulate as simulate_training
    from giaann_dask.diagnostics.pictures.charts import draw_scaling
    from giaann_dask.diagnostics.pictures.draw_options import SUFFIXES, check_suffix, save_figure
    from giaann_dask.spec import Specification
    from giaann_dask.storage import require_writable, write_file

    if picture is not None:
        check_suffix(picture, SUFFIXES)
    for path in filter(None, (picture, csv_file)):
        require_writable(path)
    specification = Specification(**read_fields(values))
    chosen = replace(configuration, regions=specification.regions, placement=specification.placement)
    with connect(options=where) as client, waiting("simulate"):
        report = simulate_training(
            inputs,
            client=client,
            hardware=hardware,
            sizes=sizes or SIZES,
            configuration=chosen,
            options=options,
            compare=values["compare"],
            specification=specification,
            text=text,
            **sample,
        )
    if csv_file is not None:
        write_file(csv_file, report.csv().encode(), "the figures")
    if picture is not None:
        save_figure(draw_scaling(report), picture)
    answer(report.as_dict(), [report])
