"""Name the segments of a network.

Covers: how far before its target a segment's source stands. Does not cover: their colours (`schemes`).
"""

from __future__ import annotations

from giaann_dask.increments.contexts import CONTEXTS, EXTENDS
from giaann_dask.spec import Specification


def segment_names(specification: Specification) -> list[str]:
    """Return a name for every segment; of profile ``best`` the names of the kinds of contexts.

    Examples
    --------
    >>> segment_names(Specification())[1:4]
    ['1 column before', 'same column', '5 or more tokens before']
    """
    if specification.profile == "best":
        names = [kind.name for kind in CONTEXTS]
        return [*names, *("" for _ in range(len(names), EXTENDS)), "extends"]
    columns, features = specification.column_segments, specification.feature_segments
    names = [_distance(columns - 1 - at, "column", specification.column_catch_all and at == 0) for at in range(columns)]
    names += [_distance(features - at, "token", specification.feature_catch_all and at == 0) for at in range(features)]
    return names + ["soma"] * (specification.segments - len(names))


def _distance(steps: int, what: str, catch_all: bool) -> str:
    if steps == 0:
        return "any column" if catch_all else f"same {what}"
    if catch_all:
        return f"{steps} or more {what}s before"
    return f"{steps} {what}{'s' if steps > 1 else ''} before"
