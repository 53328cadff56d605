"""Open the networks of a server on demand, and close those unused for the longest to stay within a byte budget.

Engines are in the server's process, or on the compute workers of a cluster, whose client all share. One is opened again
after its cluster was lost or a defect has stopped it. `Models` is called on the event loop of the server, but opens and
closes in threads. Does not cover: transient failures, as when Dask recomputes lost regions (`rows.regions`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from giaann_dask.cluster import attempt, trim_memory
from giaann_dask.diagnostics.monitoring.reporter import reporter_of
from giaann_dask.errors import GiaannError, OptionError
from giaann_dask.models import model_of
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.models.results import ConnectionKey
from giaann_dask.representations import escaped
from giaann_dask.rows.regions import LOST, opened_bytes
from giaann_dask.serving.engine import (
    SERVED_BATCH,
    CompletionEngine,
    CompletionOptions,
    Engine,
    EngineRequest,
    EngineStatistics,
    PromptEvent,
    Report,
    closed_error,
)
from giaann_dask.serving.remote_engine import RemoteEngine
from giaann_dask.serving.requests import busy
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.memory_inputs import Source
from giaann_dask.tracing import TracedConnection, Tracer

if TYPE_CHECKING:
    from distributed import Client

# Between two looks at an engine, and between two attempts to open it.
_CHECK_S = 2.0
# For a running check, an opening, or a connection that is made, when a network or the client is closed.
_CLOSE_S = 5.0
# Between two looks whether prompts of a former commit have ended, and how long these may take.
_IDLE_S, _LONGEST_S = 0.05, 3600.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A network that a server can open.

    Attributes
    ----------
    name : str
        Name of the model in requests.
    commit : str
        Identity of the commit that predicts.
    profile : str
        Its profile.
    has_probabilities : bool
        Whether words have probabilities, by which they can be drawn.
    subwords : bool
        Whether tokens are subwords.
    nbytes : int
        Estimated bytes in memory while it is open.
    opening : callable
        Returns a context that opens its engine, of the same commit every time, and closes it.
    tracer : callable or None
        Returns what traces connections to the sentences that built them; None for a network without an index.
    documents : callable or None
        Returns the ids of the documents of each part of text; None where the server has no documents.
    """

    name: str
    commit: str
    profile: str
    has_probabilities: bool
    subwords: bool
    nbytes: int
    opening: Callable[[], AbstractContextManager[CompletionEngine]]
    tracer: Callable[[], Tracer] | None = None
    documents: Callable[[], Mapping[str, Sequence[str]]] | None = None

    @classmethod
    def of(
        cls,
        reader: CommitReader,
        opening: Callable[[], AbstractContextManager[CompletionEngine]],
        name: str | None = None,
        texts: Callable[[], Sequence[Source]] = tuple,
    ) -> ModelSource:
        """Return a commit as a model of a server, named by default as the network's folder.

        Parameters
        ----------
        reader : CommitReader
            The commit that predicts.
        opening : callable
            See `ModelSource.opening`.
        name : str, optional
            Name of the model in requests.
        texts : callable, optional
            Returns where tracing looks for training text first.
        """
        specification = reader.manifest().specification
        return cls(
            # A folder's name need not be UTF-8, as a response is.
            name=name or escaped(reader.path.resolve().name),
            commit=reader.commit,
            profile=specification.profile,
            has_probabilities=specification.traits.probabilities,
            subwords=specification.tokens == "subwords",
            nbytes=opened_bytes(reader),
            opening=opening,
            tracer=(lambda: Tracer(reader, texts())) if specification.trace else None,
        )


