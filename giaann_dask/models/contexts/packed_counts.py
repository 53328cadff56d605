"""Pack the counts of all contexts into one string of bits, from which the rows of single contexts are read.

Rows of a kind lie in the order of their keys, which are hashes, in *buckets* of keys that begin with the same bits; a
table has the first bit of each bucket. A row is the difference of its key from the one before (a Rice code), its
length, and its entries: the difference of each word from the one before, its count, and for a context that longer ones
extend after how many of these it came. Each number is one of a *class* of numbers with as many bits, and those bits.
Codes of classes are as long as Huffman's, which are made for each kind and field, since most rows have one word, and
most words were counted once.

Nothing is lost: rows are those that were packed, number by number.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import RESTORE, StoreDamagedError
from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner, runs_plainly
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS
from giaann_dask.models.contexts.uncompiled import CountFields, read_rows
from giaann_dask.models.words.stream import NONE
from giaann_dask.spec import NEURON_BITS

Bits = npt.NDArray[np.uint64]

# Fields of a row with codes of their own: its length, its first word, the other words for rows of about one length,
# how often a word was counted, and after how many longer contexts.
_LENGTH, _FIRST, _NEXT, _COUNT, _LONGER, _FIELDS = 0, 1, 2, 7, 8, 9
# Rows of so many bits in their length, and of more, have one code of words.
_LENGTHS = _NEXT + np.array([0, 0, 0, 1, 2, 2, 3, 3, 4])
# Branches on the sizes of numbers could not be foreseen by the processor.
_SMALL = 65_535
_SMALL_LENGTHS = np.repeat(np.arange(17, dtype=np.uint8), [1, *(1 << np.arange(16))])
# Numbers have up to so many bits; codes of their classes are shorter than `_CODE`, so that both lie in 64 bits.
_CLASSES, _CODE = 48, 12
MOST_COUNT = (1 << (_CLASSES - 1)) - 1
_SYMBOL = 6
# Rows of so many words say how many bits they take, so that they are passed over.
_LONG, _SIZE = 32, 40
FIELDS = CountFields(_LENGTH, _FIRST, _COUNT, _LONGER, tuple(_LENGTHS.tolist()), _LONG, _SIZE, _CODE, _SYMBOL)
# Numbers of `_CODE` bits from the last to the first.
_REVERSED = np.zeros(1, np.int64)
for _ in range(_CODE):
    _REVERSED = np.append(2 * _REVERSED, 2 * _REVERSED + 1)
# What a row of a context before a token takes without compiled code, about.
_ROW_US = 2_000
# A bucket has from so many rows to twice as many.
_BUCKET = 8


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class PackedCounts:
    """Rows of all kinds of contexts.

    Attributes
    ----------
    bits : ndarray
        The rows, from the lowest bit of the first number on; uint64.
    begins : ndarray
        Where each bucket begins and the last one ends, all kinds after one another; uint32, or uint64 where need be.
    kinds : ndarray
        Of each kind how many rows it has, how many bits of a key tell its bucket, the width of the code of keys, and
        which bucket is its first; int64, shape ``(kinds, 4)``.
    lengths : ndarray
        Bits of the code of each class of numbers, by kind and field; uint8.
    """

    bits: Bits
    begins: npt.NDArray[np.unsignedinteger[Any]]
    kinds: Integers
    lengths: npt.NDArray[np.uint8]

    @classmethod
    def pack(cls, contexts: Sequence[Rows], links: Sequence[Rows]) -> PackedCounts:
        """Pack rows.

        Parameters
        ----------
        contexts : sequence of Rows
            Of each kind from 1 on.
        links : sequence of Rows
            Those of the chain, with the numbers of longer contexts as counts.

        Raises
        ------
        StoreDamagedError
            If counts are not positive, or more than `MOST_COUNT`.
        """
        for rows in (*contexts, *links):
            if len(rows.counts) and not 1 <= rows.counts.min() <= rows.counts.max() <= MOST_COUNT:
                found = f"counts from {rows.counts.min()} to {rows.counts.max()}"
                raise StoreDamagedError(found, f"1 to {MOST_COUNT}", RESTORE)
        layout = np.array([_layout(len(rows.keys)) for rows in contexts], np.int64)
        buckets = np.where(layout[:, 0] > 0, 1 << layout[:, 1], 0)
        kinds = np.column_stack([layout, np.cumsum(buckets) - buckets])
        lengths, total = np.zeros((len(contexts), _FIELDS, _CLASSES), np.uint8), 0
        jobs = [
            (rows.keys, rows.pointer, rows.word, rows.counts, links[kind].counts if kind < CHAIN - 1 else _NOTHING)
            for kind, rows in enumerate(contexts)
        ]
        count: Any = _count_classes
        for kind, (keys, pointer, *columns) in enumerate(jobs):
            numbers = np.zeros((_FIELDS, _CLASSES), np.int64)
            count(pointer, *columns, numbers)
            lengths[kind] = [code_lengths(row) for row in numbers]
            total += _key_bits(keys, kinds[kind]) + int((numbers * (lengths[kind] + np.arange(_CLASSES))).sum())
            total += _SIZE * int((np.diff(pointer) >= _LONG).sum())
        # A number is read with the 64 bits that follow it.
        bits, begins = np.zeros(total // 64 + 2, np.uint64), np.zeros(int(buckets.sum()) + 1, np.uint64)
        end, encode = 0, cast(Any, _encode)
        for kind, job in enumerate(jobs):
            first = int(kinds[kind, 3])
            own = begins[first : first + int(buckets[kind])]
            end = int(encode(job, kinds[kind], codes_of(lengths[kind]), bits, own, end))
        begins[-1] = end
        assert end == total, "bits of all numbers"
        return cls(bits, begins.astype(np.uint32) if total < 1 << 32 else begins, kinds, lengths)

    @property
    def packed(self) -> PackedCounts:
        """These rows."""
        return self

    def rows(self, kind: int, wanted: Integers) -> tuple[Rows, Integers, Integers]:
        """Return the rows of some contexts.

        Parameters
        ----------
        kind : int
            Place in `CONTEXTS`, from 1 on.
        wanted : ndarray
            Source keys, ascending; int64. Negative ones have no row.

        Returns
        -------
        rows : Rows
            Those that were packed, in that order.
        longer : ndarray
            After how many longer contexts each entry came; for the longest of the chain and other kinds its count.
        row : ndarray
            Which row has each key, `NONE` where none has; int64, shape ``(wanted,)``.
        """
        layout = self.kinds[kind - 1]
        if not layout[0] or not len(wanted):
            none = np.zeros(0, np.int64)
            return Rows(none, np.zeros(1, np.int64), none.astype(np.int32), none), none, np.full(len(wanted), NONE)
        codes = _decoding(self.lengths[kind - 1].tobytes())
        read: Any = partial(read_rows, fields=FIELDS) if runs_plainly(_ROW_US * len(wanted)) else _read
        keys, pointer, word, counts, longer, row = read(self.bits, self.begins, layout, codes, wanted, kind < CHAIN)
        return Rows(keys, pointer, word, counts), longer, row

    def buckets(self, kind: int, wanted: Integers) -> Integers:
        """Return the places in `begins` of the buckets that the rows of some contexts are in; see `rows`."""
        found, bits, _, first = self.kinds[kind - 1].tolist()
        known = wanted[wanted >= 0] if found else _NOTHING
        places: Integers = first + np.unique(known >> (NEURON_BITS - bits))
        return places


_NOTHING = np.zeros(0, np.int64)
_NONE = np.zeros(0, np.uint64)


def _layout(rows: int) -> tuple[int, int, int]:
    """Return the number of rows, the bits of a key that tell its bucket, and the width of the code of keys."""
    bucket = max((rows // _BUCKET).bit_length() - 1, 0)
    # Nearly the best width for gaps of hashes: about 0.7 of the mean gap.
    mean = (1 << NEURON_BITS) // max(rows, 1)
    return rows, bucket, max((mean * 7 // 10).bit_length() - 1, 0)


def _key_bits(keys: Integers, layout: Integers) -> int:
    """Return how many bits the codes of keys take."""
    bucket = keys >> (NEURON_BITS - layout[1])
    first = np.diff(bucket, prepend=-1) != 0
    gaps = np.diff(keys, prepend=0) - 1
    gaps[first] = keys[first] - (bucket[first] << (NEURON_BITS - layout[1]))
    return int((gaps >> layout[2]).sum()) + len(keys) * (1 + int(layout[2]))


def code_lengths(found: Integers) -> npt.NDArray[np.uint8]:
    """Return the bits of a prefix code of symbols, given how often each occurs; 0 for those that do not.

    The shortest code (Huffman 1952) with fewer than `_CODE` bits: counts are made more alike until it is.

    Examples
    --------
    >>> code_lengths(np.array([9, 4, 0, 3])).tolist()
    [1, 2, 0, 2]
    """
    lengths, counts = np.zeros(len(found), np.uint8), found.copy()
    used = np.flatnonzero(counts).tolist()
    if len(used) == 1:
        lengths[used] = 1
        return lengths
    while used:
        heap = [(int(counts[symbol]), symbol, [symbol]) for symbol in used]
        heapq.heapify(heap)
        lengths[:] = 0
        while len(heap) > 1:
            (one, tie, symbols), (other, _, others) = heapq.heappop(heap), heapq.heappop(heap)
            lengths[symbols + others] += 1
            heapq.heappush(heap, (one + other, tie, symbols + others))
        if int(lengths.max()) < _CODE:
            break
        counts = np.where(counts > 0, counts // 2 + 1, 0)
    return lengths


def codes_of(lengths: npt.NDArray[np.uint8]) -> Integers:
    """Return the codes of fields and symbols, the first bit the lowest, above the length of each; int64."""
    found = np.zeros(lengths.shape, np.int64)
    order, sizes, share = _in_order(lengths)
    # Codes as if they had `_CODE` bits; a symbol has all that begin with its own.
    first = np.cumsum(share, axis=1) - share
    codes = np.where(sizes > 0, _REVERSED[first & (len(_REVERSED) - 1)] << _SYMBOL | sizes, 0)
    np.put_along_axis(found, order, codes, axis=1)
    return found


def _in_order(lengths: npt.NDArray[np.uint8]) -> tuple[Integers, Integers, Integers]:
    """Return the symbols of each field by length of code, unused ones last, these lengths, and the share of each."""
    order = np.argsort(lengths - np.uint8(1), axis=1, kind="stable")
    sizes = np.take_along_axis(lengths, order, axis=1).astype(np.int64)
    return order, sizes, np.where(sizes > 0, 1 << (_CODE - sizes), 0)


@lru_cache(maxsize=4 * len(CONTEXTS))
def _decoding(lengths: bytes) -> npt.NDArray[np.uint16]:
    """Return what `decoding_of` returns, which takes as long as the rows of a token."""
    return decoding_of(np.frombuffer(lengths, np.uint8).reshape(_FIELDS, _CLASSES))


def decoding_of(lengths: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """Return for each field and each next `_CODE` bits the symbol above the length of its code."""
    found = np.zeros((len(lengths), 1 << _CODE), np.uint16)
    order, sizes, share = _in_order(lengths)
    for field, symbols in enumerate(order << _SYMBOL | sizes):
        every = np.repeat(symbols, share[field])
        found[field, _REVERSED[: len(every)]] = every
    return found


@jit_inner
def _bit_length(value):  # type: ignore[no-untyped-def]
    """Return how many bits a number has."""
    size = 0
    while value > _SMALL:
        size += 16
        value >>= 16
    return size + np.int64(_SMALL_LENGTHS[value])


@jit
def _count_classes(pointer, words, counts, longer, found):  # type: ignore[no-untyped-def]
    """Count the numbers of each class by field; as `_encode` writes them."""
    for row in range(len(pointer) - 1):
        begin, end = pointer[row], pointer[row + 1]
        found[_LENGTH, _bit_length(end - begin) - 1] += 1
        field, following, last = _FIRST, _LENGTHS[min(_bit_length(end - begin), len(_LENGTHS) - 1)], np.int64(-1)
        for entry in range(begin, end):
            word, count = np.int64(words[entry]), counts[entry]
            found[field, _bit_length(word - last) - 1] += 1
            found[_COUNT, _bit_length(count) - 1] += 1
            if len(longer) and count > 1:
                found[_LONGER, _bit_length(longer[entry]) - 1] += 1
            field, last = following, word


@jit_inner
def _put(value, width, bits, at):  # type: ignore[no-untyped-def]
    """Write a number of some bits; return where the next one begins."""
    word, shift = at >> 6, np.uint64(at & 63)
    bits[word] |= np.uint64(value) << shift
    # Two shifts, because one by 64 bits is none.
    bits[word + 1] |= (np.uint64(value) >> np.uint64(1)) >> (np.uint64(63) - shift)
    return at + width


@jit_inner
def _put_number(value, code, bits, at):  # type: ignore[no-untyped-def]
    """Write a number, 1 or more: the code of its class, and its bits without the first."""
    size, width = _bit_length(value) - 1, code & ((1 << _SYMBOL) - 1)
    return _put(code >> _SYMBOL | (value - (np.int64(1) << size)) << width, size + width, bits, at)


@jit
def _encode(rows, layout, codes, bits, begins, at):  # type: ignore[no-untyped-def]
    """Write the rows of a kind from a bit on, and where buckets begin; return the end."""
    keys, pointer, words, counts, longer = rows
    shift, width = NEURON_BITS - layout[1], layout[2]
    bucket, before = np.int64(-1), np.int64(0)
    for row in range(len(keys)):
        while bucket < keys[row] >> shift:
            bucket += 1
            before = (bucket << shift) - 1
            begins[bucket] = at
        gap = keys[row] - before - 1
        before = keys[row]
        # As many zeros as its high part says.
        at = _put(1, 1, bits, at + (gap >> width))
        at = _put(gap & ((np.int64(1) << width) - 1), width, bits, at)
        begin, end = pointer[row], pointer[row + 1]
        at = _put_number(end - begin, codes[_LENGTH, _bit_length(end - begin) - 1], bits, at)
        start = at
        if end - begin >= _LONG:
            at += _SIZE
        field, following, last = _FIRST, _LENGTHS[min(_bit_length(end - begin), len(_LENGTHS) - 1)], np.int64(-1)
        for entry in range(begin, end):
            word, count = np.int64(words[entry]), counts[entry]
            at = _put_number(word - last, codes[field, _bit_length(word - last) - 1], bits, at)
            at = _put_number(count, codes[_COUNT, _bit_length(count) - 1], bits, at)
            if len(longer) and count > 1:
                at = _put_number(longer[entry], codes[_LONGER, _bit_length(longer[entry]) - 1], bits, at)
            field, last = following, word
        if end - begin >= _LONG:
            _put(at - start - _SIZE, _SIZE, bits, start)
    for rest in range(bucket + 1, len(begins)):
        begins[rest] = at
    return at


@jit_inner
def _peek(bits, at):  # type: ignore[no-untyped-def]
    """Return the next 64 bits."""
    word, shift = at >> 6, np.uint64(at & 63)
    # Two shifts, because one by 64 bits is none.
    high = (bits[word + 1] << np.uint64(1)) << (np.uint64(63) - shift)
    return (bits[word] >> shift) | high


@jit_inner
def _number(bits, at, codes, field):  # type: ignore[no-untyped-def]
    """Return a number and where the next one begins."""
    window = _peek(bits, at)
    code = np.int64(codes[field, window & np.uint64((1 << _CODE) - 1)])
    size, width = code >> _SYMBOL, code & ((1 << _SYMBOL) - 1)
    one = np.uint64(1) << np.uint64(size)
    return np.int64(((window >> np.uint64(width)) & (one - np.uint64(1))) | one) - 1, at + size + width


@jit_inner
def _pass_entries(bits, at, codes, length, is_link):  # type: ignore[no-untyped-def]
    """Return where the row behind one begins, whose entries begin at a bit."""
    if length >= _LONG:
        return at + _SIZE + np.int64(_peek(bits, at) & np.uint64((1 << _SIZE) - 1))
    following = _LENGTHS[min(_bit_length(length), len(_LENGTHS) - 1)]
    for entry in range(length):
        _, at = _number(bits, at, codes, _FIRST if entry == 0 else following)
        count, at = _number(bits, at, codes, _COUNT)
        if is_link and count > 0:
            _, at = _number(bits, at, codes, _LONGER)
    return at


@jit_inner
def _find(bits, begins, layout, codes, wanted, is_link):  # type: ignore[no-untyped-def]
    """Return the bit that the entries of each wanted row begin at, and how many there are; none for missing rows."""
    places, lengths = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.int64)
    shift, width, first = NEURON_BITS - layout[1], layout[2], layout[3]
    bucket, at, end = np.int64(-1), np.int64(0), np.int64(0)
    key, length, none = np.int64(-1), np.int64(0), np.int64(0)
    for which in range(len(wanted)):
        if wanted[which] < 0:
            continue
        if wanted[which] >> shift != bucket:
            bucket = wanted[which] >> shift
            at, end = np.int64(begins[first + bucket]), np.int64(begins[first + bucket + 1])
            key, length = (bucket << shift) - 1, none
        while key < wanted[which]:
            if length:
                at, length = _pass_entries(bits, at, codes, length, is_link), none
            if at >= end:
                break
            high = np.int64(0)
            while not (bits[at >> 6] >> np.uint64(at & 63)) & np.uint64(1):
                high += 1
                at += 1
            low = np.int64(_peek(bits, at + 1) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1)))
            key = key + 1 + ((high << width) | low)
            length, at = _number(bits, at + 1 + width, codes, _LENGTH)
            length += 1
        if key == wanted[which] and length:
            places[which], lengths[which] = at, length
    return places, lengths


@jit_inner
def _decode(bits, codes, places, pointer, is_link):  # type: ignore[no-untyped-def]
    """Return words, counts and numbers of longer contexts of the entries of rows."""
    total = pointer[-1]
    words, counts, longer = np.empty(total, np.int32), np.empty(total, np.int64), np.empty(total, np.int64)
    for row in range(len(places)):
        begin, end, at = pointer[row], pointer[row + 1], places[row]
        if end - begin >= _LONG:
            at += _SIZE
        following = _LENGTHS[min(_bit_length(end - begin), len(_LENGTHS) - 1)]
        last = np.int64(-1)
        for entry in range(begin, end):
            gap, at = _number(bits, at, codes, _FIRST if entry == begin else following)
            last += gap + 1
            count, at = _number(bits, at, codes, _COUNT)
            more = count
            if is_link and count > 0:
                more, at = _number(bits, at, codes, _LONGER)
            words[entry], counts[entry], longer[entry] = last, count + 1, more + 1
    return words, counts, longer


@jit
def _read(bits, begins, layout, codes, wanted, is_link):  # type: ignore[no-untyped-def]
    """Return what `PackedCounts.rows` returns, array by array."""
    places, lengths = _find(bits, begins, layout, codes, wanted, is_link)
    rows = np.count_nonzero(lengths)
    keys, at = np.empty(rows, np.int64), np.empty(rows, np.int64)
    pointer, row_of = np.zeros(rows + 1, np.int64), np.full(len(wanted), NONE)
    row = 0
    for which in range(len(wanted)):
        if lengths[which]:
            keys[row], at[row], row_of[which] = wanted[which], places[which], row
            pointer[row + 1] = pointer[row] + lengths[which]
            row += 1
    words, counts, longer = _decode(bits, codes, at, pointer, is_link)
    return keys, pointer, words, counts, longer, row_of
