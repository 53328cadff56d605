"""Read inputs of every kind as a stream of parts of bounded size.

Inputs are files, pipes and standard input in the formats of `formats`, datasets of the Hugging Face hub, and texts in
memory. The boundaries of parts depend only on the content of their file and on
`ReadOptions.part_characters`, so reading again gives the same fingerprints. One part and one line are in memory at a
time. Lines of CoNLL-U are checked where they are read and parsed when they are tagged; only syntactic words are kept.

Does not cover: finding files (`inputs`), decoding (`input_files`), records of files (`records`), sentences and tokens
of text (`splitting`), skipping parts that are in a network already (`ledger`), and encoded corpora (`corpus`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from giaann_dask.errors import EmptyInputError, GiaannError, InputFormatError, InputMissingError
from giaann_dask.lazy import import_optional
from giaann_dask.local_files import BYTE_ORDER_MARK
from giaann_dask.text.formats import COMPRESSED, Format
from giaann_dask.text.input_files import (
    LineReader,
    Opened,
    RemoteInput,
    StandardInput,
    begin_stream,
    is_pipe,
    names_url,
    open_url,
    unreadable,
)
from giaann_dask.text.inputs import DatasetInput, Input, format_of, resolve_inputs
from giaann_dask.text.markup import MARKED_FORMATS, unmarked_blocks
from giaann_dask.text.memory_inputs import MemoryInput, Source, conllu_sentences, require_text
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.records import RECORD_FORMATS, Record, open_lines, read_records, record_id, record_text
from giaann_dask.text.tokens import Part, PartKind, TaggedSentence, TextPlace

__all__ = ["DatasetInput", "read_parts", "resolve_inputs"]

_BEGINNING = TextPlace(0, 0)
_SENTENCE_END = re.compile(r"[.!?][\"'”’»)\]]*\s")


class _Passage(NamedTuple):
    """Passage, the number of its document, where it begins in its file, and the id of its record."""

    text: str
    document: int
    place: TextPlace | None = None
    identifier: str = ""


class _Sentence(NamedTuple):
    """Lines of a CoNLL-U sentence, whether it begins a document, and its first byte in its file."""

    text: str
    begins: bool
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class PartRange:
    """Part of a file, for a process that reads it there (`read_range`).

    Attributes
    ----------
    name : str
        Absolute path or URL of the file.
    source : str
        Name of the file in messages.
    place : TextPlace
        Where the part begins.
    passages, document : int
        Number of passages, and document of the first one.
    options : ReadOptions
        How it is read.
    fingerprint : bytes
        Of the part.
    records : bool
        Whether its documents are records.
    """

    name: str
    source: str
    place: TextPlace
    passages: int
    document: int
    options: ReadOptions
    fingerprint: bytes
    records: bool = False


def locate_part(part: Part, options: ReadOptions) -> PartRange | None:
    """Return where a part can be read again; None where only this process can, such as from a pipe."""
    if part.place is None:
        return None
    name = part.source if names_url(part.source) and not os.path.exists(part.source) else os.path.abspath(part.source)
    plain = replace(options, stop=None, read_as=part.form)
    passages, document = len(part.passages), part.documents[0]
    return PartRange(name, part.source, part.place, passages, document, plain, part.fingerprint(), part.records)


def read_range(located: PartRange) -> Part:
    """Read a part that another process has read before.

    Raises
    ------
    InputMissingError
        If this process does not see the same text there.
    """
    place, options = located.place, located.options
    path = Path(located.name)
    try:
        opened = path if path.exists() else open_url(located.name) if names_url(located.name) else path
        form = options.read_as or "text"
        passages = _file_passages(opened, form, count(located.document), options, place)
        found = list(islice(passages, located.passages))
    except GiaannError as error:
        raise _unseen(located, error.received) from error
    kind: PartKind = "conllu" if form == "conllu" else "text"
    texts, documents = tuple(each.text for each in found), tuple(each.document for each in found)
    part = Part(located.source, kind, texts, documents, records=located.records)
    part = replace(part, identifier=found[0].identifier if found else "")
    if part.fingerprint() != located.fingerprint:
        raise _unseen(located, f"{located.name} has another text there")
    return part


def _unseen(located: PartRange, problem: str) -> InputMissingError:
    return InputMissingError(
        f"text of {located.source!r} cannot be read again: {problem}",
        "a file that this process and all workers see, and that does not change",
        "put it on a file system that all of them share",
    )


def read_parts(
    inputs: Sequence[Source | os.PathLike[str]],
    options: ReadOptions | None = None,
    passed: set[Hashable] | None = None,
    documents: Iterator[int] | None = None,
) -> Iterator[Part]:
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
    passed : set, optional
        Files of earlier calls, which are left out; those of this call are added.
    documents : iterator of int, optional
        Numbers of the documents, those without text among them; from 0 by default.

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
        Immediately, if a file is in a format that is not read; while reading, if a line is too long or malformed, or
        compressed data is damaged.
    """
    options = ReadOptions() if options is None else options
    resolved = resolve_inputs(inputs, options, passed)
    datasets = {each: _open_dataset(each, options) for each in resolved if isinstance(each, DatasetInput)}
    return _read(resolved, datasets, options, count() if documents is None else documents)


