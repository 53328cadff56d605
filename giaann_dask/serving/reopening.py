"""Reopen an engine after its cluster was lost or a defect has stopped it, checking its health in a thread.

Does not cover: how an engine is opened (by the caller), and transient failures, as when Dask recomputes lost regions
(`giaann_dask.rows.health`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from giaann_dask.errors import GiaannError
from giaann_dask.models.results import ConnectionKey
from giaann_dask.rows.health import LOST
from giaann_dask.serving.engine import (
    CompletionEngine,
    CompletionOptions,
    EngineRequest,
    EngineStatistics,
    Report,
    closed_error,
)
from giaann_dask.tracing.trace import TracedConnection

if TYPE_CHECKING:
    from distributed import Client

_POLL_S = 2.0
# For a running health check when the server ends.
_CLOSE_S = 5.0
_LOG = logging.getLogger(__name__)


class SharedClient:
    """Client of a cluster that the engines of several networks share; connected again after it was lost.

    Parameters
    ----------
    connect : callable
        Returns a new client; closing it stops the workers that were started for it.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect, self._lock = connect, threading.Lock()
        self._present: Client | None = None
        self._users: Counter[Client] = Counter()

    @contextmanager
    def use(self) -> Iterator[Client]:
        """Yield a client that stays open within the context."""
        with self._lock:
            if self._present is None or self._present.status != "running":
                lost, self._present = self._present, self._connect()
                if lost is not None and not self._users[lost]:
                    lost.close()
            client = self._present
            self._users[client] += 1
        try:
            yield client
        finally:
            with self._lock:
                self._users[client] -= 1
                if not self._users[client] and client is not self._present:
                    client.close()

    def close(self) -> None:
        """Close the client; called after all have left `use`."""
        with self._lock:
            if self._present is not None:
                self._present.close()


class ReopenedEngine:
    """Engine that is opened again whenever its cluster was lost, or a defect has stopped it.

    Prompts that run at that moment fail, as do those that arrive before the network is open again.

    Parameters
    ----------
    opening : callable
        Returns a context that connects and opens an engine, of the same commit every time, and closes both.
    check_s : float
        Seconds between two checks, and between two attempts to open.

    Raises
    ------
    GiaannError
        If the first engine cannot be opened.
    """

    def __init__(
        self, opening: Callable[[], AbstractContextManager[CompletionEngine]], *, check_s: float = _POLL_S
    ) -> None:
        self._opening, self._check_s = opening, check_s
        self._resources = ExitStack()
        self._engine: CompletionEngine | None = None
        # Why there is no engine.
        self._reason = LOST
        # Counts of engines that were lost.
        self._before = EngineStatistics()
        self._swapping, self._closed = threading.Lock(), threading.Event()
        self._first = self._open()
        self._thread = threading.Thread(target=self._watch, name="reopen", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """Name of the network."""
        return self._first.name

    @property
    def commit(self) -> str:
        """Identity of the commit that predicts."""
        return self._first.commit

    @property
    def profile(self) -> str:
        """Profile of the network."""
        return self._first.profile

    @property
    def has_probabilities(self) -> bool:
        """Whether words have probabilities, by which they can be drawn."""
        return self._first.has_probabilities

    @property
    def subwords(self) -> bool:
        """Whether tokens are subwords, which contain their own spaces."""
        return self._first.subwords

    @property
    def traces(self) -> bool:
        """Whether the network has an index of its sequences."""
        return self._first.traces

    def trace(self, connections: Sequence[ConnectionKey], sentences: int) -> list[TracedConnection]:
        """Return connections with the training sentences that built them; see `CompletionEngine.trace`."""
        return (self._engine or self._first).trace(connections, sentences)

    def failure(self) -> str | None:
        """Return None: an engine that has failed is opened again."""
        return None

    def statistics(self) -> EngineStatistics:
        """Return how many steps were done so far, also by engines that were lost."""
        engine = self._engine
        return self._before if engine is None else self._before + engine.statistics()

    def health(self) -> str | None:
        """Return why prompts cannot be continued now; see `CompletionEngine.health`."""
        engine = self._engine
        return self._reason if engine is None else engine.health()

    def start(self, prompt: str, options: CompletionOptions, report: Report) -> EngineRequest:
        """Start to continue a prompt; see `CompletionEngine.start`."""
        engine = self._engine
        if engine is not None:
            return engine.start(prompt, options, report)
        generation = EngineRequest(prompt, options, report)
        generation.end(closed_error(self._reason))
        return generation

    def close(self) -> None:
        """End all generations; none can be started after that."""
        self._closed.set()
        self._thread.join(_CLOSE_S)
        with self._swapping:
            self._engine = None
            self._resources.close()

    def _watch(self) -> None:
        while not self._closed.wait(self._check_s):
            engine = self._engine
            if engine is not None and (failure := engine.failure()) is not None:
                self._reason = failure
                _LOG.warning("%s; the network is opened again as soon as possible", self._reason)
                self._before += engine.statistics()
                self._engine = None
                self._give_up()
            if self._engine is None:
                self._reopen()

    def _give_up(self) -> None:
        try:
            self._resources.close()
        except Exception as error:
            # Nothing of a lost engine is needed any more; this thread has to continue.
            _LOG.info("closing the lost engine failed: %r", error)

    def _reopen(self) -> None:
        try:
            self._open()
        except Exception as error:
            # Also errors of Dask while a cluster starts: without this thread the server would respond 503 forever.
            _LOG.info("the network cannot be opened yet: %s", error if isinstance(error, GiaannError) else repr(error))
            return
        _LOG.warning("the network is open again")

    def _open(self) -> CompletionEngine:
        with ExitStack() as resources:
            engine = resources.enter_context(self._opening())
            with self._swapping:
                # Where the server has ended meanwhile, the engine is closed again.
                if not self._closed.is_set():
                    self._engine, self._resources = engine, resources.pop_all()
        return engine
