"""Convert texts that Python objects hold to an input: lists, iterators, spaCy Docs, data frames, bags and datasets.

A `MemoryInput` yields records, as JSON lines and datasets do; `reading` makes parts of them. Objects of other libraries
are recognised by their class, so that none is imported. Does not cover: files (`inputs`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from numbers import Number
from typing import Any, TypeAlias

from giaann_dask.errors import InputFormatError, OptionError

_SPACES = re.compile(r"\s+")
# Types of pandas, NumPy and Arrow that stand for a missing value.
_MISSING = ("NAType", "NaTType", "MaskedConstant", "NullScalar")
_SHOWN_NAMES = 10
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
    index : pandas.Index, or that of Dask, or None
        Labels of the records of a data frame or of its column.
    """

    name: str
    records: Callable[[str], Iterator[Any]] = field(repr=False)
    tokenized: bool = False
    rereadable: bool = True
    characters: int | None = None
    index: Any = field(default=None, repr=False)

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
    refused = OptionError(
        f"inputs is of type {type(inputs).__name__}",
        "a path, or texts: a list of strings or spaCy Docs, a data frame's column, a bag or a dataset",
        _conversion(inputs),
    )
    # The order of a set differs from process to process, and with it the parts of the text.
    unfit = isinstance(inputs, str | bytes | bytearray | Set) or hasattr(type(inputs), "__dask_graph__")
    if unfit or is_table(inputs) or not isinstance(inputs, Iterable):
        raise refused
    try:
        iterator = iter(inputs)
    except TypeError as error:
        # Such as of an array without axes.
        raise refused from error
    return _iterable_input(inputs, iterator)


def is_table(inputs: object) -> bool:
    """Return whether iterating over an object gives the names of its columns or fields, not what they hold."""
    if isinstance(inputs, Mapping):
        return True
    axes = getattr(inputs, "ndim", None)
    # Objects such as those of `dask.delayed` have every attribute.
    if axes is not None and not (isinstance(axes, int) and axes > 1):
        return False
    return callable(getattr(inputs, "keys", None)) or hasattr(inputs, "columns")


def is_missing(value: object) -> bool:
    """Return whether a value stands for no text: None, a NaN or NaT of any type, ``pandas.NA`` or a null of Arrow.

    Examples
    --------
    >>> is_missing(None), is_missing(float("nan")), is_missing(["text", None])
    (True, True, False)
    """
    if value is None or type(value).__name__ in _MISSING or getattr(value, "is_valid", True) is False:
        return True
    # Objects such as arrays and frames compare to no single truth. NumPy is not imported for the types of its times.
    is_scalar = isinstance(value, Number) or type(value).__name__ in ("datetime64", "timedelta64")
    return is_scalar and bool(value != value)


def find_field(record: Mapping[Any, Any], field: str) -> Any:
    """Return a field of a record; ``content.text`` is the field ``text`` of its field ``content``.

    Raises
    ------
    KeyError
        If there is none.

    Examples
    --------
    >>> find_field({"content": {"text": "A miller sings."}}, "content.text")
    'A miller sings.'
    """
    if field in record:
        return record[field]
    outer, _, inner = field.partition(".")
    within = record[outer] if inner else None
    if not isinstance(within, Mapping):
        raise KeyError(field)
    return find_field(within, inner)


def require_text(value: object, place: str, remedy: str = "leave out what has no text") -> str:
    """Return a value if it is a string.

    Parameters
    ----------
    value : object
        In the place of a text.
    place : str
        Subject of the error: where it is.
    remedy : str
        What to do where it is missing.

    Raises
    ------
    InputFormatError
        If it is another object, or missing.
    """
    if isinstance(value, str):
        return value
    if is_missing(value):
        raise InputFormatError(f"{place} is missing", "text", remedy)
    raise InputFormatError(f"{place} is a {type(value).__name__}", "text", "convert it to a string")


