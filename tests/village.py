"""Text for tests that need more of it than a person would write: sentences of a small grammar."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import giaann_dask as gd
from giaann_dask.text.reading import ReadOptions

# Of the text that fault tests train on while something happens.
SENTENCES = 24_000
SMALL_PARTS = gd.TextOptions(reading=ReadOptions(part_characters=30_000))


class Undisturbed(NamedTuple):
    """A text, its corpus, and the export of the network that nothing disturbed."""

    text: Path
    corpus: Path
    exported: bytes


NOUNS = [
    *("miller", "baker", "farmer", "teacher", "captain", "dog", "horse"),
    *("river", "mill", "harbour", "boat", "bread", "flour", "window", "road"),
]
VERBS = [
    *("carried", "followed", "watched", "found", "sold"),
    *("painted", "remembered", "crossed", "mended", "opened"),
]
PREPOSITIONS = [
    *("to", "from", "near", "behind", "under"),
    *("over", "beside", "into", "across", "through"),
]
ADJECTIVES = [
    *("old", "grey", "small", "warm", "narrow"),
    *("quiet", "early", "brown", "heavy", "white"),
]


def write_village(path: Path, sentences: int, seed: int = 1) -> Path:
    """Write plain sentences of 11 to 15 words with paragraphs of 20; the same for the same seed."""
    choose = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(sentences):
            a, b, c, d = (choose.choice(NOUNS) + choose.choice(["", "", "s"]) for _ in range(4))
            words = ["the", choose.choice(ADJECTIVES), a, choose.choice(VERBS), "the", b]
            words += [choose.choice(PREPOSITIONS), "the", choose.choice(ADJECTIVES), c]
            if choose.random() < 0.7:
                words += [choose.choice(["and", "while", "before"]), "it", choose.choice(VERBS), "the", d]
            file.write(" ".join(words).capitalize() + "." + ("\n\n" if number % 20 == 19 else "\n"))
    return path
