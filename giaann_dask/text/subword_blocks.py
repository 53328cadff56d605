"""Build blocks of subwords: encode the text of sequences with a tokenizer, with tags from their words.

Implements sections 1.7, 2 and 3 of the contract of profile ``v2`` for subwords: their parent words, tags and flags,
and the concept tokens, which are the first subwords of runs of nouns.

Does not cover: the tokenizer (`tokenizer`), the base class (`blocks`) and columns (`segmentation`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import (
    CANDIDATE,
    DELIMITER,
    NO_CONCEPT,
    NOUN,
    NOUNS,
    POS_FLAGS,
    PROBABLE,
    TOO_MANY_BYTES,
    TOO_SHORT,
    FilterOptions,
    TaggedBlock,
    mark_underscores,
    noun_name,
)
from giaann_dask.text.ever_pos import PROBABLE_WORDS, STOPS, EverPos
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import TaggedSentence, TaggedText

_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_SYMBOLS = frozenset("$%&*+=<>@^~|")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_DELIMITING_PARTS = frozenset({"VERB", "ADP"})
_PROBABLE_PARTS = frozenset({"CCONJ", "SCONJ"})


class Tag(NamedTuple):
    """Universal part of speech and Penn tag."""

    upos: str
    xpos: str


class SubwordSequence(NamedTuple):
    """Subwords of a sequence.

    Attributes
    ----------
    numbers : list of int
        Identifiers in the tokenizer.
    parents : list of int
        Index of the word from which each subword has its tags.
    tags : list of Tag
        Tags of each subword.
    """

    numbers: list[int]
    parents: list[int]
    tags: list[Tag]


class SubwordBlockBuilder(BlockBuilder):
    """Collect sequences of subwords, in order, into a `TaggedBlock`.

    Parameters
    ----------
    tokenizer : SubwordTokenizer
        Tokenizer of the text.
    options : FilterOptions
        Limits and rules for sequences.
    """

    def __init__(self, tokenizer: SubwordTokenizer, options: FilterOptions) -> None:
        super().__init__(EverPos(), options)
        self._tokenizer = tokenizer
        self._own_tags: dict[int, Tag | None] = {}

    def build(self) -> TaggedBlock:
        """Return the block."""
        return replace(super().build(), own_flags=True)

    def _add_sequences(self, text: TaggedText, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        for tokens in zip(begin.tolist(), end.tolist(), strict=True):
            self._add_sequence(text.between(*tokens))

    def _add_sequence(self, sentence: TaggedSentence) -> None:
        """Add the subwords of a counted sequence."""
        text = join_words(sentence)
        status, length = TOO_MANY_BYTES, 0
        if len(text.encode("utf-8")) <= self._options.maximum_bytes:
            found = self.divide(sentence, text)
            nouns = [tag.upos in NOUNS for tag in found.tags]
            if self._options.drop_short and len(nouns) <= self._options.seed_tokens:
                status = TOO_SHORT
            elif not any(nouns):
                status = NO_CONCEPT
            else:
                status, length = CANDIDATE, len(nouns)
                self._add_subwords(found, nouns, self._column_names(sentence, found, nouns))
        self._status.append([status])
        self._lengths.append([length])

    def divide(self, sentence: TaggedSentence, text: str) -> SubwordSequence:
        """Return the subwords of a sequence with their parents and tags, cropped.

        Parameters
        ----------
        sentence : TaggedSentence
            Words of the sequence and the spaces between them.
        text : str
            Result of `join_words`.
        """
        subwords = self._tokenizer.subwords
        numbers = self._tokenizer.encode(text)
        numbers = numbers[: _whole_characters([subwords[each] for each in numbers], self._options.maximum_subwords)]
        parents = find_parents([len(subwords[each]) for each in numbers], word_spans(sentence))
        tags = []
        for number, parent in zip(numbers, parents, strict=True):
            own = self._own_tag(number)
            tags.append(own or Tag(sentence.upos[parent], sentence.xpos[parent]))
        return SubwordSequence(numbers, parents, tags)

    def _own_tag(self, number: int) -> Tag | None:
        """Return the tags that follow from a subword's own text, or None; cached."""
        if number not in self._own_tags:
            try:
                self._own_tags[number] = own_tag(self._tokenizer.subwords[number].decode("utf-8"))
            except UnicodeDecodeError:
                self._own_tags[number] = None
        return self._own_tags[number]

    def _column_names(self, sentence: TaggedSentence, found: SubwordSequence, nouns: Sequence[bool]) -> Iterator[str]:
        """Yield the column name of each run of noun subwords."""
        by, at = self._options.column_names, 0
        for noun, run in groupby(nouns):
            begin, at = at, at + sum(1 for _ in run)
            if not noun:
                continue
            if by == "first":
                yield self._tokenizer.names[found.numbers[begin]]
            elif by == "span":
                subwords = (self._tokenizer.subwords[number] for number in found.numbers[begin:at])
                yield mark_underscores(b"".join(subwords).decode("utf-8", "backslashreplace").strip())
            else:
                words = dict.fromkeys(found.parents[begin:at])
                yield noun_name(sentence.lemmas[word].lower() for word in words)

    def _add_subwords(self, found: SubwordSequence, nouns: Sequence[bool], columns: Iterator[str]) -> None:
        """Add symbols and flags of a sequence; the first subword of each run of nouns is a concept."""
        names = [self._tokenizer.names[number] for number in found.numbers]
        flags, symbols, surfaces, before = delimiter_flags(names, found.tags, nouns), [], [], False
        for at, (name, noun) in enumerate(zip(names, nouns, strict=True)):
            opens = noun and not before
            if opens:
                flags[at] = NOUN
                symbols.append(self._concepts.setdefault(next(columns), len(self._concepts)))
            else:
                symbols.append(self._features.setdefault(name, len(self._features)))
            surfaces.append(self._surfaces.setdefault(name, len(self._surfaces)) if opens else -1)
            before = noun
        if self._options.parts_of_speech:
            flags = [flag | POS_FLAGS.get(tag.upos, 0) for flag, tag in zip(flags, found.tags, strict=True)]
        self._flags.append(flags)
        self._symbol.append(symbols)
        self._surface.append(surfaces)


