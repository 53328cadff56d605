"""Build tagged blocks: filtered, cropped and noun-merged sequences with block-local symbol tables.

A tagged block holds everything that a worker can compute without the preceding blocks: sentences joined to sequences,
the length filter, cropping, noun merging, the delimiter properties of each token within its own sentence, and symbol
tables in order of first appearance. Blocks of raw words, for profile ``best``, have every word as a feature.

Identifiers in the network's dictionaries are in `vocabulary`, columns, which depend on stored flags, in
`segmentation`, and subwords in `subword_blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import OptionError, parameter
from giaann_dask.spec import PARTS_OF_SPEECH, Specification
from giaann_dask.text.conllu import parse_conllu
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.splitting import Splitter
from giaann_dask.text.tokens import Part, Sentence, SpacedSentence, TaggedSentence

NOUNS = frozenset({"NOUN", "PROPN"})
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


Documents: TypeAlias = Iterable[tuple[int, Sequence[Sentence]]]


def group_sentences(documents: Documents, size: int) -> Iterator[tuple[int, int, Sentence]]:
    """Yield the sequences of a part: document, number of sentences and their tokens.

    Parameters
    ----------
    documents : iterable of (int, sequence of TaggedSentence or SpacedSentence)
        Document number and sentences of every passage, in order.
    size : int
        Sentences per sequence, counted from the document's first sentence in the part; the last
        sequence of a document may have fewer.

    Examples
    --------
    >>> one = TaggedSentence(["a"], ["a"], ["X"], [""])
    >>> [(d, n, s.forms) for d, n, s in group_sentences([(0, [one]), (0, [one, one]), (1, [one])], 2)]
    [(0, 2, ['a', 'a']), (0, 1, ['a']), (1, 1, ['a'])]
    """
    if size == 1:
        for document, sentences in documents:
            for sentence in sentences:
                yield document, 1, sentence
        return
    for document, passages in groupby(documents, key=lambda passage: passage[0]):
        group: list[Sentence] = []
        for _, sentences in passages:
            for sentence in sentences:
                group.append(sentence)
                if len(group) == size:
                    yield document, size, join_sentences(group)
                    group = []
        if group:
            yield document, len(group), join_sentences(group)


def join_sentences(sentences: Sequence[Sentence]) -> Sentence:
    """Return one sentence with the tokens of several sentences of the same type."""
    words = TaggedSentence(
        list(chain.from_iterable(sentence.forms for sentence in sentences)),
        list(chain.from_iterable(sentence.lemmas for sentence in sentences)),
        list(chain.from_iterable(sentence.upos for sentence in sentences)),
        list(chain.from_iterable(sentence.xpos for sentence in sentences)),
    )
    spaces = [sentence.spaces for sentence in sentences if isinstance(sentence, SpacedSentence)]
    return SpacedSentence(*words, list(chain.from_iterable(spaces))) if spaces else words


def crop(sentence: Sentence, tokens: int) -> Sentence:
    """Return a sentence's first tokens."""
    if len(sentence.forms) <= tokens:
        return sentence
    forms, lemmas, upos, xpos = sentence[:4]
    words = TaggedSentence(forms[:tokens], lemmas[:tokens], upos[:tokens], xpos[:tokens])
    return SpacedSentence(*words, sentence.spaces[:tokens]) if isinstance(sentence, SpacedSentence) else words


NOUN = 1
DELIMITER = 2
PROBABLE = 4
# The higher bits hold the part of speech: its index in PARTS_OF_SPEECH counted from 1, or 0 for none.
POS_SHIFT = 3
POS_FLAGS = {name: code << POS_SHIFT for code, name in enumerate(PARTS_OF_SPEECH, 1)}

# Maximum sentence length where there is no limit.
UNLIMITED = 1 << 40

