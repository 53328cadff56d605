"""Connect to Dask clusters, assign roles and regions to workers, and wait for tasks with a timeout.

The modules are imported on first use, so that options are validated without importing Dask's scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.lazy import lazy_exports

if TYPE_CHECKING:
    from giaann_dask.cluster.cluster_options import ClusterOptions
    from giaann_dask.cluster.connecting import connect, prepare, start_cluster
    from giaann_dask.cluster.memory_budget import data_budget, driver_allocator, region_budget, trim_memory
    from giaann_dask.cluster.roles import Roles, WorkerMemory, assign_regions, directed, roles_of
    from giaann_dask.cluster.waiting import (
        attempt,
        beside_tasks,
        current_client,
        find_client,
        query_scheduler,
        require_synchronous,
        result,
        results,
        send,
        task_key,
        timeout_s,
        wait_all,
    )

_MODULES = {
    "ClusterOptions": "giaann_dask.cluster.cluster_options",
    "Roles": "giaann_dask.cluster.roles",
    "WorkerMemory": "giaann_dask.cluster.roles",
    "assign_regions": "giaann_dask.cluster.roles",
    "attempt": "giaann_dask.cluster.waiting",
    "connect": "giaann_dask.cluster.connecting",
    "beside_tasks": "giaann_dask.cluster.waiting",
    "current_client": "giaann_dask.cluster.waiting",
    "find_client": "giaann_dask.cluster.waiting",
    "data_budget": "giaann_dask.cluster.memory_budget",
    "directed": "giaann_dask.cluster.roles",
    "driver_allocator": "giaann_dask.cluster.memory_budget",
    "prepare": "giaann_dask.cluster.connecting",
    "query_scheduler": "giaann_dask.cluster.waiting",
    "require_synchronous": "giaann_dask.cluster.waiting",
    "region_budget": "giaann_dask.cluster.memory_budget",
    "result": "giaann_dask.cluster.waiting",
    "results": "giaann_dask.cluster.waiting",
    "roles_of": "giaann_dask.cluster.roles",
    "send": "giaann_dask.cluster.waiting",
    "start_cluster": "giaann_dask.cluster.connecting",
    "task_key": "giaann_dask.cluster.waiting",
    "timeout_s": "giaann_dask.cluster.waiting",
    "trim_memory": "giaann_dask.cluster.memory_budget",
    "wait_all": "giaann_dask.cluster.waiting",
    "worker_memory_limit": "giaann_dask.cluster.memory_budget",
}

__all__ = [
    "ClusterOptions",
    "Roles",
    "WorkerMemory",
    "query_scheduler",
    "require_synchronous",
    "attempt",
    "connect",
    "beside_tasks",
    "current_client",
    "find_client",
    "data_budget",
    "assign_regions",
    "directed",
    "driver_allocator",
    "prepare",
    "region_budget",
    "trim_memory",
    "result",
    "results",
    "roles_of",
    "send",
    "start_cluster",
    "task_key",
    "timeout_s",
    "wait_all",
    "worker_memory_limit",
]

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
