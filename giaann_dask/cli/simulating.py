"""Define the command ``simulate``, which shows how a training would scale to more workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, section
from giaann_dask.cli.dataclass_options import Items, options_of
from giaann_dask.cli.output import answer
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import FILE_PATH, INPUTS, common_options, new_text_options, prepared
from giaann_dask.cli.specification_options import network_options, read_fields

if TYPE_CHECKING:
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.planning.costs import TrainingConfiguration
    from giaann_dask.planning.simulation import SimulationOptions

_sample, _files = section("Sample"), section("Files")


@click.command(cls=Command)
@INPUTS
@click.option("--hardware", type=FILE_PATH, metavar="FILE", help="TOML file that describes it.  [default: the cluster]")
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
@_sample("--columns", type=int, help="Draw the columns of sequences from so many, by Zipf's law.")
@_sample("--sample-sequences", type=int, default=10_000, show_default=True, help="Sequences of the sample.")
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
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Simulate a training on 10 to 10,000 workers: the rate, where it stops growing, and why.

    The first sequences of the text are encoded; rounds, selection, placement and compaction are those
    of training, and only time is simulated. Needs the extra plan.
    """
    from dataclasses import replace

    from giaann_dask.lazy import require_optional

    require_optional("simpy", "plan")
    where = prepared(cluster)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.simulation import SIZES
    from giaann_dask.api.simulation import simulate as simulate_training
    from giaann_dask.diagnostics.pictures.files import SUFFIXES, check_suffix, save_figure
    from giaann_dask.diagnostics.pictures.scaling import draw_scaling
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
            columns=values["columns"],
            compare=values["compare"],
            specification=specification,
            text=text,
            sample_sequences=values["sample_sequences"],
        )
    if csv_file is not None:
        write_file(csv_file, report.csv().encode(), "the figures")
    if picture is not None:
        save_figure(draw_scaling(report), picture)
    answer(report.as_dict(), values["as_json"], report.summary().text().split("\n"))
