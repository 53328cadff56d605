"""Handle requests for completions and chats, whole or as a stream of server-sent events, in OpenAI's JSON.

Each has a time limit and ends when its client disconnects. Does not cover: validation (`giaann_dask.serving.requests`),
the queue (`giaann_dask.serving.request_queue`) and text (`giaann_dask.serving.completion_deltas`).
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from giaann_dask.models.base import PromptWords
from giaann_dask.serving.completion_deltas import Choice, CompletionDelta
from giaann_dask.serving.metrics import Metrics
from giaann_dask.serving.models import Models, ServedModel
from giaann_dask.serving.request_queue import RequestQueue, Ticket
from giaann_dask.serving.requests import (
    CompletionRequest,
    HttpError,
    http_error_of,
    late,
    read_body,
    read_object,
    read_request,
)
from giaann_dask.serving.serving_options import ServingOptions
from giaann_dask.serving.traces import trace_query, trace_tokens, untraced

Answer = TypeVar("Answer")
# As nginx says of a client that closed its connection; nobody receives it, the metrics show it.
GONE = 499
# A client that reads no events is left so long after the request's time.
_READING_S = 5.0
# No line ends in events, but clients in some languages divide a text at them; JSON names control characters by itself.
_LINE_ENDS = {number: f"\\u{number:04x}" for number in (0x85, 0x2028, 0x2029)}


class Conversation:
    """One request for completions, from its prompts to the response.

    Parameters
    ----------
    queue : RequestQueue
        Where its prompts wait.
    models : Models
        The networks of the server.
    model : ServedModel
        The one that continues them; released by `leave`.
    request : CompletionRequest
        What is requested.
    deadline : float
        When it has to be finished, in the loop's time.
    options : ServingOptions
        Its time limit.
    metrics : Metrics
        Where it is counted.

    Raises
    ------
    HttpError
        With status 429, if the queue is full.
    """

    def __init__(
        self,
        queue: RequestQueue,
        models: Models,
        model: ServedModel,
        request: CompletionRequest,
        *,
        deadline: float,
        options: ServingOptions,
        metrics: Metrics,
    ) -> None:
        self.request, self.metrics, self._models, self._model = request, metrics, models, model
        self._started = time.monotonic()
        self._limit_s = options.timeout_s
        self.deadline = deadline
        prompts, subwords = request.choices(), model.source.subwords
        self._choices = [Choice(prompt, request, each.sampling.seed, subwords=subwords) for prompt, each in prompts]
        prefix, kind = ("chatcmpl", "chat.completion") if request.chat else ("cmpl", "text_completion")
        part = "chat.completion.chunk" if request.chat and request.stream else kind
        self._fields = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": part,
            "created": int(time.time()),
            "model": model.source.name,
            **({} if request.seed is None else {"seed": request.seed}),
            **({"max_tokens": request.options.tokens} if request.capped else {}),
        }
        self._ticket: Ticket = queue.enter(model, prompts)

    @property
    def _head(self) -> dict[str, Any]:
        """Fields of the response and of every event, with the commit that predicts."""
        return {**self._fields, "system_fingerprint": self._ticket.commit}

    def leave(self) -> None:
        """Abandon the prompts that have not finished, and use the network no longer."""
        self._ticket.leave()
        self._models.release(self._model)

    def error_of(self, error: BaseException) -> HttpError:
        """Return the HTTP error for an error while it is answered, which names the field that the prompt came in."""
        found = http_error_of(error)
        found.param = "messages" if found.param == "prompt" and self.request.chat else found.param
        return found

    async def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        while any(choice.finish is None for choice in self._choices):
            await self._next()
        if self.request.sentences:
            await self._trace()
        choices = [choice.as_dict(index) for index, choice in enumerate(self._choices)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def _trace(self) -> None:
        """Add the training sentences behind them to the tokens, each by the commit that continued its prompt."""
        async with limited(self.deadline, self._limit_s):
            for choice, source in zip(self._choices, self._ticket.sources, strict=True):
                tokens, sentences = choice.tokens, self.request.sentences
                await asyncio.to_thread(trace_tokens, self._model, source, tokens, sentences)

    async def begin(self) -> list[tuple[int, CompletionDelta]]:
        """Return the first deltas once all prompts are prepared, so that errors in them still have their status."""
        deltas = []
        unread = set(range(len(self._choices)))
        while unread:
            index, delta, read = await self._next()
            deltas.append((index, delta))
            if read:
                unread.discard(index)
        return deltas

    async def events(self, deltas: list[tuple[int, CompletionDelta]]) -> AsyncIterator[str]:
        """Yield server-sent events, from the first deltas to ``[DONE]``; an error is the last of them."""
        try:
            for index, delta in deltas:
                # A prompt without an echo adds nothing to a completion; the chunk with the role begins a message.
                if not delta.begins or self.request.chat or self.request.echo:
                    yield self._event(index, delta)
            while any(choice.finish is None for choice in self._choices):
                index, delta, _ = await self._next()
                yield self._event(index, delta)
                # Where many parts are queued already, let other tasks run, such as the one that notices a disconnect.
                await asyncio.sleep(0)
            if self.request.usage:
                yield sent_event({**self._head, "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except Exception as error:
            yield sent_event(self.error_of(error).as_dict())

    def _event(self, index: int, delta: CompletionDelta) -> str:
        return sent_event({**self._head, "choices": [self._choices[index].delta_as_dict(index, delta)]})

    async def _next(self) -> tuple[int, CompletionDelta, bool]:
        """Return the next part of any choice that is not finished, and whether it was the prompt."""
        while True:
            async with limited(self.deadline, self._limit_s):
                index, part = await self._ticket.next()
            choice = self._choices[index]
            if choice.finish is not None:
                # Tokens that were in flight when a stop sequence was found.
                continue
            delta = choice.add(part)
            self._count(choice, delta)
            if choice.finish is not None:
                self._ticket.leave(index)
            return index, delta, isinstance(part, PromptWords)

    def _count(self, choice: Choice, delta: CompletionDelta) -> None:
        if delta.token is not None:
            self.metrics.tokens.inc()
            if sum(each.generated for each in self._choices) == 1:
                self.metrics.first_token_s.observe(time.monotonic() - self._started)
        elif delta.begins:
            self.metrics.prompt_tokens.inc(choice.prompt_tokens)

    def _usage(self) -> dict[str, int]:
        # A prompt counts once, however many choices it has.
        given = sum(choice.prompt_tokens for choice in self._choices[:: self.request.n])
        made = sum(choice.generated for choice in self._choices)
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


class EventStream(StreamingResponse):
    """Server-sent events of a conversation, which ends when the client disconnects.

    Parameters
    ----------
    conversation : Conversation
        Whose events.
    deltas : list
        Result of `Conversation.begin`.
    """

    def __init__(self, conversation: Conversation, deltas: list[tuple[int, CompletionDelta]]) -> None:
        self._conversation = conversation
        # Proxies shall not gather events into blocks.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **conversation.request.headers}
        super().__init__(conversation.events(deltas), headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, to a client that takes them in time."""
        try:
            async with asyncio.timeout_at(self._conversation.deadline + _READING_S):
                await unless_gone(receive, self.stream_response(send))
        except (ClientDisconnect, TimeoutError):
            self._conversation.metrics.gone.inc()
        finally:
            self._conversation.leave()


