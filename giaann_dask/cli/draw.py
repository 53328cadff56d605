"""Define the commands ``draw`` and ``report``.

The pictures are in `giaann_dask.diagnostics.pictures`, the report is in `giaann_dask.diagnostics.network_report`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, given_options, options_of, section
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    LOCAL,
    NETWORK,
    as_files,
    evaluating_options,
    evaluation_options,
    generation_options,
    inference_options,
    inference_rules,
    output_options,
    prepared,
    running_options,
    text_options,
)
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.api.network import Network
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
    from giaann_dask.models.generation_options import GenerationOptions

_PICTURES, _PAGE = (".svg", ".png", ".pdf"), (".html",)
_content = section("What to draw")
_PICTURES_PLACE = "giaann_dask.diagnostics.pictures."
_DRAW = _PICTURES_PLACE + "draw_options.DrawOptions"
_DENSITY = _PICTURES_PLACE + "draw_options.DensityOptions"


@click.command(cls=Command)
@NETWORK
@click.option(
    "--out",
    required=True,
    type=FILE_PATH,
    help="The file to write: .svg, .png, .pdf, an interactive page (.html), or an animation (.gif, .mp4).",
)
@options_of("picture", _DRAW, "Size and style", first=("concepts", "colour"))
@options_of("all_columns", _DENSITY, "What to draw", prefix="density", shared=("width_inches", "dark"))
@_content(
    "--prompt", first=True, metavar="TEXT", help="Draw the activation after a step of the prediction from a prompt."
)
@options_of("shown", _PICTURES_PLACE + "prediction.draw_step", "What to draw", only=("step",))
@_content("--animate", first=True, metavar="PROMPT", help="Draw a prediction step by step, as .gif or .mp4.")
@generation_options("max_tokens", defaults={"max_tokens": 10})
@options_of("timing", _PICTURES_PLACE + "animation.save_animation", "Size and style", only=("seconds",))
@_content("--density", first=True, is_flag=True, help="Draw all connections by source and target column.")
@inference_options
@click.option("--ref", "commit", metavar="NAME", help="Draw an older commit, tag or branch.")
@running_options
@output_options
def draw(network: Path, out: Path, cluster: ClusterOptions | None, **values: Any) -> None:
    """Draw concept columns with their neurons and connections, a whole network, or a prediction.

    At most 12 columns, the best connected ones when none is named. Reads the network region by region, but
    for predictions, whose network is read into this process. Of a network that the cluster of --scheduler
    keeps in memory (persist), its workers are asked instead of the store.

    \b
      giaann-dask draw my.network --out picture.svg --colour segments
      giaann-dask draw my.network --out picture.html --concepts miller
      giaann-dask draw my.network --out all.png --density
      giaann-dask draw my.network --out step.png --prompt "The old miller carried the"
      giaann-dask draw my.network --out steps.gif --animate "The old miller carried the"
    """  # noqa: D301 - click looks for the character, not for its escape
    from giaann_dask.api.network import Network

    check_request(out, values)
    opened = Network(network, values["commit"])
    with _connected(cluster) as client, waiting("draw"):
        written = _draw(opened, out, values, client)
    answer({"picture": str(written), "commit": opened.commit}, [str(written)])


@contextmanager
def _connected(cluster: ClusterOptions | None) -> Iterator[Client | None]:
    """Yield the client of a running cluster, None where none is named."""
    if cluster is None:
        yield None
        return
    from giaann_dask.cluster import connect

    with connect(options=cluster) as client:
        yield client


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
        if {"colour", "concepts"} & {*given_options("picture")}:
            raise OptionError(
                "--density with --colour or --concepts", "all columns, by their connections", "leave them out"
            )
    if out.suffix.lower() not in suffixes:
        remedy = "name a prompt with --animate" if out.suffix.lower() in (".gif", ".mp4") else "rename it"
        raise OptionError(f"the picture {out}", f"a name that ends in {', '.join(suffixes)}", remedy)
    colour = values["picture"].colour if "colour" in given_options("picture") else None
    if (colour == "activation") != (values["prompt"] is not None) and colour is not None:
        raise OptionError(
            f"--colour {colour} {'with' if values['prompt'] else 'without'} --prompt",
            "activation of a prompt, or another colour of columns",
            "name a prompt" if colour == "activation" else "leave one of them out",
        )


def _draw(network: Network, out: Path, values: dict[str, Any], client: Client | None) -> Path:
    """Write the requested picture."""
    from giaann_dask.diagnostics.pictures.draw_options import save_figure

    pictures = network.pictures
    if values["density"]:
        return save_figure(pictures.draw_density(values["all_columns"]), out)
    options, page = _picture_options(values), out.suffix.lower() in _PAGE
    if values["animate"] is not None:
        predicted = pictures.predict(values["animate"], _read_rules(values), client)
        return pictures.animate(predicted, out, options, **values["timing"])
    if values["prompt"] is not None:
        from giaann_dask.diagnostics.pictures.interactive import save_step_page

        predicted = pictures.predict(values["prompt"], _read_rules(values), client)
        if page:
            return save_step_page(predicted, out, options=options, **values["shown"])
        return save_figure(pictures.draw_step(predicted, options=options, **values["shown"]), out)
    return pictures.save_page(out, options) if page else save_figure(pictures.draw(options), out)


def _picture_options(values: dict[str, Any]) -> DrawOptions:
    """Return the options of a picture; colours of a prediction are those of its activation."""
    options: DrawOptions = values["picture"]
    shows_state = values["prompt"] is not None or values["animate"] is not None
    return (
        replace(options, colour="activation") if shows_state and "colour" not in given_options("picture") else options
    )


def _read_rules(values: dict[str, Any]) -> GenerationOptions:
    options: GenerationOptions = values["generation"]
    return replace(options, inference=inference_rules(values, "prediction"))


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
@evaluation_options("protocol", "max_sequences")
@click.option("--ref", "commit", metavar="NAME", help="Report on an older commit, tag or branch.")
@inference_options
@text_options
@evaluating_options
def report(network: Path, out: Path, inputs: tuple[str, ...], **values: Any) -> None:
    """Write a report on a network: one self-contained page.

    Sizes, growth over commits, distributions of degrees and strengths, hubs, regions, drawings, and with --evaluate the
    accuracy on a text. Regions are read one after the other; on a cluster of --workers or --scheduler, each is a task.
    """
    from giaann_dask.diagnostics.network_report.page import check_report_path
    from giaann_dask.storage import require_writable

    check_report_path(out)
    require_writable(out)
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.network import Network

    opened = Network(network, values["commit"])
    options = replace(values["evaluation"], inference=inference_rules(values, "target"))
    text = values["text"]
    if inputs and opened.specification.traits.columns:
        opened.require_fit(options)
    asked: dict[str, Any] = {"options": options, "text": text}
    workload = Workload(inputs, text.reading, options.max_sequences)
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
        "protocol": None if made.evaluation is None else options.protocol,
        "commit": opened.commit,
    }
    shown = ("connections", "regions", *(("top1", "protocol") if made.evaluation is not None else ()), "commit")
    answer(counts, [str(out), *figures(counts, *shown)])