def _iterable_input(inputs: Iterable[Any], iterator: Iterator[Any]) -> MemoryInput:
    """Convert an iterable, whose first element tells the kind of all."""
    rereadable = iterator is not inputs
    first = next(iterator, "")
    tokenized = _is_document(first)
    size = len(inputs) if isinstance(inputs, Sequence) else None
    kind = "documents" if tokenized else "texts"
    name = f"{type(inputs).__name__} of {kind}" if size is None else f"{type(inputs).__name__} of {size:,} {kind}"
    if is_missing(first):
        require_text(first, f"record 1 of the {name}")
    if not tokenized and not isinstance(first, str | Mapping):
        raise OptionError(
            f"inputs holds a {type(first).__name__}",
            "strings, mappings with a text field, or spaCy Docs",
            _conversion(first),
        )
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


def _conversion(found: object) -> str:
    """Return what to do with an object that is no text and does not hold texts."""
    if isinstance(found, os.PathLike):
        return "make a list of the paths"
    if type(found).__name__.endswith("DatasetDict"):
        return "name one of its splits"
    return "give one of its columns" if is_table(found) else "convert what it holds to strings"


def _library_input(inputs: Any) -> MemoryInput | None:
    """Convert columns, data frames, bags and datasets of other libraries; None for other objects."""
    for kind in type(inputs).__mro__:
        name, library = kind.__name__, kind.__module__.partition(".")[0]
        match library, name:
            case "pandas", "Series" | "Index" | "DataFrame":
                index = None if name == "Index" else inputs.index
                return MemoryInput(f"pandas {name} of {len(inputs):,} rows", partial(_column, inputs), index=index)
            case "dask" | "dask_expr", "Bag" | "Series" | "DataFrame":
                # Data frames warn of annotations when they make their graph, and training annotates its tasks.
                index = None if name == "Bag" else inputs.index
                return MemoryInput(f"Dask {name}", partial(_partitions, _delayed_partitions(inputs)), index=index)
            case "datasets", "Dataset" | "IterableDataset":
                return MemoryInput(f"datasets {name}", lambda _: iter(_plain_records(inputs)))
    return None


def _plain_records(dataset: Any) -> Any:
    """Return a dataset whose records are mappings, and not frames or tables of one row; a transform is kept."""
    kind = (getattr(dataset, "format", None) or {}).get("type")
    return dataset if kind == "custom" else dataset.with_format(None)


def _column(frame: Any, column: str) -> Iterator[Any]:
    """Yield the values of a column, or of a data frame's text field."""
    if frame.ndim == 1:
        return iter(frame)
    outer = column.partition(".")[0]
    if column not in frame and outer in frame and outer != column:
        return ({outer: value} for value in frame[outer])
    if column not in frame:
        raise InputFormatError(
            f"the data frame has no column {column!r}",
            f"one of its columns: {_names(frame)}",
            "set text_field, or give the column itself",
        )
    values = frame[column]
    # Of names that occur twice or have several levels.
    if values.ndim != 1:
        raise InputFormatError(
            f"the data frame has {values.shape[1]} columns {column!r}, of its columns {_names(frame)}",
            "one column",
            "give the column itself, as frame.iloc[:, NUMBER]",
        )
    return iter(values)


def _names(frame: Any) -> str:
    """Return the names of the first columns of a data frame."""
    return ", ".join(map(repr, list(frame)[:_SHOWN_NAMES])) or "none"


def _delayed_partitions(collection: Any) -> Iterable[Any]:
    """Return the partitions of a Dask collection, which are not computed yet."""
    try:
        return list(collection.to_delayed())
    # Dask finds no column by a name that has several levels.
    except KeyError as error:
        raise InputFormatError(
            f"Dask finds no column {error} of a data frame with the columns {_names(collection)}",
            "one column",
            "give the column itself, of a data frame whose columns have names of one level",
        ) from error


def _partitions(partitions: Iterable[Any], column: str) -> Iterator[Any]:
    """Yield the texts of the partitions of a Dask collection; one at a time is computed and held."""
    for partition in partitions:
        values = partition.compute()
        held = _library_input(values)
        yield from held.records(column) if held else values


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
        raise InputFormatError(f"inputs holds spaCy Docs and a {type(document).__name__}", "only spaCy Docs")
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
