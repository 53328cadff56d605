"""Route and authenticate HTTP requests: the ASGI application with the API, health, metrics, page and errors.

Does not cover: completions themselves (`giaann_dask.serving.completions`), sockets (`giaann_dask.serving.server`).
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from giaann_dask.serving.completions import complete, sent_event, unknown_model
from giaann_dask.serving.documents import DocumentHandlers, DocumentWriter
from giaann_dask.serving.metrics import CONTENT_TYPE, Metrics
from giaann_dask.serving.models import Models, ModelSource
from giaann_dask.serving.request_queue import RequestQueue
from giaann_dask.serving.requests import HttpError, http_error_of
from giaann_dask.serving.serving_options import ServingOptions
from giaann_dask.serving.traces import trace

_PAGE = {"/": "index.html", **{f"/{name}": name for name in ("page.css", "page.js", "documents.js")}}
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
# Paths without authentication; they show nothing of the network.
_OPEN = {"/healthz", *_PAGE}
_COMPLETIONS, _CHAT, _DOCUMENTS = "/v1/completions", "/v1/chat/completions", "/v1/documents"
# Seconds for which the rest of a body is received after the response, as nginx does.
_LINGER_S = 30.0
_LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Handlers:
    """Handlers of the HTTP paths.

    Parameters
    ----------
    models : Models
        Networks that continue prompts.
    options : ServingOptions
        The key, limits and timeouts.
    """

    def __init__(self, models: Models, options: ServingOptions) -> None:
        self.metrics = Metrics()
        self._models, self._options = models, options
        self._created = int(time.time())
        self._queue: RequestQueue | None = None
        self._check: asyncio.Task[str | None] | None = None
        self.describe()
        models.observe = self.metrics.open_s.observe
        self.metrics.watch("giaann_open_networks", "Networks that are open", lambda: len(models.open_names))
        self.metrics.watch("giaann_open_bytes", "Estimated bytes of open networks", lambda: models.open_bytes)
        self.metrics.watch("giaann_running", "Prompts that are continued", lambda: self.queue.running)
        self.metrics.watch("giaann_waiting", "Prompts that wait for a place", lambda: self.queue.waiting)
        self.metrics.watch("giaann_places", "Prompts that can be continued at once", lambda: options.queue.slots)
        self.metrics.watch_by_worker("giaann_steps", "Steps of prompts", lambda: models.statistics().steps)
        self.metrics.watch(
            "giaann_regenerated",
            "Prompts that began again on another worker",
            lambda: models.statistics().regenerated,
        )

    def describe(self) -> None:
        """Set the labels of the metrics to the commit that predicts."""
        self.metrics.describe(self._models.default.name, self._models.default.commit)

    @property
    def queue(self) -> RequestQueue:
        """The request queue, while the application runs."""
        assert self._queue is not None
        return self._queue

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """Open the request queue, and close it in the end."""
        self._queue = RequestQueue(self._options.queue, self.metrics.prompt_s.observe)
        try:
            yield
        finally:
            await self._queue.close()

    async def completions(self, http: Request) -> Response:
        """Handle ``POST /v1/completions``, and ``GET /v1/trace``, which is one of them with sentences."""
        return await complete(http, self.queue, self._options, self.metrics, self._models)

    async def chat_completions(self, http: Request) -> Response:
        """Handle ``POST /v1/chat/completions``."""
        return await complete(http, self.queue, self._options, self.metrics, self._models, chat=True)

    async def sentences(self, http: Request) -> Response:
        """Handle ``POST /v1/sentences``."""
        return await trace(http, self._models, self._options)

    async def models(self, http: Request) -> Response:
        """Handle ``GET /v1/models``."""
        return JSONResponse({"object": "list", "data": [self._model(source) for source in self._models.sources]})

    async def model(self, http: Request) -> Response:
        """Handle ``GET /v1/models/NAME``."""
        name = http.path_params["name"]
        if name not in self._models:
            raise unknown_model(name, self._models)
        return JSONResponse(self._model(self._models[name].source))

    async def health(self, http: Request) -> Response:
        """Handle ``GET /healthz``: 503 with a reason while prompts cannot be continued."""
        # Simultaneous requests share one check.
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(asyncio.to_thread(self._models.health))
        reason = await asyncio.shield(self._check)
        state = {"status": "ok"} if reason is None else {"status": "unavailable", "reason": reason}
        counts = {"running": self.queue.running, "waiting": self.queue.waiting}
        return JSONResponse({**state, **counts}, 200 if reason is None else 503)

    async def prometheus(self, http: Request) -> Response:
        """Handle ``GET /metrics``."""
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _model(self, source: ModelSource) -> dict[str, object]:
        named = {"id": source.name, "object": "model", "created": self._created, "owned_by": "giaann-dask"}
        limits = self._options.limits
        return {
            **named,
            "commit": source.commit,
            "profile": source.profile,
            "probabilities": source.has_probabilities,
            "open": source.name in self._models.open_names,
            "traced": source.tracer is not None,
            "writable": source.documents is not None,
            "max_tokens": limits.tokens,
            "max_prompt": limits.prompt_characters,
            "max_candidates": limits.candidates,
            "max_columns": 0 if source.has_probabilities else limits.columns,
        }


class _RequestBody:
    """Body of a request; its rest is received and dropped once the response has been sent.

    A connection that is closed with unread data is reset, and the client, which sends its body before it reads, loses
    the response. The response is complete before: its end alone waits (as nginx's ``lingering_close``).

    Parameters
    ----------
    scope, receive, send
        Of the request.
    limit_s : float
        How long the rest is received.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit_s: float) -> None:
        self._receive, self._send, self._limit_s = receive, send, limit_s
        names = {name for name, value in scope["headers"] if (name, value) != (b"content-length", b"0")}
        self._rest = bool(names & {b"content-length", b"transfer-encoding"})
        # For "100 Continue", which is sent when the body is asked for: until then there is none.
        self._awaited = b"expect" in names

    async def receive(self) -> Message:
        """Receive the next message."""
        self._awaited = False
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            self._rest = False
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the response; after the last one of a body that was not received, receive its rest."""
        if message["type"] != "http.response.body" or message.get("more_body") or not self._rest or self._awaited:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limit_s):
                while self._rest:
                    await self.receive()
        await self._send({"type": "http.response.body", "body": b""})


class AuthMiddleware:
    """Authenticate requests by the API key, and count every response.

    Parameters
    ----------
    app : ASGIApp
        The application that it wraps.
    options : ServingOptions
        The key, and whether only this machine can reach the server.
    metrics : Metrics
        Where responses are counted.
    """

    def __init__(self, app: ASGIApp, options: ServingOptions, metrics: Metrics) -> None:
        self._app, self._metrics, self._timeout_s = app, metrics, options.timeout_s
        self._keys = [key.encode() for key in (options.api_key, options.write_key) if key is not None]
        self._open = options.api_key is None
        self._write_key = options.write_key.encode() if options.writable and options.write_key is not None else None
        self._names = {*_LOCAL_NAMES, options.host} if options.private and options.api_key is None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or respond with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, begun, ended = time.monotonic(), 500, False, False
        # An address with a slash at its end is the one without.
        scope["path"] = scope["path"].rstrip("/") or "/"
        more = {**_HEADERS, "Connection": "close"} if _is_ambiguous(scope) else _HEADERS

        async def counted(message: Message) -> None:
            nonlocal status, begun, ended
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [
                    *message["headers"],
                    *((k.lower().encode(), v.encode()) for k, v in more.items()),
                ]
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        rejection = self._rejection(Request(scope))
        body = _RequestBody(scope, receive, counted, min(_LINGER_S, self._timeout_s))
        try:
            await (self._app if rejection is None else rejection.response())(scope, body.receive, body.send)
        except asyncio.CancelledError:
            # The server ends, and the request has taken longer than it lets requests run on (`drain_s`).
            stopping = HttpError(503, "the server is stopping; retry later")
            if not begun:
                await stopping.response()(scope, receive, counted)
            elif not ended:
                # Only events are sent in several messages. uvicorn logs a line for each response without an end.
                await counted({"type": "http.response.body", "body": sent_event(stopping.as_dict()).encode()})
        finally:
            path = _known(scope["path"])
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_s.labels(path).observe(time.monotonic() - started)

    def _rejection(self, http: Request) -> HttpError | None:
        if self._names is not None and _host(http) not in self._names:
            # A page of another site can give its own name this machine's address.
            message = "the host of the request is not this machine; expected localhost, or a server with a key"
            return HttpError(403, message, code="wrong_host")
        # Not the path of `http.url`, which the Host header is part of.
        path = http.scope["path"]
        writes = self._write_key is not None and path.startswith(_DOCUMENTS) and http.method not in ("GET", "HEAD")
        if not writes and (self._open or path in _OPEN):
            return None
        scheme, _, given = http.headers.get("authorization", "").partition(" ")
        allowed = [self._write_key] if writes and self._write_key is not None else self._keys
        matches = [hmac.compare_digest(given.strip(" ").encode("latin-1"), key) for key in allowed]
        # The name of a scheme is written in capitals or not (RFC 9110, 11.1).
        if any(matches) and scheme.lower() == "bearer":
            return None
        key = "key for writing" if writes else "API key"
        message = f"the {key} is missing or wrong; expected the header Authorization: Bearer KEY"
        return HttpError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def build_app(models: Models, options: ServingOptions | None = None, writer: DocumentWriter | None = None) -> Starlette:
    """Return the ASGI application of networks.

    Parameters
    ----------
    models : Models
        The networks that continue prompts.
    options : ServingOptions, optional
        The key, limits and timeouts; host, port and connections are the server's.
    writer : DocumentWriter, optional
        Adds documents to the first network and removes them; by default nothing can be written.
    """
    chosen = options or ServingOptions()
    handlers = Handlers(models, chosen)
    routes = [
        Route(_COMPLETIONS, handlers.completions, methods=["POST"]),
        Route(_CHAT, handlers.chat_completions, methods=["POST"]),
        Route("/v1/trace", handlers.completions),
        Route("/v1/sentences", handlers.sentences, methods=["POST"]),
        *([] if writer is None else _document_routes(DocumentHandlers(writer, chosen.limits, handlers.describe))),
        Route("/v1/models", handlers.models),
        Route("/v1/models/{name:path}", handlers.model),
        Route("/healthz", handlers.health),
        Route("/metrics", handlers.prometheus),
        *(Route(path, _page(name)) for path, name in _PAGE.items()),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(AuthMiddleware, chosen, handlers.metrics)],
        exception_handlers={HttpError: _refuse, HTTPException: _refuse, Exception: _refuse},
        lifespan=handlers.running,
    )
    # Paths are exact: an address to go to instead would be made of the Host header.
    app.router.redirect_slashes = False
    return app


def _document_routes(handlers: DocumentHandlers) -> list[Route]:
    return [
        Route(_DOCUMENTS, handlers.add, methods=["POST"]),
        Route(_DOCUMENTS, handlers.all, methods=["GET"]),
        Route(_DOCUMENTS + "/{id}", handlers.one, methods=["GET"]),
        Route(_DOCUMENTS + "/{id}", handlers.remove, methods=["DELETE"]),
        Route(_DOCUMENTS + "/{id}/certificate", handlers.certificate, methods=["GET"]),
    ]


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a file of the page."""
    content = files("giaann_dask.serving").joinpath("page", name).read_bytes()
    kind = _KINDS[name.rpartition(".")[2]]

    async def answer(http: Request) -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return answer


async def _refuse(http: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        message = f"{http.method} {http.scope['path'][:200]}: {error.detail}"
        if error.status_code == 404:
            # Such as /v1/responses, or a base address without /v1.
            message += f"; completions are POST {_COMPLETIONS} and {_CHAT}"
        return HttpError(error.status_code, message, headers=dict(error.headers or {})).response()
    return http_error_of(error).response()


def _is_ambiguous(scope: Scope) -> bool:
    """Return whether a request states its length twice, so that its connection is closed (RFC 9112, 6.1)."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


def _host(http: Request) -> str:
    """Return the name in the Host header, without the port."""
    host = http.headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    # An IPv6 address has colons, too, in brackets.
    return name if colon and (port.isdecimal() or not port) else host


def _known(path: str) -> str:
    """Return the path as a label; paths that are not ours share one, so that labels stay few."""
    known = {*(_COMPLETIONS, _CHAT, "/v1/trace", "/v1/sentences", "/v1/models"), *_PAGE}
    known |= {"/healthz", "/metrics"}
    if path.startswith(_DOCUMENTS):
        return _DOCUMENTS
    return path if path in known else "/v1/models/..." if path.startswith("/v1/models/") else "other"
