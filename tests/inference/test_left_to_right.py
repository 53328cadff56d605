"""Evaluation from left to right: every prediction is that of `generate` after the words before the token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.encoding.stream import StreamOptions
from giaann_dask.errors import OptionError
from giaann_dask.models.columns.evaluation import evaluation
from giaann_dask.models.columns.evaluation.accuracy import NO_PREDICTION, Predictions
from giaann_dask.models.columns.evaluation.predicting import PredictionRule, predict_span
from giaann_dask.models.columns.flags import flags_of, open_flags_with
from giaann_dask.models.columns.predictor import word_and_column
from giaann_dask.models.columns.rules import fitting_rules
from giaann_dask.models.columns.state.inference_options import InferenceOptions, V2Settings
from giaann_dask.models.generation_options import PredictionRules
from giaann_dask.rows.stored import StoredRows
from giaann_dask.text.blocks import NOUNS, FilterOptions
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.splitting import split_text
from giaann_dask.text.tagging import make_builder, make_tagger, tag_part
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary, summarise

# New words and new nouns, a noun at once, none among the seed tokens, merged nouns, a gap without a delimiter, and
# words that delimit by the words around them.
INVENTED = """
The old miller of the quiet little town slowly carried the heavy zither to the door of the mill.
Mill door keys lay in the oven and the farmer sold the frobnicated bread of the harbour town to the teacher.
And slowly and quietly and very early it was and then it was the baker who followed the road to the river.
The miller , the baker and the captain of the boat , quietly singing , crossed the bright river to the meadow.
Under the very old grey and narrow window the quiet dog watched the horse while it remembered the village square.
"""
TEXT = INVENTED + "\n".join(sample_test_text().read_text().splitlines()[:3])
TWENTY = [
    *("book", "chair", "drum", "engine", "flag", "goat", "hat", "jar", "kite", "lamp"),
    *("map", "oven", "pot", "quilt", "rope", "stone", "tub", "bell", "coin", "broom"),
]
SENTENCE = "The old miller of the quiet little town slowly carried the heavy {} to the door of the mill."
SPECIFICATIONS = {
    "v1": gd.Specification(),
    "v1 history": gd.Specification(flags="history", seed_tokens=6),
    "v2": gd.Specification(profile="v2"),
    "v2 history": gd.Specification(profile="v2", flags="history", lif=False, sentences_per_sequence=1),
}
CASES: list[tuple[str, PredictionRules]] = [
    ("v1", InferenceOptions()),
    ("v1", InferenceOptions(timing="biased", sequential=True)),
    ("v1", InferenceOptions(timing="exact", activations="intf+c")),
    ("v1 history", InferenceOptions()),
    ("v2", V2Settings()),
    ("v2", V2Settings(settings="train")),
    ("v2", V2Settings(strict_reference=True)),
    ("v2 history", V2Settings(strict_reference=True)),
    ("v1", InferenceOptions(sources="every")),
    ("v2", V2Settings(sources="every")),
    ("v2 history", V2Settings(settings="train", enforce_delimiter=True)),
]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, gd.Network]:
    folder = tmp_path_factory.mktemp("networks")
    with gd.connect(workers=0) as client:
        return {
            name: gd.train(gd.Files(sample_text()), folder / name, client=client, specification=specification)
            for name, specification in SPECIFICATIONS.items()
        }


def encoded(network: gd.Network, text: str) -> tuple[EncodedBlock, Vocabulary]:
    """Encode a text with a network's dictionaries, as an evaluation does."""
    reader = reader_of(network)
    vocabulary, specification = reader.saved_vocabulary(), network.specification
    builder = make_builder(reader.ever_pos(), FilterOptions.of(specification, drop_short=True))
    builder.add_part(tag_part(Part("text", "text", (text,), (0,)), "lexicon"))
    block = builder.build()
    return encode_block(block, vocabulary.extend(summarise(block)), specification), vocabulary


def predicted(network: gd.Network, rules: PredictionRules, block: EncodedBlock, vocabulary: Vocabulary) -> Predictions:
    """Return the predictions from left to right for the sequences of a block, as a task makes them."""
    reader, specification = reader_of(network), network.specification
    canonical = specification.flags == "canonical"
    flags = flags_of(vocabulary if canonical else reader.saved_vocabulary(), specification.is_order_free)
    options = fitting_rules(specification, rules)
    flags = open_flags_with(reader, flags, options.tables)
    rule = PredictionRule(
        specification=specification,
        options=options,
        protocol="left-to-right",
        ranks=3,
        probability=True,
    )
    return predict_span(block, (0, len(block)), flags, StoredRows(reader), rule)


def words_before(text: str, sentences: int) -> list[list[str]]:
    """Return for every token of the sequences of a text the words before it."""
    tagger, found = make_tagger("lexicon"), []
    split = [*split_text((text,)).sentences()]
    for begin in range(0, len(split), sentences):
        tagged = tagger.tag(split[begin : begin + sentences])
        words = [word for sentence in tagged for word in sentence.forms]
        noun = [part in NOUNS for sentence in tagged for part in sentence.upos]
        starts = [at for at in range(len(words)) if not (at and noun[at] and noun[at - 1])]
        found.append([" ".join(words[:at]) for at in starts])
    return found


