"""Add networks, forget documents, and compare networks, from Python.

The work is done by `giaann_dask.algebra`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.algebra.addition import Overlap, add_networks
from giaann_dask.algebra.comparison import NetworkDifference, compare_networks
from giaann_dask.algebra.removal import RemovalReport, forget_documents
from giaann_dask.api.cluster import ClientLike, observe_work
from giaann_dask.api.network import Network
from giaann_dask.api.texts import TextOptions, read_inputs, sources_of
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.events import Observer, ignore
from giaann_dask.storage import absolute_place
from giaann_dask.store.network_store import CommitReader, NetworkStore

if TYPE_CHECKING:
    from giaann_dask.api.texts import Inputs

NetworkLike = str | os.PathLike[str] | Network


def add(
    networks: Sequence[NetworkLike],
    out: str | Path,
    *,
    client: ClientLike | None = None,
    overlap: Overlap = "refuse",
    progress: bool | None = None,
    observer: Observer = ignore,
) -> Network:
    """Add networks that were trained apart into a new network, which equals one training on all their text.

    Parameters
    ----------
    networks : sequence of str, Path or Network
        Two or more, of one specification with ``flags="canonical"`` or of profile ``best``; regions and placement may
        differ.
    out : str or Path
        Folder of the sum.
    client : Client, cluster or str, optional
        The current client by default, else that of a new local cluster.
    overlap : {"refuse", "once"}
        What to do with text that two networks hold: refuse, or leave out a network all of whose text the earlier ones
        hold.
    progress : bool, optional
        Whether progress bars are shown; by default in notebooks.
    observer : callable, optional
        Called with every event.

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
    ...         _ = gd.train([text], folder / name, profile="best")
    ...     both = gd.add([folder / "one", folder / "two"], folder / "both")
    >>> both.manifest.sequences
    2
    """
    readers = [_reader(network) for network in networks]
    with observe_work(client, Workload(), progress, observer) as (used, reporting):
        commit: str = add_networks(used, readers, absolute_place(out), overlap, reporting)
    return Network(out, commit)


def forget(
    network: NetworkLike,
    inputs: Inputs,
    *,
    client: ClientLike | None = None,
    text: TextOptions | None = None,
    renumber: bool = False,
    purge: bool = False,
    progress: bool | None = None,
    observer: Observer = ignore,
) -> RemovalReport:
    """Subtract documents from a network, exactly, and commit the result.

    Parameters
    ----------
    network : str, Path or Network
        With ``flags="canonical"`` or of profile ``best``.
    inputs : str, Path, Files or iterable of texts
        The documents, as they were given to `train`: the text itself is needed, for the network does not store it.
    client : Client, cluster or str, optional
        The current client by default, else that of a new local cluster.
    text : TextOptions, optional
        How text is tagged; as in training.
    renumber : bool
        Leave out names that no remaining text has.
    purge : bool
        Remove all earlier commits, which still hold the documents, with their files.
    progress : bool, optional
        Whether progress bars are shown; by default in notebooks.
    observer : callable, optional
        Called with every event.

    Returns
    -------
    RemovalReport
        What was removed, with digests that others can recompute.

    Raises
    ------
    GiaannError
        If the network does not hold the documents completely; it stays as it was.
    """
    read, chosen = read_inputs(inputs, text)
    store = NetworkStore(os.fspath(network))
    reader = store.open(store.head())
    sources = sources_of(reader.manifest().specification, chosen, reader.tokenizer() or reader.ever_pos())
    with observe_work(client, Workload(read, chosen.reading.text_field, None), progress, observer) as (used, reporting):
        report: RemovalReport = forget_documents(
            used, store, read, sources, renumber=renumber, purge=purge, observer=reporting
        )
    return report


def diff(
    old: NetworkLike,
    new: NetworkLike,
    *,
    client: ClientLike | None = None,
    largest: int = 10,
    progress: bool | None = None,
    observer: Observer = ignore,
) -> NetworkDifference:
    """Compare two networks, or two commits of one.

    Parameters
    ----------
    old, new : str, Path or Network
        A `Network` is compared as of its commit, a path as of its last one.
    client : Client, cluster or str, optional
        The current client by default, else that of a new local cluster.
    largest : int
        How many connections of each kind are named.
    progress : bool, optional
        Whether progress bars are shown; by default in notebooks.
    observer : callable, optional
        Called with every event.

    Returns
    -------
    NetworkDifference

    Raises
    ------
    GiaannError
        If one cannot be read, or they do not count alike.
    """
    readers = _reader(old), _reader(new)
    with observe_work(client, Workload(), progress, observer) as (used, reporting):
        difference: NetworkDifference = compare_networks(used, *readers, largest=largest, observer=reporting)
    return difference


def _reader(network: NetworkLike) -> CommitReader:
    """Return the reader of a network's last commit, or of the commit at which it was opened."""
    store = NetworkStore(os.fspath(network))
    return store.open(network.commit if isinstance(network, Network) else store.head())
