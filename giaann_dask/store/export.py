"""Export a network: connections as one canonical table or counts of contexts, dictionaries and neurons.

A commit is read in this process, as coordinate arrays in one order that does not depend on regions, batches or
workers. Columns and features of a network with canonical flags are numbered in the order of their names, and names
that no trained neuron has are left out, so that the export does not depend on the order of the text. A network of
profile ``best`` has counts of contexts instead of connections. `connection_table` defines the table, and
`ordered_connections` sorts regions with little memory.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.increments.contexts import CONTEXTS, EXTENDS, word_key
from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.local_files import local_path
from giaann_dask.runs.merging import merge_encoded
from giaann_dask.runs.packing import unpack
from giaann_dask.runs.renaming import ABSENT, Renaming, rank_names
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.storage import reading, replacing, require_local, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.connection_table import ConnectionTable
from giaann_dask.store.ordered_connections import OrderedConnections, ordered_connections
from giaann_dask.store.table_files import BLOCK, SUFFIXES, Compression, Table, replacing_table
from giaann_dask.text.vocabulary import Vocabulary

# Connections whose coordinates are computed in one go; `BLOCK` is a multiple.
_CONVERTED = 1 << 17


def read_whole(reader: CommitReader, observer: Observer = ignore) -> Run:
    """Return all connections of a commit as one run; the observer is notified of every run read."""
    stored, runs = reader.manifest().runs, []
    for run in stored:
        runs.append(reader.connections(run.identity))
        observer(StageAdvanced("read", len(runs), len(stored), "runs"))
    return merge_encoded(runs, unpack)


def connection_table(reader: CommitReader, observer: Observer = ignore) -> ConnectionTable:
    """Return all connections of a commit as coordinate arrays; the observer is notified of every run.

    Returns
    -------
    ConnectionTable
        Sorted by source column, source feature, segment, target column, target feature and
        branch; strengths as float32, limited as the specification says, names as of the last trained sequence.
    """
    return table_of(read_whole(reader, observer), reader.manifest().specification, reader.saved_vocabulary())


def table_of(run: Run, specification: Specification, vocabulary: Vocabulary) -> ConnectionTable:
    """Return the connections of a run as coordinate arrays, in the order of the run, with the names of a vocabulary."""
    columns = {name: column.of(run).astype(column.dtype) for name, column in connection_columns(specification).items()}
    return ConnectionTable(**columns, concepts=tuple(vocabulary.concepts), features=tuple(vocabulary.features))


def connection_columns(specification: Specification) -> dict[str, ColumnArray]:
    """Return how the coordinate arrays are made of a run, by their names."""

    def of_source(part: int) -> Callable[[Run], npt.NDArray[Any]]:
        return lambda run: np.repeat(unpack_neuron(run.source)[part], np.diff(run.pointer))

    def of_target(part: int) -> Callable[[Run], npt.NDArray[Any]]:
        return lambda run: unpack_neuron(unpack_target(run.target)[1])[part]

    return {
        "src_col": ColumnArray(np.int32, of_source(0)),
        "src_feat": ColumnArray(np.int32, of_source(1)),
        "branch": ColumnArray(np.int8, lambda run: unpack_target(run.target)[2]),
        "seg": ColumnArray(np.int8, lambda run: unpack_target(run.target)[0]),
        "tgt_col": ColumnArray(np.int32, of_target(0)),
        "tgt_feat": ColumnArray(np.int32, of_target(1)),
        "strength": ColumnArray(np.float32, lambda run: specification.strengths(run.strength)),
    }


def neuron_arrays(reader: CommitReader) -> dict[str, npt.NDArray[Any]]:
    """Return the neurons' own strengths of a commit as coordinate arrays.

    Returns
    -------
    dict of str to ndarray
        ``col``, ``feat``, ``seg``, ``branch`` and ``strength`` (float32, whole counts), sorted by
        column, feature, segment and branch.
    """
    run = _read_neurons(reader)
    return {name: column.of(run).astype(column.dtype) for name, column in neuron_columns().items()}


def neuron_columns() -> dict[str, ColumnArray]:
    """Return how the coordinate arrays of the neurons' strengths are made of a run, by their names."""

    def of_source(part: int) -> Callable[[Run], npt.NDArray[Any]]:
        return lambda run: np.repeat(unpack_neuron(run.source)[part], np.diff(run.pointer))

    return {
        "branch": ColumnArray(np.int8, lambda run: unpack_target(run.target)[2]),
        "seg": ColumnArray(np.int8, lambda run: unpack_target(run.target)[0]),
        "col": ColumnArray(np.int32, of_source(0)),
        "feat": ColumnArray(np.int32, of_source(1)),
        "strength": ColumnArray(np.float32, lambda run: run.strength),
    }