def open_engine(
    client: Client,
    reader: CommitReader,
    options: GenerationOptions | None = None,
    batch: BatchOptions = SERVED_BATCH,
    *,
    workers: int | None = 0,
) -> Engine | RemoteEngine:
    """Open a commit of any model for a server.

    Parameters
    ----------
    client : Client
        Where the regions are opened, or the tables built; has to stay connected as long as the engine is used.
    reader : CommitReader
        The commit that predicts.
    options : GenerationOptions, optional
        Rules of inference, tagger, device and how rows are fetched.
    batch : BatchOptions
        Prompts that share a step of one process at most, and when the activation state of one is divided over workers.
    workers : int, optional
        Most workers that continue prompts, None for all that compute; 0, the default, continues them in this process.

    Raises
    ------
    ClusterError
        If the cluster does not open the network in time.
    OptionError
        If the options do not fit the network.
    """
    specification = reader.manifest().specification
    # Reasons need the strengths of rows.
    chosen = replace(options or GenerationOptions(), reasons=int(specification.trace))
    model, observer = model_of(specification), reporter_of(client)
    model.require_fit(specification, chosen)
    if workers == 0:
        return Engine(model.open(reader, client=client, options=chosen, observer=observer), chosen, batch)
    opening = model.open_on_workers(client, reader, chosen)
    return RemoteEngine(client, opening, chosen, batch, workers=workers, observer=observer)


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
        """Close the client; called after all have left `use`, or wait for a cluster that does not answer."""
        # Held by who connects.
        held = self._lock.acquire(timeout=_CLOSE_S)
        try:
            if self._present is not None:
                self._present.close()
        finally:
            if held:
                self._lock.release()


@dataclass(frozen=True, kw_only=True)
class EngineOpener:
    """Opens the networks of a server, all in the same way.

    Attributes
    ----------
    clients : SharedClient
        Connects to the cluster.
    generation : GenerationOptions
        Options of all prompts.
    batch : BatchOptions
        Prompts of a network that a process continues simultaneously.
    workers : int, optional
        Workers that continue prompts, 0 for the server's process; by default all that compute.
    """

    clients: SharedClient
    generation: GenerationOptions
    batch: BatchOptions
    workers: int | None = None

    @contextmanager
    def open(self, reader: CommitReader) -> Iterator[CompletionEngine]:
        """Connect, and open the engine of a commit within the context."""
        with (
            self.clients.use() as client,
            attempt(),
            closing(open_engine(client, reader, self.generation, self.batch, workers=self.workers)) as engine,
        ):
            yield engine


