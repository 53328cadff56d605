"""The one way to a Dask cluster, and bounded waiting for what runs there.

Covers: connecting to a running scheduler, starting workers on this machine, waiting for futures
with a limit, and translating a cluster's failures into ours. Does not cover: what is computed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
from dask.base import tokenize
from distributed import Client, Future, TimeoutError, as_completed
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from giaann_dask.dask_types import register
from giaann_dask.errors import ClusterError, OptionError

DEFAULT_TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where tasks run; describes a machine, so it is never stored with a network.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, such as ``tcp://host:8786``.
    workers : int, optional
        Worker processes to start on this machine when there is no scheduler; 0 runs everything
        in this process.
    threads : int
        Threads of each worker.
    dashboard : str, optional
        Address of the dashboard, such as ``:8787``; none by default.
    connect_timeout_s : float
        Seconds to wait for a scheduler.

    Raises
    ------
    OptionError
        If both or impossible values are given.
    """

    scheduler: str | None = None
    workers: int | None = None
    threads: int = 1
    dashboard: str | None = None
    connect_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.workers is not None:
            raise OptionError(
                f"both a scheduler ({self.scheduler}) and workers ({self.workers}) were given",
                "one of them",
                "leave one out",
            )
        if self.workers is not None and self.workers < 0:
            raise OptionError(f"workers is {self.workers}", "0 or more", "choose another number")
        if self.threads < 1:
            raise OptionError(f"threads is {self.threads}", "1 or more", "choose another number")


def connect(
    scheduler: str | None = None, *, workers: int | None = None, options: ClusterOptions | None = None
) -> Client:
    """Connect to a Dask cluster, starting one on this machine when no scheduler is named.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler.
    workers : int, optional
        Worker processes to start; as many as there are processors, at most 4, by default.
    options : ClusterOptions, optional
        All options at once, instead of the two above.

    Returns
    -------
    distributed.Client
        Closing it, or leaving its ``with`` block, also stops the workers that were started.

    Raises
    ------
    ClusterError
        If the scheduler does not answer in time.
    """
    chosen = options or ClusterOptions(scheduler=scheduler, workers=workers)
    register()
    if chosen.scheduler is not None:
        return _join(chosen)
    local: dict[str, Any] = {
        "n_workers": _default_workers() if chosen.workers is None else max(chosen.workers, 1),
        "threads_per_worker": chosen.threads,
        "processes": chosen.workers != 0,
        # Without a wish for a dashboard, the scheduler's HTTP server stays on this machine, on any port.
        "dashboard_address": chosen.dashboard or "127.0.0.1:0",
        "silence_logs": logging.CRITICAL,
    }
    if local["processes"]:
        local["preload"] = ["giaann_dask.worker_setup"]
    with warnings.catch_warnings():
        # A busy dashboard port is announced by Dask with another port; nothing the user must act on.
        warnings.simplefilter("ignore")
        return Client(**local)


def _join(options: ClusterOptions) -> Client:
    try:
        return Client(options.scheduler, timeout=options.connect_timeout_s)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no scheduler answers at {options.scheduler}",
            "the address of a running Dask scheduler",
            "check the address, or leave --scheduler out to start workers on this machine",
        ) from error


def _default_workers() -> int:
    from dask.system import CPU_COUNT

    return max(1, min(4, int(CPU_COUNT)))


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
