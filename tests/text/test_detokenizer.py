"""Test detokenizing: words with spaces between them, subwords unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import split_sentences

from giaann_dask.keys import pack_neuron
from giaann_dask.models.base import PromptWords, TokenEvent
from giaann_dask.models.columns.predictor import word_and_column
from giaann_dask.models.results import Candidate, GeneratedToken, ScoredWord
from giaann_dask.predict.generation import Continuation
from giaann_dask.serving.completion_deltas import Choice, prompt_logprobs
from giaann_dask.serving.engine import CompletionOptions, PromptEvent
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
    parts: list[PromptEvent] = [PromptWords(("a",)), *(TokenEvent(0, token, False) for token in generated)]
    parts.append(TokenEvent(0, None, True))
    pieces = [choice.add(part).text for part in parts]
    assert choice.text == "".join(pieces) == told.text
    assert choice.as_dict(0)["giaann"]["subwords"] is True


SENTENCES = (
    'The mill stood still. "Why?" asked he. "I don\'t know (yet)!" She\'s there. I do.',
    "They’d left the millers’ house: ‘well-known’ as it was, it cost $5 a day; 10% of that was hers.",
    "“I’ll go!” said the baker’s boy—and/or his aunt. “Then go,” said she, “and do not stay…”",
    "The method __init__ calls _next. It reads the __name__ of a _private file. Then __x__ is not my_x or _x.",
    "_Enter the miller. He sings._ Then _he_, said she, sat _there_ or here. _Her_ mind was __mine__.",
    "Was it he? [It was.] He said: “No.” _Her_ mind! It rained... and it stopped.",
)


@pytest.mark.parametrize("text", SENTENCES)
def test_words_in_lower_case_are_written_as_their_text(text: str) -> None:
    (sentences,) = split_sentences([text])
    words = [word.lower() for sentence in sentences for word in sentence]
    assert detokenize(((word, "") for word in words), False) == text
    for divided in range(len(words)):
        rest = detokenize(((word, "") for word in words[divided:]), False, after=words[:divided])
        assert text.endswith(rest)


@given(
    st.lists(st.sampled_from(['"', "_", "'", "’", "“", "”", "(", ")", ".", "?", ",", "-", "--", "i", "'s", "the", "5"]))
)
def test_pieces_and_previews_are_the_whole(words: list[str]) -> None:
    writer, pieces = Detokenizer(False, spaced=True), []
    for word in words:
        shown = writer.preview(word)
        pieces.append(writer.write(word))
        assert shown == pieces[-1]
    whole = detokenize(((word, "") for word in words), False)
    assert "".join(pieces) == whole
    assert whole.replace(" ", "").lower() == "".join(words)


def test_choices_write_words_as_text_goes_on() -> None:
    prompt, words = "They asked. ", ["why", "?", "he", "did", "n't", "say"]
    candidates = [Candidate(word, "", 0.5) for word in ("he", ",")]
    generated = [GeneratedToken(word, "", (Candidate(word, "", 0.6), *candidates), 3, ()) for word in words]
    wanted = CompletionOptions(tokens=len(words), logprobs=3, candidates=3)
    choice = Choice(prompt, CompletionRequest(prompts=(prompt,), options=wanted, echo=True, stops=("n't",)))
    deltas = [choice.add(part) for part in (PromptWords(("They", "asked", ".")), *_events(generated))]
    assert "".join(delta.text for delta in deltas) == choice.text == prompt + "Why? He did"
    told = choice.as_dict(0)
    assert told["logprobs"]["tokens"] == ["Why", "?", " He", " did", "n't"]
    assert told["logprobs"]["text_offset"] == [12, 15, 16, 19, 23]
    assert [set(each) for each in told["logprobs"]["top_logprobs"][:2]] == [{"Why", "He", ","}, {"?", " he", ","}]
    assert [token["text"] for token in told["giaann"]["tokens"]] == ["Why", "?", "He", "did", "n't"]
    assert [token["word"] for token in told["giaann"]["tokens"]] == words[:5]
    whole = Continuation(("They", "asked", "."), tuple(generated), None, "c")
    assert whole.text == "Why? He didn't say"
    assert dict(whole.summary().rows)["prompt"] == "They asked."


def test_a_score_names_other_words_as_they_would_be_written() -> None:
    others = (Candidate("the", "", 0.5), Candidate(",", "", 0.2))
    scored = [ScoredWord(0, 3, -1.0, False, others), ScoredWord(4, 7, -1.0, False, others)]
    assert [[text for text, _ in token.top] for token in prompt_logprobs("The inn", scored)] == [
        ["The", ","],
        [" the", ","],
    ]


def _events(generated: list[GeneratedToken]) -> list[TokenEvent]:
    """Return the events of tokens until the one that a stop sequence is found in."""
    return [TokenEvent(0, token, False) for token in generated[:5]]


def test_a_column_named_by_words_is_detokenized_as_words() -> None:
    flags = [-1] * 3
    first = Vocabulary.of_subwords([" New", " York"])
    span = Vocabulary(["New York", " New"], ["", " New", " York"], (), flags, delimiter_since=flags)
    of = {name: word_and_column(int(pack_neuron(0, 0)), each) for name, each in {"first": first, "span": span}.items()}
    assert of == {"first": (" New", " New"), "span": (" New York", "New York")}
