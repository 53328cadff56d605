"""Hold the rows of a batch of sequences in memory that compiled code can address.

The rows of distinct neurons are fetched together from any source of rows. A table has their addresses and segments,
and rows that no sequence needs any more are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.models.columns.v1.tables import NONE, RowTable
from giaann_dask.rows.source import RowSource, require_layout
from giaann_dask.runs.run import Row


class BatchRows:
    """Rows in use, and as many used before as a limit allows.

    Parameters
    ----------
    source : RowSource
        Where rows come from.
    segments, branches : int
        Of the network.
    limit_bytes : int
        Bytes of target keys after which those not in use are let go.

    Attributes
    ----------
    table : RowTable
        Addresses and segments by a row's place.
    wanted, fetched, fetched_bytes : int
        Rows asked of this, and of them those asked of the source, with the bytes of their arrays.
    moves : int
        How often rows were let go, which gives others new places.
    """

    def __init__(self, source: RowSource, segments: int, branches: int, limit_bytes: int) -> None:
        self._source, self._branches = source, branches
        self._limit = self._limit_now = limit_bytes
        # The key after the last segment's may not fit into 64 bits; the one before it does.
        self._starts = np.arange(segments, dtype=np.int64) << SEGMENT_SHIFT
        self._place: dict[int, int] = {}
        self._target: list[Integers] = []
        self._bytes = 0
        self.table = RowTable(np.zeros(64, np.int64), np.zeros((64, segments + 1), np.int64))
        self.wanted = self.fetched = self.fetched_bytes = self.moves = 0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self._target)

    def target(self, place: int) -> Integers:
        """Return the target keys of a row, ascending, int64."""
        return self._target[place]

    def places(self, neurons: Integers) -> Integers:
        """Return the places of the rows of neurons, `NONE` for those without connections.

        Parameters
        ----------
        neurons : ndarray
            Neuron keys, int64; a neuron may be there more than once.
        """
        named = neurons.tolist()
        missing = [neuron for neuron in dict.fromkeys(named) if neuron not in self._place]
        self.wanted += len(named)
        if missing:
            for neuron, row in self._source.rows(missing).items():
                self._add(neuron, row)
        return np.array([self._place[neuron] for neuron in named], np.int64)

    def ask_ahead(self, neurons: Iterable[int]) -> None:
        """Request the rows of neurons that are not held, without waiting for them."""
        missing = [neuron for neuron in dict.fromkeys(neurons) if neuron not in self._place]
        if missing:
            self._source.prefetch(missing)

    def let_go(self, used: Integers) -> Integers | None:
        """Drop unused rows when there are too many.

        Parameters
        ----------
        used : ndarray
            Places of the rows in use, int64; may name `NONE` and places more than once.

        Returns
        -------
        ndarray or None
            The new place of every row by its old one, or None when all are as they were.
        """
        if self._bytes <= self._limit_now:
            return None
        self.moves += 1
        kept = np.unique(used)
        kept = kept[kept >= 0]
        moved = np.full(len(self._target), NONE, np.int64)
        moved[kept] = np.arange(len(kept))
        self._target = [self._target[place] for place in kept.tolist()]
        self.table.address[: len(kept)] = self.table.address[kept]
        self.table.bounds[: len(kept)] = self.table.bounds[kept]
        self._place = {n: int(moved[p]) for n, p in self._place.items() if p >= 0 and moved[p] >= 0}
        self._bytes = sum(target.nbytes for target in self._target)
        # Those in use may alone pass the limit; then some more are held, so that this stays seldom.
        self._limit_now = max(self._limit, 2 * self._bytes)
        return moved

    def _add(self, neuron: int, row: Row | None) -> None:
        self.fetched += 1
        if row is None or not len(row.target):
            self._place[neuron] = NONE
            return
        target, place = np.ascontiguousarray(row.target, np.int64), len(self._target)
        require_layout(target, len(self._starts), self._branches)
        self.fetched_bytes += target.nbytes + row.strength.nbytes
        if place == len(self.table.address):
            address, bounds = self.table
            self.table = RowTable(np.concatenate([address, address]), np.concatenate([bounds, bounds]))
        self._place[neuron] = place
        self._target.append(target)
        self._bytes += target.nbytes
        self.table.address[place] = target.__array_interface__["data"][0]
        self.table.bounds[place, :-1] = target.searchsorted(self._starts)
        self.table.bounds[place, -1] = len(target)
