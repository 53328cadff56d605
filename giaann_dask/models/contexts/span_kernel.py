"""Sum all evidence for the next word by compiled code, of tokens after the same word together.

Before each token, ``log p(w) = log chain(w) + sum over kinds of weight * evidence(w) - log Z``. Words without evidence
keep the probability that the chain gives them, all scaled alike, so their sum is known without a loop over them: it is
1 less the sum of the words that have evidence.

Most words that have evidence before a token have it from the word before alone: the rows of contexts of one word have
thousands of entries where those of longer contexts have hundreds. What such a row gives every word depends on nothing
else, so it is computed once for all tokens of a span that come after the same word (a *layer*), with its sums. A token
then costs what its longer contexts and the words read lately need: these change words of the layer one by one.

What is read or changed for a word by itself lies in arrays in the order in which words are found, which fit the
processor's nearest cache, and which loops without branches go over. One number for each word of the vocabulary says
where that is. A token's results have the same bits whatever is scored with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner, runs_plainly
from giaann_dask.models.contexts import uncompiled
from giaann_dask.models.contexts.kernel import (
    IS_NEAR,
    LEFT,
    NEAR_KINDS,
    SMALL,
    Evidence,
    Floats,
    Pooling,
    Recent,
    Text,
    count_recent,
    exponentials,
    find_recent,
    weights_before,
)
from giaann_dask.models.words.scores import MOST_RANK

Places = npt.NDArray[np.int32]

# Places of found words begin at 0 again from here on, so that they fit 32 bits.
_MOST_PLACES = 1 << 30
# Words of a layer of which an upper bound is compared first.
_BLOCK = 64
# More than the error of a computed probability that is not close to 0, as a factor.
_SLACK = 1 + 2.0**-40
# The type of indices in inner loops: compiled code need not look whether they count from the end.
_index = np.uint64


class _Found(NamedTuple):
    """Words in the order in which they were found, and where each word is among them.

    Attributes
    ----------
    place : ndarray
        For each word of the vocabulary its place, if that is not below `state[0]`, from which on places count; int32.
    words : ndarray
        Words that were found, int64, shape ``(words + 1,)``.
    state : ndarray
        Where places begin, and how many words were found; int64, shape ``(2,)``.
    """

    place: Places
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
    by_word : ndarray
        Share, score and factor of each once more, and an unused number, side by side; float64, shape
        ``(4 * (words + 1),)``.
    most : ndarray
        Greatest share times factor, and greatest base times factor, of every `_BLOCK` words; float64, shape
        ``(2, blocks)``.
    spare : ndarray
        Work space of the shape of `shares`.
    sums : ndarray
        Sums over the words of shares times factors, of bases times factors, and of bases; float64, shape ``(3,)``.
    """

    found: _Found
    shares: Floats
    bases: Floats
    scores: Floats
    factors: Floats
    by_word: Floats
    most: Floats
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
    slots : ndarray
        Place of each entry of the contexts of the chain, int32, shape ``(most entries,)``.
    """

    found: _Found
    direct: Floats
    scores: Floats
    alone: Floats
    chances: Floats
    spare: Floats
    slots: Places


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


@jit_inner
def _none_found(words: int) -> _Found:
    return _Found(np.full(words, -1, np.int32), np.zeros(words + 1, np.int64), np.zeros(2, np.int64))


@jit_inner
def _forget(found: _Found) -> None:
    """Let words be found anew."""
    found.state[0] += found.state[1]
    found.state[1] = 0
    if found.state[0] > _MOST_PLACES:
        found.place[:] = -1
        found.state[0] = 0


@jit_inner
def _enter(word: int, found: _Found, begin: int, count: int) -> tuple[int, int]:
    """Return where a word is, which is added if it is new, and how many words there are then."""
    # Without a branch, which the processor could not foresee.
    old = found.place[_index(word)]
    fresh = old < begin
    at = count if fresh else old - begin
    found.place[_index(word)] = begin + at
    found.words[_index(count)] = word
    return at, count + fresh


@jit_inner
def _find_entries(rows: Integers, table: Evidence, weights: Floats) -> _Entries:
    """Look up all rows at once, so that the processor waits for many of them at the same time."""
    tokens, kinds = rows.shape
    used = np.zeros(kinds, np.bool_)
    for length in range(len(weights)):
        used |= weights[length, :kinds] != 0.0
    begin, end = np.zeros((tokens, kinds), np.int64), np.zeros((tokens, kinds), np.int64)
    freed = np.ones((tokens, kinds))
    for now in range(tokens):
        for kind in range(kinds):
            row = rows[now, kind]
            if row >= 0 and (kind < table.chain or used[kind]):
                begin[now, kind], end[now, kind] = table.pointer[row], table.pointer[row + 1]
                if kind < table.chain:
                    freed[now, kind] = table.freed[row]
    return _Entries(begin, end, freed)


@jit_inner
def _touch_entries(now: int, entries: _Entries, table: Evidence) -> float:
    """Read one entry of each row of a token, so that the processor waits for all of them at the same time."""
    total: float = 0.0
    for kind in range(entries.begin.shape[1]):
        entry = entries.begin[now, kind]
        if entry < entries.end[now, kind]:
            total += table.word[entry] + table.evidence[entry]
    return total


@jit_inner
def _fill_layer(now: int, entries: _Entries, text: Text, table: Evidence, weights: Floats, layer: _Layer) -> None:
    """Collect the evidence of the word before a token."""
    found = layer.found
    _forget(found)
    begin, count = found.state[0], 0
    if table.chain:
        first, count = entries.begin[now, 0], entries.end[now, 0] - entries.begin[now, 0]
        for at in range(count):
            word = table.word[_index(first + at)]
            found.words[_index(at)], found.place[_index(word)] = word, begin + at
            layer.shares[_index(at)], layer.scores[_index(at)] = table.discounted[_index(first + at)], 0.0
    for kind in NEAR_KINDS:
        weight = weights[kind]
        if weight != 0.0:
            for entry in range(entries.begin[now, kind], entries.end[now, kind]):
                at, more = _enter(table.word[_index(entry)], found, begin, count)
                if more > count:
                    layer.shares[_index(at)], layer.scores[_index(at)] = 0.0, 0.0
                layer.scores[_index(at)] += weight * table.evidence[_index(entry)]
                count = more
    found.state[1] = count
    exponentials(layer.scores, count, layer.factors, layer.spare)
    _sum_layer(text, layer)


@jit_inner
def _sum_layer(text: Text, layer: _Layer) -> None:
    """Add up a layer, and note the greatest values of its blocks."""
    count, shares, factors = layer.found.state[1], layer.shares, layer.factors
    total, by_itself, bases = 0.0, 0.0, 0.0
    for at in range(count):
        base = text.base[_index(layer.found.words[at])]
        layer.bases[at] = base
        total += shares[at] * factors[at]
        by_itself += base * factors[at]
        bases += base
        layer.by_word[4 * at], layer.by_word[4 * at + 1] = shares[at], layer.scores[at]
        layer.by_word[4 * at + 2] = factors[at]
    layer.sums[0], layer.sums[1], layer.sums[2] = total, by_itself, bases
    for block in range((count + _BLOCK - 1) // _BLOCK):
        share, base = 0.0, 0.0
        for at in range(block * _BLOCK, min((block + 1) * _BLOCK, count)):
            share, base = max(share, shares[at] * factors[at]), max(base, layer.bases[at] * factors[at])
        layer.most[0, block], layer.most[1, block] = share, base
    # Words outside of the layer read what stands behind it, because the processor could not foresee a branch.
    layer.by_word[4 * count : 4 * count + 3] = 0.0


@jit_inner
def _gather(now: int, entries: _Entries, table: Evidence, weights: Floats, touched: _Touched) -> tuple[float, float]:
    """Collect the evidence of longer contexts; return the masses left, see `_Place`."""
    found, direct, scores, left = touched.found, touched.direct, touched.scores, 1.0
    direct[: found.state[1]] = 0.0
    scores[: found.state[1]] = 0.0
    _forget(found)
    begin, count, slot = found.state[0], 0, 0
    for kind in range(table.chain - 1, 0, -1):
        for entry in range(entries.begin[now, kind], entries.end[now, kind]):
            at, count = _enter(table.word[_index(entry)], found, begin, count)
            direct[_index(at)] += left * table.discounted[_index(entry)]
            touched.slots[_index(slot)] = at
            slot += 1
        left *= entries.freed[now, kind]
    for kind in range(1, entries.begin.shape[1]):
        weight, first, end = weights[kind], entries.begin[now, kind], entries.end[now, kind]
        if kind < table.chain:
            slot -= end - first
            if weight != 0.0:
                for entry in range(first, end):
                    at = touched.slots[_index(slot + entry - first)]
                    scores[_index(at)] += weight * table.evidence[_index(entry)]
        elif weight != 0.0 and not IS_NEAR[kind]:
            for entry in range(first, end):
                at, count = _enter(table.word[_index(entry)], found, begin, count)
                scores[_index(at)] += weight * table.evidence[_index(entry)]
    found.state[1] = count
    return left, (left * entries.freed[now, 0] if table.chain else left)


@jit_inner
def _remember(now: int, text: Text, pooling: Pooling, weights: Floats, recent: Recent, touched: _Touched) -> None:
    """Collect the evidence of the tokens read before in this document."""
    found, scores = touched.found, touched.scores
    kinds = text.rows.shape[1]
    block, some = count_recent(now, text, pooling, recent)
    words, evidence = recent.words[recent.pointer[block] : recent.pointer[block + 1]], recent.at.evidence
    begin, count, factor = found.state[0], found.state[1], text.recency[now]
    weight = weights[kinds] * factor
    for at in range(len(words)):
        word = words[_index(at)]
        old = found.place[_index(word)]
        # Without a branch: a word that only other tokens of the block remember stays outside, and adds 0.
        read, fresh = recent.at.counts[0, at] != 0.0, old < begin
        to = count if fresh else old - begin
        found.place[_index(word)] = begin + to if read else old
        found.words[_index(count)] = word
        scores[_index(to)] += weight * evidence[0, at]
        count += read & fresh
    found.state[1] = count
    # Words that followed the same were read, so they have a place.
    for kind in (1, 2):
        for place in range(some):
            at = recent.at.following[place]
            scores[found.place[words[at]] - begin] += weights[kinds + kind] * factor * evidence[kind, place]


@jit_inner
def _normalise(place: _Place, text: Text, layer: _Layer, touched: _Touched) -> float:
    """Compute the unnormalised probabilities of touched words; return the sum over all words."""
    found, inside = touched.found, layer.found
    covered, rest, count, begin = 0.0, 1.0 - layer.sums[2], found.state[1], inside.state[0]
    nobody, by_word, left, near = inside.state[1], layer.by_word, place.left, place.near
    for at in range(count):
        word = _index(found.words[_index(at)])
        base, other = text.base[word], np.int64(inside.place[word]) - begin
        out = other < 0
        row = _index(4 * (nobody if out else other))
        share, by_itself = near * by_word[row], left * base
        alone = (share + by_itself) * by_word[row + _index(2)]
        covered += alone
        touched.alone[_index(at)] = -1.0 if out else alone
        rest -= base if out else 0.0
        touched.direct[_index(at)] = (touched.direct[_index(at)] + share) + by_itself
        touched.scores[_index(at)] += by_word[row + _index(1)]
    exponentials(touched.scores, count, touched.chances, touched.spare)
    for at in range(count):
        touched.chances[at] *= touched.direct[at]
    whole = place.near * layer.sums[0] + place.left * layer.sums[1]
    others = whole - covered
    if others < LEFT * whole:
        others = 0.0
        for at in range(inside.state[1]):
            if found.place[inside.words[at]] < found.state[0]:
                others += _by_layer(at, place, layer)
    total: float = _sum(touched.chances, count) + others + place.left * max(rest, 0.0)
    return total


@jit_inner
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


@jit_inner
def _by_layer(at: int, place: _Place, layer: _Layer) -> float:
    """Return the probability before normalisation that a layer alone gives a word of it."""
    chance: float = (place.near * layer.shares[at] + place.left * layer.bases[at]) * layer.factors[at]
    return chance


@jit_inner
def _ahead_in_layer(chance: float, target: int, place: _Place, layer: _Layer) -> int:
    """Return how many words of a layer it makes more probable than a word with some chance."""
    ahead, count = 0, layer.found.state[1]
    for block in range((count + _BLOCK - 1) // _BLOCK):
        # Most blocks have no word that is as probable.
        if (place.near * layer.most[0, block] + place.left * layer.most[1, block]) * _SLACK + SMALL < chance:
            continue
        for at in range(block * _BLOCK, min((block + 1) * _BLOCK, count)):
            other = _by_layer(at, place, layer)
            ahead += (other > chance) | ((other == chance) & (layer.found.words[at] < target))
    return ahead


@jit_inner
def _ahead(chance: float, target: int, touched: _Touched) -> tuple[int, int]:
    """Return how many of the touched words are more probable than a word with some chance, and would be by a layer."""
    ahead, alone, words = 0, 0, touched.found.words
    for at in range(touched.found.state[1]):
        first, other, by_layer = words[at] < target, touched.chances[at], touched.alone[at]
        ahead += (other > chance) | ((other == chance) & first)
        alone += (by_layer > chance) | ((by_layer == chance) & first)
    return ahead, alone


@jit_inner
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
    ahead, alone = _ahead(chance, target, touched)
    if ahead >= MOST_RANK:
        return MOST_RANK, value
    ahead += _ahead_in_layer(chance, target, place, layer) - alone
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


@jit_inner
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
    # The rows of the near kinds as one number: they are the same where the word before is.
    group = np.zeros(end - begin, np.int64)
    for kind in NEAR_KINDS:
        group = group * (len(table.pointer) + 1) + text.rows[begin:end, kind] + 1
    # Sorted here, as numba takes two seconds to compile the sort.
    logs, ranks = _score_groups(text, table, pooling, begin, group, np.argsort(group, kind="stable"))
    return logs, ranks


@jit_inner
def _work_space(words: int, chain: int) -> tuple[_Layer, _Touched]:
    """Return work space for a number of words."""
    space = np.zeros((10, words + 1))
    by_word, most = np.zeros(4 * (words + 1)), np.zeros((2, words // _BLOCK + 1))
    layer = _Layer(_none_found(words), space[0], space[1], space[2], space[3], by_word, most, space[4], np.zeros(3))
    slots = np.zeros(chain * words, np.int32)
    return layer, _Touched(_none_found(words), space[5], space[6], space[7], space[8], space[9], slots)


@jit
def _score_groups(
    text: Text, table: Evidence, pooling: Pooling, begin: int, group: Integers, order: Integers
) -> tuple[Floats, Integers]:
    """Score tokens, those of a group after each other."""
    end = begin + len(group)
    logs, ranks = np.empty(len(group)), np.empty(len(group), np.int64)
    layer, touched = _work_space(len(text.base), table.chain)
    recent = find_recent(text, pooling, begin, end)
    entries = _find_entries(text.rows[begin:end], table, pooling.weights)
    before = np.int64(-1)
    for turn, at in enumerate(order):
        now = begin + at
        if turn + 1 < len(order):
            # Kept, so that it is not left out.
            touched.spare[0] = _touch_entries(order[turn + 1], entries, table)
        if group[at] != before:
            before = group[at]
            _fill_layer(at, entries, text, table, pooling.weights[0], layer)
        weights = weights_before(text.rows[now], pooling.weights)
        near, left = _gather(at, entries, table, weights, touched)
        _remember(now, text, pooling, weights, recent, touched)
        place = _Place(now, near, left)
        total = _normalise(place, text, layer, touched)
        ranks[at], value = _rank(place, text, layer, touched)
        logs[at] = value - math.log(total)
    return logs, ranks


def distribution(text: Text, table: Evidence, pooling: Pooling, now: int) -> tuple[Floats, float]:
    """Return the probability of every word of the table at one token, and that of all other words together."""
    if runs_plainly(len(text.base) // 16):
        return uncompiled.distribution(text, table, pooling, now)
    found: tuple[Floats, float] = _distribution(text, table, pooling, now)
    return found


@jit
def _distribution(text: Text, table: Evidence, pooling: Pooling, now: int) -> tuple[Floats, float]:
    """Return what `distribution` does."""
    layer, touched = _work_space(len(text.base), table.chain)
    entries = _find_entries(text.rows[now : now + 1], table, pooling.weights)
    weights = weights_before(text.rows[now], pooling.weights)
    _fill_layer(0, entries, text, table, weights, layer)
    near, left = _gather(0, entries, table, weights, touched)
    _remember(now, text, pooling, weights, find_recent(text, pooling, now, now + 1), touched)
    place = _Place(now, near, left)
    total = _normalise(place, text, layer, touched)
    chance = left * text.base
    for at in range(layer.found.state[1]):
        chance[layer.found.words[at]] = _by_layer(at, place, layer)
    for at in range(touched.found.state[1]):
        chance[touched.found.words[at]] = touched.chances[at]
    return chance / total, left * max(1.0 - text.base.sum(), 0.0) / total
