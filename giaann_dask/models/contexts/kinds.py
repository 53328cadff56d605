"""Define the kinds of contexts that words are counted after; `counting` counts them."""

from __future__ import annotations

from giaann_dask.keys import Integers
from giaann_dask.models.words.stream import ENDING, WORD, Context, TokenStream


def _words(name: str, *distances: int) -> Context:
    return Context(name, tuple((WORD, d) for d in distances))


# In the order of `CONTEXT_NAMES`: their places are the segments that they are counted on. The first is empty
# (how often a word occurs at all), the next ones are each a part of the one after: the chain of `CHAIN`.
CONTEXTS = (
    _words("all"),
    _words("1", 1),
    _words("1+2", 1, 2),
    _words("1+2+3", 1, 2, 3),
    _words("1+2+3+4", 1, 2, 3, 4),
    *(_words(str(d), d) for d in range(2, 7)),
    *(_words("+".join(map(str, ds)), *ds) for ds in ((1, 3), (2, 3), (1, 4), (2, 4))),
    Context("e1", ((ENDING, 1),)),
    Context("e1+e2", ((ENDING, 1), (ENDING, 2))),
    Context("e1+e2+e3", ((ENDING, 1), (ENDING, 2), (ENDING, 3))),
    Context("e1+e3", ((ENDING, 1), (ENDING, 3))),
    Context("e1+2", ((ENDING, 1), (WORD, 2))),
    Context("1+e2+e3", ((WORD, 1), (ENDING, 2), (ENDING, 3))),
)
CHAIN = 4
# Kind of the context of a single word, by distance.
SINGLE = {kind.parts[0][1]: at for at, kind in enumerate(CONTEXTS) if [view for view, _ in kind.parts] == [WORD]}
# The segment on which a context of the chain is connected with the one that it extends.
EXTENDS = 31


def context_sources(stream: TokenStream, kind: int, begin: int = 0, end: int | None = None) -> Integers:
    """Return the source key of one kind of context before every token of a span; see `TokenStream.sources`."""
    return stream.sources(kind, CONTEXTS[kind], begin, end)
