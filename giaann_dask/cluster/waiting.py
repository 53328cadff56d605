"""Keys of tasks, and bounded waiting for their results.

Covers: deterministic keys, waiting with a limit, and translating a cluster's failures into ours.
Does not cover: what is computed, and how a cluster is reached (`connecting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
from dask.base import tokenize
from distributed import Future, TimeoutError, as_completed
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from giaann_dask.errors import ClusterError

DEFAULT_TIMEOUT_S = 1800.0


def task_key(name: str, *identity: Any) -> str:
    """Return the key of a task: its name, as the dashboard shows it, and what determines it.

    Examples
    --------
    >>> task_key("connect", "net", 3) == task_key("connect", "net", 3)
    True
    """
    return f"{name}-{tokenize(*identity)}"


def timeout_s() -> float:
    """Return how long one result is waited for, in seconds (``giaann.timeout-s`` in Dask's configuration)."""
    return float(dask.config.get("giaann.timeout-s", DEFAULT_TIMEOUT_S))


def result(future: Future) -> Any:
    """Return a future's result, waiting for a bounded time.

    Raises
    ------
    ClusterError
        If the cluster lost it or did not finish in time. Errors of the task are raised as they are.
    """
    return results([future])[0]


def results(futures: Sequence[Future]) -> list[Any]:
    """Return the results of several futures, in order, waiting for a bounded time.

    Raises
    ------
    ClusterError
        If the cluster lost one or did not finish in time.
    """
    limit = timeout_s()
    try:
        return [future.result(timeout=limit) for future in futures]
    except TimeoutError as error:
        raise ClusterError(
            f"a task has not finished within {limit:g} seconds",
            "an answer in time",
            "raise giaann.timeout-s in Dask's configuration if the work is that long",
        ) from error
    except (KilledWorker, CommClosedError) as error:
        raise ClusterError(
            f"the cluster lost a task: {str(error).splitlines()[0]}",
            "workers that stay alive",
            "look at the workers' logs and memory, then run the same command again",
        ) from error


def wait_all(futures: Sequence[Future]) -> None:
    """Wait, for a bounded time, until all futures are finished; raise the first error."""
    limit = timeout_s()
    try:
        for future in as_completed(list(futures), timeout=limit, raise_errors=False):
            if future.status == "error":
                results([future])
    except TimeoutError as error:
        raise ClusterError(f"tasks have not finished within {limit:g} seconds", "an end in time") from error
