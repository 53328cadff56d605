"""Reopen an engine after its cluster was lost, checking its health in a thread.

Does not cover: how an engine is opened (by the caller), and transient failures, as when Dask recomputes lost regions
(`giaann_dask.inference.rows.health`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, closing

from giaann_dask.errors import ClusterError, GiaannError
from giaann_dask.inference.rows.health import LOST
from giaann_dask.serving.engine import CompletionOptions, Engine, Part

_POLL_S = 2.0
# For a running health check when the server ends.
_CLOSE_S = 5.0
_LOG = logging.getLogger(__name__)


class ReopenedEngine:
    """Engine that is opened again whenever its cluster was lost.

    Prompts that run at that moment fail, as do those that arrive before a cluster is available again.

    Parameters
    ----------
    opening : callable
        Connects and opens an engine, of the same commit every time; leaving what it returns closes both.
    look_s : float
        Seconds between two checks, and between two attempts to open.

    Raises
    ------
    GiaannError
        Whatever keeps the first engine from being opened.
    """

    def __init__(self, opening: Callable[[], AbstractContextManager[Engine]], *, look_s: float = _POLL_S) -> None:
        self._opening, self._look_s = opening, look_s
        self._resources = ExitStack()
        self._engine: Engine | None = None
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
    def draws(self) -> bool:
        """Whether words can be drawn by their probability."""
        return self._first.draws

    def lost(self) -> bool:
        """Return False: what is lost is opened again."""
        return False

    def trouble(self) -> str | None:
        """Return why prompts cannot be continued now; see `Engine.trouble`."""
        engine = self._engine
        return LOST if engine is None else engine.trouble()

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt; see `Engine.complete`."""
        engine = self._engine
        if engine is None:
            raise ClusterError(LOST, "a scheduler that answers", "ask again when /healthz says ok")
        with closing(engine.complete(prompt, options)) as parts:
            yield from parts

    def close(self) -> None:
        """End all generations; none can be started after that."""
        self._closed.set()
        self._thread.join(_CLOSE_S)
        with self._swapping:
            self._engine = None
            self._resources.close()

    def _watch(self) -> None:
        while not self._closed.wait(self._look_s):
            engine = self._engine
            if engine is not None and engine.lost():
                _LOG.warning("%s; the network is opened again when there is a scheduler", LOST)
                self._engine = None
                self._give_up()
            if self._engine is None:
                self._reopen()

    def _give_up(self) -> None:
        try:
            self._resources.close()
        except Exception as error:
            # Whatever it is, nothing of what is lost is needed any more, and this thread is.
            _LOG.info("closing what was lost failed: %r", error)

    def _reopen(self) -> None:
        try:
            self._open()
        except Exception as error:
            # Also what Dask raises while a cluster comes up: without this thread the server would answer 503 for ever.
            _LOG.info("the network cannot be opened yet: %s", error if isinstance(error, GiaannError) else repr(error))
            return
        _LOG.warning("the network is open again")

    def _open(self) -> Engine:
        with ExitStack() as resources:
            engine = resources.enter_context(self._opening())
            with self._swapping:
                # Where the server has ended meanwhile, what was opened is closed again.
                if not self._closed.is_set():
                    self._engine, self._resources = engine, resources.pop_all()
        return engine
