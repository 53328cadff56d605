"""Export a network of profile ``best``: its counts as coordinate arrays, its words and their keys.

A commit is read in this process, as arrays in one order that does not depend on regions, batches or workers. `export`
exports networks of the other profiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, ignore
from giaann_dask.increments.contexts import CONTEXTS, EXTENDS, word_key
from giaann_dask.keys import unpack_target
from giaann_dask.storage import writing
from giaann_dask.store.export import ColumnArray, Exported, export_names, save_arrays, save_columns, save_dictionaries
from giaann_dask.store.network_store import CommitReader
from giaann_dask.store.ordered_connections import OrderedConnections, ordered_connections


def context_columns() -> dict[str, ColumnArray]:
    """Return how the coordinate arrays are made of a run, by their names.

    ``context`` is a key, ``kind`` a place in ``kinds`` of the dictionaries, ``target`` the key of the word, or of
    the shorter context that a longer one extends. Their order is that of context, kind and target.
    """
    return {
        "context": ColumnArray(np.int64, lambda run: np.repeat(run.source, np.diff(run.pointer))),
        "kind": ColumnArray(np.int8, lambda run: unpack_target(run.target)[0]),
        "target": ColumnArray(np.int64, lambda run: unpack_target(run.target)[1]),
        "count": ColumnArray(np.int64, lambda run: run.strength),
    }


def _words_alone(connections: OrderedConnections) -> dict[str, npt.NDArray[Any]]:
    """Return the words by key, and how often each occurs."""
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for block in connections.blocks():
        kind, target, _ = unpack_target(block.target)
        found.append((target[kind == 0], block.strength[kind == 0].astype(np.int64)))
    key, count = (np.concatenate(part) for part in zip(*found, strict=True))
    return {"key": key, "count": count}


def export_contexts(reader: CommitReader, path: str | Path, observer: Observer = ignore) -> Exported:
    """Write a commit's counts to an ``.npz`` file, and its dictionaries and neurons to files next to it.

    Parameters
    ----------
    reader : CommitReader
        The commit, of profile ``best``.
    path : str or Path
        The ``.npz`` file; words, the names of kinds and the specification get the same name with
        ``.json``, how often each word occurs at all (``key``, ``count``) with ``.neurons.npz``.
    observer : callable, optional
        Notified of progress.

    Returns
    -------
    Exported

    Raises
    ------
    StoreWriteError
        If the disk is full.
    """
    files = export_names(path)
    manifest = reader.manifest()
    words = sorted(reader.saved_vocabulary().features[1:], key=lambda word: (word_key(word), word))
    description = {
        "kinds": {**{str(place): kind.name for place, kind in enumerate(CONTEXTS)}, str(EXTENDS): "extends"},
        "words": words,
        "keys": [word_key(word) for word in words],
        "specification": manifest.specification.without_regions(),
        "sequences": manifest.sequences,
        "tokens": manifest.tokens,
    }
    with files.replacing() as partial:
        with (
            writing(str(files.connections)),
            ordered_connections(reader, files.connections.parent, observer) as counts,
        ):
            save_columns(partial.connections, context_columns(), counts, observer)
            with writing(str(files.neurons)):
                save_arrays(partial.neurons, _words_alone(counts))
        with writing(str(files.dictionaries)):
            save_dictionaries(partial.dictionaries, description)
    return files
