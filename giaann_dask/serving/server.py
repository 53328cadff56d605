"""Bind the socket of a server, run uvicorn on it with limits of its connections, and shut down gracefully.

Where there are too many connections, one is closed; the process's limit of open files is raised where possible. Does
not cover: the paths (`giaann_dask.serving.app`), the time of a response (`giaann_dask.serving.completions`) and signals
(`giaann_dask.cli.serving`).

uvicorn closes connections between two requests, but waits for ever for the rest of a request, or for the first. So its
protocol is extended here, the only place that uses what uvicorn does not document: of `H11Protocol` the attributes
``transport``, ``conn``, ``cycle``, ``flow``, ``loop``, ``connections`` and ``limit_concurrency``, and the methods that
are overridden; of its cycle ``response_complete``, of its flow control ``write_paused``. They are the same from
uvicorn 0.40 to 0.54.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import resource
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal, cast

import h11
import uvicorn
from starlette.applications import Starlette

from giaann_dask.errors import OptionError
from giaann_dask.library_internals import H11Protocol
from giaann_dask.serving.serving_options import ServingOptions

_POLL_S = 0.05
# Connections that the system keeps until they are accepted.
_WAITING = 2048
# For a client to read the end of an answer.
_READING_S = 5.0
# Longer than any Retry-After, so that a client that comes back finds its connection, not one that is being closed.
_KEEP_ALIVE_S = 75
# Connections that asyncio accepts before it looks at any of them. There may be several times as many that are not
# known here yet, or not closed yet.
ACCEPTED_AT_ONCE = 64
# Files that a process needs besides connections: the store, a cluster, its own pipes; and for the former.
_OTHER_FILES = 256 + 4 * ACCEPTED_AT_ONCE
_FILES = resource.RLIMIT_NOFILE
_LOG = logging.getLogger(__name__)
# What a connection waits for: the head of a request from its first byte or from the connection, its body, the answer,
# the next request, or its end.
Phase = Literal["head", "body", "answer", "idle", "closing"]


class Connections:
    """The open connections of a server.

    Where there are too many, one is closed: the oldest of those that send nothing, have not sent a whole request, or
    do not read their answer. So these cannot keep others out.

    Parameters
    ----------
    limit : int
        How many may be open.
    timeouts : dict of str to float
        Seconds that each phase of a connection may take.
    """

    def __init__(self, limit: int, timeouts: dict[Phase, float]) -> None:
        self.limit, self.timeouts = limit, timeouts
        # In the order in which they came, or were last seen to have sent a whole request.
        self._open: dict[Connection, None] = {}

    def enter(self, connection: Connection) -> None:
        """Register a new connection, and close another if there are too many."""
        self._open[connection] = None
        if self.crowded:
            longest = next((each for each in self._open if each.dispensable and each is not connection), None)
            if longest is not None:
                longest.drop()

    @property
    def crowded(self) -> bool:
        """Whether there are too many, all of which have a response in progress."""
        return len(self._open) > self.limit

    def renew(self, connection: Connection) -> None:
        """Note that a connection has sent a whole request."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open.pop(connection, None)

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the protocol factory of the connections, for ``uvicorn.Config(http=...)``."""
        return cast(type[asyncio.Protocol], functools.partial(Connection, self))


class Connection(H11Protocol):
    """uvicorn's protocol, but no phase of a connection lasts longer than it may.

    Parameters
    ----------
    known : Connections
        The connections of the same server.
    """

    def __init__(self, known: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._known = known
        self._phase: tuple[Phase, object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def dispensable(self) -> bool:
        """Whether no response is in progress that the client reads."""
        return self._phase is None or self._phase[0] != "answer" or self.flow.write_paused

    def drop(self) -> None:
        """Close the connection at once, whatever has not been sent."""
        self.connections.discard(self)
        self._known.leave(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._known.enter(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._known.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive data, and update the phase of the connection."""
        # With 0 uvicorn answers 503. Its own count has those that were closed just now, too.
        self.limit_concurrency = 0 if self._known.crowded else None
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            # What is no HTTP comes where a request has been answered already: uvicorn cannot answer it again.
            self.transport.abort()
        self._watch()

    def on_response_complete(self) -> None:
        """End a response, and update the phase of the connection."""
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Give a phase its time when it begins."""
        phase = self._found_phase(), self.cycle
        if phase == self._phase:
            return
        if phase[0] == "answer":
            self._known.renew(self)
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._known.timeouts[phase[0]], self._expire)

    def _found_phase(self) -> Phase:
        """Return the phase of the connection."""
        if self.transport.is_closing():
            return "closing"
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.cycle is not None and not self.cycle.response_complete:
            return "answer"
        return "head" if self.cycle is None or self.conn.trailing_data[0] else "idle"

    def _expire(self) -> None:
        """Close the connection, in order where all has been sent."""
        if self._phase is not None and self._phase[0] == "idle" and not self.transport.get_write_buffer_size():
            self.transport.close()
        else:
            self.drop()


def connection_limit(connections: int) -> int:
    """Return how many of so many connections the process may have open, raising its limit of files where it may.

    Parameters
    ----------
    connections : int
        How many are wanted.
    """
    wanted = connections + _OTHER_FILES
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(_FILES))
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(_FILES, (int(soft), resource.getrlimit(_FILES)[1]))
    if soft >= wanted:
        return connections
    room = max(1, int(soft) - min(_OTHER_FILES, int(soft) // 2))
    _LOG.warning("%d connections at most instead of %d: the process may open %d files", room, connections, int(soft))
    return room


class _UvicornServer(uvicorn.Server):
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
            f"the server cannot listen at {options.host!r}, port {options.port} ({error})",
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

    asyncio.run(_serve(_UvicornServer(config), bound, stop, announce))


def _timeouts(options: ServingOptions) -> dict[Phase, float]:
    """Return how long connections may take; a little more than the application, which says why it gives up."""
    body_s = options.timeout_s + options.head_s
    return {
        "head": options.head_s,
        "body": body_s,
        "answer": body_s + _READING_S,
        "idle": _KEEP_ALIVE_S,
        # For the client to take in the last bytes of an answer.
        "closing": options.head_s,
    }


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
