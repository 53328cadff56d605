"""Tag parts of speech with embedded word lists and hand-written rules, the default tagger; no download.

The sequence of Penn tags with the highest total weight is chosen (`search`). Then tags are corrected by their
neighbours, and the universal parts of speech are chosen. The tags of a token depend on its sentence only.

What a single word can contribute is computed once for each type of a table: its readings and its *marks* (`marks_of`),
and for each pair of a type and a tag a *rule* (`rule_of`), which is a part of speech or the kind of context that
decides about it. The sentences are visited by compiled loops.

Does not cover: readings of single words and lemmas (`words`) and the division of text into tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.text.lexicon import TaggedWord
from giaann_dask.text.lexicon.rules import UPOS, read_words
from giaann_dask.text.lexicon.search import SEARCH_TYPES, TAGS, ReadingTable, best_tags, search_spans
from giaann_dask.text.lexicon.tables import CodeTable, ValueTable
from giaann_dask.text.lexicon.words import Place, Readings, find_lemma, find_readings, is_adjective

PARTS = tuple(sorted({*UPOS.values(), "ADV", "AUX", "PART", "SCONJ", "SYM"}))
"""Universal parts of speech; arrays hold their indices."""

_SUBJECTS = read_words("i you he she it we they there this that these those")
_INDEFINITE = frozenset(
    first + last for first in ("some", "any", "no", "every") for last in ("thing", "one", "body")
) | {"none"}
_DEMONSTRATIVES = read_words("this that these those")
_CLAUSE_OPENERS = read_words("if because that although though while whether unless whereas lest")
_NOMINAL = read_words("NN NNS NNP NNPS JJ JJR JJS CD VBG VBN PRP$")
_AUXILIARIES = ("be", "have", "do")
# A part of speech depends on at most this many words from the word itself on.
_AHEAD = 5

# Marks of a type, as a sum.
LONG, CAPITALS = 1, 2
_QUOTE, _APOSTROPHE, _QUESTION, _SIBILANT, _SUBJECT, _OF, _NOT = (1 << bit for bit in range(2, 9))
_REPAIRED = _QUOTE | _APOSTROPHE | _QUESTION
_SETS = (
    (frozenset(['"', "'"]), _QUOTE),
    (frozenset(["'", "’"]), _APOSTROPHE),
    (frozenset(["do", "have"]), _QUESTION),
    (_SUBJECTS, _SUBJECT),
    (frozenset(["of"]), _OF),
    (frozenset(["n't", "not"]), _NOT),
)
_OF_WORDS = MappingProxyType(
    {word: sum(mark for words, mark in _SETS if word in words) for words, _ in _SETS for word in words}
)

# Rules beyond the parts of speech: what decides about the part of speech of a word.
_BE, _HAVE, _DO, _OPENER, _ADPOSITION, _DETERMINER, _RELATIVE, _NAME = range(len(PARTS), len(PARTS) + 8)
_RULES = {"be": _BE, "have": _HAVE, "do": _DO}


def _set_of(tags: frozenset[str] | tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return a mask of the Penn tags by index."""
    return np.array([tag in tags for tag in TAGS])


_VERBS = _set_of(tuple(tag for tag in TAGS if tag[0] == "V"))
_AFTER_SUBJECT = _VERBS | _set_of(("MD", "RB"))
_NOMINALS = _set_of(_NOMINAL)
_NAMES, _COMMON = _set_of(("NNP", "NNPS")), _set_of(("NN", "NNS", "JJ"))
_BETWEEN = _set_of(("RB", "PRP", "NNP", "NN", "DT", "NNS"))
_CLOSE, _OPEN, _POS, _VB, _VBP, _VBN, _VBG, _PRP, _TO, _MD, _EX = map(
    TAGS.index, ("''", "``", "POS", "VB", "VBP", "VBN", "VBG", "PRP", "TO", "MD", "EX")
)
_VERB, _AUX, _SCONJ, _ADP, _DET, _PRON, _ADJ, _PROPN = map(
    PARTS.index, ("VERB", "AUX", "SCONJ", "ADP", "DET", "PRON", "ADJ", "PROPN")
)


def marks_of(word: str) -> int:
    """Return the marks of a token, a sum of ``LONG`` (letters, more than one), ``CAPITALS`` and those used here."""
    lower = word.lower()
    marks = _OF_WORDS.get(lower, 0)
    long = len(word) > 1 and word.isalpha()
    return marks + LONG * long + CAPITALS * (long and word.isupper()) + _SIBILANT * lower.endswith(("s", "x", "z"))


def rule_of(word: str, tag: str) -> int:
    """Return the index in `PARTS` of a token with a Penn tag, or, if other words decide about it, the rule for it."""
    lower = word.lower().replace("’", "'")
    if tag[0] == "V":
        base = find_lemma(lower, tag, "VERB")
        fixed = base not in _AUXILIARIES or (base != "be" and tag == "VBN")
        return _VERB if fixed else _RULES[base]
    if tag == "IN":
        return _OPENER if lower in _CLAUSE_OPENERS else _ADPOSITION
    if tag == "DT" and lower in _DEMONSTRATIVES:
        return _DETERMINER
    if tag == "WDT" and lower != "that":
        return _RELATIVE
    if tag == "NNP" and is_adjective(lower):
        return _NAME
    return PARTS.index(_part_alone(lower, tag))