def _read(
    resolved: Sequence[Input], datasets: Mapping[DatasetInput, Any], options: ReadOptions, documents: Iterator[int]
) -> Iterator[Part]:
    """Yield the parts of resolved inputs."""
    empty = True
    forms: Iterator[tuple[Format, Iterator[_Passage]]]
    for each in resolved:
        if isinstance(each, DatasetInput):
            forms = iter([("json", _record_passages(_dataset_records(each, datasets[each]), documents, options))])
        elif isinstance(each, MemoryInput) and each.tokenized:
            forms = iter([("conllu", _document_passages(each, documents, options))])
        elif isinstance(each, MemoryInput):
            forms = iter([("json", _record_passages(_memory_records(each, options), documents, options))])
        else:
            forms = _opened_passages(each, documents, options)
        for form, passages in forms:
            kind: PartKind = "conllu" if form == "conllu" else "text"
            records = form in RECORD_FORMATS or isinstance(each, MemoryInput)
            like = Part(str(each), kind, (), (), form=form, records=records)
            for part in _group_passages(passages, options.part_characters, like, _has_ranges(each)):
                empty = False
                yield part
    # There is none where all was read before.
    if empty and resolved:
        raise EmptyInputError("the input holds no text", "at least one sentence", "check the files")


def _file_passages(
    file: Opened, form: Format, documents: Iterator[int], options: ReadOptions, begin: TextPlace = _BEGINNING
) -> Iterator[_Passage]:
    """Yield the passages of a file in a format from a place on."""
    if form in RECORD_FORMATS:
        records = _record_passages(read_records(file, form, options, begin.offset), documents, options)
        return islice(records, begin.before, None)
    if form == "conllu":
        return _conllu_passages(_conllu_sentences(file, options, begin.offset), documents, options)
    if form in MARKED_FORMATS and options.markup == "strip":
        return _unmarked_passages(file, form, next(documents), options)
    return _text_passages(file, next(documents), options, begin)


def _unmarked_passages(file: Opened, form: Format, document: int, options: ReadOptions) -> Iterator[_Passage]:
    """Yield the paragraphs of a marked up file, which have no place in it."""
    for block in unmarked_blocks(open_lines(file, options), form):
        for paragraph in text_paragraphs(block, options.part_characters):
            yield _Passage(paragraph, document)


def _opened_passages(
    opened: Path | StandardInput | RemoteInput, documents: Iterator[int], options: ReadOptions
) -> Iterator[tuple[Format, Iterator[_Passage]]]:
    """Yield the format and the passages of a file, pipe or standard input, once; the latter two are open meanwhile."""
    if isinstance(opened, RemoteInput) or (isinstance(opened, Path) and not _is_stream(opened)):
        form = format_of(opened, options)
        yield form, _file_passages(opened, form, documents, options)
        return
    with begin_stream(opened, options.stop, options.window_log) as begun:
        form = format_of(begun, options)
        yield form, _file_passages(begun, form, documents, options)


def _is_stream(path: Path) -> bool:
    try:
        return is_pipe(path)
    except OSError as error:
        raise unreadable(path, error) from error


def _has_ranges(file: Input) -> bool:
    """Return whether a file can be read from any byte on."""
    if isinstance(file, RemoteInput):
        return file.has_ranges
    return isinstance(file, Path) and file.suffix.lower() not in COMPRESSED and file.is_file()


