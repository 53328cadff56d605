"""Profile ``contexts``: true probabilities, smoothing as published, and that pooled evidence helps."""

from __future__ import annotations

import gzip
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.plain_scores import distribution_of, plain_logarithms, whole_text

from benchmarks.choose_weights import choose_weights, gradient, with_weights
from benchmarks.choose_weights import distribution as alone
from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import pack_target, unpack_target
from giaann_dask.models.contexts.kernel import TOKENS_OF_RECENCY, exponentials, logarithms_of_more, recency_of
from giaann_dask.models.contexts.kinds import CHAIN, count_kinds
from giaann_dask.models.contexts.scores import KNESER_NEY, NAMES, LogLinearModel, PoolingOptions, backoff_matches
from giaann_dask.models.contexts.span_kernel import distribution
from giaann_dask.models.contexts.tables import PackedTables, build_tables
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.models.words.scores import MOST_RANK
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.run import Run

Documents = list[list[list[str]]]
DATA = Path(__file__).resolve().parent.parent / "data" / "synthetic"
WORDS = st.sampled_from(["a", "b", "the", "cats", "walking", "1984"])
SOME = st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=8), min_size=1, max_size=4), min_size=1, max_size=3)
OTHERS = st.lists(st.lists(st.lists(WORDS | st.text(max_size=3), min_size=1, max_size=6), min_size=1), min_size=1)
ROW = st.lists(st.floats(-1, 1.5), min_size=len(NAMES) + 3, max_size=len(NAMES) + 3)
WEIGHTS = st.lists(ROW, min_size=1, max_size=CHAIN + 1)


def tables_of(documents: Documents) -> PackedTables:
    stream = TokenStream.from_documents(documents)
    return build_tables([count_kinds(stream)], stream.words)


def model_of(documents: Documents, options: PoolingOptions | None = None) -> LogLinearModel:
    return LogLinearModel(tables_of(documents), options or PoolingOptions(remembered_tokens=0))


def synthetic(name: str) -> Documents:
    text = gzip.decompress((DATA / f"{name}.conllu.gz").read_bytes()).decode("utf-8")
    sentences = [
        [line.split("\t")[1] for line in block.split("\n") if line and line[0].isdigit()]
        for block in text.split("\n\n")
    ]
    return [[sentence] for sentence in sentences if sentence]


