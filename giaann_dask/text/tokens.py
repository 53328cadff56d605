"""Define the value types of the text layer: parts of the input, and sentences as arrays and as lists.

Text is held as arrays of numbers of types, so that what depends on a word alone is computed once for each distinct
word (`tables`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, filterfalse
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from giaann_dask.text.formats import Format
from giaann_dask.text.lexicon import TaggedWord as TaggedWord
from giaann_dask.text.lexicon.tables import ValueTable

PartKind = Literal["text", "conllu"]
_T = TypeVar("_T")


class TaggedSentence(NamedTuple):
    """Tokens of one sentence with the four fields of CoNLL-U that the model uses.

    Attributes
    ----------
    forms, lemmas, upos, xpos : sequence of str
        One entry per syntactic word, in order, all of the same length.
    spaces : sequence of bool
        Whether white space follows each word, always True for the last one, so that they determine the text; empty
        where that is not known.
    """

    forms: Sequence[str]
    lemmas: Sequence[str]
    upos: Sequence[str]
    xpos: Sequence[str]
    spaces: Sequence[bool] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SplitText:
    """Sentences of tokens without tags.

    Attributes
    ----------
    types : ValueTable of str
        Distinct tokens, and others that the text does not have, in any order.
    type_of : ndarray
        Number of each token in `types`; int64, shape ``(tokens,)``.
    spaced : ndarray
        Whether white space follows each token; always true for the last one of a sentence. Bool, ``(tokens,)``.
    ends : ndarray
        Number of tokens up to the end of each sentence; int64, shape ``(sentences,)``.
    passages : ndarray
        Number of sentences of each passage; int64, shape ``(passages,)``.
    """

    types: ValueTable[str]
    type_of: npt.NDArray[np.int64]
    spaced: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.int64]
    passages: npt.NDArray[np.int64]

    @classmethod
    def of(cls, passages: Iterable[Sequence[TaggedSentence]]) -> SplitText:
        """Return the words of sentences, given by passage, without their tags."""
        passages = list(passages)
        sentences = list(chain.from_iterable(passages))
        types, type_of = number_distinct(chain.from_iterable(sentence.forms for sentence in sentences))
        return cls(
            types=ValueTable(types),
            type_of=type_of,
            spaced=np.array([space for sentence in sentences for space in sentence.spaces], np.bool_),
            ends=np.cumsum([len(sentence.forms) for sentence in sentences], dtype=np.int64),
            passages=np.array([len(passage) for passage in passages], np.int64),
        )

    def sentences(self) -> Iterator[list[str]]:
        """Yield the tokens of each sentence."""
        words = names_of(self.types.values, self.type_of)
        begin = 0
        for end in self.ends.tolist():
            yield words[begin:end]
            begin = end


@dataclass(frozen=True, slots=True, eq=False)
class TaggedText:
    """Sentences of tagged tokens; tokens of equal form, lemma and tags are numbers of one entry of a table.

    Attributes
    ----------
    entries : ValueTable of TaggedWord
        Distinct tokens, and others that the text does not have, in any order.
    entry : ndarray
        Number of each token in `entries`; int64, shape ``(tokens,)``.
    spaced, ends
        See `SplitText`.
    document : ndarray
        Number of the document of each sentence; int64, shape ``(sentences,)``.
    """

    entries: ValueTable[TaggedWord]
    entry: npt.NDArray[np.int64]
    spaced: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.int64]
    document: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.ends)

    @classmethod
    def of(
        cls,
        sentences: Sequence[TaggedSentence],
        spaced: npt.NDArray[np.bool_] | None = None,
        document: npt.NDArray[np.int64] | None = None,
    ) -> TaggedText:
        """Return tagged sentences as arrays.

        Parameters
        ----------
        sentences : sequence of TaggedSentence
            In order.
        spaced : ndarray, optional
            Whether white space follows each token; bool. By default as the sentences say, else after every token.
        document : ndarray, optional
            Document of each sentence; int64. None for document 0.
        """
        tokens = chain.from_iterable(zip(*sentence[:4], strict=True) for sentence in sentences)
        table, entry = number_distinct(tokens)
        entries = ValueTable(TaggedWord(*token) for token in table)
        ends = np.cumsum([len(sentence.forms) for sentence in sentences], dtype=np.int64)
        if spaced is None:
            spaces = (sentence.spaces or [True] * len(sentence.forms) for sentence in sentences)
            spaced = np.array([*chain.from_iterable(spaces)], np.bool_)
        document = np.zeros(len(ends), np.int64) if document is None else document
        return cls(entries, entry, spaced, ends, document)

    def distinct(self) -> list[TaggedWord]:
        """Return the distinct tokens."""
        return [self.entries.values[number] for number in np.unique(self.entry).tolist()]

    def between(self, begin: int, end: int) -> TaggedSentence:
        """Return a range of tokens as one sentence."""
        words = [self.entries.values[number] for number in self.entry[begin:end].tolist()]
        forms, lemmas, upos, xpos = map(list, zip(*words, strict=True)) if words else ([], [], [], [])
        return TaggedSentence(forms, lemmas, upos, xpos, self.spaced[begin:end].tolist())

    def sentences(self) -> Iterator[TaggedSentence]:
        """Yield each sentence."""
        begin = 0
        for end in self.ends.tolist():
            yield self.between(begin, end)
            begin = end


def number_distinct(values: Iterable[_T]) -> tuple[list[_T], npt.NDArray[np.int64]]:
    """Return the distinct values in order of first appearance, and the index of each value in them.

    Examples
    --------
    >>> number_distinct("abba")
    (['a', 'b'], array([0, 1, 1, 0]))
    """
    index: dict[_T, int] = {}
    numbers = number_more(index, list(values))
    return list(index), numbers


def number_more(index: dict[_T, int], values: Sequence[_T]) -> npt.NDArray[np.int64]:
    """Return the number of each value in an index, to which new values are added in order of first appearance.

    Examples
    --------
    >>> index = {"a": 0}
    >>> number_more(index, "bcab"), index
    (array([1, 2, 0, 1]), {'a': 0, 'b': 1, 'c': 2})
    """
    new = filterfalse(index.__contains__, dict.fromkeys(values))
    index.update(zip(new, count(len(index)), strict=False))
    return look_up_each(index.__getitem__, values)


def look_up_each(function: Callable[..., int], *arguments: Iterable[Any]) -> npt.NDArray[np.int64]:
    """Return the numbers that a function returns for the elements of sequences, taken together as by ``map``."""
    return np.fromiter(map(function, *arguments), np.int64)


def names_of(names: Sequence[str], numbers: npt.NDArray[np.int64]) -> list[str]:
    """Return the names of numbers."""
    return list(map(names.__getitem__, numbers.tolist()))


class TextPlace(NamedTuple):
    """Position of the beginning of a passage in a file.

    Attributes
    ----------
    offset : int
        First byte of a line.
    before : int
        Characters of that line before the passage; of JSON lines, paragraphs of its record.
    """

    offset: int
    before: int


@dataclass(frozen=True, slots=True)
class Part:
    """Piece of one input file or dataset, the unit of the ledger.

    Attributes
    ----------
    source : str
        Path or dataset name, for error messages.
    kind : {"text", "conllu"}
        Whether passages are running text (a paragraph or a record each) or CoNLL-U lines.
    passages : tuple of str
        Whole paragraphs, records, or groups of whole CoNLL-U sentences.
    documents : tuple of int
        Number of the document that each passage belongs to, counted from 0 over the whole
        input; same length as `passages`.
    place : TextPlace or None
        Where it begins, in a file that can be read from any byte on.
    form : str
        Format of the file.
    records : bool
        Whether its documents are records, each of which is a part of its own in the ledger.
    identifier : str
        Id of its record; empty where it has none.
    """

    source: str
    kind: PartKind
    passages: tuple[str, ...]
    documents: tuple[int, ...]
    place: TextPlace | None = field(default=None, compare=False)
    form: Format = field(default="text", compare=False)
    records: bool = field(default=False, compare=False)
    identifier: str = ""

    @property
    def characters(self) -> int:
        """Number of characters of all passages."""
        return sum(map(len, self.passages))

    def fingerprint(self) -> bytes:
        """Return 16 bytes that identify the content, independent of its source.

        Examples
        --------
        >>> a = Part("a.txt", "text", ("One.",), (0,))
        >>> b = Part("b.txt", "text", ("One.",), (7,))
        >>> a.fingerprint() == b.fingerprint()
        True
        """
        # Parts without an id have the fingerprint of their text alone.
        digest = hashlib.blake2b(self.kind.encode(), digest_size=16, person=b"id" if self.identifier else b"")
        if self.identifier:
            encoded = self.identifier.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        for passage in self.passages:
            digest.update(len(passage).to_bytes(8, "little"))
            digest.update(passage.encode("utf-8"))
        return digest.digest()
