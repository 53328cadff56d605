"""Connect to Dask clusters, assign roles and regions to workers, and wait for tasks with a timeout.

The modules are imported on first use, so that options are validated without importing Dask's scheduler.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from giaann_dask.lazy import lazy_exports
from giaann_dask.store.run_sources import RunSource, find_runs_by

if TYPE_CHECKING:
    from giaann_dask.cluster.cluster_options import ClusterOptions as ClusterOptions
    from giaann_dask.cluster.connecting import connect as connect
    from giaann_dask.cluster.connecting import prepare as prepare
    from giaann_dask.cluster.connecting import start_cluster as start_cluster
    from giaann_dask.cluster.memory_budget import data_budget as data_budget
    from giaann_dask.cluster.memory_budget import driver_allocator as driver_allocator
    from giaann_dask.cluster.memory_budget import region_budget as region_budget
    from giaann_dask.cluster.memory_budget import trim_memory as trim_memory
    from giaann_dask.cluster.roles import Roles as Roles
    from giaann_dask.cluster.roles import WorkerMemory as WorkerMemory
    from giaann_dask.cluster.roles import assign_regions as assign_regions
    from giaann_dask.cluster.roles import directed as directed
    from giaann_dask.cluster.roles import roles_of as roles_of
    from giaann_dask.cluster.waiting import attempt as attempt
    from giaann_dask.cluster.waiting import beside_tasks as beside_tasks
    from giaann_dask.cluster.waiting import current_client as current_client
    from giaann_dask.cluster.waiting import find_client as find_client
    from giaann_dask.cluster.waiting import query_scheduler as query_scheduler
    from giaann_dask.cluster.waiting import require_synchronous as require_synchronous
    from giaann_dask.cluster.waiting import result as result
    from giaann_dask.cluster.waiting import results as results
    from giaann_dask.cluster.waiting import send as send
    from giaann_dask.cluster.waiting import task_key as task_key
    from giaann_dask.cluster.waiting import timeout_s as timeout_s
    from giaann_dask.cluster.waiting import wait_all as wait_all
    from giaann_dask.store.commits import CommitReader

_HOMES = {
    "cluster_options": ("ClusterOptions",),
    "connecting": ("connect", "prepare", "start_cluster"),
    "memory_budget": ("data_budget", "driver_allocator", "region_budget", "trim_memory"),
    "roles": ("Roles", "WorkerMemory", "assign_regions", "directed", "roles_of"),
    "waiting": (
        *("attempt", "beside_tasks", "current_client", "find_client", "query_scheduler", "require_synchronous"),
        *("result", "results", "send", "task_key", "timeout_s", "wait_all"),
    ),
}
_MODULES = {name: f"giaann_dask.cluster.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULES)

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)


def _held_runs(reader: CommitReader) -> RunSource | None:
    """Return the runs of a commit that workers hold; None in a process without a cluster."""
    if "distributed" not in sys.modules:
        return None
    from giaann_dask.cluster.held_runs import find_held_runs

    return find_held_runs(reader)


find_runs_by(_held_runs)
