"""Count how often each word followed each context, as integers that add up exactly.

Each token adds one to (context, word) for every kind of context that fits into its sentence, and where a model says so
one to (context, shorter context that it extends). The counts are a `Run`, so they are merged, packed, stored and
assigned to regions (by source) like the connections of any model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.words.stream import BOUNDARY, ENDING, NONE, WORD, Context, TokenStream, View
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.run import Run
from giaann_dask.spec import BRANCH_BITS, MAXIMUM_SEGMENTS, NEURON_BITS

# The segment on which a context is connected with the one that it extends.
EXTENDS = MAXIMUM_SEGMENTS - 1
# Tokens that are counted in one go at most: bounds the memory of sorting, about 500 bytes for each.
BLOCK_TOKENS = 1 << 19
# What occurs after a context is sorted as one number: the context's source, a hash, in the upper bits, and an item in
# the lower ones. The first bits of a source are those of its part, so that the others and an item fit 63 bits.
_ITEM_BITS = 23
_ITEM_MASK = (1 << _ITEM_BITS) - 1
_PART_SHIFT = 63 - _ITEM_BITS
_PARTS, _WITHIN_PART = 1 << (NEURON_BITS - _PART_SHIFT), (1 << _PART_SHIFT) - 1


def count_contexts(
    stream: TokenStream,
    contexts: Mapping[int, Context | Sequence[Context]],
    extended: Mapping[int, int] | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Run:
    """Count words after contexts, in blocks of bounded size.

    Parameters
    ----------
    stream : TokenStream
        Tokens of whole sentences.
    contexts : mapping of int to Context or sequence of Context
        Kinds of contexts, by the segments that they are counted on; counts of several on one segment add up.
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
    listed = {
        kind: (each,) if isinstance(each := contexts[kind], Context) else tuple(each) for kind in sorted(contexts)
    }
    kinds, rows = [*listed], [(kind, context) for kind, several in listed.items() for context in several]
    shorter = [kinds.index(extended[kind]) if extended and kind in extended else NONE for kind, _ in rows]
    places, bits = [kinds.index(kind) for kind, _ in rows], _ITEM_BITS
    bits -= (2 * len(rows) - shorter.count(NONE) - 1).bit_length()
    rules = _Rules(np.array(kinds), np.array(places, np.int64), np.array(shorter, np.int64), bits)
    runs, size, views = [], min(block_tokens, 1 << rules.bits), _views(stream, [context for _, context in rows])
    for begin in range(0, len(stream), size):
        end = min(begin + size, len(stream))
        sources = _sources_before(stream, rows, views, begin, end)
        runs.append(_count_items(sources, *_ranked(stream, begin, end), rules))
    return merge_runs(runs)


class _Rules(NamedTuple):
    """Kinds of contexts, and how items are numbered.

    An item of a context is either one of its words, after a kind, or a token at which it extends a shorter one. The
    upper bits of its number are the place of the kind in order, or beyond the rows of sources a number for each that
    extends another one; the lower `bits` are the place of the word among those of the block by key, or that of the
    token.

    Attributes
    ----------
    kinds : ndarray
        The kinds, ascending; int64.
    places, shorter : ndarray
        For each row of sources the place of its kind, and the row that it extends, or `NONE`; int64.
    bits : int
        Lower bits of an item.
    """

    kinds: Integers
    places: Integers
    shorter: Integers
    bits: int


def _views(stream: TokenStream, contexts: Sequence[Context]) -> dict[View, Integers]:
    """Return what the functions among the views of contexts see of each token."""
    functions = dict.fromkeys(view for each in contexts for view in each.views if not isinstance(view, str))
    return {view: stream.seen(view, 0, len(stream)) for view in functions}


def _ranked(stream: TokenStream, begin: int, end: int) -> tuple[Integers, Integers]:
    """Return the keys of the words of a block, ascending, and the place of each token's among them."""
    tokens = stream.index[begin:end]
    present = np.flatnonzero(np.bincount(tokens, minlength=len(stream.keys)))
    keys, places = np.unique(stream.keys[present], return_inverse=True)
    rank = np.zeros(len(stream.keys), np.int64)
    rank[present] = places
    return keys, rank[tokens]


def _sources_before(
    stream: TokenStream, rows: Sequence[tuple[int, Context]], functions: Mapping[View, Integers], begin: int, end: int
) -> Integers:
    """Return what `TokenStream.sources` returns for each kind and context, shape ``(rows, end - begin)``."""
    # Of each part its view, 0 for words, 1 for endings and others for functions, and its distance.
    views = [WORD, ENDING, *functions]
    rules = np.zeros((len(rows), max([1, *(len(context.parts) for _, context in rows)]), 2), np.int64)
    for row, (_, context) in enumerate(rows):
        for at, (view, distance) in enumerate(context.parts):
            rules[row, at] = views.index(view), distance
    parts = np.array([len(context.parts) for _, context in rows], np.int64)
    first = max(begin - int(rules[:, :, 1].max(initial=0)), 0)
    tokens = stream.index[first:end]
    seen = np.stack([stream.keys[tokens], stream.endings[tokens], *(keys[first:end] for keys in functions.values())])
    found, find = np.empty((len(rows), end - begin), np.int64), cast(Any, _find_sources)
    find(seen, stream.place[begin:end], np.array([kind for kind, _ in rows], np.int64), parts, rules, found)
    return found