CANDIDATE = 0
NO_CONCEPT = 1
NO_DELIMITER = 2
TOO_SHORT = 3
TOO_MANY_BYTES = 4
STATUS_NAMES = ("trained", "no_concept", "no_delimiter", "too_short", "too_many_bytes")


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Limits and rules that select and prepare sentences.

    Parameters
    ----------
    seed_tokens : int
        A raw sentence needs more tokens than this.
    maximum_tokens : int
        A raw sentence has at most this many tokens.
    drop_short : bool
        Drop sentences that merging shortens to `seed_tokens` or fewer before they are added to the
        dictionaries, as inference does and training does not (rules 1.3 and 7.1).
    parts_of_speech : bool
        Keep each token's part of speech, for scaling strengths by it (`giaann_dask.increments.scaling`).
    sentences : int
        Sentences per sequence.
    crop : bool
        Use the first `maximum_tokens` words of a longer sequence instead of leaving it out.
    merge_dashes : bool
        See `giaann_dask.text.blocks.merge_nouns`.
    maximum_subwords, maximum_bytes, column_names
        Options of subword models (see `giaann_dask.text.subword_blocks`).
    raw : bool
        Whether words are used without tags (see `giaann_dask.text.blocks`).
    word_flags : bool
        Whether delimiters depend on the word alone (``flags="canonical"``), not on lemma, tag and neighbours.

    Raises
    ------
    OptionError
        If no sentence can satisfy the limits.
    """

    seed_tokens: int
    maximum_tokens: int
    drop_short: bool = False
    parts_of_speech: bool = False
    sentences: int = 1
    crop: bool = False
    merge_dashes: bool = False
    maximum_subwords: int = 160
    maximum_bytes: int = 2560
    column_names: str = "first"
    raw: bool = False
    word_flags: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed_tokens < self.maximum_tokens:
            raise OptionError(
                f"{parameter('seed_tokens')} is {self.seed_tokens} "
                f"and {parameter('maximum_tokens')} {self.maximum_tokens}",
                f"0 <= {parameter('seed_tokens')} < {parameter('maximum_tokens')}",
                "choose other limits",
            )

    @classmethod
    def of(cls, specification: Specification, *, drop_short: bool = False) -> FilterOptions:
        """Return the options of a network's specification, for training or (`drop_short`) for inference."""
        if not specification.has_columns:
            return cls(seed_tokens=0, maximum_tokens=UNLIMITED, raw=True)
        return cls(
            seed_tokens=specification.seed_tokens,
            maximum_tokens=specification.maximum_tokens,
            drop_short=drop_short,
            # Only training scales strengths by them; inference is the case with drop_short.
            parts_of_speech=bool(specification.pos_factors) and not drop_short,
            sentences=specification.sentences_per_sequence,
            crop=specification.crop,
            merge_dashes=specification.merge_dashes,
            maximum_subwords=specification.maximum_subwords,
            maximum_bytes=specification.maximum_bytes,
            column_names=specification.column_names,
            word_flags=specification.flags == "canonical",
        )


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class TaggedBlock:
    """Sequences of consecutive parts that pass the length filter (counted sequences).

    Attributes
    ----------
    offsets : ndarray
        Sequence q has the tokens ``offsets[q]:offsets[q + 1]``; int64, shape ``(sequences + 1,)``.
        Sequences that are not candidates do not change any dictionary and have no tokens here.
    status : ndarray
        ``CANDIDATE``, ``NO_CONCEPT``, ``TOO_SHORT`` or ``TOO_MANY_BYTES`` per sequence, uint8.
    symbol : ndarray
        Per token the index into `concepts` for a noun, into `features` for any other; int32.
    flags : ndarray
        Per token a sum of ``NOUN``, ``DELIMITER`` (det) and ``PROBABLE`` (prbctx), and of the part of speech
        in the higher bits (``POS_SHIFT``) where parts of speech are kept; uint8.
    surface : ndarray
        Per noun token the index of its word in `surfaces`, -1 for any other; int32.
    document, sentence : ndarray
        Origin of each sequence: document of the input, and sentence within the document, counted
        from the document's first sentence in this block; int32.
    concepts, features, surfaces : tuple of str
        Noun lemmas, other words and noun words, in order of first appearance.
    part_sequences : tuple of int
        Counted sequences of each part, including skipped ones.
    document_sentences : tuple of (int, int)
        Document number and number of sentences in this block, in order.
    own_flags : bool
        Whether columns depend on the flags of the sequence's own tokens instead of the stored flags.
    """

    offsets: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    symbol: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]
    surface: npt.NDArray[np.int32]
    document: npt.NDArray[np.int32]
    sentence: npt.NDArray[np.int32]
    concepts: tuple[str, ...]
    features: tuple[str, ...]
    surfaces: tuple[str, ...]
    part_sequences: tuple[int, ...]
    document_sentences: tuple[tuple[int, int], ...]
    own_flags: bool = False

    def __len__(self) -> int:
        """Return the number of counted sequences."""
        return len(self.status)

    @property
    def noun(self) -> npt.NDArray[np.bool_]:
        """Mask of the noun tokens; bool, shape ``(tokens,)``."""
        marked: npt.NDArray[np.bool_] = (self.flags & NOUN) != 0
        return marked


