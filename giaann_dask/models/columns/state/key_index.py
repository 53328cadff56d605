"""Index the keys of a tensor that only grows, to find their positions.

An open-addressed table of positions, at most half of it used. It grows by doubling, a little with each key that is
added, so that no call waits for the whole table: while it fills, the memory of one twice as large is cleared, and that
one then takes over the keys of the one before it a few at a time.
Compiled loops search in it: a torch operation costs microseconds, which a few keys do not need in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.device import torch
from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_SLOTS = 1 << 8
# 2 ** 64 divided by the golden ratio, as a signed number: spreads keys that differ little.
_SPREAD = -7046029254386353131
# Slots are upper bits of a product, which depend on all bits of a key only if its own upper bits are moved down.
_DOWN, _UPPER = 29, 32
# Keys that a larger table takes over for each one that is added; two would do.
_TAKEN_OVER = 4
# Slots of the next table that are cleared for each key that is added, from half of what the present one may have on;
# eight would do.
_CLEARED = 16


def _home(key: Any, last: int) -> Any:
    """Return the slot at which the search for a key begins, of those up to a last one; of a tensor of keys, theirs."""
    return (((key ^ (key >> _DOWN)) * _SPREAD) >> _UPPER) & last


_home_of_key = jit_inner(_home)
_NO_TABLE = np.zeros(1, np.int32)


class KeyIndex:
    """Positions of distinct keys in a tensor of the CPU that keys are appended to.

    Examples
    --------
    >>> keys = torch.zeros(4, dtype=torch.int64)
    >>> index = KeyIndex()
    >>> index.take(keys, 0, torch.tensor([7, 5, 9]))
    (tensor([0, 1, 2]), 3)
    >>> index.take(keys, 3, torch.tensor([9, 8]))
    (tensor([2, 3]), 4)
    >>> index.find(keys, torch.tensor([8, 6]))
    tensor([ 3, -1])
    """

    def __init__(self) -> None:
        self._table = self._new_table(_FIRST_SLOTS).zero_()
        # The table before it has the keys before `_end`; those before `_begin` are in the present one, too.
        self._before: Tensor | None = None
        self._begin = self._end = 0
        # The table after it, of which some slots are cleared.
        self._next: Tensor | None = None
        self._cleared = 0

    def copy(self) -> KeyIndex:
        """Return an index of the same keys that grows independently."""
        other = type(self)()
        other._table, other._before = self._table.clone(), self._before
        other._begin, other._end = self._begin, self._end
        return other

    def find(self, keys: Tensor, wanted: Tensor) -> Tensor:
        """Return the positions of some keys, -1 for those that were not added.

        Parameters
        ----------
        keys : Tensor
            All keys that were added, and any after them; int64, one-dimensional, not empty.
        wanted : Tensor
            Any keys, int64, shape ``(wanted,)``.
        """
        position = self._find(self._table, keys, wanted)
        if self._before is not None:
            left = (position < 0).nonzero()[:, 0]
            position[left] = self._find(self._before, keys, wanted[left])
        return position

    def take(self, keys: Tensor, used: int, wanted: Tensor) -> tuple[Tensor, int]:
        """Return the positions of some keys, after appending those that were not added before.

        Parameters
        ----------
        keys : Tensor
            Keys that were added, then as many reserved elements as are wanted; int64, one-dimensional.
        used : int
            Number of keys that were added.
        wanted : Tensor
            Keys, int64, shape ``(wanted,)``.

        Returns
        -------
        position : Tensor
            int64, shape ``(wanted,)``.
        used : int
            Number of keys that are added now.
        """
        self._enlarge_for(keys, used, used + len(wanted))
        position, end = self._take(keys, used, wanted)
        self._take_over(keys, _TAKEN_OVER * (end - used))
        self._clear_next(end, _CLEARED * (end - used))
        return position, end

    def _enlarge_for(self, keys: Tensor, used: int, needed: int) -> None:
        """Continue with a larger table if the present one is too small for the keys that may be needed."""
        if 2 * needed <= len(self._table):
            return
        # Nothing is left of an earlier table by now but in a call that adds most of the keys.
        self._take_over(keys, self._end)
        self._before, self._begin, self._end = self._table, 0, used
        slots = 1 << (2 * needed - 1).bit_length()
        if self._next is None or len(self._next) != slots:
            self._next, self._cleared = self._new_table(slots), 0
        self._next[self._cleared :] = 0
        self._table, self._next = self._next, None

    def _take_over(self, keys: Tensor, count: int) -> None:
        """Insert some of the keys of the table before, and forget it when it has no others."""
        end = min(self._begin + count, self._end)
        self._insert(keys, self._begin, end)
        self._begin = end
        if end == self._end:
            self._before = None

    def _clear_next(self, used: int, count: int) -> None:
        """Clear some more slots of the table after, if the present one is so full that there will be one soon."""
        if self._before is not None or 4 * used <= len(self._table):
            return
        if self._next is None:
            self._next, self._cleared = self._new_table(2 * len(self._table)), 0
        end = min(self._cleared + count, len(self._next))
        self._next[self._cleared : end] = 0
        self._cleared = end

    def _find(self, table: Tensor, keys: Tensor, wanted: Tensor) -> Tensor:
        found = torch.empty_like(wanted)
        _find_keys(table.numpy(), keys.numpy(), wanted.numpy(), found.numpy())
        return found

    def _take(self, keys: Tensor, used: int, wanted: Tensor) -> tuple[Tensor, int]:
        found = torch.empty_like(wanted)
        before = _NO_TABLE if self._before is None else self._before.numpy()
        return found, _take_keys(self._table.numpy(), before, keys.numpy(), used, wanted.numpy(), found.numpy())

    def _insert(self, keys: Tensor, begin: int, end: int) -> None:
        _insert_keys(self._table.numpy(), keys.numpy(), begin, end)

    def _new_table(self, slots: int) -> Tensor:
        # NumPy asks for large pages, which need fewer translations of addresses.
        return torch.from_numpy(np.empty(slots, np.int32 if slots <= 1 << 31 else np.int64))


@jit_inner
def _slot_of(table: npt.NDArray[Any], keys: Integers, key: int) -> int:
    """Return the slot of a key, or the free slot that it would have."""
    last = len(table) - 1
    slot: int = _home_of_key(key, last)
    while table[slot] != 0 and keys[table[slot] - 1] != key:
        slot = (slot + 1) & last
    return slot


@jit
def _find_keys(table: npt.NDArray[Any], keys: Integers, wanted: Integers, found: Integers) -> None:
    for i in range(len(wanted)):
        found[i] = table[_slot_of(table, keys, wanted[i])] - 1


@jit
def _take_keys(
    table: npt.NDArray[Any], before: npt.NDArray[Any], keys: Integers, used: int, wanted: Integers, found: Integers
) -> int:
    for i in range(len(wanted)):
        slot = _slot_of(table, keys, wanted[i])
        position = table[slot] - 1
        if position < 0:
            position = before[_slot_of(before, keys, wanted[i])] - 1
        if position < 0:
            position = used
            keys[used] = wanted[i]
            used += 1
            table[slot] = used
        found[i] = position
    return used


@jit
def _insert_keys(table: npt.NDArray[Any], keys: Integers, begin: int, end: int) -> None:
    last = len(table) - 1
    for i in range(begin, end):
        slot = _home_of_key(keys[i], last)
        while table[slot] != 0:
            slot = (slot + 1) & last
        table[slot] = i + 1
