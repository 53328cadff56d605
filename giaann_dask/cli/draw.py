"""Define the commands ``draw`` and ``report``.

The pictures are in `giaann_dask.diagnostics.pictures`, the report is in `giaann_dask.diagnostics.network_report`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, section
from giaann_dask.cli.options import (
    FILE_PATH,
    LOCAL,
    NETWORK,
    as_files,
    cluster_options,
    common_options,
    device_option,
    inference_options,
    output_options,
    read_inference_options,
    read_text_options,
    text_options,
)
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import Workload, progress, waiting
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from giaann_dask.api.network import Network
    from giaann_dask.diagnostics.pictures.options import DrawOptions
    from giaann_dask.models.options import GenerationOptions

_PICTURES, _PAGE = (".svg", ".png", ".pdf"), (".html",)
_COLOURS = ("default", "segments", "branches", "parts", "delimiters", "activation")
_content, _style = section("What to draw"), section("Size and style")


@click.command(cls=Command)
@NETWORK
@click.option(
    "--out",
    required=True,
    type=FILE_PATH,
    help="The file to write: .svg, .png, .pdf, a page to zoom and follow (.html), or an animation (.gif, .mp4).",
)
@_content(
    "--concept", "concepts", first=True, multiple=True, metavar="LEMMA", help="A concept column to draw; repeatable."
)
@_style(
    "--colour",
    first=True,
    type=click.Choice(_COLOURS),
    help="What colours mean.  [default: default, of a prompt activation]",
)
@_content(
    "--prompt", first=True, metavar="TEXT", help="Draw the activation after a step of the prediction from a prompt."
)
@_content("--step", type=int, default=1, show_default=True, help="After which predicted token, with --prompt.")
@_content("--animate", first=True, metavar="PROMPT", help="Draw a prediction step by step, as .gif or .mp4.")
@_content(
    "--max-tokens",
    "tokens",
    first=True,
    type=int,
    default=10,
    show_default=True,
    help="Tokens to predict at most.",
)
@_style("--seconds", type=float, default=1.2, show_default=True, help="How long a step of --animate stands.")
@_content("--density", first=True, is_flag=True, help="Draw all connections by source and target column.")
@_content(
    "--order",
    type=click.Choice(["appearance", "region"]),
    default="appearance",
    show_default=True,
    help="Order of the columns with --density.",
)
@_style("--max-columns", "columns", type=int, default=6, show_default=True, help="Most columns.")
@_style(
    "--max-features",
    "features",
    type=int,
    default=8,
    show_default=True,
    help="Most feature neurons of a column.",
)
@_style(
    "--max-connections",
    "connections",
    type=int,
    default=120,
    show_default=True,
    help="Most connections.",
)
@_style("--width", type=float, help="Width in inches.  [default: 12, with --density 9]")
@_style("--dark", is_flag=True, help="Light on dark.")
@inference_options
@click.option("--ref", "commit", metavar="NAME", help="Draw an older commit, tag or branch.")
@output_options
def draw(network: Path, out: Path, **values: Any) -> None:
    """Draw concept columns with their neurons and connections, a whole network, or a prediction.

    At most 12 columns, the best connected ones when none is named. Reads the store alone, region by
    region, but for predictions, whose network is read into this process.

    \b
      giaann-dask draw my.network --out picture.svg --colour segments
      giaann-dask draw my.network --out picture.html --concept miller
      giaann-dask draw my.network --out all.png --density
      giaann-dask draw my.network --out step.png --prompt "The old miller carried the"
      giaann-dask draw my.network --out steps.gif --animate "The old miller carried the"
    """  # noqa: D301 - click looks for the character, not for its escape
    from giaann_dask.api.network import Network

    check_request(out, values)
    opened = Network(network, values["commit"])
    with waiting("draw"):
        written = _draw(opened, out, values)
    answer({"picture": str(written), "commit": opened.commit}, values["as_json"], [str(written)])


def check_request(out: Path, values: dict[str, Any]) -> None:
    """Raise an `OptionError` when no such picture has the name, or options exclude each other."""
    kinds = [f"--{name}" for name in ("density", "prompt", "animate") if values[name] not in (None, False)]
    if len(kinds) > 1:
        raise OptionError(f"{' and '.join(kinds)}", "one of them", "draw two pictures")
    suffixes: tuple[str, ...] = (*_PICTURES, *_PAGE)
    if values["animate"] is not None:
        from giaann_dask.diagnostics.pictures.animation import check_animation

        check_animation(out)
        return
    if values["density"]:
        suffixes = _PICTURES
        if values["colour"] is not None or values["concepts"]:
            raise OptionError(
                "--density with --colour or --concept", "all columns, by their connections", "leave them out"
            )
    if out.suffix.lower() not in suffixes:
        remedy = "name a prompt with --animate" if out.suffix.lower() in (".gif", ".mp4") else "rename it"
        raise OptionError(f"the picture {out}", f"a name that ends in {', '.join(suffixes)}", remedy)
    if (values["colour"] == "activation") != (values["prompt"] is not None) and values["colour"] is not None:
        raise OptionError(
            f"--colour {values['colour']} {'with' if values['prompt'] else 'without'} --prompt",
            "activation of a prompt, or another colour of columns",
            "name a prompt" if values["colour"] == "activation" else "leave one of them out",
        )


def _draw(network: Network, out: Path, values: dict[str, Any]) -> Path:
    """Write the requested picture."""
    from giaann_dask.diagnostics.pictures.files import save_figure

    pictures = network.pictures
    if values["density"]:
        from giaann_dask.diagnostics.pictures.density import DensityOptions

        wide = {"width_inches": values["width"]} if values["width"] else {}
        chosen = DensityOptions(order=values["order"], dark=values["dark"], **wide)
        return save_figure(pictures.draw_density(chosen), out)
    options, page = _read_options(values), out.suffix.lower() in _PAGE
    if values["animate"] is not None:
        predicted = pictures.predict(values["animate"], _read_rules(values))
        return pictures.animate(predicted, out, options, values["seconds"])
    if values["prompt"] is not None:
        from giaann_dask.diagnostics.pictures.interactive import save_step_page

        predicted = pictures.predict(values["prompt"], _read_rules(values))
        if page:
            return save_step_page(predicted, out, values["step"], options)
        return save_figure(pictures.draw_step(predicted, values["step"], options), out)
    return pictures.save_page(out, options) if page else save_figure(pictures.draw(options), out)


def _read_options(values: dict[str, Any]) -> DrawOptions:
    from giaann_dask.diagnostics.pictures.options import DrawOptions

    shows_state = values["prompt"] is not None or values["animate"] is not None
    wide = {"width_inches": values["width"]} if values["width"] is not None else {}
    return DrawOptions(
        concepts=values["concepts"],
        colour=values["colour"] or ("activation" if shows_state else "default"),
        maximum_columns=values["columns"],
        maximum_features=values["features"],
        maximum_connections=values["connections"],
        dark=values["dark"],
        **wide,
    )


def _read_rules(values: dict[str, Any]) -> GenerationOptions:
    from giaann_dask.models.options import GenerationOptions

    return GenerationOptions(tokens=values["tokens"], inference=read_inference_options(values, "prediction"))


@click.command(cls=Command)
@NETWORK
@click.option("--out", required=True, type=FILE_PATH, help="The .html file to write.")
@click.option(
    "--evaluate",
    "inputs",
    multiple=True,
    metavar="INPUT",
    callback=as_files,
    help="Text to predict, for the accuracy; repeatable.",
)
@click.option("--max-sequences", type=int, help="Read N sentences of it that pass the length filter.")
@click.option("--ref", "commit", metavar="NAME", help="Report on an older commit, tag or branch.")
@inference_options
@text_options
@device_option
@common_options
def report(network: Path, out: Path, inputs: tuple[str, ...], **values: Any) -> None:
    """Write a report on a network: one page that needs no other file.

    Sizes, growth over commits, distributions of degrees and strengths, hubs, regions, drawings, and
    with --evaluate the accuracy on a text. Regions are read one after the other; on a cluster, which
    --workers or --scheduler names, each is a task.
    """
    from giaann_dask.diagnostics.network_report.page import check_report_path
    from giaann_dask.storage import require_writable

    check_report_path(out)
    require_writable(out)
    where = cluster_options(values, LOCAL)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.network import Network
    from giaann_dask.models.columns.evaluation.evaluation import EvaluationOptions

    opened = Network(network, values["commit"])
    options = EvaluationOptions(
        inference=read_inference_options(values, "target"),
        maximum_sequences=values["max_sequences"],
        device=values["device"],
    )
    if inputs and opened.specification.traits.columns:
        opened.require_fit(options)
    asked: dict[str, Any] = {"options": options, "text": read_text_options(values)}
    workload = Workload(inputs, values["text_field"], options.maximum_sequences)
    if where.workers == LOCAL:
        with progress(workload) as observer:
            made = opened.report(inputs, observer=observer, **asked)
    else:
        with connect(options=where) as client, progress(workload) as observer:
            made = opened.report(inputs, client=client, observer=observer, **asked)
    counts = {
        "report": str(made.save(out)),
        "connections": opened.manifest.connections,
        "regions": len(made.gathered.regions),
        "top1": None if made.evaluation is None else made.evaluation.top1,
        "commit": opened.commit,
    }
    shown = ("connections", "regions", *(("top1",) if made.evaluation is not None else ()), "commit")
    answer(counts, values["as_json"], [str(out), *figures(counts, *shown)])