def _count_items(sources: Integers, keys: Integers, words: Integers, rules: _Rules) -> Run:
    """Return the counts of all contexts of a block, given their sources, its words, and the place of each token's."""
    divide, add = cast(Any, _divide_items), cast(Any, _add_items)
    # NumPy's arrays have large pages, those of compiled code do not. Memory that is not written to is not taken.
    items = np.empty((len(rules.shorter) + np.count_nonzero(rules.shorter != NONE)) * len(words), np.int64)
    ends = divide(sources, words, rules, items)
    for first, last in pairwise(ends.tolist()):
        items[first:last].sort()
    rows, pointer = np.empty(ends[-1], np.int64), np.zeros(ends[-1] + 1, np.int64)
    targets, counts = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int32)
    row, connection = add(items, ends, (sources, keys), rules, (rows, pointer, targets, counts))
    # Shrinking does not move the used part.
    for array, length in ((rows, row), (pointer, row + 1), (targets, connection), (counts, connection)):
        array.resize(length, refcheck=False)
    return Run(rows, pointer, targets, counts)


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
    begin = views.shape[1] - len(places)
    for row in range(len(kinds)):
        for token in range(len(places)):
            key, exists = np.uint64(kinds[row] + 1), True
            if parts[row] == 0:
                key = _mixed(key)
            for part in range(parts[row]):
                view, distance = rules[row, part]
                seen = np.int64(BOUNDARY)
                if places[token] >= distance:
                    seen = views[view, begin + token - distance]
                exists &= places[token] >= distance - 1 and seen != NONE
                key = _mixed(key ^ np.uint64(seen))
            found[row, token] = np.int64(key >> np.uint64(64 - NEURON_BITS)) if exists else NONE


@jit
def _divide_items(sources, words, rules, items):  # type: ignore[no-untyped-def]
    """Fill in the items of all contexts, each below its source without the bits of its part; return where parts end.

    Parts ascend, each is small enough to be sorted in the processor's cache. `sources` has a row for each context.
    """
    _, places, shorter, bits = rules
    ends = np.zeros(_PARTS + 1, np.int64)
    for row in range(len(shorter)):
        times = 1 if shorter[row] < 0 else 2
        for token in range(len(words)):
            if sources[row, token] != NONE:
                ends[(sources[row, token] >> _PART_SHIFT) + 1] += times
    for part in range(_PARTS):
        ends[part + 1] += ends[part]
    filled = ends[:-1].copy()
    extending = len(shorter)
    for row in range(len(shorter)):
        number = places[row] << bits
        for token in range(len(words)):
            source = sources[row, token]
            # A context that does not exist has no shorter one to extend.
            if source == NONE:
                continue
            at, low = filled[source >> _PART_SHIFT], (source & _WITHIN_PART) << _ITEM_BITS
            items[at] = low | number | words[token]
            if shorter[row] >= 0:
                at += 1
                items[at] = low | (np.int64(extending) << bits) | token
            filled[source >> _PART_SHIFT] = at + 1
        extending += shorter[row] >= 0
    return ends


@jit
def _add_items(items, ends, keys, rules, run):  # type: ignore[no-untyped-def]
    """Fill the arrays of a run with the counts of items in order; return the numbers of its rows and connections."""
    (sources, words), (kinds, _, shorter, bits), (rows, pointer, targets, counts) = keys, rules, run
    extended = shorter[shorter >= 0]
    row = first = last = 0
    for part in range(len(ends) - 1):
        before = np.int64(-1)
        for at in range(ends[part], ends[part + 1]):
            item = items[at]
            if item == before:
                counts[last - 1] += 1
                continue
            if before < 0 or item >> _ITEM_BITS != before >> _ITEM_BITS:
                rows[row], first = (np.int64(part) << _PART_SHIFT) | (item >> _ITEM_BITS), last
                row += 1
            before = item
            number, low = (item & _ITEM_MASK) >> bits, item & ((1 << bits) - 1)
            if number < len(shorter):
                targets[last], counts[last] = (kinds[number] << SEGMENT_SHIFT) | (words[low] << BRANCH_BITS), 1
                last += 1
            else:
                shorter_source = sources[extended[number - len(shorter)], low]
                target = (np.int64(EXTENDS) << SEGMENT_SHIFT) | (shorter_source << BRANCH_BITS)
                last = _insert(target, first, last, targets, counts)
            pointer[row] = last
    return row, last


@jit_inner
def _insert(target, first, last, targets, counts):  # type: ignore[no-untyped-def]
    """Count a target of a row, whose others are in order, mostly the last one; return where the row ends then."""
    at = last
    while at > first and targets[at - 1] > target:
        at -= 1
    if at > first and targets[at - 1] == target:
        counts[at - 1] += 1
        return last
    for place in range(last, at, -1):
        targets[place], counts[place] = targets[place - 1], counts[place - 1]
    targets[at], counts[at] = target, 1
    return last + 1
