"""Find the sequence of Penn tags with the highest total weight, for the default tagger (a compiled Viterbi search).

The weights are the priors of the readings of `words` and the transition weights of `rules`. A *state*
of the search is a kind of word in context: adverbs and conjunctions keep the kind of the word before them. Sequences
between unambiguous words are searched one by one, so that the result for a word depends on the words of its sentence
only. Among sequences of equal weight the first one in the order of the readings is chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.text.lexicon.rules import FOLLOWS, UPOS, Reading, read_words

TAGS = tuple(UPOS)
"""Penn tags; the search and the tagger use their indices."""

_START = "^"
_CARRIED = 0.8
_PARALLEL = 1.0
_WORST_SCORE = -1e9
_PUNCTUATION = frozenset([".", ",", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP", "SYM", "_SP"])
_TRANSPARENT = ("RB", "CC")
_INVERTED = read_words("WE HE IT YOU EX")
_AUXILIARIES = read_words("MD DO BE HAVE")
_SAME: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "NN": ("NN", "NNS", "NNP"), "NNS": ("NN", "NNS", "NNP"), "NNP": ("NNP", "NNPS"),
        "BE": ("VBZ", "VBD", "VBP"),
    }
)  # fmt: skip
_KINDS = tuple(sorted({*FOLLOWS, *UPOS}))
_PREFIXES = ("", *(f"{word} " for word in _TRANSPARENT))
_TAG_INDEX = MappingProxyType({tag: index for index, tag in enumerate(TAGS)})
_KIND_INDEX = MappingProxyType({kind: index for index, kind in enumerate(_KINDS)})

Tags = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class ReadingTable:
    """The readings of some token types as arrays.

    Attributes
    ----------
    start : ndarray
        Entry i has the readings ``start[i]:start[i + 1]``; int64, shape ``(entries + 1,)``.
    tag, kind : ndarray
        Index of the Penn tag in `TAGS` and of the kind of word, per reading; uint8.
    prior : ndarray
        Weight without context, per reading; float64.
    """

    start: npt.NDArray[np.int64]
    tag: Tags
    kind: Tags
    prior: npt.NDArray[np.float64]

    @classmethod
    def of(cls, entries: Sequence[Sequence[Reading]]) -> ReadingTable:
        """Return the table of entries with at least one reading each.

        Examples
        --------
        >>> table = ReadingTable.of([[Reading("DT", "DT", 0)], [Reading("NN", "NN", 2.5), Reading("VB", "VB", 0)]])
        >>> table.start.tolist(), [TAGS[tag] for tag in table.tag]
        ([0, 1, 3], ['DT', 'NN', 'VB'])
        """
        readings = [reading for entry in entries for reading in entry]
        return cls(
            start=np.cumsum([0, *map(len, entries)], dtype=np.int64),
            tag=np.array([_TAG_INDEX[reading.tag] for reading in readings], np.uint8),
            kind=np.array([_KIND_INDEX[reading.kind] for reading in readings], np.uint8),
            prior=np.array([reading.prior for reading in readings], np.float64),
        )


def best_tags(
    entry: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    table: ReadingTable,
    search: Callable[..., Any],
) -> Tags:
    """Return the Penn tag of every token of some sentences.

    Parameters
    ----------
    entry : ndarray
        Per token its entry in the table; int64, shape ``(tokens,)``.
    ends : ndarray
        End of each sentence, ascending, the last one the number of tokens; int64.
    table : ReadingTable
        Readings.
    search : callable
        Compiled form of `search_spans`, or itself.

    Returns
    -------
    ndarray
        Indices in `TAGS`, uint8, shape ``(tokens,)``.

    Examples
    --------
    >>> table = ReadingTable.of([[Reading("DT", "DT", 0)], [Reading("VB", "VB", 0), Reading("NN", "NN", 0)]])
    >>> [TAGS[tag] for tag in best_tags(np.array([0, 1]), np.array([2]), table, search_spans)]
    ['DT', 'NN']
    """
    readings = table.start, table.tag, table.kind, table.prior
    found: Tags = search(entry, ends, readings, _transitions(), _state(_START))
    return found


def _state(kind: str) -> int:
    """Return the number of a kind of word in context, such as ``"NN"`` or ``"RB BE"``."""
    word, _, before = kind.partition(" ")
    return len(_PREFIXES) * _KIND_INDEX[before or word] + _PREFIXES.index(f"{word} " if before else "")


@functools.cache
def _transitions() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return the weight of each tag in each state, the state after each kind, and which kinds depend on the state."""
    states = [prefix + kind for kind, prefix in product(_KINDS, _PREFIXES)]
    weights = np.array([[weight_after(state, tag) for tag in TAGS] for state in states], np.float64)
    following = np.array([[_state(kind_after(state, kind)) for kind in _KINDS] for state in states], np.uint8)
    dependent = np.array([kind in _TRANSPARENT or kind in _INVERTED for kind in _KINDS])
    return weights, following, dependent