class BlockBuilder:
    """Collect sentences, in order, into a `TaggedBlock`.

    Parameters
    ----------
    ever_pos : EverPos
        Lexicon that decides the delimiters.
    options : FilterOptions
        Limits and rules for sentences.
    """

    def __init__(self, ever_pos: EverPos, options: FilterOptions) -> None:
        self._options = options
        self._delimits = _cached_properties(ever_pos)
        self._lengths: list[int] = []
        self._status: list[int] = []
        self._symbol: list[int] = []
        self._flags: list[int] = []
        self._surface: list[int] = []
        self._document: list[int] = []
        self._sentence: list[int] = []
        self._concepts: dict[str, int] = {}
        self._features: dict[str, int] = {}
        self._surfaces: dict[str, int] = {}
        self._part_sequences: list[int] = []
        self._document_sentences: dict[int, int] = {}

    def add_part(self, documents: Documents, skip: int = 0) -> None:
        """Add the sentences of one part.

        Parameters
        ----------
        documents : iterable of (int, sequence of TaggedSentence or SpacedSentence)
            Document number and sentences of every passage, in order.
        skip : int
            Counted sequences at the beginning of the part that are already in the network; they
            count in `part_sequences` and are otherwise skipped.
        """
        counted = 0
        options = self._options
        for document, size, sentence in group_sentences(documents, options.sentences):
            number = self._document_sentences.get(document, 0)
            self._document_sentences[document] = number + size
            length = len(sentence.forms)
            if length > options.seed_tokens and (options.crop or length <= options.maximum_tokens):
                counted += 1
                if counted > skip:
                    self._document.append(document)
                    self._sentence.append(number)
                    self._add_sequence(crop(sentence, options.maximum_tokens))
        self._part_sequences.append(counted)

    def _add_sequence(self, sentence: Sentence) -> None:
        """Add the tokens of a counted sequence."""
        self._add_merged(merge_nouns(sentence, self._options.merge_dashes))

    def _add_merged(self, merged: MergedSentence) -> None:
        if self._options.drop_short and len(merged.words) <= self._options.seed_tokens:
            self._status.append(TOO_SHORT)
            self._lengths.append(0)
        elif not any(merged.nouns):
            self._status.append(NO_CONCEPT)
            self._lengths.append(0)
        else:
            self._status.append(CANDIDATE)
            self._lengths.append(len(merged.words))
            self._add_tokens(merged)

    def _add_tokens(self, merged: MergedSentence) -> None:
        """Add symbols and flags; the first probable token of a gap without delimiter is flagged."""
        words, lemmas, xpos, nouns, upos = merged
        start = len(self._flags)
        flags, last_noun, gap_delimiter, gap_probable = self._flags, False, False, -1
        word_flags = self._options.word_flags
        for word, lemma, tag, noun in zip(words, lemmas, xpos, nouns, strict=True):
            if noun:
                if last_noun and not gap_delimiter and gap_probable >= 0:
                    flags[gap_probable] |= PROBABLE
                last_noun, gap_delimiter, gap_probable = True, False, -1
                flags.append(NOUN)
                self._symbol.append(self._concepts.setdefault(lemma, len(self._concepts)))
                self._surface.append(self._surfaces.setdefault(word, len(self._surfaces)))
                continue
            if word_flags:
                delimiter, probable = self._delimits(word, word, "")
                flags.append(DELIMITER if delimiter else PROBABLE if probable else 0)
            else:
                delimiter, probable = self._delimits(word, lemma, tag)
                gap_delimiter = gap_delimiter or delimiter
                if probable and gap_probable < 0:
                    gap_probable = len(flags)
                flags.append(DELIMITER if delimiter else 0)
            self._symbol.append(self._features.setdefault(word, len(self._features)))
            self._surface.append(-1)
        if self._options.parts_of_speech:
            for at, part in enumerate(upos, start):
                flags[at] |= POS_FLAGS.get(part, 0)

    def build(self) -> TaggedBlock:
        """Return the block."""
        return TaggedBlock(
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lengths, dtype=np.int64)]),
            status=np.array(self._status, np.uint8),
            symbol=np.array(self._symbol, np.int32),
            flags=np.array(self._flags, np.uint8),
            surface=np.array(self._surface, np.int32),
            document=np.array(self._document, np.int32),
            sentence=np.array(self._sentence, np.int32),
            concepts=tuple(self._concepts),
            features=tuple(self._features),
            surfaces=tuple(self._surfaces),
            part_sequences=tuple(self._part_sequences),
            document_sentences=tuple(self._document_sentences.items()),
        )


