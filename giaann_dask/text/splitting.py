"""Split running text into sentences of tokens by rules, without a trained pipeline.

Tokens are those of spaCy's English tokenizer (`english_tokenizer`). As spaCy's sentencizer does, a sentence boundary
is proposed after every ``.``, ``!`` or ``?``, which attaches opening quotes to the preceding sentence and splits
``"Why?" asked he``; the boundaries are corrected. So a sentence begins right after the closing quotes and brackets,
and not where the text continues with a comma, or with a lower-case letter after a quotation, an exclamation, a question
or an ellipsis. The end of a passage always ends a sentence.

Does not cover: tags and lemmas (`tagging`) and dividing inputs into passages (`reading`).
"""

from __future__ import annotations

import functools
import re
import threading
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from giaann_dask.text.english_tokenizer import EnglishTokenizer

# The tokenizer takes time quadratic in the length of a string without white space (20,000
# brackets take 37 s), so longer strings are divided, if possible after a punctuation mark.
_MAXIMUM_UNSPACED = 200
_UNSPACED = re.compile(rf"\S{{{_MAXIMUM_UNSPACED + 1},}}")
_PIECE = re.compile(rf"\S{{1,{_MAXIMUM_UNSPACED - 1}}}[^\w\s]|\S{{1,{_MAXIMUM_UNSPACED}}}")

# Dashes without spaces would join the words and quotation marks around them into one token.
_DASH = re.compile(r"—|--+")

# Abbreviations of older English prose that the tokenizer would treat as the end of a sentence.
_ABBREVIATIONS = (
    "Capt.",
    "Cap.",
    "Col.",
    "Lieut.",
    "Lt.",
    "Maj.",
    "Sgt.",
    "Sergt.",
    "Cpl.",
    "Hon.",
    "Mme.",
    "Mlle.",
    "Esq.",
    "Sr.",
    "viz.",
    "cf.",
    "etc.",
    "&c.",
    "pp.",
    "vol.",
    "Vol.",
)

_FINAL = frozenset([".", "!", "?", "。", "！", "？"])
_UNCERTAIN = frozenset(["...", "....", "…", "etc.", "&c.", "a.m.", "p.m."])
_ENDS = _FINAL | _UNCERTAIN
_CLOSING = frozenset(["”", "»", ")", "]", "}", "''"])
_DASHES = frozenset(["-", "--", "---", "----", "–", "—"])
_AMBIGUOUS = frozenset(['"', "'", "’", "_", "*"])
_CONTINUING = frozenset([",", ";", ":"])
_NUMBERED = frozenset(["No", "Nos", "no", "nos"])
_LOOK_AHEAD_TOKENS = 8


class Splitter:
    """Split passages into sentences and sentences into tokens.

    Instances have no state: the tokenizer is created on first use, once per process, and shared by
    the process's threads.

    Examples
    --------
    >>> Splitter().split(["“Why?” asked Mr. Bennet. Nobody knew."])
    [[['“', 'Why', '?', '”', 'asked', 'Mr.', 'Bennet', '.'], ['Nobody', 'knew', '.']]]
    """

    def split(self, passages: Sequence[str]) -> list[list[list[str]]]:
        """Return, for each passage, the list of its sentences, each a list of tokens.

        Parameters
        ----------
        passages : sequence of str
            Running text of any length; no sentence spans two passages.

        Returns
        -------
        list of list of list of str
            One entry per passage. Tokens are never white space; a passage of white space
            has no sentences.
        """
        return [[words for words, _ in passage] for passage in self.split_spaced(passages)]

    def split_spaced(self, passages: Sequence[str]) -> list[list[tuple[list[str], list[bool]]]]:
        """Return the same as `split`, with a list per sentence of whether white space follows each token.

        It always follows the last token of a sentence.
        """
        found = []
        for passage in passages:
            tokens = _tokenize(passage)
            edges = list(_sentence_edges(tokens))
            spaces = [[*tokens.spaced[begin : end - 1], True] for begin, end in edges]
            found.append([(tokens.words[a:b], spaced) for (a, b), spaced in zip(edges, spaces, strict=True)])
        return found


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
    if tokens[last] in _CLOSING:
        return last > 0 and tokens[last - 1] in _FINAL
    quoted = tokens.count("“") > tokens.count("”") or tokens.count('"') % 2 == 1
    return tokens[last] in _FINAL and not quoted


# The tokenizer remembers chunks, so one thread uses it at a time; it keeps the GIL throughout, so the lock costs no
# parallelism.
_lock = threading.Lock()


@functools.cache
def _tokenizer() -> EnglishTokenizer:
    """Return the tokenizer of this process."""
    return EnglishTokenizer(_ABBREVIATIONS)


class _Tokens(NamedTuple):
    """Tokens of a passage, whether white space follows each, and proposed first tokens of sentences."""

    words: list[str]
    spaced: list[bool]
    proposed: list[int]


def _tokenize(passage: str) -> _Tokens:
    """Return the tokens of a passage and the proposed first tokens of sentences."""
    text = " ".join(_DASH.sub(r" \g<0> ", passage).split())
    if _UNSPACED.search(text):
        text = _UNSPACED.sub(lambda match: " ".join(_PIECE.findall(match[0])), text)
    with _lock:
        words, spaced = _tokenizer()(text)
    return _Tokens(words, spaced, _proposed(words))


def _proposed(words: list[str]) -> list[int]:
    """Return the indices of the first tokens after end marks that are not punctuation."""
    starts = []
    ended = False
    for at, word in enumerate(words):
        if word in _ENDS:
            ended = True
        elif ended and not _is_punctuation(word):
            starts.append(at)
            ended = False
    return starts


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(letter).startswith("P") for letter in word)


def _sentence_edges(tokens: _Tokens) -> Iterator[tuple[int, int]]:
    """Yield the index of the first token of each sentence and of the one after its last."""
    words, spaced, proposed = tokens
    quotes = [at for at, word in enumerate(words) if word == '"']
    begin = 0
    for start in proposed:
        end = next(at for at in range(start - 1, -1, -1) if words[at] in _ENDS)
        following = _after_closing(words, spaced, quotes, end)
        if following > begin and _begins_sentence(words, end, following):
            yield begin, following
            begin = following
    if begin < len(words):
        yield begin, len(words)


def _after_closing(words: list[str], spaced: list[bool], quotes: list[int], end: int) -> int:
    """Return the index of the first token after an end mark and the closing marks that follow it."""
    for at in range(end + 1, len(words)):
        word = words[at]
        if word in _ENDS or word in _CLOSING or word in _DASHES:
            continue
        if word not in _AMBIGUOUS:
            return at
        last = at + 1 == len(words) or spaced[at]
        if spaced[at - 1] and (not last or (word == '"' and bisect_left(quotes, at) % 2 == 0)):
            return at
    return len(words)


def _begins_sentence(words: list[str], end: int, following: int) -> bool:
    """Return whether a sentence begins at the token after an end mark and its closing marks."""
    ahead = words[following : following + _LOOK_AHEAD_TOKENS]
    if not ahead or ahead[0] in _CONTINUING:
        return False
    letter = next((word[0] for word in ahead if word[0].isalnum()), "")
    if words[end] in _UNCERTAIN:
        return letter.isupper()
    if letter.isdigit() and words[end - 1] in _NUMBERED:
        return False
    return not letter.islower() or (words[end] == "." and following == end + 1)
