"""Translate Dask's errors of lost schedulers and workers.

Nothing of Dask is imported for it: where such an error is raised, it is imported already.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from giaann_dask.errors import ClusterError, GiaannError

# Reasons that Dask gives for cancelled tasks.
_CONNECTION_LOST, _RESTARTED, _UNKNOWN = "scheduler-connection-lost", "scheduler-restart", "unknown"


@contextmanager
def lost_cluster() -> Iterator[None]:
    """Translate Dask's errors of lost schedulers and workers; other errors pass unchanged.

    Raises
    ------
    ClusterError
        If the client is closed, the scheduler is lost, workers died while running a task, or there is no worker.
    """
    try:
        yield
    except BaseException as error:
        translated = _translated(error) if "distributed" in sys.modules else None
        if translated is None:
            raise
        raise translated from error


def _translated(error: BaseException) -> ClusterError | None:
    """Return the error for a lost cluster, None for any other error."""
    from distributed import CancelledError
    from distributed.client import ClosedClientError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker, NoValidWorkerError

    match error:
        case ClosedClientError():
            return closed_client()
        case CancelledError() if reasons := _reasons(error) - {_CONNECTION_LOST, _UNKNOWN}:
            return ClusterError(
                f"{'' if _RESTARTED in reasons else 'tasks were cancelled, as where '}the workers were restarted",
                "workers that keep their results, and no client.restart() or client.cancel() meanwhile",
                "what was committed is kept; run the same command again to go on",
            )
        case CancelledError() | CommClosedError():
            return ClusterError(
                "the connection to the scheduler is lost",
                "a scheduler that stays alive",
                "what was committed is kept; start a scheduler and run the same command again to go on",
            )
        case KilledWorker():
            return ClusterError(
                f"the cluster lost a task: {str(error).splitlines()[0]}",
                "workers that stay alive",
                "look at the workers' logs and memory, then run the same command again",
            )
        case NoValidWorkerError():
            return ClusterError(
                "no worker was there for too long", "workers", "start workers and run the same command again to go on"
            )
    return None


def _reasons(error: BaseException) -> set[str]:
    """Return the reasons that Dask gives for cancelled futures; none where it gives none."""
    groups = getattr(error, "error_groups", [error])
    return {reason for each in groups if (reason := getattr(each, "reason", None))}


def closed_client() -> ClusterError:
    """Return the error for a client that was closed, or that closed itself when it lost its scheduler."""
    return ClusterError(
        "the client is closed",
        "one that is connected to a scheduler",
        "connect again (if the scheduler has ended, start one first); what was committed is kept",
    )


@contextmanager
def attempt() -> Iterator[None]:
    """Release the futures of failed tasks after an error, so that a retry is possible; translate as `lost_cluster`.

    The traceback of an error references futures of tasks that failed. The scheduler would keep
    these, and a retry, whose tasks have the same keys, would get the old failure.
    """
    try:
        with lost_cluster():
            yield
    except GiaannError as error:
        traceback.clear_frames(error.__traceback__)
        raise
