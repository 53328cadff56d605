"""Parse and check CoNLL-U: ten tab-separated columns per token, a blank line after each sentence.

Only syntactic words are kept. Does not cover: opening files and dividing them into passages (`reading`).
"""

from __future__ import annotations

from collections.abc import Iterator

from giaann_dask.errors import InputFormatError
from giaann_dask.text.tokens import SpacedSentence, TaggedSentence

_COLUMNS = 10
_SHOWN_CHARACTERS = 60
_DIGITS = frozenset("0123456789")


def line_problem(line: str, expected: int) -> str | None:
    """Return the defect of one line of CoNLL-U, or None for a valid line.

    Parameters
    ----------
    line : str
        A line without its line ending; comments and blank lines are valid.
    expected : int
        Number of the next word of the sentence, from 1.

    Examples
    --------
    >>> line_problem("1 cat", 1)
    'has 1 tab-separated columns'
    """
    if not line or line[0] == "#" or line.isspace():
        return None
    columns = line.count("\t") + 1
    if columns != _COLUMNS:
        return f"has {columns} tab-separated columns"
    identifier, form, _ = line.split("\t", 2)
    if not form:
        return "has an empty form"
    if identifier == str(expected) or _is_skipped(identifier):
        return None
    return f"has the identifier {identifier!r} where word {expected} should follow"


def parse_conllu(passage: str, source: str) -> list[TaggedSentence]:
    r"""Return the syntactic words of the sentences of a passage.

    Ranges (``3-4``) and empty nodes (``3.1``) are left out, fields are not changed (rule
    1.1 of the algorithm), and forms may contain spaces. A sentence without words is left out.

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
        If a line is malformed, or the words of a sentence are not numbered 1, 2, 3, ...

    Examples
    --------
    >>> parse_conllu("1\tCats\tcat\tNOUN\tNNS\t_\t_\t_\t_\t_\n", "cats.conllu")
    [TaggedSentence(forms=('Cats',), lemmas=('cat',), upos=('NOUN',), xpos=('NNS',))]
    """
    return [_sentence(words) for words, _ in _sentences(passage, source)]


def parse_spaced_conllu(passage: str, source: str) -> list[SpacedSentence]:
    """Return the sentences of a passage as `parse_conllu` does, with the spaces between words.

    White space follows a word unless its MISC column has ``SpaceAfter=No``. It never follows a word inside a
    range; after the range's last word, the MISC column of the range decides. It always follows the last word of a
    sentence.
    """
    found = _sentences(passage, source)
    return [SpacedSentence(*_sentence(words), _spaces(words, ranges)) for words, ranges in found]


def _sentences(passage: str, source: str) -> Iterator[tuple[list[list[str]], list[list[str]]]]:
    """Yield the columns of each sentence's words, and of its ranges and empty nodes."""
    words: list[list[str]] = []
    ranges: list[list[str]] = []
    if "\r" in passage:
        passage = passage.replace("\r\n", "\n")
    for number, line in enumerate(passage.split("\n"), start=1):
        if not line or line.isspace():
            if words:
                yield words, ranges
            words, ranges = [], []
            continue
        if line[0] == "#":
            continue
        fields = line.split("\t")
        if len(fields) == _COLUMNS and fields[0] == str(len(words) + 1) and fields[1]:
            words.append(fields)
            continue
        problem = line_problem(line, len(words) + 1)
        if problem is not None:
            raise malformed_line(line, problem, f"line {number} of a passage of {source!r}")
        ranges.append(fields)
    if words:
        yield words, ranges


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
    shown = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
    return InputFormatError(
        f"{place} {problem}: {shown!r}",
        f"CoNLL-U: {_COLUMNS} tab-separated columns that begin with a word's number and form",
        "correct the line",
    )


def _sentence(words: list[list[str]]) -> TaggedSentence:
    """Return the sentence of words given as columns."""
    _, forms, lemmas, upos, xpos, *_ = zip(*words, strict=True)
    return TaggedSentence(forms, lemmas, upos, xpos)


def _spaces(words: list[list[str]], ranges: list[list[str]]) -> list[bool]:
    """Return whether white space follows each word."""
    spaces = [_spaced(word) for word in words]
    for fields in ranges:
        first, joint, last = fields[0].partition("-")
        if joint:
            spaces[int(first) - 1 : int(last)] = [False] * (min(int(last), len(words)) - int(first) + 1)
            spaces[min(int(last), len(words)) - 1] = _spaced(fields)
    spaces[-1] = True
    return spaces


def _spaced(fields: list[str]) -> bool:
    return "SpaceAfter=No" not in fields[-1].split("|")


def _is_skipped(identifier: str) -> bool:
    """Return whether an identifier is that of a range or of an empty node."""
    for joint in "-.":
        first, found, second = identifier.partition(joint)
        if found:
            return bool(first and second) and _DIGITS.issuperset(first) and _DIGITS.issuperset(second)
    return False