def _group_passages(passages: Iterable[_Passage], limit: int, empty: Part, ranges: bool) -> Iterator[Part]:
    """Yield copies of the part `empty` with the passages of one file, up to `limit` characters each.

    They have a place with `ranges`. A record is in parts of its own, so that it is the same with any others before it.
    """
    held: list[_Passage] = []
    size = 0

    def part() -> Part:
        first = held[0]
        texts, documents = tuple([each.text for each in held]), tuple([each.document for each in held])
        place = first.place if ranges else None
        # Not by `replace`, which takes several times as long: there may be millions of records.
        return Part(empty.source, empty.kind, texts, documents, place, empty.form, empty.records, first.identifier)

    for each in passages:
        if held and (size + len(each.text) > limit or (empty.records and each.document != held[-1].document)):
            yield part()
            held, size = [], 0
        held.append(each)
        size += len(each.text)
    if held:
        yield part()


def _text_passages(
    path: Opened, document: int, options: ReadOptions, begin: TextPlace = _BEGINNING
) -> Iterator[_Passage]:
    """Yield the paragraphs of a plain text file from a place on."""
    lines = _placed_lines(open_lines(path, options, begin.offset), begin.before)
    for paragraph, place in _placed_paragraphs(lines, options.part_characters):
        yield _Passage(paragraph, document, place)


def _placed_lines(reader: LineReader, index: int) -> Iterator[tuple[str, int, int]]:
    """Yield lines with the place of each, the first one from a character on."""
    for line in reader:
        # Marks are in the middle of a line where files without a newline at their end were joined.
        yield line.replace(BYTE_ORDER_MARK, "")[index:], reader.offset, index
        index = 0


def text_paragraphs(text: str, limit: int) -> Iterator[str]:
    """Return the paragraphs of a text in memory, whose lines may end as on any system; see `paragraphs`."""
    if len(text) <= limit and not any(each in text for each in ("\n", "\r", BYTE_ORDER_MARK)):
        # One line, as most records are.
        return iter(filter(None, (text.strip(),)))
    lines = text.replace(BYTE_ORDER_MARK, "").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return paragraphs(lines, limit)


def paragraphs(lines: Iterable[str], limit: int) -> Iterator[str]:
    """Join the lines between blank ones by spaces; divide paragraphs of more than `limit` characters.

    Examples
    --------
    >>> list(paragraphs(["a mill", " by a river", "", "a baker"], 80))
    ['a mill by a river', 'a baker']
    """
    for paragraph, _ in _placed_paragraphs(((line, 0, 0) for line in lines), limit):
        yield paragraph


def _placed_paragraphs(lines: Iterable[tuple[str, int, int]], limit: int) -> Iterator[tuple[str, TextPlace]]:
    """Return what `paragraphs` does, with the place where each begins, given those of the lines."""
    joined: list[str] = []
    whole: list[tuple[str, int, int]] = []
    size = 0
    for line in lines:
        stripped = line[0].strip()
        if stripped:
            joined.append(stripped)
            whole.append(line)
            size += len(stripped) + 1
        elif joined:
            yield " ".join(joined), TextPlace(*whole[0][1:])
            joined, whole, size = [], [], 0
        while size > limit + 1:
            text = " ".join(joined)
            at = _split_position(text, limit)
            yield text[:at].rstrip(), TextPlace(*whole[0][1:])
            size = len(text[at:].lstrip()) + 1
            joined, whole = _last_characters(joined, whole, size - 1)
    if joined:
        yield " ".join(joined), TextPlace(*whole[0][1:])


def _last_characters(
    joined: Sequence[str], whole: Sequence[tuple[str, int, int]], characters: int
) -> tuple[list[str], list[tuple[str, int, int]]]:
    """Return the last characters of joined lines, line by line, given the lines and their places."""
    for number in reversed(range(len(joined))):
        stripped, (line, offset, index) = joined[number], whole[number]
        if characters <= len(stripped):
            rest = stripped[len(stripped) - characters :]
            index += len(line) - len(line.lstrip()) + len(stripped) - characters
            return [rest, *joined[number + 1 :]], [(rest, offset, index), *whole[number + 1 :]]
        characters -= len(stripped) + 1
    raise AssertionError("more characters than the lines have")


