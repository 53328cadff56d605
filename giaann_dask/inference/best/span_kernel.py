"""Score many tokens in one compiled pass, those after the same word together.

Most words that have evidence before a token have it from the word before alone: the rows of contexts of one word have
thousands of entries where those of longer contexts have hundreds. What such a row gives every word depends on nothing
else, so it is computed once for all tokens of a span that come after the same word (a *layer*), with its sums. A token
then costs what its longer contexts and the words read lately need: these change words of the layer one by one.

What is read or changed for a word by itself lies in arrays in the order in which words are found, which fit the
processor's nearest cache, and which loops without branches go over. One number for each word of the vocabulary says
where that is. Every probability before normalisation has the very bits that `best.kernel` computes, so words are ranked
alike. Only the sum over all words is added up in another order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.inference.best.array_math import exponentials, logarithms_of_more
from giaann_dask.inference.best.kernel import (
    IS_NEAR,
    LEAST_SHARE,
    NEAR_KINDS,
    RECENT_PRIOR,
    SMALL,
    Evidence,
    Pooling,
    Text,
)
from giaann_dask.keys import Integers

Floats = npt.NDArray[np.float64]

# Ranks from here on are not told apart.
MOST_RANK = 1000
# Where less than this share of a layer's sum is left, it is added up again instead of subtracted from.
_LEFT = 1 / 64


class _Found(NamedTuple):
    """Words in the order in which they were found, and where each word is among them.

    Attributes
    ----------
    place : ndarray
        For each word of the vocabulary its place, if that is not below `state[0]`, from which on places count; int64.
    words : ndarray
        Words that were found, int64, shape ``(words + 1,)``.
    state : ndarray
        Where places begin, and how many words were found; int64, shape ``(2,)``.
    """

    place: Integers
    words: Integers
    state: Integers


class _Layer(NamedTuple):
    """Words that have evidence from the word before.

    Attributes
    ----------
    found : _Found
        These words.
    shares, bases, scores, factors : ndarray
        Of each what the chain gives it as if nothing had been given yet, its probability by itself, its weighted
        evidence, and the exponential of that; float64, shape ``(words + 1,)``.
    spare : ndarray
        Work space of the same shape.
    sums : ndarray
        Sums over the words of shares times factors, of bases times factors, and of bases; float64, shape ``(3,)``.
    """

    found: _Found
    shares: Floats
    bases: Floats
    scores: Floats
    factors: Floats
    spare: Floats
    sums: Floats


class _Touched(NamedTuple):
    """Words that longer contexts or words read lately have evidence for.

    Attributes
    ----------
    found : _Found
        These words.
    direct, scores : ndarray
        Of each what the chain gives it, and its weighted evidence; 0 behind the last word.
    alone : ndarray
        The probability before normalisation that the layer alone would give it; -1 outside of the layer.
    chances, spare : ndarray
        Its probability before normalisation, and work space. All are float64, shape ``(words + 1,)``.
    """

    found: _Found
    direct: Floats
    scores: Floats
    alone: Floats
    chances: Floats
    spare: Floats


class _Read(NamedTuple):
    """Words of a span and of the tokens that are remembered at its beginning.

    Attributes
    ----------
    first : int
        The first of these tokens.
    words, priors : ndarray
        The distinct words, ascending, and the count that each is given in advance; int64 and float64, of one shape.
    number : ndarray
        For each token the place of its word among these; int64.
    begin, before : ndarray
        For each token the first token of its document, and the last one before it with the same word, or -1; int64.
    counts : ndarray
        Of each word, how often it was read lately, fading; after the same word; after the same two; float64, shape
        ``(3, words)``.
    some, values : ndarray
        Work space: int64, shape ``(words,)``, and float64, shape ``(3, words)``.
    """

    first: int
    words: Integers
    priors: Floats
    number: Integers
    begin: Integers
    before: Integers
    counts: Floats
    some: Integers
    values: Floats


class _Entries(NamedTuple):
    """Entries of the rows of the tokens of a span.

    Attributes
    ----------
    begin, end : ndarray
        Entries of each row; int64, shape ``(tokens, kinds)``.
    freed : ndarray
        Mass that the chain leaves to shorter contexts; float64, shape ``(tokens, chain)``.
    """

    begin: Integers
    end: Integers
    freed: Floats


class _Place(NamedTuple):
    """Token that is scored, and the masses that the chain leaves to contexts of one word and to words by themselves."""

    now: int
    near: float
    left: float


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _none_found(words: int) -> _Found:
    return _Found(np.full(words, -1), np.zeros(words + 1, np.int64), np.zeros(2, np.int64))


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _forget(found: _Found) -> None:
    """Let words be found anew."""
    found.state[0] += found.state[1]
    found.state[1] = 0


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _enter(word: int, found: _Found, begin: int, count: int) -> tuple[int, int]:
    """Return where a word is, which is added if it is new, and how many words there are then."""
    # Without a branch, which the processor could not foresee.
    fresh = found.place[word] < begin
    at = count if fresh else found.place[word] - begin
    found.place[word] = begin + at
    found.words[count] = word
    return at, count + fresh


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _find_entries(rows: Integers, table: Evidence, weights: Floats) -> _Entries:
    """Look up all rows at once, so that the processor waits for many of them at the same time."""
    tokens, kinds = rows.shape
    begin, end = np.zeros((tokens, kinds), np.int64), np.zeros((tokens, kinds), np.int64)
    freed = np.ones((tokens, kinds))
    for now in range(tokens):
        for kind in range(kinds):
            row = rows[now, kind]
            if row >= 0 and (kind < table.chain or weights[kind] != 0.0):
                begin[now, kind], end[now, kind] = table.pointer[row], table.pointer[row + 1]
                if kind < table.chain:
                    freed[now, kind] = table.freed[row]
    return _Entries(begin, end, freed)


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _touch_entries(now: int, entries: _Entries, table: Evidence) -> float:
    """Read one entry of each row of a token, so that the processor waits for all of them at the same time."""
    total: float = 0.0
    for kind in range(entries.begin.shape[1]):
        entry = entries.begin[now, kind]
        if entry < entries.end[now, kind]:
            total += table.word[entry] + table.evidence[entry]
    return total


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_layer(now: int, entries: _Entries, text: Text, table: Evidence, weights: Floats, layer: _Layer) -> None:
    """Collect the evidence of the word before a token."""
    _forget(layer.found)
    begin, count = layer.found.state[0], 0
    if table.chain:
        for entry in range(entries.begin[now, 0], entries.end[now, 0]):
            at, more = _enter(table.word[entry], layer.found, begin, count)
            layer.shares[at], layer.scores[at] = table.discounted[entry], 0.0
            count = more
    for kind in NEAR_KINDS:
        weight = weights[kind]
        if weight != 0.0:
            for entry in range(entries.begin[now, kind], entries.end[now, kind]):
                at, more = _enter(table.word[entry], layer.found, begin, count)
                if more > count:
                    layer.shares[at], layer.scores[at] = 0.0, 0.0
                layer.scores[at] += weight * table.evidence[entry]
                count = more
    layer.found.state[1] = count
    exponentials(layer.scores, count, layer.factors, layer.spare)
    layer.sums[:] = 0.0
    for at in range(count):
        base, factor = text.base[layer.found.words[at]], layer.factors[at]
        layer.bases[at] = base
        layer.sums[0] += layer.shares[at] * factor
        layer.sums[1] += base * factor
        layer.sums[2] += base


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _gather(now: int, entries: _Entries, table: Evidence, weights: Floats, touched: _Touched) -> tuple[float, float]:
    """Collect the evidence of longer contexts in the order of `best.kernel`; return the masses left, see `_Place`."""
    found, left = touched.found, 1.0
    touched.direct[: found.state[1]] = 0.0
    touched.scores[: found.state[1]] = 0.0
    _forget(found)
    begin, count = found.state[0], 0
    for kind in range(table.chain - 1, 0, -1):
        for entry in range(entries.begin[now, kind], entries.end[now, kind]):
            at, count = _enter(table.word[entry], found, begin, count)
            touched.direct[at] += left * table.discounted[entry]
        left *= entries.freed[now, kind]
    for kind in range(entries.begin.shape[1]):
        weight = weights[kind]
        if weight != 0.0 and not IS_NEAR[kind]:
            for entry in range(entries.begin[now, kind], entries.end[now, kind]):
                at, count = _enter(table.word[entry], found, begin, count)
                touched.scores[at] += weight * table.evidence[entry]
    found.state[1] = count
    return left, (left * entries.freed[now, 0] if table.chain else left)


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _read_tokens(text: Text, first: int, end: int) -> _Read:
    """Return the words of some tokens."""
    present = np.full(len(text.base), -1)
    begin, before = np.empty(end - first, np.int64), np.empty(end - first, np.int64)
    for at in range(first, end):
        same = at > first and text.document[at - 1] == text.document[at]
        begin[at - first] = begin[at - first - 1] if same else at
        before[at - first] = present[text.words[at]]
        present[text.words[at]] = at
    words = np.flatnonzero(present >= 0)
    present[words] = np.arange(len(words))
    number, priors = present[text.words[first:end]], np.empty(len(words))
    for at in range(len(words)):
        priors[at] = RECENT_PRIOR * max(text.share[words[at]], LEAST_SHARE)
    counts, some, values = np.zeros((3, len(words))), np.zeros(len(words) + 1, np.int64), np.empty((3, len(words)))
    return _Read(first, words, priors, number, begin, before, counts, some, values)


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _remember(now: int, text: Text, pooling: Pooling, read: _Read, touched: _Touched) -> None:
    """Collect the evidence of the tokens read before in this document."""
    number, count, first = read.number, read.counts[0], read.first
    begin = max(now - len(pooling.fading) + 1, read.begin[now - first])
    count[:] = 0.0
    for at in range(begin, now):
        count[number[at - first]] += pooling.fading[now - at]
    some = 0
    for at in range(len(count)):
        read.some[some] = at
        some += count[at] != 0.0
    _add_recent(0, some, text, pooling, read, touched)
    words = text.words
    # What the first remembered tokens came after is forgotten only where it is of another document.
    earliest, some = max(begin - 1, read.begin[now - first]), 0
    same = read.before[now - 1 - first] if now > begin else -1
    while same >= earliest:
        at = number[same + 1 - first]
        if read.counts[1, at] == 0.0:
            read.some[some] = at
            some += 1
        read.counts[1, at] += 1.0
        if same > read.begin[now - first] and words[same - 1] == words[now - 2]:
            read.counts[2, at] += 1.0
        same = read.before[same - first]
    for kind in (1, 2):
        _add_recent(kind, some, text, pooling, read, touched)
        for place in range(some):
            read.counts[kind, read.some[place]] = 0.0


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _add_recent(kind: int, some: int, text: Text, pooling: Pooling, read: _Read, touched: _Touched) -> None:
    """Add the evidence of one kind of counts of words read lately."""
    found = touched.found
    begin, count, weight = found.state[0], found.state[1], pooling.weights[text.rows.shape[1] + kind]
    for place in range(some):
        at = read.some[place]
        read.values[0, place] = read.counts[kind, at] / read.priors[at]
    logarithms_of_more(read.values[0], some, read.values[1], read.values[2])
    for place in range(some):
        at, count = _enter(read.words[read.some[place]], found, begin, count)
        touched.scores[at] += weight * read.values[1, place]
    found.state[1] = count


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _normalise(place: _Place, text: Text, layer: _Layer, touched: _Touched) -> float:
    """Compute the unnormalised probabilities of touched words; return the sum over all words."""
    found, inside = touched.found, layer.found
    covered, rest, count, begin = 0.0, 1.0 - layer.sums[2], found.state[1], inside.state[0]
    # Words outside of the layer read what stands behind it, because the processor could not foresee a branch.
    nobody = inside.state[1]
    layer.shares[nobody] = layer.scores[nobody] = layer.factors[nobody] = 0.0
    for at in range(count):
        word = found.words[at]
        base, other = text.base[word], inside.place[word] - begin
        out = other < 0
        other = nobody if out else other
        share, by_itself = place.near * layer.shares[other], place.left * base
        alone = (share + by_itself) * layer.factors[other]
        covered += alone
        touched.alone[at] = -1.0 if out else alone
        rest -= base if out else 0.0
        touched.direct[at] = (touched.direct[at] + share) + by_itself
        touched.scores[at] += layer.scores[other]
    exponentials(touched.scores, count, touched.chances, touched.spare)
    for at in range(count):
        touched.chances[at] *= touched.direct[at]
    whole = place.near * layer.sums[0] + place.left * layer.sums[1]
    others = whole - covered
    if others < _LEFT * whole:
        others = 0.0
        for at in range(inside.state[1]):
            if found.place[inside.words[at]] < found.state[0]:
                others += _by_layer(at, place, layer)
    total: float = _sum(touched.chances, count) + others + place.left * max(rest, 0.0)
    return total


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _sum(values: Floats, count: int) -> float:
    """Return the sum of the first values of an array, four of which are added at a time."""
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    whole = count - count % 4
    for at in range(0, whole, 4):
        first += values[at]
        second += values[at + 1]
        third += values[at + 2]
        fourth += values[at + 3]
    for at in range(whole, count):
        first += values[at]
    return (first + second) + (third + fourth)


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _by_layer(at: int, place: _Place, layer: _Layer) -> float:
    """Return the probability before normalisation that a layer alone gives a word of it."""
    chance: float = (place.near * layer.shares[at] + place.left * layer.bases[at]) * layer.factors[at]
    return chance


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _ahead_in_layer(chance: float, target: int, place: _Place, layer: _Layer) -> int:
    """Return how many words of a layer it makes more probable than a word with some chance."""
    ahead = 0
    for at in range(layer.found.state[1]):
        other = _by_layer(at, place, layer)
        ahead += (other > chance) | ((other == chance) & (layer.found.words[at] < target))
    return ahead


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _ahead(chance: float, target: int, chances: Floats, found: _Found) -> int:
    """Return how many of the found words are more probable than a word with some chance."""
    ahead = 0
    for at in range(found.state[1]):
        ahead += (chances[at] > chance) | ((chances[at] == chance) & (found.words[at] < target))
    return ahead


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _rank(place: _Place, text: Text, layer: _Layer, touched: _Touched) -> tuple[int, float]:
    """Return the rank of the token among all words, and the logarithm of its unnormalised probability.

    Of equals the first is more probable, but a word without evidence is the best only if it is more probable than all
    that have some.
    """
    base, left, target = text.base, place.left, text.words[place.now]
    found, inside = touched.found, layer.found
    at, other = found.place[target] - found.state[0], inside.place[target] - inside.state[0]
    chance, score = left * base[target], 0.0
    if at >= 0:
        chance, score = touched.chances[at], touched.scores[at]
    elif other >= 0:
        chance, score = _by_layer(other, place, layer), layer.scores[other]
    spoken_for = at >= 0 or other >= 0
    value = math.log(chance) if spoken_for and chance > SMALL else math.log(left) + text.log_base[target] + score
    ahead = _ahead(chance, target, touched.chances, found)
    if ahead >= MOST_RANK:
        return MOST_RANK, value
    ahead += _ahead_in_layer(chance, target, place, layer) - _ahead(chance, target, touched.alone, found)
    best, first = ahead == 0, True
    if best and not spoken_for:
        best = not _equals(chance, place, layer, touched)
    for word in text.ranked:
        other_chance = left * base[word]
        if ahead >= MOST_RANK or other_chance < chance:
            break
        if found.place[word] < found.state[0] and inside.place[word] < inside.state[0]:
            if first:
                best &= word == target or (other_chance <= chance and spoken_for)
                first = False
            ahead += other_chance > chance or word < target
    return (0 if best else min(max(ahead, 1), MOST_RANK)), value


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _equals(chance: float, place: _Place, layer: _Layer, touched: _Touched) -> bool:
    """Return whether some word with evidence has this probability before normalisation."""
    found, inside = touched.found, layer.found
    for at in range(found.state[1]):
        if touched.chances[at] == chance:
            return True
    for at in range(inside.state[1]):
        if _by_layer(at, place, layer) == chance and found.place[inside.words[at]] < found.state[0]:
            return True
    return False


@nb.njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
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
    words = len(text.base)
    space = np.zeros((10, words + 1))
    layer = _Layer(_none_found(words), space[0], space[1], space[2], space[3], space[4], np.zeros(3))
    touched = _Touched(_none_found(words), space[5], space[6], space[7], space[8], space[9])
    # Two more tokens than are remembered, which say what the first of these came after.
    read = _read_tokens(text, max(begin - len(pooling.fading) - 1, 0), end)
    logs, ranks = np.empty(end - begin), np.empty(end - begin, np.int64)
    # The rows of the near kinds as one number: they are the same where the word before is.
    group = np.zeros(end - begin, np.int64)
    for kind in NEAR_KINDS:
        group = group * (len(table.pointer) + 1) + text.rows[begin:end, kind] + 1
    entries = _find_entries(text.rows[begin:end], table, pooling.weights)
    before, order = np.int64(-1), np.argsort(group, kind="mergesort")
    for turn, at in enumerate(order):
        now = begin + at
        if turn + 1 < len(order):
            # Kept, so that it is not left out.
            touched.spare[0] = _touch_entries(order[turn + 1], entries, table)
        if group[at] != before:
            before = group[at]
            _fill_layer(at, entries, text, table, pooling.weights, layer)
        near, left = _gather(at, entries, table, pooling.weights, touched)
        _remember(now, text, pooling, read, touched)
        place = _Place(now, near, left)
        total = _normalise(place, text, layer, touched)
        ranks[at], value = _rank(place, text, layer, touched)
        logs[at] = value - math.log(total)
    return logs, ranks
