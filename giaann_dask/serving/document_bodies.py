"""Read the documents in the bodies of requests: one at once, or many lines of JSON while they are received.

Does not cover: learning them (`giaann_dask.serving.documents`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request

from giaann_dask.serving.requests import (
    HttpError,
    body_pieces,
    read_object,
    require_known,
    require_text,
    shown,
    too_large,
    wrong_field,
)
from giaann_dask.serving.serving_options import Limits

LINES = "application/x-ndjson"
_FIELDS = {"id", "text", "metadata"}
_MOST_CHARACTERS_OF_ID = 200
# Of the title, or of the first words, that become the id of a text without one.
_TITLE_CHARACTERS = 60
_WORD = re.compile(r"\w+")

NewDocument: TypeAlias = tuple[str, str, dict[str, Any]]


def read_documents(kind: str, body: bytes, name: str | None, limits: Limits) -> list[NewDocument]:
    """Return the ids, texts and metadata of a request.

    Parameters
    ----------
    kind : str
        Media type of the body: ``application/json`` for one object, ``application/x-ndjson`` for one a line,
        ``text/plain`` for a text.
    body : bytes
        In UTF-8.
    name : str, optional
        Id of a text; a new one by default.
    limits : Limits
        How many documents, and how long.

    Raises
    ------
    HttpError
        With status 400 or 415, naming the field that is wrong.
    """
    if kind == "text/plain":
        found = [{"id": name, "text": _decoded(body)}]
    elif kind == LINES:
        found = [read_object(line) for line in body.splitlines() if line.strip()]
    elif kind == "application/json":
        found = [read_object(body)]
    else:
        expected = f"application/json, {LINES} or text/plain"
        raise HttpError(415, f"the body has the Content-Type {kind[:60]!r}; expected {expected}")
    if not 1 <= len(found) <= limits.documents:
        raise wrong_field("documents", f"are {len(found)}", f"1 to {limits.documents} in a request")
    documents = [_read_document(fields, limits) for fields in found]
    named = {name: (name, text, metadata) for name, text, metadata in reversed(documents)}
    if any(named[name][1] != text for name, text, _ in documents):
        raise wrong_field("id", "is that of two documents", "another one for each")
    return list(reversed(named.values()))


async def document_batches(http: Request, limits: Limits) -> AsyncIterator[list[NewDocument]]:
    """Yield the documents on the lines of a body while it is received, as many together as one commit takes.

    No more is held than the documents of a commit and one more line: nothing is received while a commit is made.

    Parameters
    ----------
    http : Request
        With a body of lines of JSON, of any length.
    limits : Limits
        Bytes of a line, and bytes and number of the documents of a commit.

    Raises
    ------
    HttpError
        With status 400, 413 or 415; what was yielded before stays.
    """
    batch: dict[str, NewDocument] = {}
    nbytes = 0
    async for line in _lines(http, limits.document_bytes):
        document = _read_document(read_object(line), limits)
        full = nbytes + len(line) > limits.commit_bytes or len(batch) == limits.documents
        # A later document of the same id is compared with what is stored then.
        if batch and (full or document[0] in batch):
            yield list(batch.values())
            batch, nbytes = {}, 0
        batch[document[0]] = document
        nbytes += len(line)
    if batch:
        yield list(batch.values())


async def _lines(http: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the lines of a body that are not blank while it is received."""
    rest = bytearray()
    async for piece in body_pieces(http):
        begin = 0
        while (end := piece.find(b"\n", begin)) >= 0:
            rest += piece[begin:end]
            begin = end + 1
            if rest.strip():
                yield bytes(rest)
            rest.clear()
        rest += piece[begin:]
        if len(rest) > limit:
            raise too_large("a line of the body", limit)
    if rest.strip():
        yield bytes(rest)


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, "the text is not in UTF-8; expected UTF-8", code="invalid_value") from error


def _read_document(fields: dict[str, Any], limits: Limits) -> NewDocument:
    require_known(fields, _FIELDS, set())
    name, text, metadata = (fields.get(field) for field in ("id", "text", "metadata"))
    if name is not None:
        # Clients take a part "." or ".." out of an address (RFC 3986, 5.2.4), so that nobody could remove the document.
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
            raise wrong_field("id", f"is {shown(name)}", "a text without a slash, other than . and ..")
        require_text("id", name, _MOST_CHARACTERS_OF_ID)
    if not isinstance(text, str) or not text.strip():
        raise wrong_field("text", "is missing" if text is None else f"is {shown(text)}", "some sentences")
    require_text("text", text, limits.document_bytes)
    if metadata is not None and not isinstance(metadata, dict):
        raise wrong_field("metadata", f"is {shown(metadata)}", "an object")
    return _name_of(text, metadata or {}) if name is None else name, text, metadata or {}


def _name_of(text: str, metadata: Mapping[str, Any]) -> str:
    """Return the id of a text without one: words of its title, or its first ones, and digits of its hash.

    The same text has the same id again, unless its title is another one.
    """
    title = metadata.get("title")
    words = _WORD.findall(title if isinstance(title, str) and title.strip() else text[:_TITLE_CHARACTERS])
    shown = "-".join(words)[:_TITLE_CHARACTERS] or "text"
    return f"{shown}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
