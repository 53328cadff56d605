"""Index the keys of a tensor that only grows, to find their positions on any device.

An open-addressed table of positions, at most half of it used. It grows by amortised doubling, and a larger table takes
over the keys of the one before it a few at a time, with the keys that are added, so that no call waits for all of them.
On the CPU compiled loops search in it; on other devices tensor operations over all keys of a call, which go on with
those that have not met their slot yet. A torch operation costs microseconds, which a few keys do not need in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba as nb
import numpy.typing as npt

from giaann_dask.device import tensor_device, torch
from giaann_dask.keys import Integers

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_SLOTS = 1 << 8
# 2 ** 64 divided by the golden ratio, as a signed number: spreads keys that differ little.
_SPREAD = -7046029254386353131
# Slots are upper bits of a product, which depend on all bits of a key only if its own upper bits are moved down.
_DOWN, _UPPER = 29, 32
# Neighbouring slots that tensor operations look at together.
_WINDOW = 4
# Keys that a larger table takes over for each one that is added; two would do.
_TAKEN_OVER = 4


class KeyIndex:
    """Positions of distinct keys in a tensor that keys are appended to, by tensor operations of any device.

    Parameters
    ----------
    device : torch.device
        Of the tensor.

    Examples
    --------
    >>> keys = torch.tensor([7, 5, 9])
    >>> index = KeyIndex(keys.device)
    >>> index.add(keys, 0)
    >>> index.find(keys, torch.tensor([9, 8]))
    tensor([ 2, -1])
    """

    def __init__(self, device: torch.device) -> None:
        self._window = torch.arange(_WINDOW, device=device)
        self._table = self._new_table(_FIRST_SLOTS)
        # The table before it has the keys before `_end`; those before `_begin` are in the present one, too.
        self._before: Tensor | None = None
        self._begin = self._end = 0

    def copy(self) -> KeyIndex:
        """Return an index of the same keys that grows independently."""
        other = type(self)(self._window.device)
        other._table, other._before = self._table.clone(), self._before
        other._begin, other._end = self._begin, self._end
        return other

    def find(self, keys: Tensor, wanted: Tensor) -> Tensor:
        """Return the positions of some keys, -1 for those that were not added.

        Parameters
        ----------
        keys : Tensor
            All keys that were added, int64, one-dimensional.
        wanted : Tensor
            Any keys, int64, shape ``(wanted,)``.
        """
        if not len(keys):
            return torch.full_like(wanted, -1)
        position = self._find(self._table, keys, wanted)
        if self._before is not None:
            left = (position < 0).nonzero()[:, 0]
            position[left] = self._find(self._before, keys, wanted[left])
        return position

    def add(self, keys: Tensor, begin: int) -> None:
        """Add the keys from a position on, none of which were added before.

        Parameters
        ----------
        keys : Tensor
            All keys, those that were added before first, int64, shape ``(keys,)``.
        begin : int
            Number of keys that were added before.
        """
        added = len(keys) - begin
        if 2 * len(keys) > len(self._table):
            # Nothing is left of an earlier table by now but in a call that adds most of the keys.
            self._take_over(keys, self._end)
            self._before, self._begin, self._end = self._table, 0, begin
            self._table = self._new_table(1 << (4 * len(keys) - 1).bit_length())
        self._insert(keys, begin, len(keys))
        self._take_over(keys, _TAKEN_OVER * added)

    def _take_over(self, keys: Tensor, count: int) -> None:
        """Insert some of the keys of the table before, and forget it when it has no others."""
        end = min(self._begin + count, self._end)
        self._insert(keys, self._begin, end)
        self._begin = end
        if end == self._end:
            self._before = None

    def _new_table(self, slots: int) -> Tensor:
        dtype = torch.int32 if slots <= 1 << 31 else torch.int64
        return torch.zeros(slots, dtype=dtype, device=self._window.device)

    def _home(self, keys: Tensor, table: Tensor) -> Tensor:
        """Return the slots at which the search for keys begins."""
        return (((keys ^ (keys >> _DOWN)) * _SPREAD) >> _UPPER) & (len(table) - 1)

    def _find(self, table: Tensor, keys: Tensor, wanted: Tensor) -> Tensor:
        found, slot = torch.full_like(wanted, -1), self._home(wanted, table)
        searching = torch.arange(len(wanted), device=wanted.device)
        while len(searching):
            entry = table[(slot[:, None] + self._window) & (len(table) - 1)].to(torch.int64)
            free = entry == 0
            here = (keys[(entry - 1).clamp_min(0)] == wanted[:, None]) & ~free
            position = torch.where(here, entry, 0).amax(1) - 1
            found[searching] = position
            left = ((position < 0) & ~free.any(1)).nonzero()[:, 0]
            searching, wanted, slot = searching[left], wanted[left], slot[left] + _WINDOW
        return found

    def _insert(self, keys: Tensor, begin: int, end: int) -> None:
        """Insert the keys of some positions, which are not in the table."""
        table, last = self._table, len(self._table) - 1
        slot = self._home(keys[begin:end], table)
        # Position + 1, since 0 marks a free slot.
        entry = torch.arange(begin + 1, end + 1, dtype=table.dtype, device=table.device)
        while len(entry):
            window = (slot[:, None] + self._window) & last
            free = table[window] == 0
            some = free.any(1)
            first = torch.gather(window, 1, free.to(torch.uint8).argmax(1, keepdim=True))[:, 0]
            # Of several keys for one slot any gets it, and the others search on: positions do not depend on slots.
            table[first[some]] = entry[some]
            left = (table[first] != entry).nonzero()[:, 0]
            slot, entry = torch.where(some, slot, slot + _WINDOW)[left], entry[left]


class CompiledKeyIndex(KeyIndex):
    """The same on the CPU, by compiled loops."""

    def _find(self, table: Tensor, keys: Tensor, wanted: Tensor) -> Tensor:
        found = torch.empty_like(wanted)
        _find_keys(table.numpy(), keys.numpy(), wanted.numpy(), found.numpy())
        return found

    def _insert(self, keys: Tensor, begin: int, end: int) -> None:
        _insert_keys(self._table.numpy(), keys.numpy(), begin, end)


def new_index(device: torch.device) -> KeyIndex:
    """Return the fastest index on a device."""
    return KeyIndex(device) if tensor_device(device) else CompiledKeyIndex(device)


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _find_keys(table: npt.NDArray[Any], keys: Integers, wanted: Integers, found: Integers) -> None:
    last = len(table) - 1
    for i in range(len(wanted)):
        key = wanted[i]
        slot, found[i] = (((key ^ (key >> _DOWN)) * _SPREAD) >> _UPPER) & last, -1
        while table[slot] != 0:
            if keys[table[slot] - 1] == key:
                found[i] = table[slot] - 1
                break
            slot = (slot + 1) & last


@nb.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _insert_keys(table: npt.NDArray[Any], keys: Integers, begin: int, end: int) -> None:
    last = len(table) - 1
    for i in range(begin, end):
        slot = (((keys[i] ^ (keys[i] >> _DOWN)) * _SPREAD) >> _UPPER) & last
        while table[slot] != 0:
            slot = (slot + 1) & last
        table[slot] = i + 1
