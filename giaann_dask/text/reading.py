"""Read inputs of every kind as a stream of parts of bounded size.

Inputs are plain text, CoNLL-U and JSON lines, each also gzipped, standard input, datasets of the Hugging Face hub, and
texts in memory. The boundaries of parts depend only on the content of their file and on
`ReadOptions.part_characters`, so reading again gives the same fingerprints. One part and one line are in memory at a
time.

Does not cover: finding files (`inputs`), decoding (`lines`), sentences and tokens (`splitting`, `conllu`), skipping
parts that are in a network already (`ledger`), and encoded corpora (`corpus`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from giaann_dask.errors import (
    EmptyInputError,
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    OptionError,
    parameter,
)
from giaann_dask.lazy import import_optional
from giaann_dask.text.conllu import line_problem, malformed_line
from giaann_dask.text.inputs import (
    CONLLU_SUFFIXES,
    JSON_SUFFIXES,
    DatasetInput,
    Input,
    content_suffix,
    resolve_inputs,
)
from giaann_dask.text.lines import LineReader, StandardInput
from giaann_dask.text.memory_inputs import MemoryInput, Source, conllu_sentences
from giaann_dask.text.remote_inputs import RemoteInput
from giaann_dask.text.strings import text_fault
from giaann_dask.text.tokens import Part, PartKind

__all__ = ["DatasetInput", "ReadOptions", "read_parts", "resolve_inputs"]

_SENTENCE_END = re.compile(r"[.!?][\"'”’»)\]]*\s")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of reading inputs.

    Parameters
    ----------
    part_characters : int
        Maximum size of a part. Longer paragraphs are divided, longer CoNLL-U sentences are
        not. Text read with another value has other parts, so it counts as new. Where several sentences
        make a sequence (profile ``v2``), plain text ends one at the end of a part.
    line_characters : int
        Maximum length of a line.
    text_field : str
        Field of a JSON or dataset record with its text.
    split : str
        Split of a dataset.
    newdoc : bool
        Whether a comment ``# newdoc`` begins a document of CoNLL-U; by default a file is one.
    group : int
        Sentences per sequence: CoNLL-U is divided only after a multiple of these in a document.
    stop : threading.Event, optional
        When it is set, waiting for standard input or a pipe ends with `giaann_dask.text.lines.ReadingStopped`.

    Raises
    ------
    OptionError
        If a number is not positive or a name is empty.
    """

    part_characters: int = 262_144
    line_characters: int = 1_000_000
    text_field: str = "text"
    split: str = "train"
    newdoc: bool = False
    group: int = 1
    stop: Event | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("part_characters", "line_characters", "group"):
            if getattr(self, name) < 1:
                raise OptionError(
                    f"{parameter(name)} is {getattr(self, name)!r}",
                    "at least 1",
                    f"set {parameter(name)} to such a value",
                )
        for name in ("text_field", "split"):
            if not getattr(self, name):
                raise OptionError(f"{parameter(name)} is empty", "a name", "name one or leave it out")


class _Passage(NamedTuple):
    """Passage and the number of its document."""

    text: str
    document: int


class _Record(NamedTuple):
    """Record of JSON lines or of a dataset, and its position for error messages."""

    value: object
    place: str


def read_parts(inputs: Sequence[Source | os.PathLike[str]], options: ReadOptions | None = None) -> Iterator[Part]:
    """Return the parts of all inputs, in order; the inputs are resolved before this returns.

    A text or CoNLL-U file is one document (but see `ReadOptions`); a record of JSON lines or of a
    dataset is one, and so is a text in memory. A passage is a paragraph (lines up to a blank one, joined by spaces)
    or a group of whole CoNLL-U sentences.

    Parameters
    ----------
    inputs : sequence of str, path or MemoryInput
        Files, folders, patterns, URLs, ``-``, ``hf:NAME[:CONFIG]`` or texts; see `resolve_inputs`.
    options : ReadOptions, optional
        Options of reading them.

    Yields
    ------
    Part
        Has at least one passage, all of one file.

    Raises
    ------
    InputMissingError, MissingDependencyError
        Immediately, if an input does not exist or is not accessible.
    EmptyInputError
        Immediately, if a named file is empty; at the end, if no input contained any text.
    InputEncodingError
        While reading, if text is not UTF-8 or contains a NUL byte.
    InputFormatError
        While reading, if a line is too long or malformed, or compressed data is damaged.
    """
    options = ReadOptions() if options is None else options
    resolved = resolve_inputs(inputs)
    datasets = {each: _open_dataset(each, options) for each in resolved if isinstance(each, DatasetInput)}
    return _read(resolved, datasets, options)


