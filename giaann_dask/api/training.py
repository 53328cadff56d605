"""Encode text and train networks, waiting for the end or in the background.

The functions fill in the choices that a user leaves open; the work is done by the folders below.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, overload

from distributed import Client

from giaann_dask.algebra.addition import rebase
from giaann_dask.api.calibration import calibrate
from giaann_dask.api.cluster import ClientLike, observe_work
from giaann_dask.api.network import Network
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import Inputs, decide_text, read_inputs, sources_of, trained_sources
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.encoding.corpus_encoding import encode_corpus
from giaann_dask.encoding.sources import UnseenInput, find_unseen_inputs
from giaann_dask.encoding.stream import JOINED, StreamOptions
from giaann_dask.errors import OptionError, SpecificationError, StoreConflictError, StoreMissingError
from giaann_dask.events import Committed, Event, Observer, RoundIntegrated, ignore, notify_all
from giaann_dask.keywords import names_keywords
from giaann_dask.library_internals import before_thread_pools_end
from giaann_dask.object_urls import absolute_place, with_storage_options
from giaann_dask.representations import Summarised, Summary
from giaann_dask.spec import Specification
from giaann_dask.store.corpus import EncodedCorpus
from giaann_dask.store.corpus_writing import require_absent
from giaann_dask.store.locking import locked
from giaann_dask.store.unfinished import BRANCH, removed_unless_finished
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.memory_inputs import Source
from giaann_dask.training.error_driven import train_on_misses
from giaann_dask.training.target import NetworkTarget, open_store
from giaann_dask.training.trainer import Trainer, UncommittedError
from giaann_dask.training.training_options import TrainingOptions

# Seconds that the end of the process waits for the last commit of a training in the background.
_EXIT_S = 60.0


def require_encodable(specification: Specification, out: str | Path) -> None:
    """Raise an error when text cannot be encoded by a specification, or not to a path; no cluster is needed for it.

    Raises
    ------
    SpecificationError
        If networks of the profile are not trained on corpora.
    StoreExistsError
        If something is at the path.
    """
    if not specification.traits.columns:
        raise SpecificationError(
            f"a corpus of profile {specification.profile}", "a model of columns, such as v2", "train on the text itself"
        )
    require_absent(absolute_place(out))


@names_keywords
def encode(
    inputs: Inputs,
    out: str | Path,
    *,
    client: ClientLike | None = None,
    specification: Specification | None = None,
    profile: str | None = None,
    text: TextOptions | None = None,
    max_sequences: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    **keywords: Any,
) -> EncodedCorpus:
    """Encode text into a corpus on Zarr.

    Parameters
    ----------
    inputs : str, Path, Files or iterable of texts
        Files, folders, globs or datasets, or texts; see `train`.
    out : str or Path
        Folder of the new corpus.
    specification : Specification, optional
        Limits of sentences, number of branches, and whether parts of speech are needed.
    profile : {"v1", "v2"}, optional
        Short for the default specification of a profile.
    text : TextOptions, optional
        How text is tagged.
    max_sequences : int, optional
        Stop after this number of sequences that pass the length filter.
    storage_options : mapping of str to str or bool, optional
        How the object stores of URLs among these arguments are reached (`giaann_dask.object_urls.StorageOptions`);
        what is left out comes from the environment. For places that need different ones, see `giaann_dask.place`.
    client, progress, observer
        See `giaann_dask.train`.
    **keywords
        Fields of `specification` and `text`, and of the options within these, by their names.

    Returns
    -------
    EncodedCorpus

    Raises
    ------
    GiaannError
        If inputs, options, cluster or store have an error.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_test_text
    >>> with gd.connect(workers=0) as client:
    ...     corpus = gd.encode(sample_test_text(), Path(tempfile.mkdtemp()) / "corpus")
    >>> len(corpus), corpus.tokens
    (40, 642)
    """
    wanted = _specification(specification, profile) or Specification()
    out = absolute_place(with_storage_options(out, storage_options))
    require_encodable(wanted, out)
    read, chosen = read_inputs(inputs, text, storage_options)
    workload = Workload(read, chosen.reading, max_sequences)
    with observe_work(client, workload, progress, observer) as (used, reporting):
        _, lexicon = decide_text(used, None, read, wanted, chosen)
        sources = trained_sources(wanted, chosen, lexicon)
        kept = chosen.parts_of_speech or sources.filter.parts_of_speech
        sources = replace(sources, filter=replace(sources.filter, parts_of_speech=kept))
        options = StreamOptions(max_sequences=max_sequences, joined=JOINED)
        return encode_corpus(used, read, out, sources, options, reporting)


def _specification(specification: Specification | None, profile: str | None) -> Specification | None:
    """Return the specification that was given as such or by its profile."""
    if profile is None:
        return specification
    if specification is not None:
        raise OptionError(
            "both specification and profile",
            "one of them",
            f"set the profile in the specification, as Specification(profile={profile!r})",
        )
    return Specification(profile=profile)


@overload
def train(
    inputs: Inputs,
    network: str | Path,
    *,
    client: ClientLike | None = ...,
    specification: Specification | None = ...,
    profile: str | None = ...,
    text: TextOptions | None = ...,
    options: TrainingOptions | None = ...,
    branch: str | None = ...,
    storage_options: Mapping[str, object] | None = ...,
    progress: bool | None = ...,
    observer: Observer = ...,
    stop: threading.Event | None = ...,
    wait: Literal[True] = ...,
    **keywords: Any,
) -> Network: ...


@overload
def train(inputs: Inputs, network: str | Path, *, wait: Literal[False], **keywords: Any) -> Training: ...


@names_keywords
def train(
    inputs: Inputs,
    network: str | Path,
    *,
    client: ClientLike | None = None,
    specification: Specification | None = None,
    profile: str | None = None,
    text: TextOptions | None = None,
    options: TrainingOptions | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    stop: threading.Event | None = None,
    wait: bool = True,
    **keywords: Any,
) -> Network | Training:
    """Train a network, new or existing, on text that it was not trained on before.

    Parameters
    ----------
    inputs : str, Path, Files or iterable of texts
        A string or path: a file, folder, glob, dataset (``hf:NAME``) or encoded corpus; several of these as `Files` or
        as a list of ``Path``. Or texts: a list or iterator of strings, of mappings with a text field or of spaCy
        documents, a column of pandas or Dask, a ``dask.bag``, or a dataset of Hugging Face ``datasets``. Each text is
        a document. Text is known by its content: what the network was trained on is left out, whatever held it.
    network : str or Path
        Folder of the network.
    client : Client, cluster or str, optional
        A Dask client, a cluster or the address of a scheduler. By default the current client; where there is none,
        workers are started on this machine and stay until this process ends.
    specification : Specification, optional
        Of a new network; an existing one keeps its own and refuses another.
    profile : str, optional
        Short for the default specification of a profile: ``"v1"``, ``"v2"``, ``"contexts"``, or a model of another
        package.
    text : TextOptions, optional
        How text is tagged.
    options : TrainingOptions, optional
        Sizes and times.
    branch : str, optional
        Branch of an existing network that commits are made on (`Network.branch`); ``main`` by default.
    storage_options : mapping of str to str or bool, optional
        How the object stores of URLs among these arguments are reached (`giaann_dask.object_urls.StorageOptions`);
        what is left out comes from the environment. For places that need different ones, see `giaann_dask.place`.
    progress : bool, optional
        Whether progress bars are shown; by default in notebooks.
    observer : callable, optional
        Called with every event.
    stop : threading.Event, optional
        When it is set, training commits rounds in progress and returns.
    wait : bool
        Whether to return at the end of training; else it goes on in a thread of this process.
    **keywords
        Fields of `specification`, `text` and `options`, and of the options within these, by their names.

    Returns
    -------
    Network or Training
        The network at its last commit, with the figures of this training as `Network.training_report`; the handle of
        the training with ``wait=False``.

    Raises
    ------
    GiaannError
        If inputs, options, cluster or store have an error; what was committed remains.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_test_text
    >>> folder = Path(tempfile.mkdtemp())
    >>> with gd.connect(workers=0) as client:
    ...     network = gd.train(sample_test_text(), folder / "evening")
    ...     again = gd.train(sample_test_text(), folder / "evening")
    >>> network.training_report.sequences, again.training_report.sequences
    (40, 0)
    >>> network.manifest.connections
    8949
    """
    read, chosen = read_inputs(inputs, text, storage_options)
    wanted = _specification(specification, profile)
    path = absolute_place(with_storage_options(network, storage_options))
    request = _Request(read, path, wanted, chosen, options or TrainingOptions(), branch or BRANCH)
    ended = stop or threading.Event()
    if wait:
        with (
            _committed_on_interrupt(ended, observer) as observed,
            observe_work(client, request.workload, progress, observed) as (used, reporting),
        ):
            return request.run(used, reporting, ended)
    return Training(request, client, progress, observer, ended)


@contextmanager
def _committed_on_interrupt(stop: threading.Event, observer: Observer) -> Iterator[Observer]:
    """Let the first Ctrl-C, or interruption of a notebook's cell, stop a training in order; a second one at once.

    Both end in a `KeyboardInterrupt` that says what is committed. Signals of a program that handles them itself, and
    trainings in other threads, are left alone.

    Yields
    ------
    Observer
        Passes events on to the given one.
    """
    interrupted = False
    commits: list[Committed] = []

    def observe(event: Event) -> None:
        commits.extend([event] if isinstance(event, Committed) else [])
        observer(event)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        stop.set()
        print("giaann-dask: committing rounds in progress; interrupt again to stop at once", file=sys.stderr)

    is_main = threading.current_thread() is threading.main_thread()
    handles = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles:
        signal.signal(signal.SIGINT, handle)
    try:
        yield observe
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_interruption(commits)) from error
    finally:
        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt(_interruption(commits))


def _interruption(commits: Sequence[Committed]) -> str:
    done = f"commit {commits[-1].commit} has what was trained" if commits else "nothing was committed"
    return f"training was interrupted: {done}; train again to continue"


_running: set[Training] = set()


@functools.cache
def _finish_at_exit() -> None:
    """Let the end of this process wait until trainings in the background have committed."""
    before_thread_pools_end(_finish_all)


def _finish_all() -> None:
    trainings = list(_running)
    for training in trainings:
        training.stop()
    for training in trainings:
        with suppress(TimeoutError):
            training.exception(_EXIT_S)


@dataclass(frozen=True)
class _Request:
    """Arguments of one training."""

    inputs: Sequence[Source]
    path: Path
    specification: Specification | None
    text: TextOptions
    options: TrainingOptions
    branch: str

    @property
    def workload(self) -> Workload:
        return Workload(self.inputs, self.text.reading, self.options.max_sequences)

    def run(self, client: Client, observer: Observer, stop: threading.Event) -> Network:
        """Train, holding the lock of the network, and return it.

        Where another process has committed meanwhile, what was trained is added to its commit, and training goes on.
        """
        while True:
            try:
                return self._train(client, observer, stop)
            except UncommittedError as conflict:
                missed = self.options.train_on != "all"
                reason = "what it is trained on depends on what was trained before" if missed else ""
                commit = rebase(client, conflict.state, reason, observer)
            try:
                require_rereadable(self.inputs, "training after a conflict")
            except OptionError as error:
                raise StoreConflictError(
                    f"another process has committed to network {self.path} while this one read input that can be read "
                    "once",
                    f"its work up to then is in commit {commit}",
                    "run the command again with the rest of the input",
                ) from error

    def _train(self, client: Client, observer: Observer, stop: threading.Event) -> Network:
        with locked(self.path) as held, removed_unless_finished(self.path):
            place = SharedPlace(client, held)
            place.require()
            store = open_store(self.path, self.branch)
            if store is None and self.branch != BRANCH:
                raise StoreMissingError(
                    f"there is no network at {self.path} to have a branch", "an existing network", "train it first"
                )
            reader = None if store is None else store.open(store.head())
            calibrate(client, self.options.device)
            wanted, lexicon = decide_text(client, reader, self.inputs, self.specification, self.text)
            sources = trained_sources(wanted, self.text, lexicon)
            target = NetworkTarget(place, wanted, sources.ever_pos, sources.tokenizer, store, reader)
            if self.options.train_on == "misses":
                report = train_on_misses(client, target, self.options, self.inputs, sources, observer, stop)
            else:
                report = Trainer(client, target, self.options, observer, stop).train(self.inputs, sources)
        return Network(self.path, report.commit, training_report=report, held=target.held)


@names_keywords
class Training(Summarised):
    """Training that runs in a thread of this process.

    `train` returns it with ``wait=False``. ``await training`` waits for the network in a coroutine. When the process
    ends, rounds in progress are committed first.
    """

    def __init__(
        self,
        request: _Request,
        client: ClientLike | None,
        progress: bool | None,
        observer: Observer,
        stop: threading.Event,
    ) -> None:
        self._request, self._stop = request, stop
        self._future: Future[Network] = Future()
        self._sequences = 0
        self._commit: str | None = None
        with ExitStack() as opened:
            observers = notify_all(observer, self._observe)
            used, reporting = opened.enter_context(observe_work(client, request.workload, progress, observers))
            resources = opened.pop_all()
        _finish_at_exit()
        _running.add(self)
        arguments = (used, reporting, resources)
        threading.Thread(target=self._run, args=arguments, name="giaann-train", daemon=True).start()

    def _run(self, client: Client, observer: Observer, resources: ExitStack) -> None:
        try:
            with resources:
                network = self._request.run(client, observer, self._stop)
            self._future.set_result(network)
        except BaseException as error:
            self._future.set_exception(error)
        finally:
            _running.discard(self)

    def _observe(self, event: Event) -> None:
        match event:
            case RoundIntegrated():
                self._sequences += event.sequences
            case Committed():
                self._commit = event.commit

    @property
    def network(self) -> Network | None:
        """The network at its last commit, while training goes on; None before the first commit of a new network."""
        if self._future.done() and self._future.exception() is None:
            return self._future.result()
        if self._commit is not None:
            return Network(self._request.path, self._commit)
        store = open_store(self._request.path)
        return None if store is None else Network(self._request.path)

    @property
    def sequences(self) -> int:
        """Sequences that were trained so far, committed or not."""
        return self._sequences

    def done(self) -> bool:
        """Return whether training has ended, or failed."""
        return self._future.done()

    def stop(self) -> None:
        """Commit rounds in progress and end; return at once."""
        self._stop.set()

    def result(self, timeout: float | None = None) -> Network:
        """Wait for the end of training and return the network.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; until the end by default.

        Raises
        ------
        TimeoutError
            If training has not ended in time; it goes on.
        GiaannError
            If it failed; what was committed remains.
        """
        return self._future.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of training and return its error, None where there is none.

        Raises
        ------
        TimeoutError
            If training has not ended within this time, in seconds.
        """
        return self._future.exception(timeout)

    def __await__(self) -> Generator[Any, None, Network]:
        """Wait for the end of training in a coroutine, without blocking its event loop."""
        return asyncio.wrap_future(self._future).__await__()

    def summary(self) -> Summary:
        """Return the lines that represent the training."""
        error = self._future.exception() if self._future.done() else None
        state = "running" if not self._future.done() else "done" if error is None else f"failed: {error}"
        if state == "running" and self._stop.is_set():
            state = "stopping"
        rows = (
            ("state", state),
            ("sequences", f"{self._sequences:,}"),
            ("last commit", self._commit or "none yet"),
        )
        return Summary(f"Training of {self._request.path}", rows)


