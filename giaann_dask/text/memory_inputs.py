"""Convert texts that Python objects hold to an input: lists, iterators, spaCy Docs, data frames, bags and datasets.

A `MemoryInput` yields records, as JSON lines and datasets do; `reading` makes parts of them. Objects of other libraries
are recognised by their class, so that none is imported. Does not cover: files (`inputs`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from giaann_dask.errors import InputFormatError, OptionError, parameter

_SPACES = re.compile(r"\s+")
# Annotations of a spaCy document, by the name of the attribute, without which it cannot be divided into columns.
_REQUIRED = (("SENT_START", "sentences"), ("POS", "parts of speech"), ("TAG", "Penn tags"))


@dataclass(frozen=True, eq=False)
class MemoryInput:
    """Texts that a Python object yields, as one input.

    Each text is a document. Its identity in a network's ledger is that of its content, as for files.

    Attributes
    ----------
    name : str
        Description for messages.
    records : callable
        Returns an iterator of texts or of mappings with a text field; its argument is the name of that field. Where
        `tokenized`, an iterator of spaCy documents.
    tokenized : bool
        Whether records are spaCy documents.
    rereadable : bool
        Whether `records` can be called more than once.
    characters : int or None
        Size of the texts, where it is known without reading them.
    """

    name: str
    records: Callable[[str], Iterator[Any]] = field(repr=False)
    tokenized: bool = False
    rereadable: bool = True
    characters: int | None = None

    def __str__(self) -> str:
        """Return the description."""
        return self.name


Source: TypeAlias = str | MemoryInput


def memory_input(inputs: object) -> MemoryInput:
    """Convert a Python object that holds texts to an input.

    Parameters
    ----------
    inputs : object
        An iterable of strings, of mappings with a text field or of spaCy documents; a column or data frame of pandas or
        Dask; a ``dask.bag`` of strings or mappings; or a dataset of Hugging Face ``datasets``, also a streaming one.

    Returns
    -------
    MemoryInput

    Raises
    ------
    OptionError
        If the object is of another kind.

    Examples
    --------
    >>> memory_input(["A miller sings.", "A baker listens."])
    MemoryInput(name='list of 2 texts', tokenized=False, rereadable=True, characters=31)
    """
    found = _library_input(inputs)
    if found is not None:
        return found
    # The order of a set differs from process to process, and with it the parts of the text.
    if isinstance(inputs, str | bytes | bytearray | Mapping | Set) or not isinstance(inputs, Iterable):
        raise OptionError(
            f"{parameter('inputs')} is of type {type(inputs).__name__}",
            "a path, or texts: a list of strings or spaCy Docs, a data frame's column, a bag or a dataset",
            "name one of its splits" if type(inputs).__name__.endswith("DatasetDict") else "",
        )
    return _iterable_input(inputs)


def _iterable_input(inputs: Iterable[Any]) -> MemoryInput:
    """Convert an iterable, whose first element tells the kind of all."""
    iterator = iter(inputs)
    rereadable = iterator is not inputs
    first = next(iterator, "")
    tokenized = _is_document(first)
    if not tokenized and not isinstance(first, str | Mapping):
        raise OptionError(
            f"{parameter('inputs')} holds a {type(first).__name__}",
            "strings, mappings with a text field, or spaCy Docs",
            "make a list of the paths" if isinstance(first, os.PathLike) else "convert what it holds to strings",
        )
    size = len(inputs) if isinstance(inputs, Sequence) else None
    kind = "documents" if tokenized else "texts"
    name = f"{type(inputs).__name__} of {kind}" if size is None else f"{type(inputs).__name__} of {size:,} {kind}"
    left = [chain([first], iterator)]

    def records(text_field: str) -> Iterator[Any]:
        if rereadable:
            return iter(inputs)
        if not left:
            raise OptionError(f"the {name} is read more than once", "a list", "make a list of what the iterator yields")
        return left.pop()

    characters = None
    if size is not None and all(isinstance(item, str) for item in inputs):
        characters = sum(map(len, inputs))
    return MemoryInput(name, records, tokenized, rereadable, characters)


def _library_input(inputs: Any) -> MemoryInput | None:
    """Convert columns, data frames, bags and datasets of other libraries; None for other objects."""
    name, library = type(inputs).__name__, type(inputs).__module__.partition(".")[0]
    match library, name:
        case "pandas", "Series" | "Index" | "DataFrame":
            return MemoryInput(f"pandas {name} of {len(inputs):,} rows", lambda column: _column(inputs, column))
        case "dask" | "dask_expr", "Bag" | "Series" | "DataFrame":
            # Data frames warn of annotations when they make their graph, and training annotates its tasks.
            partitions = inputs.to_delayed()
            return MemoryInput(f"Dask {name}", lambda column: _partitions(partitions, column))
        case "datasets", "Dataset" | "IterableDataset":
            return MemoryInput(f"datasets {name}", lambda column: iter(inputs))
    return None


def _column(frame: Any, column: str) -> Iterator[Any]:
    """Yield the values of a column, or of a data frame's text field."""
    if frame.ndim == 1:
        return iter(frame)
    if column not in frame:
        names = ", ".join(map(repr, list(frame)[:10])) or "none"
        raise InputFormatError(
            f"the data frame has no column {column!r}",
            f"one of its columns: {names}",
            f"set {parameter('text_field')}, or give the column itself",
        )
    return iter(frame[column])


def _partitions(partitions: Iterable[Any], column: str) -> Iterator[Any]:
    """Yield the texts of the partitions of a Dask collection; one at a time is computed and held."""
    for partition in partitions:
        values = partition.compute()
        yield from _column(values, column) if hasattr(values, "ndim") else values


def _is_document(item: object) -> bool:
    return type(item).__name__ == "Doc" and type(item).__module__.partition(".")[0] == "spacy"


def conllu_sentences(document: Any) -> list[str]:
    """Return the CoNLL-U lines of each sentence of a spaCy document: its words, lemmas and tags.

    White space tokens are left out; a word without a lemma has its form as the lemma.

    Raises
    ------
    InputFormatError
        If the object is no document, or has no sentences, parts of speech or Penn tags.
    """
    if not _is_document(document):
        raise InputFormatError(
            f"{parameter('inputs')} holds spaCy Docs and a {type(document).__name__}", "only spaCy Docs"
        )
    for attribute, needed in _REQUIRED:
        if len(document) and not document.has_annotation(attribute):
            raise InputFormatError(
                f"a spaCy Doc has no {needed}",
                "Docs with sentences, parts of speech, Penn tags and lemmas",
                "process texts with a pipeline that sets them, or give the texts themselves",
            )
    sentences = ([token for token in sentence if not token.is_space] for sentence in document.sents)
    return ["".join(_word_line(number, token) for number, token in enumerate(words, 1)) for words in sentences if words]


def _word_line(number: int, token: Any) -> str:
    """Return the line of one token; its last column tells whether white space follows."""
    following = token.i + 1
    spaced = token.whitespace_ or (following < len(token.doc) and token.doc[following].is_space)
    fields = (_SPACES.sub(" ", field) for field in (token.text, token.lemma_ or token.text, token.pos_, token.tag_))
    return "\t".join((str(number), *fields, "_", "_", "_", "_", "_" if spaced else "SpaceAfter=No")) + "\n"
