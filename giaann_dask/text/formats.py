"""Decide from the first kilobytes of a file, and its name where these are ambiguous, in which format it is read.

Does not cover: finding files (`inputs`), and reading them (`reading`, `tables`, `markup`).
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Literal, get_args

from giaann_dask.errors import UnreadFormatError
from giaann_dask.local_files import BYTE_ORDER_MARK, UTF16_MARKS

Format = Literal["text", "markdown", "rst", "json", "csv", "tsv", "parquet", "arrow", "conllu"]
"""Formats that are read; JSON is one object a line."""
FORMATS: tuple[Format, ...] = get_args(Format)
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of files that are decompressed while they are read."""
WINDOW_LOG, MOST_WINDOW_LOG = 27, 31
"""Base-two logarithm of the bytes that decompressing zstd may look back by default, and at most, as of ``--long``."""
_SUFFIXES: dict[Format, tuple[str, ...]] = {
    "text": (".txt", ".text"),
    "markdown": (".md", ".markdown"),
    "rst": (".rst",),
    "json": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "conllu": (".conllu",),
}
_FORMAT_OF = {suffix: form for form, suffixes in _SUFFIXES.items() for suffix in suffixes}
SUFFIXES = tuple(_FORMAT_OF)
"""Suffixes of names that are names of files, whatever their content."""
_JSON = ".json"
# What binary files begin with; those of formats that are read name the format.
_MAGIC: dict[bytes, str] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"%PDF-": "a PDF document",
    b"{\\rtf": "a document in RTF",
    b"PK\x03\x04": "a ZIP archive, as documents in .docx, .odt and .epub are",
    b"\xd0\xcf\x11\xe0": "a document of an office program",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x1f\x8b": "compressed by gzip, without .gz in its name",
    b"\x28\xb5\x2f\xfd": "compressed by zstd, without .zst in its name",
    b"\xfd7zXZ": "compressed by xz, without .xz in its name",
    b"BZh": "compressed by bzip2, without .bz2 in its name",
    b"7z\xbc\xaf": "a 7z archive",
    b"SQLite format 3\0": "a database of SQLite",
    b"ORC": "a table in ORC",
    b"Obj\x01": "a table in Avro",
    b"FEA1": "a table in the first version of Feather",
    b"\x89HDF": "a file in HDF5",
    b"\x93NUMPY": "an array of NumPy",
    b"%!PS": "a document in PostScript",
    b"\x7fELF": "a program",
}
_BINARY = frozenset([b"BZh", b"ORC", b"GIF8"])
_TAR = (b"ustar", 257)
# Beginnings of text that is marked up in another format, and what it is.
_MARKED = (
    (r"(?:@(?:UTF8|Font:|Loc:|PID:|ColorWords:|Window:).*\n)*@Begin\b", "a transcript in CHAT"),
    (
        r"# *global\.columns *=(?! *ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC *\n)",
        "CoNLL-U Plus, which has other columns than CoNLL-U",
    ),
    (r"WEBVTT\b", "subtitles in WebVTT"),
    (r"\d+\n\d\d:\d\d:\d\d,\d{3} --> \d\d:", "subtitles in SubRip"),
    (r"(?:%.*\n|\s)*\\document(?:class|style)\b", "a document in LaTeX"),
    (r"\( ?\((?:S|ROOT|TOP|FRAG|NP|SINV|SQ|SBARQ|CODE)\b", "bracketed trees"),
)
_MARKUP_KIND = tuple((re.compile(pattern), kind) for pattern, kind in _MARKED)
# Declarations, comments and instructions in front of the first element.
_PROLOGUE = re.compile(r"\s*(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)", re.DOTALL | re.IGNORECASE)
_ELEMENT = re.compile(r"\s*<([A-Za-z][\w.:-]*)(?=[\s/>])")
_ELEMENTS = {
    "TEI": "text marked up in TEI",
    "TEI.2": "text marked up in TEI",
    "teiCorpus": "text marked up in TEI",
    "html": "a page in HTML",
    "mediawiki": "a dump of a wiki; wikiextractor makes text of it",
    "svg": "a picture in SVG",
}
# Elements of corpora with a token, or a paragraph of text, a line.
_VERTICAL = frozenset(["doc", "text", "corpus", "s", "p", "file"])
_FIELD = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_FIELDS = re.compile(r'\s*(?:\[\s*)?\{\s*"(?:[^"\\]|\\.)*"\s*:|\s*\[\s*\[\s*[\["\d]')
_ROW = re.compile(r"(?:1|1-\d+|0\.1)\t[^\t]+(?:\t[^\t]*){8}")
_LINES_LOOKED_AT = 20


