"""Connect to Dask clusters, assign roles and regions to workers, and wait for tasks with a timeout."""

from giaann_dask.cluster.connecting import connect, prepare, start_cluster
from giaann_dask.cluster.memory_budget import data_budget, driver_allocator, region_budget, trim_memory
from giaann_dask.cluster.options import ClusterOptions
from giaann_dask.cluster.roles import Roles, WorkerMemory, assign_regions, directed, roles_of
from giaann_dask.cluster.waiting import attempt, query_scheduler, result, results, task_key, timeout_s, wait_all

__all__ = [
    "ClusterOptions",
    "Roles",
    "WorkerMemory",
    "query_scheduler",
    "attempt",
    "connect",
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
    "start_cluster",
    "task_key",
    "timeout_s",
    "wait_all",
]
