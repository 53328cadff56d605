"""Score many tokens in one compiled pass, those after the same word together.

Most words that have evidence before a token have it from the word before alone: the rows of contexts of one word have
thousands of entries where those of longer contexts have hundreds. What such a row gives every word depends on nothing
else, so it is computed once for all tokens of a span that come after the same word (a *layer*), with its sums. A token
then costs what its longer contexts and the words read lately need: these change words of the layer one by one.

Every probability before normalisation has the very bits that `best.kernel` computes, so words are ranked alike. Only
the sum over all words is added up in another order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.increments.contexts import CONTEXTS
from giaann_dask.inference.best.kernel import LEAST_SHARE, RECENT_KINDS, RECENT_PRIOR, SMALL, Evidence, Pooling, Text
from giaann_dask.keys import Integers

Floats = npt.NDArray[np.float64]

# Ranks from here on are not told apart.
MOST_RANK = 1000
# Kinds of contexts that the word before a token determines, in order.
NEAR_KINDS = np.array(
    [kind - 1 for kind, context in enumerate(CONTEXTS) if kind and {distance for _, distance in context.parts} == {1}],
    np.int64,
)
_NEAR = len(NEAR_KINDS)
# Where less than this share of a layer's sum is left, it is added up again instead of subtracted from.
_LEFT = 1 / 64


class _Layer(NamedTuple):
    """Words that have evidence from the word before, in the order in which they were found.

    Attributes
    ----------
    words : ndarray
        Their numbers, int64, shape ``(words,)``, of which as many are used as there are.
    shares, bases, factors : ndarray
        Of each what the chain gives it as if nothing had been given yet, its probability by itself, and the exponential
        of its weighted evidence; float64, same shape.
    sums : ndarray
        Sums over the words of shares times factors, of bases times factors, and of bases; float64, shape ``(3,)``.
    """

    words: Integers
    shares: Floats
    bases: Floats
    factors: Floats
    sums: Floats


class _Work(NamedTuple):
    """Work space of a span.

    Attributes
    ----------
    lines : ndarray
        For each word the fields below, in one line of the processor's cache; float64, shape ``(words, 8)``.
    recent : ndarray
        For each word the last token that remembered it, and its counts; float64, shape ``(words, 4)``.
    touched, remembered : ndarray
        Words that longer contexts or recent tokens speak for; int64, shape ``(words,)``.
    counters : ndarray
        How many of both there are; int64, shape ``(2,)``.
    """

    lines: Floats
    recent: Floats
    touched: Integers
    remembered: Integers
    counters: Integers


# Fields of a line: the token that touched the word last, what longer contexts of the chain give it, the sum of its
# weighted evidence; the last layer that has it, with its share, its weighted evidence of each near kind, its factor.
_TOKEN, _DIRECT, _SCORE, _LAYER, _SHARE, _EVIDENCE, _FACTOR = 0, 1, 2, 3, 4, 5, 7
_FIELDS = 8
assert _EVIDENCE + _NEAR == _FACTOR


class _Place(NamedTuple):
    """Token that is scored, with the number and the length of its layer, and the mass that the chain leaves.

    Attributes
    ----------
    now, number, length : int
        The token; its layer, numbered from 1; words of the layer.
    near, left : float
        Mass left to contexts of one word, and to words by themselves.
    """

    now: int
    number: int
    length: int
    near: float
    left: float


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _work_space(words: int) -> tuple[_Layer, _Work]:
    """Return the work space for a number of words."""
    numbers, floats = np.zeros(words, np.int64), np.zeros(words)
    layer = _Layer(numbers, floats, floats.copy(), floats.copy(), np.zeros(3))
    lines, recent = np.full((words, _FIELDS), -1.0), np.full((words, 1 + RECENT_KINDS), -1.0)
    return layer, _Work(lines, recent, np.zeros(words + 1, np.int64), numbers.copy(), np.zeros(2, np.int64))


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _enter(word: int, number: int, count: int, layer: _Layer, lines: Floats) -> int:
    """Add a word to a layer; return how many it has."""
    if lines[word, _LAYER] == number:
        return count
    lines[word, _LAYER] = number
    for field in range(_SHARE, _FACTOR):
        lines[word, field] = 0.0
    layer.words[count] = word
    return count + 1


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill_layer(
    now: int, number: int, text: Text, table: Evidence, weights: Floats, layer: _Layer, lines: Floats
) -> int:
    """Collect the evidence of the word before a token; return how many words have any."""
    count, row = 0, text.rows[now, 0]
    if table.chain and row >= 0:
        for entry in range(table.pointer[row], table.pointer[row + 1]):
            count = _enter(table.word[entry], number, count, layer, lines)
            lines[table.word[entry], _SHARE] = table.discounted[entry]
    for place in range(_NEAR):
        row, weight = text.rows[now, NEAR_KINDS[place]], weights[NEAR_KINDS[place]]
        if row >= 0 and weight != 0.0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                count = _enter(table.word[entry], number, count, layer, lines)
                lines[table.word[entry], _EVIDENCE + place] = weight * table.evidence[entry]
    layer.sums[:] = 0.0
    for at in range(count):
        word = layer.words[at]
        share, base, factor = lines[word, _SHARE], text.base[word], math.exp(_near_score(word, _NEAR, lines))
        lines[word, _FACTOR] = factor
        layer.shares[at], layer.bases[at], layer.factors[at] = share, base, factor
        layer.sums[0] += share * factor
        layer.sums[1] += base * factor
        layer.sums[2] += base
    return count


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _near_score(word: int, stage: int, lines: Floats) -> float:
    """Return the sum of the weighted evidence of the first near kinds for a word of the present layer."""
    score = 0.0
    for place in range(stage):
        score += lines[word, _EVIDENCE + place]
    return score


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _touch(word: int, now: int, number: int, stage: int, work: _Work) -> None:
    """Add a word to those that are evaluated by themselves, with the evidence of the first near kinds."""
    lines = work.lines
    if lines[word, _TOKEN] != now:
        lines[word, _TOKEN] = now
        work.touched[work.counters[0]] = word
        work.counters[0] += 1
        lines[word, _DIRECT] = 0.0
        lines[word, _SCORE] = _near_score(word, stage, lines) if lines[word, _LAYER] == number else 0.0


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(now: int, number: int, text: Text, table: Evidence, weights: Floats, work: _Work) -> tuple[float, float]:
    """Collect the evidence of longer contexts in the order of `best.kernel`; return the masses left, see `_Place`."""
    rows, lines, touched, left, stage, count = text.rows, work.lines, work.touched, 1.0, 0, 0
    for kind in range(table.chain - 1, 0, -1):
        row = rows[now, kind]
        if row >= 0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                word = table.word[entry]
                # Without a branch, which the processor could not foresee.
                fresh = lines[word, _TOKEN] != now
                touched[count] = word
                count += fresh
                lines[word, _TOKEN] = now
                lines[word, _SCORE] = 0.0
                lines[word, _DIRECT] = (0.0 if fresh else lines[word, _DIRECT]) + left * table.discounted[entry]
            left *= table.freed[row]
    for kind in range(rows.shape[1]):
        row, weight = rows[now, kind], weights[kind]
        if stage < _NEAR and kind == NEAR_KINDS[stage]:
            for place in range(count):
                word = touched[place]
                lines[word, _SCORE] += lines[word, _EVIDENCE + stage] if lines[word, _LAYER] == number else 0.0
            stage += 1
        elif row >= 0 and weight != 0.0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                word = table.word[entry]
                fresh = lines[word, _TOKEN] != now
                touched[count] = word
                count += fresh
                lines[word, _TOKEN] = now
                begun = _near_score(word, stage, lines) if lines[word, _LAYER] == number else 0.0
                lines[word, _DIRECT] = 0.0 if fresh else lines[word, _DIRECT]
                lines[word, _SCORE] = (begun if fresh else lines[word, _SCORE]) + weight * table.evidence[entry]
    work.counters[0] = count
    row = rows[now, 0]
    return left, (left * table.freed[row] if table.chain and row >= 0 else left)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remember(now: int, number: int, text: Text, pooling: Pooling, work: _Work) -> None:
    """Collect the evidence of the tokens read before in this document."""
    words, document, recent = text.words, text.document, work.recent
    begin = max(now - len(pooling.fading) + 1, 0)
    while begin < now and document[begin] != document[now]:
        begin += 1
    # What the first remembered tokens came after is forgotten only where it is of another document.
    first = begin
    while first > max(begin - 2, 0) and document[first - 1] == document[now]:
        first -= 1
    for at in range(begin, now):
        word = words[at]
        if recent[word, 0] != now:
            recent[word, 0] = now
            for kind in range(RECENT_KINDS):
                recent[word, 1 + kind] = 0.0
            _touch(word, now, number, _NEAR, work)
            work.remembered[work.counters[1]] = word
            work.counters[1] += 1
        recent[word, 1] += pooling.fading[now - at]
        if at > first and words[at - 1] == words[now - 1]:
            recent[word, 2] += 1.0
            if at > first + 1 and words[at - 2] == words[now - 2]:
                recent[word, 3] += 1.0
    kinds = text.rows.shape[1]
    for place in range(work.counters[1]):
        word = work.remembered[place]
        prior, score = RECENT_PRIOR * max(text.share[word], LEAST_SHARE), work.lines[word, _SCORE]
        for kind in range(RECENT_KINDS):
            if recent[word, 1 + kind] != 0.0:
                score += pooling.weights[kinds + kind] * math.log1p(recent[word, 1 + kind] / prior)
        work.lines[word, _SCORE] = score


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _by_layer(word: int, place: _Place, text: Text, lines: Floats) -> float:
    """Return the probability before normalisation that a layer alone gives a word of it."""
    chance: float = (place.near * lines[word, _SHARE] + place.left * text.base[word]) * lines[word, _FACTOR]
    return chance


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _normalise(place: _Place, text: Text, layer: _Layer, work: _Work) -> float:
    """Make unnormalised probabilities of the scores of touched words; return the sum over all words."""
    base, lines = text.base, work.lines
    total: float = 0.0
    covered, rest = 0.0, 1.0 - layer.sums[2]
    for at in range(work.counters[0]):
        word = work.touched[at]
        own = lines[word, _DIRECT]
        if lines[word, _LAYER] == place.number:
            covered += _by_layer(word, place, text, lines)
            own += place.near * lines[word, _SHARE]
        else:
            rest -= base[word]
        lines[word, _DIRECT] = (own + place.left * base[word]) * math.exp(lines[word, _SCORE])
        total += lines[word, _DIRECT]
    whole = place.near * layer.sums[0] + place.left * layer.sums[1]
    others = whole - covered
    if others < _LEFT * whole:
        others = 0.0
        for at in range(place.length):
            if lines[layer.words[at], _TOKEN] != place.now:
                others += _by_layer(layer.words[at], place, text, lines)
    total += others + place.left * max(rest, 0.0)
    return total


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _ahead_in_layer(chance: float, target: int, place: _Place, layer: _Layer) -> int:
    """Return how many words of a layer it makes more probable than a word with some chance."""
    ahead = 0
    for at in range(place.length):
        other = (place.near * layer.shares[at] + place.left * layer.bases[at]) * layer.factors[at]
        ahead += (other > chance) | ((other == chance) & (layer.words[at] < target))
    return ahead


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _rank(place: _Place, text: Text, layer: _Layer, work: _Work) -> tuple[int, float]:
    """Return the rank of the token among all words, and the logarithm of its unnormalised probability.

    Of equals the first is more probable, but a word without evidence is the best only if it is more probable than all
    that have some.
    """
    base, lines, left, target = text.base, work.lines, place.left, text.words[place.now]
    touched, inside = lines[target, _TOKEN] == place.now, lines[target, _LAYER] == place.number
    chance, score = left * base[target], 0.0
    if touched:
        chance, score = lines[target, _DIRECT], lines[target, _SCORE]
    elif inside:
        chance, score = _by_layer(target, place, text, lines), _near_score(target, _NEAR, lines)
    spoken_for = touched or inside
    value = math.log(chance) if spoken_for and chance > SMALL else math.log(left) + text.log_base[target] + score
    ahead, equal = 0, False
    for at in range(work.counters[0]):
        word = work.touched[at]
        other = lines[word, _DIRECT]
        ahead += other > chance or (other == chance and word < target)
        equal |= other == chance
    if ahead >= MOST_RANK:
        return MOST_RANK, value
    ahead += _ahead_in_layer(chance, target, place, layer)
    for at in range(work.counters[0]):
        word = work.touched[at]
        if lines[word, _LAYER] == place.number:
            other = _by_layer(word, place, text, lines)
            ahead -= other > chance or (other == chance and word < target)
    best, first = ahead == 0, True
    if best and not spoken_for:
        for at in range(place.length):
            word = layer.words[at]
            equal |= lines[word, _TOKEN] != place.now and _by_layer(word, place, text, lines) == chance
        best = not equal
    for word in text.ranked:
        other = left * base[word]
        if ahead >= MOST_RANK or other < chance:
            break
        if lines[word, _TOKEN] != place.now and lines[word, _LAYER] != place.number:
            if first:
                best &= word == target or (other <= chance and spoken_for)
                first = False
            ahead += other > chance or word < target
    return (0 if best else min(max(ahead, 1), MOST_RANK)), value


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_tokens(text: Text, table: Evidence, pooling: Pooling, begin: int, end: int) -> tuple[Floats, Integers]:
    """Return the logarithm of each token's probability and the token's rank.

    Parameters
    ----------
    text, table, pooling
        What is read; see there.
    begin, end : int
        Tokens to score; what stands before them is only remembered.

    Returns
    -------
    tuple of ndarray
        Natural logarithms, float64, and how many words were more probable than what came, `MOST_RANK` standing for as
        many and more, int64; shape ``(end - begin,)`` each. A token's do not depend on where the span begins and ends.
    """
    layer, work = _work_space(len(text.base))
    logs, ranks = np.empty(end - begin), np.empty(end - begin, np.int64)
    # The rows of the near kinds as one number: they are the same where the word before is.
    group = np.zeros(end - begin, np.int64)
    for kind in NEAR_KINDS:
        group = group * (len(table.pointer) + 1) + text.rows[begin:end, kind] + 1
    number, count, before = 0, 0, np.int64(-1)
    for at in np.argsort(group, kind="mergesort"):
        now = begin + at
        if group[at] != before:
            before = group[at]
            number += 1
            count = _fill_layer(now, number, text, table, pooling.weights, layer, work.lines)
        work.counters[:] = 0
        near, left = _gather(now, number, text, table, pooling.weights, work)
        _remember(now, number, text, pooling, work)
        place = _Place(now, number, count, near, left)
        total = _normalise(place, text, layer, work)
        ranks[at], value = _rank(place, text, layer, work)
        logs[at] = value - math.log(total)
    return logs, ranks
