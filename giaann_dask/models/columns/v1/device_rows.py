"""Copy the rows of a batch to a device, and search in them.

The device has a copy of what `v1.cached_rows` holds. Searches find what a row reaches in the last segment, and which of
many rows reach which of many neurons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.device import torch
from giaann_dask.keys import BRANCH_MASK, NEURON_MASK
from giaann_dask.models.columns.v1.cached_rows import BatchRows
from giaann_dask.rows.source import as_tensor
from giaann_dask.spec import BRANCH_BITS

if TYPE_CHECKING:
    from torch import Tensor


class DeviceRows:
    """Copies of held rows on a device, all in one tensor.

    Parameters
    ----------
    device : torch.device
        Where they are.
    segments : int
        Of the network.
    """

    def __init__(self, device: torch.device, segments: int) -> None:
        self._device = device
        self._segments, self._moves = segments, -1
        self._rows, self._size = 0, 0
        self._target, self._bounds = self._nothing()

    def follow(self, held: BatchRows) -> None:
        """Copy the rows that were added since the last call."""
        if held.moves != self._moves:
            self._moves = held.moves
            self._rows, self._size = 0, 0
            self._target, self._bounds = self._nothing()
        new = [held.target(place) for place in range(self._rows, len(held))]
        if not new:
            return
        size = sum(map(len, new))
        if self._size + size > len(self._target):
            grown = self._target.new_empty(2 * (self._size + size))
            grown[: self._size] = self._target[: self._size]
            self._target = grown
        self._target[self._size : self._size + size] = as_tensor(np.concatenate(new), self._device)
        begins = self._size + np.cumsum([0, *map(len, new[:-1])])
        bounds = as_tensor(held.table.bounds[self._rows : len(held)] + begins[:, None], self._device)
        self._bounds = bounds if not self._rows else torch.cat([self._bounds, bounds])
        self._size, self._rows = self._size + size, len(held)

    def connected(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the neurons that rows reach in the last segment.

        Parameters
        ----------
        row : Tensor
            Places of rows, negative for none, int64, shape ``(rows,)``.

        Returns
        -------
        place, neuron : Tensor
            Which of the rows, ascending, and neuron keys, ascending and distinct for each; int64.
        """
        begin, end = self._slice(row, -2), self._slice(row, -1)
        counts = end - begin
        place = torch.repeat_interleave(torch.arange(len(row), device=self._device), counts)
        before = counts.cumsum(0) - counts
        at = torch.arange(len(place), device=self._device) + (begin - before)[place]
        neuron = (self._target[at] >> BRANCH_BITS) & NEURON_MASK
        first = torch.ones_like(place, dtype=torch.bool)
        first[1:] = (neuron[1:] != neuron[:-1]) | (place[1:] != place[:-1])
        # One wait for their number; an index by a mask waits each time.
        kept = first.nonzero()[:, 0]
        return place[kept], neuron[kept]

    def reached(self, row: Tensor, key: Tensor, branch: Tensor) -> Tensor:
        """Return which rows have connections to which neurons.

        Parameters
        ----------
        row : Tensor
            Places of rows, negative for none, int64, shape ``(steps, neurons)``.
        key : Tensor
            Target keys on branch 0, int64, shape ``(segments, neurons)``.
        branch : Tensor
            Branches, from 0.

        Returns
        -------
        Tensor
            bool, shape ``(steps, segments, neurons, branches)``.
        """
        begin, end = (self._slices(row, key, after) for after in (0, 1))
        at, high = begin, end
        last, sought = max(len(self._target) - 1, 0), key[None]
        for _ in range(int((end - begin).max()).bit_length()):
            middle = (at + high) >> 1
            searching = at < high
            less = searching & (self._target[middle.clamp_max(last)] < sought)
            at = torch.where(less, middle + 1, at)
            high = torch.where(searching & ~less, middle, high)
        reached = torch.zeros((*at.shape, len(branch)), dtype=torch.bool, device=self._device)
        # All branches of a neuron follow its first.
        for further in range(len(branch)):
            entry = self._target[(at + further).clamp_max(last)]
            its = (at + further < end) & (entry >> BRANCH_BITS == sought >> BRANCH_BITS)
            reached |= its[..., None] & ((entry & BRANCH_MASK)[..., None] == branch)
        return reached

    def _slices(self, row: Tensor, key: Tensor, after: int) -> Tensor:
        """Return where the segments of rows begin, or end, shape ``(steps, segments, neurons)``."""
        segment = torch.arange(len(key), device=self._device)[None, :, None] + after
        bounds = self._bounds[row.clamp_min(0)[:, None, :], segment]
        return torch.where(row[:, None, :] < 0, 0, bounds)

    def _slice(self, row: Tensor, column: int) -> Tensor:
        return torch.where(row < 0, 0, self._bounds[row.clamp_min(0), column])

    def _nothing(self) -> tuple[Tensor, Tensor]:
        """Return one unused entry and row, so that searches never index an empty table."""
        return (
            torch.zeros(1, dtype=torch.int64, device=self._device),
            torch.zeros((1, self._segments + 1), dtype=torch.int64, device=self._device),
        )
