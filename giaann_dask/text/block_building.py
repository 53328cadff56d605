"""Build tagged blocks from tagged text: divide it into sequences, merge nouns, number symbols and set flags.

All of it works on arrays of numbers of entries (`tokens`); strings are handled once for each distinct token of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.lazy import compiled
from giaann_dask.text.blocks import (
    CANDIDATE,
    DELIMITER,
    JOINER,
    NO_CONCEPT,
    NOUN,
    NOUNS,
    POS_FLAGS,
    PROBABLE,
    TOO_SHORT,
    FilterOptions,
    TaggedBlock,
    join_nouns,
    mark_underscores,
)
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.lexicon.tables import ValueTable
from giaann_dask.text.tokens import TaggedText, TaggedWord, look_up_each, names_of, number_more

_HYPHEN = frozenset({"-"})
_DASHES = frozenset({"-", "–"})


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
        self._flag_rule = _FlagRule(ever_pos, options.canonical)
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

    def add_part(self, text: TaggedText, skip: int = 0, records: Sequence[int] = ()) -> None:
        """Add the sentences of one part, or of several records that were joined.

        Parameters
        ----------
        text : TaggedText
            Its sentences.
        skip : int
            Counted sequences at the beginning of the part that are already in the network; they
            count in `part_sequences` and are otherwise skipped.
        records : sequence of int
            Numbers of the records, ascending, of which `part_sequences` has each; none of one part.
        """
        begin, end, document, number = self.counted(text)
        if records:
            edges = np.searchsorted(document, np.array([*records, records[-1] + 1]))
            self._part_sequences.extend(np.diff(edges).tolist())
        else:
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
        if self._options.sentences:
            opens = np.flatnonzero(within % self._options.sentences == 0)
            begin, end = edges[opens], edges[np.append(opens[1:], count)[: len(opens)]]
        else:
            begin, end = _windows(edges[firsts], edges[lasts], self._options.maximum_tokens)
            opens = np.searchsorted(edges, begin, side="right") - 1
        earlier = np.zeros(count, np.int64)
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True) if count else ():
            of = int(document[first])
            earlier[first:last] = self._document_sentences.get(of, 0)
            self._document_sentences[of] = int(earlier[first]) + last - first
        return begin, end, document[opens], (within + earlier)[opens]

    def _add_sequences(self, text: TaggedText, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        """Add the tokens of counted sequences, given by their ranges of tokens."""
        tokens = _MergedTokens.merged(text, begin, end, self._options)
        flags = tokens.words.results(self._flag_rule).astype(np.uint8)
        noun = ((flags & NOUN) != 0)[tokens.kind]
        per_sequence = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(noun)])[tokens.offsets])
        length = np.diff(tokens.offsets)
        status = np.where(per_sequence == 0, np.uint8(NO_CONCEPT), np.uint8(CANDIDATE))
        if self._options.drop_short:
            status[length <= self._options.seed_tokens] = TOO_SHORT
        used = np.repeat(status == CANDIDATE, length)
        length[status != CANDIDATE] = 0
        self._status.append(status)
        self._lengths.append(length)
        self._add_tokens(tokens.words, flags, tokens.kind[used], np.cumsum(length))

    def _add_tokens(
        self, words: _WordTable, flags: npt.NDArray[np.uint8], kind: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> None:
        """Add symbols and flags; the first probable token of a gap without delimiter is flagged."""
        order, kind = _in_order_of_appearance(kind, len(words))
        noun = (flags[order] & NOUN) != 0
        symbols, surfaces = np.zeros(len(order), np.int32), np.full(len(order), -1, np.int32)
        name = mark_underscores if self._options.canonical else str
        symbols[noun] = number_more(self._concepts, words.strings(_lower_lemma, order[noun], name))
        surfaces[noun] = number_more(self._surfaces, words.strings(_lower_form, order[noun], name))
        symbols[~noun] = number_more(self._features, words.strings(_lower_form, order[~noun]))
        flag = flags[order][kind]
        if not self._options.canonical:
            keep: Any = _keep_first_probable
            keep(flag, ends)
        if self._options.parts_of_speech:
            flag |= words.results(_part_flag).astype(np.uint8)[order][kind]
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
        order, kind = _in_order_of_appearance(text.entry[at], len(text.entries))
        symbols = number_more(self._features, names_of(text.entries.mapped(_lower_form).values, order))
        self._status.append(np.full(len(begin), CANDIDATE, np.uint8))
        self._lengths.append(end - begin)
        self._symbol.append(symbols.astype(np.int32)[kind])

    def build(self) -> TaggedBlock:
        """Return the block; its surfaces are its features, for every token."""
        block = super().build()
        flags = np.zeros(len(block.symbol), np.uint8)
        return replace(block, flags=flags, surface=block.symbol, surfaces=block.features)


class _WordTable:
    """Distinct words of a part after noun merging, in order of appearance.

    Parameters
    ----------
    entries : ValueTable of TaggedWord
        Words that are not merged.
    merged : list of TaggedWord
        Merged nouns, in order of appearance.
    numbers : ndarray
        Of each word its number in `entries`, or `first_merged` and more for merged nouns; int64.
    first_merged : int
        More than all numbers in `entries`.
    """

    def __init__(
        self,
        entries: ValueTable[TaggedWord],
        merged: Sequence[TaggedWord],
        numbers: npt.NDArray[np.int64],
        first_merged: int,
    ) -> None:
        self._entries, self._merged = entries, merged
        self._numbers, self._first = numbers, first_merged

    def __len__(self) -> int:
        return len(self._numbers)

    def results(self, function: Callable[[TaggedWord], int]) -> npt.NDArray[np.int64]:
        """Return the integer that a function returns for each word."""
        plain = self._numbers < self._first
        found = np.empty(len(plain), np.int64)
        found[plain] = self._entries.results(function)[self._numbers[plain]]
        found[~plain] = look_up_each(function, self._merged)
        return found

    def strings(
        self,
        function: Callable[[TaggedWord], str],
        chosen: npt.NDArray[np.int64],
        name: Callable[[str], str] = str,
    ) -> list[str]:
        """Return the string that a function returns for each of some words, named where the word is not merged."""
        values, first, merged = self._entries.mapped(function).values, self._first, self._merged
        numbers = self._numbers[chosen].tolist()
        return [name(values[number]) if number < first else function(merged[number - first]) for number in numbers]


class _MergedTokens(NamedTuple):
    """Tokens of sequences after noun merging.

    Attributes
    ----------
    words : _WordTable
        Distinct ones.
    kind : ndarray
        Index of each token in `words`; int64.
    offsets : ndarray
        Sequence q has the tokens ``offsets[q]:offsets[q + 1]``; int64.
    """

    words: _WordTable
    kind: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def merged(
        cls, text: TaggedText, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], options: FilterOptions
    ) -> _MergedTokens:
        """Return the tokens of the sequences with the given ranges, with runs of nouns merged."""
        marks = text.entries.results(_dash_marks if options.merge_dashes else _hyphen_marks)
        merge: Any = _merge
        first, last, offsets = merge(marks[text.entry].astype(np.uint8), begin, end)
        number, known = text.entry[first], len(marks)
        runs: dict[bytes, int] = {}
        found: list[TaggedWord] = []
        for at in np.flatnonzero(last - first > 1).tolist():
            tokens = slice(int(first[at]), int(last[at]))
            key = text.entry[tokens].tobytes()
            if key not in runs:
                runs[key] = known + len(found)
                entries = text.entry[tokens].tolist()
                words = [text.entries.values[entry] for entry in entries]
                found.append(_merged_noun(words, marks[entries].tolist(), options.canonical))
            number[at] = runs[key]
        numbers, kind = _in_order_of_appearance(number, known + len(found))
        return cls(_WordTable(text.entries, found, numbers, known), kind, offsets)


def _merged_noun(words: Sequence[TaggedWord], marks: Sequence[int], marked: bool) -> TaggedWord:
    """Return the lower-cased word of a run of nouns that `_merge` has found, with the tags of the first one.

    Parameters
    ----------
    words : sequence of TaggedWord
        Two or more nouns, some with a dash between them, which becomes a hyphen.
    marks : sequence of int
        Of each word.
    marked : bool
        Whether underscores of nouns are marked (see `giaann_dask.text.blocks`).
    """
    name, join = (mark_underscores, join_nouns) if marked else (str, _join)
    form, lemma, joiner = name(words[0].form), name(words[0].lemma), JOINER
    for at, (word, mark) in enumerate(zip(words[1:], marks[1:], strict=True), 1):
        followed = at + 1 < len(words) and marks[at + 1] & _IS_NOUN
        if joiner == JOINER and (not mark & _IS_NOUN or (mark & _JOINS_AS_NOUN and followed)):
            joiner = "-"
            continue
        form, lemma, joiner = join(form, joiner, name(word.form)), join(lemma, joiner, name(word.lemma)), JOINER
    return TaggedWord(form.lower(), lemma.lower(), words[0].upos, words[0].xpos)


def _join(names: str, joiner: str, name: str) -> str:
    return names + joiner + name


def _windows(
    begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64], length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return begin and end of windows of a length that follow one another in each of some ranges of tokens.

    Examples
    --------
    >>> [each.tolist() for each in _windows(np.array([0, 7, 7]), np.array([7, 7, 9]), 3)]
    [[0, 3, 6, 7], [3, 6, 7, 9]]
    """
    windows = -((begin - end) // length)
    of = np.repeat(np.arange(len(begin)), windows)
    first = begin[of] + length * (np.arange(len(of)) - (np.cumsum(windows) - windows)[of])
    return first, np.minimum(first + length, end[of])


# Marks of a token for the merging of nouns, as a sum: noun, dash that joins two nouns, and whether it does so though it
# is a noun.
_IS_NOUN, _JOINS, _JOINS_AS_NOUN = 1, 2, 4


def _hyphen_marks(word: TaggedWord) -> int:
    """Return the marks of a token where a hyphen joins nouns."""
    return _IS_NOUN * (word.upos in NOUNS) + _JOINS * (word.form in _HYPHEN or word.lemma in _HYPHEN)


def _dash_marks(word: TaggedWord) -> int:
    """Return the marks of a token where an en dash joins nouns, too."""
    joins = word.form in _DASHES or word.lemma in _DASHES
    return _IS_NOUN * (word.upos in NOUNS) + (_JOINS + _JOINS_AS_NOUN) * joins


@compiled(nb.types.UniTuple(nb.int64[::1], 3)(nb.uint8[::1], nb.int64[::1], nb.int64[::1]))
def _merge(marks, begin, end):  # type: ignore[no-untyped-def]
    """Return begin and end of each token after merging, and the offsets of the sequences.

    Maximal runs of nouns are one token, including a single dash between two of them.
    """
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


def _lower_form(word: TaggedWord) -> str:
    return word.form.lower()


def _lower_lemma(word: TaggedWord) -> str:
    return word.lemma.lower()


def _part_flag(word: TaggedWord) -> int:
    return POS_FLAGS.get(word.upos, 0)


def _in_order_of_appearance(
    values: npt.NDArray[np.int64], bound: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct values in order of first appearance, and the index of each value in them.

    Parameters
    ----------
    values : ndarray
        From 0 to `bound`, exclusive; int64.
    bound : int
        Upper bound.

    Examples
    --------
    >>> _in_order_of_appearance(np.array([5, 3, 5, 4]), 6)
    (array([5, 3, 4]), array([0, 1, 0, 2]))
    """
    order: Any = _order
    found: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] = order(values, bound)
    return found


@compiled(nb.types.UniTuple(nb.int64[::1], 2)(nb.int64[::1], nb.int64))
def _order(values, bound):  # type: ignore[no-untyped-def]
    # The index of each value counted from 1, 0 for none.
    numbers = np.zeros(bound, np.int32)
    distinct, index = np.empty(min(bound, len(values)), np.int64), np.empty(len(values), np.int64)
    found = 0
    for at, value in enumerate(values):
        number = numbers[value]
        if number == 0:
            distinct[found] = value
            found += 1
            number = numbers[value] = found
        index[at] = number - 1
    return distinct[:found].copy(), index


def _joined(parts: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values of all parts as one array."""
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class _FlagRule:
    """Return the flags of a token by a lexicon: ``NOUN``, or a sum of det and prb.

    Parameters
    ----------
    ever_pos : EverPos
        Lexicon that decides.
    word_alone : bool
        Whether lemma and tag are not looked at, and a word that ends a column does not also do so probably.
    """

    ever_pos: EverPos
    word_alone: bool

    def __call__(self, token: TaggedWord) -> int:
        if token.upos in NOUNS:
            return NOUN
        word = token.form.lower()
        lemma, xpos = (word, "") if self.word_alone else (token.lemma.lower(), token.xpos)
        delimiter, probable = self.ever_pos.delimiter(word, lemma, xpos), self.ever_pos.probable_delimiter(word, lemma)
        if delimiter and self.word_alone:
            return DELIMITER
        return DELIMITER * delimiter + PROBABLE * probable