def _read(resolved: Iterable[Input], datasets: Mapping[DatasetInput, Any], options: ReadOptions) -> Iterator[Part]:
    """Yield the parts of resolved inputs."""
    documents = count()
    empty = True
    for each in resolved:
        kind: PartKind = "text"
        if isinstance(each, DatasetInput):
            passages = _record_passages(_dataset_records(each, datasets[each]), documents, options)
        elif isinstance(each, MemoryInput) and each.tokenized:
            kind, passages = "conllu", _conllu_passages(_document_sentences(each, options), documents, options)
        elif isinstance(each, MemoryInput):
            passages = _record_passages(_memory_records(each, options), documents, options)
        elif isinstance(each, StandardInput):
            passages = _text_passages(each, next(documents), options)
        elif content_suffix(each.name) in JSON_SUFFIXES:
            passages = _record_passages(_json_records(each, options), documents, options)
        elif content_suffix(each.name) in CONLLU_SUFFIXES:
            kind, passages = "conllu", _conllu_passages(_conllu_sentences(each, options), documents, options)
        else:
            passages = _text_passages(each, next(documents), options)
        for part in _group_passages(passages, options.part_characters, Part(str(each), kind, (), ())):
            empty = False
            yield part
    if empty:
        raise EmptyInputError("the input holds no text", "at least one sentence", "check the files")


def _group_passages(passages: Iterable[_Passage], limit: int, empty: Part) -> Iterator[Part]:
    """Yield copies of the part `empty` with the passages of one file, up to `limit` characters each."""
    texts: list[str] = []
    documents: list[int] = []
    size = 0
    for text, document in passages:
        if texts and size + len(text) > limit:
            yield replace(empty, passages=tuple(texts), documents=tuple(documents))
            texts, documents, size = [], [], 0
        texts.append(text)
        documents.append(document)
        size += len(text)
    if texts:
        yield replace(empty, passages=tuple(texts), documents=tuple(documents))


def _text_passages(path: Path | StandardInput | RemoteInput, document: int, options: ReadOptions) -> Iterator[_Passage]:
    """Yield the paragraphs of a plain text file."""
    # A single carriage return also ends a line (old Macintosh files).
    lines = (piece for line in LineReader(path, options.line_characters, options.stop) for piece in line.split("\r"))
    for paragraph in paragraphs(lines, options.part_characters):
        yield _Passage(paragraph, document)


def text_paragraphs(text: str, limit: int) -> Iterator[str]:
    """Return the paragraphs of a text in memory, whose lines may end as on any system; see `paragraphs`."""
    return paragraphs(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), limit)


def paragraphs(lines: Iterable[str], limit: int) -> Iterator[str]:
    """Join the lines between blank ones by spaces; divide paragraphs of more than `limit` characters.

    Examples
    --------
    >>> list(paragraphs(["a mill", " by a river", "", "a baker"], 80))
    ['a mill by a river', 'a baker']
    """
    joined: list[str] = []
    size = 0
    for line in lines:
        stripped = line.strip()
        if stripped:
            joined.append(stripped)
            size += len(stripped) + 1
        elif joined:
            yield " ".join(joined)
            joined, size = [], 0
        while size > limit + 1:
            text = " ".join(joined)
            at = _split_position(text, limit)
            yield text[:at].rstrip()
            joined = [text[at:].lstrip()]
            size = len(joined[0]) + 1
    if joined:
        yield " ".join(joined)


