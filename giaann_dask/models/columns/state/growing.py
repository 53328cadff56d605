"""Keep a tensor whose first axis grows in place, without copying what is there.

A tensor of more than a mebibyte is in anonymous mapped memory, which Linux enlarges by moving its pages to other
addresses, in a time that hardly depends on their number. Rows that were never written take no memory. Where memory
cannot be enlarged so, as on other systems, the rows are copied to a larger tensor.
"""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.device import torch

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_ROWS = 1 << 7
# Below it a copy takes less time than the calls of the operating system.
_MAPPED_BYTES = 1 << 20


class GrowingTensor:
    """Tensor that rows are appended to.

    Parameters
    ----------
    dtype : torch.dtype
        Of its values.
    device : torch.device
        Where it is.
    row : tuple of int
        Shape of a row.

    Attributes
    ----------
    values : Tensor
        The rows, and reserved ones with any values; of shape ``(rows or more, *row)``. While a caller keeps it or a
        view of it, a larger one is a copy, and the caller's has the values of before.

    Examples
    --------
    >>> squares = GrowingTensor(torch.int64, torch.device("cpu"))
    >>> squares.reserve(0, 1000)
    >>> squares.values[:3] = torch.tensor([0, 1, 4])
    >>> squares.reserve(3, 1000000)
    >>> squares.values[:3]
    tensor([0, 1, 4])
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, row: tuple[int, ...] = ()) -> None:
        self._row, self._mapping = row, _Mapping()
        self.values = torch.empty((_FIRST_ROWS, *row), dtype=dtype, device=device)

    def reserve(self, used: int, needed: int) -> None:
        """Reserve memory for a number of rows; the first of them, which are used, stay as they are."""
        if needed <= len(self.values):
            return
        rows = max(needed, 2 * len(self.values))
        dtype, nbytes = self.values.dtype, rows * prod(self._row) * self.values.element_size()
        if nbytes < _MAPPED_BYTES:
            larger = self.values.new_empty((rows, *self._row))
            larger[:used] = self.values[:used]
            self.values = larger
            return
        before = None if self._mapping.nbytes else self.values[:used]
        # Mapped memory that a tensor still has cannot be enlarged.
        self.values = self.values[:0].clone()
        self.values = self._mapping.enlarged(nbytes).view(dtype).view((rows, *self._row))
        if before is not None:
            self.values[:used] = before

    def copy(self, used: int) -> GrowingTensor:
        """Return a tensor with the same first rows, which are used, that grows independently."""
        other = type(self)(self.values.dtype, self.values.device, self._row)
        other.reserve(0, used)
        other.values[:used] = self.values[:used]
        return other


class _Mapping:
    """Bytes of anonymous memory that can be enlarged."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.nbytes = 0

    def enlarged(self, nbytes: int) -> Tensor:
        """Return a tensor of more bytes, of which the first are those that there are."""
        if self._memory is None:
            self._memory = _mapped(nbytes)
        else:
            try:
                self._memory.resize(nbytes)
            except (BufferError, OSError, SystemError, ValueError):
                # A tensor is still used, or the system has no such call.
                before, self._memory = self._memory, _mapped(nbytes)
                np.frombuffer(self._memory, np.uint8)[: self.nbytes] = np.frombuffer(before, np.uint8)
        self.nbytes = nbytes
        return torch.from_numpy(np.frombuffer(self._memory, np.uint8))


def _mapped(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Entries are looked up all over it: large pages need fewer translations of addresses.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