def _cached_properties(ever_pos: EverPos) -> Callable[[str, str, str], tuple[bool, bool]]:
    """Return a function of (word, lemma, xpos) that computes det and prb and caches them per token type."""
    cache: dict[tuple[str, str, str], tuple[bool, bool]] = {}

    def properties(word: str, lemma: str, xpos: str) -> tuple[bool, bool]:
        key = (word, lemma, xpos)
        found = cache.get(key)
        if found is None:
            found = ever_pos.delimiter(word, lemma, xpos), ever_pos.probable_delimiter(word, lemma)
            cache[key] = found
        return found

    return properties


class RawBlockBuilder(BlockBuilder):
    """Collect sentences of raw words, in order, into a `TaggedBlock`.

    Parameters
    ----------
    options : FilterOptions
        Limits and rules for sentences.
    """

    def __init__(self, options: FilterOptions) -> None:
        super().__init__(EverPos(), options)

    def _add_sequence(self, sentence: Sentence) -> None:
        self._status.append(CANDIDATE)
        self._lengths.append(len(sentence.forms))
        self._symbol.extend(self._features.setdefault(word.lower(), len(self._features)) for word in sentence.forms)

    def build(self) -> TaggedBlock:
        """Return the block; its surfaces are its features, for every token."""
        block = super().build()
        flags = np.zeros(len(block.symbol), np.uint8)
        return replace(block, flags=flags, surface=block.symbol, surfaces=block.features)


def raw_sentences(part: Part) -> Iterator[tuple[int, list[TaggedSentence]]]:
    """Yield the document and the sentences of each passage of a part, without tags.

    Raises
    ------
    InputFormatError
        If a CoNLL-U line is malformed.
    """
    if part.kind == "conllu":
        for document, passage in zip(part.documents, part.passages, strict=True):
            yield document, parse_conllu(passage, part.source)
        return
    for document, sentences in zip(part.documents, Splitter().split(part.passages), strict=True):
        yield document, [_untagged(words) for words in sentences]


def _untagged(words: Sequence[str]) -> TaggedSentence:
    empty = [""] * len(words)
    return TaggedSentence(words, empty, empty, empty)