def _split_position(text: str, limit: int) -> int:
    """Return the position to divide a text at: after a sentence, else a word, else `limit` characters."""
    window = text[: limit + 1]
    ends = [match.end() for match in _SENTENCE_END.finditer(window, limit // 2)]
    if ends:
        return ends[-1]
    space = window.rfind(" ")
    return space if space > 0 else limit


def _conllu_passages(
    sentences: Iterable[tuple[str, bool]], documents: Iterator[int], options: ReadOptions
) -> Iterator[_Passage]:
    """Yield the lines of groups of whole sentences in CoNLL-U; each comes with whether it begins a document."""
    limit, document = options.part_characters, next(documents)
    group: list[str] = []
    size = 0
    for sentence, begins in sentences:
        full = size + len(sentence) > limit and len(group) % options.group == 0
        if group and (full or begins):
            yield _Passage("\n".join(group), document)
            document = next(documents) if begins else document
            group, size = [], 0
        group.append(sentence)
        size += len(sentence) + 1
    if group:
        yield _Passage("\n".join(group), document)


def _conllu_sentences(path: Path | RemoteInput, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    """Yield the lines of each sentence with words, including comments, and whether it begins a document."""
    reader = LineReader(path, options.line_characters, options.stop)
    lines: list[str] = []
    size = 0
    words = 0
    begins = False
    for line in reader:
        problem = line_problem(line, words + 1)
        if problem is not None:
            raise malformed_line(line, problem, reader.place)
        if not line or line.isspace():
            if words:
                yield "\n".join([*lines, ""]), begins
                begins = False
            lines, size, words = [], 0, 0
            continue
        begins = begins or (options.newdoc and line.startswith("# newdoc"))
        lines.append(line)
        size += len(line)
        words += line.partition("\t")[0] == str(words + 1)
        if size > max(options.line_characters, options.part_characters):
            raise InputFormatError(
                f"{reader.place}: the sentence has more than {size - 1} characters",
                "CoNLL-U with a blank line after each sentence",
                "add the blank lines",
            )
    if words:
        yield "\n".join([*lines, ""]), begins


def _record_passages(records: Iterable[_Record], documents: Iterator[int], options: ReadOptions) -> Iterator[_Passage]:
    """Yield the paragraphs of the text field of records, each record a document."""
    for record in records:
        document = next(documents)
        for paragraph in text_paragraphs(_record_text(record, options.text_field), options.part_characters):
            yield _Passage(paragraph, document)


def _record_text(record: _Record, field: str) -> str:
    """Return the text field of a record."""
    value, place = record
    if not isinstance(value, dict):
        raise InputFormatError(f"{place} is not an object", f"an object with a field {field!r}")
    if field not in value:
        names = ", ".join(map(repr, list(value)[:10])) or "none"
        raise InputFormatError(
            f"{place} has no field {field!r}", f"one of its fields: {names}", f"choose {parameter('text_field')}"
        )
    text = value[field]
    if not isinstance(text, str):
        raise InputFormatError(f"{place}: the field {field!r} is a {type(text).__name__}", "text")
    if (fault := text_fault(text)) is not None:
        raise InputEncodingError(f"{place}: the field {field!r} holds {fault}", "text", "remove it")
    return text


def _memory_records(texts: MemoryInput, options: ReadOptions) -> Iterator[_Record]:
    """Yield the records of texts in memory, each a text or a mapping with a text field."""
    for number, value in enumerate(texts.records(options.text_field), start=1):
        place = f"record {number} of the {texts}"
        if not isinstance(value, str | Mapping):
            missing = value is None or value != value
            raise InputFormatError(
                f"{place} is {'missing' if missing else 'a ' + type(value).__name__}",
                "text",
                "leave out what has no text" if missing else "convert it to a string",
            )
        yield _Record({options.text_field: value} if isinstance(value, str) else dict(value), place)


def _document_sentences(texts: MemoryInput, options: ReadOptions) -> Iterator[tuple[str, bool]]:
    """Yield the CoNLL-U lines of each sentence of spaCy documents, and whether it begins a document."""
    for document in texts.records(options.text_field):
        for number, sentence in enumerate(conllu_sentences(document)):
            yield sentence, number == 0


def _json_records(path: Path | RemoteInput, options: ReadOptions) -> Iterator[_Record]:
    """Yield the records of a file of JSON lines; skip blank lines."""
    reader = LineReader(path, options.line_characters, options.stop)
    for line in reader:
        if not line or line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputFormatError(
                f"{reader.place} is not JSON ({error})", "one JSON object a line", "correct the line"
            ) from error
        yield _Record(value, reader.place)


def _open_dataset(dataset: DatasetInput, options: ReadOptions) -> Any:
    """Open a dataset as a stream of records."""
    load = import_optional("datasets", "hub").load_dataset
    try:
        return load(dataset.name, dataset.config, split=options.split, streaming=True)
    # The exceptions depend on the hub's client and its network library.
    except Exception as error:
        raise InputMissingError(
            f"the dataset {str(dataset)!r}, split {options.split!r}, cannot be opened "
            f"({type(error).__name__}: {error})",
            "a dataset on the hub or a local folder of data files",
            "check name, configuration, split and network",
        ) from error


def _dataset_records(dataset: DatasetInput, stream: Any) -> Iterator[_Record]:
    """Yield the records of an opened dataset."""
    records = iter(stream)
    for number in count(1):
        place = f"record {number} of {str(dataset)!r}"
        try:
            value = next(records)
        except StopIteration:
            return
        except Exception as error:
            raise InputFormatError(
                f"{place} cannot be read ({type(error).__name__}: {error})",
                "",
                "check the data and the network",
            ) from error
        yield _Record(value, place)