@names_keywords
def new_inputs(
    inputs: Inputs,
    network: str | Path,
    *,
    specification: Specification | None = None,
    text: TextOptions | None = None,
    storage_options: Mapping[str, object] | None = None,
    **keywords: Any,
) -> list[UnseenInput]:
    """Return how much text of each input a network, new or existing, was not trained on.

    Parameters
    ----------
    inputs : str, Path, Files or iterable of texts
        See `train`; each is read completely.
    network : str or Path
        Folder or URL of the network.
    specification : Specification, optional
        That of a new network; how it divides text decides what a part is.
    text : TextOptions, optional
        How text is read and tagged.
    storage_options : mapping of str to str or bool, optional
        How object stores are reached (`giaann_dask.object_urls.StorageOptions`).
    **keywords
        Fields of `specification` and `text`, and of the options within these, by their names.

    Returns
    -------
    list of UnseenInput
        One for each input, in order: its ``name``, ``characters`` and ``new_characters``, and in ``problem`` why it
        cannot be read, if so.

    Examples
    --------
    >>> import giaann_dask as gd
    >>> [found] = gd.new_inputs(["The old miller carried the flour."], "not.trained.yet")
    >>> found.characters, found.new_characters
    (33, 33)
    """
    store = open_store(absolute_place(with_storage_options(network, storage_options)))
    reader = None if store is None or store.blank() else store.open(store.head())
    wanted = specification or (Specification() if reader is None else reader.manifest().specification)
    read, chosen = read_inputs(inputs, text, storage_options)
    # Which words end a column does not change what a part is.
    sources = sources_of(wanted, chosen, EverPos())
    return find_unseen_inputs(read, sources, () if reader is None else reader.ledger())