def _split_position(text: str, limit: int) -> int:
    """Return the position to divide a text at: after a sentence, else a word, else `limit` characters."""
    window = text[: limit + 1]
    ends = [match.end() for match in _SENTENCE_END.finditer(window, limit // 2)]
    if ends:
        return ends[-1]
    space = window.rfind(" ")
    return space if space > 0 else limit


def _conllu_passages(
    sentences: Iterable[_Sentence], documents: Iterator[int], options: ReadOptions
) -> Iterator[_Passage]:
    """Yield the lines of groups of whole sentences in CoNLL-U."""
    limit, document = options.part_characters, next(documents)
    group: list[str] = []
    size = 0
    place: TextPlace | None = None
    for sentence, begins, offset in sentences:
        full = size + len(sentence) > limit and len(group) % options.group == 0
        if group and (full or begins):
            yield _Passage("\n".join(group), document, place)
            document = next(documents) if begins else document
            group, size = [], 0
        if not group:
            place = None if offset is None else TextPlace(offset, 0)
        group.append(sentence)
        size += len(sentence) + 1
    if group:
        yield _Passage("\n".join(group), document, place)


def _conllu_sentences(path: Opened, options: ReadOptions, start: int = 0) -> Iterator[_Sentence]:
    """Yield each sentence with words, including comments, from a byte on."""
    reader = open_lines(path, options, start)
    first = start
    lines: list[str] = []
    size = 0
    begins = False
    checked = SentenceLines()
    for line in chain(reader, ("",)):
        if not line or line.isspace():
            checked.end(reader.place)
            if checked.words:
                yield _Sentence("\n".join([*lines, ""]), begins, first)
                begins = False
            lines, size, checked = [], 0, SentenceLines()
            continue
        checked.add(line, reader.place)
        first = first if lines else reader.offset
        begins = begins or (options.newdoc and line.startswith("# newdoc"))
        lines.append(line)
        size += len(line)
        if size > max(options.line_characters, options.part_characters):
            raise InputFormatError(
                f"{reader.place}: the sentence has more than {size - 1} characters",
                "CoNLL-U with a blank line after each sentence",
                "add the blank lines",
            )


def _record_passages(records: Iterable[Record], documents: Iterator[int], options: ReadOptions) -> Iterator[_Passage]:
    """Yield the paragraphs of the text field of records, each record a document."""
    for record in records:
        document = next(documents)
        text, offset = record_text(record, options.text_field), record.offset
        identifier = record_id(record, options.id_field)
        for number, paragraph in enumerate(text_paragraphs(text, options.part_characters)):
            yield _Passage(paragraph, document, None if offset is None else TextPlace(offset, number), identifier)


def _memory_records(texts: MemoryInput, options: ReadOptions) -> Iterator[Record]:
    """Yield the records of texts in memory, each a text or a mapping with a text field."""
    for number, value in enumerate(texts.records(options.text_field), start=1):
        place = f"record {number} of the {texts}"
        if not isinstance(value, Mapping):
            require_text(value, place)
        yield Record({options.text_field: value} if isinstance(value, str) else dict(value), place)


def _document_passages(texts: MemoryInput, documents: Iterator[int], options: ReadOptions) -> Iterator[_Passage]:
    """Yield the lines of groups of whole sentences of spaCy documents."""
    for document in texts.records(options.text_field):
        sentences = (_Sentence(lines, False) for lines in conllu_sentences(document))
        yield from _conllu_passages(sentences, documents, options)


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


def _dataset_records(dataset: DatasetInput, stream: Any) -> Iterator[Record]:
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
        yield Record(value, place)


_COLUMNS = 10
_SHOWN_CHARACTERS = 60
# Identifiers are written without zeros in front, and no sentence has a thousand million words.
_RANGE = re.compile(r"([1-9]\d{0,8})-([1-9]\d{0,8})", re.ASCII)
_EMPTY_NODE = re.compile(r"(0|[1-9]\d{0,8})\.([1-9]\d{0,8})", re.ASCII)


class SentenceLines:
    """Check the lines of a sentence one after the other.

    Words are numbered 1, 2, 3, ... A range (``3-4``) comes before its first word and overlaps no other one; empty nodes
    (``3.1``, ``3.2``) come after the word that they are numbered by.

    Attributes
    ----------
    words : int
        Number of words so far.
    """

    def __init__(self) -> None:
        self.words = 0
        # Last word of the latest range, and number of the latest empty node after a word.
        self._range_end = self._empty_nodes = 0

    def add(self, line: str, place: str) -> None:
        """Add the next line, which is not blank; comments are not looked at.

        Parameters
        ----------
        line : str
            Without its line end.
        place : str
            Its position in the input, for the error.

        Raises
        ------
        InputFormatError
            If it is malformed.
        """
        if line[0] == "#":
            return
        problem = self._problem(line)
        if problem is not None:
            shown = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
            raise InputFormatError(
                f"{place} {problem}: {shown!r}",
                f"CoNLL-U: {_COLUMNS} tab-separated columns that begin with a word's number and form",
                "correct the line",
            )

    def end(self, place: str) -> None:
        """Raise an `InputFormatError` if the sentence may not end here."""
        if self._range_end > self.words:
            raise InputFormatError(
                f"the sentence that ends at {place} ends after word {self.words}, within a range up to word "
                f"{self._range_end}",
                "CoNLL-U with the words of each range",
                "correct the sentence",
            )

    def _problem(self, line: str) -> str | None:
        columns = line.count("\t") + 1
        if columns != _COLUMNS:
            return f"has {columns} tab-separated columns"
        identifier, form, _ = line.split("\t", 2)
        if not form:
            return "has an empty form"
        if identifier == str(self.words + 1):
            self.words += 1
            self._empty_nodes = 0
            return None
        if self._follows(identifier):
            return None
        shown = identifier if len(identifier) <= _SHOWN_CHARACTERS else identifier[:_SHOWN_CHARACTERS] + "…"
        return f"has the identifier {shown!r} where word {self.words + 1} should follow"

    def _follows(self, identifier: str) -> bool:
        """Return whether an identifier is that of a range or an empty node which may come here."""
        if found := _RANGE.fullmatch(identifier):
            first, last = int(found[1]), int(found[2])
            if first != self.words + 1 or first <= self._range_end or last < first:
                return False
            self._range_end = last
            return True
        found = _EMPTY_NODE.fullmatch(identifier)
        if found is None or (int(found[1]), int(found[2])) != (self.words, self._empty_nodes + 1):
            return False
        self._empty_nodes += 1
        return True


def parse_conllu(passage: str) -> list[TaggedSentence]:
    r"""Return the syntactic words of the sentences of a passage, with the spaces between them.

    Ranges (``3-4``) and empty nodes (``3.1``) are left out, fields are not changed (rule
    1.1 of the algorithm), and forms may contain spaces. A sentence without words is left out.

    White space follows a word unless its MISC column has ``SpaceAfter=No``. It never follows a word inside a
    range; after the range's last word, the MISC column of the range decides. It always follows the last word of a
    sentence.

    Parameters
    ----------
    passage : str
        Lines of whole sentences, as `giaann_dask.text.reading` has checked and `SentenceLines` describes them.

    Examples
    --------
    >>> parse_conllu("1\tCats\tcat\tNOUN\tNNS\t_\t_\t_\t_\t_\n")
    [TaggedSentence(forms=('Cats',), lemmas=('cat',), upos=('NOUN',), xpos=('NNS',), spaces=[True])]
    """
    found = []
    for lines in passage.split("\n\n"):
        rows = [line.split("\t") for line in lines.split("\n") if line and line[0] != "#"]
        words = [row for row in rows if row[0].isdigit()]
        if not words:
            continue
        _, forms, lemmas, upos, xpos, *_ = zip(*words, strict=True)
        spaces = list(map(_spaced, words))
        for row in rows:
            first, hyphen, last = row[0].partition("-")
            if hyphen:
                spaces[int(first) - 1 : int(last)] = [*[False] * (int(last) - int(first)), _spaced(row)]
        spaces[-1] = True
        found.append(TaggedSentence(forms, lemmas, upos, xpos, spaces))
    return found


def _spaced(fields: list[str]) -> bool:
    return "SpaceAfter=No" not in fields[-1].split("|")