def join_words(sentence: TaggedSentence) -> str:
    """Return the text of a sequence: its words with the spaces between them.

    Examples
    --------
    >>> join_words(TaggedSentence(["Do", "n't", "!"], [], [], [], [False, True, True]))
    "Don't !"
    """
    pieces = [word + " " * spaced for word, spaced in zip(sentence.forms, sentence.spaces, strict=True)]
    return "".join([*pieces[:-1], *sentence.forms[-1:]])


def word_spans(sentence: TaggedSentence) -> list[tuple[int, int]]:
    """Return begin and end of each word in the UTF-8 bytes of `join_words`; spaces belong to no word."""
    spans, begin = [], 0
    for word, spaced in zip(sentence.forms, sentence.spaces, strict=True):
        end = begin + len(word.encode("utf-8"))
        spans.append((begin, end))
        begin = end + spaced
    return spans


def find_parents(lengths: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the index of the parent word of each subword.

    Parameters
    ----------
    lengths : sequence of int
        Bytes of each subword; the subwords are contiguous from byte 0.
    spans : sequence of (int, int)
        Begin and end of each word.

    Returns
    -------
    list of int
        The word with which a subword shares most bytes (the first in a tie); for a subword that shares no
        bytes, the first word that begins at its end or later, else the last word.

    Examples
    --------
    >>> find_parents([2, 1, 3, 1], [(0, 2), (3, 4), (4, 6)])
    [0, 1, 2, 2]
    """
    parents, begin, first = [], 0, 0
    for length in lengths:
        end = begin + length
        while first < len(spans) - 1 and spans[first][1] <= begin:
            first += 1
        best, shared, at = -1, 0, first
        while at < len(spans) and spans[at][0] < end:
            common = min(end, spans[at][1]) - max(begin, spans[at][0])
            if common > shared:
                best, shared = at, common
            at += 1
        parents.append(best if best >= 0 else min(at, len(spans) - 1))
        begin = end
    return parents


def own_tag(text: str) -> Tag | None:
    """Return the tags that follow from the text of a subword alone, or None.

    Examples
    --------
    >>> [own_tag(text) for text in (" ", "$", " $", "3,5", " (", "was")]  # doctest: +NORMALIZE_WHITESPACE
    [Tag(upos='SPACE', xpos='_SP'), Tag(upos='PUNCT', xpos='.'), Tag(upos='SYM', xpos='SYM'),
     Tag(upos='NUM', xpos='CD'), None, None]
    """
    if text.isspace():
        return Tag("SPACE", "_SP")
    if _PUNCTUATION.issuperset(text):
        return Tag("PUNCT", ".")
    if _NUMBER.fullmatch(text):
        return Tag("NUM", "CD")
    return Tag("SYM", "SYM") if not _SYMBOLS.isdisjoint(text) else None


def delimiter_flags(texts: Sequence[str], tags: Sequence[Tag], nouns: Sequence[bool]) -> list[int]:
    """Return the flags of every subword, including concept tokens.

    Parameters
    ----------
    texts : sequence of str
        Subwords.
    tags : sequence of Tag
        Tags of each subword.
    nouns : sequence of bool
        Whether each subword is a noun, including nouns that do not open a column.

    Returns
    -------
    list of int
        ``DELIMITER``; ``PROBABLE`` for the first probable delimiter between its two nearest nouns if there is
        no delimiter between these; else 0.
    """
    flags, count = [0] * len(texts), len(texts)
    concept = [noun and not (at and nouns[at - 1]) for at, noun in enumerate(nouns)]
    for at, (text, tag) in enumerate(zip(texts, tags, strict=True)):
        if not concept[at] and (text in STOPS or tag.xpos == "POS" or tag.upos in _DELIMITING_PARTS):
            flags[at] = DELIMITER
    for at, (text, tag) in enumerate(zip(texts, tags, strict=True)):
        probable = text in PROBABLE_WORDS or tag.upos in _PROBABLE_PARTS
        if concept[at] or flags[at] or not probable:
            continue
        left = next((i for i in range(at - 1, -1, -1) if nouns[i]), -1)
        right = next((i for i in range(at + 1, count) if nouns[i]), count)
        if left >= 0 and right < count and not any(flags[left + 1 : right]):
            flags[at] = PROBABLE
    return flags


def _whole_characters(subwords: Sequence[bytes], most: int) -> int:
    """Return the largest number of first subwords, at most `most`, that ends at a character boundary."""
    count = min(len(subwords), most)
    while count and count < len(subwords):
        try:
            b"".join(subwords[:count]).decode("utf-8")
            break
        except UnicodeDecodeError:
            count -= 1
    return count
