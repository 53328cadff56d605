"""Connect to a Dask cluster and add monitoring to it.

Connecting without monitoring is in `giaann_dask.cluster.connecting`.
"""

from __future__ import annotations

from distributed import Client

from giaann_dask.cluster import ClusterOptions
from giaann_dask.cluster import connect as connect_unmonitored
from giaann_dask.diagnostics.monitoring.reporter import add_monitoring


def connect(
    scheduler: str | None = None,
    *,
    workers: int | None = None,
    dashboard: str | None = None,
    options: ClusterOptions | None = None,
) -> Client:
    """Connect to a Dask cluster and monitor it; start one on this machine when no scheduler is named.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler.
    workers : int, optional
        Worker processes to start.
    dashboard : str, optional
        Address of the dashboard of a cluster that is started, as ``:8787``; without it there is none, and
        the cluster starts a second earlier.
    options : ClusterOptions, optional
        All options at once, instead of the three above.

    Returns
    -------
    distributed.Client
        Closing it, or leaving its ``with`` block, also stops the workers that were started. The page
        ``/giaann`` of its dashboard shows what is trained (``docs/how-to/monitoring.md``).

    Raises
    ------
    ClusterError
        If the scheduler does not answer in time.
    InputMissingError
        If the scheduler file does not exist.
    """
    client = connect_unmonitored(
        options=options or ClusterOptions(scheduler=scheduler, workers=workers, dashboard=dashboard)
    )
    add_monitoring(client)
    return client
