"""Read records of JSON lines, CSV, TSV, Parquet and Arrow as mappings, with bounded memory.

Of a table only the columns that are asked for are read, some rows at a time. CSV is divided as Python's ``csv`` does,
by the one of ``, ; TAB |`` that gives the header the column with the text. Parquet and Arrow are read by pyarrow.

Does not cover: which format a file has (`formats`), and paragraphs of texts (`reading`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from giaann_dask.errors import GiaannError, InputEncodingError, InputFormatError, UnreadFormatError
from giaann_dask.lazy import import_optional
from giaann_dask.representations import text_fault
from giaann_dask.text.formats import Format
from giaann_dask.text.input_files import LineReader, Opened, open_bytes
from giaann_dask.text.memory_inputs import find_field, require_text
from giaann_dask.text.read_options import ReadOptions

RECORD_FORMATS: tuple[Format, ...] = ("json", "csv", "tsv", "parquet", "arrow")
# Separators of columns by format, the usual one first.
_DELIMITERS = {"csv": ",;\t|", "tsv": "\t,;|"}
# First line that Excel reads and writes.
_SEPARATOR_LINE = "sep="
_SHOWN_NAMES = 10
# Rows of Parquet and Arrow that are converted to Python objects at a time.
_ROWS = 256
# Bytes of a column that are read at a time.
_PARQUET_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"


class Record(NamedTuple):
    """Record of JSON lines, a table or a dataset, its position for error messages, and its first byte in its file."""

    value: object
    place: str
    offset: int | None = None


def open_lines(file: Opened, options: ReadOptions, start: int = 0) -> LineReader:
    """Return the reader of a file's lines from a byte on."""
    return LineReader(file, options.line_characters, options.stop, start, window_log=options.window_log)


def read_records(file: Opened, form: Format, options: ReadOptions, start: int = 0) -> Iterator[Record]:
    """Yield the records of a file.

    Parameters
    ----------
    file : Path, StandardInput, RemoteInput or BegunInput
        The file.
    form : str
        One of `RECORD_FORMATS`.
    options : ReadOptions
        How it is read.
    start : int
        Byte at which a record begins, or 0; others only for JSON and CSV that are not compressed.

    Raises
    ------
    InputMissingError, InputEncodingError
        If it cannot be read, or is not UTF-8.
    InputFormatError
        If it is malformed, or a table without the column of the text.
    MissingDependencyError
        If pyarrow is not installed.
    """
    if form == "json":
        return _json_records(file, options, start)
    return _csv_records(file, form, options, start) if form in _DELIMITERS else _arrow_records(file, form, options)


def record_text(record: Record, field: str) -> str:
    """Return the text of a record.

    Raises
    ------
    InputFormatError, InputEncodingError
        If it has none, or the text is no text.
    """
    value, place, _ = record
    if not isinstance(value, Mapping):
        raise UnreadFormatError(f"{place} is not an object", f"an object with a field {field!r}", _AS_TEXT)
    try:
        found = find_field(value, field)
    except KeyError:
        raise _no_field(place, field, value) from None
    text = require_text(found, f"{place}: the field {field!r}", "leave out records without text")
    if (fault := text_fault(text)) is not None:
        raise InputEncodingError(f"{place}: the field {field!r} holds {fault}", "text", "remove it")
    return text


def record_id(record: Record, field: str | None) -> str:
    """Return the id of a record as text; empty where no field has it.

    Raises
    ------
    InputFormatError
        If a field is named, and the record has none.
    """
    if field is None:
        return ""
    value, place, _ = record
    try:
        found = find_field(value, field) if isinstance(value, Mapping) else None
    except KeyError:
        found = None
    if found is None or found == "":
        raise UnreadFormatError(f"{place} has no id in the field {field!r}", "one for each record", "choose id_field")
    return str(found)


_AS_TEXT = "take it as it is with read_as text"


def _no_field(place: str, field: str, names: Iterable[object], kind: str = "field") -> UnreadFormatError:
    """Return the error for a record or table without the field or column of the text."""
    shown = ", ".join(map(repr, list(names)[:_SHOWN_NAMES])) or "none"
    return UnreadFormatError(
        f"{place} has no {kind} {field!r}", f"one of its {kind}s: {shown}", "choose text_field"
    )  # fmt: skip


def _json_records(file: Opened, options: ReadOptions, start: int) -> Iterator[Record]:
    """Yield the records of JSON lines; skip blank lines."""
    reader = open_lines(file, options, start)
    for line in reader:
        if not line or line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputFormatError(
                f"{reader.place} is not JSON ({error})", "one JSON object a line", f"correct the line, or {_AS_TEXT}"
            ) from error
        yield Record(value, reader.place, reader.offset)


