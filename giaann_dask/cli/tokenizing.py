"""Define the command ``giaann-dask tokenizer train``.

Learning is in `giaann_dask.encoding.tokenizing`; the option that names a tokenizer is in `specification_options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.click_ext import Group, section
from giaann_dask.cli.dataclass_options import PLAIN
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import FILE_PATH, INPUTS, output_options, reading_options


@click.group(cls=Group)
def tokenizer() -> None:
    """Make tokenizers, which divide text into subwords."""


@tokenizer.command()
@INPUTS
@section(PLAIN)("--max-subwords", "size", type=int, default=16384, show_default=True, help="Subwords at most.")
@click.option("--out", required=True, type=FILE_PATH, help="The .json file to write.")
@reading_options
@output_options
def train(inputs: tuple[str, ...], size: int, out: Path, **values: Any) -> None:
    """Learn a byte-level BPE from text, in this process.

    The file is one of the package tokenizers; give it to train or encode as --tokenizer FILE.
    """
    from giaann_dask.encoding.tokenizing import learn_tokenizer, save_tokenizer

    with waiting("learn"):
        learnt = learn_tokenizer(inputs, size, values["reading"])
    save_tokenizer(learnt, out)
    counts = {"tokenizer": str(out), **learnt.describe()}
    answer(counts, values["as_json"], [str(out), *figures(counts, "subwords", "identity")])