def _part_alone(word: str, tag: str) -> str:
    """Return the universal part of speech of a lower-cased word, which its Penn tag determines."""
    if tag == "RB":
        return "PART" if word in ("not", "n't", "nt") else "ADV"
    if tag == "NN":
        return "PRON" if word in _INDEFINITE else "SYM" if word in ("%", "#") else "NOUN"
    return "PRON" if tag in ("WP", "WDT") else UPOS[tag]


def repair_sentences(tags, marks, ends):  # type: ignore[no-untyped-def]
    """Correct tags that depend on a neighbouring word or an opening quotation mark, in place.

    Parameters
    ----------
    tags : ndarray
        Index in `giaann_dask.text.lexicon.search.TAGS` of each token; uint8.
    marks : ndarray
        Result of `marks_of` for each token; int64.
    ends : ndarray
        End of each sentence; int64.
    """
    begin = 0
    for end in ends:
        opened = False
        for at in range(begin, end):
            mark, tag = marks[at], tags[at]
            if not mark & _REPAIRED:
                continue
            if tag == _CLOSE and mark & _QUOTE:
                opened = not opened
                if opened:
                    tags[at] = _OPEN
            elif tag == _POS and mark & _APOSTROPHE and at > begin and not marks[at - 1] & _SIBILANT:
                tags[at] = _CLOSE
            elif tag == _VB and mark & _QUESTION and at + 1 < end:
                finite = at == begin or tags[at - 1] not in (_TO, _MD)
                if finite and tags[at + 1] == _PRP and marks[at + 1] & _SUBJECT:
                    tags[at] = _VBP
        begin = end


@nb.njit(cache=True, nogil=True)
def _opens_clause(opener, tags, marks, at, end):  # type: ignore[no-untyped-def]
    """Return whether a preposition or subordinator before token `at` has a clause after it."""
    if at == end:
        return opener
    if marks[at] & _OF:
        return False
    if opener or tags[at] in (_VBG, _EX):
        return True
    return tags[at] == _PRP and marks[at] & _SUBJECT != 0 and at + 1 < end and _AFTER_SUBJECT[tags[at + 1]]


@nb.njit(cache=True, nogil=True)
def _verb_part(rule, tags, marks, at, end):  # type: ignore[no-untyped-def]
    """Return AUX for a form of have or do before its main verb, else VERB."""
    wanted = _VBN if rule == _HAVE else _VB
    for later in range(at + 1, min(at + _AHEAD, end)):
        if tags[later] == wanted or (rule == _DO and marks[later] & _NOT):
            return _AUX
        if not _BETWEEN[tags[later]]:
            break
    return _VERB


def choose_in_sentences(rules, tags, marks, ends):  # type: ignore[no-untyped-def]
    """Return the index in `PARTS` of each token's universal part of speech.

    Parameters
    ----------
    rules : ndarray
        Result of `rule_of` for each token; int64.
    tags, marks, ends
        See `repair_sentences`.
    """
    parts = rules.copy()
    begin = 0
    for end in ends:
        for at in range(begin, end):
            rule = rules[at]
            if rule < _BE:
                continue
            inside = at + 1 < end
            if rule == _BE:
                parts[at] = _VERB if at > begin and tags[at - 1] == _EX else _AUX
            elif rule in (_HAVE, _DO):
                parts[at] = _verb_part(rule, tags, marks, at, end)
            elif rule in (_OPENER, _ADPOSITION):
                parts[at] = _SCONJ if _opens_clause(rule == _OPENER, tags, marks, at + 1, end) else _ADP
            elif rule == _DETERMINER:
                parts[at] = _DET if inside and _NOMINALS[tags[at + 1]] else _PRON
            elif rule == _RELATIVE:
                parts[at] = _DET if inside and _COMMON[tags[at + 1]] else _PRON
            else:
                parts[at] = _ADJ if inside and _NAMES[tags[at + 1]] else _PROPN
        begin = end
    return parts


_REPAIR_TYPES = nb.void(nb.uint8[::1], nb.int64[::1], nb.int64[::1])
_CHOOSE_TYPES = nb.int64[::1](nb.int64[::1], nb.uint8[::1], nb.int64[::1], nb.int64[::1])


class Kernels(NamedTuple):
    """The loops over sentences, compiled or not."""

    search: Callable[..., Any]
    repair: Callable[..., Any]
    choose: Callable[..., Any]

    @classmethod
    def of(cls, compiled: Callable[..., Callable[[Any], Callable[..., Any]]]) -> Kernels:
        """Return the loops as a decorator that is given their types compiles them."""
        search, repair = compiled(SEARCH_TYPES)(search_spans), compiled(_REPAIR_TYPES)(repair_sentences)
        return cls(search, repair, compiled(_CHOOSE_TYPES)(choose_in_sentences))


INTERPRETED = Kernels.of(lambda _: lambda function: function)
"""Loops that Python runs."""

_OPENING = frozenset([";", '"'])
# Two codes of readings are one number; the word lists have some hundred.
_CODE_BITS = 32


def tag_tokens(
    types: ValueTable[str], type_of: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], kernels: Kernels = INTERPRETED
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
        The loops; compiled ones are faster.

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
    kernels.repair(tags, marks, ends)
    pair, rules = known.pairs(type_of, tags)
    return known.entries, known.words(pair, kernels.choose(rules, tags, marks, ends))


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
