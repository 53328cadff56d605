"""Parse and validate the body of ``POST /v1/chat/completions``: messages become one prompt by a plain template.

The template is the contents of the messages in their order, one paragraph each. Roles are not written, because the
text that networks are trained on has none, so the last message is continued. Does not cover: fields that the
endpoint for completions has, too (`giaann_dask.serving.requests`).
"""

from __future__ import annotations

from typing import Any

from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.fields import (
    read_capped,
    read_flag,
    read_integer,
    read_object,
    require_known,
    require_text,
    shown,
    wrong_field,
)
from giaann_dask.serving.requests import (
    SHARED,
    UNSUPPORTED,
    WITHOUT_EFFECT,
    CompletionRequest,
    require_probabilities,
    require_supported,
    with_shared_fields,
)
from giaann_dask.serving.serving_options import Limits

# A chat has no default of its own at OpenAI, where models end their answers.
DEFAULT_TOKENS = 64
PARAGRAPH = "\n\n"
_ROLES = ("system", "developer", "user", "assistant")
_FUNCTIONS = "no functions are called"
_UNSUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "tools": (([],), _FUNCTIONS),
    "tool_choice": (("none", "auto"), _FUNCTIONS),
    "functions": (([],), _FUNCTIONS),
    "function_call": (("none", "auto"), _FUNCTIONS),
    "response_format": (({"type": "text"},), "the form of the text cannot be prescribed"),
    "modalities": ((["text"],), "there is only text"),
}
_KNOWN = {*SHARED, "messages", "max_completion_tokens", "logprobs", "top_logprobs"}
_CHOOSING = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "n"}


def read_chat_request(body: bytes, limits: Limits, *, draws: bool = False) -> CompletionRequest:
    r"""Read the body of a request for a chat; parameters and errors are those of `read_request`.

    Examples
    --------
    >>> body = b'{"messages": [{"role": "system", "content": "Tales."}, {"role": "user", "content": "The mill"}]}'
    >>> read_chat_request(body, Limits()).prompts
    ('Tales.\n\nThe mill',)
    """
    fields = read_object(body)
    ignored = WITHOUT_EFFECT | set(_UNSUPPORTED) | (set(UNSUPPORTED) - {"suffix", "best_of"})
    require_known(fields, _KNOWN | _CHOOSING, ignored)
    require_supported(fields, _UNSUPPORTED)
    # The name since 2024 counts where both are given.
    tokens, capped = read_capped(fields, "max_tokens", DEFAULT_TOKENS, 1, limits.tokens)
    if fields.get("max_completion_tokens") is not None:
        tokens, capped = read_capped(fields, "max_completion_tokens", tokens, 1, limits.tokens)
    options = CompletionOptions(tokens=tokens, logprobs=_logprobs(fields, limits, draws))
    prompt = _prompt(fields.get("messages"), limits)
    request = CompletionRequest(prompts=(prompt,), options=options, chat=True, capped=capped)
    return with_shared_fields(request, fields, limits, draws=draws)


def _logprobs(fields: dict[str, Any], limits: Limits, draws: bool) -> int | None:
    """Return how many most probable words are requested with every token; None without probabilities."""
    requested = read_flag(fields, "logprobs")
    top = read_integer(fields, "top_logprobs", 0, 0, limits.candidates)
    if requested:
        require_probabilities("logprobs", draws)
        return top
    if top:
        raise wrong_field("top_logprobs", f"is {top}", "none without logprobs")
    return None


def _prompt(messages: Any, limits: Limits) -> str:
    """Return the prompt of some messages; see the module's description."""
    if not isinstance(messages, list) or not messages:
        raise wrong_field("messages", "is missing" if messages is None else f"is {shown(messages)}", "a list of them")
    prompt = PARAGRAPH.join(text for text in (_content(message) for message in messages) if text)
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
