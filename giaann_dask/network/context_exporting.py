"""Exporting a network of profile ``best``: its counts as coordinate arrays, its words and their keys.

Covers: reading a commit in this process, as arrays in one order that does not depend on regions,
batches or workers. Does not cover: networks of columns (`exporting`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, ignore
from giaann_dask.network.contexts import CONTEXTS, EXTENDS, word_key
from giaann_dask.network.exporting import Exported, export_names, read_whole, save_arrays
from giaann_dask.network.keys import unpack_target
from giaann_dask.network.store import CommitReader
from giaann_dask.storage import writing


def context_arrays(reader: CommitReader, observer: Observer = ignore) -> dict[str, npt.NDArray[Any]]:
    """Return the counts of a commit as coordinate arrays.

    Returns
    -------
    dict of str to ndarray
        ``context`` (key, int64), ``kind`` (place in ``kinds`` of the dictionaries, int8), ``target`` (key of
        the word, or of the shorter context that a longer one extends; int64) and ``count`` (int64), sorted
        by context, kind and target.
    """
    run = read_whole(reader, observer)
    kind, target, _ = unpack_target(run.target)
    return {
        "context": np.repeat(run.source, np.diff(run.pointer)),
        "kind": kind.astype(np.int8),
        "target": target.astype(np.int64),
        "count": run.strength.astype(np.int64),
    }


def export_contexts(reader: CommitReader, path: str | Path, observer: Observer = ignore) -> Exported:
    """Write a commit's counts to an ``.npz`` file, and what belongs to them beside it.

    Parameters
    ----------
    reader : CommitReader
        The commit, of profile ``best``.
    path : str or Path
        The ``.npz`` file; words, the names of kinds and the specification get the same name with
        ``.json``, how often each word occurs at all (``key``, ``count``) with ``.neurons.npz``.
    observer : callable, optional
        Told of what has been read.

    Returns
    -------
    Exported

    Raises
    ------
    StoreWriteError
        If the disk is full.
    """
    files = export_names(path)
    arrays, manifest = context_arrays(reader, observer), reader.manifest()
    words = sorted(reader.saved_vocabulary().features[1:], key=lambda word: (word_key(word), word))
    told = {
        "kinds": {**{str(place): kind.name for place, kind in enumerate(CONTEXTS)}, str(EXTENDS): "extends"},
        "words": words,
        "keys": [word_key(word) for word in words],
        "specification": manifest.specification.as_dict(),
        "sequences": manifest.sequences,
        "tokens": manifest.tokens,
    }
    alone = arrays["kind"] == 0
    with writing(str(files.connections)):
        files.connections.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(files.connections, arrays)
        save_arrays(files.neurons, {"key": arrays["target"][alone], "count": arrays["count"][alone]})
        files.dictionaries.write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")
    return files
