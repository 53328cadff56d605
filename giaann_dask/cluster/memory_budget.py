"""Compute the memory budget of a worker for task results, and set the thresholds at which it spills.

The allocator is configured in `allocator`; `giaann_dask.training.regions` uses the budgets.

Dask lets data take 0.6 of the limit, however much the process itself takes. With a small limit that leaves no memory
for the running task: the imported modules take 270 MB, and compaction of a region decodes it twice. Such a worker
was killed by its nanny repeatedly, each time with all that was not committed, and training did not finish.
"""

from __future__ import annotations

from distributed import Worker
from distributed.spill import SpillBuffer

# Of a worker that has not run a task yet, 267 MiB were measured.
PROCESS_BYTES = 300 << 20
# Dask's own share of data, where the limit is large enough.
_DATA_SHARE = 0.6
# For the running task: it decodes the halves of a region, adds them up into as much again, and packs that.
_TASK_SHARE = 0.3
_LARGEST_TASK = 5 << 28
_REGION_SHARE = 1 / 20
# A nanny kills the worker beyond 0.95; memory grows between two checks.
_USED_SHARE = 0.9
# Data always gets this share, or nothing could stay in memory.
_LEAST_SHARE = 0.05
# By the resident size of the process: when to stop spilling, to start spilling, and to pause.
_NARROW = {"memory_target_fraction": 0.75, "memory_spill_fraction": 0.85, "memory_pause_fraction": 0.9}


def data_budget(limit: int, process_bytes: int = PROCESS_BYTES) -> int:
    """Return how many bytes of a worker's memory limit results of tasks may take.

    Parameters
    ----------
    limit : int
        Memory limit of the worker, in bytes.
    process_bytes : int
        Memory of the process without any data.

    Examples
    --------
    >>> data_budget(16 << 30) == int(0.6 * (16 << 30)), data_budget(700 << 20) >> 20
    (True, 120)
    """
    remaining = _USED_SHARE * limit - min(_TASK_SHARE * limit, _LARGEST_TASK) - process_bytes
    return int(max(min(_DATA_SHARE * limit, remaining), _LEAST_SHARE * limit))


def region_budget(limit: int) -> int:
    """Return how many bytes the decoded runs of a region may take, so that a worker can add them up.

    Parameters
    ----------
    limit : int
        Memory limit of the worker, in bytes.

    Examples
    --------
    >>> region_budget(5 << 30) >> 20
    256
    """
    return int(_REGION_SHARE * limit)


def spill_within_budget(worker: Worker) -> None:
    """Lower the spill thresholds of a worker whose limit leaves less memory for data than Dask assumes.

    A configured ``distributed.worker.memory.target`` is not changed.
    """
    manager, data = worker.memory_manager, worker.data
    limit = manager.memory_limit
    if not limit or not isinstance(data, SpillBuffer) or data.n != int(_DATA_SHARE * limit):
        return
    budget = data_budget(limit, worker.monitor.get_process_memory())
    if budget < data.n:
        data.n = budget
        for name, share in _NARROW.items():
            setattr(manager, name, share)