class ServedModel:
    """A network of a server, open or not.

    While it is open, a thread looks whether its cluster was lost or a defect has stopped its engine, and opens it
    again. Prompts that run at that moment fail, as do those that arrive before it is open again.

    Parameters
    ----------
    source : ModelSource
        The network.
    check_s : float
        Seconds between two looks at the engine, and between two attempts to open it.
    close_s : float
        Seconds to wait for a running look, or until it is open, when the network is closed.
    """

    def __init__(self, source: ModelSource, *, check_s: float = _CHECK_S, close_s: float = _CLOSE_S) -> None:
        self.source = source
        self.users, self.used = 0, 0.0
        self._check_s, self.close_s = check_s, close_s
        # The first is held while the network is opened or closed, the second while the engine is exchanged.
        self._lock, self._exchanging = threading.Lock(), threading.Lock()
        self._engine: CompletionEngine | None = None
        self._resources = ExitStack()
        # Prompts that each engine continues, as one of a former commit is closed when it has none.
        self._running: Counter[CompletionEngine] = Counter()
        # Counts of engines that are closed, and why there is no engine.
        self._counts, self._reason = EngineStatistics(), LOST
        # Set when the network is closed again; None while it is not open. The second one also while it is opened.
        self._closed: threading.Event | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread()
        self._tracing = threading.Lock()
        self._tracer: Tracer | None = None

    @property
    def is_open(self) -> bool:
        """Whether the network is open, or is being opened again."""
        return self._closed is not None

    def open(self) -> float:
        """Open the network, if it is not open; return the seconds that it took."""
        with self._lock:
            began = time.monotonic()
            if self._closed is None:
                self._ended = closed = threading.Event()
                self._open(closed)
                self._closed = closed
                self._thread = threading.Thread(target=self._watch, args=[closed], name="reopen", daemon=True)
                self._thread.start()
            return time.monotonic() - began

    def close(self) -> None:
        """End all generations and close the network, if it is open; one that is opened is closed when it is open."""
        if not self._lock.acquire(timeout=self.close_s):
            # A cluster may let it wait for as long as a task may take.
            self._ended.set()
            return
        try:
            if self._closed is None:
                return
            self._closed.set()
            self._thread.join(self.close_s)
            self._closed = self._tracer = None
            self._drop()
        finally:
            self._lock.release()
        # Engines and their threads refer to each other, and memory that Python has freed need not be the system's yet.
        gc.collect()
        trim_memory()

    def start(self, prompt: str, options: CompletionOptions, report: Report) -> EngineRequest:
        """Start to continue a prompt; see `CompletionEngine.start`."""
        with self._exchanging:
            engine, source = self._engine, self.source
            if engine is not None:
                self._running[engine] += 1
        if engine is None:
            request = EngineRequest(prompt, options, report)
            request.end(closed_error(self._reason))
            return request
        request = engine.start(prompt, options, partial(self._report, engine, report))
        request.source = source
        return request

    def _report(self, engine: CompletionEngine, report: Report, event: PromptEvent | Exception | None) -> None:
        """Pass on an event of a prompt, and count the prompt as ended with the last one."""
        if event is None:
            with self._exchanging:
                self._running[engine] -= 1
                self._running += Counter()
        report(event)

    def renew(self, source: ModelSource) -> None:
        """Continue later prompts with another commit of the network; those that run end with theirs.

        Raises
        ------
        GiaannError
            If it cannot be opened; then the former commit predicts on.
        """
        with self._lock:
            former, resources = None, ExitStack()
            with ExitStack() as opened:
                engine = opened.enter_context(source.opening()) if self._closed is not None else None
                # Traces and prompts see engine and commit together.
                with self._tracing, self._exchanging:
                    self.source, self._tracer = source, None
                    if engine is not None:
                        former, resources = self._engine, self._resources
                        self._engine, self._resources = engine, opened.pop_all()
        if former is not None:
            closing = (former, resources)
            threading.Thread(target=self._close_idle, args=closing, name="former", daemon=True).start()

    def _close_idle(self, engine: CompletionEngine, resources: ExitStack) -> None:
        """Close the engine of a former commit when its prompts have ended; the target of a thread."""
        deadline = time.monotonic() + _LONGEST_S
        while self._running[engine] and time.monotonic() < deadline:
            time.sleep(_IDLE_S)
        with self._exchanging:
            self._counts += engine.statistics()
        resources.close()

    def trace(
        self, source: ModelSource, connections: Sequence[ConnectionKey], sentences: int
    ) -> list[TracedConnection]:
        """Return connections, without their names, with the training sentences that built them; may read files.

        Parameters
        ----------
        source : ModelSource
            The network at the commit that the connections are of: this one's source, or a former one.
        connections : sequence of ConnectionKey
            What is traced.
        sentences : int
            Sentences of each whose text is read.
        """
        assert source.tracer is not None
        with self._tracing:
            if source is self.source:
                tracer = self._tracer = self._tracer or source.tracer()
            else:
                tracer = source.tracer()
            return [
                tracer.connection(key, source="", column="", contribution=0.0, sentences=sentences)
                for key in connections
            ]

    def health(self) -> str | None:
        """Return why prompts cannot be continued now; see `CompletionEngine.health`."""
        engine = self._engine
        return self._reason if engine is None else engine.health()

    def statistics(self) -> EngineStatistics:
        """Return the counts of all its engines, also of those that were closed."""
        with self._exchanging:
            return self._counts if self._engine is None else self._counts + self._engine.statistics()

    def _open(self, closed: threading.Event) -> None:
        with ExitStack() as resources:
            engine = resources.enter_context(self.source.opening())
            with self._exchanging:
                # Where the network was closed meanwhile, the engine is closed again.
                if not closed.is_set():
                    self._engine, self._resources = engine, resources.pop_all()

    def _drop(self) -> None:
        """Close the engine, if there is one, and keep its counts."""
        with self._exchanging:
            if self._engine is not None:
                self._counts += self._engine.statistics()
            self._engine, resources, self._resources = None, self._resources, ExitStack()
        resources.close()

    def _watch(self, closed: threading.Event) -> None:
        """Open the network again whenever its engine has failed, until it is closed; the target of a thread."""
        while not closed.wait(self._check_s):
            engine = self._engine
            if engine is not None and (failure := engine.failure()) is not None:
                self._reason = failure
                _LOG.warning("%s; the network is opened again as soon as possible", failure)
                try:
                    self._drop()
                except Exception as error:
                    # Nothing of a lost engine is needed any more; this thread has to continue.
                    _LOG.info("closing the lost engine failed: %r", error)
            # Or this thread would keep an engine that is closed.
            del engine
            if self._engine is None:
                self._reopen(closed)

    def _reopen(self, closed: threading.Event) -> None:
        try:
            self._open(closed)
        except Exception as error:
            # Also errors of Dask while a cluster starts: without this thread the server would respond 503 forever.
            _LOG.info("the network cannot be opened yet: %s", error if isinstance(error, GiaannError) else repr(error))
            return
        _LOG.warning("the network is open again")


