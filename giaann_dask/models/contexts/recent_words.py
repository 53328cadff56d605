"""Count the words that were read lately before a token.

Tokens that are near each other remember nearly the same words. So these are found once for a block of tokens, in the
order of their numbers: a token then adds up its counts in an array that has no other words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import jit_inner
from giaann_dask.models.contexts.array_math import Floats, logarithms_of_more
from giaann_dask.models.contexts.kernel import LEAST_SHARE, RECENT_PRIOR, Pooling, Text

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
