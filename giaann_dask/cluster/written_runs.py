"""Keep runs that a worker has written in its memory until the task that continues from the store takes them over.

After a commit, the lineage of a run begins at the store, so that it can be computed again without the text. The task
that stands for it would read it from the store, though its bytes are still in the memory of its region's owner. So
the task that writes a run leaves it here, and the task that opens it on the same worker takes it. What is not here, as
on another worker or after a restart, is read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from giaann_dask.lazy import LazyModule
from giaann_dask.runs.packing import PackedRegionRun

if TYPE_CHECKING:
    from giaann_dask.cluster import memory_budget
else:
    # Opening regions in a process without a cluster does not import Dask's scheduler.
    memory_budget = LazyModule("giaann_dask.cluster.memory_budget")

# Of the data budget of a worker: runs that are kept here cannot be spilled.
WRITTEN_SHARE = 1 / 4


@dataclass
class WrittenRunCache:
    """Runs that were written in one attempt to commit.

    Attributes
    ----------
    taken, missed : int
        Runs that were taken over from memory since the process began, and runs that were not here.
    """

    taken: int = 0
    missed: int = 0
    _attempt: str = ""
    _runs: dict[str, PackedRegionRun] = field(default_factory=dict)
    _nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, attempt: str, identity: str, packed: PackedRegionRun) -> None:
        """Keep a run that was written, if there is memory for it; forget those of other attempts.

        Parameters
        ----------
        attempt : str
            Name of the attempt to commit; no two are the same. Empty if nothing will be opened after it.
        identity : str
            Name of the run.
        packed : PackedRegionRun
            The run.
        """
        limit = memory_budget.worker_memory_limit()
        nbytes = packed.nbytes
        with self._lock:
            if attempt != self._attempt:
                self._attempt, self._runs, self._nbytes = attempt, {}, 0
            if attempt and (not limit or self._nbytes + nbytes <= WRITTEN_SHARE * memory_budget.data_budget(limit)):
                self._runs[identity] = packed
                self._nbytes += nbytes

    def take(self, attempt: str, identity: str) -> PackedRegionRun | None:
        """Return a run of an attempt and forget it; None if it is not here."""
        with self._lock:
            found = self._runs.pop(identity, None) if attempt and attempt == self._attempt else None
            if found is None:
                self.missed += 1
            else:
                self.taken += 1
                self._nbytes -= found.nbytes
        return found


WRITTEN = WrittenRunCache()
"""The runs that this process keeps."""
