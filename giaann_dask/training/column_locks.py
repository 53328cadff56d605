"""Lock the concept columns of sequences that train at the same time, as published.

Increments are sums of integers, so no lock is needed for an exact network: locks are kept to measure what they cost.
They belong to the process that submits the tasks, and are held from before a sequence is counted until its increments
are in their regions. So a lock spans several tasks of several workers, and the loss of any of these neither releases
it early nor leaves it behind: Dask runs the lost tasks again, then it is released. `distributed.MultiLock` is held by
one task, and for ever where its worker is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable


class ColumnLocks:
    """Locks of concept columns, each held by one sequence at a time.

    Attributes
    ----------
    waits : int
        Sequences that had to wait for a column.
    seconds : float
        How long they waited, together.
    """

    def __init__(self) -> None:
        self._held: set[int] = set()
        self.waits = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        """Return the number of columns that are locked."""
        return len(self._held)

    def acquire(self, columns: Iterable[int], finish_oldest: Callable[[], None]) -> None:
        """Lock all columns of a sequence at once, so that no two sequences can wait for each other.

        Parameters
        ----------
        columns : iterable of int
            Its concept columns.
        finish_oldest : callable
            Waits, with a timeout, for the oldest sequence that trains, and releases its columns.
        """
        wanted, started = frozenset(columns), time.perf_counter()
        waits = not self._held.isdisjoint(wanted)
        while not self._held.isdisjoint(wanted):
            finish_oldest()
        if waits:
            self.waits += 1
            self.seconds += time.perf_counter() - started
        self._held |= wanted

    def release(self, columns: Iterable[int]) -> None:
        """Release columns that a sequence has locked."""
        self._held.difference_update(columns)
