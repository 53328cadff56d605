"""Connect to a Dask cluster and add monitoring to it; choose the cluster of a call that names none.

Connecting without monitoring is in `giaann_dask.cluster.connecting`. Dask is imported by the functions that need it, so
that a network is inspected without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from giaann_dask.cluster import attempt, beside_tasks, find_client, require_synchronous
from giaann_dask.cluster.waiting import silence_ended_waits
from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, notify_all
from giaann_dask.keywords import names_keywords

if TYPE_CHECKING:
    from distributed import Client, Security

    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.diagnostics.progress import Workload


class Cluster(Protocol):
    """A Dask cluster object of any library, such as ``LocalCluster`` or ``SLURMCluster``."""

    @property
    def scheduler_address(self) -> str:
        """Address of its scheduler."""


ClientLike: TypeAlias = "Client | Cluster | str"


@names_keywords
def connect(
    scheduler: str | None = None,
    *,
    workers: int | None = None,
    dashboard: str | None = None,
    options: ClusterOptions | None = None,
    **keywords: Any,
) -> Client:
    """Connect to a Dask cluster and monitor it; start one on this machine when no scheduler is named.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler.
    workers : int, optional
        Worker processes to start.
    dashboard : str, optional
        Address of the dashboard of a started cluster, such as ``:8787``; without it there is no dashboard, and the
        cluster starts a second earlier.
    options : ClusterOptions, optional
        All options; the keywords above replace its fields.
    **keywords
        Fields of `options` by their names.

    Returns
    -------
    distributed.Client
        Closing it, or leaving its ``with`` block, also stops the started workers. The page ``/giaann`` of its dashboard
        shows training (``docs/how-to/monitoring.md``).

    Raises
    ------
    OptionError
        If the address is none: functions take clients and cluster objects as they are.
    ClusterError
        If the scheduler does not answer in time.
    InputMissingError
        If the scheduler file does not exist.

    Examples
    --------
    >>> import giaann_dask as gd
    >>> with gd.connect(workers=0) as client:
    ...     roles = gd.roles_of(client)
    >>> len(roles.storage), len(roles.compute)
    (1, 1)
    """
    if not isinstance(scheduler, str | None):
        raise OptionError(
            f"scheduler is of type {type(scheduler).__name__}",
            "the address of a scheduler",
            "give the client or the cluster to train, open and so on as client",
        )
    from giaann_dask.cluster import ClusterOptions

    given = {"scheduler": scheduler, "workers": workers, "dashboard": dashboard}
    named = {name: value for name, value in given.items() if value is not None}
    return connect_monitored(replace(options or ClusterOptions(), **named))  # type: ignore[arg-type]


def connect_monitored(options: ClusterOptions, security: Security | None = None) -> Client:
    """Connect to a cluster by all options and monitor it.

    Parameters
    ----------
    options : ClusterOptions
        As of `connect`.
    security : Security, optional
        Certificates for a running cluster; see `giaann_dask.cluster.connecting`.
    """
    from giaann_dask.cluster import connect as connect_unmonitored
    from giaann_dask.diagnostics.monitoring.reporter import add_monitoring

    client = connect_unmonitored(options=options, security=security)
    add_monitoring(client)
    return client


@contextmanager
def use_client(client: ClientLike | None = None) -> Iterator[Client]:
    """Provide the client of a call: the one that was given, else the current one, else one of a new local cluster.

    Parameters
    ----------
    client : Client, cluster or str, optional
        A synchronous client, a cluster object, or the address of a scheduler. Without it the current Dask client is
        used, within a task that of its worker; where there is none, workers are started on this machine, once, and
        stay until this process ends.

    Yields
    ------
    distributed.Client
        A client that was made here for a cluster object or an address is closed afterwards; their workers stay.

    Raises
    ------
    OptionError
        If the client is asynchronous, or of another kind.
    ClusterError
        If no scheduler answers at the address, or the cluster has other versions than this process.
    """
    from giaann_dask.dask_types import register

    register()
    silence_ended_waits()
    with ExitStack() as opened:
        opened.enter_context(beside_tasks())
        yield opened.enter_context(_provided(client))


@contextmanager
def _provided(client: ClientLike | None) -> Iterator[Client]:
    """Provide a client as `use_client` does."""
    from distributed import Client

    from giaann_dask.cluster.connecting import require_versions

    if client is None:
        current = find_client()
        if current is not None:
            require_versions(current)
        yield current or _start_default()
    elif isinstance(client, Client):
        require_versions(require_synchronous(client))
        yield client
    elif isinstance(client, str):
        with connect(client) as joined:
            yield joined
    elif hasattr(client, "scheduler_address"):
        with Client(require_synchronous(client), set_as_default=False) as joined:
            require_versions(joined)
            yield joined
    else:
        raise OptionError(
            f"client is of type {type(client).__name__}",
            "a distributed.Client, a Dask cluster, or the address of a scheduler",
            "leave it out to use the current client",
        )


@contextmanager
def observe_work(
    client: ClientLike | None, workload: Workload, progress: bool | None, observer: Observer
) -> Iterator[tuple[Client, Observer]]:
    """Provide the client of a call and the observer that its work reports to.

    Events go to the observer of the caller, to progress bars and to the cluster's monitoring. Futures of failed tasks
    are released, so that the call can be repeated.

    Parameters
    ----------
    client : Client, cluster or str, optional
        See `use_client`.
    workload : Workload
        What is read, for the remaining time.
    progress : bool, optional
        Whether progress bars are shown; by default in notebooks.
    observer : callable
        Called with every event.

    Yields
    ------
    distributed.Client, callable
    """
    from giaann_dask.diagnostics.monitoring.reporter import report_events
    from giaann_dask.diagnostics.progress import progress_bars

    with ExitStack() as opened:
        used = opened.enter_context(use_client(client))
        bars = opened.enter_context(progress_bars(workload, progress))
        opened.enter_context(attempt())
        yield used, opened.enter_context(report_events(used, notify_all(observer, bars)))


def _start_default() -> Client:
    """Start workers on this machine and make their client the current one, as ``Client()`` does."""
    client = connect()
    count = len(client.scheduler_info(n_workers=-1)["workers"])
    print(
        f"giaann_dask: started {count} worker processes on this machine; they stop when this process ends. "
        "To use another cluster, make a dask.distributed.Client first, or name it with client=.",
        file=sys.stderr,
    )
    return client
