"""Test detokenizing: words with spaces between them, subwords unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from giaann_dask.keys import pack_neuron
from giaann_dask.models.base import PromptWords, TokenEvent
from giaann_dask.models.columns.prompts import word_and_column
from giaann_dask.models.results import Candidate, GeneratedToken
from giaann_dask.predict.continuation import Continuation
from giaann_dask.serving.completion_deltas import Choice
from giaann_dask.serving.engine import CompletionOptions, Part
from giaann_dask.serving.requests import CompletionRequest
from giaann_dask.text.detokenizer import Detokenizer, detokenize
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.vocabulary import Vocabulary

KNOWN = SubwordTokenizer.learn(["the café of the old mill", "naïve ☕ and 🙂 of the café"], 300)


@given(st.text(alphabet="the café☕🙂 _mil\n", max_size=30))
def test_subwords_are_detokenized_to_their_text(text: str) -> None:
    names = [KNOWN.names[number] for number in KNOWN.encode(text)]
    assert detokenize(((name, "") for name in names), True) == text
    writer = Detokenizer(True)
    assert "".join([*map(writer.write, names), writer.end()]) == text


def test_continuations_and_choices_have_the_same_text() -> None:
    tokens = [" and", " the", " ca", "f", "<byte:c3>", "<byte:a9>", "s", "<byte:c3>"]
    generated = tuple(GeneratedToken(token, "a", (Candidate(token, "a", 1.0),), 1, ()) for token in tokens)
    told = Continuation((" a",), generated, None, "c", True)
    assert told.text == " and the cafés\ufffd"
    assert told.as_dict()["subwords"] is True
    nouns = (("big_dog", "big_dog"), ("big_dog", "a"))
    words = Continuation(("a",), tuple(GeneratedToken(*each, (), 1, ()) for each in nouns), None, "c")
    assert words.text == "big dog big_dog"
    assert "subwords" not in words.as_dict()
    choice = Choice("a", CompletionRequest(prompts=("a",), options=CompletionOptions(tokens=9)), subwords=True)
    parts: list[Part] = [PromptWords(("a",)), *(TokenEvent(0, token, False) for token in generated)]
    parts.append(TokenEvent(0, None, True))
    pieces = [choice.add(part).text for part in parts]
    assert choice.text == "".join(pieces) == told.text
    assert choice.as_dict(0)["giaann"]["subwords"] is True


def test_a_column_named_by_words_is_detokenized_as_words() -> None:
    flags = [-1] * 3
    first = Vocabulary.of_subwords([" New", " York"])
    span = Vocabulary(["New York", " New"], ["", " New", " York"], (), flags, delimiter_since=flags)
    of = {name: word_and_column(int(pack_neuron(0, 0)), each) for name, each in {"first": first, "span": span}.items()}
    assert of == {"first": (" New", " New"), "span": (" New York", "New York")}
