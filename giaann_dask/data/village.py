"""Generate any amount of text with a small grammar, about the village of the sample text.

It is used for trying a cluster and in tests.
"""

from __future__ import annotations

import random
from pathlib import Path

from giaann_dask.local_files import local_path

# Of the text, in the order in which they are drawn.
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


def write_village(path: str | Path, sentences: int, seed: int = 1) -> Path:
    """Write sentences of 10 to 15 words, in paragraphs of 20.

    Parameters
    ----------
    path : str or Path
        The file to write, UTF-8.
    sentences : int
        How many; about 65 bytes each.
    seed : int
        Of the choices; the same seed writes the same text.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> print(write_village(f"{tempfile.mkdtemp()}/village.txt", 1).read_text().strip())
    The brown farmers remembered the window behind the grey captain while it remembered the river.
    """
    path = local_path(path)
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