def _read_neurons(reader: CommitReader) -> Run:
    """Return the strengths of all neurons of a commit as one run."""
    return merge_encoded([reader.neurons(run.identity) for run in reader.manifest().runs], unpack)


def dictionaries(reader: CommitReader, renaming: Renaming | None = None) -> dict[str, Any]:
    """Return the dictionaries and stored flags of a commit, ready for JSON.

    ``concepts`` and ``features`` list the names by index, ``det`` and ``prob`` the stored delimiter
    and probable flags by feature, as of the last trained sequence, from which inference starts. The
    same under names ending in ``_saved``; those ending in ``_mem`` are as of the last counted
    sequence, from which training goes on. ``specification`` is what strengths depend on, without regions and
    placement. With other identifiers the names of the first kind alone, in the order of these.
    """
    memory, manifest = reader.vocabulary(), reader.manifest()
    saved = reader.saved_vocabulary()
    if renaming is None:
        named = {**_named(saved, ""), **_named(saved, "_saved"), **_named(memory, "_mem")}
    else:
        order = {
            name: np.argsort(ids)[np.count_nonzero(ids == ABSENT) :].tolist()
            for name, ids in (("concepts", renaming.concepts), ("features", renaming.features))
        }
        named = {
            name: [values[at] for at in order["concepts" if name == "concepts" else "features"]]
            for name, values in _named(saved, "").items()
        }
    return {
        **named,
        "specification": manifest.specification.without_regions(),
        "sequences": manifest.sequences,
        "trained": manifest.trained,
        "skipped": manifest.skipped(),
        "tokens": manifest.tokens,
    }


def context_dictionaries(reader: CommitReader) -> dict[str, Any]:
    """Return the words of a commit of profile ``best`` with their keys, and the names of kinds, ready for JSON."""
    manifest = reader.manifest()
    words = sorted(reader.saved_vocabulary().features[1:], key=lambda word: (word_key(word), word))
    return {
        "kinds": {**{str(place): kind.name for place, kind in enumerate(CONTEXTS)}, str(EXTENDS): "extends"},
        "words": words,
        "keys": [word_key(word) for word in words],
        "specification": manifest.specification.without_regions(),
        "sequences": manifest.sequences,
        "tokens": manifest.tokens,
    }


def _named(vocabulary: Vocabulary, ending: str) -> dict[str, Any]:
    values = {
        "concepts": vocabulary.concepts,
        "features": vocabulary.features,
        "det": vocabulary.delimiter,
        "prob": list(vocabulary.probable()),
    }
    return {name + ending: value for name, value in values.items()}


class ColumnArray(NamedTuple):
    """A coordinate array: its type, and how its values are made of some connections, in their order."""

    dtype: npt.DTypeLike
    of: Callable[[Run], npt.NDArray[Any]]


class Exported(NamedTuple):
    """The files of an export: connections, dictionaries, and the neurons' own strengths."""

    connections: Path
    dictionaries: Path
    neurons: Path


class _Contents(NamedTuple):
    """Contents of the three files of an export, computed when each is written; the identifiers of a canonical form."""

    columns: Mapping[str, ColumnArray]
    dictionaries: Callable[[], Mapping[str, Any]]
    neurons: Callable[[OrderedConnections, Path], AbstractContextManager[Table]]
    renaming: Renaming | None = None


