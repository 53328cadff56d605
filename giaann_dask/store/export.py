"""Export a network: connections or counts as one canonical table, dictionaries, and strengths of neurons.

A commit is read in this process, as coordinate arrays in one order that does not depend on regions, batches or
workers. Its model says which arrays (`ExportContents`), and `ordered_connections` sorts regions with little memory.
Tables are written block by block, to ``.npz``, Apache Parquet or a Zarr group, all with the same columns, types and
order of rows.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.dask_types import read_only
from giaann_dask.errors import OptionError, StoreExistsError, require_one_of
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.lazy import import_optional, require_optional
from giaann_dask.local_files import local_path
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.renaming import Renaming
from giaann_dask.runs.run import Run
from giaann_dask.storage import replacing, require_local, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.ordered_connections import OrderedConnections, ordered_connections

Compression: TypeAlias = Literal["default", "none"]
# Rows that are handled in one go: a row group of Parquet, a chunk of Zarr.
BLOCK = 1 << 20
_MARK = "giaann_export"
# Connections whose coordinates are computed in one go; `BLOCK` is a multiple.
CONVERTED = 1 << 17


def read_whole(reader: CommitReader, observer: Observer = ignore) -> Run:
    """Return all connections of a commit as one run; the observer is notified of every run read."""
    stored, runs = reader.manifest().runs, []
    for run in stored:
        runs.append(reader.connections(run.identity))
        observer(StageAdvanced("read", len(runs), len(stored), "runs"))
    return merge_runs(runs)


class ColumnArray(NamedTuple):
    """A coordinate array: its type, and how its values are made of some connections, in their order."""

    dtype: npt.DTypeLike
    of: Callable[[Run], npt.NDArray[Any]]

    def values(self, run: Run) -> npt.NDArray[Any]:
        """Return the values of some connections."""
        return self.of(read_only(run)).astype(self.dtype, copy=False)


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
        Deflate for ``.npz`` and ``.gz``, Zstandard for ``.parquet`` and ``.zarr``, or none, which is faster.

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
                values[filled : filled + len(run)] = columns[name].values(run)
            done, filled = done + len(run), filled + len(run)
            # Let go before the next ones are made, here and where blocks are written.
            del run, values
            if filled == BLOCK or done == rows:
                yield block
                block = {}

    return Table({name: np.dtype(column.dtype) for name, column in columns.items()}, rows, blocks)


def export_names(path: str | Path) -> tuple[Path, Path, Path]:
    """Return the fields of `Exported` for a path; without a suffix it gets ``.npz``.

    Raises
    ------
    OptionError
        If it has a suffix of another format, or is a device or a pipe.
    """
    path = local_path(path)
    require_local(path)
    if path.suffix and path.suffix not in SUFFIXES:
        raise OptionError(
            f"the export {str(path)!r} ends with {path.suffix!r}", ", ".join(SUFFIXES), "name it with such a suffix"
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OptionError(f"the export {str(path)!r} is no file", "a file or a new one", "name one")
    table = path if path.suffix in SUFFIXES else path.with_name(path.name + ".npz")
    return table, table.with_suffix(".json"), table.with_suffix(f".neurons{table.suffix}")


def save_dictionaries(path: Path, values: Mapping[str, Any]) -> None:
    """Write the dictionaries and the specification of an export to a JSON file."""
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of equal length that are computed in blocks.

    Attributes
    ----------
    types : mapping of str to dtype
        Type of each column.
    rows : int
        Length of the columns.
    blocks : callable
        Returns an iterator over blocks of up to `BLOCK` rows, in order, with the named columns; all but the last block
        have `BLOCK` rows. It is called once for each column for ``.npz``, which stores them one after another.
    """

    types: Mapping[str, np.dtype[Any]]
    rows: int
    blocks: Callable[[Sequence[str]], Iterator[Mapping[str, npt.NDArray[Any]]]]

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Table:
        """Return the table of arrays in memory.

        Examples
        --------
        >>> table = Table.of({"a": np.arange(3), "b": np.zeros(3)})
        >>> table.rows, [block["a"].tolist() for block in table.blocks(["a"])]
        (3, [[0, 1, 2]])
        """
        rows = len(next(iter(arrays.values())))

        def blocks(names: Sequence[str]) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
            for start in range(0, rows, BLOCK):
                yield {name: arrays[name][start : start + BLOCK] for name in names}

        return cls({name: array.dtype for name, array in arrays.items()}, rows, blocks)


