"""Parse and validate the body of ``POST /v1/completions``, and the fields that it shares with the chat endpoint.

Does not cover: messages (`giaann_dask.serving.chat_requests`), responses (`giaann_dask.serving.completions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from giaann_dask.models.generation_options import MOST_SEED, SamplingOptions
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.fields import (
    read_capped,
    read_flag,
    read_integer,
    read_number,
    read_object,
    require_known,
    require_text,
    shown,
    wrong_field,
)
from giaann_dask.serving.serving_options import Limits

DEFAULT_TOKENS = 16
_RANDOM_SEED = -1
_EQUAL = "prediction is deterministic, so all choices would be equal"
# Fields of OpenAI's API that are not supported, with the values that are accepted, and the reason.
UNSUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "n": ((1,), _EQUAL),
    "best_of": ((1,), _EQUAL),
    "suffix": ((), "text can only be continued"),
    "logit_bias": (({},), "token numbers are not known here"),
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
WITHOUT_EFFECT = {
    *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort"),
    *("safety_identifier", "seed", "service_tier", "store", "user", "verbosity"),
}
SHARED = {
    *("model", "max_tokens", "stop", "stream", "stream_options"),
    *("candidates", "columns", "connections", "sentences"),
}
_KNOWN = {*SHARED, "prompt", "echo", "logprobs"}


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


def read_request(body: bytes, limits: Limits, *, draws: bool = False) -> CompletionRequest:
    """Read the body of a request.

    Parameters
    ----------
    body : bytes
        JSON.
    limits : Limits
        The largest request.
    draws : bool
        Whether words have probabilities, by which they can be drawn.

    Raises
    ------
    HttpError
        With status 400, naming the field that is wrong.
    """
    fields = read_object(body)
    drawing = {"temperature", "seed", "n", "best_of"} if draws else set()
    require_known(fields, _KNOWN | drawing, WITHOUT_EFFECT | set(UNSUPPORTED) | set(_CHOOSING))
    echo, logprobs = read_flag(fields, "echo"), None
    if fields.get("logprobs") is not None:
        require_probabilities("logprobs", draws)
        logprobs = read_integer(fields, "logprobs", 0, 0, limits.candidates)
    # None are generated where only the prompt is asked about.
    tokens, capped = read_capped(fields, "max_tokens", DEFAULT_TOKENS, 0 if echo else 1, limits.tokens)
    options = CompletionOptions(tokens=tokens, logprobs=logprobs, score_prompt=echo and logprobs is not None)
    prompts = _prompts(fields.get("prompt"), limits)
    request = CompletionRequest(prompts=prompts, options=options, echo=echo, capped=capped)
    return with_shared_fields(request, fields, limits, draws=draws)


def with_shared_fields(
    request: CompletionRequest, fields: dict[str, Any], limits: Limits, *, draws: bool
) -> CompletionRequest:
    """Return a request with the fields that both endpoints have."""
    require_supported(fields, {name: each for name, each in UNSUPPORTED.items() if not (draws and name in _SAMPLING)})
    chosen = {name: read_number(fields, name, limit[2], *limit[:2]) for name, limit in _CHOOSING.items()}
    ignored = tuple(
        name for name, value in chosen.items() if value != _CHOOSING[name][2] and not (draws and name == "temperature")
    )
    sampling = _sampling(fields, chosen["temperature"]) if draws else SamplingOptions()
    candidates = read_integer(fields, "candidates", 0, 0, limits.candidates)
    columns = read_integer(fields, "columns", 0, 0, limits.columns)
    connections = read_integer(fields, "connections", 0, 0, limits.candidates)
    sentences = read_integer(fields, "sentences", 0, 0, limits.sentences)
    stream = read_flag(fields, "stream")
    if sentences and (stream or not connections):
        raise wrong_field("sentences", "is set", "connections (1 or more), too, and no stream")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_field("model", f"is {shown(model)}", "a string")
    return replace(
        request,
        options=replace(
            request.options, candidates=candidates, columns=columns, connections=connections, sampling=sampling
        ),
        n=_number_of_choices(fields, sampling, len(request.prompts), limits) if draws else 1,
        stops=_stops(fields.get("stop"), limits),
        sentences=sentences,
        stream=stream,
        usage=_usage(fields.get("stream_options"), stream),
        model=model,
        ignored=ignored,
    )


def require_supported(fields: dict[str, Any], unsupported: dict[str, tuple[tuple[object, ...], str]]) -> None:
    """Raise an error where a field has a value that cannot be fulfilled."""
    for name, (allowed, reason) in unsupported.items():
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or value not in allowed):
            only = f"only {shown(allowed[0])} or none" if allowed else "none"
            raise wrong_field(name, f"is {shown(value)}", f"{only}: {reason}")


def require_probabilities(name: str, draws: bool) -> None:
    """Raise an error where a field needs probabilities, and the network has none."""
    if not draws:
        reason = "activations are not probabilities; request candidates (1 or more) instead"
        raise wrong_field(name, "is set", f"a network of profile contexts, or none: {reason}")


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
