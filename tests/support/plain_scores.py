"""Score tokens with profile ``contexts`` one by one, with dictionaries, adding in the order the engine promises."""

from __future__ import annotations

import math

import numpy as np

from giaann_dask.models.contexts.kernel import (
    IS_NEAR,
    LEAST_SHARE,
    NEAR_KINDS,
    RECENT_PRIOR,
    SMALL,
    Evidence,
    Text,
    exponentials,
    logarithms_of_more,
)
from giaann_dask.models.contexts.kinds import CHAIN
from giaann_dask.models.contexts.scores import LogLinearModel
from giaann_dask.models.contexts.span_kernel import distribution
from giaann_dask.models.words.stream import TokenStream

Values = dict[int, float]


def plain_logarithms(model: LogLinearModel, stream: TokenStream) -> list[float]:
    """Return the logarithm of the probability of every token, to the bit as the engine computes it."""
    text, table = whole_text(model, stream)
    return [_logarithm(now, text, table, model) for now in range(len(stream))]


def whole_text(model: LogLinearModel, stream: TokenStream) -> tuple[Text, Evidence]:
    """Return a text with the rows of all its tokens, and their evidence."""
    return model.with_evidence(stream, model.numbered(stream), 0, len(stream))


def _apply(function: object, values: list[float]) -> list[float]:
    found, spare = np.empty((2, len(values)))
    function(np.array(values), len(values), found, spare)  # type: ignore[operator]
    return found.tolist()  # type: ignore[no-any-return]


def _entries(now: int, kind: int, text: Text, table: Evidence) -> list[tuple[int, float, float]]:
    row = text.rows[now, kind]
    if row < 0:
        return []
    span = range(table.pointer[row], table.pointer[row + 1])
    shares = table.discounted if kind < table.chain else np.zeros(len(table.word))
    return [(int(table.word[at]), float(table.evidence[at]), float(shares[at])) for at in span]


def _weights(now: int, text: Text, model: LogLinearModel) -> np.ndarray:
    every = model.options.pooling.weights
    longest = max((kind for kind in range(CHAIN) if text.rows[now, kind] >= 0), default=0)
    return every[min(longest, len(every) - 1)]


def _layer(now: int, text: Text, table: Evidence, model: LogLinearModel) -> tuple[Values, Values]:
    shares, scores, weights = {}, {}, _weights(now, text, model)
    if table.chain:
        for word, _, share in _entries(now, 0, text, table):
            shares[word], scores[word] = share, 0.0
    for kind in NEAR_KINDS:
        if weights[kind] != 0.0:
            for word, evidence, _ in _entries(now, kind, text, table):
                shares.setdefault(word, 0.0)
                scores[word] = scores.get(word, 0.0) + float(weights[kind]) * evidence
    return shares, scores


def _touch(now: int, text: Text, table: Evidence, model: LogLinearModel) -> tuple[Values, Values, float]:
    direct, scores, left, weights = {}, {}, 1.0, _weights(now, text, model)
    for kind in range(table.chain - 1, 0, -1):
        for word, _, share in _entries(now, kind, text, table):
            direct[word], scores[word] = direct.get(word, 0.0) + left * share, 0.0
        if text.rows[now, kind] >= 0:
            left *= float(table.freed[text.rows[now, kind]])
    for kind in range(text.rows.shape[1]):
        if weights[kind] != 0.0 and not IS_NEAR[kind]:
            for word, evidence, _ in _entries(now, kind, text, table):
                direct.setdefault(word, 0.0)
                scores[word] = scores.get(word, 0.0) + float(weights[kind]) * evidence
    return direct, scores, left


def _remember(now: int, text: Text, model: LogLinearModel, direct: Values, scores: Values) -> None:
    fading, factor = model.options.pooling.fading, float(text.recency[now])
    weights = _weights(now, text, model)
    words, same = text.words.tolist(), text.document == text.document[now]
    counts: list[Values] = [{}, {}, {}]
    for at in range(max(now - len(fading) + 1, 0), now):
        if same[at]:
            counts[0][words[at]] = counts[0].get(words[at], 0.0) + float(fading[now - at])
            if at > 0 and same[at - 1] and words[at - 1] == words[now - 1]:
                counts[1][words[at]] = counts[1].get(words[at], 0.0) + 1.0
                if at > 1 and same[at - 2] and words[at - 2] == words[now - 2]:
                    counts[2][words[at]] = counts[2].get(words[at], 0.0) + 1.0
    for kind, count in enumerate(counts):
        order = sorted(count)
        priors = [RECENT_PRIOR * max(float(text.share[word]), LEAST_SHARE) for word in order]
        logs = _apply(logarithms_of_more, [count[word] / prior for word, prior in zip(order, priors, strict=True)])
        for word, value in zip(order, logs, strict=True):
            direct.setdefault(word, 0.0)
            scores[word] = scores.get(word, 0.0) + float(weights[text.rows.shape[1] + kind]) * factor * value


def _sum(values: list[float]) -> float:
    parts, whole = [0.0] * 4, len(values) - len(values) % 4
    for at, value in enumerate(values):
        parts[at % 4 if at < whole else 0] += value
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


def _logarithm(now: int, text: Text, table: Evidence, model: LogLinearModel) -> float:
    shares, near = _layer(now, text, table, model)
    factor = dict(zip(near, _apply(exponentials, list(near.values())), strict=True))
    direct, scores, left = _touch(now, text, table, model)
    mass, row = left, text.rows[now, 0]
    if table.chain and row >= 0:
        left *= float(table.freed[row])
    _remember(now, text, model, direct, scores)
    base, sums = text.base.tolist(), [0.0, 0.0, 0.0]
    for word in near:
        sums[0] += shares[word] * factor[word]
        sums[1] += base[word] * factor[word]
        sums[2] += base[word]
    covered, rest = 0.0, 1.0 - sums[2]
    for word in direct:
        share, by_itself = mass * shares.get(word, 0.0), left * base[word]
        covered += (share + by_itself) * factor.get(word, 0.0)
        rest -= 0.0 if word in near else base[word]
        direct[word] = (direct[word] + share) + by_itself
        scores[word] += near.get(word, 0.0)
    powers = _apply(exponentials, [scores[word] for word in direct])
    chances = {word: power * direct[word] for word, power in zip(direct, powers, strict=True)}
    by_layer = {word: (mass * shares[word] + left * base[word]) * factor[word] for word in near}
    whole = mass * sums[0] + left * sums[1]
    others = whole - covered
    if others < whole / 64:
        others = 0.0
        for word in near:
            others += 0.0 if word in direct else by_layer[word]
    total = _sum(list(chances.values())) + others + left * max(rest, 0.0)
    target = int(text.words[now])
    chance = chances.get(target, by_layer.get(target, left * base[target]))
    if (target in near or target in chances) and chance > SMALL:
        return math.log(chance) - math.log(total)
    return math.log(left) + float(text.log_base[target]) + scores.get(target, near.get(target, 0.0)) - math.log(total)


def distribution_of(model: LogLinearModel, stream: TokenStream, token: int) -> tuple[dict[str, float], float]:
    """Return the probability of each word before a token, and that of all other strings together.

    Words are those of the vocabulary and the unknown ones of the text itself.
    """
    text, table = whole_text(model, stream)
    chance, others = distribution(text, table, model.options.pooling, token)
    names = (*model.tables.words.words, *model.number_words(stream)[0])
    return dict(zip(names, chance.tolist(), strict=True)), float(others)