async def complete(
    http: Request, queue: RequestQueue, options: ServingOptions, metrics: Metrics, models: Models, *, chat: bool = False
) -> Response:
    """Answer ``POST /v1/completions``, ``POST /v1/chat/completions``, or ``GET /v1/trace``.

    Raises
    ------
    HttpError
        If the request is wrong, the queue is full, or it takes too long.
    """
    try:
        try:
            async with asyncio.timeout(options.timeout_s):
                traces = http.method != "POST"
                body = trace_query(http.query_params) if traces else await read_body(http, options.limits.body_bytes)
        except TimeoutError as error:
            raise HttpError(408, "the body did not arrive in time", headers={"Connection": "close"}) from error
        deadline = asyncio.get_running_loop().time() + options.timeout_s
        request = _read(body, options, models, chat)
        source = models.default if request.model is None else models[request.model].source
        if request.options.connections and source.tracer is None:
            raise untraced(source.name)
        async with limited(deadline, options.timeout_s):
            model = await unless_gone(http.receive, models.acquire(source.name, options.queue.wait_s))
        try:
            conversation = Conversation(
                queue, models, model, request, deadline=deadline, options=options, metrics=metrics
            )
        except BaseException:
            models.release(model)
            raise
        return await _respond(http, conversation)
    except ClientDisconnect:
        metrics.gone.inc()
        return Response(status_code=GONE)
    except Exception as error:
        raise http_error_of(error) from error


def _read(body: bytes, options: ServingOptions, models: Models, chat: bool) -> CompletionRequest:
    """Read a request by the rules of the network that it names."""
    name = read_object(body).get("model")
    source = models[name].source if isinstance(name, str) and name in models else models.default
    request = read_request(body, options.limits, draws=source.has_probabilities, chat=chat)
    if request.model is not None and request.model not in models:
        raise unknown_model(request.model, models)
    return request


async def _respond(http: Request, conversation: Conversation) -> Response:
    """Return the response, which leaves the conversation when it has been sent."""
    streaming = False
    try:
        if conversation.request.stream:
            events = EventStream(conversation, await unless_gone(http.receive, conversation.begin()))
            streaming = True
            return events
        whole = await unless_gone(http.receive, conversation.whole())
        return JSONResponse(whole, headers=conversation.request.headers)
    except ClientDisconnect:
        raise
    except Exception as error:
        raise conversation.error_of(error) from error
    finally:
        if not streaming:
            conversation.leave()


def unknown_model(name: str, models: Models) -> HttpError:
    """Return the error for a model that the server does not have, as OpenAI's servers do."""
    names = ", ".join(repr(source.name) for source in models.sources)
    message = f"there is no model {name[:80]!r}; expected {names}, or none"
    return HttpError(404, message, param="model", code="model_not_found")


@asynccontextmanager
async def limited(deadline: float, limit_s: float) -> AsyncIterator[None]:
    """Raise the error of a request that is late where a context lasts longer, in the loop's time."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise late(limit_s) from error


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Await some work, and cancel it when the client disconnects.

    Raises
    ------
    ClientDisconnect
        If it has disconnected.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def sent_event(values: dict[str, Any]) -> str:
    """Return a server-sent event."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text.translate(_LINE_ENDS)}\n\n"
