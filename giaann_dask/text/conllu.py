"""Parse and check CoNLL-U: ten tab-separated columns per token, a blank line after each sentence.

Only syntactic words are kept. Does not cover: opening files and dividing them into passages (`reading`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from giaann_dask.errors import InputFormatError
from giaann_dask.text.tokens import TaggedSentence

_COLUMNS = 10
_SHOWN_CHARACTERS = 60
# Identifiers are written without zeros in front, and no sentence has a thousand million words.
_RANGE = re.compile(r"([1-9]\d{0,8})-([1-9]\d{0,8})", re.ASCII)
_EMPTY_NODE = re.compile(r"(0|[1-9]\d{0,8})\.([1-9]\d{0,8})", re.ASCII)
_LINE_END = re.compile(r"\r*\n|\r")


class SentenceLines:
    """Check the lines of a sentence one after the other.

    Words are numbered 1, 2, 3, ... A range (``3-4``) comes before its first word and overlaps no other one; empty nodes
    (``3.1``, ``3.2``) come after the word that they are numbered by.

    Attributes
    ----------
    words : int
        Number of words so far.

    Examples
    --------
    >>> SentenceLines().problem("1 cat")
    'has 1 tab-separated columns'
    """

    def __init__(self) -> None:
        self.words = 0
        # Last word of the latest range, and number of the latest empty node after a word.
        self._range_end = self._empty_nodes = 0

    def problem(self, line: str) -> str | None:
        """Return the defect of the next line, without its line end, or None; comments and blank lines have none."""
        if not line or line[0] == "#" or line.isspace():
            return None
        columns = line.count("\t") + 1
        if columns != _COLUMNS:
            return f"has {columns} tab-separated columns"
        identifier, form, _ = line.split("\t", 2)
        if not form:
            return "has an empty form"
        if identifier == str(self.words + 1):
            self.add_word()
            return None
        if self._follows(identifier):
            return None
        return f"has the identifier {_shown(identifier)!r} where word {self.words + 1} should follow"

    def add_word(self) -> None:
        """Count a word that has the expected number."""
        self.words += 1
        self._empty_nodes = 0

    def end_problem(self) -> str | None:
        """Return the defect of a sentence that ends here, or None."""
        if self._range_end > self.words:
            return f"ends after word {self.words}, within a range up to word {self._range_end}"
        return None

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


def parse_conllu(passage: str, source: str) -> list[TaggedSentence]:
    r"""Return the syntactic words of the sentences of a passage, with the spaces between them.

    Ranges (``3-4``) and empty nodes (``3.1``) are left out, fields are not changed (rule
    1.1 of the algorithm), and forms may contain spaces. A sentence without words is left out.

    White space follows a word unless its MISC column has ``SpaceAfter=No``. It never follows a word inside a
    range; after the range's last word, the MISC column of the range decides. It always follows the last word of a
    sentence.

    Parameters
    ----------
    passage : str
        Lines of whole sentences.
    source : str
        Origin of the passage, for error messages.

    Returns
    -------
    list of TaggedSentence

    Raises
    ------
    InputFormatError
        If a line is malformed, or words, ranges or empty nodes are not numbered as `SentenceLines` says.

    Examples
    --------
    >>> parse_conllu("1\tCats\tcat\tNOUN\tNNS\t_\t_\t_\t_\t_\n", "cats.conllu")
    [TaggedSentence(forms=('Cats',), lemmas=('cat',), upos=('NOUN',), xpos=('NNS',), spaces=[True])]
    """
    return [_sentence(words, ranges) for words, ranges in _sentences(passage, source)]


def _sentences(passage: str, source: str) -> Iterator[tuple[list[list[str]], list[list[str]]]]:
    """Yield the columns of each sentence's words, and of its ranges and empty nodes."""
    words: list[list[str]] = []
    ranges: list[list[str]] = []
    lines = SentenceLines()
    if "\r" in passage:
        passage = _LINE_END.sub("\n", passage)
    # A last blank line ends the last sentence.
    for number, line in enumerate((*passage.split("\n"), ""), start=1):
        if not line or line.isspace():
            problem = lines.end_problem()
            if problem is not None:
                raise malformed_sentence(problem, f"the sentence before line {number} of a passage of {source!r}")
            if words:
                yield words, ranges
            words, ranges, lines = [], [], SentenceLines()
            continue
        if line[0] == "#":
            continue
        fields = line.split("\t")
        if len(fields) == _COLUMNS and fields[0] == str(len(words) + 1) and fields[1]:
            lines.add_word()
            words.append(fields)
            continue
        problem = lines.problem(line)
        if problem is not None:
            raise malformed_line(line, problem, f"line {number} of a passage of {source!r}")
        ranges.append(fields)


def malformed_line(line: str, problem: str, place: str) -> InputFormatError:
    """Return the error for a malformed line.

    Parameters
    ----------
    line : str
        The line.
    problem : str
        Its defect.
    place : str
        Its position in the input.
    """
    return InputFormatError(
        f"{place} {problem}: {_shown(line)!r}",
        f"CoNLL-U: {_COLUMNS} tab-separated columns that begin with a word's number and form",
        "correct the line",
    )


def malformed_sentence(problem: str, place: str) -> InputFormatError:
    """Return the error for a sentence that ends where it may not."""
    return InputFormatError(f"{place} {problem}", "CoNLL-U with the words of each range", "correct the sentence")


def _shown(text: str) -> str:
    """Return the beginning of a text, as errors show it."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def _sentence(words: list[list[str]], ranges: list[list[str]]) -> TaggedSentence:
    """Return the sentence of words and ranges given as columns."""
    _, forms, lemmas, upos, xpos, *_ = zip(*words, strict=True)
    return TaggedSentence(forms, lemmas, upos, xpos, _spaces(words, ranges))


def _spaces(words: list[list[str]], ranges: list[list[str]]) -> list[bool]:
    """Return whether white space follows each word."""
    spaces = [_spaced(word) for word in words]
    for fields in ranges:
        if found := _RANGE.fullmatch(fields[0]):
            first, last = int(found[1]), int(found[2])
            spaces[first - 1 : last] = [False] * (last - first + 1)
            spaces[last - 1] = _spaced(fields)
    spaces[-1] = True
    return spaces


def _spaced(fields: list[str]) -> bool:
    return "SpaceAfter=No" not in fields[-1].split("|")
