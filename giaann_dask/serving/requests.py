"""Read the JSON of requests for completions and chats, and name what is wrong with them in OpenAI's form of errors.

The messages of a chat become one prompt by a plain template: their contents in order, one paragraph each. Roles are not
written, because the text that networks are trained on has none, so the last message is continued. Does not cover:
responses (`giaann_dask.serving.completions`), and fields of other paths (`giaann_dask.serving.documents`,
`giaann_dask.serving.traces`), which are read and refused by the functions here.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from giaann_dask.errors import GiaannError, PromptError
from giaann_dask.models.generation_options import MOST_SEED, SamplingOptions
from giaann_dask.representations import escaped, text_fault
from giaann_dask.serving.engine import CompletionOptions, EngineStoppedError
from giaann_dask.serving.serving_options import Limits

# A chat has no default of its own at OpenAI, where models end their answers.
_TOKENS, _CHAT_TOKENS = 16, 64
_PARAGRAPH = "\n\n"
_ROLES = ("system", "developer", "user", "assistant")
_RANDOM_SEED = -1
_EQUAL = "prediction is deterministic, so all choices would be equal"
_FUNCTIONS = "no functions are called"
Unsupported = dict[str, tuple[tuple[object, ...], str]]
# Fields of OpenAI's API that are not supported, with the values that are accepted, and the reason.
_UNSUPPORTED: Unsupported = {
    "n": ((1,), _EQUAL),
    "best_of": ((1,), _EQUAL),
    "suffix": ((), "text can only be continued"),
    "logit_bias": (({},), "token numbers are not known here"),
}
_CHAT_UNSUPPORTED: Unsupported = {
    "n": _UNSUPPORTED["n"],
    "logit_bias": _UNSUPPORTED["logit_bias"],
    "tools": (([],), _FUNCTIONS),
    "tool_choice": (("none", "auto"), _FUNCTIONS),
    "functions": (([],), _FUNCTIONS),
    "function_call": (("none", "auto"), _FUNCTIONS),
    "response_format": (({"type": "text"},), "the form of the text cannot be prescribed"),
    "modalities": ((["text"],), "there is only text"),
}
# These may have other values where tokens are sampled.
_SAMPLING = {"n", "best_of"}
# What would change the choice of words: the least and the largest value, and the one that changes nothing.
_CHOOSING: dict[str, tuple[float, float, float]] = {
    "temperature": (0, 2, 0),
    "top_p": (0, 1, 1),
    "presence_penalty": (-2, 2, 0),
    "frequency_penalty": (-2, 2, 0),
}
# These change no text: clients send them for OpenAI's own servers. A seed is without effect where nothing is drawn.
_WITHOUT_EFFECT = {
    *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort"),
    *("safety_identifier", "service_tier", "store", "user", "verbosity"),
}
_SHARED = {
    *("model", "max_tokens", "stop", "stream", "stream_options", "logprobs", "seed", "n", *_CHOOSING),
    *("candidates", "columns", "connections", "sentences"),
}
_KNOWN = {*_SHARED, "prompt", "echo", "best_of"}
_CHAT_KNOWN = {*_SHARED, "messages", "max_completion_tokens", "top_logprobs"}


class HttpError(Exception):
    """An HTTP error response to a request.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What was received; what was expected; what to do.
    param : str, optional
        Field of the request that is wrong.
    code : str, optional
        Short name of the error, for programs.
    headers : dict of str to str, optional
        More headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def as_dict(self) -> dict[str, object]:
        """Return the body of the response, ready for JSON."""
        kind = {429: "rate_limit_error"}.get(self.status, "server_error" if self.status >= 500 else "")
        # What a client sent may be part of both, and JSON can name what no UTF-8 can hold.
        param = None if self.param is None else escaped(self.param)
        error = {"message": escaped(str(self)), "type": kind or "invalid_request_error", "param": param}
        return {"error": {**error, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.as_dict(), self.status, self.headers)


def busy(message: str, seconds: float) -> HttpError:
    """Return the error of a full queue, with the seconds after which to retry."""
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return HttpError(429, f"{message}; retry later", code="rate_limit_exceeded", headers=headers)


def late(seconds: float) -> HttpError:
    """Return the error of a request that exceeded its timeout."""
    message = f"the request was not answered within {seconds:g} seconds; ask for fewer tokens or prompts"
    return HttpError(504, message, code="timeout")


def http_error_of(error: BaseException) -> HttpError:
    """Return the HTTP error for an error in the engine; defects are logged."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, PromptError):
        return HttpError(400, str(error), param="prompt", code="invalid_prompt")
    if isinstance(error, GiaannError):
        logging.getLogger(__name__).error("%s", error)
        return HttpError(503, str(error), code="unavailable")
    if isinstance(error, EngineStoppedError):
        return HttpError(500, str(error), code="defect")
    logging.getLogger(__name__).error("a defect while answering", exc_info=error)
    return HttpError(500, f"a bug in the server ({type(error).__name__}); see its log", code="defect")


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A request for continuations.

    Attributes
    ----------
    prompts : tuple of str
        `n` choices are generated for each.
    options : CompletionOptions
        How much is requested for each; of sampling, the seed of the first choice.
    n : int
        Choices for each prompt, which differ by their seeds.
    stops : tuple of str
        A continuation ends before the first of them.
    sentences : int
        Training sentences to report with every connection; 0 reports none.
    stream, usage : bool
        Whether tokens are streamed, and whether the counts of tokens follow them.
    echo : bool
        Whether the prompt is part of the text.
    chat : bool
        Whether it was sent to the chat endpoint.
    model : str or None
        Requested name of the model.
    capped : str
        Field in which more tokens were requested than the server generates; empty where they were not.
    ignored : tuple of str
        Fields that would change the choice of words, and have no effect here.
    """

    prompts: tuple[str, ...]
    options: CompletionOptions
    n: int = 1
    stops: tuple[str, ...] = ()
    sentences: int = 0
    stream: bool = False
    usage: bool = False
    echo: bool = False
    chat: bool = False
    model: str | None = None
    capped: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def seed(self) -> int | None:
        """Seed of sampling, given or random; None where nothing is drawn."""
        return self.options.sampling.seed

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response: warnings of ignored fields, and of fewer tokens than requested, if there are any."""
        warnings = []
        if self.capped:
            warnings.append(f"{self.capped} is {self.options.tokens}, the most that this server generates")
        if self.ignored:
            warnings.append(f"without effect on a network of this profile: {', '.join(self.ignored)}")
        return {"Warning": ", ".join(f'299 giaann-dask "{text}"' for text in warnings)} if warnings else {}

    def choices(self) -> list[tuple[str, CompletionOptions]]:
        """Return the prompt and the options of every choice, those of a prompt after each other.

        The seeds of all but the first follow from its seed, each by the choice's index.
        """
        sampling = self.options.sampling
        prompts = [prompt for prompt in self.prompts for _ in range(self.n)]
        return [
            (prompt, replace(self.options, sampling=sampling.for_choice(index))) for index, prompt in enumerate(prompts)
        ]


def read_request(body: bytes, limits: Limits, *, draws: bool = False, chat: bool = False) -> CompletionRequest:
    r"""Read the body of a request.

    Parameters
    ----------
    body : bytes
        JSON.
    limits : Limits
        The largest request.
    draws : bool
        Whether words have probabilities, by which they can be drawn.
    chat : bool
        Whether it has messages instead of a prompt.

    Raises
    ------
    HttpError
        With status 400, naming the field that is wrong.

    Examples
    --------
    >>> body = b'{"messages": [{"role": "system", "content": "Tales."}, {"role": "user", "content": "The mill"}]}'
    >>> read_request(body, Limits(), chat=True).prompts
    ('Tales.\n\nThe mill',)
    """
    fields = read_object(body)
    known, unsupported = (_CHAT_KNOWN, _CHAT_UNSUPPORTED) if chat else (_KNOWN, _UNSUPPORTED)
    require_known(fields, known, {*_WITHOUT_EFFECT, *unsupported})
    _require_supported(fields, {name: each for name, each in unsupported.items() if not (draws and name in _SAMPLING)})
    echo = read_flag(fields, "echo")
    # None are generated where only the prompt is asked about.
    least = 0 if echo else 1
    tokens, capped = _read_capped(fields, "max_tokens", _CHAT_TOKENS if chat else _TOKENS, least, limits.tokens)
    if fields.get("max_completion_tokens") is not None:
        # The name since 2024 counts where both are given.
        tokens, capped = _read_capped(fields, "max_completion_tokens", tokens, least, limits.tokens)
    logprobs = _logprobs(fields, limits, draws, chat)
    prompts = (_prompt_of(fields.get("messages"), limits),) if chat else _prompts(fields.get("prompt"), limits)
    chosen = {name: _read_number(fields, name, limit[2], *limit[:2]) for name, limit in _CHOOSING.items()}
    ignored = [name for name, value in chosen.items() if value != _CHOOSING[name][2]]
    sampling = _sampling(fields, chosen["temperature"]) if draws else SamplingOptions()
    connections = read_integer(fields, "connections", 0, 0, limits.candidates)
    sentences = read_integer(fields, "sentences", 0, 0, limits.sentences)
    stream = read_flag(fields, "stream")
    if sentences and (stream or not connections):
        raise wrong_field("sentences", "is set", "connections (1 or more), too, and no stream")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_field("model", f"is {shown(model)}", "a string")
    return CompletionRequest(
        prompts=prompts,
        options=CompletionOptions(
            tokens=tokens,
            candidates=read_integer(fields, "candidates", 0, 0, limits.candidates),
            logprobs=logprobs,
            score_prompt=echo and logprobs is not None,
            columns=read_integer(fields, "columns", 0, 0, limits.columns),
            connections=connections,
            sampling=sampling,
        ),
        n=_number_of_choices(fields, sampling, len(prompts), limits) if draws else 1,
        stops=_stops(fields.get("stop"), limits),
        sentences=sentences,
        stream=stream,
        usage=_usage(fields.get("stream_options"), stream),
        echo=echo,
        chat=chat,
        model=model,
        capped=capped,
        ignored=tuple(name for name in ignored if not (draws and name == "temperature")),
    )


def _require_supported(fields: dict[str, Any], unsupported: Unsupported) -> None:
    """Raise an error where a field has a value that cannot be fulfilled."""
    for name, (allowed, reason) in unsupported.items():
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or value not in allowed):
            only = f"only {shown(allowed[0])} or none" if allowed else "none"
            raise wrong_field(name, f"is {shown(value)}", f"{only}: {reason}")


def _logprobs(fields: dict[str, Any], limits: Limits, draws: bool, chat: bool) -> int | None:
    """Return how many most probable words are requested with every token; None without probabilities."""
    requested = read_flag(fields, "logprobs") if chat else fields.get("logprobs") is not None
    name = "top_logprobs" if chat else "logprobs"
    if requested and not draws:
        reason = "activations are not probabilities; request candidates (1 or more) instead"
        raise wrong_field("logprobs", "is set", f"a network of profile contexts, or none: {reason}")
    most = read_integer(fields, name, 0, 0, limits.candidates)
    if most and not requested:
        raise wrong_field(name, f"is {most}", "none without logprobs")
    return most if requested else None


def _sampling(fields: dict[str, Any], temperature: float) -> SamplingOptions:
    # Clients send -1 for a random one, as many other servers take it; other negative numbers lose their sign bit.
    seed = read_integer(fields, "seed", _RANDOM_SEED, -MOST_SEED - 1, MOST_SEED)
    return SamplingOptions(temperature=temperature, seed=None if seed == _RANDOM_SEED else seed & MOST_SEED).seeded()


def _number_of_choices(fields: dict[str, Any], sampling: SamplingOptions, prompts: int, limits: Limits) -> int:
    number = read_integer(fields, "n", 1, 1, limits.prompts)
    if number > 1 and not sampling.temperature:
        reason = "the most probable word is predicted, so all choices would be equal"
        raise wrong_field("n", f"is {number}", f"only 1 or none at temperature 0: {reason}")
    if number * prompts > limits.prompts:
        raise wrong_field("n", f"is {number} for {prompts} prompts", f"at most {limits.prompts} choices in one request")
    best_of = fields.get("best_of")
    if best_of is not None and (isinstance(best_of, bool) or best_of != number):
        expected = f"only {number}, as n is, or none: all choices are answered"
        raise wrong_field("best_of", f"is {shown(best_of)}", expected)
    return number


def _prompts(value: Any, limits: Limits) -> tuple[str, ...]:
    prompts = [value] if isinstance(value, str) else value
    if not isinstance(prompts, list) or not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        expected = "a string or a list of strings; token numbers are not known here"
        raise wrong_field("prompt", "is missing" if value is None else f"is {shown(value)}", expected)
    if len(prompts) > limits.prompts:
        raise wrong_field("prompt", f"has {len(prompts)} prompts", f"at most {limits.prompts} in one request")
    for prompt in prompts:
        require_text("prompt", prompt, limits.prompt_characters)
    return tuple(prompts)


def _prompt_of(messages: Any, limits: Limits) -> str:
    """Return the prompt of some messages; see the module's description."""
    if not isinstance(messages, list) or not messages:
        raise wrong_field("messages", "is missing" if messages is None else f"is {shown(messages)}", "a list of them")
    prompt = _PARAGRAPH.join(text for text in (_content(message) for message in messages) if text)
    require_text("messages", prompt, limits.prompt_characters)
    return prompt


def _content(message: Any) -> str:
    """Return the text of a message."""
    expected = f'{{"role": one of {", ".join(_ROLES)}, "content": text}}'
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise wrong_field("messages", f"holds {shown(message)}", expected)
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    # A message of the assistant that called a function has no content.
    if parts is None and message["role"] == "assistant":
        return ""
    if not isinstance(parts, list) or not all(_is_text(part) for part in parts):
        raise wrong_field("messages", f"holds {shown(message)}", expected + ", or a list of parts of type text")
    return "".join(part["text"] for part in parts).strip()


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _stops(value: Any, limits: Limits) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise wrong_field("stop", f"is {shown(value)}", "a string or a list of strings, none of them empty")
    if len(stops) > limits.stops:
        raise wrong_field("stop", f"has {len(stops)} strings", f"at most {limits.stops}")
    for stop in stops:
        require_text("stop", stop, limits.prompt_characters)
    return tuple(stops)


def _usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    # Obfuscation is padding of events; it may be asked for, and there is none.
    known = {"include_usage", "include_obfuscation"}
    given = {name for name, each in value.items() if each is not None} if isinstance(value, dict) else None
    if not stream or given is None or given - known:
        raise wrong_field("stream_options", f"is {shown(value)}", '{"include_usage": true}, with stream')
    return read_flag(value, "include_usage")


# A chat has no default of its own at OpenAI, where models end their answers.


async def read_body(http: Request, limit: int) -> bytes:
    """Return the body of a request of a limited length.

    Raises
    ------
    HttpError
        With status 413 or 415.
    """
    if http.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        # Pages of other sites cannot send this type without being asked whether they may.
        raise HttpError(415, "the body is not declared as JSON; expected Content-Type: application/json")
    return await read_bytes(http, limit)


async def read_bytes(http: Request, limit: int) -> bytes:
    """Return the body of a request of a limited length, of any type.

    Raises
    ------
    HttpError
        With status 413, or 415 where it is compressed.
    """
    body = bytearray()
    async for piece in body_pieces(http):
        body += piece
        if len(body) > limit:
            raise too_large("the body", limit)
    return bytes(body)


async def body_pieces(http: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of the body of a request as they are received.

    Raises
    ------
    HttpError
        With status 415, if it is compressed.
    """
    coding = http.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        message = f"the body has the Content-Encoding {coding[:60]!r}; expected none: send it uncompressed"
        raise HttpError(415, message, code="unsupported_coding", headers={"Accept-Encoding": "identity"})
    async for piece in http.stream():
        yield piece


def too_large(what: str, limit: int) -> HttpError:
    """Return the error of a body, or of a part of it, that is longer than a limit."""
    message = f"{what} has more than {limit} bytes; send less at once"
    return HttpError(413, message, code="too_large", headers={"Connection": "close"})


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is.

    Raises
    ------
    HttpError
        With status 400, if it is none.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise HttpError(400, f"the body is not JSON ({detail}); expected one object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise HttpError(400, f"the body is {shown(fields)}; expected one JSON object", code="invalid_json")
    return fields


def read_integer(fields: dict[str, Any], name: str, default: int, least: int, most: int | None) -> int:
    """Return a whole number within limits, or the default where the field is null or missing."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        end = "on" if most is None else f"to {most}"
        raise wrong_field(name, f"is {shown(value)}", f"a whole number from {least} {end}")
    return value


def _read_capped(fields: dict[str, Any], name: str, default: int, least: int, most: int) -> tuple[int, str]:
    """Return a whole number, at most the limit, and the name of the field where it was larger, else an empty string.

    It is the default where the field is null or missing.
    """
    value = read_integer(fields, name, default, least, None)
    return min(value, most), name if fields.get(name) is not None and value > most else ""


def _read_number(fields: dict[str, Any], name: str, default: float, least: float, most: float) -> float:
    """Return a number within limits, or the default where the field is null or missing."""
    value = fields.get(name)
    if value is None:
        return default
    # Not a number is refused too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise wrong_field(name, f"is {shown(value)}", f"a number from {least:g} to {most:g}")
    return float(value)


def read_flag(fields: dict[str, Any], name: str) -> bool:
    """Return true or false, which is also the default."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_field(name, f"is {shown(value)}", "true or false")
    return value


def require_known(fields: dict[str, Any], known: set[str], ignored: set[str]) -> None:
    """Raise an error that lists the known fields where there is another one that is not null."""
    for name, value in fields.items():
        if value is not None and name not in known and name not in ignored:
            raise wrong_field(name, "is not known", f"one of {', '.join(sorted(known))}")


def require_text(name: str, text: str, most: int) -> None:
    """Raise an error where a text is too long, or UTF-8 cannot hold it."""
    if len(text) > most:
        raise wrong_field(name, f"has {len(text)} characters", f"at most {most}")
    if (fault := text_fault(text)) is not None:
        raise wrong_field(name, f"holds {fault}", "Unicode text")


def shown(value: object) -> str:
    """Return the beginning of a value in JSON, for an error."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def wrong_field(name: str, received: str, expected: str) -> HttpError:
    """Return the error of a wrong field, with status 400."""
    return HttpError(400, f"{name[:60]!r} {received}; expected {expected}", param=name[:60], code="invalid_value")
