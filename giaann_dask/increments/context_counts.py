"""Count how often each word followed each context, as integers that add up exactly.

For profile ``best``, each token adds one to (context, word) for every kind of
`giaann_dask.increments.contexts.CONTEXTS` that fits into its sentence, and one to (longer context, shorter context)
for each two neighbours of the chain. The counts are a `Run`, so they are merged, packed, stored and assigned to
regions (by source) like the connections of any profile. `giaann_dask.inference.best.tables` turns them into
probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import require_option
from giaann_dask.increments.contexts import CHAIN, CONTEXTS, EXTENDS, NONE, TokenStream, word_key
from giaann_dask.keys import Integers, pack_target
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.run import Run, narrow_strength

# Tokens that are counted in one go: bounds the memory of sorting, about 400 bytes for each of them.
BLOCK_TOKENS = 1 << 18
# Rows of up to this many targets are sorted by insertion.
_FEW = 24


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class ContextCounts:
    """Counts of words by context, and the words.

    Attributes
    ----------
    run : Run
        Sources are keys of contexts; targets have the kind of context as segment, the word's key as
        neuron and branch 0; strengths are counts.
    words : tuple of str
        Every word that was counted, in the order of the keys.
    """

    run: Run
    words: tuple[str, ...]


def count_contexts(
    stream: TokenStream, *, kinds: Sequence[int] = tuple(range(len(CONTEXTS))), block_tokens: int = BLOCK_TOKENS
) -> ContextCounts:
    """Count the contexts of all tokens of documents, in blocks of bounded size.

    Parameters
    ----------
    stream : TokenStream
        Whole sentences.
    kinds : sequence of int
        Places in `CONTEXTS` of what is counted, the chain among them; all by default.
    block_tokens : int
        Tokens that are sorted at a time; the result does not depend on it.

    Examples
    --------
    >>> counts = count_contexts(TokenStream.from_documents([[["a", "b", "a"]]]))
    >>> counts.words, int(counts.run.strength.max())
    (('a', 'b'), 2)
    """
    require_option(block_tokens >= 1, "block_tokens", block_tokens, "1 or more")
    run = merge_runs([_to_run(*pairs) for pairs in _pairs(stream, kinds, block_tokens)])
    used = np.unique(stream.index)
    return ContextCounts(run, _sorted_words(stream.words[number] for number in used.tolist()))


def _pairs(stream: TokenStream, kinds: Sequence[int], block_tokens: int) -> Iterator[tuple[Integers, Integers]]:
    """Yield the sources and targets of all contexts of stretches of tokens, one for each occurrence."""
    sources = {kind: stream.sources(kind) for kind in kinds}
    words = stream.keys[stream.index]
    for begin in range(0, len(stream), block_tokens):
        block = slice(begin, begin + block_tokens)
        pairs = [(sources[kind][block], pack_target(kind, words[block], 0)) for kind in sources]
        # A context that does not exist has no shorter one to extend, so its own key decides.
        longer = [(sources[kind + 1][block], sources[kind][block]) for kind in range(1, CHAIN)]
        pairs += [(long[long != NONE], pack_target(EXTENDS, short[long != NONE], 0)) for long, short in longer]
        source, target = (np.concatenate(part) for part in zip(*pairs, strict=True))
        yield source[source != NONE], target[source != NONE]


def _to_run(source: Integers, target: Integers) -> Run:
    """Return the counts of pairs."""
    if not len(source):
        return Run.empty()
    # Sorting by one key takes a third of the time of sorting by both; most rows are short.
    sum_rows: Any = _sum_rows
    rows, pointer, targets, counts = sum_rows(source, target, np.argsort(source))
    return Run(rows, pointer, targets, narrow_strength(counts))


@nb.njit(cache=True, nogil=True)
def _sum_rows(source, target, order):  # type: ignore[no-untyped-def]
    """Return the sources, the pointer, and the distinct targets of each source with how often each occurs.

    `order` sorts the pairs by source.
    """
    rows, pointer = np.empty(len(source), np.int64), np.zeros(len(source) + 1, np.int64)
    targets, counts = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
    found = begin = row = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and source[order[end]] == source[order[begin]]:
            end += 1
        rows[row] = source[order[begin]]
        if end - begin > _FEW:
            values = np.sort(target[order[begin:end]])
        else:
            values = target[order[begin:end]]
            for at in range(1, len(values)):
                value, to = values[at], at
                while to > 0 and values[to - 1] > value:
                    values[to] = values[to - 1]
                    to -= 1
                values[to] = value
        for at in range(len(values)):
            if at and values[at] == values[at - 1]:
                counts[found - 1] += 1
            else:
                targets[found], counts[found] = values[at], 1
                found += 1
        row += 1
        pointer[row] = found
        begin = end
    return rows[:row].copy(), pointer[: row + 1].copy(), targets[:found].copy(), counts[:found].copy()


def _sorted_words(words: Iterator[str] | set[str]) -> tuple[str, ...]:
    """Return words in the order of their keys."""
    return tuple(sorted(words, key=lambda word: (word_key(word), word)))
