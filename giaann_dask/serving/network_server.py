"""Serve networks until a stop, or in the background of a notebook: engines, documents and address as one context.

Does not cover: the socket and uvicorn (`giaann_dask.serving.server`), and the command (`giaann_dask.cli.serving`).
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import find_client
from giaann_dask.errors import ClusterError, OptionError
from giaann_dask.keywords import names_keywords
from giaann_dask.lazy import import_optional
from giaann_dask.models import model_of
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.representations import Summarised, Summary
from giaann_dask.serving.serving_options import ServingOptions
from giaann_dask.store.network_store import NetworkStore

if TYPE_CHECKING:
    from distributed import Client
    from starlette.applications import Starlette

    from giaann_dask.api.cluster import ClientLike
    from giaann_dask.serving.models import EngineOpener, Models, ModelSource
    from giaann_dask.store.commits import CommitReader

# For a network that is opened, which may wait for a cluster; the end has the options' time and this.
_START_S, _STOP_S = 300.0, 10.0


def require_packages() -> None:
    """Raise a `MissingDependencyError` where a package that the server needs is not installed."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        import_optional(package, "serve")


@names_keywords
class Server(Summarised, AbstractContextManager["Server"]):
    """Server of networks; leaving its context, or `close`, ends it.

    Parameters
    ----------
    networks : sequence of (str or None, str or Path)
        Names, None for that of the folder, and folders; documents are added to the first.
    opener : EngineOpener
        How networks are opened, on a cluster that it is the only one to use.
    options : ServingOptions
        Address, keys, limits and timeouts.
    commit : str, optional
        Commit, tag or branch that predicts; the last commit by default.
    budget : int, optional
        Bytes of open networks; see `giaann_dask.serving.models.Models`.
    shows_key : bool
        Whether the representation of the server shows the write key, because it was generated.

    Attributes
    ----------
    options : ServingOptions
        As given.
    models : Models
        The networks.
    url : str
        Address, once it is open, without a slash at the end; ``/v1`` is that of OpenAI's clients.

    Raises
    ------
    OptionError
        If the options do not fit a network, or documents of several networks, of an older commit or without a key
        should be writable.
    """

    def __init__(
        self,
        networks: Sequence[tuple[str | None, str | Path]],
        opener: EngineOpener,
        options: ServingOptions,
        *,
        commit: str | None = None,
        budget: int | None = None,
        shows_key: bool = False,
    ) -> None:
        from giaann_dask.serving.documents import DocumentWriter
        from giaann_dask.serving.models import Models

        if options.writable and options.write_key is None:
            raise OptionError(
                "writable without a write key",
                "a key for writers only",
                "set GIAANN_WRITE_KEY or write_key",
                names=("writable",),
            )
        if options.writable and (len(networks) > 1 or commit is not None):
            raise OptionError(
                "writable with several networks or an older commit",
                "the last commit of one",
                "leave it out",
                names=("writable",),
            )
        generation = _fitting(opener.generation, options)
        self._opener, self.options = replace(opener, generation=generation), options
        self.url, self._shows_key = "", shows_key
        stores = [NetworkStore(os.fspath(place)) for _, place in networks]
        readers = [store.open(commit or store.head()) for store in stores]
        for reader in readers:
            specification = reader.manifest().specification
            model_of(specification).require_fit(specification, generation)
        names = [options.model_name or networks[0][0], *(name for name, _ in networks[1:])]
        self._writer: DocumentWriter | None = None
        self.models: Models = Models([self._source(*each) for each in zip(readers, names, strict=True)], budget=budget)
        self._resources = ExitStack()
        self._resources.callback(opener.clients.close)
        self._resources.callback(self.models.close)
        if options.writable:
            self._writer = DocumentWriter(stores[0].path, opener.clients, self._renew, keep_texts=options.keep_texts)
            self._resources.enter_context(closing(self._writer))
            self._renew(readers[0])
        self._stop, self._thread = threading.Event(), threading.Thread()
        self._failure: Exception | None = None

    def _source(self, reader: CommitReader, name: str | None) -> ModelSource:
        from giaann_dask.serving.models import ModelSource

        opening, writer = partial(self._opener.open, reader), self._writer
        if writer is None:
            return ModelSource.of(reader, opening, name)
        return replace(ModelSource.of(reader, opening, name, writer.texts), documents=writer.table.owners)

    def _renew(self, reader: CommitReader) -> None:
        self.models.renew(self._source(reader, self.models.default.name))

    @property
    def write_key(self) -> str | None:
        """Key that adds and removes documents; None where the network is only read."""
        return self.options.write_key if self.options.writable else None

    def open(self) -> None:
        """Bind the address, connect to the cluster and open the first network.

        Raises
        ------
        OptionError
            If the address is taken.
        GiaannError
            If the network cannot be opened.
        """
        from giaann_dask.serving.server import address_of, bind

        self._bound = self._resources.enter_context(bind(self.options))
        self.url = address_of(self._bound)
        self.models.open_default()
        if self._writer is not None:
            self._writer.recover()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        from giaann_dask.serving.app import build_app

        return build_app(self.models, self.options, self._writer)

    def run(self, stop: threading.Event, ready: Callable[[], None] | None = None) -> None:
        """Serve requests until `stop` is set, once `open` was called; `ready` is called when the first may come."""
        from giaann_dask.serving.server import serve as run_server

        run_server(self.app(), self._bound, self.options, stop=stop, ready=ready)

    def start(self) -> None:
        """Open the network and serve in a thread, until `close` or the end of the process.

        Raises
        ------
        GiaannError
            If the network cannot be opened, or the server does not start in time.
        """
        ready = threading.Event()

        def run() -> None:
            try:
                with self._resources:
                    self.open()
                    self.run(self._stop, ready.set)
            except Exception as error:
                self._failure = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="server", daemon=True)
        self._thread.start()
        try:
            opened = ready.wait(_START_S)
        except BaseException:
            self._stop.set()
            raise
        if self._failure is not None:
            raise self._failure
        if not opened:
            self._stop.set()
            raise ClusterError(
                f"the network is not open after {_START_S:.0f} s", "a cluster that responds", "check its workers"
            )
        atexit.register(self.close)

    def close(self) -> None:
        """Finish running requests, within the options' `drain_s`, and close the networks; further calls do nothing."""
        self._stop.set()
        if self._thread.is_alive():
            # The thread closes what it has opened.
            self._thread.join(self.options.drain_s + _STOP_S)
        else:
            self._resources.close()
        atexit.unregister(self.close)

    def __exit__(self, *error: object) -> None:
        """Close the server."""
        self.close()

    def summary(self) -> Summary:
        """Return the lines that represent the server."""
        rows = [("page", self.url), ("API", f"{self.url}/v1"), ("network", self.models.default.name)]
        rows += [("commit", self.models.default.commit)]
        if self.write_key is not None:
            rows += [("write key", self.write_key if self._shows_key else "as given")]
        state = "Server" if not self._stop.is_set() else "Server, closed"
        return Summary(state, rows)

    def _repr_html_(self) -> str:
        """Return the summary as HTML, with a link to the page that has the key."""
        key = f"#key={self.write_key}" if self.write_key is not None and self._shows_key else ""
        link = f'<a href="{self.url}/{key}" target="_blank" rel="noopener">{self.url}</a>'
        return super()._repr_html_().replace(f">{self.url}<", f">{link}<", 1)


