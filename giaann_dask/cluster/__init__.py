"""The way to Dask: connecting to a cluster, its roles, and bounded waiting for what runs there."""

from giaann_dask.cluster.connecting import connect, start_cluster
from giaann_dask.cluster.options import ClusterOptions
from giaann_dask.cluster.roles import Roles, directed, roles_of
from giaann_dask.cluster.waiting import ask_scheduler, attempt, result, results, task_key, timeout_s, wait_all

__all__ = [
    "ClusterOptions",
    "Roles",
    "ask_scheduler",
    "attempt",
    "connect",
    "directed",
    "result",
    "results",
    "roles_of",
    "start_cluster",
    "task_key",
    "timeout_s",
    "wait_all",
]
