"""Sum all evidence for the next word by compiled code.

Before each token, ``log p(w) = log chain(w) + sum over kinds of weight * evidence(w) - log Z``. The evidence of the
word before is added up by itself, so that `contexts.span_kernel` can compute it once for many tokens. Words without
evidence keep the probability that the chain gives them, all scaled alike, so their sum is known without a loop over
them: it is 1 less the sum of the words that have evidence. The tables are in `contexts.tables`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.contexts.array_math import exponentials, logarithms_of_more
from giaann_dask.models.contexts.kinds import CONTEXTS

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
    """

    words: Integers
    document: Integers
    rows: Integers
    base: Floats
    share: Floats
    log_base: Floats
    ranked: Integers


class Evidence(NamedTuple):
    """The arrays of `contexts.tables.PooledTables` that are read in every step, and how many kinds are a chain."""

    pointer: Integers
    word: npt.NDArray[np.int32]
    evidence: npt.NDArray[np.float32]
    discounted: npt.NDArray[np.float32]
    freed: Floats
    chain: int


class Pooling(NamedTuple):
    """Weights of every kind of context and of recent tokens, and the decay of recent tokens by distance.

    `fading` is as long as the number of tokens that are remembered, and one more: its entry 0 is not used.
    """

    weights: Floats
    fading: Floats


class WorkSpace(NamedTuple):
    """Work space of one word each, and counters: words visited, and words remembered.

    `near` and `score` are the sums of weighted evidence of the word before and of everything else.
    """

    stamp: Integers
    touched: Integers
    direct: Floats
    near: Floats
    score: Floats
    recent: Floats
    remembered: Integers
    values: Floats
    counters: Integers


# What was read lately speaks by three counts: of the word itself, fading; after the same word; after the same two.
RECENT_KINDS = 3
RECENT_PRIOR = 10.0
# Share of words that the network has never seen.
LEAST_SHARE = 1e-6
# Smaller probabilities are computed from logarithms.
SMALL = 1e-280
# Kinds of contexts that the word before a token determines, in order.
NEAR_KINDS = np.array(
    [kind - 1 for kind, context in enumerate(CONTEXTS) if kind and {distance for _, distance in context.parts} == {1}],
    np.int64,
)
IS_NEAR = np.isin(np.arange(len(CONTEXTS) - 1), NEAR_KINDS)


def least_share(share: float) -> float:
    """Return the share that a word is given where it counts as read lately."""
    return max(share, LEAST_SHARE)


@jit_inner
def work_space(words: int) -> WorkSpace:
    """Return the work space for a number of words."""
    numbers, floats = np.empty(words, np.int64), np.zeros(words)
    recent, values = np.zeros((RECENT_KINDS, words)), np.empty((3, words))
    stamp, counters = np.full(words, -1), np.zeros(2, np.int64)
    return WorkSpace(stamp, numbers, floats, floats.copy(), floats.copy(), recent, numbers.copy(), values, counters)


@jit_inner
def _add_word(word: int, now: int, state: WorkSpace) -> None:
    """Add a word to those that have evidence."""
    if state.stamp[word] != now:
        state.stamp[word] = now
        state.touched[state.counters[0]] = word
        state.counters[0] += 1
        state.direct[word] = state.near[word] = state.score[word] = 0.0


@jit_inner
def _gather(now: int, text: Text, table: Evidence, weights: Floats, state: WorkSpace) -> float:
    """Collect the evidence of all contexts; return the probability left to words without evidence."""
    rows, left = text.rows, 1.0
    for kind in range(table.chain - 1, -1, -1):
        row = rows[now, kind]
        if row >= 0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                _add_word(table.word[entry], now, state)
                state.direct[table.word[entry]] += left * table.discounted[entry]
            left *= table.freed[row]
    for kind in range(rows.shape[1]):
        row, weight = rows[now, kind], weights[kind]
        score = state.near if IS_NEAR[kind] else state.score
        if row >= 0 and weight != 0.0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                _add_word(table.word[entry], now, state)
                score[table.word[entry]] += weight * table.evidence[entry]
    return left


@jit_inner
def _remember(now: int, text: Text, pooling: Pooling, state: WorkSpace) -> None:
    """Collect the evidence of the tokens read before in this document."""
    words, document, recent = text.words, text.document, state.recent
    for at in range(max(now - len(pooling.fading) + 1, 0), now):
        if document[at] != document[now]:
            continue
        word = words[at]
        if recent[0, word] == 0.0:
            _add_word(word, now, state)
            state.remembered[state.counters[1]] = word
            state.counters[1] += 1
        recent[0, word] += pooling.fading[now - at]
        if at > 0 and document[at - 1] == document[now] and words[at - 1] == words[now - 1]:
            recent[1, word] += 1.0
            if at > 1 and document[at - 2] == document[now] and words[at - 2] == words[now - 2]:
                recent[2, word] += 1.0
    count = state.counters[1]
    for kind in range(RECENT_KINDS):
        for place in range(count):
            word = state.remembered[place]
            state.values[0, place] = recent[kind, word] / (RECENT_PRIOR * max(text.share[word], LEAST_SHARE))
        logarithms_of_more(state.values[0], count, state.values[1], state.values[2])
        for place in range(count):
            word = state.remembered[place]
            recent[kind, word] = state.values[1, place]
            state.score[word] += pooling.weights[text.rows.shape[1] + kind] * state.values[1, place]


@jit_inner
def _normalise(left: float, text: Text, state: WorkSpace) -> float:
    """Make unnormalised probabilities of the scores; return their sum over all words."""
    base, direct = text.base, state.direct
    total, rest = 0.0, 1.0
    for place in range(state.counters[0]):
        word = state.touched[place]
        state.values[0, place] = state.score[word] + state.near[word]
    exponentials(state.values[0], state.counters[0], state.values[1], state.values[2])
    for place in range(state.counters[0]):
        word = state.touched[place]
        rest -= base[word]
        direct[word] = (direct[word] + left * base[word]) * state.values[1, place]
        total += direct[word]
    return total + left * max(rest, 0.0)


@jit_inner
def add_evidence(now: int, text: Text, table: Evidence, pooling: Pooling, state: WorkSpace) -> tuple[float, float]:
    """Compute the distribution before one token; return the mass without evidence and the total."""
    state.counters[:] = 0
    left = _gather(now, text, table, pooling.weights, state)
    _remember(now, text, pooling, state)
    return left, _normalise(left, text, state)


@jit
def distribution(text: Text, table: Evidence, pooling: Pooling, now: int) -> tuple[Floats, float]:
    """Return the probability of every word of the table at one token, and that of all other words together."""
    state = work_space(len(text.base))
    left, total = add_evidence(now, text, table, pooling, state)
    chance = left * text.base
    for place in range(state.counters[0]):
        chance[state.touched[place]] = state.direct[state.touched[place]]
    return chance / total, left * max(1.0 - text.base.sum(), 0.0) / total
