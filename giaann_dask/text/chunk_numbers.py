"""Number the chunks between white space of passages, as ``str.split`` divides them, without an object for each of them.

Chunks are the keys of a hash table of code points in compiled code. Only what was never seen before becomes a string.

Does not cover: dividing chunks into tokens (`english_tokenizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.lazy import compiled, jit_inner
from giaann_dask.text.lexicon.tables import reserved

# No character above it is white space.
_SPACES = np.array([chr(code).isspace() for code in range(0x3001)])
_FIRST_SLOTS = 1 << 10
_ENCODING = "utf-32-le", "surrogatepass"


class NumberedChunks(NamedTuple):
    """Chunks of some passages as numbers.

    Attributes
    ----------
    numbers : ndarray
        Number of each chunk; int64, shape ``(chunks,)``.
    ends : ndarray
        Number of chunks up to the end of each passage; int64, shape ``(passages,)``.
    new : list of str
        Chunks that no passage had before; their numbers follow the earlier ones.
    """

    numbers: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    new: list[str]


class ChunkNumbers:
    """Number distinct chunks in order of first appearance.

    Examples
    --------
    >>> numbers = ChunkNumbers()
    >>> numbers.number([" a  bc a", "", "d"])
    NumberedChunks(numbers=array([0, 1, 0, 2]), ends=array([3, 3, 4]), new=['a', 'bc', 'd'])
    >>> numbers.number(["e bc"])
    NumberedChunks(numbers=array([3, 1]), ends=array([2]), new=['e'])
    """

    def __init__(self) -> None:
        # Code points of all chunks, and where each of them ends; the number of a chunk counted from 1, or 0, per slot.
        self._letters, self._ends = np.zeros(0, np.uint32), np.zeros(0, np.int64)
        self._slots, self._count = np.zeros(_FIRST_SLOTS, np.int32), 0

    def __len__(self) -> int:
        """Return the number of distinct chunks."""
        return self._count

    def number(self, passages: Sequence[str]) -> NumberedChunks:
        """Return the chunks of passages as numbers."""
        codes = np.frombuffer(" ".join(passages).encode(*_ENCODING), np.uint32)
        lengths = np.fromiter(map(len, passages), np.int64, len(passages))
        # What is reserved suffices if all chunks are new.
        before, used = self._count, int(self._ends[self._count - 1]) if self._count else 0
        self._letters = reserved(self._letters, used + len(codes))
        self._ends = reserved(self._ends, before + len(codes) // 2 + 1)
        number: Any = _number
        numbers, ends, self._slots, self._count = number(
            codes, lengths, _SPACES, (self._letters, self._ends), self._slots, before
        )
        edges = [used, *self._ends[before : self._count].tolist()]
        text = self._letters[used : edges[-1]].tobytes().decode(*_ENCODING)
        new = [text[begin - used : end - used] for begin, end in pairwise(edges)]
        return NumberedChunks(numbers, ends, new)


@jit_inner
def _mix(code, letter):  # type: ignore[no-untyped-def]
    """Return the hash of a chunk with one more letter (FNV-1a)."""
    return (code ^ np.uint64(letter)) * np.uint64(0x100000001B3)


@jit_inner
def _slot(code, slots):  # type: ignore[no-untyped-def]
    """Return the first slot for a hash."""
    return np.int64((code ^ (code >> np.uint64(29))) & np.uint64(len(slots) - 1))


_HASH = np.uint64(0xCBF29CE484222325)


@jit_inner
def _enlarged(slots, letters, ends, count):  # type: ignore[no-untyped-def]
    """Return twice as many slots with the same chunks."""
    larger = np.zeros(2 * len(slots), np.int32)
    begin = 0
    for number in range(count):
        code = _HASH
        for at in range(begin, ends[number]):
            code = _mix(code, letters[at])
        begin = ends[number]
        slot = _slot(code, larger)
        while larger[slot]:
            slot = (slot + 1) & (len(larger) - 1)
        larger[slot] = number + 1
    return larger


_CODES = nb.types.Array(nb.uint32, 1, "C", readonly=True)
_CHUNKS = nb.types.Tuple((nb.uint32[::1], nb.int64[::1]))


@compiled(
    nb.types.Tuple((nb.int64[::1], nb.int64[::1], nb.int32[::1], nb.int64))(
        _CODES, nb.int64[::1], nb.boolean[::1], _CHUNKS, nb.int32[::1], nb.int64
    )
)
def _number(codes, lengths, spaces, chunks, slots, count):  # type: ignore[no-untyped-def]
    """Return the number of each chunk, the chunks up to the end of each passage, and the slots and count afterwards."""
    letters, chunk_ends = chunks
    numbers, ends = np.empty(len(codes) // 2 + 1, np.int64), np.empty(len(lengths), np.int64)
    used = chunk_ends[count - 1] if count else 0
    found = at = 0
    for passage, length in enumerate(lengths):
        last = at + length
        while at < last:
            letter = codes[at]
            if letter < len(spaces) and spaces[letter]:
                at += 1
                continue
            begin, code = at, _HASH
            while at < last:
                letter = codes[at]
                if letter < len(spaces) and spaces[letter]:
                    break
                code = _mix(code, letter)
                at += 1
            slot, size = _slot(code, slots), at - begin
            while slots[slot]:
                number = slots[slot] - 1
                first = chunk_ends[number - 1] if number else 0
                if chunk_ends[number] - first == size:
                    same = 0
                    while same < size and letters[first + same] == codes[begin + same]:
                        same += 1
                    if same == size:
                        break
                slot = (slot + 1) & (len(slots) - 1)
            if slots[slot]:
                numbers[found] = slots[slot] - 1
            else:
                for offset in range(size):
                    letters[used + offset] = codes[begin + offset]
                used += size
                chunk_ends[count] = used
                numbers[found] = count
                count += 1
                slots[slot] = count
                if 2 * count > len(slots):
                    slots = _enlarged(slots, letters, chunk_ends, count)
            found += 1
        ends[passage] = found
        # A space is between two passages.
        at = last + 1
    return numbers[:found].copy(), ends, slots, count