def weight_after(state: str, tag: str) -> float:
    """Return the weight of a Penn tag in a state."""
    return _follows(state).get("." if tag in _PUNCTUATION else tag, 0.0)


def kind_after(before: str, kind: str) -> str:
    """Return the kind of a word in context: that of adverbs and conjunctions includes the preceding kind."""
    base = before.rpartition(" ")[2]
    if kind in _TRANSPARENT:
        return f"{kind} {base}"
    if kind in _INVERTED and base in _AUXILIARIES:
        return f"RB {base}"
    return kind


@functools.cache
def _follows(kind: str) -> Mapping[str, float]:
    """Return the weights of the tags after a kind of word; adverbs pass on weights of the preceding kind."""
    word, _, before = kind.partition(" ")
    weights = FOLLOWS.get(word, {})
    if not before:
        return weights
    if word == "RB":
        earlier = FOLLOWS.get(before, {})
        tags = set(weights) | set(earlier)
        return {tag: weights.get(tag, 0) + _CARRIED * earlier.get(tag, 0) for tag in tags}
    same = _SAME.get(before, (before,))
    return {**weights, **{tag: weights.get(tag, 0) + _PARALLEL for tag in same}}


SEARCH_TYPES = nb.uint8[::1](
    nb.int64[::1],
    nb.int64[::1],
    nb.types.Tuple((nb.int64[::1], nb.uint8[::1], nb.uint8[::1], nb.float64[::1])),
    nb.types.Tuple((nb.float64[:, ::1], nb.uint8[:, ::1], nb.boolean[::1])),
    nb.int64,
)
"""Types of `search_spans` for numba."""


def search_spans(entry, ends, readings, transitions, first_state):  # type: ignore[no-untyped-def]
    """Return the best tag of every token, given the arrays of `ReadingTable` and those of `_transitions`."""
    start, tag, kind, prior = readings
    weights, following, dependent = transitions
    tags = np.empty(len(entry), np.uint8)
    states = len(weights)
    # Of every step of a span: its states, their totals, and the earlier state and tag that led to each.
    slots = np.full(states, -1, np.int64)
    kinds, totals = np.empty((2, states), np.uint8), np.empty((2, states), np.float64)
    origin, chosen = np.empty((64, states), np.uint8), np.empty((64, states), np.uint8)
    sentence = 0
    for end in ends:
        state, begin = first_state, sentence
        for at in range(sentence, end):
            only = start[entry[at]]
            single = start[entry[at] + 1] - only == 1 and not dependent[kind[only]]
            if single and at == begin:
                tags[at] = tag[only]
                state = following[state, kind[only]]
                begin = at + 1
                continue
            if not single and at + 1 < end:
                continue
            span = at + 1 - begin
            if span > len(origin):
                origin = np.empty((2 * span, states), np.uint8)
                chosen = np.empty((2 * span, states), np.uint8)
            kinds[0, 0], totals[0, 0], count = state, 0.0, 1
            for step in range(span):
                old, new = step & 1, 1 - (step & 1)
                found = 0
                for reading in range(start[entry[begin + step]], start[entry[begin + step] + 1]):
                    for path in range(count):
                        before = kinds[old, path]
                        score = totals[old, path] + (prior[reading] + weights[before, tag[reading]])
                        after = following[before, kind[reading]]
                        slot = slots[after]
                        if slot < 0:
                            slot = slots[after] = found
                            kinds[new, slot], totals[new, slot] = after, _WORST_SCORE
                            found += 1
                        if score > totals[new, slot]:
                            totals[new, slot] = score
                            origin[step, slot], chosen[step, slot] = path, tag[reading]
                count = found
                for slot in range(count):
                    slots[kinds[new, slot]] = -1
            last = span & 1
            best = 0
            for slot in range(1, count):
                if totals[last, slot] > totals[last, best]:
                    best = slot
            state = kinds[last, best]
            for step in range(span - 1, -1, -1):
                tags[begin + step] = chosen[step, best]
                best = origin[step, best]
            begin = at + 1
        sentence = end
    return tags
