"""Define the command ``giaann-dask tokenizer train``.

Learning is in `giaann_dask.encoding.tokenizing`; the option that names a tokenizer is in `specification_options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.click_ext import PLAIN, Group, section
from giaann_dask.cli.logs import log_options
from giaann_dask.cli.options import FILE_PATH, INPUTS, storage_option
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import waiting


@click.group(cls=Group)
def tokenizer() -> None:
    """Make tokenizers, which divide text into subwords."""


@tokenizer.command()
@INPUTS
@section(PLAIN)("--max-subwords", "size", type=int, default=16384, show_default=True, help="Subwords at most.")
@click.option("--out", required=True, type=FILE_PATH, help="The .json file to write.")
@click.option("--text-field", default="text", show_default=True, help="Field of JSON lines and of hf: datasets.")
@click.option("--split", default="train", show_default=True, help="Split of a hf: dataset.")
@section("Output and logging")("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@storage_option
@log_options
def train(inputs: tuple[str, ...], size: int, out: Path, **values: Any) -> None:
    """Learn a byte-level BPE from text, in this process.

    The file is one of the package tokenizers; give it to train or encode as --tokenizer FILE.
    """
    from giaann_dask.encoding.tokenizing import learn_tokenizer, save_tokenizer
    from giaann_dask.text.reading import ReadOptions

    reading = ReadOptions(text_field=values["text_field"], split=values["split"])
    with waiting("learn"):
        learnt = learn_tokenizer(inputs, size, reading)
    save_tokenizer(learnt, out)
    counts = {"tokenizer": str(out), **learnt.describe()}
    answer(counts, values["as_json"], [str(out), *figures(counts, "subwords", "identity")])