class TableFile(NamedTuple):
    """Temporary file of a table, and the suffix of its format.

    Attributes
    ----------
    path : Path
        File, or folder of a Zarr group.
    suffix : str
        One of `SUFFIXES`.
    """

    path: Path
    suffix: str

    def write(self, table: Table, compression: Compression = "default", observer: Observer = ignore) -> None:
        """Write a table.

        Parameters
        ----------
        table : Table
            Its columns.
        compression : {"default", "none"}
            Deflate for ``.npz`` and ``.gz``, Zstandard for ``.parquet`` and ``.zarr``, or none, which is faster.
        observer : callable, optional
            Notified of every block, in values.

        Raises
        ------
        OptionError
            If the compression is not one of these.
        """
        require_one_of("compression", compression, get_args(Compression))
        _WRITERS[self.suffix](self.path, _counted(table, observer), compression)


@contextmanager
def replacing_table(path: Path) -> Iterator[TableFile]:
    """Yield a temporary file that takes the place of a table at the end, if there is no error.

    Parameters
    ----------
    path : Path
        Ends with one of `SUFFIXES`.

    Raises
    ------
    MissingDependencyError, StoreExistsError
        See `require_format`.
    """
    require_format(path)
    with (_replacing_group if path.suffix == ".zarr" else replacing)(path) as partial:
        yield TableFile(partial, path.suffix)


def require_format(path: Path) -> None:
    """Check that a table can be written to a path, without writing.

    Raises
    ------
    MissingDependencyError
        If the package of the format is not installed.
    StoreExistsError
        If a Zarr group is to replace a folder that is not an export.
    """
    if path.suffix == ".parquet":
        # Not imported yet, which takes memory while regions are sorted.
        require_optional("pyarrow", "parquet")
    if path.suffix == ".zarr" and path.exists() and not _is_export(path):
        raise StoreExistsError(
            f"{path} exists and is not an exported table", "a new path", "remove it, or write to another path"
        )


def _counted(table: Table, observer: Observer) -> Table:
    """Return a table that notifies an observer of the values that have been written."""
    total = len(table.types) * table.rows
    written = 0

    def blocks(names: Sequence[str]) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        nonlocal written
        for block in table.blocks(names):
            values = sum(map(len, block.values()))
            yield block
            del block
            written += values
            observer(StageAdvanced("write", written, total, "values"))

    return Table(table.types, table.rows, blocks)


def _write_npz(path: Path, table: Table, compression: Compression) -> None:
    """Write an ``.npz`` file with the bytes of NumPy's ``savez_compressed`` or ``savez``."""
    method = zipfile.ZIP_STORED if compression == "none" else zipfile.ZIP_DEFLATED
    with path.open("wb") as file, zipfile.ZipFile(file, "w", method) as archive:
        for name, dtype in table.types.items():
            header = {"descr": dtype.str, "fortran_order": False, "shape": (table.rows,)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for block in table.blocks([name]):
                    member.write(np.ascontiguousarray(block[name]).data)


def _write_parquet(path: Path, table: Table, compression: Compression) -> None:
    """Write a Parquet file with a row group for each block."""
    arrow, parquet = import_optional("pyarrow", "parquet"), import_optional("pyarrow.parquet", "parquet")
    schema = arrow.schema([(name, arrow.from_numpy_dtype(dtype)) for name, dtype in table.types.items()])
    codec = "NONE" if compression == "none" else "ZSTD"
    with parquet.ParquetWriter(path, schema, compression=codec) as writer:
        for block in table.blocks(list(table.types)):
            writer.write_table(arrow.table(dict(block), schema=schema), row_group_size=BLOCK)
            del block


def _write_zarr(path: Path, table: Table, compression: Compression) -> None:
    """Write a Zarr group with an array for each column and a chunk for each block."""
    group = zarr.open_group(path, mode="w", attributes={_MARK: 1})
    codecs: Any = None if compression == "none" else "auto"
    arrays = {
        name: group.create_array(name, shape=(table.rows,), chunks=(BLOCK,), dtype=dtype, compressors=codecs)
        for name, dtype in table.types.items()
    }
    start = 0
    for block in table.blocks(list(table.types)):
        stop = start + len(next(iter(block.values())))
        for name, values in block.items():
            arrays[name][start:stop] = values
        start = stop


@contextmanager
def _replacing_group(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder that takes the place of an exported Zarr group at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, former = (path.with_name(path.name + ending) for ending in (".partial", ".former"))
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        if path.exists():
            path.replace(former)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def _is_export(path: Path) -> bool:
    """Return whether a path is a Zarr group that this module wrote."""
    try:
        return _MARK in zarr.open_group(path, mode="r").attrs
    except (OSError, ValueError, KeyError):
        return False


_WRITERS: Mapping[str, Callable[[Path, Table, Compression], None]] = MappingProxyType(
    {".npz": _write_npz, ".parquet": _write_parquet, ".zarr": _write_zarr}
)
SUFFIXES = tuple(_WRITERS)
