r"""Underscores of the text and joiners of merged nouns, from text to network and back."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from starlette.testclient import TestClient
from support.examples import examples
from support.serving_engines import served
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.api.lm_eval import GiaannLM
from giaann_dask.serving.app import build_app
from giaann_dask.serving.models import open_engine
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import FilterOptions, noun_name, noun_text, plain_name
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.tokens import TaggedSentence, TaggedText

PARTS = st.lists(st.text("ab_\\-", min_size=1, max_size=5), min_size=1, max_size=4)
# Nouns with underscores beside two that are merged.
PROMPT = "The old parser calls"
ENDING = " read_next_line after the pine tree of open_file, and it ends."
RULES = gd.InferenceOptions(timing="none", sequential=False, feed="prediction")


@examples(100)
@given(PARTS)
def test_a_name_has_one_text(parts: list[str]) -> None:
    name = noun_name(parts)
    assert noun_text(name) == " ".join(parts)
    assert plain_name(name) == "_".join(parts)


@examples(50)
@given(PARTS, st.sampled_from("_-"))
def test_merging_keeps_the_text(parts: list[str], joiner: str) -> None:
    forms, upos = list(parts), ["NOUN"] * len(parts)
    if joiner == "-":
        forms = [each for part in parts for each in (part, "-")][:-1]
        upos = ["NOUN" if number % 2 == 0 else "PUNCT" for number in range(len(forms))]
    builder = BlockBuilder(EverPos(), FilterOptions(seed_tokens=0, maximum_tokens=99, canonical=True))
    builder.add_part(TaggedText.of([TaggedSentence(forms, forms, upos, upos)]))
    block = builder.build()
    assert block.concepts == block.surfaces
    assert [noun_text(name) for name in block.concepts] == [joiner.replace("_", " ").join(parts)]


@pytest.mark.parametrize("name", ["pine_tree", "__init__", "_", "a__b", "_a", "a_", "café_au_lait"])
def test_names_without_marks_are_read_as_well_as_they_can_be(name: str) -> None:
    inner = name.strip("_")
    assert noun_text(name) == (name if "__" in name or inner != name else name.replace("_", " "))


def test_only_nouns_of_marked_text_are_named_otherwise() -> None:
    words = ["a_b", "sees", "a_b", "tree", "_"]
    upos = ["NOUN", "VERB", "NOUN", "NOUN", "PUNCT"]
    sentence = TaggedSentence(words, words, upos, upos)
    names = []
    for marked in (True, False):
        builder = BlockBuilder(EverPos(), FilterOptions(seed_tokens=0, maximum_tokens=9, canonical=marked))
        builder.add_part(TaggedText.of([sentence]))
        block = builder.build()
        names.append((block.concepts, block.features, block.surfaces))
    assert names[0] == ((r"a\_b", r"a\_b_tree"), ("sees", "_"), (r"a\_b", r"a\_b_tree"))
    assert names[1] == (("a_b", "a_b_tree"), ("sees", "_"), ("a_b", "a_b_tree"))


@pytest.fixture(scope="module", params=["v1", "v2", "contexts"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    folder = tmp_path_factory.mktemp(request.param)
    flags = {} if request.param == "contexts" else {"flags": "canonical"}
    rule = gd.Specification(profile=request.param, trace=True, regions=2, **flags)
    with gd.connect(workers=0) as client:
        return gd.train([PROMPT + ENDING] * 2, folder / "net", client=client, specification=rule)


def options(network: gd.Network, tokens: int = 12) -> gd.GenerationOptions:
    profile = network.specification.profile
    return gd.GenerationOptions(max_tokens=tokens, **({"inference": RULES} if profile == "v1" else {}))


def test_generation_writes_them_as_text_has_them(network: gd.Network) -> None:
    found = network.generate(PROMPT, options=options(network))
    assert f" {found.text}" == ENDING
    begun = PROMPT + ENDING[: ENDING.index(" and")]
    given = network.generate(begun, options=options(network, 1))
    assert " ".join(given.prompt).lower() == begun.replace(",", " ,").lower()
    assert given.text == "and"


def test_names_are_exported_and_found_by_their_text(network: gd.Network, tmp_path: Path) -> None:
    network.export(tmp_path / "exported")
    names = json.loads((tmp_path / "exported.json").read_text(encoding="utf-8"))
    if not network.specification.traits.columns:
        assert {"open_file", "read_next_line"} <= set(names["words"])
        return
    assert {r"open\_file", r"read\_next\_line", "pine_tree"} <= set(names["concepts"])
    table = network.table()
    found = table.find_columns(["open_file", "Pine tree", "pine_tree"])
    assert [table.concepts[column] for column in found] == [r"open\_file", "pine_tree"]


def test_similar_words_are_those_of_the_text(network: gd.Network) -> None:
    assert network.similar_words("The parser calls read_next_line after open_file of the pine tree") == []
    found = dict(network.similar_words("The parser called read_next_lin after the pone tree"))
    assert found["read_next_lin"] == ["read_next_line"]
    assert "pine" in found["pone"]


def test_a_server_writes_and_stops_at_them(network: gd.Network) -> None:
    reader = reader_of(network)
    with gd.connect(workers=0) as client:
        engine = open_engine(client, reader, options(network))
    body = {"prompt": PROMPT, "max_tokens": 8, "candidates": 2, "stop": "open_file", "echo": True}
    if not network.specification.traits.columns:
        body["logprobs"] = 1
    with closing(engine), TestClient(build_app(served(reader, engine)), "http://127.0.0.1") as http:
        (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == PROMPT + ENDING[: ENDING.index("open_file")]
    assert choice["giaann"]["tokens"][0]["text"] == choice["giaann"]["tokens"][0]["candidates"][0]["text"]
    texts = [token["text"] for token in choice["giaann"]["tokens"]]
    assert texts[0] == "read_next_line"
    assert ("pine tree" in texts) == network.specification.traits.columns
    if not network.specification.traits.columns:
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == PROMPT + ENDING[: ENDING.index(",")]
        assert " read_next_line" in told["top_logprobs"][4]


def test_the_harness_stops_at_them(network: gd.Network) -> None:
    if network.specification.traits.columns:
        return
    found = GiaannLM(network.path).generate_until(
        [Instance("generate_until", {}, (PROMPT, {"until": ["open_file"]}), 0)]
    )
    assert found == [ENDING[: ENDING.index("open_file")]]


def test_a_corpus_gives_the_text_of_its_sentences(network: gd.Network, tmp_path: Path) -> None:
    if not network.specification.traits.columns:
        return
    with gd.connect(workers=0) as client:
        rule = network.specification
        corpus = gd.encode([PROMPT + ENDING] * 2, tmp_path / "corpus", client=client, specification=rule)
        again = gd.train(corpus.path, tmp_path / "net", client=client, specification=rule)
    assert again.digest() == network.digest()
    trace = again.generate(PROMPT, options=options(again, 1)).trace()
    (text, *_) = [sentence.text for sentence in trace.tokens[0].connections[0].sentences]
    assert text == PROMPT + ENDING
