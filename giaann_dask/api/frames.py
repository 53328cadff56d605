"""Make data frames and arrays of connections: in this process, or lazily as Dask collections with a part per region.

A part depends on the keys of its region and of the region's runs (`giaann_dask.cluster.regions`): the worker that has
these in memory computes it, or else one that reads the store. Nothing is gathered. `columns` uses this for single
columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from dask import delayed
from dask._task_spec import Task, TaskRef
from dask.delayed import Delayed

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import RunPlace, merge_region, open_run, region_key, run_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.lazy import import_optional
from giaann_dask.models import model_of
from giaann_dask.models.columns.scanning import read_column, select_column
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

EXTRA = "dataframe"


def coordinate_columns(reader: CommitReader) -> dict[str, ColumnArray]:
    """Return how the arrays of a table are made of connections."""
    specification = reader.manifest().specification
    return model_of(specification).coordinates(specification)


def to_records(reader: CommitReader, run: Run) -> npt.NDArray[np.void]:
    """Return the connections of a run as an array of records, with the fields and types of an export."""
    columns = coordinate_columns(reader)
    records = np.empty(len(run), record_type(columns))
    for name, column in columns.items():
        records[name] = column.of(run)
    return records


def record_type(columns: dict[str, ColumnArray]) -> np.dtype[np.void]:
    """Return the type of the records of `to_records`."""
    return np.dtype([(name, column.dtype) for name, column in columns.items()])


def to_frame(reader: CommitReader, run: Run, names: bool) -> pd.DataFrame:
    """Return the connections of a run as a data frame.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    run : Run
        Some of its connections.
    names : bool
        Whether to add the names of concepts and features, or of kinds of contexts and words.

    Raises
    ------
    MissingDependencyError
        If pandas is not installed.
    """
    pandas = import_optional("pandas", EXTRA)
    arrays = {name: column.of(run).astype(column.dtype) for name, column in coordinate_columns(reader).items()}
    if not names:
        return pandas.DataFrame(arrays)
    specification, vocabulary = reader.manifest().specification, reader.saved_vocabulary()
    added = model_of(specification).names(specification, vocabulary).of_arrays(arrays)
    string = pandas.StringDtype("pyarrow")
    strings = {name: pandas.array(known, dtype=string).take(at, allow_fill=True) for name, (known, at) in added.items()}
    return pandas.DataFrame({**arrays, **strings})


def frame_of_run(run: Run, path: str, commit: str, names: bool) -> pd.DataFrame:
    """Make a data frame of the connections of a run, as a task."""
    return to_frame(open_commit(path, commit), run, names)


def records_of_run(run: Run, path: str, commit: str) -> npt.NDArray[np.void]:
    """Make records of the connections of a run, as a task."""
    return to_records(open_commit(path, commit), run)


def open_column(path: str, commit: str, column: int, region: int) -> Run:
    """Read the connections that leave a column's neurons in a region, as a task."""
    return read_column(open_commit(path, commit), column, [region]).connections


class _UnfusedTask(Task):  # type: ignore[misc]
    """Task that optimisations do not join with the one that needs it, so that it keeps its key."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        return True


def lazy_regions(reader: CommitReader) -> list[Delayed]:
    """Return the merged runs of all live regions, under the keys of `giaann_dask.models.columns.handle`."""
    return [_lazy_region(reader, region, runs) for region, runs in run_places(reader)]


def _lazy_region(reader: CommitReader, region: int, runs: Mapping[str, RunPlace]) -> Delayed:
    key = region_key(reader, region)
    tasks = {run: _UnfusedTask(run, open_run, *place) for run, place in runs.items()}
    return Delayed(key, {**tasks, key: _UnfusedTask(key, merge_region, *map(TaskRef, runs))})


def lazy_column(reader: CommitReader, column: int, held: Sequence[int]) -> list[Delayed]:
    """Return the runs of a column, one for each of its regions.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    column : int
        Number of the column.
    held : sequence of int
        Regions that a worker has in memory; of all others only the column is read.
    """
    place, found = (str(reader.path), reader.commit), []
    places = dict(run_places(reader)) if held else {}
    for region in reader.placement().regions_of_column(column):
        if region in held:
            key = task_key("select_column", *place, column, region)
            found.append(_task(select_column, key, _lazy_region(reader, region, places[region]), column))
        else:
            key = task_key("open_column", *place, column, region)
            found.append(_task(open_column, key, *place, column, region))
    return found


def lazy_frame(reader: CommitReader, runs: Sequence[Delayed], names: bool) -> dd.DataFrame:
    """Return a Dask data frame with a partition for each run; see `to_frame`."""
    frames = import_optional("dask.dataframe", EXTRA)
    place = (str(reader.path), reader.commit, names)
    parts = [_task(frame_of_run, task_key("frame", run.key, names), run, *place) for run in runs]
    meta = to_frame(reader, Run.empty(), names)
    return frames.from_delayed(parts, meta=meta, prefix="connections", verify_meta=False)


def lazy_records(reader: CommitReader, runs: Sequence[Delayed], lengths: Sequence[int | None]) -> da.Array:
    """Return a Dask array of records with a chunk for each run, some of unknown length; see `to_records`."""
    import dask.array as da

    place, kind = (str(reader.path), reader.commit), record_type(coordinate_columns(reader))
    parts = [_task(records_of_run, task_key("records", run.key), run, *place) for run in runs]
    shapes = [(math.nan if length is None else length,) for length in lengths]
    blocks = [da.from_delayed(part, shape, dtype=kind) for part, shape in zip(parts, shapes, strict=True)]
    return da.concatenate(blocks)


def region_lengths(reader: CommitReader) -> list[int | None]:
    """Return the number of connections of every live region; None where its runs have some in common, uncounted."""
    manifest, found = reader.manifest(), []
    runs = manifest.runs_by_region()
    for region in reader.placement().live():
        each = [run.connections for run in runs.get(region, ())]
        counted = manifest.counts.get(region)
        found.append(sum(each) if len(each) < 2 else counted.connections if counted else None)
    return found


def _task(function: Any, key: str, *arguments: Any) -> Delayed:
    return delayed(function, pure=True)(*arguments, dask_key_name=key)