class _RowLines:
    """Lines of CSV as ``csv.reader`` takes them, with the place of the row that they belong to.

    Attributes
    ----------
    place : str
        First line of the row, for messages.
    offset : int
        Its first byte in the file.
    """

    def __init__(self, reader: LineReader, limit: int) -> None:
        self._reader, self._lines, self._limit = reader, iter(reader), limit
        self._size = 0
        self.place, self.offset = reader.place, reader.offset

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line; a row of several has line ends between quotation marks."""
        line = next(self._lines, None)
        if not self._size:
            self.place, self.offset = self._reader.place, self._reader.offset
        self._size += len(line or "") + 1
        if (line is None and self._size > 1) or self._size > self._limit + 1:
            raise InputFormatError(
                f"{self.place}: a quotation mark that begins a column is not closed",
                f"rows of at most {self._limit} characters",
                'write quotation marks of a text twice, in a column between quotation marks: "the ""old"" mill"',
            )
        if line is None:
            raise StopIteration
        return line + "\n"

    def end_row(self) -> None:
        """Begin another row."""
        self._size = 0


def _csv_records(file: Opened, form: Format, options: ReadOptions, start: int) -> Iterator[Record]:
    """Yield the rows of CSV or TSV below its header."""
    # The limit is one of the process, which others may have raised.
    csv.field_size_limit(max(csv.field_size_limit(), options.line_characters + 1))
    lines = _RowLines(open_lines(file, options), options.line_characters)
    names, delimiter = _header(lines, str(file), form, options.text_field)
    if start:
        lines = _RowLines(open_lines(file, options, start), options.line_characters)
    for row in csv.reader(lines, delimiter=delimiter):
        if len(row) not in (0, len(names)):
            raise InputFormatError(
                f"{lines.place} has {len(row)} columns, separated by {delimiter!r}",
                f"{len(names)} columns as in the header",
                "write a column that has the separator between quotation marks",
            )
        if row:
            yield Record(dict(zip(names, row, strict=True)), lines.place, lines.offset)
        lines.end_row()


def _header(lines: _RowLines, name: str, form: Format, field: str) -> tuple[list[str], str]:
    """Return the names of the columns of a table, one of them that of the text, and what separates them."""
    delimiters = _DELIMITERS[form]
    head = next((line for line in lines if line.strip()), "")
    if head.startswith(_SEPARATOR_LINE) and len(head) == len(_SEPARATOR_LINE) + 2:
        delimiters, head = head[len(_SEPARATOR_LINE)], next(lines, "")
    lines.end_row()
    headers = {each: next(csv.reader([head], delimiter=each), []) for each in delimiters}
    for delimiter, names in headers.items():
        if names.count(field) == 1:
            return names, delimiter
    names = max(headers.values(), key=len)
    if field in names:
        raise InputFormatError(f"the table {name!r} has several columns {field!r}", "one", "rename the others")
    raise _no_field(f"the table {name!r}", field, names, "column")


def _arrow_records(file: Opened, form: Format, options: ReadOptions) -> Iterator[Record]:
    """Yield the rows of Parquet or Arrow."""
    place = str(file)
    import_optional("pyarrow", "parquet")
    with _translating(place), open_bytes(file, options.stop, options.window_log) as stream:
        batches = (_parquet_batches if form == "parquet" else _ipc_batches)(stream, place, _wanted(options))
        number = 0
        for batch in batches:
            for begin in range(0, len(batch), _ROWS):
                for row in batch.slice(begin, _ROWS).to_pylist():
                    number += 1
                    yield Record(row, f"row {number} of {place!r}")


def _wanted(options: ReadOptions) -> list[str]:
    """Return the fields of a table that are read."""
    return [options.text_field, *([options.id_field] if options.id_field is not None else [])]


def _require_column(schema: Any, place: str, field: str) -> str:
    """Return the name of the column that a field is, or is in."""
    for name in (field, field.partition(".")[0]):
        if schema.names.count(name) == 1:
            return name
    raise _no_field(f"the table {place!r}", field, schema.names, "column")


def _parquet_batches(stream: BinaryIO, place: str, fields: list[str]) -> Iterator[Any]:
    """Yield the rows of Parquet with the columns of fields."""
    parquet: Any = import_optional("pyarrow.parquet", "parquet")
    # Column chunks of a whole row group would be read ahead.
    table = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES)
    for field in fields:
        _require_column(table.schema_arrow, place, field)
    yield from table.iter_batches(batch_size=_ROWS, columns=fields, use_threads=False)


def _ipc_batches(stream: BinaryIO, place: str, fields: list[str]) -> Iterator[Any]:
    """Yield the rows of a file or stream of Arrow with the columns of fields."""
    ipc: Any = import_optional("pyarrow.ipc", "parquet")
    if stream.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):  # type: ignore[attr-defined]
        reader = ipc.open_file(stream)
        batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
        reader = batches = ipc.open_stream(stream)
    columns = [_require_column(reader.schema, place, field) for field in fields]
    yield from (batch.select(list(dict.fromkeys(columns))) for batch in batches)


@contextmanager
def _translating(place: str) -> Iterator[None]:
    """Translate errors of pyarrow, which are of many types."""
    try:
        yield
    except (GiaannError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, io.UnsupportedOperation):
            raise InputFormatError(
                f"{place!r} is compressed or a pipe, where a table cannot be read from its end",
                "a file as it was written",
                "decompress or save it first",
            ) from error
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputFormatError(f"{place!r} cannot be read by pyarrow ({said})", "", "write it again") from error