def suffix_of(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of a compression.

    Examples
    --------
    >>> suffix_of("Dev.conllu.GZ"), suffix_of("books/a.txt.zst")
    ('.conllu', '.txt')
    """
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def names_text(suffix: str) -> bool:
    """Return whether text in a file with a suffix is text to read, not code or settings: a known one, none, a number.

    Examples
    --------
    >>> [names_text(suffix) for suffix in (".txt", "", ".1", ".py")]
    [True, True, True, False]
    """
    return suffix in _FORMAT_OF or not suffix or suffix[1:].isdecimal()


def is_utf8(head: bytes) -> bool:
    """Return whether the beginning of a file, which may end within a character, is text in UTF-8."""
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3 and error.reason == "unexpected end of data"
    return True


def find_format(place: str, name: str, head: bytes) -> Format:
    r"""Return the format of a file.

    Parameters
    ----------
    place : str
        The file in messages.
    name : str
        Its name, whose suffix decides between formats that the content leaves open.
    head : bytes
        Its beginning, decompressed.

    Raises
    ------
    UnreadFormatError
        If it is in a format that is not read.

    Examples
    --------
    >>> find_format("wiki_00", "wiki_00", b'{"id": "7", "text": "A mill."}\n')
    'json'
    """
    found = _binary_kind(head)
    if found is None and not head.removeprefix(b"\xef\xbb\xbf").startswith(UTF16_MARKS):
        text = head.decode("utf-8", "ignore").replace("\r\n", "\n").replace("\r", "\n")
        found = _text_kind(text.replace(BYTE_ORDER_MARK, "").lstrip(), suffix_of(name))
    if found in FORMATS:
        return found
    if found is not None:
        raise UnreadFormatError(
            f"{place} is {found}", "text, Markdown, reStructuredText, CoNLL-U, JSON lines or a table",
            "convert it to one of these, or take it as it is with read_as text",
        )  # fmt: skip
    named = _FORMAT_OF.get(suffix_of(name), "text")
    if head and named in ("parquet", "arrow"):
        raise UnreadFormatError(f"{place} is not {named}, as its name says", "", "name it as what it is")
    return named


def _binary_kind(head: bytes) -> str | None:
    """Return the format that the first bytes of a file name, None for text."""
    for begin, kind in _MAGIC.items():
        # Words of a text may begin as these do.
        if head.startswith(begin) and (begin not in _BINARY or not head[len(begin) : 64].isascii()):
            return kind
    mark, at = _TAR
    return "an archive of tar" if head[at : at + len(mark)] == mark else None


def _text_kind(text: str, suffix: str) -> str | None:
    """Return the format that the beginning of a text names; None where it leaves that open."""
    for pattern, kind in _MARKUP_KIND:
        if pattern.match(text):
            return kind
    if text.startswith("<"):
        return _element_kind(text, suffix)
    if text.startswith(("{", "[")) or suffix == _JSON:
        return _json_kind(text, suffix)
    row = next((line for line in text.split("\n") if line and line[0] != "#"), "")
    return "conllu" if _ROW.fullmatch(row) else None


def _element_kind(text: str, suffix: str) -> str | None:
    """Return what the first element of a text names; None for text that only begins with such a sign."""
    at = 0
    while found := _PROLOGUE.match(text, at):
        at = found.end()
    declared = text.startswith("<?xml") or suffix == ".xml"
    element = _ELEMENT.match(text, at)
    name = element[1] if element else ""
    kind = _ELEMENTS.get(name) or _ELEMENTS.get(name.lower()) or _ELEMENTS.get(name.partition(":")[2])
    if kind is None and name in _VERTICAL:
        lines = [line for line in text.split("\n")[:_LINES_LOOKED_AT] if line.strip() and line[0] != "<"]
        if suffix == ".vrt" or (lines and all("\t" in line for line in lines)):
            return "a vertical corpus (VRT)"
    # Markdown has elements of HTML, too.
    return kind or ("XML" if declared else None)


def _json_kind(text: str, suffix: str) -> str | None:
    """Return whether a text is JSON, and its form; its first line decides, and reading it names a wrong one."""
    first, newline, _ = text.partition("\n")
    if _is_object(first) or (not newline and _FIELD.match(first)):
        return "json"
    if suffix == _JSON or (_FIELDS.match(text) and suffix not in _SUFFIXES["json"]):
        return "JSON, but not one object a line"
    return None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
