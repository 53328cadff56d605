"""Define the command ``trace``: the training sentences behind a prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.click_ext import Command
from giaann_dask.cli.output import answer
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import (
    LOCAL,
    NETWORK,
    as_files,
    common_options,
    generation_options,
    inference_options,
    inference_rules,
    prepared,
    row_options,
)


@click.command(cls=Command)
@NETWORK
@click.argument("prompt")
@generation_options("max_tokens", "tagger", "reasons", defaults={"max_tokens": 5})
@click.option(
    "--sentences",
    type=int,
    default=3,
    show_default=True,
    metavar="N",
    help="Show the N sentences with the largest shares of each connection.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    callback=as_files,
    metavar="INPUT",
    help="Read the sentences here where they were moved: files, folders or encoded corpora; repeatable.",
)
@inference_options
@click.option("--ref", "commit", metavar="NAME", help="Use an older commit, tag or branch.")
@row_options
@common_options
def trace(network: Path, prompt: str, texts: tuple[str, ...], **values: Any) -> None:
    """Continue a PROMPT, and show the training sentences behind each token.

    For each token these are the sentences that built the connections that decided, with their place in the text and
    their share of the connection's strength. The network needs an index (train --trace). Text is read where training
    read it, and shown only where it is still the same.
    """
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.network import Network
    from giaann_dask.tracing.trace import check_reasons

    options = replace(values["generation"], inference=inference_rules(values, "prediction"))
    check_reasons(options.reasons)
    opened = Network(network, values["commit"])
    opened.require_fit(options)
    call = {"options": options, "sentences": values["sentences"], "texts": texts}
    with waiting("trace"):
        if where.distributes or options.rows.mode == "remote":
            from giaann_dask.api.cluster import connect

            with connect(options=where) as client:
                found = opened.trace(prompt, client=client, **call)
        else:
            found = opened.trace(prompt, **call)
    answer(found.as_dict(), values["as_json"], found.lines() or ["(no token)"])
