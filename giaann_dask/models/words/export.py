"""Make the arrays and dictionaries of an export from counts of words after contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from giaann_dask.keys import unpack_target, word_key
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import CONVERTED, ColumnArray, ExportContents
from giaann_dask.store.ordered_connections import OrderedConnections
from giaann_dask.store.table_files import Table


def export_contents(reader: CommitReader, kinds: Mapping[str, str]) -> ExportContents:
    """Return the contents of an export of a commit, given the names of segments by number."""
    return ExportContents(context_columns(), lambda: context_dictionaries(reader, kinds), _word_counts)


def context_dictionaries(reader: CommitReader, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the words of a commit with their keys, and the names of kinds, ready for JSON."""
    manifest = reader.manifest()
    words = sorted(reader.saved_vocabulary().features[1:], key=lambda word: (word_key(word), word))
    return {
        "kinds": dict(kinds),
        "words": words,
        "keys": [word_key(word) for word in words],
        "specification": manifest.specification.without_regions(),
        "sequences": manifest.sequences,
        "tokens": manifest.tokens,
    }


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


@contextmanager
def _word_counts(connections: OrderedConnections, _folder: Path) -> Iterator[Table]:
    """Yield the table of the words by key, and how often each occurs."""
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for block in connections.blocks(CONVERTED):
        kind, target, _ = unpack_target(block.target)
        found.append((target[kind == 0], block.strength[kind == 0].astype(np.int64)))
    key, count = (np.concatenate(part) for part in zip(*found, strict=True))
    yield Table.of({"key": key, "count": count})
