"""Generation with profile ``contexts``: what scoring finds most probable, anywhere, with reasons that add up."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.serving_engines import parts_of, served
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.contexts.predictor import ContextsPredictor, ContextsText
from giaann_dask.models.results import GeneratedToken
from giaann_dask.models.words.predictor import RepeatedWords
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.predict.generation import Continuation
from giaann_dask.serving.app import build_app
from giaann_dask.serving.completion_deltas import prompt_logprobs
from giaann_dask.serving.models import open_engine
from giaann_dask.serving.requests import HttpError, read_request
from giaann_dask.serving.serving_options import Limits
from giaann_dask.text.splitting import sentence_ended

PROMPT = "The zyx miller went home. The miller carried the"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    folder = tmp_path_factory.mktemp("words")
    text = write_village(folder / "text.txt", 400)
    with gd.connect(workers=0) as client:
        return gd.train(text, folder / "net", client=client, specification=gd.Specification(profile="contexts"))


@pytest.fixture(scope="module")
def opened(network: gd.Network) -> ContextsPredictor:
    return ContextsPredictor(reader_of(network))


def drawn(temperature: float, seed: int, **options: int) -> gd.GenerationOptions:
    sampling = gd.SamplingOptions(temperature=temperature, seed=seed, block_ngrams=options.pop("block_ngrams", 4))
    return gd.GenerationOptions(sampling=sampling, **{"max_tokens": 12, "reasons": 0, **options})


def token_of(opened: ContextsPredictor, prompt: str, options: gd.GenerationOptions) -> GeneratedToken:
    token = ContextsText(opened, prompt, options).step()
    assert token is not None
    return token


def sentences(continuation: Continuation) -> list[list[str]]:
    """Divide a prompt of two sentences and what follows, as it is divided while it grows."""
    found: list[list[str]] = [[]]
    for word in (*continuation.prompt, *(token.word for token in continuation.tokens)):
        if sentence_ended(found[-1]):
            found.append([])
        found[-1].append(word.lower())
    return found


@pytest.mark.parametrize("prompt", [PROMPT, f"{PROMPT} boat."])
def test_takes_what_scoring_finds_most_probable(network: gd.Network, opened: ContextsPredictor, prompt: str) -> None:
    found = network.generate(prompt, options=drawn(0, 1, max_tokens=30, block_ngrams=0))
    assert found.stop is None
    assert len(found.tokens) == 30
    divided = sentences(found)
    assert len(divided) > 1 + prompt.endswith(".")
    scores = opened.model.score(TokenStream.from_documents([divided]))
    assert scores.matches[len(found.prompt) :].all()
    assert not scores.matches[: len(found.prompt)].all()
    told = [math.log(token.candidates[0].value) for token in found.tokens]
    assert np.allclose(told, scores.log_probability[len(found.prompt) :], rtol=0, atol=1e-9)


def ngrams(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[at:] for at in range(length)), strict=False))


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_continuation_does_not_repeat_itself(network: gd.Network, temperature: float) -> None:
    def words(length: int) -> list[str]:
        options = drawn(temperature, 1, max_tokens=120, block_ngrams=length)
        return [token.word for token in network.generate(PROMPT, options=options).tokens]

    free, four, two = (words(length) for length in (0, 4, 2))
    assert len(set(ngrams(free, 4))) < len(free) - 3
    assert len(set(ngrams(four, 4))) == len(four) - 3
    assert len(set(ngrams(two, 2))) == len(two) - 1
    # Until then nothing changes, and the default is four.
    first = next(at for at, words in enumerate(ngrams(free, 4)) if words in ngrams(free, 4)[:at])
    assert four[: first + 3] == free[: first + 3] != four
    default = replace(
        drawn(temperature, 1, max_tokens=120), sampling=gd.SamplingOptions(temperature=temperature, seed=1)
    )
    assert [token.word for token in network.generate(PROMPT, options=default).tokens] == four


def test_words_are_drawn_by_probability_alone_from_temperature_1_on(network: gd.Network) -> None:
    one, other = (network.generate(PROMPT, options=drawn(1, 3, max_tokens=200, block_ngrams=n)) for n in (0, 2))
    assert one.tokens == other.tokens


def test_a_word_is_repeated_where_no_other_is_left() -> None:
    repeats = RepeatedWords(gd.SamplingOptions(block_ngrams=1))
    repeats.add(0)
    chance = np.array([0.75, 0.25])
    assert repeats.without(chance).tolist() == [0.0, 0.25]
    repeats.add(1)
    assert repeats.without(chance).tolist() == chance.tolist()


def test_draws_by_probability(opened: ContextsPredictor) -> None:
    options = [drawn(1.0, seed, max_tokens=1, runners_up=3) for seed in range(150)]
    tokens = [token_of(opened, "The old", option) for option in options]
    likely = max(tokens[0].candidates, key=lambda candidate: candidate.value)
    share = sum(token.word == likely.word for token in tokens) / len(tokens)
    assert 0.05 < likely.value < 0.95
    # Four standard deviations of such a share.
    assert abs(share - likely.value) < 4 * math.sqrt(likely.value * (1 - likely.value) / len(tokens))
    again = token_of(opened, "The old", options[7])
    assert again == tokens[7]


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-100, 1e-12])
def test_the_lowest_temperatures_take_the_most_probable_word(network: gd.Network, temperature: float) -> None:
    greedy = network.generate(PROMPT, options=drawn(0, 1))
    assert network.generate(PROMPT, options=drawn(temperature, 1)).tokens == greedy.tokens
    shown = ["generate", str(network.path), PROMPT, "--max-tokens=2", "--seed=1", f"--temperature={temperature}"]
    assert run(shown) == 0


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -math.inf, -1e-320, 10.1, 1e308])
def test_temperatures_that_cannot_be(network: gd.Network, temperature: float) -> None:
    with pytest.raises(OptionError, match="temperature"):
        gd.SamplingOptions(temperature=temperature)
    assert run(["generate", str(network.path), PROMPT, f"--temperature={temperature}"]) == 2
    with pytest.raises(HttpError, match="temperature") as caught:
        read_request(json.dumps({"prompt": PROMPT, "temperature": temperature}).encode(), Limits(), draws=True)
    assert caught.value.status == 400


def test_reasons_tell_how_two_words_differ(opened: ContextsPredictor) -> None:
    steps = {}
    for seed in range(40):
        token = token_of(opened, PROMPT, drawn(2.0, seed, max_tokens=1, reasons=100, runners_up=100_000))
        steps[token.word] = token
    known = opened.model.tables.words
    base = dict(zip(known.words, known.with_unknown(()).base.tolist(), strict=True))
    # By how much all contexts together raise a word over itself, but for what all words are divided by.
    raised = {
        word: math.log(token.candidates[0].value / base[word]) - sum(reason.contribution for reason in token.reasons)
        for word, token in steps.items()
        if word in base
    }
    left = [value for word, value in raised.items() if any("after" in r.word for r in steps[word].reasons)]
    assert len(left) > 3
    # Words that no context of the chain was seen before keep what it leaves to all of these.
    seen = [w for w in raised if any(r.segment in (1, 2, 3, 4) for r in steps[w].reasons)]
    assert len(seen) > 1
    assert np.ptp([raised[word] for word in seen]) < 1e-5


def test_command_and_refusals(network: gd.Network, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["generate", str(network.path), "The old miller", "--max-tokens", "5", "--workers", "0"]
    assert run([*command, "--temperature", "0.5", "--seed", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = network.generate("The old miller", options=drawn(0.5, 2, max_tokens=5))
    assert told["text"] == wanted.text
    assert run([*command, "--explain"]) == 0
    assert "times as probable" in capsys.readouterr().out
    assert run([*command, "--beam-width", "2", "--beam-depth", "2"]) == 2
    with pytest.raises(OptionError, match="beam search"):
        network.generate("The old", options=gd.GenerationOptions(beam=gd.BeamOptions(width=2, depth=2)))
    for wrong in (" ", "The old \ud83d", "The old \0", b"The old"):
        with pytest.raises(PromptError, match="prompt"):
            network.generate(wrong)  # type: ignore[arg-type]
        with network.session(wrong) as session, pytest.raises(PromptError, match="prompt"):  # type: ignore[arg-type]
            next(session)
    capsys.readouterr()
    assert run(["generate", str(network.path), "The old \udcff", "--workers", "0"]) == 2
    assert "not UTF-8, at character 8" in capsys.readouterr().err
    for wrong in ({"temperature": -1.0}, {"block_ngrams": -1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            gd.SamplingOptions(**wrong)
    with gd.connect(workers=0) as client:
        columns = gd.train(write_village(tmp_path / "t.txt", 20), tmp_path / "v1", client=client)
        with pytest.raises(OptionError, match="temperature"):
            columns.generate("The old miller", client=client, options=drawn(1.0, 0))
        with pytest.raises(OptionError, match="block_ngrams"):
            columns.generate("The old miller", client=client, options=drawn(0.0, 0, block_ngrams=3))


def test_without_a_seed_every_text_is_another_and_its_seed_is_told(
    network: gd.Network, capsys: pytest.CaptureFixture[str]
) -> None:
    unseeded = gd.GenerationOptions(max_tokens=20, reasons=0, sampling=gd.SamplingOptions(temperature=2.0))
    with gd.connect(workers=0) as client:
        found = [network.generate(PROMPT, client=client, options=unseeded) for _ in range(4)]
    with network.sessions([PROMPT] * 4, options=unseeded) as sessions:
        found += sessions.continuations()
    with network.session(PROMPT, options=unseeded) as session:
        words = [token.word for token in session]
    seeds = [continuation.seed for continuation in found]
    assert len({*seeds, session.seed}) == 9
    assert len({continuation.text for continuation in found}) > 4
    for continuation in found[3:5]:
        assert continuation.seed is not None
        assert network.generate(PROMPT, options=drawn(2.0, continuation.seed, max_tokens=20)) == continuation
    assert session.seed is not None
    again = network.generate(PROMPT, options=drawn(2.0, session.seed, max_tokens=20))
    assert [token.word for token in again.tokens] == words
    greedy = network.generate(PROMPT, options=drawn(0, 5, max_tokens=2))
    assert greedy.seed is None
    assert "seed" not in greedy.as_dict()
    command = ["generate", str(network.path), PROMPT, "--max-tokens", "20", "--temperature", "2"]
    assert run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run([*command, "--seed", str(told["seed"])]) == 0
    assert capsys.readouterr().out.splitlines() == [
        told["text"],
        f"(drawn with --seed {told['seed']}, which draws the same again)",
    ]


def test_choices_of_a_request_differ_and_are_made_again_by_their_seeds(network: gd.Network) -> None:
    reader = reader_of(network)
    with gd.connect(workers=0) as client:
        engine = open_engine(client, reader)

    with closing(engine), TestClient(build_app(served(reader, engine)), "http://127.0.0.1") as http:

        def ask(**fields: Any) -> Any:
            body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 2, **fields}
            return http.post("/v1/completions", json=body).json()

        first = ask(n=4)
        assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
        assert len({choice["text"] for choice in first["choices"]}) > 2
        assert first["choices"][0]["giaann"]["seed"] == first["seed"]
        assert first["usage"]["prompt_tokens"] == len(network.generate(PROMPT).prompt)
        assert first["usage"]["completion_tokens"] == 32
        again = ask(n=4, seed=first["seed"], best_of=4)
        assert again["choices"] == first["choices"]
        alone = ask(seed=first["choices"][2]["giaann"]["seed"])
        assert alone["choices"][0]["text"] == first["choices"][2]["text"]
        both = ask(n=2, prompt=[PROMPT, "A boat"], seed=first["seed"])
        assert [choice["text"] for choice in both["choices"][:2]] == [choice["text"] for choice in first["choices"][:2]]
        assert len({ask()["choices"][0]["text"] for _ in range(4)}) > 2
        assert "seed" not in ask(temperature=0, seed=4)
        streamed = http.post("/v1/completions", json={"prompt": PROMPT, "temperature": 2, "n": 2, "stream": True})
        parts = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        assert len({(part["seed"], part["choices"][0]["giaann"]["seed"]) for part in parts}) == 2
        for wrong, said in (
            ({"n": 2, "temperature": 0}, "at temperature 0"),
            ({"n": 65}, "1 to 64"),
            ({"n": 33, "prompt": ["a", "b"]}, "64 choices"),
            ({"n": 2, "best_of": 3}, "all choices"),
            ({"best_of": True}, "all choices"),
        ):
            refused = ask(**wrong)["error"]
            assert refused["param"] in wrong
            assert said in refused["message"]


def test_serving(network: gd.Network) -> None:
    reader, options = reader_of(network), drawn(0.7, 5, max_tokens=8)
    body = {"prompt": PROMPT, "max_tokens": 8, "candidates": 2, "temperature": 0.7, "seed": 5}
    asked = read_request(json.dumps(body).encode(), Limits(), draws=True).options
    with gd.connect(workers=0) as client:
        engine = open_engine(client, reader)
        wanted = network.generate(PROMPT, client=client, options=options)
    with closing(engine):
        first, *events = parts_of(engine, PROMPT, replace(asked, columns=3))
        assert engine.health() is None
        (source,) = served(reader, engine).sources
        assert (source.name, source.commit, source.has_probabilities) == ("net", network.commit, True)
    assert first.words == wanted.prompt
    assert all(isinstance(event, TokenEvent) and not event.columns for event in events)
    assert [event.finished for event in events] == [False] * 8 + [True]
    tokens = [(event.token.word, event.token.candidates) for event in events if event.token]
    assert tokens == [(token.word, token.candidates[:2]) for token in wanted.tokens]
    for wrong in ({"temperature": 3}, {"temperature": True}, {"temperature": "hot"}, {"seed": 0.5}, {"top_p": 1.5}):
        with pytest.raises(HttpError, match=next(iter(wrong))):
            read_request(json.dumps({**body, **wrong}).encode(), Limits(), draws=True)


def test_a_full_batch_takes_no_more_and_a_prompt_that_leaves_frees_its_slot(opened: ContextsPredictor) -> None:
    options = drawn(0.7, 3, max_tokens=2)
    batch = opened.open_batch(options, gd.BatchOptions(slots=1))
    with pytest.raises(PromptError, match="0 words"):
        batch.prepare(" ", options)
    first = batch.prepare(PROMPT, options).enter()
    with pytest.raises(OptionError, match="full batch"):
        batch.prepare("A boat", options).enter()
    (event,) = batch.step()
    assert (event.number, event.finished, len(batch), batch.free_slots) == (first, False, 1, 0)
    batch.leave(first)
    batch.leave(first)
    assert (len(batch), batch.free_slots, batch.step()) == (0, 1, [])
    second = batch.prepare(PROMPT, options).enter()
    assert second != first
    events = [event for _ in range(3) for event in batch.step()]
    assert [event.finished for event in events] == [False, False, True]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60))
def test_scored_words_are_where_they_are_in_any_text(opened: ContextsPredictor, text: str) -> None:
    scores = opened.model.score_text(text, 2)
    assert "".join(text[word.begin : word.end] for word in scores) == "".join(text.split())
    tokens = prompt_logprobs(text, scores)
    assert "".join(token.text for token in tokens) == (text if scores else "")
    assert all(token.log_probability < 0 and len(token.top) == 2 for token in tokens)


def test_a_blank_line_in_a_prompt_ends_a_sentence_as_in_a_file(network: gd.Network) -> None:
    def first(prompt: str) -> Any:
        options = gd.GenerationOptions(max_tokens=1, reasons=0)
        return network.generate(prompt, options=options).tokens[0].candidates

    assert first("It was late\n\nThe miller") == first("It was late\r\n \r\nThe\nmiller")
    assert first("It was late\n\nThe miller") != first("It was late The miller")
