"""Connections of the server that send nothing, or slowly, or do not read: real sockets on loopback."""

from __future__ import annotations

import contextlib
import logging
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from support.serving_engines import ScriptedEngine, models_of

from giaann_dask.serving.app import build_app
from giaann_dask.serving.server import bind, connection_limit, serve
from giaann_dask.serving.serving_options import ServingOptions

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW = b'{"prompt": "slow mill"}'
PLAIN = b'{"prompt": "the mill"}'
# What a test waits for at most; far more than it takes.
WAIT_S = 60


class Served:
    """A server in a thread of its own."""

    def __init__(self, port: int, engine: ScriptedEngine) -> None:
        self.port, self.engine = port, engine
        self.end: Callable[[], object]
        self._open = ExitStack()

    def connect(self) -> socket.socket:
        """Return a connection that is closed in the end."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        return self._open.enter_context(contextlib.closing(made))

    def ask(self, request: bytes = HEALTH, connection: socket.socket | None = None) -> bytes:
        """Return an answer whose length is known, as far as it came."""
        asked = connection or self.connect()
        asked.sendall(request)
        found, missing = b"", 1
        while missing > 0 and (piece := asked.recv(65_536)):
            found += piece
            head, _, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            missing = int(length[1]) - len(body) if length and b"\r\n\r\n" in found else 1
        return found

    def wait_for_answers(self, count: int) -> list[socket.socket]:
        """Return so many connections that wait for an answer."""
        made = [self.connect() for _ in range(count)]
        for connection in made:
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n%b" % (len(SLOW), SLOW))
            assert self.engine.network.begun.acquire(timeout=WAIT_S)
        return made

    def answers_within(self, seconds: float) -> bool:
        """Return whether a new connection is answered with 200 before some seconds have passed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            # On a busy machine a connection may have ended before its request came.
            with contextlib.suppress(ConnectionError):
                if self.ask().startswith(b"HTTP/1.1 200"):
                    return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        """Close all connections."""
        self._open.close()


@contextmanager
def served(**options: Any) -> Iterator[Served]:
    engine, stop, ready = ScriptedEngine(), threading.Event(), threading.Event()
    chosen = ServingOptions(port=0, drain_s=1.0, **options)
    with bind(chosen) as bound:
        thread = threading.Thread(
            target=serve,
            args=(build_app(models_of(engine), chosen), bound, chosen),
            kwargs={"stop": stop, "ready": ready.set},
        )
        thread.start()
        assert ready.wait(WAIT_S)
        server = Served(bound.getsockname()[1], engine)
        server.end = lambda: (stop.set(), thread.join(WAIT_S))
        try:
            yield server
        finally:
            engine.network.released.set()
            server.close()
            stop.set()
            thread.join(WAIT_S)
            engine.close()
            assert not thread.is_alive()


def closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection, without waiting for it."""
    connection.settimeout(0)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def ends(connection: socket.socket, dripping: bytes = b"") -> bool:
    """Return whether the server closes a connection, to which bytes are sent one by one meanwhile."""
    deadline = time.monotonic() + WAIT_S
    drops = iter(dripping)
    while time.monotonic() < deadline:
        if closed(connection):
            return True
        with contextlib.suppress(ConnectionError, BlockingIOError):
            connection.send(bytes([next(drops, ord("x"))]))
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (POST, 413),
        (POST.replace(b"application/json", b"text/plain"), 415),
        (POST.replace(b"/v1/completions", b"/v1/nothing"), 404),
        (POST.replace(b"/v1/completions", b"/healthz"), 405),
        (POST.replace(b"localhost", b"evil.example"), 403),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_that_is_refused_is_answered_and_not_reset(head: bytes, status: int, chunked: bool) -> None:
    """As the client sends all of it before it reads."""
    piece, count = bytes(1 << 20), 32
    with served() as server:
        connection = server.connect()
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (count * len(piece))
        connection.sendall(head + length + b"\r\n\r\n")
        for _ in range(count):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        answer = server.ask(b"0\r\n\r\n" if chunked else b"", connection)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.endswith(b"}")
        assert server.ask().startswith(b"HTTP/1.1 200")


def test_streams_that_the_end_of_the_server_cuts_short_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """In an event of each stream, and in one line of the log."""
    body = SLOW[:-1] + b', "stream": true, "max_tokens": 4096, "echo": true}'
    with served() as server:
        connections = [server.connect() for _ in range(4)]
        for connection in connections:
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            assert server.engine.network.begun.acquire(timeout=WAIT_S)
        time.sleep(0.2)
        server.end()
        for connection in connections:
            found = b"".join(iter(partial(connection.recv, 65_536), b""))
            assert found.startswith(b"HTTP/1.1 200 ")
            assert b"the server is stopping; retry later" in found
            assert found.endswith(b"0\r\n\r\n")
    assert len([record for record in caplog.records if record.name.startswith("uvicorn")]) <= 1


def test_who_waits_to_send_a_body_is_told_at_once_that_it_is_refused() -> None:
    with served() as server:
        head = POST.replace(b"application/json", b"text/plain") + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        assert server.ask(head).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nX: ", POST + b"Content-Length: 100\r\n\r\n{"])
def test_idle_connections_keep_nobody_out(sent: bytes) -> None:
    """Three times as many as there may be, that say nothing, or begin a request, or its body, and go no further."""
    with served(connections=100) as server:
        for _ in range(300):
            server.connect().sendall(sent)
        for _ in range(3):
            assert server.ask().startswith(b"HTTP/1.1 200")


def test_the_oldest_of_too_many_are_closed_and_those_that_are_answered_are_not() -> None:
    with served(connections=20) as server:
        slow = server.wait_for_answers(5)
        idle = [server.connect() for _ in range(40)]
        assert server.ask().startswith(b"HTTP/1.1 200")
        assert all(closed(each) for each in idle[:20])
        assert not closed(idle[-1])
        assert not any(closed(each) for each in slow)


def test_where_all_connections_wait_for_an_answer_more_are_told_so() -> None:
    with served(connections=3) as server:
        slow = server.wait_for_answers(3)
        assert server.ask().startswith(b"HTTP/1.1 503")
        last = server.connect()
        assert server.ask(connection=last).startswith(b"HTTP/1.1 503")
        slow[0].close()
        assert server.answers_within(WAIT_S)
        assert not any(closed(each) for each in slow[1:])


def test_clients_that_do_not_read_keep_nobody_out() -> None:
    """They ask for one page after the other until their answers are stuck."""
    with served(connections=2) as server:
        for _ in range(2):
            greedy = server.connect()
            greedy.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                while True:
                    greedy.sendall(HEALTH.replace(b"/healthz", b"/page.js") * 100)
        # A slow server takes a while to find that its answers are stuck.
        assert server.answers_within(WAIT_S)


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nX: ", id="head"),
        pytest.param(POST + b"Content-Length: 100000\r\n\r\n", id="body"),
        pytest.param(HEALTH.replace(b"\r\n\r\n", b"\r\nContent-Length: 100000\r\n\r\n"), id="body that nobody reads"),
        pytest.param(HEALTH + b"GET /healthz HTTP/1.1\r\nX: ", id="second head"),
    ],
)
def test_a_request_that_comes_too_slowly_ends_its_connection(begun: bytes) -> None:
    with served(head_s=0.2, timeout_s=0.2) as server:
        connection = server.connect()
        with contextlib.suppress(ConnectionError):
            connection.sendall(begun)
        assert ends(connection, b"" if begun else b"GET / HTTP/1.1\r\nX: ")
        assert server.answers_within(WAIT_S)


def test_a_connection_may_be_idle_between_requests_and_wait_for_an_answer() -> None:
    """Longer than the head of a request may take, which is time enough for a busy machine to send one."""
    with served(head_s=1.0) as server:
        idle = server.connect()
        assert server.ask(HEALTH, idle).startswith(b"HTTP/1.1 200")
        (waits,) = server.wait_for_answers(1)
        time.sleep(1.2)
        assert not closed(waits)
        assert server.ask(HEALTH, idle).startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_refused_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    with served() as server, caplog.at_level(logging.ERROR):
        for sent in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET / HTTP/9\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"x" * 100_000,
            POST + chunked + b"zz\r\n",
            HEALTH[:-2] + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        ):
            answer = server.ask(sent)
            assert not answer or b"HTTP/1.1 4" in answer or b"HTTP/1.1 200" in answer, (sent[:60], answer)
        late = server.connect()
        assert server.ask(HEALTH[:-2] + chunked, late).startswith(b"HTTP/1.1 200")
        late.sendall(b"zz\r\nzz\r\n")
        assert ends(late)
        assert server.ask().startswith(b"HTTP/1.1 200")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("limits", "raised", "room"),
    [
        ((256, 4096), 1512, 1000),
        ((1200, 1200), None, 688),
        ((100, 100), None, 50),
        ((4096, 4096), None, 1000),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 1000),
        ((1024, resource.RLIM_INFINITY), 1512, 1000),
    ],
)
def test_as_many_connections_as_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: int | None, room: int
) -> None:
    state, set_to = [limits], []

    def change(kind: int, wanted: tuple[int, int]) -> None:
        set_to.append(wanted[0])
        state[0] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda kind: state[0])
    monkeypatch.setattr(resource, "setrlimit", change)
    assert connection_limit(1000) == room
    assert [each for each in set_to if each != limits[0]] == ([] if raised is None else [raised])
    assert state[0][1] == limits[1]


@pytest.mark.parametrize("names", [("Content-Length", "Transfer-Encoding"), ("transfer-encoding", "content-length")])
def test_a_request_with_two_lengths_of_its_body_is_the_last_of_its_connection(names: tuple[str, str]) -> None:
    values = {"content-length": "5", "transfer-encoding": "chunked"}
    head = "".join(f"{name}: {values[name.lower()]}\r\n" for name in names).encode()
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PLAIN), PLAIN)
    with served() as server:
        connection = server.connect()
        found = server.ask(POST + head + b"\r\n" + body + HEALTH, connection)
        assert found.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
        assert b"connection: close" in found.lower()
        rest = found + b"".join(iter(partial(connection.recv, 65_536), b""))
        assert rest.count(b"HTTP/1.1") == 1, "what follows such a request is not read as another one"
