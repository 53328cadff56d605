"""Define the kinds of contexts that words are counted after in profile ``contexts``, and count them."""

from __future__ import annotations

from collections.abc import Iterable

from giaann_dask.keys import Integers
from giaann_dask.models.contexts.specification import CHAIN_NAMES, CONTEXT_NAMES
from giaann_dask.models.words.counting import count_contexts
from giaann_dask.models.words.stream import ENDING, WORD, Context, TokenStream
from giaann_dask.runs.run import Run


def _context(name: str) -> Context:
    """Return the context of a name, which has the distance of each word, of an ending after an ``e``.

    Examples
    --------
    >>> _context("1+e3").parts
    (('word', 1), ('ending', 3))
    """
    parts = [] if name == "all" else name.split("+")
    return Context(name, tuple((ENDING if part[0] == "e" else WORD, int(part[-1])) for part in parts))


# The first is empty (how often a word occurs at all), the next ones are each a part of the one after: the chain.
CONTEXTS = tuple(map(_context, CONTEXT_NAMES))
CHAIN = len(CHAIN_NAMES) - 1
# Counts that smoothing tells apart: 1, 2, 3 and 4.
SMALL_COUNTS = 4
# Kind of the context of a single word, by distance.
SINGLE = {kind.parts[0][1]: at for at, kind in enumerate(CONTEXTS) if [view for view, _ in kind.parts] == [WORD]}


def count_kinds(stream: TokenStream, kinds: Iterable[int] = range(len(CONTEXTS))) -> Run:
    """Count the contexts of some kinds, by their places in `CONTEXTS`, the chain among them; all by default."""
    return count_contexts(
        stream, {kind: CONTEXTS[kind] for kind in kinds}, {kind: kind - 1 for kind in range(2, CHAIN + 1)}
    )


def context_sources(stream: TokenStream, kind: int, begin: int = 0, end: int | None = None) -> Integers:
    """Return the source key of one kind of context before every token of a span; see `TokenStream.sources`."""
    return stream.sources(kind, CONTEXTS[kind], begin, end)
