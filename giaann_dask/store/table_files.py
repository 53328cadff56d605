"""Write named columns of equal length to a file, block by block: ``.npz``, Apache Parquet or a Zarr group.

`export` says which columns there are. Every format has the same columns, types and order of rows.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import StoreExistsError, require_one_of
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.lazy import import_optional, require_optional
from giaann_dask.storage import replacing

Compression: TypeAlias = Literal["default", "none"]
COMPRESSIONS = get_args(Compression)

# Rows that are handled in one go: a row group of Parquet, a chunk of Zarr.
BLOCK = 1 << 20
_MARK = "giaann_export"


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
            Deflate for ``.npz``, Zstandard for the others; or none.
        observer : callable, optional
            Notified of every block, in values.

        Raises
        ------
        OptionError
            If the compression is not one of these.
        """
        require_one_of("compression", compression, COMPRESSIONS)
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
