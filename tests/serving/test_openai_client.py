"""The package openai, as it is installed, asks servers of networks of profiles contexts and v2."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.serving_engines import served as served_by
from support.village import write_village

import giaann_dask as gd
from giaann_dask.serving.app import build_app
from giaann_dask.serving.models import open_engine
from giaann_dask.serving.server import address_of, bind, serve
from giaann_dask.serving.serving_options import ServingOptions
from giaann_dask.store.network_store import NetworkStore

# Imported where it is used: every process collects this file, and pytest asks each name of a module for attributes.
if TYPE_CHECKING:
    import openai

PROMPT = "The old miller carried the"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
WAIT_S = 60


@dataclass(frozen=True)
class Served:
    """A network, its text, and a client of its server; the server's model has the name of the profile."""

    client: openai.OpenAI
    network: gd.Network
    text: Path
    model: str

    def complete(self, prompt: Any = PROMPT, **fields: Any) -> Any:
        return self.client.completions.create(model=self.model, prompt=prompt, **fields)

    def chat(self, messages: Any = MESSAGES, **fields: Any) -> Any:
        return self.client.chat.completions.create(model=self.model, messages=messages, **fields)


@contextmanager
def served(folder: Path, profile: Any) -> Iterator[Served]:
    import openai

    text, stop, ready = write_village(folder / "text.txt", 300), threading.Event(), threading.Event()
    with gd.connect(workers=0) as client:
        gd.train(text, folder / "net", client=client, specification=gd.Specification(profile=profile))
        store = NetworkStore(folder / "net")
        reader = store.open(store.head())
        engine = open_engine(client, reader)
        options = ServingOptions(port=0, drain_s=1.0)
        with bind(options) as bound:
            app = build_app(served_by(reader, engine, profile), options)
            thread = threading.Thread(
                target=serve, args=(app, bound, options), kwargs={"stop": stop, "ready": ready.set}
            )
            thread.start()
            assert ready.wait(WAIT_S)
            asking = openai.OpenAI(base_url=f"{address_of(bound)}/v1", api_key="none", timeout=WAIT_S, max_retries=0)
            with asking:
                yield Served(asking, gd.Network(folder / "net"), text, profile)
            stop.set()
            thread.join(WAIT_S)
        engine.close()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("contexts"), "contexts") as made:
        yield made


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("v2"), "v2") as made:
        yield made


@pytest.fixture(params=["contexts", "v2"])
def any_profile(request: pytest.FixtureRequest) -> Served:
    found: Served = request.getfixturevalue(request.param)
    return found


def generated(server: Served, prompt: str, tokens: int) -> str:
    return server.network.generate(prompt, options=gd.GenerationOptions(max_tokens=tokens, reasons=0)).text


def test_models_are_listed_and_retrieved(any_profile: Served) -> None:
    import openai

    (model,) = any_profile.client.models.list()
    assert model.id == any_profile.model
    assert any_profile.client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        any_profile.client.chat.completions.create(model="gpt-5", messages=MESSAGES)