async def _in_daemon(function: Callable[[], float]) -> float:
    """Call a function in a thread for which neither the end of the event loop nor that of the process waits."""
    found = Future[float]()
    found.set_running_or_notify_cancel()

    def call() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=call, name="open", daemon=True).start()
    return await asyncio.wrap_future(found)


class Models:
    """Networks of a server by name, opened on demand within a byte budget.

    Parameters
    ----------
    sources : sequence of ModelSource
        The networks; the first answers requests that name none.
    budget : int, optional
        Bytes of open networks, as estimated by `ModelSource.nbytes`; no limit by default. A network that is larger by
        itself is opened when no other is open.

    Raises
    ------
    OptionError
        If two networks have the same name.
    """

    def __init__(self, sources: Sequence[ModelSource], *, budget: int | None = None) -> None:
        self._models = {source.name: ServedModel(source) for source in sources}
        if len(self._models) < len(sources):
            raise OptionError(
                f"two networks have the same name in {', '.join(source.name for source in sources)}",
                "another name for each",
                "write NAME=NETWORK, or set model_name",
            )
        self._budget = budget
        self._opening, self._released = asyncio.Lock(), asyncio.Event()
        # Called with the seconds of every opening.
        self.observe: Callable[[float], None] = lambda seconds: None

    @property
    def sources(self) -> list[ModelSource]:
        """The networks, the default first."""
        return [model.source for model in self._models.values()]

    @property
    def default(self) -> ModelSource:
        """The network that answers requests that name none."""
        return self.sources[0]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a network of a name."""
        return name in self._models

    def __getitem__(self, name: str) -> ServedModel:
        """Return the network of a name."""
        return self._models[name]

    def renew(self, source: ModelSource) -> None:
        """Predict with another commit of a network from now on; see `ServedModel.renew`."""
        self._models[source.name].renew(source)

    @property
    def open_names(self) -> list[str]:
        """Names of the networks that are open."""
        return [name for name, model in self._models.items() if model.is_open]

    @property
    def open_bytes(self) -> int:
        """Estimated bytes of the networks that are open."""
        return sum(model.source.nbytes for model in self._models.values() if model.is_open)

    def statistics(self) -> EngineStatistics:
        """Return the counts of all engines, also of those that were closed."""
        return sum((model.statistics() for model in self._models.values()), EngineStatistics())

    def health(self) -> str | None:
        """Return why prompts of an open network cannot be continued now; see `CompletionEngine.health`."""
        opened = [model for model in self._models.values() if model.is_open]
        return next((reason for model in opened if (reason := model.health()) is not None), None)

    def open_default(self) -> None:
        """Open the first network, before the event loop runs."""
        self._models[self.default.name].open()

    async def acquire(self, name: str, wait_s: float) -> ServedModel:
        """Open a network if it is not open, and keep it open until it is released.

        Parameters
        ----------
        name : str
            Of the network.
        wait_s : float
            Seconds to wait for other networks to be unused, where the budget has no space beside them.

        Raises
        ------
        HttpError
            With status 429, if they are in use for longer.
        """
        model = self._models[name]
        # Counted before it is open, so that no other request closes it.
        model.users += 1
        try:
            while not model.is_open:
                async with self._opening:
                    if not model.is_open:
                        await self._make_space(model, wait_s)
                        self.observe(await _in_daemon(model.open))
        except BaseException:
            self.release(model)
            raise
        model.used = time.monotonic()
        return model

    async def _make_space(self, wanted: ServedModel, wait_s: float) -> None:
        """Close networks that nobody uses, the one unused for the longest first, until another one fits."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while self._budget is not None and self.open_bytes and self.open_bytes + wanted.source.nbytes > self._budget:
            self._released.clear()
            unused = [model for model in self._models.values() if model.is_open and not model.users]
            if unused:
                await asyncio.to_thread(min(unused, key=lambda model: model.used).close)
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await self._released.wait()
            except TimeoutError as error:
                raise busy("other networks are in use, and there is no memory for this one", wait_s) from error

    def release(self, model: ServedModel) -> None:
        """Let a network be closed, as soon as no other request uses it."""
        model.users -= 1
        model.used = time.monotonic()
        self._released.set()

    def close(self) -> None:
        """Close all networks, after the event loop has ended."""
        for model in self._models.values():
            model.close()
