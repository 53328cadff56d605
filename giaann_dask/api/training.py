"""Encode text and train networks.

The functions fill in the choices that a user leaves open; the work is done by the folders below.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event

from distributed import Client

from giaann_dask.api.network import Network
from giaann_dask.api.texts import Inputs, TextOptions, decide_text, names, sources_of
from giaann_dask.cluster import attempt
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.diagnostics.monitoring.reporter import report_events
from giaann_dask.encoding.corpus_encoding import encode_corpus
from giaann_dask.encoding.stream import StreamOptions
from giaann_dask.encoding.unseen_inputs import UnseenInput, find_unseen_inputs
from giaann_dask.errors import SpecificationError
from giaann_dask.events import Observer, ignore
from giaann_dask.spec import Specification
from giaann_dask.storage import absolute_place
from giaann_dask.store.locking import locked
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.corpus import EncodedCorpus, require_absent
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.training.error_driven import train_network
from giaann_dask.training.options import TrainingOptions
from giaann_dask.training.target import NetworkTarget, open_store
from giaann_dask.training.training_report import TrainingReport


def require_encodable(specification: Specification, out: str | Path) -> None:
    """Raise an error when text cannot be encoded by a specification, or not to a path; no cluster is needed for it.

    Raises
    ------
    SpecificationError
        If networks of the profile are not trained on corpora.
    StoreExistsError
        If something is at the path.
    """
    if not specification.has_columns:
        raise SpecificationError("a corpus of profile best", "profile v1 or v2", "train on the text itself")
    require_absent(Path(out))


@attempt()
def encode(
    inputs: Inputs,
    out: str | Path,
    *,
    client: Client,
    specification: Specification | None = None,
    text: TextOptions | None = None,
    maximum_sequences: int | None = None,
    observer: Observer = ignore,
) -> EncodedCorpus:
    """Encode text into a corpus on Zarr.

    Parameters
    ----------
    inputs : str, Path or sequence of them
        Files, folders, globs or datasets.
    out : str or Path
        Where the corpus will be.
    client : Client
        From `connect`.
    specification : Specification, optional
        Limits of sentences, number of branches, and whether parts of speech are needed.
    text : TextOptions, optional
        How text is tagged.
    maximum_sequences : int, optional
        Stop after so many sequences that pass the length filter.
    observer : callable, optional
        Called with every event.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_test_text
    >>> with gd.connect(workers=0) as client:
    ...     corpus = gd.encode(sample_test_text(), Path(tempfile.mkdtemp()) / "corpus", client=client)
    >>> len(corpus), corpus.tokens
    (40, 642)
    """
    wanted, chosen = specification or Specification(), text or TextOptions()
    require_encodable(wanted, out)
    _, lexicon = decide_text(client, None, names(inputs), wanted, chosen)
    sources = sources_of(wanted, chosen, lexicon)
    kept = chosen.parts_of_speech or sources.filter.parts_of_speech
    sources = replace(sources, filter=replace(sources.filter, parts_of_speech=kept))
    options = StreamOptions.of(wanted, maximum_sequences=maximum_sequences)
    with report_events(client, observer) as reporting:
        return encode_corpus(client, names(inputs), out, sources, options, reporting)


@attempt()
def train(
    inputs: Inputs,
    network: str | Path,
    *,
    client: Client,
    specification: Specification | None = None,
    text: TextOptions | None = None,
    options: TrainingOptions | None = None,
    observer: Observer = ignore,
    stop: Event | None = None,
) -> tuple[Network, TrainingReport]:
    """Train a network, new or existing, on text that it was not trained on before.

    Parameters
    ----------
    inputs : str, Path or sequence of them
        Files, folders, globs, datasets or encoded corpora.
    network : str or Path
        Folder of the network.
    client : Client
        From `connect`.
    specification : Specification, optional
        Of a new network; an existing one keeps its own and refuses another.
    text : TextOptions, optional
        How text is tagged.
    options : TrainingOptions, optional
        Sizes and times.
    observer : callable, optional
        Called with every event.
    stop : threading.Event, optional
        When it is set, training commits rounds in progress and returns.

    Returns
    -------
    Network, TrainingReport

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_test_text
    >>> folder = Path(tempfile.mkdtemp())
    >>> with gd.connect(workers=0) as client:
    ...     network, report = gd.train(sample_test_text(), folder / "evening", client=client)
    ...     _, again = gd.train(sample_test_text(), folder / "evening", client=client)
    >>> report.sequences, again.sequences
    (40, 0)
    >>> network.manifest.connections
    8949
    """
    chosen, path = text or TextOptions(), absolute_place(network)
    with locked(path) as held:
        place = SharedPlace(client, held)
        place.require()
        store = open_store(path)
        wanted, lexicon = decide_text(client, store, names(inputs), specification, chosen)
        sources = sources_of(wanted, chosen, lexicon)
        target = NetworkTarget(place, wanted, sources.ever_pos, store, sources.tokenizer)
        with report_events(client, observer) as reporting:
            run = train_network(client, target, options or TrainingOptions(), reporting, stop)
            report = run.train(names(inputs), sources)
    return Network(path), report


def new_inputs(
    inputs: Inputs,
    network: str | Path,
    *,
    specification: Specification | None = None,
    text: TextOptions | None = None,
) -> list[UnseenInput]:
    """Return the parts of each input that a network, new or existing, was not trained on; see `find_unseen_inputs`."""
    path = absolute_place(network)
    store = NetworkStore(path) if (path / "refs").exists() else None
    reader = None if store is None or store.blank() else store.open(store.head())
    wanted = specification or (Specification() if reader is None else reader.manifest().specification)
    # Which words end a column does not change what a part is.
    sources = sources_of(wanted, text or TextOptions(), EverPos())
    return find_unseen_inputs(names(inputs), sources, () if reader is None else reader.ledger())
