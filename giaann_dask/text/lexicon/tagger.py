"""Tag parts of speech with embedded word lists and hand-written rules, the default tagger; no download.

The sequence of Penn tags with the highest total weight is chosen (`search`), then the universal parts of speech
by context (`context`). The tags of a token depend on its sentence only. Words are looked up once for each type of
a table, and once for each pair of a type and a tag.

Does not cover: readings of single words (`words`), lemmas (`lemmas`) and the division of text into tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.text.lexicon import TaggedWord
from giaann_dask.text.lexicon.context import (
    CAPITALS,
    CHOOSE_TYPES,
    LONG,
    PARTS,
    REPAIR_TYPES,
    choose_in_sentences,
    choose_parts,
    marks_of,
    repair_sentences,
    repair_tags,
    rule_of,
)
from giaann_dask.text.lexicon.lemmas import find_lemma
from giaann_dask.text.lexicon.search import SEARCH_TYPES, TAGS, ReadingTable, best_tags, search_spans
from giaann_dask.text.lexicon.tables import CodeTable, ValueTable
from giaann_dask.text.lexicon.words import Place, Readings, find_readings

_OPENING = frozenset([";", '"'])
# Two codes of readings are one number; the word lists have some hundred.
_CODE_BITS = 32


class Kernels(NamedTuple):
    """Compiled forms of the loops over sentences; None for those that numba compiles when they are first called."""

    search: Callable[..., Any] | None = None
    repair: Callable[..., Any] | None = None
    choose: Callable[..., Any] | None = None

    @classmethod
    def of(cls, compiled: Callable[..., Callable[[Any], Callable[..., Any]]]) -> Kernels:
        """Return the loops as a decorator that is given their types compiles them."""
        search, repair = compiled(SEARCH_TYPES)(search_spans), compiled(REPAIR_TYPES)(repair_sentences)
        return cls(search, repair, compiled(CHOOSE_TYPES)(choose_in_sentences))


LAZY = Kernels()


def tag_tokens(
    types: ValueTable[str], type_of: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], kernels: Kernels = LAZY
) -> tuple[ValueTable[TaggedWord], npt.NDArray[np.int64]]:
    """Return a table of tagged words, and the number of each token in it.

    Parameters
    ----------
    types : ValueTable of str
        Distinct tokens, as spaCy's English tokenizer divides text ("do", "n't"; "cat", "'s").
    type_of : ndarray
        Number of each token in `types`; int64, shape ``(tokens,)``.
    ends : ndarray
        Number of tokens up to the end of each sentence; int64, shape ``(sentences,)``.
    kernels : Kernels, optional
        Compiled loops.

    Raises
    ------
    ModuleNotFoundError
        If textblob or lemminflect is not installed.

    Examples
    --------
    >>> words, numbers = tag_tokens(ValueTable(["dogs", "bark"]), np.array([0, 1]), np.array([2]))
    >>> [words.values[number].xpos for number in numbers.tolist()]
    ['NNS', 'VBP']
    """
    known, marks = types.derived(_KnownTypes), types.results(marks_of)[type_of]
    tags = best_tags(*known.readings(type_of, marks, ends), kernels.search)
    repair_tags(tags, marks, ends, kernels.repair)
    pair, rules = known.pairs(type_of, tags)
    return known.entries, known.words(pair, choose_parts(rules, tags, marks, ends, kernels.choose))


class _KnownTypes:
    """Readings of the types of a table, and its pairs of a type and a tag, with rules, lemmas and parts of speech.

    Parameters
    ----------
    types : ValueTable of str
        Its lock is held while this is changed.
    """

    def __init__(self, types: ValueTable[str]) -> None:
        self._types = types
        # Numbers of readings, the codes, and which of them are of marks that open a sentence.
        self._codes: dict[Readings, int] = {}
        self._table, self._opening = ReadingTable.of([]), np.zeros(0, np.bool_)
        self._capitals: dict[int, int] = {}
        self._pairs, self._words = CodeTable(self._pair), CodeTable(self._word)

    @property
    def entries(self) -> ValueTable[TaggedWord]:
        """Pairs of a type and a tag with a part of speech."""
        return self._words.table

    def readings(
        self, type_of: npt.NDArray[np.int64], marks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], ReadingTable]:
        """Return the entry of each token in a table of readings, the ends of the sentences, and the table."""
        with self._types.lock:
            codes = self._types.results(self._first_and_inside)[type_of]
            in_capitals = [(begin, end, self._in_capitals(type_of[begin:end])) for begin, end in _capitals(marks, ends)]
            table, opening = self._reading_table()
        first, inside = codes >> _CODE_BITS, codes & ((1 << _CODE_BITS) - 1)
        begins = np.concatenate([np.ones(1, np.bool_), opening[first]])[:-1]
        begins[ends[ends < len(begins)]] = True
        entry = np.where(begins, first, inside)
        for begin, end, numbers in in_capitals:
            entry[begin:end] = numbers
        return entry, ends, table

    def _code(self, word: str, place: Place) -> int:
        return self._codes.setdefault(find_readings(word, place), len(self._codes))

    def _first_and_inside(self, word: str) -> int:
        """Return the codes of a type at the beginning and inside of a sentence, as one number."""
        first = self._code(word, "first")
        return first << _CODE_BITS | (first if word == word.lower() else self._code(word, "inside"))

    def _in_capitals(self, numbers: npt.NDArray[np.int64]) -> list[int]:
        """Return the codes of types in a sentence written in capitals."""
        for number in numbers.tolist():
            if number not in self._capitals:
                self._capitals[number] = self._code(self._types.values[number], "capitals")
        return [self._capitals[number] for number in numbers.tolist()]

    def _reading_table(self) -> tuple[ReadingTable, npt.NDArray[np.bool_]]:
        """Return the readings of the codes, and which are of marks that open a sentence."""
        if len(self._opening) < len(self._codes):
            readings = list(self._codes)
            self._table = ReadingTable.of(readings)
            self._opening = np.array([each[0].kind in _OPENING for each in readings], np.bool_)
        return self._table, self._opening

    def pairs(
        self, types: npt.NDArray[np.int64], tags: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the number of each token's pair of a type and a tag, and its rule (`rule_of`)."""
        with self._types.lock:
            pair = self._pairs.number(types * len(TAGS) + tags)
            return pair, self._pairs.table.results(_rule_of_pair)[pair]

    def words(self, pair: npt.NDArray[np.int64], parts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number in `entries` of each token, from its pair and the index of its part of speech."""
        with self._types.lock:
            return self._words.number(pair * len(PARTS) + parts)

    def _pair(self, code: int) -> tuple[str, str]:
        return self._types.values[code // len(TAGS)], TAGS[code % len(TAGS)]

    def _word(self, code: int) -> TaggedWord:
        (form, xpos), upos = self._pairs.table.values[code // len(PARTS)], PARTS[code % len(PARTS)]
        return TaggedWord(form, find_lemma(form, xpos, upos), upos, xpos)


def _rule_of_pair(pair: tuple[str, str]) -> int:
    return rule_of(*pair)


def _capitals(marks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the sentences that are written in capitals, so that these do not mark names."""
    edges = np.concatenate([np.zeros(1, np.int64), ends])
    words, capitals = (
        np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum((marks & mark) != 0)])[edges])
        for mark in (LONG, CAPITALS)
    )
    for sentence in np.flatnonzero((words > 3) & (capitals > 0.6 * words)).tolist():
        yield int(edges[sentence]), int(edges[sentence + 1])
