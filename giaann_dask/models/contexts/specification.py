"""Define the rules for the fields of specifications of profile ``contexts``."""

from __future__ import annotations

from typing import Any

from giaann_dask.models.words.specification import WordFields
from giaann_dask.registry import require
from giaann_dask.spec import Specification

# Kinds of contexts by name, in the order of `giaann_dask.models.contexts.kinds.CONTEXTS`, which says what each
# looks at. Their places are the segments that they are counted on: append, never reorder.
CONTEXT_NAMES = (
    *("all", "1", "1+2", "1+2+3", "1+2+3+4", "2", "3", "4", "5", "6", "1+3", "2+3", "1+4", "2+4"),
    *("e1", "e1+e2", "e1+e2+e3", "e1+e3", "e1+2", "1+e2+e3"),
)
# All else is smoothed with these, and an n-gram model is made of them.
CHAIN_NAMES = CONTEXT_NAMES[:5]
# Those that the weights of profile ``contexts`` give something.
_WEIGHED = (*CHAIN_NAMES, "1+3", "2+3", "1+4", "2+4", "e1", "e1+e2", "e1+e2+e3", "e1+e3")


class ContextsFields(WordFields):
    """Rules of profile ``contexts``: which kinds of contexts words are counted after.

    Examples
    --------
    >>> Specification(profile="contexts", contexts=("2", *CHAIN_NAMES)).contexts
    ('all', '1', '1+2', '1+2+3', '1+2+3+4', '2')
    """

    own_fields = ("contexts",)

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`; contexts are put into their one order."""
        super().check(specification)
        given = specification.contexts
        wanted = set(given or _WEIGHED)
        unknown, missing = sorted(wanted.difference(CONTEXT_NAMES)), set(CHAIN_NAMES) - wanted
        require(not unknown, "contexts", unknown, f"some of {', '.join(CONTEXT_NAMES)}")
        require(not missing, "contexts", given, f"{', '.join(CHAIN_NAMES)} among them, which all else is smoothed with")
        return {"contexts": tuple(name for name in CONTEXT_NAMES if name in wanted)}


CONTEXTS = ContextsFields()
