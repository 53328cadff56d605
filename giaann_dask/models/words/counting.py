"""Count how often each word followed each context, as integers that add up exactly.

Each token adds one to (context, word) for every kind of context that fits into its sentence, and where a model says so
one to (context, shorter context that it extends). The counts are a `Run`, so they are merged, packed, stored and
assigned to regions (by source) like the connections of any model.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import numpy as np

from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.words.stream import BOUNDARY, NONE, WORD, Context, TokenStream
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.run import Run
from giaann_dask.spec import BRANCH_BITS, MAXIMUM_SEGMENTS, NEURON_BITS

# The segment on which a context is connected with the one that it extends.
EXTENDS = MAXIMUM_SEGMENTS - 1
# Tokens that are counted in one go, into 32-bit integers: bounds the memory of sorting, about 1,100 bytes for each.
BLOCK_TOKENS = 1 << 18
# Parts that the pairs of a block are divided into by the first bits of their sources, which are hashes.
_PART_BITS = 9
_PARTS, _PART_SHIFT = 1 << _PART_BITS, NEURON_BITS - _PART_BITS
# Bits of a source that differ within a part, and of a place in a part, with which they fill 63 bits.
_WITHIN_PART, _PLACE_BITS = (1 << _PART_SHIFT) - 1, 63 - _PART_SHIFT
# Rows of more targets are sorted before they are inserted one after the other.
_FEW = 24


def count_contexts(
    stream: TokenStream,
    contexts: Mapping[int, Context],
    extended: Mapping[int, int] | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Run:
    """Count words after contexts, in blocks of bounded size.

    Parameters
    ----------
    stream : TokenStream
        Tokens of whole sentences.
    contexts : mapping of int to Context
        Kinds of contexts, by the segments that they are counted on.
    extended : mapping of int to int, optional
        Segment of the shorter contexts that those of a segment extend.
    block_tokens : int
        Tokens that are sorted at a time; the result does not depend on it.

    Returns
    -------
    Run
        Sources are keys of contexts; targets have the kind of context as segment, the word's key as neuron and branch
        0; strengths are counts.

    Examples
    --------
    >>> stream = TokenStream.from_documents([[["a", "b", "a"]]])
    >>> contexts = {0: Context("all", ()), 1: Context("1", (("word", 1),))}
    >>> sorted(count_contexts(stream, contexts).strength.tolist())
    [1, 1, 1, 1, 2]
    """
    kinds = list(contexts)
    shorter = np.array([kinds.index(extended[kind]) if extended and kind in extended else NONE for kind in kinds])
    runs = []
    for begin in range(0, len(stream), block_tokens):
        end = min(begin + block_tokens, len(stream))
        sources = _sources_before(stream, contexts, begin, end)
        runs.append(_count_pairs(sources, stream.keys[stream.index[begin:end]], np.array(kinds), shorter))
    return merge_runs(runs)


def _sources_before(stream: TokenStream, contexts: Mapping[int, Context], begin: int, end: int) -> Integers:
    """Return what `TokenStream.sources` returns for each kind of context, shape ``(kinds, end - begin)``."""
    # Of each part its view, 0 for words and 1 for endings, and its distance.
    rules = np.zeros((len(contexts), max([1, *(len(kind.parts) for kind in contexts.values())]), 2), np.int64)
    for row, kind in enumerate(contexts.values()):
        for at, (view, distance) in enumerate(kind.parts):
            rules[row, at] = int(view != WORD), distance
    parts = np.array([len(kind.parts) for kind in contexts.values()], np.int64)
    first = max(begin - int(rules[:, :, 1].max(initial=0)), 0)
    tokens = stream.index[first:end]
    found, find = np.empty((len(contexts), end - begin), np.int64), cast(Any, _find_sources)
    kinds = np.array(list(contexts), np.int64)
    find((stream.keys[tokens], stream.endings[tokens]), stream.place[begin:end], kinds, parts, rules, found)
    return found


def _count_pairs(sources: Integers, words: Integers, kinds: Integers, shorter: Integers) -> Run:
    """Return the counts of all contexts of a span of tokens; see `_divide_pairs`."""
    divide: Any = _divide_pairs
    source, target, ends = divide(sources, words, kinds, shorter)
    # Memory that is not written to is not taken.
    rows, pointer = np.empty(len(source), np.int64), np.zeros(len(source) + 1, np.int64)
    targets, counts = np.empty(len(source), np.int64), np.empty(len(source), np.int32)
    found, sum_rows = np.zeros(2, np.int64), cast(Any, _sum_rows)
    for first, last in pairwise(ends.tolist()):
        if first < last:
            part = slice(first, last)
            # Sorting by one key takes a third of the time of sorting by both; most rows are short.
            sum_rows(*_sorted_part(source[part]), target[part], (rows, pointer), (targets, counts), found)
    row, connection = found.tolist()
    # Shrinking does not move the used part.
    for array, length in ((rows, row), (pointer, row + 1), (targets, connection), (counts, connection)):
        array.resize(length, refcheck=False)
    return Run(rows, pointer, targets, counts)


def _sorted_part(source: Integers) -> tuple[Integers, Integers]:
    """Return the sources of the pairs of a part in order, and the places of their pairs.

    The sources of a part have their first bits in common. The others and a place fit one number, and sorting numbers
    takes half the time of sorting places by numbers.
    """
    if len(source) >> _PLACE_BITS:
        order = np.argsort(source)
        return source[order], order
    packed = ((source & _WITHIN_PART) << _PLACE_BITS) | np.arange(len(source))
    packed.sort()
    return (packed >> _PLACE_BITS) | (source[0] & ~_WITHIN_PART), packed & ((1 << _PLACE_BITS) - 1)


@jit_inner
def _mixed(key):  # type: ignore[no-untyped-def]
    """Spread the bits of a key as `giaann_dask.keys.source_key` does."""
    key *= np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


@jit
def _find_sources(views, places, kinds, parts, rules, found):  # type: ignore[no-untyped-def]
    """Compute the source keys of all kinds before the last tokens of the views, whose places are given."""
    words, endings = views
    begin = len(words) - len(places)
    for row in range(len(kinds)):
        for token in range(len(places)):
            key, exists = np.uint64(kinds[row] + 1), True
            if parts[row] == 0:
                key = _mixed(key)
            for part in range(parts[row]):
                view, distance = rules[row, part]
                seen = np.int64(BOUNDARY)
                if places[token] >= distance:
                    at = begin + token - distance
                    seen = endings[at] if view else words[at]
                exists &= places[token] >= distance - 1
                key = _mixed(key ^ np.uint64(seen))
            found[row, token] = np.int64(key >> np.uint64(64 - NEURON_BITS)) if exists else NONE


@jit
def _divide_pairs(sources, words, kinds, shorter):  # type: ignore[no-untyped-def]
    """Return the sources and the targets of all contexts, one for each occurrence, and where each part of them ends.

    Parts are ranges of sources that ascend from part to part, each small enough to be sorted in the processor's cache.
    `sources` has a row for each kind; `shorter` says which row has the contexts that those of a kind extend.
    """
    ends = np.zeros(_PARTS + 1, np.int64)
    for row in range(len(kinds)):
        pairs = 1 if shorter[row] < 0 else 2
        for token in range(len(words)):
            # A context that does not exist has no shorter one to extend.
            if sources[row, token] != NONE:
                ends[(sources[row, token] >> _PART_SHIFT) + 1] += pairs
    for part in range(_PARTS):
        ends[part + 1] += ends[part]
    filled = ends[:-1].copy()
    source, target = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int64)
    extends = np.int64(EXTENDS) << SEGMENT_SHIFT
    for row in range(len(kinds)):
        kind = kinds[row] << SEGMENT_SHIFT
        for token in range(len(words)):
            key = sources[row, token]
            if key == NONE:
                continue
            at = filled[key >> _PART_SHIFT]
            source[at], target[at] = key, kind | (words[token] << BRANCH_BITS)
            at += 1
            if shorter[row] >= 0:
                source[at], target[at] = key, extends | (sources[shorter[row], token] << BRANCH_BITS)
                at += 1
            filled[key >> _PART_SHIFT] = at
    return source, target, ends


@jit
def _sum_rows(source, order, target, sums, columns, found):  # type: ignore[no-untyped-def]
    """Append the sources, the ends of their rows, and the distinct targets of each with how often each occurs.

    Sources ascend, and `order` has the places of their targets; `found` has the number of rows and of targets.
    """
    (rows, pointer), (targets, counts) = sums, columns
    row, last = found
    begin = 0
    while begin < len(order):
        key, first, end = source[begin], last, begin + 1
        while end < len(order) and source[end] == key:
            end += 1
        if end - begin > _FEW:
            # Equal ones follow each other.
            values = target[order[begin:end]]
            values.sort()
            for value in values:
                if last > first and targets[last - 1] == value:
                    counts[last - 1] += 1
                else:
                    targets[last], counts[last] = value, 1
                    last += 1
        else:
            # No array of their own, which takes longer than they do.
            for item in range(begin, end):
                value, at = target[order[item]], last
                while at > first and targets[at - 1] > value:
                    at -= 1
                if at > first and targets[at - 1] == value:
                    counts[at - 1] += 1
                    continue
                for place in range(last, at, -1):
                    targets[place], counts[place] = targets[place - 1], counts[place - 1]
                targets[at], counts[at] = value, 1
                last += 1
        rows[row] = key
        row += 1
        pointer[row] = last
        begin = end
    found[0], found[1] = row, last
