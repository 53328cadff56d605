"""Name contexts by their kinds and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, source_key, word_key
from giaann_dask.models.base import NameTable
from giaann_dask.models.words.stream import BOUNDARY, WORD, Context, ending_of


class ContextNames:
    """Names of contexts and words by their keys, as far as a dictionary has the words.

    Parameters
    ----------
    words : sequence of str
        The dictionary.
    contexts : sequence of Context
        The kind that each segment counts words after.
    implied : dict of int to str, optional
        Names of further segments, whose targets are no words.

    Examples
    --------
    >>> names = ContextNames(["cat"], [Context("all", ()), Context("1", (("word", 1),))])
    >>> names.target(word_key("cat")), names.target(5), names.source(0, 5)
    ('cat', '0000000000005', 'all')
    """

    def __init__(
        self, words: Sequence[str], contexts: Sequence[Context], implied: dict[int, str] | None = None
    ) -> None:
        self._words, self._contexts, self._implied = words, contexts, implied or {}
        self._views = {WORD: np.array([word_key(word) for word in words], np.int64)}
        self._order = np.argsort(self._views[WORD], kind="stable")

    @property
    def segments(self) -> list[str]:
        """Name of every segment."""
        names = {**{at: context.name for at, context in enumerate(self._contexts)}, **self._implied}
        return [names.get(at, "") for at in range(max(names, default=-1) + 1)]

    def source(self, segment: int, key: int) -> str:
        """Return the kind of a context, and its word; the key alone where it has several words, which hashes hide."""
        name, parts = self._contexts[segment].name, self._contexts[segment].parts
        if not parts:
            return name
        place = None
        if len(parts) == 1:
            view = parts[0][0]
            if view not in self._views:
                self._views[view] = np.array([word_key(ending_of(word)) for word in self._words], np.int64)
            found = np.flatnonzero(source_key(segment, [np.append(self._views[view], BOUNDARY)]) == key)
            place = int(found[0]) if len(found) else None
        if place is None:
            return f"{name}:{key:013x}"
        if place == len(self._words):
            return f"{name}:beginning of a sentence"
        word = self._words[place]
        return f"{name}:{word if view == WORD else ending_of(word)}"

    def target(self, key: int) -> str:
        """Return the word of a key."""
        place = int(self._places(np.array([key], np.int64))[0])
        return self._words[place] if place >= 0 else f"{key:013x}"

    def of_arrays(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, NameTable]:
        """Return the names of kinds, and of the words that follow contexts."""
        place = np.where(np.isin(arrays["kind"], list(self._implied)), -1, self._places(arrays["target"]))
        return {"kind_name": (self.segments, arrays["kind"]), "target_name": (self._words, place)}

    def _places(self, keys: Integers) -> Integers:
        """Return the places of keys among the words, -1 for those of no word."""
        known = self._views[WORD]
        if not len(known):
            return np.full(len(keys), -1, np.int64)
        place = self._order[np.minimum(np.searchsorted(known, keys, sorter=self._order), len(known) - 1)]
        return np.where(known[place] == keys, place, -1)
