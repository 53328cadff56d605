"""Check and parse CoNLL-U: ten tab-separated columns per token, a blank line after each sentence.

Lines are checked where files are read. Only syntactic words are kept. Does not cover: opening files and dividing them
into passages (`reading`).
"""

from __future__ import annotations

import re

from giaann_dask.errors import InputFormatError
from giaann_dask.text.tokens import TaggedSentence

_COLUMNS = 10
_SHOWN_CHARACTERS = 60
# Identifiers are written without zeros in front, and no sentence has a thousand million words.
_RANGE = re.compile(r"([1-9]\d{0,8})-([1-9]\d{0,8})", re.ASCII)
_EMPTY_NODE = re.compile(r"(0|[1-9]\d{0,8})\.([1-9]\d{0,8})", re.ASCII)


class SentenceLines:
    """Check the lines of a sentence one after the other.

    Words are numbered 1, 2, 3, ... A range (``3-4``) comes before its first word and overlaps no other one; empty nodes
    (``3.1``, ``3.2``) come after the word that they are numbered by.

    Attributes
    ----------
    words : int
        Number of words so far.
    """

    def __init__(self) -> None:
        self.words = 0
        # Last word of the latest range, and number of the latest empty node after a word.
        self._range_end = self._empty_nodes = 0

    def add(self, line: str, place: str) -> None:
        """Add the next line, which is not blank; comments are not looked at.

        Parameters
        ----------
        line : str
            Without its line end.
        place : str
            Its position in the input, for the error.

        Raises
        ------
        InputFormatError
            If it is malformed.
        """
        if line[0] == "#":
            return
        problem = self._problem(line)
        if problem is not None:
            shown = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
            raise InputFormatError(
                f"{place} {problem}: {shown!r}",
                f"CoNLL-U: {_COLUMNS} tab-separated columns that begin with a word's number and form",
                "correct the line",
            )

    def end(self, place: str) -> None:
        """Raise an `InputFormatError` if the sentence may not end here."""
        if self._range_end > self.words:
            raise InputFormatError(
                f"the sentence that ends at {place} ends after word {self.words}, within a range up to word "
                f"{self._range_end}",
                "CoNLL-U with the words of each range",
                "correct the sentence",
            )

    def _problem(self, line: str) -> str | None:
        columns = line.count("\t") + 1
        if columns != _COLUMNS:
            return f"has {columns} tab-separated columns"
        identifier, form, _ = line.split("\t", 2)
        if not form:
            return "has an empty form"
        if identifier == str(self.words + 1):
            self.words += 1
            self._empty_nodes = 0
            return None
        if self._follows(identifier):
            return None
        shown = identifier if len(identifier) <= _SHOWN_CHARACTERS else identifier[:_SHOWN_CHARACTERS] + "…"
        return f"has the identifier {shown!r} where word {self.words + 1} should follow"

    def _follows(self, identifier: str) -> bool:
        """Return whether an identifier is that of a range or an empty node which may come here."""
        if found := _RANGE.fullmatch(identifier):
            first, last = int(found[1]), int(found[2])
            if first != self.words + 1 or first <= self._range_end or last < first:
                return False
            self._range_end = last
            return True
        found = _EMPTY_NODE.fullmatch(identifier)
        if found is None or (int(found[1]), int(found[2])) != (self.words, self._empty_nodes + 1):
            return False
        self._empty_nodes += 1
        return True


def parse_conllu(passage: str) -> list[TaggedSentence]:
    r"""Return the syntactic words of the sentences of a passage, with the spaces between them.

    Ranges (``3-4``) and empty nodes (``3.1``) are left out, fields are not changed (rule
    1.1 of the algorithm), and forms may contain spaces. A sentence without words is left out.

    White space follows a word unless its MISC column has ``SpaceAfter=No``. It never follows a word inside a
    range; after the range's last word, the MISC column of the range decides. It always follows the last word of a
    sentence.

    Parameters
    ----------
    passage : str
        Lines of whole sentences, as `giaann_dask.text.reading` has checked and `SentenceLines` describes them.

    Examples
    --------
    >>> parse_conllu("1\tCats\tcat\tNOUN\tNNS\t_\t_\t_\t_\t_\n")
    [TaggedSentence(forms=('Cats',), lemmas=('cat',), upos=('NOUN',), xpos=('NNS',), spaces=[True])]
    """
    found = []
    for lines in passage.split("\n\n"):
        rows = [line.split("\t") for line in lines.split("\n") if line and line[0] != "#"]
        words = [row for row in rows if row[0].isdigit()]
        if not words:
            continue
        _, forms, lemmas, upos, xpos, *_ = zip(*words, strict=True)
        spaces = list(map(_spaced, words))
        for row in rows:
            first, hyphen, last = row[0].partition("-")
            if hyphen:
                spaces[int(first) - 1 : int(last)] = [*[False] * (int(last) - int(first)), _spaced(row)]
        spaces[-1] = True
        found.append(TaggedSentence(forms, lemmas, upos, xpos, spaces))
    return found


def _spaced(fields: list[str]) -> bool:
    return "SpaceAfter=No" not in fields[-1].split("|")
