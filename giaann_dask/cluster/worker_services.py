"""Install services on the workers of a cluster: handlers of messages that workers send each other, past the scheduler.

A plugin adds the handler to every worker's server, also of workers that join later. `giaann_dask.rows.service` answers
requests for rows, `giaann_dask.training.exchange` those for parts of increments.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any, ClassVar

from distributed import Client, Worker, WorkerPlugin
from distributed.core import send_recv
from distributed.protocol.pickle import dumps

from giaann_dask.cluster.waiting import query_scheduler
from giaann_dask.errors import ClusterError


class WorkerService:
    """Handler of messages on a worker, as long as a plugin of `install_service` is there.

    Subclasses have an ``async`` method ``answer``, which is called on the event loop.

    Parameters
    ----------
    worker : Worker
        The worker.

    Attributes
    ----------
    name, operation : str
        Of the class: among the worker's extensions and its handlers.
    users : set of str
        Names of the plugins that need it.
    """

    name: ClassVar[str]
    operation: ClassVar[str]

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.users: set[str] = set()
        worker.handlers[self.operation] = self.answer

    async def answer(self, **message: Any) -> dict[str, Any]:
        """Answer one message."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the service."""
        self._worker.handlers.pop(self.operation, None)

    @classmethod
    def begin(cls, worker: Worker, user: str) -> None:
        """Start the service on a worker, or note that it has one more user."""
        if cls.name not in worker.extensions:
            worker.extensions[cls.name] = cls(worker)
        worker.extensions[cls.name].users.add(user)

    @classmethod
    def end(cls, worker: Worker, user: str) -> None:
        """Stop the service of a worker when its last user has gone."""
        service = worker.extensions.get(cls.name)
        if service is None:
            return
        service.users.discard(user)
        if not service.users:
            service.close()
            worker.extensions.pop(cls.name, None)


def service_plugin(user: str, module: str, service: str) -> WorkerPlugin:
    """Return a plugin that runs a service; its class is sent by value, so that any worker can load it."""

    class ServicePlugin(WorkerPlugin):  # type: ignore[misc]
        def __init__(self) -> None:
            self.name = user

        def setup(self, worker: Any) -> None:
            self._call("begin", worker)

        def teardown(self, worker: Any) -> None:
            self._call("end", worker)

        def _call(self, method: str, worker: Any) -> None:
            import importlib

            try:
                found = importlib.import_module(module)
            except ImportError:
                # A worker that joins another user's cluster; tasks of this package name the problem.
                return
            getattr(getattr(found, service), method)(worker, self.name)

    return ServicePlugin()


def install_service(client: Client, service: type[WorkerService], user: str = "") -> str:
    """Install a service on all workers of a cluster, including workers that join later.

    Parameters
    ----------
    client : Client
        Of the cluster.
    service : type
        The service.
    user : str
        Name of who needs it, a new one by default.

    Returns
    -------
    str
        Name under which `remove_service` stops it, where nobody else has installed it.

    Raises
    ------
    ClusterError
        If the scheduler does not answer, or the plugin fails on a worker.
    """
    user = f"{service.name}-{user or uuid.uuid4().hex}"
    plugin = service_plugin(user, service.__module__, service.__name__)
    arguments = {"plugin": dumps(plugin), "name": user, "idempotent": True}
    try:
        answers = query_scheduler(client, "register_worker_plugin", **arguments)
    except ClusterError:
        # Also raised when a worker dies meanwhile; the others have the plugin then, and this answers at once.
        answers = query_scheduler(client, "register_worker_plugin", **arguments)
    for worker, answer in answers.items():
        if answer.get("status") != "OK":
            raise ClusterError(
                f"worker {worker} cannot run the service {service.name} ({answer.get('exception_text', '')})",
                "workers with this version of giaann-dask",
                "install it there and restart the workers",
            )
    return user


def remove_service(client: Client, user: str) -> None:
    """Remove what `install_service` has installed, without waiting; nothing happens where the client is closed.

    May be called on any thread, by the garbage collector, too.
    """

    async def unregister() -> None:
        with suppress(OSError, ValueError):
            await client.scheduler.unregister_worker_plugin(name=user)

    if client.status == "running":
        client.loop.add_callback(unregister)


async def send_message(home: Worker | Client, address: str, connect_s: float, message: dict[str, Any]) -> Any:
    """Send a message to a service of a worker, and return its answer; runs on the event loop.

    Parameters
    ----------
    home : Worker or Client
        Whose connections are used.
    address : str
        Of the worker.
    connect_s : float
        Seconds to wait for a connection.
    message : dict
        With the operation as ``op``.

    Raises
    ------
    OSError
        If the worker cannot be reached.
    """
    # As `rpc` does, which would retry connecting to a dead worker for half a minute.
    comm = await home.rpc.connect(address, timeout=connect_s)
    try:
        return await send_recv(comm, **message)
    finally:
        home.rpc.reuse(address, comm)
