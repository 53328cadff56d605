"""Answer ``POST /v1/sentences``: the training sentences behind connections that a completion has named."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from giaann_dask.models.results import ConnectionKey, ContextPart
from giaann_dask.serving.completions import read_body
from giaann_dask.serving.document_writer import DocumentWriter
from giaann_dask.serving.fields import read_integer, read_object, require_known, shown, wrong_field
from giaann_dask.serving.models import Models
from giaann_dask.serving.serving_options import Limits, ServingOptions
from giaann_dask.tracing.trace import TracedSentence

_NUMBERS = ("source", "target", "segment", "branch")
_MOST = 1 << 63
_SENTENCES = 3


def read_trace_request(body: bytes, limits: Limits) -> tuple[list[ConnectionKey], int]:
    """Return the connections of a request, and how many sentences it wants for each.

    Raises
    ------
    HttpError
        With status 400, naming the field that is wrong.
    """
    fields = read_object(body)
    require_known(fields, {"connections", "sentences", "model"}, set())
    sentences = read_integer(fields, "sentences", _SENTENCES, 0, limits.sentences)
    given = fields.get("connections")
    if not isinstance(given, list) or not 1 <= len(given) <= limits.candidates:
        expected = f"a list of 1 to {limits.candidates} connections, as completions name them"
        raise wrong_field("connections", "is missing" if given is None else f"is {shown(given)}", expected)
    return [_connection(each) for each in given], sentences


def _connection(value: Any) -> ConnectionKey:
    context = (value.get("context") or []) if isinstance(value, dict) else None
    known = {*_NUMBERS, "context"}
    valid = isinstance(value, dict) and all(name in known or each is None for name, each in value.items())
    valid = valid and isinstance(context, list)
    valid = valid and all(_is_whole(value.get(name), 0) for name in _NUMBERS)
    valid = valid and all(
        isinstance(part, list)
        and len(part) == 3
        and _is_whole(part[0], -1)
        and _is_whole(part[1], 1)
        and isinstance(part[2], bool)
        for part in context or ()
    )
    if not valid:
        raise wrong_field("connections", f"has {shown(value)}", "connections as completions name them")
    return ConnectionKey(
        value["source"],
        value["target"],
        value["segment"],
        value["branch"],
        tuple(ContextPart(*part) for part in context or ()),
    )


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _MOST


async def trace(
    http: Request, models: Models, options: ServingOptions, writer: DocumentWriter | None = None
) -> Response:
    """Answer a request for sentences; of a writable network, with the ids of their documents.

    Raises
    ------
    HttpError
        If the request is wrong, or names a network without an index.
    """
    body = await read_body(http, options.limits.body_bytes)
    connections, sentences = read_trace_request(body, options.limits)
    name = read_object(body).get("model")
    name = models.default.name if name is None else name
    if not isinstance(name, str) or name not in models:
        raise wrong_field("model", f"is {shown(name)}", "the name of a network of this server, or none")
    if models[name].tracer is None:
        raise wrong_field("model", f"is {shown(name)}", "a network that was trained with --trace")
    async with asyncio.timeout(options.timeout_s):
        lease = await models.acquire(name, options.queue.wait_s)
        try:
            found = await asyncio.to_thread(lease.model.trace, connections, sentences)
        finally:
            lease.release()
    owners = {} if writer is None else await asyncio.to_thread(writer.table.owners)
    data = [
        {
            "units": each.units,
            "sequences": each.sequences,
            "sentences": [_described(one, owners.get(one.part)) for one in each.sentences],
        }
        for each in found
    ]
    return JSONResponse({"object": "list", "data": data})


def _described(sentence: TracedSentence, documents: list[str] | None) -> dict[str, Any]:
    return {**asdict(sentence), **({} if documents is None else {"documents": documents})}
