"""Keep arrays with an element for each of distinct keys, to which further keys are appended.

An open-addressed table of positions, at most half of it used, finds the keys. Compiled loops search in it: a few keys
take less time than a call of NumPy.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner

_FIRST_KEYS = 1 << 7
# 2 ** 64 divided by the golden ratio, as a signed number: spreads keys that differ little.
_SPREAD = -7046029254386353131
# Slots are upper bits of a product, which depend on all bits of a key only if its own upper bits are moved down.
_DOWN, _UPPER = 29, 32


class KeyedArrays:
    """Keys with an element each in some arrays, which grow by doubling.

    Parameters
    ----------
    *first : ndarray or scalar
        Of each array, the element of a new key; with its type.

    Attributes
    ----------
    keys : ndarray
        The keys, int64, then reserved elements.
    columns : list of ndarray
        The arrays, changed by their users in place; they are others after `take`.

    Examples
    --------
    >>> arrays = KeyedArrays(np.float32(0))
    >>> arrays.take(np.array([7, 5, 9])).tolist(), arrays.take(np.array([9, 8])).tolist(), len(arrays)
    ([0, 1, 2], [2, 3], 4)
    >>> arrays.find(np.array([8, 6])).tolist()
    [3, -1]
    """

    def __init__(self, *first: npt.NDArray[Any] | np.generic) -> None:
        self._first = first
        self._used = 0
        self.keys = np.empty(_FIRST_KEYS, np.int64)
        self.columns = [np.empty((_FIRST_KEYS, *each.shape), each.dtype) for each in first]
        self._table = np.zeros(2 * _FIRST_KEYS, np.int32)

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._used

    def copy(self) -> Self:
        """Return the same keys and elements, to be changed independently."""
        other = copy(self)
        other.keys, other._table = self.keys.copy(), self._table.copy()
        other.columns = [column.copy() for column in self.columns]
        return other

    def find(self, wanted: Integers) -> Integers:
        """Return the positions of some keys, -1 for those that were not added; int64, of their shape."""
        flat = _writeable(wanted.reshape(-1))
        found = np.empty_like(flat)
        _find_keys(self._table, self.keys, flat, found)
        return found.reshape(wanted.shape)

    def take(self, wanted: Integers) -> Integers:
        """Return the positions of some keys, after appending those that were not added before.

        Parameters
        ----------
        wanted : ndarray
            Keys, int64, shape ``(wanted,)``.

        Returns
        -------
        ndarray
            int64, of the same shape.
        """
        before = self._used
        self._reserve(before + len(wanted))
        found = np.empty(len(wanted), np.int64)
        self._used = _take_keys(self._table, self.keys, before, _writeable(wanted), found)
        for column, first in zip(self.columns, self._first, strict=True):
            column[before : self._used] = first
        return found

    def _reserve(self, needed: int) -> None:
        """Enlarge arrays and table where they are too small for so many keys."""
        used = self._used
        if needed > len(self.keys):
            size = max(needed, 2 * len(self.keys))
            self.keys, *self.columns = (_enlarged(array, used, size) for array in (self.keys, *self.columns))
        if 2 * needed > len(self._table):
            slots = 1 << (2 * needed - 1).bit_length()
            self._table = np.zeros(slots, np.int32 if slots <= 1 << 31 else np.int64)
            _insert_keys(self._table, self.keys, used)


def _enlarged(array: npt.NDArray[Any], used: int, size: int) -> npt.NDArray[Any]:
    """Return an array of more elements, with those that are used."""
    larger = np.empty((size, *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


def _writeable(keys: Integers) -> Integers:
    """Return an array for which loops are compiled already; arrays from Dask may be read-only."""
    return np.require(keys, requirements=["C", "W"])


@jit_inner
def _slot_of(table: npt.NDArray[Any], keys: Integers, key: int) -> int:
    """Return the slot of a key, or the free slot that it would have."""
    last = len(table) - 1
    slot: int = (((key ^ (key >> _DOWN)) * _SPREAD) >> _UPPER) & last
    while table[slot] != 0 and keys[table[slot] - 1] != key:
        slot = (slot + 1) & last
    return slot


@jit
def _find_keys(table: npt.NDArray[Any], keys: Integers, wanted: Integers, found: Integers) -> None:
    for i in range(len(wanted)):
        found[i] = table[_slot_of(table, keys, wanted[i])] - 1


@jit
def _take_keys(table: npt.NDArray[Any], keys: Integers, used: int, wanted: Integers, found: Integers) -> int:
    for i in range(len(wanted)):
        slot = _slot_of(table, keys, wanted[i])
        if table[slot] == 0:
            keys[used] = wanted[i]
            used += 1
            table[slot] = used
        found[i] = table[slot] - 1
    return used


@jit
def _insert_keys(table: npt.NDArray[Any], keys: Integers, count: int) -> None:
    for i in range(count):
        table[_slot_of(table, keys, keys[i])] = i + 1
