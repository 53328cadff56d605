"""Add networks, forget documents, compare and prune networks, from Python.

The work is done by `giaann_dask.algebra`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from giaann_dask.algebra.addition import add_networks
from giaann_dask.algebra.algebra_options import Overlap, OverlapOptions, PruningOptions
from giaann_dask.algebra.certificates import RemovalReport
from giaann_dask.algebra.comparison import ChangedPrediction, NetworkDifference, compare_networks
from giaann_dask.algebra.indexing import index_network
from giaann_dask.algebra.pruning import prune_network
from giaann_dask.algebra.removal import forget_documents
from giaann_dask.api.cluster import ClientLike, observe_work
from giaann_dask.api.network import Network
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import commit_sources, read_inputs
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.keywords import names_keywords
from giaann_dask.object_urls import absolute_place
from giaann_dask.storage import require_writable
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.unfinished import BRANCH

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.api.texts import Inputs
    from giaann_dask.models.generation_options import GenerationOptions
    from giaann_dask.text.memory_inputs import Source

NetworkLike = str | os.PathLike[str] | Network


@names_keywords
def add(
    networks: Sequence[NetworkLike],
    out: str | Path,
    *,
    client: ClientLike | None = None,
    overlap: Overlap = "refuse",
    texts: Inputs | None = None,
    text: TextOptions | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    **keywords: Any,
) -> Network:
    """Add networks that were trained separately into a new network, which equals one training on all their text.

    Parameters
    ----------
    networks : sequence of str, Path or Network
        Two or more, of one specification with canonical flags or of profile ``contexts``; regions and placement may
        differ.
    out : str or Path
        Folder of the sum.
    overlap : {"refuse", "once"}
        What to do with text that two networks hold: refuse, or count it once. A network whose whole text earlier ones
        hold is left out. If a network shares part of its text, that part is subtracted, as an earlier commit of the
        networks that holds nothing else, or as `texts`.
    texts : str, Path, Files or iterable of texts, optional
        The text that networks share, as it was given to `train`, if no commit holds only that text.
    text : TextOptions, optional
        How it is tagged; as in training.
    client, progress, observer
        See `giaann_dask.train`.
    **keywords
        Fields of `text`, and of the options within these, by their names.

    Returns
    -------
    Network

    Raises
    ------
    GiaannError
        If the networks cannot be added, or the sum cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> folder = Path(tempfile.mkdtemp())
    >>> with gd.connect(workers=0):
    ...     for name, text in (("one", "The old dog slept in the warm sun all day long."),
    ...                        ("two", "A young cat sat on the grey mat in the cold hall.")):
    ...         _ = gd.train([text], folder / name, profile="contexts")
    ...     both = gd.add([folder / "one", folder / "two"], folder / "both")
    >>> both.manifest.sequences
    2
    """
    readers = [_reader(network) for network in networks]
    options = OverlapOptions(overlap=overlap)
    if texts is not None and readers:
        inputs, chosen = read_inputs(texts, text)
        options = OverlapOptions(overlap=overlap, inputs=inputs, sources=commit_sources(readers[0], chosen))
    with observe_work(client, Workload(), progress, observer) as (used, reporting):
        return Network(out, add_networks(used, readers, absolute_place(out), options, reporting))


@names_keywords
def forget(
    network: NetworkLike,
    documents: Inputs,
    *,
    client: ClientLike | None = None,
    texts: Inputs | None = None,
    text: TextOptions | None = None,
    renumber: bool = False,
    purge: bool = False,
    certificate: str | Path | None = None,
    branch: str | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    **keywords: Any,
) -> RemovalReport:
    """Subtract documents from a network, exactly, and commit the result.

    Parameters
    ----------
    network : str, Path or Network
        With canonical flags or of profile ``contexts``.
    documents : str, Path, Files or iterable of texts
        The documents, as they were given to `train`: the text itself is needed, because the network does not store it.
        Or identities of parts of text in its ledger (`Network.text_parts`; several as `Files`), whose text is in
        `texts`.
    texts : str, Path, Files or iterable of texts, optional
        Text of the identities: files or a corpus that contain it; other text is ignored. By default it is read where
        training read it, which an index records.
    text : TextOptions, optional
        How text is tagged; as in training.
    renumber : bool
        Remove names that no remaining text has; `purge` does so, too.
    purge : bool
        Remove all earlier commits, tags and other branches, which may hold the documents, with their files, and the
        tables of these commits in the user's cache folder on this machine and on those of all workers.
    certificate : str or Path, optional
        File that the report is written to as JSON. A purge keeps it beside the network until it has been written, so
        after an interruption the same call writes it.
    branch : str, optional
        Branch that the commit is made on, ``main`` by default; the others keep the documents.
    client, progress, observer
        See `giaann_dask.train`.
    **keywords
        Fields of `text`, and of the options within these, by their names.

    Returns
    -------
    RemovalReport
        What was removed, with digests that others can recompute.

    Raises
    ------
    GiaannError
        If the network does not hold the documents completely; it stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> dog = "The old dog slept in the warm sun all day long."
    >>> cat = "A young cat sat on the grey mat in the cold hall."
    >>> folder = Path(tempfile.mkdtemp()) / "animals"
    >>> with gd.connect(workers=0):
    ...     for each in (dog, cat):
    ...         animals = gd.train([each], folder, profile="contexts")
    ...     report = gd.forget(animals, [cat])
    >>> report.sequences, gd.open(folder).manifest.sequences
    (1, 1)
    """
    if purge and branch is not None:
        raise OptionError(f"purge with branch {branch}", "one of them", "check it out first", names=("purge", "branch"))
    if certificate is not None:
        require_writable(Path(certificate))
    read, chosen = read_inputs(documents, text, identities=True)
    held: Sequence[Source] = ()
    if texts is not None:
        held, chosen = read_inputs(texts, text)
    store = NetworkStore(os.fspath(network), branch or BRANCH)
    reader = store.open(store.head())
    sources = commit_sources(reader, chosen)
    with observe_work(client, Workload(read, chosen.reading, None), progress, observer) as (used, reporting):
        return forget_documents(
            used,
            store,
            read,
            sources,
            texts=held,
            renumber=renumber,
            purge=purge,
            certificate=None if certificate is None else Path(certificate),
            observer=reporting,
        )


@names_keywords
def index(
    network: NetworkLike,
    texts: Inputs,
    *,
    client: ClientLike | None = None,
    text: TextOptions | None = None,
    branch: str | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    **keywords: Any,
) -> Network:
    """Build the index of the sequences of a network that was trained without one, and commit it.

    The index is the same as if the network had been trained with ``Specification(trace=True)``, and further training
    extends it. A network that has an index does not change.

    Parameters
    ----------
    network : str, Path or Network
        It was trained on all tokens of complete parts of text, and not pruned.
    texts : str, Path, Files or iterable of texts
        All its training text, as it was given to `train`, because the network does not store it. Other text is skipped.
        With flags of history, in the order of training.
    text : TextOptions, optional
        How text is tagged; as in training.
    branch : str, optional
        Branch that the commit is made on, ``main`` by default.
    client, progress, observer
        See `giaann_dask.train`.
    **keywords
        Fields of `text`, and of the options within these, by their names.

    Returns
    -------
    Network
        At the commit with the index.

    Raises
    ------
    GiaannError
        If text is missing, or is not what the network was trained on; it stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> with gd.connect(workers=0):
    ...     network = gd.train(sample_text(), Path(tempfile.mkdtemp()) / "village")
    ...     network = gd.index(network, sample_text())
    >>> network.trace("The old miller carried the flour", max_tokens=1).tokens[0].word
    'to'
    """
    read, chosen = read_inputs(texts, text)
    store = NetworkStore(os.fspath(network), branch or BRANCH)
    reader = store.open(store.head())
    sources = commit_sources(reader, chosen)
    with observe_work(client, Workload(read, chosen.reading, None), progress, observer) as (used, reporting):
        return Network(os.fspath(network), index_network(used, store, read, sources, reporting))


@names_keywords
def diff(
    old: NetworkLike,
    new: NetworkLike,
    *,
    client: ClientLike | None = None,
    largest: int = 10,
    prompts: Sequence[str] = (),
    max_tokens: int = 1,
    progress: bool | None = None,
    observer: Observer = ignore,
) -> NetworkDifference:
    """Compare two networks, or two commits of one; `draw_difference` draws what is returned.

    Parameters
    ----------
    old, new : str, Path or Network
        A `Network` is compared as of its commit, a path as of its last one.
    largest : int
        Number of connections of each kind to list.
    prompts : sequence of str
        Texts that both networks continue; those that they continue differently are listed.
    max_tokens : int
        Maximum number of tokens of each continuation.
    client, progress, observer
        See `giaann_dask.train`.

    Returns
    -------
    NetworkDifference

    Raises
    ------
    GiaannError
        If one cannot be read, or they do not count alike.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> folder = Path(tempfile.mkdtemp()) / "dogs"
    >>> with gd.connect(workers=0):
    ...     old = gd.train(["The old dog slept in the warm sun all day long."], folder, profile="contexts")
    ...     new = gd.train(["The old dog slept in the cold hall all night long."], folder, profile="contexts")
    ...     difference = gd.diff(old, new)
    >>> difference.is_empty, difference.connections["gone"]
    (False, 0)
    """
    from giaann_dask.models.generation_options import GenerationOptions

    readers = _reader(old), _reader(new)
    options = GenerationOptions(max_tokens=max_tokens, runners_up=1, reasons=0)
    with observe_work(client, Workload(), progress, observer) as (used, reporting):
        difference = compare_networks(used, *readers, largest=largest, observer=reporting)
        changed = _changed_predictions(used, readers, list(prompts), options) if prompts else ()
        return replace(difference, prompts=len(prompts), predictions=changed)


def _changed_predictions(
    client: Client, readers: Sequence[CommitReader], prompts: list[str], options: GenerationOptions
) -> tuple[ChangedPrediction, ...]:
    """Return the prompts that two networks continue differently."""
    texts = []
    for reader in readers:
        with Network(reader.path, reader.commit).sessions(prompts, client=client, options=options) as stream:
            texts.append([continuation.text for continuation in stream.continuations()])
    return tuple(ChangedPrediction(*each) for each in zip(prompts, *texts, strict=True) if each[1] != each[2])


@names_keywords
def prune(
    network: NetworkLike,
    out: str | Path,
    *,
    min_strength: float | None = None,
    keep: float | None = None,
    client: ClientLike | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
) -> Network:
    """Write the strongest connections of a network to a new network; give `min_strength` or `keep`.

    A pruned network predicts, is compared, exported and evaluated like any other. It is not the sum over its text any
    more, so it cannot be trained, added, or have documents forgotten.

    Parameters
    ----------
    network : str, Path or Network
        It stays as it is.
    out : str or Path
        Folder of the new network.
    min_strength : float, optional
        Least strength of connections that stay, as stored; of profile ``contexts`` the least count.
    keep : float, optional
        Share of the connections that stay, the strongest ones, at most: those of the same strength all stay or all go.
    client, progress, observer
        See `giaann_dask.train`.

    Returns
    -------
    Network

    Raises
    ------
    GiaannError
        If no connection would stay, or the new network cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> folder = Path(tempfile.mkdtemp())
    >>> with gd.connect(workers=0):
    ...     whole = gd.train(sample_text(), folder / "whole")
    ...     small = gd.prune(whole, folder / "small", keep=0.25)
    >>> small.manifest.connections / whole.manifest.connections <= 0.25
    True
    """
    options, reader = PruningOptions(min_strength=min_strength, keep=keep), _reader(network)
    with observe_work(client, Workload(), progress, observer) as (used, reporting):
        return Network(out, prune_network(used, reader, absolute_place(out), options, reporting))


def _reader(network: NetworkLike) -> CommitReader:
    """Return the reader of a network's last commit, or of the commit at which it was opened."""
    store = NetworkStore(os.fspath(network))
    return store.open(network.commit if isinstance(network, Network) else store.head())
