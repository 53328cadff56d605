"""Answer ``/v1/documents``: a served network learns and forgets texts; each change is a commit.

Does not cover: the change itself (`giaann_dask.serving.document_writer`), and keys (`giaann_dask.serving.app`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from giaann_dask.errors import EmptyInputError, GiaannError, OptionError
from giaann_dask.serving.document_table import Document
from giaann_dask.serving.document_writer import DocumentWriter
from giaann_dask.serving.fields import read_bytes, read_object, require_known, require_text, shown, wrong_field
from giaann_dask.serving.http_errors import HttpError
from giaann_dask.serving.serving_options import Limits

_FIELDS = {"id", "text", "metadata"}
_MOST_CHARACTERS_OF_ID = 200
_PAGE = 100
_TRUE, _FALSE = {"true", "1"}, {"", "false", "0"}
Answer = TypeVar("Answer")
NewDocument = tuple[str, str, dict[str, Any]]


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
    elif kind == "application/x-ndjson":
        found = [read_object(line) for line in body.splitlines() if line.strip()]
    elif kind == "application/json":
        found = [read_object(body)]
    else:
        expected = "application/json, application/x-ndjson or text/plain"
        raise HttpError(415, f"the body has the Content-Type {kind[:60]!r}; expected {expected}")
    if not 1 <= len(found) <= limits.documents:
        raise wrong_field("documents", f"are {len(found)}", f"1 to {limits.documents} in a request")
    documents = [_read_document(fields, limits) for fields in found]
    if len({each[0] for each in documents}) < len(documents):
        raise wrong_field("id", "is that of two documents", "another one for each")
    return documents


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, "the text is not in UTF-8; expected UTF-8", code="invalid_value") from error


def _read_document(fields: dict[str, Any], limits: Limits) -> NewDocument:
    require_known(fields, _FIELDS, set())
    name, text, metadata = (fields.get(field) for field in ("id", "text", "metadata"))
    name = uuid.uuid4().hex if name is None else name
    if not isinstance(name, str) or not name or "/" in name:
        raise wrong_field("id", f"is {shown(name)}", "a text without a slash")
    require_text("id", name, _MOST_CHARACTERS_OF_ID)
    if not isinstance(text, str) or not text.strip():
        raise wrong_field("text", "is missing" if text is None else f"is {shown(text)}", "some sentences")
    require_text("text", text, limits.document_bytes)
    if metadata is not None and not isinstance(metadata, dict):
        raise wrong_field("metadata", f"is {shown(metadata)}", "an object")
    return name, text, metadata or {}


class DocumentHandlers:
    """Handlers of the paths of documents.

    Parameters
    ----------
    writer : DocumentWriter
        Of the network.
    limits : Limits
        Of requests.
    changed : callable
        Called after each change.
    """

    def __init__(self, writer: DocumentWriter, limits: Limits, changed: Callable[[], None]) -> None:
        self._writer, self._limits, self._changed = writer, limits, changed

    async def add(self, http: Request) -> Response:
        """Handle ``POST /v1/documents``."""
        kind = http.headers.get("content-type", "").split(";")[0].strip().lower()
        body = await read_bytes(http, self._limits.document_bytes)
        texts = read_documents(kind, body, http.query_params.get("id"), self._limits)
        documents = await self._change(lambda: self._writer.add(texts))
        data = [each.as_dict() for each in documents]
        several = {"object": "list", "data": data} if kind == "application/x-ndjson" else data[0]
        return JSONResponse(several, 201)

    async def all(self, http: Request) -> Response:
        """Handle ``GET /v1/documents``: those after an id, up to a limit."""
        after, given = http.query_params.get("after", ""), http.query_params.get("limit", str(_PAGE))
        if not given.isdecimal() or not 1 <= int(given) <= self._limits.documents:
            raise wrong_field("limit", f"is {shown(given)}", f"a whole number from 1 to {self._limits.documents}")
        found = await asyncio.to_thread(self._writer.table.page, after, int(given) + 1)
        data, more = [each.as_dict() for each in found[: int(given)]], len(found) > int(given)
        return JSONResponse({"object": "list", "data": data, "has_more": more})

    async def one(self, http: Request) -> Response:
        """Handle ``GET /v1/documents/ID``."""
        document = await self._find(http)
        return JSONResponse({**document.as_dict(), "text": document.text})

    async def remove(self, http: Request) -> Response:
        """Handle ``DELETE /v1/documents/ID``: the answer has the certificate."""
        document = await self._find(http)
        purge = http.query_params.get("purge", "").lower()
        if purge not in _TRUE | _FALSE:
            raise wrong_field("purge", f"is {shown(purge)}", "true or false")
        text = await self._text_of(http, document)
        found = await self._change(lambda: self._writer.remove(document, text, purge=purge in _TRUE))
        return JSONResponse({"id": document.id, "object": "document.deleted", "deleted": True, "certificate": found})

    async def certificate(self, http: Request) -> Response:
        """Handle ``GET /v1/documents/ID/certificate``."""
        name = http.path_params["id"]
        found = await asyncio.to_thread(self._writer.certificate, name)
        if found is None:
            raise HttpError(404, f"no document {name[:60]!r} was removed", code="not_found")
        return JSONResponse(found)

    async def _find(self, http: Request) -> Document:
        name = http.path_params["id"]
        document = await asyncio.to_thread(self._writer.table.find, name)
        if document is None:
            raise HttpError(404, f"there is no document {name[:60]!r}", code="not_found")
        return document

    async def _text_of(self, http: Request, document: Document) -> str:
        """Return the text of a document, which a request has to give where it is not kept."""
        body = await read_bytes(http, self._limits.document_bytes)
        if document.text is not None and not body:
            return document.text
        text = read_object(body).get("text") if body else None
        if not isinstance(text, str) or not await asyncio.to_thread(self._writer.is_text_of, document, text):
            message = f"the text of document {document.id[:60]!r} is needed to subtract it; expected its field text"
            raise HttpError(400, message, param="text", code="text_needed")
        return text

    async def _change(self, change: Callable[[], Answer]) -> Answer:
        """Make a change in a thread, which ends also when the client has gone."""
        try:
            found = await asyncio.shield(asyncio.create_task(asyncio.to_thread(change)))
        except FileExistsError as error:
            message = f"document {str(error)[:60]!r} has another text; delete it first, or use another id"
            raise HttpError(409, message, param="id", code="exists") from error
        except (EmptyInputError, OptionError) as error:
            raise HttpError(422, str(error), code="unprocessable") from error
        except GiaannError as error:
            raise HttpError(503, str(error), code="unavailable") from error
        self._changed()
        return found
