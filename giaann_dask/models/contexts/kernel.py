"""Define what the compiled code of profile ``contexts`` reads, with its functions of arrays and of recent words.

``math.exp`` and ``math.log`` are calls for one number each; here are loops that compilers vectorise. The algorithms are
those of FreeBSD's ``e_exp.c`` and ``e_log.c``, whose error is below one unit in the last place, without branches. Their
operations are IEEE 754's and are not contracted, so the results are the same on every processor and for every length of
the arrays.

Tokens that are near each other remember nearly the same words. So these are found once for a block of tokens, in the
order of their numbers: a token then adds up its counts in an array that has no other words. `contexts.span_kernel` adds
them to the evidence of contexts.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS

Floats: TypeAlias = npt.NDArray[np.float64]


class Text(NamedTuple):
    """Tokens of a text, with the numbers that only this text has for unknown words.

    Attributes
    ----------
    words, document : ndarray
        Word number and document of each token, int64, shape ``(tokens,)``.
    rows : ndarray
        Row of each context, -1 where there is none; int64, shape ``(tokens, kinds)``.
    base, share : ndarray
        Probability and share of every word by itself; float64, shape ``(words,)``.
    log_base : ndarray
        Natural logarithm of `base`, which is 0 for words as long as lines; float64, same shape.
    ranked : ndarray
        Words by falling `base`, int64, same shape.
    recency : ndarray
        Factor of what the words read lately say at each token, see `recency_of`; float64, shape ``(tokens,)``.
    """

    words: Integers
    document: Integers
    rows: Integers
    base: Floats
    share: Floats
    log_base: Floats
    ranked: Integers
    recency: Floats


class Evidence(NamedTuple):
    """Evidence of contexts for words, by rows, and how many kinds are a chain.

    Attributes
    ----------
    pointer : ndarray
        Entries of each row, int64, shape ``(rows + 1,)``.
    word : ndarray
        Word of each entry, int32, shape ``(entries,)``.
    evidence : ndarray
        Of a context for a word: ``log(1 + count / (PRIOR_COUNTS * share))``; float32, same shape.
    discounted : ndarray
        Share that the chain gives a word directly; float32, for the entries of the chain.
    freed : ndarray
        What it leaves to shorter contexts; float64, for the rows of the chain.
    chain : int
        Words of the longest context of the chain.
    """

    pointer: Integers
    word: npt.NDArray[np.int32]
    evidence: npt.NDArray[np.float32]
    discounted: npt.NDArray[np.float32]
    freed: Floats
    chain: int


class Pooling(NamedTuple):
    """Weights of every kind of context and of recent tokens, and the decay of recent tokens by distance.

    Attributes
    ----------
    weights : ndarray
        A row for each length of the longest context of the chain that was seen before a token: up to one word, two, and
        so on, the last row for all longer ones. Those of `NEAR_KINDS` are the same in all rows; float64, shape
        ``(rows, kinds + RECENT_KINDS)``.
    fading : ndarray
        As long as the number of tokens that are remembered, and one more: its entry 0 is not used; float64.
    """

    weights: Floats
    fading: Floats


# What was read lately speaks by three counts: of the word itself, fading; after the same word; after the same two.
RECENT_KINDS = 3
RECENT_PRIOR = 10.0
# Share of words that the network has never seen.
LEAST_SHARE = 1e-6
# Where less than this share of a layer's sum is left, it is added up again instead of subtracted from.
LEFT = 1 / 64
# Smaller probabilities are computed from logarithms.
SMALL = 1e-280
# Kinds of contexts that the word before a token determines, in order.
NEAR_KINDS = np.array(
    [kind - 1 for kind, context in enumerate(CONTEXTS) if kind and {distance for _, distance in context.parts} == {1}],
    np.int64,
)
IS_NEAR = np.zeros(len(CONTEXTS) - 1, np.bool_)
IS_NEAR[NEAR_KINDS] = True


@jit_inner
def weights_before(rows: Integers, weights: Floats) -> Floats:
    """Return the weights at a token, given the rows of its contexts and `Pooling.weights`."""
    longest = 0
    for kind in range(CHAIN):
        if rows[kind] >= 0:
            longest = kind
    own: Floats = weights[min(longest, len(weights) - 1)]
    return own


# The exponential of larger numbers is close to overflow, and that of smaller ones to 0.
_MOST = 708.0
_LN2_HIGH, _LN2_LOW, _LOG2_E = 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1.44269504088896338700
# Added to a number below 2 ** 51 it leaves the nearest integer in the last bits.
_ROUNDING = 1.5 * 2.0**52
_P1, _P2, _P3 = 1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05
_P4, _P5 = -1.65339022054652515390e-06, 4.13813679705723846039e-08
_BIAS, _MANTISSA_BITS = 1023, 52
_MANTISSA = (1 << _MANTISSA_BITS) - 1
# Bits of the square root of 1/2, and of 1.
_ROOT, _ONE = 0x3FE6A09E667F3BCD, _BIAS << _MANTISSA_BITS
_L1, _L2, _L3 = 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01
_L4, _L5 = 2.222219843214978396e-01, 1.818357216161805012e-01
_L6, _L7 = 1.531383769920937332e-01, 1.479819860511658591e-01


@jit
def exponentials(values: Floats, count: int, found: Floats, scales: Floats) -> None:
    """Compute the exponentials of the first values of an array, those beyond 708 and -708 as if they were these.

    Parameters
    ----------
    values : ndarray
        Float64; not NaN.
    count : int
        How many of them are used.
    found, scales : ndarray
        Float64, as long; the result, and work space.
    """
    for at in range(count):
        value = min(max(values[at], -_MOST), _MOST)
        shifted = value * _LOG2_E + _ROUNDING
        scales[at] = shifted
        power = shifted - _ROUNDING
        high, low = value - power * _LN2_HIGH, power * _LN2_LOW
        rest = high - low
        square = rest * rest
        part = rest - square * (_P1 + square * (_P2 + square * (_P3 + square * (_P4 + square * _P5))))
        found[at] = 1.0 - ((low - (rest * part) / (2.0 - part)) - high)
    bits = scales.view(np.int64)
    for at in range(count):
        bits[at] = (bits[at] + _BIAS) << _MANTISSA_BITS
    for at in range(count):
        found[at] *= scales[at]


@jit
def logarithms_of_more(values: Floats, count: int, found: Floats, scales: Floats) -> None:
    """Compute the natural logarithms of 1 more than the first values of an array.

    Parameters
    ----------
    values : ndarray
        Float64, 0 or more and finite. The logarithm of a small number has no more digits than the sum with 1.
    count : int
        How many of them are used.
    found, scales : ndarray
        Float64, as long; the result, and work space.
    """
    for at in range(count):
        found[at] = values[at] + 1.0
    bits = found.view(np.int64)
    for at in range(count):
        moved = bits[at] + (_ONE - _ROOT)
        scales[at] = float((moved >> _MANTISSA_BITS) - _BIAS)
        bits[at] = (moved & _MANTISSA) + _ROOT
    for at in range(count):
        part, power = found[at] - 1.0, scales[at]
        ratio = part / (2.0 + part)
        square = ratio * ratio
        fourth = square * square
        odd = square * (_L1 + fourth * (_L3 + fourth * (_L5 + fourth * _L7)))
        series = odd + fourth * (_L2 + fourth * (_L4 + fourth * _L6))
        half = 0.5 * part * part
        found[at] = ratio * (half + series) + power * _LN2_LOW - half + part + power * _LN2_HIGH


def exponentials_of(values: Floats) -> Floats:
    """Return what `exponentials` computes, by NumPy."""
    values = np.minimum(np.maximum(values, -_MOST), _MOST)
    scales = values * _LOG2_E + _ROUNDING
    power = scales - _ROUNDING
    high, low = values - power * _LN2_HIGH, power * _LN2_LOW
    rest = high - low
    square = rest * rest
    part = rest - square * (_P1 + square * (_P2 + square * (_P3 + square * (_P4 + square * _P5))))
    found: Floats = 1.0 - ((low - (rest * part) / (2.0 - part)) - high)
    found *= ((scales.view(np.int64) + _BIAS) << _MANTISSA_BITS).view(np.float64)
    return found


def logarithms_of(values: Floats) -> Floats:
    """Return what `logarithms_of_more` computes, by NumPy."""
    moved = (values + 1.0).view(np.int64) + (_ONE - _ROOT)
    power = ((moved >> _MANTISSA_BITS) - _BIAS).astype(np.float64)
    part = ((moved & _MANTISSA) + _ROOT).view(np.float64) - 1.0
    ratio = part / (2.0 + part)
    square = ratio * ratio
    fourth = square * square
    odd = square * (_L1 + fourth * (_L3 + fourth * (_L5 + fourth * _L7)))
    series = odd + fourth * (_L2 + fourth * (_L4 + fourth * _L6))
    half = 0.5 * part * part
    found: Floats = ratio * (half + series) + power * _LN2_LOW - half + part + power * _LN2_HIGH
    return found


# Tokens before each token in which repetition is looked for, and the share below which a word counts as rare.
_WINDOW, _RARE = 500, 5e-4
# Tokens before a token that its `recency_of` depends on.
TOKENS_OF_RECENCY = 2 * _WINDOW
# Words that were repeated, and all, before any was read: what is not known yet is taken for a text like others.
_REPEATED, _READ = 6.0, 20.0
# Shares of words that are repeated in a text, and by which factors its recent words count; linear in between. In
# sentences that do not belong together words read lately say little, and much in manuals. Chosen with the weights.
_REPETITION = np.array([0.08, 0.13, 0.18, 0.25, 0.35, 0.5])
_FACTORS = np.array([0.2, 0.35, 0.75, 0.9, 1.0, 1.2])


def recency_of(words: Integers, document: Integers, share: Floats) -> Floats:
    """Return by which factor the words read lately count at each token, given those before it.

    Parameters
    ----------
    words, document, share : ndarray
        See `Text`. The factor depends on `TOKENS_OF_RECENCY` tokens before, and the word itself is not looked at.
    """
    at = np.arange(len(words))
    order = np.argsort(words, kind="stable")
    before = np.full(len(words), -1)
    same = np.flatnonzero(words[order[1:]] == words[order[:-1]])
    before[order[same + 1]] = order[same]
    begins = np.flatnonzero(np.diff(document, prepend=-1))
    first = np.maximum(at - _WINDOW, begins[np.searchsorted(begins, at, side="right") - 1] if len(at) else at)
    rare = share[words] < _RARE
    read, repeated = (np.append(0, np.cumsum(which)) for which in (rare, rare & (before >= first)))
    rates = (repeated[at] - repeated[first] + _REPEATED) / (read[at] - read[first] + _READ)
    factors: Floats = np.interp(rates, _REPETITION, _FACTORS)
    return factors


# Least tokens of a block, and the share of the remembered tokens that a block has.
_LEAST, _SHARE = 64, 16


class Space(NamedTuple):
    """Counts and evidence at one token, of the words of its block.

    Attributes
    ----------
    counts : ndarray
        How often each word was read lately, fading; after the same word; after the same two; float64, shape
        ``(3, most words)``. The last two are 0 between tokens.
    following : ndarray
        Places of those words that followed the same word, int64, shape ``(most words,)``.
    evidence : ndarray
        Logarithm of 1 more than the count by its prior: of all words, and twice of those that followed the same word;
        float64, shape ``(3, most words)``.
    spare : ndarray
        Work space; float64, shape ``(2, most words)``.
    """

    counts: Floats
    following: Integers
    evidence: Floats
    spare: Floats


class Recent(NamedTuple):
    """Words that are remembered at the tokens of a span, by blocks of tokens, and their counts at one token.

    Attributes
    ----------
    first, begin, size : int
        First token that is remembered, first token of the span, and tokens of a block.
    document, before : ndarray
        For each token from `first` on the first of its document, and the last one before it with the same word, or -1;
        int64.
    pointer, words, priors : ndarray
        Words of each block, ascending, int64, and the count that each is given in advance, float64.
    earliest, places, number : ndarray
        The first token that each block remembers, where its tokens are in `number`, and the place of the word of each
        of these tokens among the words of the block; int64, int64 and int32.
    at : Space
        Counts and evidence at one token.
    """

    first: int
    begin: int
    size: int
    document: Integers
    before: Integers
    pointer: Integers
    words: Integers
    priors: Floats
    earliest: Integers
    places: Integers
    number: npt.NDArray[np.int32]
    at: Space


@jit_inner
def find_recent(text: Text, pooling: Pooling, begin: int, end: int) -> Recent:
    """Return the words that are remembered at the tokens of a span.

    Parameters
    ----------
    text : Text
        Of which two more tokens than are remembered lie before the span, if there are as many.
    pooling : Pooling
        Says how many tokens are remembered.
    begin, end : int
        The span.
    """
    remembered = len(pooling.fading) - 1
    # Two more tokens than are remembered, which say what the first of these came after.
    first, size = max(begin - remembered - 2, 0), max(_LEAST, remembered // _SHARE)
    document, before = np.empty(end - first, np.int64), np.empty(end - first, np.int64)
    present = np.full(len(text.base), -1)
    for at in range(first, end):
        same = at > first and text.document[at - 1] == text.document[at]
        document[at - first] = document[at - first - 1] if same else at
        before[at - first] = present[text.words[at]]
        present[text.words[at]] = at
    every = np.flatnonzero(present >= 0)
    blocks = (end - begin + size - 1) // size
    earliest, places = np.empty(blocks, np.int64), np.zeros(blocks + 1, np.int64)
    for block in range(blocks):
        earliest[block] = max(begin + block * size - remembered, first)
        places[block + 1] = places[block] + min(begin + (block + 1) * size, end) - earliest[block]
    number, pointer = np.empty(places[-1], np.int32), np.zeros(blocks + 1, np.int64)
    words, most = np.empty(places[-1] + 1, np.int64), 0
    for block in range(blocks):
        tokens = text.words[earliest[block] : earliest[block] + places[block + 1] - places[block]]
        pointer[block + 1] = _number_words(tokens, every, present, pointer[block], words, number[places[block] :])
        most = max(most, pointer[block + 1] - pointer[block])
    words = words[: pointer[-1]].copy()
    priors = np.empty(len(words))
    for at in range(len(words)):
        priors[at] = RECENT_PRIOR * max(text.share[words[at]], LEAST_SHARE)
    most += 1
    space = Space(np.zeros((3, most)), np.zeros(most, np.int64), np.zeros((3, most)), np.zeros((2, most)))
    return Recent(first, begin, size, document, before, pointer, words, priors, earliest, places, number, space)


@jit_inner
def _number_words(
    tokens: Integers, every: Integers, place: Integers, count: int, words: Integers, number: npt.NDArray[np.int32]
) -> int:
    """Append the distinct words of some tokens, ascending, and number the tokens by them; return the new length."""
    begin = count
    place[every] = -1
    for word in tokens:
        place[word] = 0
    for word in every:
        words[count] = word
        count += place[word] == 0
        place[word] = count - 1 - begin
    for at in range(len(tokens)):
        number[at] = place[tokens[at]]
    return count


@jit_inner
def count_recent(now: int, text: Text, pooling: Pooling, recent: Recent) -> tuple[int, int]:
    """Compute the evidence of the tokens read before a token in its document.

    Returns
    -------
    tuple of int
        The block of the token, and how many words followed the same word; `Recent.at` has the rest.
    """
    first, fading, space = recent.first, pooling.fading, recent.at
    counts, values, scales = space.counts, space.spare[0], space.spare[1]
    count = counts[0]
    block = (now - recent.begin) // recent.size
    number = recent.number[recent.places[block] : recent.places[block + 1]]
    priors = recent.priors[recent.pointer[block] : recent.pointer[block + 1]]
    document, earliest = recent.document[now - first], recent.earliest[block]
    begin = max(now - len(fading) + 1, document)
    count[: len(priors)] = 0.0
    for at in range(begin, now):
        count[np.uint64(number[np.uint64(at - earliest)])] += fading[np.uint64(now - at)]
    for at in range(len(priors)):
        values[at] = count[at] / priors[at]
    logarithms_of_more(values, len(priors), space.evidence[0], scales)
    # What the first remembered tokens came after is forgotten only where it is of another document.
    least, some = max(begin - 1, document), 0
    same = recent.before[now - 1 - first] if now > begin else -1
    while same >= least:
        at = number[same + 1 - earliest]
        if counts[1, at] == 0.0:
            space.following[some] = at
            some += 1
        counts[1, at] += 1.0
        if same > document and text.words[same - 1] == text.words[now - 2]:
            counts[2, at] += 1.0
        same = recent.before[same - first]
    for kind in (1, 2):
        for place in range(some):
            at = space.following[place]
            values[place] = counts[kind, at] / priors[at]
            counts[kind, at] = 0.0
        logarithms_of_more(values, some, space.evidence[kind], scales)
    return block, some
