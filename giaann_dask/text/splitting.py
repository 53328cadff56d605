"""Split running text into sentences of tokens by rules, without a trained pipeline.

Tokens are those of spaCy's English tokenizer (`english_tokenizer`), but characters in scripts without spaces. As
spaCy's sentencizer does, a sentence boundary is proposed after every ``.``, ``!`` or ``?``, which attaches opening
quotes to the preceding sentence and splits ``"Why?" asked he``; the boundaries are corrected. So a sentence begins
right after the closing quotes and brackets, and not where the text continues with a comma, or with a lower-case letter
after a quotation, an exclamation, a question or an ellipsis. The end of a passage always ends a sentence.

Does not cover: tags and lemmas (`tagging`) and dividing inputs into passages (`reading`).
"""

from __future__ import annotations

import functools
import re
import threading
import unicodedata
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from giaann_dask.lazy import compiled, jit_inner
from giaann_dask.lazy import numba_types as nb
from giaann_dask.text.detokenizer import CLOSING, CONTINUING, FINAL
from giaann_dask.text.english_tokenizer import EnglishTokenizer
from giaann_dask.text.tokens import SplitText

# Dashes without spaces would join the words and quotation marks around them into one token.
_DASH = re.compile(r"—|--+")

# Abbreviations of older English prose that the tokenizer would treat as the end of a sentence.
_ABBREVIATED_WORDS = "Capt. Cap. Col. Lieut. Lt. Maj. Sgt. Sergt. Cpl. Hon. Mme. Mlle. Esq. Sr."
ABBREVIATIONS = (*_ABBREVIATED_WORDS.split(), "viz.", "cf.", "etc.", "&c.", "pp.", "vol.", "Vol.")

_UNCERTAIN_ENDS = frozenset(["...", "....", "…", "etc.", "&c.", "a.m.", "p.m."])
_ENDS = FINAL | _UNCERTAIN_ENDS
_DASHES = frozenset(["-", "--", "---", "----", "–", "—"])
# These open or close, which depends on those before.
_AMBIGUOUS = frozenset(['"', "'", "’", "_", "*"])
_NUMBERED = frozenset(["No", "Nos", "no", "nos"])
_LOOK_AHEAD_TOKENS = 8


def split_text(passages: Sequence[str]) -> SplitText:
    """Split passages into sentences and sentences into tokens.

    Parameters
    ----------
    passages : sequence of str
        Running text of any length; no sentence spans two passages.

    Returns
    -------
    SplitText
        Tokens are never white space; a passage of white space has no sentences.

    Examples
    --------
    >>> list(split_text(["“Why?” asked Mr. Bennet. Nobody knew."]).sentences())
    [['“', 'Why', '?', '”', 'asked', 'Mr.', 'Bennet', '.'], ['Nobody', 'knew', '.']]
    """
    marked = [_DASH.sub(r" \g<0> ", text) if "—" in text or "--" in text else text for text in passages]
    with _lock:
        found = shared_tokenizer()(marked)
    marks = found.types.results(_marks_of)
    divide: Any = _divide
    ends, counts = divide(marks[found.type_of], found.spaced, found.ends)
    spaced = found.spaced
    spaced[ends - 1] = True
    return SplitText(types=found.types, type_of=found.type_of, spaced=spaced, ends=ends, passages=counts)


def sentence_ended(tokens: Sequence[str]) -> bool:
    """Return whether a sentence that is being generated is complete, judging by its tokens so far.

    It is complete after an end mark outside quotation marks, and after closing marks that follow an end mark.

    Examples
    --------
    >>> [sentence_ended(text.split()) for text in ("he went .", "“ go !", "“ go ! ”", "etc.")]
    [True, False, True, False]
    """
    if not tokens:
        return False
    last = len(tokens) - 1
    if tokens[last] in CLOSING:
        return last > 0 and tokens[last - 1] in FINAL
    quoted = tokens.count("“") > tokens.count("”") or tokens.count('"') % 2 == 1
    return tokens[last] in FINAL and not quoted


# The tokenizer remembers chunks, so one thread uses it at a time; it keeps the GIL throughout, so the lock costs no
# parallelism.
_lock = threading.Lock()


@functools.cache
def shared_tokenizer() -> EnglishTokenizer:
    """Return the tokenizer of this process, which is created when it is first used."""
    return EnglishTokenizer(ABBREVIATIONS, characters=True)