def test_a_chat_continues_its_messages(any_profile: Served) -> None:
    messages = [
        {"role": "system", "content": "The village is quiet."},
        {"role": "user", "content": [{"type": "text", "text": "The old miller "}, {"type": "text", "text": "carried"}]},
        {"role": "assistant", "content": "the flour."},
        {"role": "user", "content": PROMPT},
    ]
    answer = any_profile.chat(messages, max_completion_tokens=5)
    (choice,) = answer.choices
    known = generated(any_profile, f"The village is quiet.\n\nThe old miller carried\n\nthe flour.\n\n{PROMPT}", 5)
    assert (answer.object, choice.message.role) == ("chat.completion", "assistant")
    assert choice.message.content == known
    assert choice.finish_reason == ("length" if answer.usage.completion_tokens == 5 else "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 10
    assert choice.logprobs is None


def test_a_streamed_chat_has_the_content_of_the_whole(any_profile: Served) -> None:
    whole = any_profile.chat(max_tokens=6)
    first, *chunks, last = any_profile.chat(max_tokens=6, stream=True, stream_options={"include_usage": True})
    assert first.choices[0].delta.role == "assistant"
    assert {chunk.object for chunk in (first, *chunks, last)} == {"chat.completion.chunk"}
    assert "".join(c.choices[0].delta.content for c in (first, *chunks)) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    assert (last.choices, last.usage) == ([], whole.usage)


def test_a_chat_ends_before_a_stop_sequence(any_profile: Served) -> None:
    words = any_profile.chat(max_tokens=4).choices[0].message.content.split()
    stopped = any_profile.chat(max_tokens=4, stop=words[1]).choices[0]
    assert (stopped.message.content.strip(), stopped.finish_reason) == (words[0], "stop")


def test_what_has_no_effect_is_accepted_with_a_warning(any_profile: Served) -> None:
    raw = any_profile.client.chat.completions.with_raw_response
    fields: Any = {"model": any_profile.model, "messages": MESSAGES, "max_tokens": 4, "seed": 3, "user": "me"}
    plain = raw.create(**fields, temperature=0, top_p=1, presence_penalty=0, store=False, tools=[])
    assert "warning" not in plain.headers
    ignored = {"top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -1}
    warned = raw.create(**fields, **ignored, temperature=0.7)
    assert warned.headers["warning"].startswith('299 giaann-dask "without effect')
    for name in ignored:
        assert name in warned.headers["warning"]
    assert ("temperature" in warned.headers["warning"]) == (any_profile.model == "v2")
    same = warned.parse().choices[0].message.content == plain.parse().choices[0].message.content
    assert same or any_profile.model == "contexts"
    streamed = raw.create(**fields, **ignored, stream=True)
    assert "top_p" in streamed.headers["warning"]
    assert list(streamed.parse())


def test_errors_are_those_of_the_package(any_profile: Served) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        any_profile.chat([{"role": "user", "content": "  "}])
    assert (caught.value.param, caught.value.code) == ("messages", "invalid_prompt")
    with pytest.raises(openai.BadRequestError) as caught:
        any_profile.chat(tools=[{"type": "function", "function": {"name": "f"}}])
    assert caught.value.param == "tools"


def test_probabilities_are_refused_where_there_are_none(v2: Served) -> None:
    import openai

    for ask in (lambda: v2.chat(logprobs=True), lambda: v2.complete(logprobs=1, echo=True)):
        with pytest.raises(openai.BadRequestError, match="profile contexts") as caught:
            ask()
        assert caught.value.param == "logprobs"
    assert v2.complete(echo=True, max_tokens=2).choices[0].text.startswith(PROMPT)


def test_temperature_draws_choices_where_words_have_probabilities(contexts: Served) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 6}
    drawn = [choice.message.content for choice in contexts.chat(**fields).choices]
    assert len(set(drawn)) > 1
    assert [choice.message.content for choice in contexts.chat(**fields).choices] == drawn


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_logprobs_of_generated_tokens(contexts: Served, temperature: float) -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "temperature": temperature, "seed": 5, "logprobs": 3}
    choice = contexts.complete(**fields, extra_body={"candidates": 1}).choices[0]
    given = choice.logprobs
    assert "".join(given.tokens) == choice.text
    assert [choice.text[at : at + len(token)] for at, token in zip(given.text_offset, given.tokens, strict=True)] == (
        given.tokens
    )
    values = [token["value"] for token in choice.giaann["tokens"]]
    assert [math.exp(logprob) for logprob in given.token_logprobs] == pytest.approx(values)
    for token, logprob, top in zip(given.tokens, given.token_logprobs, given.top_logprobs, strict=True):
        assert top[token] == logprob
        assert len(top) in (3, 4)
        assert temperature or logprob == max(top.values())
    parts = [part.choices[0].logprobs for part in contexts.complete(**fields, stream=True)]
    assert [token for part in parts if part for token in part.tokens] == given.tokens
    chat = contexts.chat(**{**fields, "logprobs": True}, top_logprobs=3).choices[0]
    assert [each.logprob for each in chat.logprobs.content] == given.token_logprobs
    assert "".join(each.token for each in chat.logprobs.content) == chat.message.content
    for each in chat.logprobs.content:
        assert bytes(each.bytes).decode() == each.token
        tops = [top.logprob for top in each.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert len(tops) == 3


def test_echo_gives_the_log_probability_of_a_text_as_scoring_does(contexts: Served, tmp_path: Path) -> None:
    text = "The miller—old as he was—met a zyx.  It was late\n\nThe baker said: “Why?”\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with gd.connect(workers=0) as client:
        known = contexts.network.score(tmp_path / "text.txt", client=client)
    choice = contexts.complete(text, echo=True, max_tokens=0, logprobs=1).choices[0]
    given = choice.logprobs
    assert (choice.text, choice.finish_reason) == (text, "length")
    assert "".join(given.tokens) == text
    assert given.token_logprobs == pytest.approx(known.scores.log_probability, rel=1e-12)
    greedy = [
        logprob >= max(top.values()) for logprob, top in zip(given.token_logprobs, given.top_logprobs, strict=True)
    ]
    assert greedy == known.scores.matches.tolist()
    assert math.exp(-sum(given.token_logprobs) / len(given.tokens)) == pytest.approx(known.every.perplexity)
    longer = contexts.complete(text, echo=True, max_tokens=2, logprobs=0).choices[0]
    assert longer.logprobs.token_logprobs[:-2] == given.token_logprobs
    assert "".join(longer.logprobs.tokens) == longer.text
    assert longer.logprobs.text_offset[-2] == len(text)