@examples(20)
@given(SOME, OTHERS, WEIGHTS, st.integers(0, 4), st.sampled_from([0, 2, 50]))
def test_probabilities_sum_to_one(
    trained: Documents, text: Documents, weights: list[list[float]], chain: int, remembered: int
) -> None:
    options = with_weights(PoolingOptions(chain=chain, remembered_tokens=remembered), np.array(weights))
    model, stream = model_of(trained, options), TokenStream.from_documents(text)
    scores = model.score(stream)
    assert np.isfinite(scores.log_probability).all()
    for token in {0, len(stream) // 2, len(stream) - 1}:
        chance, others = distribution_of(model, stream, token)
        assert others >= 0
        assert math.fsum([*chance.values(), others]) == pytest.approx(1, abs=1e-6)
        word = stream.words[stream.index[token]]
        assert math.log(chance[word]) == pytest.approx(scores.log_probability[token], abs=1e-6)
        best = max(chance.values())
        assert (chance[word] >= best) >= bool(scores.matches[token])
        if scores.matches[token]:
            assert chance[word] == pytest.approx(best)


def test_spelling_is_a_distribution() -> None:
    spelling = Spelling.learn(["ab", "abc", "b"])
    alphabet = ["", *("".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("abcd", repeat=n))]
    assert 0.5 < np.exp(spelling.log_probability(alphabet)).sum() < 1
    assert np.isfinite(Spelling.learn([]).log_probability(["", "ü", "\ud800"])).all()
    assert spelling.log_probability(["abc"]) > spelling.log_probability(["cba"])


def test_regions_may_come_in_any_order() -> None:
    stream = TokenStream.from_documents(synthetic("train")[:40])
    run = count_kinds(stream)
    source = np.repeat(run.source, np.diff(run.pointer))
    parts = []
    for region in range(3):
        rows, entries = run.source % 3 == region, source % 3 == region
        pointer = np.append(0, np.cumsum(np.diff(run.pointer)[rows]))
        parts.append(Run(run.source[rows], pointer, run.target[entries], run.strength[entries]))
    whole, dealt = build_tables([run], stream.words), build_tables(reversed(parts), stream.words[::-1])
    assert whole.words.words == dealt.words.words
    assert whole.words.base.tobytes() == dealt.words.base.tobytes()
    (evidence, rows), (other, places) = (tables.of_tokens(stream, 0, len(stream)) for tables in (whole, dealt))
    assert [each.tobytes() for each in (rows, *evidence[:-1])] == [each.tobytes() for each in (places, *other[:-1])]
    assert whole.counts.packed.bits.tobytes() == dealt.counts.packed.bits.tobytes()


def test_smoothing_counts_distinct_contexts() -> None:
    # "francisco" is as frequent as "york" and "paris" together, but follows one word only.
    trained = [[["in", "paris"], ["to", "york"], ["from", "paris"], ["at", "york"], *[["san", "francisco"]] * 8]]
    model = model_of(trained)
    chance, _ = distribution_of(model, TokenStream.from_documents([[["near", "x"]]]), 1)
    assert chance["paris"] > chance["francisco"]
    chance, _ = distribution_of(model, TokenStream.from_documents([[["san", "x"]]]), 1)
    assert max(chance, key=lambda word: chance[word]) == "francisco"


def test_backoff_takes_the_longest_context() -> None:
    trained = [[["a", "b", "c"], ["x", "b", "d"], ["y", "b", "d"], ["c", "c", "c"]]]
    tables = tables_of(trained)
    hits = backoff_matches(tables, TokenStream.from_documents([[["a", "b", "c"], ["z", "b", "d"], ["q", "z", "c"]]]))
    # The word that most sentences begin with is not decided here, so only what follows a word is.
    assert hits.reshape(3, 3)[:, 2].tolist() == [True, True, True]


def test_words_of_the_document_are_remembered() -> None:
    model = model_of(synthetic("train")[:20], PoolingOptions(recent_weights=(0.3, 0.3, 0.3)))
    text = [[["Zorgon", "ate"], ["then", "Zorgon", "ate"]], [["then", "Zorgon", "ate"]]]
    scores = model.score(TokenStream.from_documents(text)).log_probability
    assert scores[3] > scores[0] + 1, "a word that was read becomes more probable"
    assert scores[6] < scores[3] - 1, "not in another document"


def test_exponentials_and_logarithms_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([[0.0, 708.0, -708.0, 1e-300], rng.normal(0, 100, 500).clip(-708, 708)])
    found, spare = np.empty((2, len(values)))
    exponentials(np.append(values[1:], -1e300), len(values), found, spare)
    np.testing.assert_allclose(found, np.exp(np.append(values[1:], -708.0)), rtol=3e-16)
    logarithms_of_more(np.exp(values / 10), len(values), found, spare)
    np.testing.assert_allclose(found, np.log1p(np.exp(values / 10)), rtol=3e-16, atol=2e-16)


def test_scores_do_not_depend_on_where_scoring_begins() -> None:
    options = with_weights(PoolingOptions(), np.full(len(NAMES) + 3, 0.1))
    options = replace(options, remembered_tokens=20)
    sentences = [document[0] for document in synthetic("test")[:10]]
    model, stream = model_of(synthetic("train")[:60], options), TokenStream.from_documents([sentences])
    text = model.numbered(stream)
    whole, ends = model.score_span(stream, text, 0, len(stream)), (0, len(stream) // 3, len(stream) // 2, len(stream))
    parts = [model.score_span(stream, text, *each) for each in itertools.pairwise(ends)]
    assert np.concatenate([part.log_probability for part in parts]).tobytes() == whole.log_probability.tobytes()
    assert np.concatenate([part.rank for part in parts]).tolist() == whole.rank.tolist()


@examples(40)
@given(SOME, OTHERS, WEIGHTS, st.integers(0, 4), st.sampled_from([0, 2, 50]))
def test_scores_of_spans_are_those_of_single_tokens(
    trained: Documents, text: Documents, weights: list[list[float]], chain: int, remembered: int
) -> None:
    options = with_weights(PoolingOptions(chain=chain, remembered_tokens=remembered), 3 * np.array(weights))
    model, stream = model_of([*trained, *text[::2]], options), TokenStream.from_documents(text)
    prepared, evidence = whole_text(model, stream)
    scores = model.score(stream)
    for token in range(len(stream)):
        chance, others = alone(prepared, evidence, options.pooling, token)
        found = distribution(prepared, evidence, options.pooling, token)
        np.testing.assert_allclose(found[0], chance, rtol=1e-9)
        assert found[1] == pytest.approx(others, rel=1e-9)
        word = prepared.words[token]
        if chance[word] > 1e-250:
            # Only the order in which probabilities are added up differs.
            assert scores.log_probability[token] == pytest.approx(math.log(chance[word]), abs=1e-11)
        more = np.count_nonzero(chance > chance[word] * (1 + 1e-12))
        as_many = np.count_nonzero(chance >= chance[word] * (1 - 1e-12)) - 1
        assert min(more, MOST_RANK) <= scores.rank[token] <= max(as_many, 1)
        assert scores.matches[token] == (scores.rank[token] == 0)


@examples(40)
@given(SOME, OTHERS, WEIGHTS, st.integers(0, 4), st.sampled_from([0, 2, 50]))
def test_scores_have_the_bits_of_sums_in_the_promised_order(
    trained: Documents, text: Documents, weights: list[list[float]], chain: int, remembered: int
) -> None:
    options = with_weights(PoolingOptions(chain=chain, remembered_tokens=remembered), 2 * np.array(weights))
    model, stream = model_of([*trained, *text[::2]], options), TokenStream.from_documents(text)
    assert model.score(stream).log_probability.tolist() == plain_logarithms(model, stream)


@pytest.mark.parametrize("remembered", [30, 1500])
def test_scores_of_a_longer_text_have_the_bits_of_sums_in_the_promised_order(remembered: int) -> None:
    options = with_weights(PoolingOptions(remembered_tokens=remembered), np.full(len(NAMES) + 3, 0.1))
    sentences = [document[0] for document in synthetic("test")[:12]]
    stream = TokenStream.from_documents([sentences[:9], sentences[9:]])
    model = model_of(synthetic("train")[:60], options)
    assert model.score(stream).log_probability.tolist() == plain_logarithms(model, stream)


def test_rank_counts_the_words_that_are_more_probable() -> None:
    options = with_weights(PoolingOptions(), np.full(len(NAMES) + 3, 0.1))
    model, stream = model_of(synthetic("train")[:60], options), TokenStream.from_documents(synthetic("test")[:10])
    scores = model.score(stream)
    found = []
    for token in range(0, len(stream), 3):
        chance, _ = distribution_of(model, stream, token)
        words, came = list(chance), stream.words[stream.index[token]]
        order = sorted(range(len(words)), key=lambda at: (-chance[words[at]], at))
        found.append(order.index(words.index(came)))
    assert scores.rank[::3].tolist() == found
    assert len(set(found)) > 5
    shares = [scores.top_k(k) for k in (1, 2, 10, 1000)]
    assert shares == sorted(shares)
    assert shares[0] == scores.matches.mean()


def test_gradient_is_that_of_the_score() -> None:
    options = with_weights(PoolingOptions(remembered_tokens=30), np.full((3, len(NAMES) + 3), 0.1))
    model, stream = model_of(synthetic("train")[:20], options), TokenStream.from_documents([synthetic("test")[0] * 2])
    _, slope = gradient(options.pooling.weights, options, *whole_text(model, stream))
    for at in ((0, 0), (0, 5), (1, 1), (2, len(NAMES)), (2, 2), (1, len(NAMES) + 1)):
        values = options.pooling.weights
        sides = []
        for step in (0.01, -0.01):
            moved = values.copy()
            moved[at] += step
            nearby = replace(model, options=with_weights(options, moved))
            sides.append(nearby.score(stream).log_probability.mean())
        assert slope[at] == pytest.approx((sides[0] - sides[1]) / 0.02, rel=0.02, abs=1e-5)


def test_pooling_beats_the_chain_on_unseen_text() -> None:
    trained, unseen = synthetic("train"), TokenStream.from_documents(synthetic("test"))
    validation = TokenStream.from_documents(trained[-30:])
    begun = with_weights(PoolingOptions(), np.full(len(NAMES) + 3, 0.05))
    chosen = choose_weights([(model_of(trained[:-30], begun), validation)], lengths=1, steps=10)
    tables = tables_of(trained)
    best = LogLinearModel(tables, chosen).score(unseen).summary()
    smoothed = LogLinearModel(tables, KNESER_NEY).score(unseen).summary()
    assert best.nats < smoothed.nats
    assert best.top1 > 0.9 * smoothed.top1
    assert smoothed.tokens == best.tokens == len(unseen)
    assert best.bits_per_byte == pytest.approx(best.nats / math.log(2) / best.nbytes)


def test_two_contexts_of_one_key_do_no_harm() -> None:
    stream = TokenStream.from_documents(synthetic("train")[:20])
    run = count_kinds(stream)
    segment, _, _ = unpack_target(run.target)
    source = np.repeat(run.source, np.diff(run.pointer))
    at = int(np.flatnonzero(segment == EXTENDS)[3])
    for other in (0, (1 << 51) - 1, int(source[0])):
        twin = Run(source[at : at + 1], np.array([0, 1]), pack_target(EXTENDS, [other], 0), np.ones(1, np.int32))
        model = LogLinearModel(build_tables([merge_runs([run, twin])], stream.words))
        chance, others = distribution_of(model, TokenStream.from_documents(synthetic("test")[:1]), 4)
        assert math.fsum([*chance.values(), others]) == pytest.approx(1, abs=1e-6)


def test_no_word_is_too_long() -> None:
    options = PoolingOptions(recent_weights=(0.3, 0.3, 0.3))
    text = TokenStream.from_documents([[["see", "x" * 999], ["see", "http://" + "y" * 2000, "x" * 999]]])
    scores = model_of(synthetic("train")[:20], options).score(text)
    assert np.isfinite(scores.log_probability).all()
    assert scores.log_probability[3] < -1000
    assert math.isfinite(scores.summary().bits_per_byte)


def test_recent_words_count_more_in_a_text_that_repeats_itself() -> None:
    share = np.full(3000, 1e-5)
    documents = np.repeat([0, 1], [1500, 500])
    unlike, alike = np.arange(2000), np.arange(2000) % 40
    factors = [recency_of(words, documents, share) for words in (unlike, alike)]
    assert factors[0][1499] == 0.2 < factors[0][0] == factors[1][1500] < factors[1][1499] == 1.2
    assert np.ptp([each[1500] for each in factors]) == 0, "another document"
    # Frequent words are not looked at, nor is what lies far behind.
    assert np.ptp(recency_of(alike, documents, share + 1)) == 0
    for words in (unlike, alike):
        part = slice(1400 - TOKENS_OF_RECENCY, 1401)
        assert recency_of(words[part], documents[part], share)[-1] == recency_of(words, documents, share)[1400]


def test_refusals() -> None:
    with pytest.raises(EmptyInputError):
        build_tables([Run.empty()], [])
    with pytest.raises(EmptyInputError):
        model_of([[["a"]]]).score(TokenStream.from_documents([[["a", "b"]]])).summary(8)