# Marks of a token type, as a sum.
_END, _CLOSES, _DASHED, _UNSURE, _QUOTE, _PUNCTUATED, _CONTINUES, _UNCERTAIN_END, _ABBREVIATED, _STOP = (
    1 << bit for bit in range(10)
)
_ALPHANUMERIC, _UPPER, _LOWER, _DIGIT = (1 << bit for bit in range(10, 14))
_SETS = (
    (_ENDS, _END),
    (CLOSING, _CLOSES),
    (_DASHES, _DASHED),
    (_AMBIGUOUS, _UNSURE),
    (frozenset('"'), _QUOTE),
    (CONTINUING, _CONTINUES),
    (_UNCERTAIN_ENDS, _UNCERTAIN_END),
    (_NUMBERED, _ABBREVIATED),
    (frozenset("."), _STOP),
)
_OF_WORDS = MappingProxyType(
    {word: sum(mark for words, mark in _SETS if word in words) for words, _ in _SETS for word in words}
)


def _marks_of(word: str) -> int:
    """Return the marks of a token type, which decide about the sentences around it."""
    first, marks = word[0], _OF_WORDS.get(word, 0)
    if first.isalnum():
        marks += _ALPHANUMERIC
    elif all(unicodedata.category(letter)[0] == "P" for letter in word):
        marks += _PUNCTUATED
    return marks + _UPPER * first.isupper() + _LOWER * first.islower() + _DIGIT * first.isdigit()


@jit_inner
def _after_closing(marks, spaced, closed, end, last):  # type: ignore[no-untyped-def]
    """Return the index of the first token after an end mark and the closing marks that follow it."""
    for at in range(end + 1, last):
        mark = marks[at]
        if mark & (_END | _CLOSES | _DASHED):
            continue
        if not mark & _UNSURE:
            return at
        final = at + 1 == last or spaced[at]
        if spaced[at - 1] and (not final or (mark & _QUOTE and closed[at])):
            return at
    return last


@jit_inner
def _begins_sentence(marks, first, end, following, last):  # type: ignore[no-untyped-def]
    """Return whether a sentence begins at the token after an end mark and its closing marks."""
    if following >= last or marks[following] & _CONTINUES:
        return False
    letter = 0
    for at in range(following, min(following + _LOOK_AHEAD_TOKENS, last)):
        if marks[at] & _ALPHANUMERIC:
            letter = marks[at]
            break
    if marks[end] & _UNCERTAIN_END:
        return (letter & _UPPER) != 0
    # Before the first token of a passage is its last one, as in the lists of former versions.
    before = marks[end - 1] if end > first else marks[last - 1]
    if letter & _DIGIT and before & _ABBREVIATED:
        return False
    return not letter & _LOWER or (marks[end] & _STOP != 0 and following == end + 1)


_EDGES = nb.types.UniTuple(nb.int64[::1], 2)


@compiled(_EDGES(nb.int64[::1], nb.boolean[::1], nb.int64[::1]), plain_us=lambda marks, *_: 2 * len(marks))
def _divide(marks, spaced, passage_ends):  # type: ignore[no-untyped-def]
    """Return the end of each sentence and the number of sentences of each passage.

    A sentence is proposed to begin at the first token after an end mark that is not punctuation.
    """
    ends, counts = np.empty(len(marks), np.int64), np.zeros(len(passage_ends), np.int64)
    # Whether an even number of straight quotation marks precedes a token in its passage.
    closed = np.empty(len(marks), np.bool_)
    found = first = 0
    for passage, last in enumerate(passage_ends):
        before, even = found, True
        for at in range(first, last):
            closed[at] = even
            even ^= (marks[at] & _QUOTE) != 0
        begin, end, ended = first, first, False
        for at in range(first, last):
            if marks[at] & _END:
                end, ended = at, True
            elif ended and not marks[at] & _PUNCTUATED:
                ended = False
                following = _after_closing(marks, spaced, closed, end, last)
                if following > begin and _begins_sentence(marks, first, end, following, last):
                    ends[found], begin = following, following
                    found += 1
        if begin < last:
            ends[found] = last
            found += 1
        counts[passage] = found - before
        first = last
    return ends[:found].copy(), counts
