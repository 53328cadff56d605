"""Compute a prediction with NumPy alone, to the bit as compiled code does, where importing numba would take longer.

A new process that predicts a token or two need not import numba, which takes several times as long as this. Numbers are
added up in the order in which `contexts.span_kernel` adds them, one after another (`_total`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.models.contexts.kernel import (
    IS_NEAR,
    LEAST_SHARE,
    LEFT,
    NEAR_KINDS,
    RECENT_KINDS,
    RECENT_PRIOR,
    Evidence,
    Floats,
    Pooling,
    Text,
    exponentials_of,
    logarithms_of,
    weights_before,
)
from giaann_dask.models.words.stream import NONE
from giaann_dask.spec import NEURON_BITS

Singles: TypeAlias = npt.NDArray[np.float32]

_ONE, _LAST = np.uint64(1), np.uint64(63)
_WORD = (1 << 64) - 1


class CountFields(NamedTuple):
    """Fields that the numbers of a row of `contexts.packed_counts` belong to, and sizes of its codes.

    Attributes
    ----------
    length, first, counted, longer : int
        Fields of the length of a row, its first word, counts, and numbers of longer contexts.
    following : tuple of int
        Field of the other words by the bits in the length of the row; the last one for more bits.
    long, size, code, symbol : int
        Words of rows that begin with their size, bits of that; bits of a code, and of its length.
    """

    length: int
    first: int
    counted: int
    longer: int
    following: tuple[int, ...]
    long: int
    size: int
    code: int
    symbol: int


class _BitReader:
    """Reads the rows of one kind of context; see `read_rows`."""

    def __init__(self, bits: npt.NDArray[np.uint64], codes: npt.NDArray[np.uint16], is_link: bool, fields: CountFields):
        self.bits, self.codes, self.is_link, self.fields = bits, codes, is_link, fields

    def peek(self, at: int) -> int:
        """Return the next 64 bits."""
        word, shift = at >> 6, at & 63
        return (int(self.bits[word]) >> shift | int(self.bits[word + 1]) << (64 - shift)) & _WORD

    def number(self, at: int, field: int) -> tuple[int, int]:
        """Return a number and where the next one begins."""
        window = self.peek(at)
        code = int(self.codes[field, window & ((1 << self.fields.code) - 1)])
        size, width = code >> self.fields.symbol, code & ((1 << self.fields.symbol) - 1)
        return ((window >> width) & ((1 << size) - 1) | 1 << size) - 1, at + size + width

    def following(self, length: int) -> int:
        """Return the field of the words of a row after the first one."""
        return self.fields.following[min(length.bit_length(), len(self.fields.following) - 1)]

    def entries(self, at: int, length: int) -> tuple[Integers, int]:
        """Return gaps of words, counts and numbers of longer contexts, each less 1, and where the next row begins."""
        if length >= self.fields.long:
            size = self.peek(at) & ((1 << self.fields.size) - 1)
            at += self.fields.size
            return self._entries_of_long(at, size, length), at + size
        fields, found = self.fields, []
        for entry in range(length):
            gap, at = self.number(at, fields.first if entry == 0 else self.following(length))
            count, at = self.number(at, fields.counted)
            more = count
            if self.is_link and count > 0:
                more, at = self.number(at, fields.longer)
            found.append((gap, count, more))
        return np.array(found, np.int64), at

    def passed(self, at: int, length: int) -> int:
        """Return where the row behind one begins, whose entries begin at a bit."""
        if length >= self.fields.long:
            return at + self.fields.size + (self.peek(at) & ((1 << self.fields.size) - 1))
        return self.entries(at, length)[1]

    def _entries_of_long(self, at: int, size: int, length: int) -> Integers:
        """Return what `entries` does: which number would begin at each bit is found first, then where some do."""
        first = at >> 6
        words = np.append(self.bits[first : (at + size >> 6) + 2], np.uint64(0))
        place = np.arange(at & 63, (at & 63) + size)
        word, shift = place >> 6, (place & 63).astype(np.uint64)
        window = (words[word] >> shift) | ((words[word + 1] << _ONE) << (_LAST - shift))
        gaps, after_gap = self._every(window, self.following(length))
        counts, after_count = self._every(window, self.fields.counted)
        longer, end = counts, after_count
        if self.is_link:
            longer, after_longer = self._every(window, self.fields.longer)
            end = np.where(counts > 0, after_longer[after_count], after_count)
            longer = np.where(counts > 0, longer[after_count], counts)
        # From each count on to that of the next word.
        step, places = after_gap[end].tolist(), []
        gap, behind = self.number(at, self.fields.first)
        now = behind - at
        for _ in range(length):
            places.append(now)
            now = step[now]
        chosen = np.array(places)
        return np.column_stack([np.append(gap, gaps[end[chosen[:-1]]]), counts[chosen], longer[chosen]])

    def _every(self, window: npt.NDArray[np.uint64], field: int) -> tuple[Integers, Integers]:
        """Return the number that would begin at each bit, and where the next one would; none behind the last bit."""
        code = self.codes[field][window & np.uint64((1 << self.fields.code) - 1)]
        size, width = (code >> self.fields.symbol).astype(np.uint64), code & np.uint16((1 << self.fields.symbol) - 1)
        one = _ONE << size
        number = ((window >> width.astype(np.uint64)) & (one - _ONE) | one).astype(np.int64) - 1
        after = np.arange(len(window)) + (size.astype(np.int64) + width)
        return np.append(number, 0), np.append(np.minimum(after, len(window)), len(window))


def read_rows(
    bits: npt.NDArray[np.uint64],
    begins: npt.NDArray[Any],
    layout: Integers,
    codes: npt.NDArray[np.uint16],
    wanted: Integers,
    is_link: bool,
    fields: CountFields,
) -> tuple[Integers, Integers, npt.NDArray[np.int32], Integers, Integers, Integers]:
    """Return what `giaann_dask.models.contexts.packed_counts.PackedCounts.rows` does, array by array."""
    reader = _BitReader(bits, codes, is_link, fields)
    rows: list[Integers] = []
    keys: list[int] = []
    row_of = np.full(len(wanted), NONE)
    for which, key in enumerate(wanted.tolist()):
        found = None if key < 0 else _find(reader, begins, layout, key)
        if found is not None:
            row_of[which] = len(rows)
            keys.append(key)
            rows.append(reader.entries(*found)[0] + 1)
    words = [np.cumsum(row[:, 0]) - 1 for row in rows]
    pointer = np.cumsum([0, *map(len, rows)])
    none = np.zeros((0, 3), np.int64)
    entries, word = np.concatenate([none, *rows]), np.concatenate([none[:, 0], *words]).astype(np.int32)
    return np.array(keys, np.int64), pointer, word, entries[:, 1].copy(), entries[:, 2].copy(), row_of


def _find(reader: _BitReader, begins: npt.NDArray[Any], layout: Integers, wanted: int) -> tuple[int, int] | None:
    """Return the bit that the entries of a row begin at, and how many there are; None for a missing row."""
    _, bucket_bits, width, first = layout.tolist()
    bucket = wanted >> (NEURON_BITS - bucket_bits)
    at, end = int(begins[first + bucket]), int(begins[first + bucket + 1])
    key = (bucket << (NEURON_BITS - bucket_bits)) - 1
    while at < end:
        high = 0
        while not reader.peek(at) & 1:
            high, at = high + 1, at + 1
        key += 1 + (high << width | reader.peek(at + 1) & ((1 << width) - 1))
        length, at = reader.number(at + 1 + width, reader.fields.length)
        if key >= wanted:
            return (at, length + 1) if key == wanted else None
        at = reader.passed(at, length + 1)
    return None


def add_evidence(words: npt.NDArray[np.int32], counts: Integers, prior: Floats, known: Singles, found: Singles) -> None:
    """Compute the evidence of each entry; `known` is not used."""
    found[:] = np.fromiter(map(math.log1p, (counts / prior[words]).tolist()), np.float64, len(words))


def divide(pointer: Integers, counts: Integers, discounts: Floats, shares: Singles, freed: Floats) -> None:
    """Compute the discounted share of each entry, and the mass that each row leaves to shorter contexts."""
    for row, (begin, end) in enumerate(zip(pointer[:-1].tolist(), pointer[1:].tolist(), strict=True)):
        own = counts[begin:end]
        shares[begin:end] = (own - discounts[np.minimum(own, 3)]) / own.sum()
        freed[row] = 1.0 - _total(shares[begin:end].astype(np.float64))


def _total(values: Floats) -> Any:
    """Return the sum of numbers that are added one after another."""
    return np.cumsum(values)[-1] if len(values) else np.float64(0.0)


class FoundWords:
    """Words in the order in which they are found, and columns of numbers of them, which begin with 0.

    Parameters
    ----------
    words, columns : int
        Words of the vocabulary, and columns.
    """

    def __init__(self, words: int, columns: int) -> None:
        self.place, self.count = np.full(words, -1), 0
        self._words, self._columns = np.zeros(words, np.int64), np.zeros((columns, words))

    @property
    def words(self) -> Integers:
        """Words that were found."""
        return self._words[: self.count]

    def column(self, number: int) -> Floats:
        """Return the numbers of a column."""
        return self._columns[number, : self.count]

    def enter(self, words: npt.NDArray[np.signedinteger[Any]]) -> Integers:
        """Return the places of some distinct words, of which new ones are added."""
        new = words[self.place[words] < 0]
        end = self.count + len(new)
        self.place[new], self._words[self.count : end] = np.arange(self.count, end), new
        self.count = end
        places: Integers = self.place[words]
        return places

    def add(self, column: int, places: Integers, values: Floats) -> None:
        """Add to some numbers of a column, each once."""
        self._columns[column, places] += values


# Columns of `FoundWords` in a layer, and of touched words.
_SHARE, _SCORE, _FACTOR, _BASE = range(4)
_DIRECT = 0


def distribution(text: Text, table: Evidence, pooling: Pooling, now: int) -> tuple[Floats, float]:
    """Return what `giaann_dask.models.contexts.span_kernel.distribution` does."""
    weights = weights_before(text.rows[now], pooling.weights)
    rows = {
        kind: slice(int(table.pointer[row]), int(table.pointer[row + 1]))
        for kind, row in enumerate(text.rows[now].tolist())
        if row >= 0 and (kind < table.chain or weights[kind] != 0.0)
    }
    freed = {kind: float(table.freed[text.rows[now, kind]]) for kind in rows if kind < table.chain}
    layer = _layer(rows, text, table, weights)
    touched, left = _gather(rows, freed, text, table, weights)
    near, left = left, left * freed.get(0, 1.0)
    _remember(now, text, pooling.fading, weights[-RECENT_KINDS:] * text.recency[now], touched)
    # What the layer alone gives its words.
    by_layer = (near * layer.column(_SHARE) + left * layer.column(_BASE)) * layer.column(_FACTOR)
    total, chances = _normalise(near, left, by_layer, text, layer, touched)
    chance = left * text.base
    chance[layer.words] = by_layer
    chance[touched.words] = chances
    return chance / total, left * max(1.0 - _total(text.base), 0.0) / total


def _layer(rows: dict[int, slice], text: Text, table: Evidence, weights: Floats) -> FoundWords:
    """Return the words that have evidence from the word before, with their columns."""
    found = FoundWords(len(text.base), 4)
    if table.chain and 0 in rows:
        found.add(_SHARE, found.enter(table.word[rows[0]]), table.discounted[rows[0]].astype(np.float64))
    for kind in NEAR_KINDS.tolist():
        if weights[kind] != 0.0 and kind in rows:
            places = found.enter(table.word[rows[kind]])
            found.add(_SCORE, places, weights[kind] * table.evidence[rows[kind]].astype(np.float64))
    found.column(_FACTOR)[:] = exponentials_of(found.column(_SCORE))
    found.column(_BASE)[:] = text.base[found.words]
    return found


def _gather(
    rows: dict[int, slice], freed: dict[int, float], text: Text, table: Evidence, weights: Floats
) -> tuple[FoundWords, float]:
    """Return the words that longer contexts have evidence for, and the mass left to contexts of one word."""
    found, left = FoundWords(len(text.base), 2), 1.0
    for kind in range(table.chain - 1, 0, -1):
        if kind in rows:
            own = table.discounted[rows[kind]].astype(np.float64)
            found.add(_DIRECT, found.enter(table.word[rows[kind]]), left * own)
            left *= freed[kind]
    for kind, row in sorted(rows.items()):
        if kind and weights[kind] != 0.0 and (kind < table.chain or not IS_NEAR[kind]):
            places = found.enter(table.word[row])
            found.add(_SCORE, places, weights[kind] * table.evidence[row].astype(np.float64))
    return found, left


def _remember(now: int, text: Text, fading: Floats, weights: Floats, touched: FoundWords) -> None:
    """Add the evidence of the tokens read before in this document."""
    remembered = len(fading) - 1
    first = max(now - remembered - 2, 0)
    changes = np.flatnonzero(np.diff(text.document[first : now + 1]))
    document = first + (int(changes[-1]) + 1 if len(changes) else 0)
    begin = max(now - remembered, document)
    if begin == now:
        return
    words, number = np.unique(text.words[begin:now], return_inverse=True)
    counts = np.zeros((RECENT_KINDS, len(words)))
    counts[0] = np.bincount(number, fading[now - np.arange(begin, now)], len(words))
    least = max(begin - 1, document)
    same = np.arange(least, now - 1)
    same = same[text.words[same] == text.words[now - 1]]
    counts[1] = np.bincount(number[same + 1 - begin], minlength=len(words))
    twice = same[same > document]
    twice = twice[text.words[twice - 1] == text.words[now - 2]]
    counts[2] = np.bincount(number[twice + 1 - begin], minlength=len(words))
    priors = RECENT_PRIOR * np.maximum(text.share[words], LEAST_SHARE)
    places = touched.enter(words)
    for kind, weight in enumerate(weights):
        touched.add(_SCORE, places, weight * logarithms_of(counts[kind] / priors))


def _normalise(
    near: float, left: float, by_layer: Floats, text: Text, layer: FoundWords, touched: FoundWords
) -> tuple[float, Floats]:
    """Return the sum of the probabilities of all words before normalisation, and those of touched words."""
    shares, factors, bases = (layer.column(column) for column in (_SHARE, _FACTOR, _BASE))
    base, other = text.base[touched.words], layer.place[touched.words]
    out = other < 0
    # Words outside of the layer have none of it.
    share, score, factor = (
        np.where(out, 0.0, np.append(layer.column(column), 0.0)[other]) for column in (_SHARE, _SCORE, _FACTOR)
    )
    share, by_itself = near * share, left * base
    covered = _total((share + by_itself) * factor)
    rest = _total(np.append(1.0 - _total(bases), -np.where(out, base, 0.0)))
    direct = (touched.column(_DIRECT) + share) + by_itself
    chances = exponentials_of(touched.column(_SCORE) + score) * direct
    whole = near * _total(shares * factors) + left * _total(bases * factors)
    others = whole - covered
    if others < LEFT * whole:
        others = _total(by_layer[touched.place[layer.words] < 0])
    # As `_sum` of the kernel: four sums.
    fours = len(chances) - len(chances) % 4
    sums = [_total(chances[at:fours:4]) for at in range(4)]
    sums[0] = _total(np.concatenate([[sums[0]], chances[fours:]]))
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + others + left * max(rest, 0.0), chances
