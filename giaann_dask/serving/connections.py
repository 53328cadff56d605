"""Limit the number of open connections and the time of each of their phases.

Where there are too many connections, one is closed; the process's limit of open files is raised where possible. Does
not cover: responses (`giaann_dask.serving.app`) and their time limit (`giaann_dask.serving.completions`).

uvicorn closes connections between two requests, but waits for ever for the rest of a request, or for the first. So its
protocol is extended here, the only place that uses what uvicorn does not document: of `H11Protocol` the attributes
``transport``, ``conn``, ``cycle``, ``flow``, ``loop``, ``connections`` and ``limit_concurrency``, and the methods that
are overridden; of its cycle ``response_complete``, of its flow control ``write_paused``. They are the same from
uvicorn 0.40 to 0.54.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import resource
from dataclasses import dataclass
from typing import Any, Literal, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Connections that asyncio accepts before it looks at any of them. There may be several times as many that are not
# known here yet, or not closed yet.
ACCEPTED_AT_ONCE = 64
# Files that a process needs besides connections: the store, a cluster, its own pipes; and for the former.
_OTHER_FILES = 256 + 4 * ACCEPTED_AT_ONCE
_FILES = resource.RLIMIT_NOFILE
_LOG = logging.getLogger(__name__)

# What a connection waits for: the head of a request, its body, the answer, the next request, or its end.
Phase = Literal["head", "body", "answer", "idle", "closing"]


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts of a connection's phases.

    Parameters
    ----------
    head_s : float
        Seconds from its first byte, or from the connection, to the end of a request's head; also to take in the
        last bytes of an answer when the connection is closed.
    body_s, answer_s : float
        Seconds for the body after the head, and for the answer after the body.
    idle_s : float
        Seconds between an answer and the next request.
    """

    head_s: float
    body_s: float
    answer_s: float
    idle_s: float

    def seconds(self, phase: Phase) -> float:
        """Return the seconds of a phase."""
        return self.head_s if phase == "closing" else float(getattr(self, f"{phase}_s"))


class Connections:
    """The open connections of a server.

    Where there are too many, one is closed: the oldest of those that send nothing, have not sent a whole request, or
    do not read their answer. So these cannot keep others out.

    Parameters
    ----------
    limit : int
        How many may be open.
    timeouts : Timeouts
        How long each may take.
    """

    def __init__(self, limit: int, timeouts: Timeouts) -> None:
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
        self._timer = self.loop.call_later(self._known.timeouts.seconds(phase[0]), self._expire)

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
