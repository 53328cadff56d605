"""Estimate the probability of the spelling of an unknown word: each byte by the bytes before it.

The model is made of counts of UTF-8 bytes. The probabilities of all strings of bytes sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import Integers, encode_words
from giaann_dask.models.words.stream import NONE, find_ascending

ORDER = 3
_END = 256
_BEGIN = 257
_BASE = 258
_SYMBOLS = 257


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """Counts of bytes after up to three bytes of a word.

    Attributes
    ----------
    keys : tuple of ndarray
        For each number of bytes before, the codes of (bytes before, byte) that occurred, ascending; int64.
    counts : tuple of ndarray
        How often each of them did; int64.
    """

    keys: tuple[Integers, ...]
    counts: tuple[Integers, ...]

    @classmethod
    def learn(cls, words: Sequence[str]) -> Spelling:
        """Count the bytes of words."""
        symbols, before, _ = _symbols(words)
        pairs = [np.unique(_code(symbols, before, order), return_counts=True) for order in range(ORDER + 1)]
        return cls(tuple(keys for keys, _ in pairs), tuple(counts.astype(np.int64) for _, counts in pairs))

    def log_probability(self, words: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the natural logarithm of each word's probability, finite for every string.

        What was counted after more bytes is mixed with what was counted after fewer, by the number of
        different bytes seen there (Witten and Bell 1991), and in the end with all bytes alike.

        Examples
        --------
        >>> bool(np.exp(Spelling.learn(["aa", "ab"]).log_probability(["aa"]))[0] > 0.1)
        True
        """
        symbols, before, owner = _symbols(words)
        # Words have many of their bytes after the same ones, for which this is computed once.
        _, first, which = np.unique(_code(symbols, before, ORDER), return_index=True, return_inverse=True)
        symbols, before = symbols[first], before[:, first]
        share = np.full(len(symbols), 1.0 / _SYMBOLS)
        for order, (keys, counts) in enumerate(zip(self.keys, self.counts, strict=True)):
            if not len(keys):
                continue
            code = _code(symbols, before, order)
            heads, row = np.unique(keys // _BASE, return_inverse=True)
            total, kinds = np.bincount(row, counts), np.bincount(row)
            at, place = find_ascending(keys, code), find_ascending(heads, code // _BASE)
            seen = np.where(at == NONE, 0, counts[at])
            share = np.where(place != NONE, (seen + kinds[place] * share) / (total[place] + kinds[place]), share)
        return np.bincount(owner, np.log(share)[which], len(words)).astype(np.float64)


def _symbols(words: Sequence[str]) -> tuple[Integers, Integers, Integers]:
    """Return all bytes and ends of words, with the bytes before each and its word."""
    encoded, ends = encode_words(words)
    lengths = np.diff(ends, prepend=0)
    owner = np.repeat(np.arange(len(words)), lengths + 1)
    # The bytes of each word stand behind what begins it, and before its end.
    flat = np.full(len(owner) + ORDER * len(words), _BEGIN, np.int64)
    at = np.arange(len(owner)) + ORDER * (owner + 1)
    inside = np.ones(len(owner), np.bool_)
    inside[np.cumsum(lengths + 1) - 1] = False
    flat[at] = _END
    flat[at[inside]] = np.frombuffer(encoded, np.uint8)
    return flat[at], np.stack([flat[at - distance] for distance in range(1, ORDER + 1)]), owner


def _code(symbols: Integers, before: Integers, order: int) -> Integers:
    """Return one integer for each symbol with the bytes before it."""
    code = np.zeros(len(symbols), np.int64)
    for distance in range(order, 0, -1):
        code = code * _BASE + before[distance - 1]
    return code * _BASE + symbols