def export_network(
    reader: CommitReader, path: str | Path, observer: Observer = ignore, compression: Compression = "default"
) -> Exported:
    """Write a commit to a table of coordinate arrays, and its dictionaries and neurons to files next to it.

    A part of one region is in memory at a time; besides the files, 16 bytes a connection and 48 bytes a source neuron
    are on the disk meanwhile.

    Parameters
    ----------
    reader : CommitReader
        The commit. Of profile ``best``, counts of contexts are written instead of connections, and how often each word
        occurs (``key``, ``count``) instead of the neurons' strengths.
    path : str or Path
        File that ends with ``.npz`` or ``.parquet``, or Zarr group that ends with ``.zarr``. The dictionaries get the
        same name with ``.json``, the neurons' own strengths with, for example, ``.neurons.npz``.
    observer : callable, optional
        Notified of progress.
    compression : {"default", "none"}
        Deflate for ``.npz``, Zstandard for the others; or none.

    Returns
    -------
    Exported

    Raises
    ------
    MissingDependencyError
        If pyarrow is not installed, for Parquet.
    StoreExistsError
        If a Zarr group is to replace a folder that is not an export.
    StoreWriteError
        If the disk is full.
    """
    files = export_names(path)
    # The files appear together, after the last one is complete.
    with (
        writing(str(files.connections)),
        replacing(files.dictionaries) as names,
        replacing_table(files.neurons) as neurons,
        replacing_table(files.connections) as table,
    ):
        contents, folder = _contents(reader), files.connections.parent
        with ordered_connections(reader, folder, observer, contents.renaming) as connections:
            rows = computed_table(contents.columns, len(connections), connections.blocks)
            table.write(rows, compression, observer)
            with writing(str(files.neurons)), contents.neurons(connections, folder) as own:
                neurons.write(own, compression)
        with writing(str(files.dictionaries)):
            save_dictionaries(names, contents.dictionaries())
    return files


def digest_of(reader: CommitReader) -> str:
    """Return the SHA-256 of what an export of a commit contains, in hexadecimal digits.

    Networks with the same digest have the same connections, dictionaries and counts. It is taken of the dictionaries
    as sorted JSON, and of the columns of neurons and connections in blocks of `BLOCK` rows, in the order of the export.
    """
    contents, digest, folder = _contents(reader), hashlib.sha256(), Path(tempfile.gettempdir())
    digest.update(json.dumps(contents.dictionaries(), sort_keys=True).encode())
    with (
        ordered_connections(reader, folder, renaming=contents.renaming) as connections,
        contents.neurons(connections, folder) as neurons,
    ):
        for table in (computed_table(contents.columns, len(connections), connections.blocks), neurons):
            digest.update(json.dumps([list(table.types), table.rows]).encode())
            for block in table.blocks(list(table.types)):
                for values in block.values():
                    digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def computed_table(columns: Mapping[str, ColumnArray], rows: int, runs: Callable[[int], Iterator[Run]]) -> Table:
    """Return coordinate arrays as a table that is computed from blocks of connections of a given size."""

    def blocks(names: Sequence[str]) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        block: dict[str, npt.NDArray[Any]] = {}
        done = filled = 0
        # The connections and temporary arrays of a whole block would take several times its memory.
        for run in runs(_CONVERTED):
            if not block:
                block = {name: np.empty(min(BLOCK, rows - done), columns[name].dtype) for name in names}
                filled = 0
            for name, values in block.items():
                values[filled : filled + len(run)] = columns[name].of(run)
            done, filled = done + len(run), filled + len(run)
            # Let go before the next ones are made, here and where blocks are written.
            del run, values
            if filled == BLOCK or done == rows:
                yield block
                block = {}

    return Table({name: np.dtype(column.dtype) for name, column in columns.items()}, rows, blocks)


def _contents(reader: CommitReader) -> _Contents:
    specification = reader.manifest().specification
    if not specification.has_columns:
        return _Contents(context_columns(), lambda: context_dictionaries(reader), _word_counts)
    renaming = None
    if specification.is_order_free:
        neurons_of = (reader.rows(run.identity, "neurons").source for run in reader.manifest().runs)
        with reading(f"network {reader.path}"):
            renaming = rank_names(reader.saved_vocabulary(), neurons_of)

    @contextmanager
    def neurons(_: OrderedConnections, folder: Path) -> Iterator[Table]:
        with ordered_connections(reader, folder, renaming=renaming, table="neurons") as own:
            yield computed_table(neuron_columns(), len(own), own.blocks)

    return _Contents(connection_columns(specification), lambda: dictionaries(reader, renaming), neurons, renaming)


def export_names(path: str | Path) -> Exported:
    """Return the files of an export to a path; without a suffix of a known format it gets ``.npz``."""
    path = local_path(path)
    require_local(path)
    table = path if path.suffix in SUFFIXES else path.with_name(path.name + ".npz")
    return Exported(table, table.with_suffix(".json"), table.with_suffix(f".neurons{table.suffix}"))


def save_dictionaries(path: Path, values: Mapping[str, Any]) -> None:
    """Write the dictionaries and the specification of an export to a JSON file."""
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")


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
    for block in connections.blocks(_CONVERTED):
        kind, target, _ = unpack_target(block.target)
        found.append((target[kind == 0], block.strength[kind == 0].astype(np.int64)))
    key, count = (np.concatenate(part) for part in zip(*found, strict=True))
    yield Table.of({"key": key, "count": count})