def _fitting(generation: GenerationOptions, options: ServingOptions) -> GenerationOptions:
    """Return options of prompts with timeouts below that of a request, so that its client gets the reason of a failure.

    The rows of each new commit of a writable network come from the runs in memory: only its new runs are read.
    """
    rows = generation.rows
    mode = "remote" if options.writable and rows.mode == "auto" else rows.mode
    limits = {"timeout_s": options.timeout_s / 2, "request_s": options.timeout_s / 4}
    shorter = {name: min(getattr(rows, name), most) for name, most in limits.items()}
    return replace(generation, rows=replace(rows, mode=mode, **shorter))


def _at_free_port(options: ServingOptions) -> ServingOptions:
    """Return options with any free port where the default one is in use."""
    from giaann_dask.serving.server import bind

    if options.port == ServingOptions.port:
        try:
            bind(options).close()
        except OptionError:
            return replace(options, port=0)
    return options


def _connecting(client: ClientLike | None) -> Callable[[], Client]:
    """Return what connects to the cluster of a client, or to one within this process where there is none."""
    from giaann_dask.api.cluster import connect_monitored, use_client
    from giaann_dask.cluster import ClusterOptions

    if client is None and find_client() is None:
        return partial(connect_monitored, ClusterOptions(workers=0))
    with use_client(client) as used:
        return partial(connect_monitored, ClusterOptions(scheduler=str(used.scheduler.address)), used.security)


@names_keywords
def serve(
    network: str | os.PathLike[str],
    *,
    client: ClientLike | None = None,
    options: ServingOptions | None = None,
    model_options: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Server:
    """Serve a network over HTTP in the background of this process: a page, OpenAI's API, and documents.

    Parameters
    ----------
    network : str, Path or Network
        Its last commit predicts.
    client : Client, cluster or str, optional
        Cluster on which documents are trained; the current client's by default, else one within this process.
    options : ServingOptions, optional
        Address, keys, limits and timeouts. Where the default port is in use, a free one is taken; of a writable
        network, a random write key if none is given.
    model_options : mapping of str to Any, optional
        See `giaann_dask.models.generation_options.GenerationOptions`.
    **keywords
        Fields of `options` by their names, such as ``writable=True``.

    Returns
    -------
    Server
        It has the address as `url` and the write key as `write_key`, shows both in a notebook, and is closed by
        `close`, at the end of a ``with`` block or with the process.

    Raises
    ------
    MissingDependencyError
        If the packages of the extra ``serve`` are not installed.
    OptionError
        If the port is in use.
    GiaannError
        If the network cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> folder = Path(tempfile.mkdtemp()) / "village"
    >>> with gd.connect(workers=0):
    ...     network = gd.train(sample_text(), folder, profile="contexts", trace=True)
    ...     with gd.serve(network, writable=True, port=0) as server:
    ...         print(server.url.rpartition(":")[0], len(server.write_key))
    http://127.0.0.1 22
    """
    require_packages()
    from giaann_dask.serving.models import EngineOpener, SharedClient

    chosen, connecting = _at_free_port(options or ServingOptions()), _connecting(client)
    draws_key = chosen.writable and chosen.write_key is None
    if draws_key:
        chosen = replace(chosen, write_key=secrets.token_urlsafe(16))
    opener = EngineOpener(
        clients=SharedClient(connecting),
        generation=GenerationOptions(model_options=model_options or {}),
        batch=BatchOptions(slots=chosen.queue.slots),
        workers=0,
    )
    server = Server([(None, os.fspath(network))], opener, chosen, shows_key=draws_key)
    server.start()
    return server
