"""Find the training sentences behind the tokens of completions, and the documents that they are of.

It answers ``POST /v1/sentences``, which takes connections that a completion has named, and adds the same to the
tokens of ``GET /v1/trace`` and of completions with ``sentences``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from giaann_dask.errors import StoreDamagedError, StoreMissingError
from giaann_dask.models.results import ConnectionKey, ContextPart
from giaann_dask.serving.models import Models, ModelSource, ServedModel
from giaann_dask.serving.requests import (
    HttpError,
    read_body,
    read_integer,
    read_object,
    require_known,
    shown,
    wrong_field,
)
from giaann_dask.serving.serving_options import Limits, ServingOptions
from giaann_dask.tracing import TracedSentence

_NUMBERS = ("source", "target", "segment", "branch")
_MOST = 1 << 63
# Of `Network.trace` as well.
_CONNECTIONS, _SENTENCES = 5, 3
# Fields of a query that are numbers.
_QUERY: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("connections", "max_tokens", "seed", "sentences"), int),
    "temperature": float,
}


def read_trace_request(body: bytes, limits: Limits) -> tuple[list[ConnectionKey], int]:
    """Return the connections of a request, and how many sentences it wants for each.

    Raises
    ------
    HttpError
        With status 400, naming the field that is wrong.
    """
    fields = read_object(body)
    require_known(fields, {"connections", "sentences", "model", "commit"}, set())
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


def trace_query(query: Mapping[str, str]) -> bytes:
    """Return the query of ``GET /v1/trace`` as the body of a request for completions.

    Raises
    ------
    HttpError
        With status 400, where a field that is a number is another text.
    """
    fields: dict[str, Any] = {"connections": _CONNECTIONS, "sentences": _SENTENCES}
    for name, value in query.items():
        try:
            fields[name] = _QUERY.get(name, str)(value)
        except ValueError as error:
            raise wrong_field(name, f"is {shown(value)}", "a number") from error
    return json.dumps(fields).encode()


def untraced(name: str) -> HttpError:
    """Return the error for a network without an index."""
    message = (
        f"network {name[:80]!r} has no index of its sentences; expected one that was trained with --trace, or indexed: "
        "giaann-dask index NETWORK TEXT"
    )
    return HttpError(400, message, param="model", code="not_traced")


def changed(commit: str) -> HttpError:
    """Return the error for connections of a commit that is not served any more."""
    return HttpError(409, f"the network has changed since commit {commit[:40]}; retry", code="changed")


def find_sentences(
    model: ServedModel, source: ModelSource, connections: Sequence[ConnectionKey], sentences: int
) -> list[dict[str, Any]]:
    """Return strength, number of sentences and sentences of connections, ready for JSON.

    Where the server knows its documents, each sentence has the ids of those that it is in.

    Parameters
    ----------
    model : ServedModel
        A network with an index.
    source : ModelSource
        The network at the commit that the connections are of, which need not be served any more.
    connections : sequence of ConnectionKey
        What is traced.
    sentences : int
        Sentences of each whose text is read.

    Raises
    ------
    HttpError
        With status 409, if that commit has been removed since.
    """
    try:
        found = model.trace(source, connections, sentences)
    except (StoreMissingError, StoreDamagedError) as error:
        # A purge removes the files of earlier commits.
        if source is model.source:
            raise
        raise changed(source.commit) from error
    owners = None if source.documents is None else source.documents()

    def described(sentence: TracedSentence) -> dict[str, Any]:
        return {**asdict(sentence), **({} if owners is None else {"documents": owners.get(sentence.part, [])})}

    return [
        {"units": each.units, "sequences": each.sequences, "sentences": [described(one) for one in each.sentences]}
        for each in found
    ]


def trace_tokens(model: ServedModel, source: ModelSource, tokens: Sequence[dict[str, Any]], sentences: int) -> None:
    """Add to the connections of tokens, ready for JSON, the training sentences; to the tokens the ids of documents.

    What a connection of the prompt itself raised is in no training sentence. See `find_sentences`.
    """
    reasons = [each for token in tokens for each in token["connections"] if each["connection"] is not None]
    keys = [_connection(each["connection"]) for each in reasons]
    for reason, found in zip(reasons, find_sentences(model, source, keys, sentences), strict=True):
        reason |= found
    if source.documents is not None:
        for token in tokens:
            read = (each for reason in token["connections"] for each in reason.get("sentences", ()))
            token["documents"] = list(dict.fromkeys(name for each in read for name in each["documents"]))


async def trace(http: Request, models: Models, options: ServingOptions) -> Response:
    """Answer a request for sentences; of a writable network, with the ids of their documents.

    Raises
    ------
    HttpError
        If the request is wrong, or names a network without an index, or a commit that is not served.
    """
    body = await read_body(http, options.limits.body_bytes)
    connections, sentences = read_trace_request(body, options.limits)
    fields = read_object(body)
    name, commit = fields.get("model"), fields.get("commit")
    name = models.default.name if name is None else name
    if not isinstance(name, str) or name not in models:
        raise wrong_field("model", f"is {shown(name)}", "the name of a network of this server, or none")
    if commit is not None and not isinstance(commit, str):
        raise wrong_field("commit", f"is {shown(commit)}", "the system_fingerprint of a completion, or none")
    if models[name].source.tracer is None:
        raise untraced(name)
    async with asyncio.timeout(options.timeout_s):
        model = await models.acquire(name, options.queue.wait_s)
        try:
            source = model.source
            if commit not in (None, source.commit):
                raise changed(str(commit))
            data = await asyncio.to_thread(find_sentences, model, source, connections, sentences)
        finally:
            models.release(model)
    return JSONResponse({"object": "list", "data": data})