def continued(network: gd.Network, rules: PredictionRules, prompts: Iterable[str]) -> dict[str, tuple[str, str] | None]:
    """Return word and column that `generate` predicts after each prompt, None where it predicts none."""
    options = gd.GenerationOptions(max_tokens=1, reasons=0, runners_up=1, inference=replace(rules, feed="prediction"))
    asked = [*dict.fromkeys(prompts)]
    events = network.sessions(asked, options=options)
    tokens = {asked[event.number]: event.token for event in events if event.finished}
    return {prompt: None if token is None else (token.word, token.column) for prompt, token in tokens.items()}


@pytest.mark.parametrize(("name", "rules"), CASES)
def test_every_prediction_is_that_of_generate(
    networks: dict[str, gd.Network], name: str, rules: PredictionRules
) -> None:
    network = networks[name]
    block, vocabulary = encoded(network, TEXT)
    found = predicted(network, rules, block, vocabulary)
    before = words_before(TEXT, network.specification.sentences_per_sequence)
    long = [each for each in before if len(each) > network.specification.seed_tokens]
    places = zip((found.sequence - block.first_sequence).tolist(), found.position.tolist(), strict=True)
    prompts = [long[sequence][position] for sequence, position in places]
    expected = continued(network, rules, prompts)
    for prompt, neuron in zip(prompts, found.predicted.tolist(), strict=True):
        made = None if neuron == NO_PREDICTION else word_and_column(neuron, vocabulary)
        assert made == expected[prompt], prompt
    assert (found.predicted == NO_PREDICTION).any() or name.startswith("v2")
    assert (found.predicted != NO_PREDICTION).sum() > 50


@pytest.mark.parametrize("sources", ["own", "every"])
@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_a_noun_that_nobody_can_know_is_not_predicted(tmp_path: Path, profile: str, sources: Any) -> None:
    text = [SENTENCE.format(noun) for noun in TWENTY]
    specification = gd.Specification(profile=profile)
    with gd.connect(workers=0) as client:
        network = gd.train(text, tmp_path / "net", client=client, specification=specification)
        published, from_left = (
            network.evaluate(text, client=client, protocol=protocol, sources=sources, top_k=(1, 20), bits_per_byte=True)
            for protocol in ("published", "left-to-right")
        )
        there = network.generate("The old miller of the", client=client, sources=sources)
    assert published.prediction_tokens == from_left.prediction_tokens
    # Of the twenty nouns after "heavy" one is right by chance.
    possible = published.prediction_tokens - len(TWENTY) + 1
    assert from_left.prediction_matches <= possible < published.prediction_matches
    assert from_left.protocol == from_left.as_dict()["protocol"] == "left-to-right"
    assert "protocol" in from_left.shown()
    assert ("protocol", "left-to-right") in from_left.summary().rows
    assert there.tokens == network.generate("The old miller of the", sources=sources).tokens
    words = network.generate(SENTENCE.split(" {}")[0], max_tokens=1, sources=sources, explain=True).tokens
    assert sources == "own" or words[0].word in TWENTY
    assert sources == "own" or any(reason.word == "heavy" for reason in words[0].reasons)


@pytest.mark.parametrize("sources", ["own", "every"])
@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_fed_predictions_continue_the_seed_tokens_alone(
    networks: dict[str, gd.Network], profile: str, sources: Any
) -> None:
    network, rules = networks[profile], PredictionRules(feed="prediction", sources=sources)
    block, vocabulary = encoded(network, TEXT)
    found, seed = predicted(network, rules, block, vocabulary), network.specification.seed_tokens
    before = words_before(TEXT, network.specification.sentences_per_sequence)
    long = [each for each in before if len(each) > seed]
    for number in sorted({*found.sequence.tolist()}):
        here = found.sequence == number
        prompt = long[number - block.first_sequence][seed]
        expected = network.generate(prompt, max_tokens=int(here.sum()), explain=False, sources=sources).tokens
        neurons = found.predicted[here].tolist()
        assert [word_and_column(each, vocabulary) for each in neurons] == [(t.word, t.column) for t in expected]
    assert len(found.sequence) > 10


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(OptionError, match="protocol"):
        gd.EvaluationOptions(protocol="right-to-left")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["v1", "v1 history"])
def test_figures_do_not_depend_on_the_division_into_blocks(
    networks: dict[str, gd.Network], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found, text = [], gd.TextOptions(reading=ReadOptions(part_characters=500))
    with gd.connect(workers=0) as client:
        for characters in (500, 100_000):
            monkeypatch.setattr(evaluation, "StreamOptions", partial(StreamOptions, block_characters=characters))
            report = networks[name].evaluate(gd.Files(sample_test_text()), client=client, text=text)
            found.append((report.prediction_tokens, report.prediction_matches, report.accuracy))
    assert found[0] == found[1]
    assert found[0][1] > 50
