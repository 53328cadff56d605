"""Count words after contexts of any kinds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from giaann_dask.keys import pack_target, source_key
from giaann_dask.models.words.stream import NONE, Context, TokenStream
from giaann_dask.runs.run import Run, narrow_strength

# Source of the context without words: how often words occur at all, on segment 0.
EVERYWHERE = int(source_key(0, [])[0])


def count_contexts(stream: TokenStream, contexts: Sequence[Context]) -> Run:
    """Return how often each word occurs, and how often after each context.

    Parameters
    ----------
    stream : TokenStream
        Tokens of sentences.
    contexts : sequence of Context
        Kinds of contexts, counted on the segments from 1 on.

    Examples
    --------
    >>> stream = TokenStream.from_documents([[["a", "b", "a"]]])
    >>> sorted(count_contexts(stream, [Context("1", (("word", 1),))]).strength.tolist())
    [1, 1, 1, 1, 2]
    """
    word = stream.keys[stream.index]
    sources, targets = [np.full(len(stream), EVERYWHERE, np.int64)], [pack_target(0, word, 0)]
    for segment, context in enumerate(contexts, 1):
        found = stream.sources(segment, context)
        seen = found != NONE
        sources.append(found[seen])
        targets.append(pack_target(segment, word[seen], 0))
    source, target = np.concatenate(sources), np.concatenate(targets)
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    new_row = np.append(True, source[1:] != source[:-1])[: len(source)]
    begin = np.flatnonzero(new_row | np.append(True, target[1:] != target[:-1])[: len(source)])
    count = np.diff(np.append(begin, len(source)))
    rows = np.append(np.flatnonzero(new_row[begin]), len(begin))
    return Run(source[begin[rows[:-1]]], rows, target[begin], narrow_strength(count))
