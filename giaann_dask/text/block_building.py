"""Build tagged blocks from tagged text: divide it into sequences, merge nouns, number symbols and set flags.

All of it works on arrays of numbers of entries (`tokens`); strings are handled once for each distinct token of a part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.lazy import compiled
from giaann_dask.text.blocks import (
    CANDIDATE,
    DELIMITER,
    NO_CONCEPT,
    NOUN,
    NOUNS,
    POS_FLAGS,
    PROBABLE,
    TOO_SHORT,
    FilterOptions,
    TaggedBlock,
)
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.tokens import Sentence, TaggedText, look_up_each, names_of, number_more

_HYPHEN = frozenset({"-"})
_DASHES = frozenset({"-", "–"})


class MergedSentence(NamedTuple):
    """The tokens of a sentence after noun merging.

    Attributes
    ----------
    words, lemmas : list of str
        Lower-cased forms and lemmas; merged nouns are joined by ``_`` or ``-``.
    xpos : list of str
        Penn tag; that of the first noun for merged nouns.
    nouns : list of bool
        Whether the token is a noun and opens a concept column.
    upos : list of str
        Universal part of speech; that of the first noun for merged nouns.
    """

    words: list[str]
    lemmas: list[str]
    xpos: list[str]
    nouns: list[bool]
    upos: list[str]


def merge_nouns(sentence: Sentence, dashes: bool = False) -> MergedSentence:
    """Join maximal runs of nouns, including a single hyphen between two of them.

    Parameters
    ----------
    sentence : TaggedSentence or SpacedSentence
        Raw tokens.
    dashes : bool
        Whether an en dash joins nouns as a hyphen does, and either also when it is tagged as a noun.

    Returns
    -------
    MergedSentence
        Tokens after merging, lower-cased.

    Examples
    --------
    >>> from giaann_dask.text.tokens import TaggedSentence
    >>> words = ["Old", "A", "-", "B", "C", "ran"]
    >>> upos = ["ADJ", "NOUN", "PUNCT", "PROPN", "NOUN", "VERB"]
    >>> merge_nouns(TaggedSentence(words, words, upos, upos)).words
    ['old', 'a-b_c', 'ran']
    """
    forms, lemmas, upos, xpos = sentence[:4]
    merged = MergedSentence([], [], [], [], [])
    count = len(forms)
    i = 0
    while i < count:
        noun = upos[i] in NOUNS
        word, lemma, part, tag = forms[i], lemmas[i], upos[i], xpos[i]
        i += 1
        while noun and i < count:
            if dashes and _is_joining_dash(sentence, i):
                joiner = "-"
                i += 1
            elif upos[i] in NOUNS:
                joiner = "_"
            elif i + 1 < count and (forms[i] == "-" or lemmas[i] == "-") and upos[i + 1] in NOUNS:
                joiner = "-"
                i += 1
            else:
                break
            word += joiner + forms[i]
            lemma += joiner + lemmas[i]
            i += 1
        merged.words.append(word.lower())
        merged.lemmas.append(lemma.lower())
        merged.xpos.append(tag)
        merged.nouns.append(noun)
        merged.upos.append(part)
    return merged


def _is_joining_dash(sentence: Sentence, i: int) -> bool:
    """Return whether token i, after a run of nouns, is a dash that is followed by another noun."""
    dash = sentence.forms[i] in _DASHES or sentence.lemmas[i] in _DASHES
    return dash and i + 1 < len(sentence.forms) and sentence.upos[i + 1] in NOUNS


class BlockBuilder:
    """Collect tagged text, in order, into a `TaggedBlock`.

    Parameters
    ----------
    ever_pos : EverPos
        Lexicon that decides the delimiters.
    options : FilterOptions
        Limits and rules for sentences.
    """

    def __init__(self, ever_pos: EverPos, options: FilterOptions) -> None:
        self._options = options
        self._flags_of = _flag_cache(ever_pos)
        # Of each part: lengths and status of the sequences, and symbols, flags and surfaces of their tokens.
        self._lengths: list[Sequence[int] | npt.NDArray[np.int64]] = []
        self._status: list[Sequence[int] | npt.NDArray[np.uint8]] = []
        self._symbol: list[Sequence[int] | npt.NDArray[np.int32]] = []
        self._flags: list[Sequence[int] | npt.NDArray[np.uint8]] = []
        self._surface: list[Sequence[int] | npt.NDArray[np.int32]] = []
        self._document: list[npt.NDArray[np.int64]] = []
        self._sentence: list[npt.NDArray[np.int64]] = []
        self._concepts: dict[str, int] = {}
        self._features: dict[str, int] = {}
        self._surfaces: dict[str, int] = {}
        self._part_sequences: list[int] = []
        self._document_sentences: dict[int, int] = {}

    def add_part(self, text: TaggedText, skip: int = 0) -> None:
        """Add the sentences of one part.

        Parameters
        ----------
        text : TaggedText
            Its sentences.
        skip : int
            Counted sequences at the beginning of the part that are already in the network; they
            count in `part_sequences` and are otherwise skipped.
        """
        begin, end, document, number = self.counted(text)
        self._part_sequences.append(len(begin))
        self._document.append(document[skip:])
        self._sentence.append(number[skip:])
        self._add_sequences(text, begin[skip:], end[skip:])

    def counted(self, text: TaggedText) -> tuple[npt.NDArray[np.int64], ...]:
        """Return first token, end, document and first sentence in the document of each counted sequence of a part.

        Parts of a document are given in order, as to `add_part`. Tags are not looked at.
        """
        options = self._options
        begin, end, document, number = self._sequences(text)
        length = end - begin
        kept = (length > options.seed_tokens) & ((length <= options.maximum_tokens) | options.crop)
        begin = begin[kept]
        return begin, np.minimum(end[kept], begin + options.maximum_tokens), document[kept], number[kept]

    def _sequences(self, text: TaggedText) -> tuple[npt.NDArray[np.int64], ...]:
        """Return begin, end, document and first sentence in the document of each sequence of a part."""
        count, document = len(text), text.document
        edges = np.concatenate([np.zeros(1, np.int64), text.ends])
        changes = np.flatnonzero(np.diff(document)) + 1
        firsts, lasts = np.append(0, changes)[: max(1, count)], np.append(changes, count)
        within = np.arange(count) - np.repeat(firsts, lasts - firsts)
        opens = np.flatnonzero(within % self._options.sentences == 0)
        earlier = np.zeros(count, np.int64)
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True) if count else ():
            of = int(document[first])
            earlier[first:last] = self._document_sentences.get(of, 0)
            self._document_sentences[of] = int(earlier[first]) + last - first
        return (
            edges[opens],
            edges[np.append(opens[1:], count)[: len(opens)]],
            document[opens],
            (within + earlier)[opens],
        )

    def _add_sequences(self, text: TaggedText, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        """Add the tokens of counted sequences, given by their ranges of tokens."""
        tokens = _Tokens.merged(text, begin, end, self._options.merge_dashes)
        nouns = look_up_each(NOUNS.__contains__, tokens.upos).astype(np.bool_)
        noun = nouns[tokens.kind]
        per_sequence = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(noun)])[tokens.offsets])
        length = np.diff(tokens.offsets)
        status = np.where(per_sequence == 0, np.uint8(NO_CONCEPT), np.uint8(CANDIDATE))
        if self._options.drop_short:
            status[length <= self._options.seed_tokens] = TOO_SHORT
        used = np.repeat(status == CANDIDATE, length)
        length[status != CANDIDATE] = 0
        self._status.append(status)
        self._lengths.append(length)
        self._add_tokens(tokens, nouns, tokens.kind[used], np.cumsum(length))

    def _add_tokens(
        self,
        tokens: _Tokens,
        nouns: npt.NDArray[np.bool_],
        kind: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> None:
        """Add symbols and flags; the first probable token of a gap without delimiter is flagged."""
        symbols, surfaces = np.zeros(len(nouns), np.int32), np.full(len(nouns), -1, np.int32)
        flags = np.where(nouns, np.uint8(NOUN), np.uint8(0))
        order = _in_order_of_appearance(kind, len(nouns))
        named, other = order[nouns[order]], order[~nouns[order]]
        symbols[named] = number_more(self._concepts, _lower(tokens.lemmas, named))
        surfaces[named] = number_more(self._surfaces, _lower(tokens.words, named))
        words = _lower(tokens.words, other)
        symbols[other] = number_more(self._features, words)
        if self._options.word_flags:
            found = look_up_each(self._flags_of, words, words, repeat(""))
            # A word that ends a column does not also do so probably.
            found[(found & DELIMITER) != 0] = DELIMITER
        else:
            found = look_up_each(self._flags_of, words, _lower(tokens.lemmas, other), names_of(tokens.xpos, other))
        flags[other] = found
        flag = flags[kind]
        if not self._options.word_flags:
            keep: Any = _keep_first_probable
            keep(flag, ends)
        if self._options.parts_of_speech:
            flag |= np.array([POS_FLAGS.get(part, 0) for part in tokens.upos], np.uint8)[kind]
        self._symbol.append(symbols[kind])
        self._surface.append(surfaces[kind])
        self._flags.append(flag)

    def build(self) -> TaggedBlock:
        """Return the block."""
        return TaggedBlock(
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(_joined(self._lengths, np.int64))]),
            status=_joined(self._status, np.uint8),
            symbol=_joined(self._symbol, np.int32),
            flags=_joined(self._flags, np.uint8),
            surface=_joined(self._surface, np.int32),
            document=_joined(self._document, np.int32),
            sentence=_joined(self._sentence, np.int32),
            concepts=tuple(self._concepts),
            features=tuple(self._features),
            surfaces=tuple(self._surfaces),
            part_sequences=tuple(self._part_sequences),
            document_sentences=tuple(self._document_sentences.items()),
        )


class RawBlockBuilder(BlockBuilder):
    """Collect sentences of raw words, in order, into a `TaggedBlock`.

    Parameters
    ----------
    options : FilterOptions
        Limits and rules for sentences.
    """

    def __init__(self, options: FilterOptions) -> None:
        super().__init__(EverPos(), options)

    def _add_sequences(self, text: TaggedText, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(end - begin)])
        at = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], end - begin)
        entry, symbols = text.entry[at], np.zeros(len(text.forms), np.int32)
        order = _in_order_of_appearance(entry, len(text.forms))
        symbols[order] = number_more(self._features, _lower(text.forms, order))
        self._status.append(np.full(len(begin), CANDIDATE, np.uint8))
        self._lengths.append(end - begin)
        self._symbol.append(symbols[entry])

    def build(self) -> TaggedBlock:
        """Return the block; its surfaces are its features, for every token."""
        block = super().build()
        flags = np.zeros(len(block.symbol), np.uint8)
        return replace(block, flags=flags, surface=block.symbol, surfaces=block.features)


class _Tokens(NamedTuple):
    """Tokens of sequences after noun merging, as numbers of kinds.

    Attributes
    ----------
    words, lemmas, upos, xpos : list of str
        Fields of each kind; upos and xpos of merged nouns are those of the first.
    kind : ndarray
        Kind of each token; int64.
    offsets : ndarray
        Sequence q has the tokens ``offsets[q]:offsets[q + 1]``; int64.
    """

    words: list[str]
    lemmas: list[str]
    upos: list[str]
    xpos: list[str]
    kind: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def merged(
        cls, text: TaggedText, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], dashes: bool
    ) -> _Tokens:
        """Return the tokens of the sequences with the given ranges, with runs of nouns merged."""
        marks = _merging(text, dashes)
        merge: Any = _merge
        first, last, offsets = merge(marks[text.entry], begin, end)
        kind = text.entry[first]
        words, lemmas, upos, xpos = map(list, (text.forms, text.lemmas, text.upos, text.xpos))
        runs: dict[bytes, int] = {}
        for at in np.flatnonzero(last - first > 1).tolist():
            tokens = slice(int(first[at]), int(last[at]))
            key = text.entry[tokens].tobytes()
            if (known := runs.get(key)) is None:
                known = runs[key] = len(words)
                merged = merge_nouns(text.between(tokens.start, tokens.stop), dashes)
                words += merged.words
                lemmas += merged.lemmas
                upos += merged.upos
                xpos += merged.xpos
            kind[at] = known
        return cls(words, lemmas, upos, xpos, kind, offsets)


# Marks of a token for the merging of nouns, as a sum.
_IS_NOUN, _JOINS, _JOINS_AS_NOUN = 1, 2, 4


def _merging(text: TaggedText, dashes: bool) -> npt.NDArray[np.uint8]:
    """Return the marks of the entries: noun, dash that joins two nouns, and whether it does so though it is a noun."""
    joined = _DASHES if dashes else _HYPHEN
    joins = look_up_each(joined.__contains__, text.forms) | look_up_each(joined.__contains__, text.lemmas)
    marks = _IS_NOUN * look_up_each(NOUNS.__contains__, text.upos) + (_JOINS + _JOINS_AS_NOUN * dashes) * joins
    return marks.astype(np.uint8)


@compiled(nb.types.UniTuple(nb.int64[::1], 3)(nb.uint8[::1], nb.int64[::1], nb.int64[::1]))
def _merge(marks, begin, end):  # type: ignore[no-untyped-def]
    """Return begin and end of each token after merging (see `merge_nouns`), and the offsets of the sequences."""
    total = 0
    for sequence in range(len(begin)):
        total += end[sequence] - begin[sequence]
    first, last = np.empty(total, np.int64), np.empty(total, np.int64)
    offsets = np.zeros(len(begin) + 1, np.int64)
    found = 0
    for sequence in range(len(begin)):
        at, stop = begin[sequence], end[sequence]
        while at < stop:
            first[found] = at
            noun = marks[at] & _IS_NOUN
            at += 1
            while noun and at < stop:
                followed = at + 1 < stop and marks[at + 1] & _IS_NOUN
                if marks[at] & _JOINS_AS_NOUN and followed:
                    at += 2
                elif marks[at] & _IS_NOUN:
                    at += 1
                elif marks[at] & _JOINS and followed:
                    at += 2
                else:
                    break
            last[found] = at
            found += 1
        offsets[sequence + 1] = found
    return first[:found].copy(), last[:found].copy(), offsets


@compiled(nb.void(nb.uint8[::1], nb.int64[::1]))
def _keep_first_probable(flags, ends):  # type: ignore[no-untyped-def]
    """Clear the probable flags but that of the first such token between two nouns without delimiter between them."""
    begin = 0
    for end in ends:
        inside, delimited, probable = False, False, -1
        for at in range(begin, end):
            if flags[at] & NOUN:
                if inside and not delimited and probable >= 0:
                    flags[probable] |= PROBABLE
                inside, delimited, probable = True, False, -1
                continue
            if flags[at] & DELIMITER:
                delimited = True
            if flags[at] & PROBABLE:
                flags[at] ^= PROBABLE
                if probable < 0:
                    probable = at
        begin = end


def _in_order_of_appearance(values: npt.NDArray[np.int64], bound: int) -> npt.NDArray[np.int64]:
    """Return the distinct values, which are below a bound, in order of first appearance."""
    first = np.full(bound, len(values), np.int64)
    # The last assignment to an index counts.
    first[values[::-1]] = np.arange(len(values))[::-1]
    found = np.flatnonzero(first < len(values))
    return found[np.argsort(first[found])]


def _lower(names: Sequence[str], numbers: npt.NDArray[np.int64]) -> list[str]:
    """Return the names of numbers in lower case."""
    return list(map(str.lower, names_of(names, numbers)))


def _joined(parts: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values of all parts as one array."""
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)


@functools.lru_cache(maxsize=2)
def _flag_cache(ever_pos: EverPos) -> Callable[[str, str, str], int]:
    """Return a function of (word, lemma, xpos) that remembers det and prb of a token type, as flags."""

    @functools.lru_cache(maxsize=1 << 17)
    def flags_of(word: str, lemma: str, xpos: str) -> int:
        delimiter, probable = ever_pos.delimiter(word, lemma, xpos), ever_pos.probable_delimiter(word, lemma)
        return DELIMITER * delimiter + PROBABLE * probable

    return flags_of
