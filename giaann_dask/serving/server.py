"""Bind the socket of a server, run uvicorn on it, and shut down gracefully.

Does not cover: the paths (`giaann_dask.serving.app`) and signals (`giaann_dask.cli.serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Generator

import uvicorn
from starlette.applications import Starlette

from giaann_dask.errors import OptionError
from giaann_dask.serving.connections import ACCEPTED_AT_ONCE, Connections, Timeouts, connection_limit
from giaann_dask.serving.serving_options import ServingOptions

_POLL_S = 0.05
# Connections that the system keeps until they are accepted.
_WAITING = 2048
# For a client to read the end of an answer.
_READING_S = 5.0
# Longer than any Retry-After, so that a client that comes back finds its connection, not one that is being closed.
_KEEP_ALIVE_S = 75


class _Server(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind(options: ServingOptions) -> socket.socket:
    """Return a socket bound to the host and port, which does not listen yet.

    Raises
    ------
    OptionError
        If the host is unknown or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        raise OptionError(
            f"nothing can listen at {options.host!r}, port {options.port} ({error})",
            "an address of this machine and a free port",
            "set port to a free one, or to 0 for any",
            names=("port",),
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """Return the address of a bound socket as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    app: Starlette,
    bound: socket.socket,
    options: ServingOptions,
    *,
    stop: threading.Event,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serve requests until `stop` is set; then let running requests end, for a bounded time.

    Parameters
    ----------
    app : Starlette
        From `giaann_dask.serving.app.build_app`.
    bound : socket
        From `bind`; closed in the end.
    options : ServingOptions
        How many connections, and how long the end may take.
    stop : threading.Event
        When it is set, no more connections are accepted.
    ready : callable, optional
        Called when the server accepts requests.
    """
    connections = Connections(connection_limit(options.connections), _timeouts(options))
    config = uvicorn.Config(
        app,
        http=connections.protocol(),
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=max(1, round(options.drain_s)),
    )

    def announce() -> None:
        # asyncio accepts no more than uvicorn's backlog at once, and the system lets as many wait; here more may.
        bound.listen(_WAITING)
        if ready is not None:
            ready()

    asyncio.run(_serve(_Server(config), bound, stop, announce))


def _timeouts(options: ServingOptions) -> Timeouts:
    """Return how long connections may take; a little more than the application, which says why it gives up."""
    return Timeouts(
        head_s=options.head_s,
        body_s=options.timeout_s + options.head_s,
        answer_s=options.timeout_s + options.head_s + _READING_S,
        idle_s=_KEEP_ALIVE_S,
    )


async def _serve(
    server: uvicorn.Server, bound: socket.socket, stop: threading.Event, ready: Callable[[], None]
) -> None:
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    announced = False
    while not serving.done():
        if server.started and not announced:
            ready()
            announced = True
        server.should_exit = server.should_exit or stop.is_set()
        await asyncio.wait({serving}, timeout=_POLL_S)
    await serving
