"""Text for tests that need more of it than a person would write: sentences of a small grammar."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import giaann_dask as gd
from giaann_dask.data import ADJECTIVES, NOUNS, VERBS, write_village
from giaann_dask.text.read_options import ReadOptions

# Of the text that fault tests train on while something happens.
SENTENCES = 8_000
SMALL_PARTS = gd.TextOptions(reading=ReadOptions(part_characters=30_000))


class Undisturbed(NamedTuple):
    """A text, its corpus, and the export of the network that nothing disturbed."""

    text: Path
    corpus: Path
    exported: bytes


__all__ = ["ADJECTIVES", "NOUNS", "SENTENCES", "SMALL_PARTS", "VERBS", "Undisturbed", "write_village"]
