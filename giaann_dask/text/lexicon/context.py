"""Correct Penn tags by their neighbours and choose parts of speech that depend on other words, for the default tagger.

What a single word can contribute is computed once for each type: its *marks* (`marks_of`), and for each pair of a type
and a tag a *rule* (`rule_of`), which is a part of speech or the kind of context that decides about it. The sentences
are visited by compiled loops.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.text.lexicon.lemmas import find_lemma
from giaann_dask.text.lexicon.rules import UPOS, read_words
from giaann_dask.text.lexicon.search import TAGS, Tags
from giaann_dask.text.lexicon.words import is_adjective

PARTS = tuple(sorted({*UPOS.values(), "ADV", "AUX", "PART", "SCONJ", "SYM"}))
"""Universal parts of speech; the arrays of this module hold their indices."""

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


def repair_tags(
    tags: Tags, marks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], repair: Callable[..., Any] | None = None
) -> None:
    """Correct tags that depend on a neighbouring word or an opening quotation mark, in place.

    Parameters
    ----------
    tags : ndarray
        Index in `giaann_dask.text.lexicon.search.TAGS` of each token; uint8.
    marks : ndarray
        Result of `marks_of` for each token; int64.
    ends : ndarray
        End of each sentence; int64.
    repair : callable, optional
        Compiled form of `repair_sentences`; by default numba compiles it when it is first called.
    """
    (repair or _repair)(tags, marks, ends)


def choose_parts(
    rules: npt.NDArray[np.int64],
    tags: Tags,
    marks: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    choose: Callable[..., Any] | None = None,
) -> npt.NDArray[np.int64]:
    """Return the index in `PARTS` of each token's universal part of speech.

    Parameters
    ----------
    rules : ndarray
        Result of `rule_of` for each token; int64.
    tags, marks, ends
        See `repair_tags`.
    choose : callable, optional
        Compiled form of `choose_in_sentences`; by default numba compiles it when it is first called.
    """
    parts: npt.NDArray[np.int64] = (choose or _choose)(rules, tags, marks, ends)
    return parts


def repair_sentences(tags, marks, ends):  # type: ignore[no-untyped-def]
    """Correct tags in place, see `repair_tags`."""
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
    """Return the part of speech of each token, see `choose_parts`."""
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


REPAIR_TYPES = nb.void(nb.uint8[::1], nb.int64[::1], nb.int64[::1])
CHOOSE_TYPES = nb.int64[::1](nb.int64[::1], nb.uint8[::1], nb.int64[::1], nb.int64[::1])
"""Types of `repair_sentences` and `choose_in_sentences` for numba."""
_repair: Any = nb.njit(cache=True, nogil=True)(repair_sentences)
_choose: Any = nb.njit(cache=True, nogil=True)(choose_in_sentences)
