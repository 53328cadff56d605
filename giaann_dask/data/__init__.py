"""Provide a small English sample text for trying the package.

There is a text to train on, and one with the same people, places and phrases but no sentence in common to evaluate
on.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


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
