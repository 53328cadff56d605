"""Parse and validate the body of ``POST /v1/completions``: its fields, their limits, and unsupported values.

Does not cover: responses (`giaann_dask.serving.completions`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from giaann_dask.inference.continuation import MOST_SEED, SamplingOptions
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.http_errors import HttpError
from giaann_dask.serving.options import Limits
from giaann_dask.text.strings import text_fault

DEFAULT_TOKENS = 16
# Fields of OpenAI's API that are not supported, with the values that are accepted, and the reason.
_UNSUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "n": ((1,), "prediction is deterministic, so all choices would be equal"),
    "best_of": ((1,), "prediction is deterministic, so all choices would be equal"),
    "logprobs": ((), "activations are not probabilities; request candidates (1 or more) instead"),
    "suffix": ((), "text can only be continued"),
    "temperature": ((0,), "prediction is deterministic: the most active neuron is predicted"),
    "top_p": ((1,), "prediction is deterministic: the most active neuron is predicted"),
    "presence_penalty": ((0,), "activations are not changed"),
    "frequency_penalty": ((0,), "activations are not changed"),
    "logit_bias": (({},), "activations are not changed"),
}
# These have no effect; a seed only where tokens are not sampled.
_IGNORED = {"seed", "user"}
# These may have other values where tokens are sampled.
_SAMPLING = {"n", "best_of", "temperature"}
_MOST_TEMPERATURE = 2.0
_KNOWN = {"model", "prompt", "max_tokens", "stop", "stream", "stream_options", "echo", "candidates", "columns"}


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
    stream, usage : bool
        Whether tokens are streamed, and whether the counts of tokens follow them.
    echo : bool
        Whether the prompt is part of the text.
    model : str or None
        Requested name of the model.
    """

    prompts: tuple[str, ...]
    options: CompletionOptions
    n: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    echo: bool = False
    model: str | None = None

    @property
    def seed(self) -> int | None:
        """Seed of sampling, given or random; None where nothing is drawn."""
        return self.options.sampling.seed

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
        Whether tokens can be sampled.

    Raises
    ------
    HttpError
        With status 400, naming the field that is wrong.
    """
    fields = _object(body)
    for name in fields:
        if name not in _KNOWN and name not in _IGNORED and name not in _UNSUPPORTED:
            known = sorted(_KNOWN | _SAMPLING | {"seed"} if draws else _KNOWN)
            raise _wrong(name, "is not known", f"one of {', '.join(known)}")
    for name, (allowed, reason) in _UNSUPPORTED.items():
        value = None if draws and name in _SAMPLING else fields.get(name)
        if value is not None and (isinstance(value, bool) or value not in allowed):
            only = f"only {allowed[0]!r} or none" if allowed else "none"
            raise _wrong(name, f"is {_shown(value)}", f"{only}: {reason}")
    tokens = _number(fields, "max_tokens", DEFAULT_TOKENS, 1, limits.tokens)
    candidates = _number(fields, "candidates", 0, 0, limits.candidates)
    columns = _number(fields, "columns", 0, 0, limits.columns)
    sampling = _sampling(fields) if draws else SamplingOptions()
    prompts = _prompts(fields.get("prompt"), limits)
    stream = _flag(fields, "stream")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise _wrong("model", f"is {_shown(model)}", "a string")
    return CompletionRequest(
        prompts=prompts,
        options=CompletionOptions(
            tokens=tokens,
            candidates=candidates,
            columns=columns,
            sampling=sampling,
        ),
        n=_number_of_choices(fields, sampling, len(prompts), limits) if draws else 1,
        stops=_stops(fields.get("stop"), limits),
        stream=stream,
        usage=_usage(fields.get("stream_options"), stream),
        echo=_flag(fields, "echo"),
        model=model,
    )


def _sampling(fields: dict[str, Any]) -> SamplingOptions:
    temperature = fields.get("temperature")
    if temperature is None:
        temperature = 0
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature <= _MOST_TEMPERATURE:
        raise _wrong("temperature", f"is {_shown(temperature)}", f"a number from 0 to {_MOST_TEMPERATURE:g}")
    seed = None if fields.get("seed") is None else _number(fields, "seed", 0, 0, MOST_SEED)
    return SamplingOptions(temperature=float(temperature), seed=seed).seeded()


def _number_of_choices(fields: dict[str, Any], sampling: SamplingOptions, prompts: int, limits: Limits) -> int:
    number = _number(fields, "n", 1, 1, limits.prompts)
    if number > 1 and not sampling.temperature:
        reason = "the most probable word is predicted, so all choices would be equal"
        raise _wrong("n", f"is {number}", f"only 1 or none at temperature 0: {reason}")
    if number * prompts > limits.prompts:
        raise _wrong("n", f"is {number} for {prompts} prompts", f"at most {limits.prompts} choices in one request")
    best_of = fields.get("best_of")
    if best_of is not None and (isinstance(best_of, bool) or best_of != number):
        raise _wrong("best_of", f"is {_shown(best_of)}", f"only {number}, as n is, or none: all choices are answered")
    return number


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise HttpError(400, f"the body is not JSON ({detail}); expected one object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise HttpError(400, f"the body is {_shown(fields)}; expected one JSON object", code="invalid_json")
    return fields


def _prompts(value: Any, limits: Limits) -> tuple[str, ...]:
    prompts = [value] if isinstance(value, str) else value
    if not isinstance(prompts, list) or not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        expected = "a string or a list of strings; token numbers are not known here"
        raise _wrong("prompt", "is missing" if value is None else f"is {_shown(value)}", expected)
    if len(prompts) > limits.prompts:
        raise _wrong("prompt", f"has {len(prompts)} prompts", f"at most {limits.prompts} in one request")
    for prompt in prompts:
        if len(prompt) > limits.prompt_characters:
            raise _wrong("prompt", f"has {len(prompt)} characters", f"at most {limits.prompt_characters}")
        _require_text("prompt", prompt)
    return tuple(prompts)


def _stops(value: Any, limits: Limits) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise _wrong("stop", f"is {_shown(value)}", "a string or a list of strings, none of them empty")
    if len(stops) > limits.stops or any(len(stop) > limits.prompt_characters for stop in stops):
        raise _wrong("stop", "is too large", f"at most {limits.stops} of {limits.prompt_characters} characters")
    for stop in stops:
        _require_text("stop", stop)
    return tuple(stops)


def _usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    expected = '{"include_usage": true}, with stream'
    if not stream or not isinstance(value, dict) or set(value) - {"include_usage"}:
        raise _wrong("stream_options", f"is {_shown(value)}", expected)
    return _flag(value, "include_usage")


def _number(fields: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, f"is {_shown(value)}", f"a whole number from {least} to {most}")
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong(name, f"is {_shown(value)}", "true or false")
    return value


def _require_text(name: str, text: str) -> None:
    if (fault := text_fault(text)) is not None:
        raise _wrong(name, f"holds {fault}", "Unicode text")


def _shown(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _wrong(name: str, received: str, expected: str) -> HttpError:
    return HttpError(400, f"{name[:60]!r} {received}; expected {expected}", param=name[:60], code="invalid_value")
