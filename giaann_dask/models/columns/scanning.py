"""Scan a network region by region, with no more than one region decoded at a time.

Finds the connections among some columns, those that leave one column, and the columns with the strongest connections
between them. `export` reads all connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.keys import Integers, pack_neuron, unpack_neuron, unpack_target
from giaann_dask.models.columns.connection_table import ConnectionTable, best_of_pairs
from giaann_dask.models.columns.export import table_of
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.run import RegionRun, Run, rows_between
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.ordered_connections import read_runs


def require_columns(reader: CommitReader) -> None:
    """Raise an `OptionError` for a network that has no columns."""
    specification = reader.manifest().specification
    if not specification.traits.columns:
        received = f"columns of a network of profile {specification.profile}"
        raise OptionError(received, "profile v1 or v2", "use report, or export its counts")


def read_regions(reader: CommitReader) -> Iterator[Run]:
    """Yield the connections of every region that has any, one region after the other."""
    for runs in reader.manifest().runs_by_region().values():
        yield read_runs(reader, runs)


def columns_of(run: Run) -> tuple[Integers, Integers]:
    """Return source and target column of every connection of a run, int64."""
    source = np.repeat(unpack_neuron(run.source)[0], np.diff(run.pointer))
    return source, unpack_neuron(unpack_target(run.target)[1])[0]


def read_columns(reader: CommitReader, columns: Iterable[int]) -> ConnectionTable:
    """Return the connections between some columns.

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``.
    columns : iterable of int
        Numbers of concept columns.
    """
    manifest, vocabulary = reader.manifest(), reader.saved_vocabulary()
    chosen = np.isin(np.arange(max(manifest.concepts, 1)), np.fromiter(columns, np.int64))
    parts = [_connections_between(run, chosen) for run in read_regions(reader)]
    return table_of(merge_runs(parts), manifest.specification, vocabulary)


def read_column(reader: CommitReader, column: int, regions: Collection[int] | None = None) -> RegionRun:
    """Return the connections that leave the neurons of a column, and the strengths of these neurons.

    Of the runs of its regions only the chunks are read that hold them (see `giaann_dask.runs.packed_rows.RowReader`).

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``.
    column : int
        Number of the column.
    regions : collection of int, optional
        Some regions of a column that is divided among several; all by default.

    Raises
    ------
    StoreDamagedError
        If they cannot be read.
    """
    wanted = reader.placement().regions_of_column(column) if regions is None else regions
    ends = pack_neuron([column, column + 1], 0).tolist()
    runs = [run.identity for run in reader.manifest().runs if run.region in wanted]
    with reading(f"network {reader.path}"):
        connections, neurons = (
            merge_runs([reader.rows(run, table).between(*ends) for run in runs]) for table in ("connections", "neurons")
        )
    return RegionRun(connections, neurons)


def select_column(run: Run, column: int) -> Run:
    """Return the connections of a run that leave the neurons of a column, as views."""
    first, last = np.searchsorted(run.source, pack_neuron([column, column + 1], 0)).tolist()
    return rows_between(run, first, last)


def _column_pairs(run: Run, concepts: int) -> tuple[Integers, npt.NDArray[np.float64]]:
    """Return the connected pairs of columns of a run.

    Returns
    -------
    pairs : ndarray
        ``source * concepts + target``, ascending, each once; int64, shape ``(pairs,)``.
    strength : ndarray
        Sum of their strengths in units, float64.
    """
    source, target = columns_of(run)
    pairs, where = np.unique(source * concepts + target, return_inverse=True)
    return pairs, np.bincount(where, run.strength, len(pairs)).astype(np.float64)


def find_best_columns(reader: CommitReader, count: int) -> list[int]:
    """Return the columns that are most strongly connected with each other.

    As `giaann_dask.models.columns.connection_table.ConnectionTable.best_connected` chooses them; holds one decoded
    region at a time, and a number for each connected pair of columns.
    """
    manifest = reader.manifest()
    concepts = manifest.saved_concepts
    found = [_column_pairs(run, concepts) for run in read_regions(reader)]
    if not found:
        return []
    pairs, where = np.unique(np.concatenate([one for one, _ in found]), return_inverse=True)
    units = np.bincount(where, np.concatenate([strength for _, strength in found]), len(pairs))
    return best_of_pairs(pairs, units.astype(np.float64), concepts, count)


def find_columns(reader: CommitReader, names: Sequence[str]) -> list[int]:
    """Return the numbers of concept columns by name; see `ConnectionTable.find_columns`."""
    empty = table_of(Run.empty(), reader.manifest().specification, reader.saved_vocabulary())
    return empty.find_columns(names)


_NONE: Integers = np.zeros(0, np.int64)


def _connections_between(run: Run, chosen: npt.NDArray[np.bool_]) -> Run:
    """Return the connections of a run between chosen columns."""
    rows = np.flatnonzero(chosen[unpack_neuron(run.source)[0]])
    # Few rows are left, so that few targets are decoded.
    begin, end = run.pointer[rows], run.pointer[rows + 1]
    at = np.concatenate([np.arange(b, e) for b, e in zip(begin, end, strict=True)] or [_NONE])
    kept = chosen[unpack_neuron(unpack_target(run.target[at])[1])[0]]
    per_row = np.add.reduceat(kept.astype(np.int64), _starts(end - begin)) if len(rows) else _NONE
    full = per_row > 0
    pointer = np.concatenate([[0], np.cumsum(per_row[full])]).astype(np.int64)
    return Run(run.source[rows[full]], pointer, run.target[at[kept]], run.strength[at[kept]])


def _starts(lengths: Integers) -> Integers:
    """Return where each row begins; no row is empty."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
