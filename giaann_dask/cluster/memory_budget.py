"""How much of a worker's memory limit is room for data, and when a worker with little room spills.

Covers: the room beside the process itself and the task that it runs, what may be made of it, and telling
a worker. Does not cover: what training does with the room (`giaann_dask.training`) and the allocator
(`allocation`).

Dask lets data take 0.6 of the limit, whatever else the process holds. Of a small limit that leaves nothing for the
task that runs: what the process has imported takes 270 MB, and compaction of a region decodes it twice. Such a worker
was killed by its nanny again and again, each time with all that was not committed, and training came to no end.
"""

from __future__ import annotations

from distributed import Worker
from distributed.spill import SpillBuffer

# Of a worker that has not run a task yet, 267 MiB were measured.
PROCESS_BYTES = 300 << 20
# Dask's own share of data, where there is room.
_DATA_SHARE = 0.6
# For the task that runs: it decodes the halves of a region, adds them up into as much again, and packs that.
_TASK_SHARE = 0.3
_LARGEST_TASK = 5 << 28
_REGION_SHARE = 1 / 20
# A nanny kills beyond 0.95; memory grows between two looks.
_USED_SHARE = 0.9
# Data never gets less than this, or nothing would be kept at all.
_LEAST_SHARE = 0.05
# By the resident size of the process: when to stop spilling, to begin, and to take no more tasks.
_NARROW = {"memory_target_fraction": 0.75, "memory_spill_fraction": 0.85, "memory_pause_fraction": 0.9}


def data_budget(limit: int, process_bytes: int = PROCESS_BYTES) -> int:
    """Return how many bytes of a worker's memory limit results of tasks may take.

    Parameters
    ----------
    limit : int
        Memory limit of the worker, in bytes.
    process_bytes : int
        What the process takes without any data.

    Examples
    --------
    >>> data_budget(16 << 30) == int(0.6 * (16 << 30)), data_budget(700 << 20) >> 20
    (True, 120)
    """
    beside = _USED_SHARE * limit - min(_TASK_SHARE * limit, _LARGEST_TASK) - process_bytes
    return int(max(min(_DATA_SHARE * limit, beside), _LEAST_SHARE * limit))


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
    """Let a worker whose limit leaves less room than Dask assumes spill before it is killed.

    What was configured otherwise (``distributed.worker.memory.target``) is left as it is.
    """
    manager, data = worker.memory_manager, worker.data
    limit = manager.memory_limit
    if not limit or not isinstance(data, SpillBuffer) or data.n != int(_DATA_SHARE * limit):
        return
    room = data_budget(limit, worker.monitor.get_process_memory())
    if room < data.n:
        data.n = room
        for name, share in _NARROW.items():
            setattr(manager, name, share)
