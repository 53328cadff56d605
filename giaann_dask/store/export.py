"""Export a network: connections or counts as one canonical table, dictionaries, and strengths of neurons.

A commit is read in this process, as coordinate arrays in one order that does not depend on regions, batches or
workers. Its model says which arrays (`ExportContents`), and `ordered_connections` sorts regions with little memory.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.local_files import local_path
from giaann_dask.runs.merging import merge_encoded
from giaann_dask.runs.packing import unpack
from giaann_dask.runs.renaming import Renaming
from giaann_dask.runs.run import Run
from giaann_dask.storage import replacing, require_local, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.ordered_connections import OrderedConnections, ordered_connections
from giaann_dask.store.table_files import BLOCK, SUFFIXES, Compression, Table, replacing_table

# Connections whose coordinates are computed in one go; `BLOCK` is a multiple.
CONVERTED = 1 << 17


def read_whole(reader: CommitReader, observer: Observer = ignore) -> Run:
    """Return all connections of a commit as one run; the observer is notified of every run read."""
    stored, runs = reader.manifest().runs, []
    for run in stored:
        runs.append(reader.connections(run.identity))
        observer(StageAdvanced("read", len(runs), len(stored), "runs"))
    return merge_encoded(runs, unpack)


class ColumnArray(NamedTuple):
    """A coordinate array: its type, and how its values are made of some connections, in their order."""

    dtype: npt.DTypeLike
    of: Callable[[Run], npt.NDArray[Any]]


class Exported(NamedTuple):
    """The files of an export: connections, dictionaries, and the neurons' own strengths; or one file alone."""

    connections: Path
    dictionaries: Path | None = None
    neurons: Path | None = None


class ExportContents(NamedTuple):
    """Contents of the three files of an export, computed when each is written; the identifiers of a canonical form."""

    columns: Mapping[str, ColumnArray]
    dictionaries: Callable[[], Mapping[str, Any]]
    neurons: Callable[[OrderedConnections, Path], AbstractContextManager[Table]]
    renaming: Renaming | None = None


def write_export(
    reader: CommitReader,
    contents: ExportContents,
    path: str | Path,
    observer: Observer = ignore,
    compression: Compression = "default",
) -> Exported:
    """Write a commit to a table of coordinate arrays, and its dictionaries and neurons to files next to it.

    A part of one region is in memory at a time; besides the files, 16 bytes a connection and 48 bytes a source neuron
    are on the disk meanwhile.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    contents : ExportContents
        Its arrays and dictionaries, as its model makes them.
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
    file, dictionaries, own_strengths = export_names(path)
    # The files appear together, after the last one is complete.
    with (
        writing(str(file)),
        replacing(dictionaries) as names,
        replacing_table(own_strengths) as neurons,
        replacing_table(file) as table,
    ):
        folder = file.parent
        with ordered_connections(reader, folder, observer, contents.renaming) as connections:
            rows = computed_table(contents.columns, len(connections), connections.blocks)
            table.write(rows, compression, observer)
            with writing(str(own_strengths)), contents.neurons(connections, folder) as own:
                neurons.write(own, compression)
        with writing(str(dictionaries)):
            save_dictionaries(names, contents.dictionaries())
    return Exported(file, dictionaries, own_strengths)


def digest_of_contents(reader: CommitReader, contents: ExportContents) -> str:
    """Return the SHA-256 of what an export of a commit contains, in hexadecimal digits.

    Networks with the same digest have the same connections, dictionaries and counts. It is taken of the dictionaries
    as sorted JSON, and of the columns of neurons and connections in blocks of `BLOCK` rows, in the order of the export.
    """
    digest, folder = hashlib.sha256(), Path(tempfile.gettempdir())
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
        for run in runs(CONVERTED):
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


def export_names(path: str | Path) -> tuple[Path, Path, Path]:
    """Return the fields of `Exported` for a path; without a suffix of a known format it gets ``.npz``."""
    path = local_path(path)
    require_local(path)
    table = path if path.suffix in SUFFIXES else path.with_name(path.name + ".npz")
    return table, table.with_suffix(".json"), table.with_suffix(f".neurons{table.suffix}")


def save_dictionaries(path: Path, values: Mapping[str, Any]) -> None:
    """Write the dictionaries and the specification of an export to a JSON file."""
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
