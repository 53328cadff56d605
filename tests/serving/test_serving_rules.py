"""Requests, options and choices of the server, without HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.serving_engines import WORDS, ScriptedEngine, parts_of

from giaann_dask.errors import OptionError
from giaann_dask.models.generation_options import MOST_SEED
from giaann_dask.serving.completion_deltas import Choice, StopFinder
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.requests import CompletionRequest, HttpError, read_request
from giaann_dask.serving.serving_options import Limits, QueueOptions, ServingOptions
from giaann_dask.serving.traces import read_trace_request


def read(limits: Limits | None = None, **fields: Any) -> CompletionRequest:
    return read_request(json.dumps({"prompt": "the mill", **fields}).encode(), limits or Limits())


def continued(request: CompletionRequest) -> Choice:
    choice = Choice(request.prompts[0], request)
    with closing(ScriptedEngine()) as engine:
        for part in parts_of(engine, request.prompts[0], request.options):
            if choice.finish is None:
                choice.add(part)
    return choice


@given(st.lists(st.text("ab ", max_size=5)), st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3))
def test_text_ends_before_the_first_stop_sequence_however_it_is_divided(pieces: list[str], stops: list[str]) -> None:
    def shown(parts: Iterable[str]) -> tuple[str, bool]:
        finder = StopFinder(stops)
        text = "".join(finder.feed(part) for part in parts)
        return text + finder.end(), finder.found

    whole = "".join(pieces)
    text, found = shown(pieces)
    assert (text, found) == shown(whole)
    assert found == any(stop in whole for stop in stops)
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    assert any(whole.startswith(text + stop) for stop in stops) if found else text == whole


def test_the_defaults_are_those_of_the_api() -> None:
    request = read(model=None, stop=None, n=1, temperature=0, logprobs=None, seed=7, user="me", top_p=1.0)
    assert request == CompletionRequest(prompts=("the mill",), options=CompletionOptions(tokens=16))


def test_what_would_change_the_choice_of_words_is_ignored_with_a_warning() -> None:
    fields = {"top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1, "temperature": 0.7}
    assert read(**fields).ignored == ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    assert "temperature" in read(**fields).headers["Warning"]
    drawn = read_request(json.dumps({"prompt": "the mill", **fields}).encode(), Limits(), draws=True)
    assert drawn.ignored == ("top_p", "presence_penalty", "frequency_penalty")
    assert drawn.options.sampling.temperature == 0.7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("messages", value) for value in (None, "text", [], [5], [{}], {"role": "user"})),
        *(("messages", [{"role": role, "content": "a"}]) for role in ("tool", None, ["user"])),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("messages", [{"role": "user", "content": "x" * 60}] * 2),
        ("messages", [{"role": "user", "content": "\ud800"}]),
        ("max_completion_tokens", 0),
        ("max_tokens", "11"),
        ("logprobs", 1),
        ("logprobs", True),
        ("top_logprobs", 2),
        ("tools", [{}]),
        ("response_format", {"type": "json_object"}),
        ("prompt", "the mill"),
        ("echo", True),
    ],
)
def test_errors_of_a_chat_name_the_wrong_field(field: str, value: object) -> None:
    body = {"messages": [{"role": "user", "content": "the mill"}], field: value}
    with pytest.raises(HttpError, match="expected") as caught:
        read_request(json.dumps(body).encode(), Limits(prompt_characters=100, tokens=10), chat=True)
    assert (caught.value.status, caught.value.param) == (400, field)


def test_every_field_is_read() -> None:
    fields = {"max_tokens": 3, "stop": ["x"], "stream": True, "stream_options": {"include_usage": True}}
    request = read(prompt=["a", "b"], echo=True, candidates=2, columns=4, model="m", **fields)
    assert request == CompletionRequest(
        prompts=("a", "b"),
        options=CompletionOptions(tokens=3, candidates=2, columns=4),
        stops=("x",),
        stream=True,
        usage=True,
        echo=True,
        model="m",
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("prompt", value) for value in (None, 5, [], [1, 2], [[1]], ["a", 1], {"a": 1}, "\ud800", "a\0b", "x" * 101)),
        ("prompt", ["a"] * 4),
        *(("max_tokens", value) for value in (0, -1, 1.5, "5", True, [])),
        *(("stop", value) for value in ("", [""], ["a"] * 5, 5, {}, ["\udc00"])),
        *(("n", value) for value in (0, 2, "1", True)),
        *(("logprobs", value) for value in (0, 5, True)),
        ("best_of", 2),
        *(("temperature", value) for value in (-0.1, 2.5, "warm", True, float("nan"))),
        ("top_p", 1.5),
        ("suffix", "end"),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("logit_bias", {"5": 1}),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("echo", "yes"),
        ("candidates", 100),
        ("columns", -1),
        ("model", 5),
        ("tools", []),
    ],
)
def test_errors_name_the_wrong_field(field: str, value: object) -> None:
    with pytest.raises(HttpError, match="expected") as caught:
        read(Limits(prompt_characters=100, prompts=3, tokens=10), **{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize("requested", [11, 4096, 10**30])
def test_more_tokens_than_the_limit_are_capped_with_a_warning(requested: int) -> None:
    limits = Limits(tokens=10)
    chat = {"messages": [{"role": "user", "content": "the mill"}]}
    newer = {"max_tokens": 5, "max_completion_tokens": requested}
    for request, name in (
        (read(limits, max_tokens=requested), "max_tokens"),
        (read_request(json.dumps({**chat, "max_tokens": requested}).encode(), limits, chat=True), "max_tokens"),
        (read_request(json.dumps({**chat, **newer}).encode(), limits, chat=True), "max_completion_tokens"),
    ):
        assert (request.options.tokens, request.capped) == (10, name)
        assert f'"{name} is 10' in request.headers["Warning"]
    for request in (read(limits, max_tokens=10), read(limits), read(limits, max_tokens=None)):
        assert (request.options.tokens, request.capped, request.headers) == (10, "", {})


def test_seeds_of_other_servers_are_accepted() -> None:
    def drawn(seed: object) -> int | None:
        body = {"prompt": "the mill", "temperature": 1, "seed": seed}
        return read_request(json.dumps(body).encode(), Limits(), draws=True).seed

    assert (drawn(0), drawn(7), drawn(MOST_SEED)) == (0, 7, MOST_SEED)
    assert len({drawn(-1), drawn(-1), drawn(None), drawn(None)}) == 4
    assert drawn(-5) == drawn(-5) != drawn(-6)
    with pytest.raises(HttpError, match="seed"):
        drawn(MOST_SEED + 1)


def test_null_is_as_if_a_field_were_missing() -> None:
    known = ("model", "max_tokens", "stop", "stream", "stream_options", "candidates", "columns", "connections", "echo")
    others = ("logprobs", "n", "best_of", "suffix", "logit_bias", "temperature", "top_p", "seed", "user")
    unknown = ("top_k", "min_p", "repetition_penalty", "guided_json", "ignore_eos")
    assert read(**dict.fromkeys((*known, *others, *unknown))) == read()
    assert read(stream=True, stream_options={"include_usage": None, "other": None}) == read(stream=True)
    chat = {"messages": [{"role": "user", "content": "the mill", "name": None}]}
    names = ("max_completion_tokens", "top_logprobs", "tools", "response_format", "reasoning", "thinking")
    body = json.dumps({**chat, **dict.fromkeys((*known[:-1], *others, *unknown, *names))}).encode()
    assert read_request(body, Limits(), chat=True) == read_request(json.dumps(chat).encode(), Limits(), chat=True)
    key = {"source": 1, "target": 2, "segment": 3, "branch": 0}
    nulls = {"connections": [{**key, "context": None, "x": None}], "sentences": None, "model": None, "y": None}
    wanted = read_trace_request(json.dumps({"connections": [key]}).encode(), Limits())
    assert read_trace_request(json.dumps(nulls).encode(), Limits()) == wanted
    with pytest.raises(HttpError, match="top_k"):
        read(top_k=5)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"prompt": "a"} x'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(HttpError, match="expected one") as caught:
        read_request(body, Limits())
    assert caught.value.status == 400


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    for body in (value, {"prompt": value}, {"prompt": "a", "stop": value, "stream_options": value}):
        with suppress(HttpError):
            assert read_request(json.dumps(body).encode(), Limits()).prompts


@pytest.mark.parametrize(
    ("fields", "text", "finish"),
    [
        ({}, " to the baker before the sun rise and home", "stop"),
        ({"max_tokens": 2}, " to the", "length"),
        ({"max_tokens": 2, "prompt": "the mill "}, "to the", "length"),
        ({"max_tokens": 2, "echo": True}, "the mill to the", "length"),
        ({"stop": "baker"}, " to the ", "stop"),
        ({"stop": ["sun", "baker before"]}, " to the ", "stop"),
        ({"stop": "e m", "echo": True, "max_tokens": 1}, "the mill to", "length"),
        ({"stop": " home!"}, " to the baker before the sun rise and home", "stop"),
    ],
)
def test_text_of_a_choice(fields: dict[str, Any], text: str, finish: str) -> None:
    choice = continued(read(**fields))
    assert (choice.text, choice.finish) == (text, finish)
    assert choice.prompt_tokens == 2


def test_details_of_tokens_only_on_request() -> None:
    assert continued(read()).as_dict(0)["giaann"] == {"stop": "no candidates"}
    details = continued(read(candidates=1, columns=1, max_tokens=1)).as_dict(0)["giaann"]
    (token,) = details["tokens"]
    assert token["word"] == WORDS[0]
    assert [c["word"] for c in token["candidates"]] == [WORDS[0]]
    assert [c["concept"] for c in token["columns"]] == ["baker"]


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "example.com"},
        {"port": 70_000},
        {"port": -1},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"drain_s": float("inf")},
        {"connections": 0},
        {"api_key": ""},
        {"api_key": "schlüssel"},
        {"api_key": "two words"},
        *({"api_key": f"key{each}"} for each in "\n\r\t\v\f\x1f\x7f\xa0"),
        {"api_key": "\nkey"},
    ],
)
def test_invalid_options_of_a_server(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected") as caught:
        ServingOptions(**fields)
    if fields.get("api_key"):
        assert fields["api_key"] not in str(caught.value), "the key is not shown"


def test_options_of_limits_and_queues() -> None:
    with pytest.raises(OptionError, match="slots is 0"):
        QueueOptions(slots=0)
    with pytest.raises(OptionError, match="waiting is -1"):
        QueueOptions(waiting=-1)
    with pytest.raises(OptionError, match="tokens is 0"):
        Limits(tokens=0)
    assert ServingOptions(host="0.0.0.0", api_key="key").private is False
    assert all(ServingOptions(host=host).private for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"))
