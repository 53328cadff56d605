"""Divide a prompt into sentences and words, as the text of files."""

from __future__ import annotations

from collections.abc import Sequence

from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import text_paragraphs
from giaann_dask.text.splitting import split_text


def sentences_of(text: str) -> list[list[str]]:
    r"""Return the sentences of a text, each a list of words, as those of a file with this text.

    Examples
    --------
    >>> sentences_of("The mill stood\nby the river. It\n\nThe baker")
    [['The', 'mill', 'stood', 'by', 'the', 'river', '.'], ['It'], ['The', 'baker']]
    """
    passages = list(text_paragraphs(text, ReadOptions().part_characters))
    return list(split_text(passages).sentences())


def word_places(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return where each word is in its text, which splitting changes by white space alone."""
    places = []
    end = 0
    for word in words:
        begin = text.index(word, end)
        end = begin + len(word)
        places.append((begin, end))
    return places
