"""Provide a small English sample text for trying the package, and generate any amount of such text.

There is a text to train on, and one with the same people, places and phrases but no sentence in common to evaluate
on. More text about the village, for trying a cluster, is made with a small grammar.
"""

from __future__ import annotations

import random
from importlib.resources import files
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


def sample_text() -> Path:
    """Return the path of the sample text.

    Returns
    -------
    Path
        UTF-8 text about a village, its people and its seasons: 405 sentences of 11 to 24 words in
        paragraphs that are separated by blank lines.

    Examples
    --------
    >>> sample_text().read_text(encoding="utf-8").splitlines()[0][:42]
    'The village lies in a green valley between'
    """
    return Path(str(files(__name__) / "sample.txt"))


def sample_test_text() -> Path:
    """Return the path of the text that is held out for evaluation.

    Returns
    -------
    Path
        UTF-8 text like `sample_text`: 40 sentences of 12 to 18 words, none of which is in the sample text.

    Examples
    --------
    >>> sample_test_text().name
    'sample_test.txt'
    """
    return Path(str(files(__name__) / "sample_test.txt"))


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
