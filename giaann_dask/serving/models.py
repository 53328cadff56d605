"""Open the networks of a server on demand, and close those unused for the longest to stay within a byte budget.

Everything but the opening and closing of engines, which run in threads, is called on the event loop of the server.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from giaann_dask.cluster import trim_memory
from giaann_dask.errors import OptionError, parameter
from giaann_dask.serving.engine import CompletionEngine, EngineStatistics
from giaann_dask.serving.http_errors import busy


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
        Returns a context that opens its engine, and closes it.
    traces : bool
        Whether the network has an index of its sequences.
    """

    name: str
    commit: str
    profile: str
    has_probabilities: bool
    subwords: bool
    nbytes: int
    opening: Callable[[], AbstractContextManager[CompletionEngine]]
    traces: bool = False


class ServedModel:
    """A network of a server, open or not."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.engine: CompletionEngine | None = None
        self.users, self.used = 0, 0.0
        self._resources, self._lock = ExitStack(), threading.Lock()

    def open(self) -> float:
        """Open the network, if it is not open; return the seconds that it took."""
        with self._lock:
            began = time.monotonic()
            if self.engine is None:
                self.engine = self._resources.enter_context(self.source.opening())
            return time.monotonic() - began

    def close(self) -> EngineStatistics:
        """Close the network, if it is open; return the counts of its engine."""
        with self._lock:
            engine, self.engine = self.engine, None
            counts = EngineStatistics() if engine is None else engine.statistics()
            self._resources.close()
        # Engines and their threads refer to each other, and memory that Python has freed need not be the system's yet.
        del engine
        gc.collect()
        trim_memory()
        return counts


class ModelReference:
    """Use of an open network by one request, which keeps it open.

    Attributes
    ----------
    engine : CompletionEngine
        Its engine.
    source : ModelSource
        The network.
    """

    def __init__(self, model: ServedModel, engine: CompletionEngine, released: Callable[[ServedModel], None]) -> None:
        self.engine, self.source = engine, model.source
        self._model, self._released, self._held = model, released, True

    def release(self) -> None:
        """Let the network be closed, as soon as nobody else uses it; further calls do nothing."""
        if self._held:
            self._held = False
            self._released(self._model)


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
                f"write NAME=NETWORK, or set {parameter('model_name')}",
            )
        self._budget = budget
        self._opening, self._released = asyncio.Lock(), asyncio.Event()
        self._closed = EngineStatistics()
        # Called with the seconds of every opening.
        self.observe: Callable[[float], None] = lambda seconds: None

    @classmethod
    def of(cls, engine: CompletionEngine, name: str) -> Models:
        """Return the models of a server with one network, which is open, and which the caller closes."""
        source = ModelSource(
            name=name,
            commit=engine.commit,
            profile=engine.profile,
            has_probabilities=engine.has_probabilities,
            subwords=engine.subwords,
            nbytes=0,
            opening=lambda: nullcontext(engine),
            traces=engine.traces,
        )
        models = cls([source])
        models.open_default()
        return models

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

    def __getitem__(self, name: str) -> ModelSource:
        """Return the network of a name."""
        return self._models[name].source

    @property
    def open_names(self) -> list[str]:
        """Names of the networks that are open."""
        return [name for name, model in self._models.items() if model.engine is not None]

    @property
    def open_bytes(self) -> int:
        """Estimated bytes of the networks that are open."""
        return sum(model.source.nbytes for model in self._models.values() if model.engine is not None)

    def statistics(self) -> EngineStatistics:
        """Return the counts of all engines, also of those that were closed."""
        engines = [model.engine for model in self._models.values()]
        return sum((engine.statistics() for engine in engines if engine is not None), self._closed)

    def health(self) -> str | None:
        """Return why prompts of an open network cannot be continued now; see `CompletionEngine.health`."""
        engines = [model.engine for model in self._models.values()]
        return next((reason for engine in engines if engine and (reason := engine.health()) is not None), None)

    def open_default(self) -> None:
        """Open the first network, before the event loop runs."""
        self._models[self.default.name].open()

    async def acquire(self, name: str, wait_s: float) -> ModelReference:
        """Open a network if it is not open, and keep it open until the lease is released.

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
            while (engine := model.engine) is None:
                async with self._opening:
                    if model.engine is None:
                        await self._make_space(model, wait_s)
                        self.observe(await asyncio.to_thread(model.open))
        except BaseException:
            self._release(model)
            raise
        model.used = time.monotonic()
        return ModelReference(model, engine, self._release)

    async def _make_space(self, wanted: ServedModel, wait_s: float) -> None:
        """Close networks that nobody uses, the one unused for the longest first, until another one fits."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while self._budget is not None and self.open_bytes and self.open_bytes + wanted.source.nbytes > self._budget:
            self._released.clear()
            unused = [model for model in self._models.values() if model.engine is not None and not model.users]
            if unused:
                self._closed += await asyncio.to_thread(min(unused, key=lambda model: model.used).close)
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await self._released.wait()
            except TimeoutError as error:
                raise busy("other networks are in use, and there is no memory for this one", wait_s) from error

    def _release(self, model: ServedModel) -> None:
        model.users -= 1
        model.used = time.monotonic()
        self._released.set()

    def close(self) -> None:
        """Close all networks, after the event loop has ended."""
        for model in self._models.values():
            self._closed += model.close()
