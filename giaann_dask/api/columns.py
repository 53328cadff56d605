"""Present concept columns of a network as objects, and connections as data frames and arrays.

`Columns` finds columns by concept; `Column` has the features, connections and place of one of them, read from the store
when they are asked for, and converts it to pandas, Dask, Zarr and networkx.

Data frames and arrays are made in this process, or lazily as Dask collections with a part per region. A part depends on
the keys of its region and of the region's runs (`giaann_dask.cluster.regions`): the worker that has these in memory
computes it, or else one that reads the store. Nothing is gathered.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from dask import delayed
from dask.delayed import Delayed

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import RunPlace, merge_region, open_run, region_holders, region_key, run_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.errors import OptionError, StoreExistsError, require_option
from giaann_dask.keys import pack_neuron, unpack_neuron
from giaann_dask.keywords import names_keywords
from giaann_dask.lazy import import_optional
from giaann_dask.library_internals import Task, TaskRef
from giaann_dask.local_files import local_name
from giaann_dask.models import model_of
from giaann_dask.models.columns.connection_table import COORDINATES, ConnectionTable, missing_concept
from giaann_dask.models.columns.export import read_column, require_columns, select_column, table_of
from giaann_dask.representations import Summarised, Summary, xml_text
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.storage import create_array, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import networkx as nx
    import pandas as pd

# Shown of many.
_SHOWN = 8
# Installs pandas and dask.dataframe.
EXTRA = "dataframe"
# Of the arrays of a table, for readers of `Column.to_zarr`.
_MEANINGS = {
    "src_col": "concept column of the source neuron",
    "src_feat": "feature of the source neuron; 0 is the prime concept neuron",
    "branch": "dendritic branch of the target neuron",
    "seg": "segment of the branch",
    "tgt_col": "concept column of the target neuron",
    "tgt_feat": "feature of the target neuron; 0 is the prime concept neuron",
    "strength": "strength of the connection",
}


class ColumnFeature(NamedTuple):
    """A feature of a column.

    Attributes
    ----------
    name : str
        The word; of feature 0, the prime concept neuron, the concept.
    number : int
        Of the feature in the network.
    connections : int
        Connections that leave it.
    """

    name: str
    number: int
    connections: int


class ColumnTarget(NamedTuple):
    """A neuron that connections of a column lead to.

    Attributes
    ----------
    concept, feature : str
        Names of its column and its feature; of a prime concept neuron the concept twice.
    strength : float
        Sum of the strengths from all features of the column, over branches and segments.
    """

    concept: str
    feature: str
    strength: float


@names_keywords
class Column(Summarised):
    """A concept column of a network at a commit; made by `Columns` and ``network["miller"]``.

    What is stored of it is read on first use: of the runs of its region only the chunks that hold it.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    vocabulary : Vocabulary
        Its saved dictionaries.
    index : int
        Number of the column.

    Attributes
    ----------
    name : str
        The concept.
    index : int
        Number of the column.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> path = Path(tempfile.mkdtemp()) / "village"
    >>> with gd.connect(workers=0) as client:
    ...     trained = gd.train(sample_text(), path, client=client)
    >>> miller = gd.Network(path)["miller"]
    >>> miller.features[0].name, miller.strongest(1)[0].concept
    ('miller', 'miller')
    """

    def __init__(self, reader: CommitReader, vocabulary: Vocabulary, index: int) -> None:
        self._reader, self._vocabulary = reader, vocabulary
        self.name, self.index = vocabulary.concepts[index], index

    @cached_property
    def regions(self) -> tuple[int, ...]:
        """Regions that hold it: one, or those that a column too large for one is divided among by feature."""
        return self._reader.placement().regions_of_column(self.index)

    @property
    def region(self) -> int:
        """Region that holds its prime concept neuron."""
        return self.regions[0]

    @property
    def worker(self) -> str | None:
        """Address of the worker that has `region` in memory, None where none has; see `workers`."""
        return self.workers.get(self.region)

    @property
    def workers(self) -> dict[int, str]:
        """Workers that have its regions in memory, by region, as the scheduler of the current Dask client says now.

        Regions are in memory while a network is open on a cluster, as by a session or a server.
        """
        return region_holders(self._reader, self.regions)

    @cached_property
    def _stored(self) -> RegionRun:
        return read_column(self._reader, self.index, self.regions)

    @cached_property
    def connections(self) -> ConnectionTable:
        """Connections that leave the column, ordered by source feature, segment, target column and feature, branch."""
        return table_of(self._stored.connections, self._reader.manifest().specification, self._vocabulary)

    def select(self, *, branch: int | None = None, segment: int | None = None) -> ConnectionTable:
        """Return the connections on a dendritic branch, on a segment, or on a segment of a branch.

        Raises
        ------
        OptionError
            If the network has no such branch or segment.
        """
        table, kept = self.connections, np.ones(len(self.connections), np.bool_)
        specification = self._reader.manifest().specification
        limits = {"branch": specification.branches, "segment": specification.segments}
        for name, array, chosen in (("branch", table.branch, branch), ("segment", table.seg, segment)):
            if chosen is None:
                continue
            if not 0 <= chosen < limits[name]:
                raise OptionError(f"{name} is {chosen}", f"0 to {limits[name] - 1}", "set it to one of these")
            kept &= array == chosen
        arrays = {name: getattr(table, name)[kept] for name in (*COORDINATES, "strength")}
        return ConnectionTable(**arrays, concepts=table.concepts, features=table.features)

    @property
    def connection_counts(self) -> npt.NDArray[np.int64]:
        """Number of connections by branch and segment; int64, shape ``(branches, segments)``."""
        table, specification = self.connections, self._reader.manifest().specification
        shape = specification.branches, specification.segments
        place = table.branch.astype(np.int64) * shape[1] + table.seg
        return np.bincount(place, minlength=shape[0] * shape[1]).astype(np.int64).reshape(shape)

    @property
    def features(self) -> tuple[ColumnFeature, ...]:
        """Features of the column, by number: those that text has trained in it."""
        run, neurons, _ = self._stored
        counts = dict(zip(run.source.tolist(), np.diff(run.pointer).tolist(), strict=True))
        keys = np.union1d(neurons.source, run.source)
        numbers = unpack_neuron(keys)[1].tolist()
        pairs = zip(numbers, keys.tolist(), strict=True)
        return tuple(ColumnFeature(self._word(self.index, at), at, counts.get(key, 0)) for at, key in pairs)

    def strongest(self, count: int = 10) -> list[ColumnTarget]:
        """Return the neurons that the strongest connections lead to; of equal ones the first by column and feature.

        Raises
        ------
        OptionError
            If the count is below 1.
        """
        require_option(count >= 1, "count", count, "1 or more")
        table = self.connections
        keys, at = np.unique(pack_neuron(table.tgt_col, table.tgt_feat), return_inverse=True)
        strength = np.bincount(at, table.strength, len(keys))
        best = np.argsort(-strength, kind="stable")[:count]
        ends = zip(*(part.tolist() for part in unpack_neuron(keys[best])), strength[best].tolist(), strict=True)
        return [ColumnTarget(table.concepts[c], self._word(c, f), total) for c, f, total in ends]

    def _word(self, column: int, feature: int) -> str:
        return self._vocabulary.features[feature] if feature else self._vocabulary.concepts[column]

    def to_pandas(self, *, names: bool = True) -> pd.DataFrame:
        """Return the connections as a data frame, in the order of `connections`.

        Parameters
        ----------
        names : bool
            Whether to add the names of concepts and features (``src_col_name`` and so on, pyarrow strings).

        Returns
        -------
        pandas.DataFrame
            ``src_col``, ``src_feat``, ``tgt_col``, ``tgt_feat`` (int32), ``branch``, ``seg`` (int8) and
            ``strength`` (float32), as in an export.

        Raises
        ------
        MissingDependencyError
            If pandas is not installed.
        """
        return to_frame(self._reader, self._stored.connections, names)

    def to_dask_dataframe(self, *, names: bool = True) -> dd.DataFrame:
        """Return the same as `to_pandas` as a Dask data frame, with a partition for each of its regions.

        Where a worker has a region in memory the partition is computed there, else by a worker that reads the column
        from the store. Nothing is read here but the dictionaries.
        """
        return lazy_frame(self._reader, lazy_column(self._reader, self.index, list(self.workers)), names)

    def to_dask_array(self) -> da.Array:
        """Return the connections as a Dask array of records, computed as in `to_dask_dataframe`.

        Returns
        -------
        dask.array.Array
            Shape ``(connections,)``, of unknown length until ``compute_chunk_sizes``. Its dtype has the fields of
            `to_pandas` without names, so that ``array["strength"]`` is an array of strengths.
        """
        runs = lazy_column(self._reader, self.index, list(self.workers))
        return lazy_records(self._reader, runs, [None] * len(runs))

    def to_zarr(self, store: Any) -> zarr.Group:
        """Write the connections as a Zarr group.

        Parameters
        ----------
        store : str, Path or zarr.abc.store.Store
            Where nothing is yet.

        Returns
        -------
        zarr.Group
            An array for each field of `connections`, with an attribute ``meaning``. Attributes of the group are
            ``concept``, ``column``, ``network``, ``commit``, and the names of the ``concepts`` and ``features`` that
            occur, by number.

        Raises
        ------
        StoreExistsError
            If there is a Zarr group or array already.
        StoreWriteError
            If the disk is full.
        """
        table = self.connections
        place = local_name(store) if isinstance(store, str | Path) else store
        with writing(f"column {self.name}"):
            try:
                group = zarr.create_group(place, zarr_format=3)
            except zarr.errors.ContainsGroupError as error:
                raise StoreExistsError(f"{store} holds a Zarr group", "a new place", "name another folder") from error
            except zarr.errors.ContainsArrayError as error:
                raise StoreExistsError(f"{store} holds a Zarr array", "a new place", "name another folder") from error
            for name, meaning in _MEANINGS.items():
                create_array(group, name, getattr(table, name)).attrs["meaning"] = meaning
            group.update_attributes(
                {
                    "concept": self.name,
                    "column": self.index,
                    "network": str(self._reader.path),
                    "commit": self._reader.commit,
                    "concepts": _used(table.concepts, table.src_col, table.tgt_col),
                    "features": _used(table.features, table.src_feat, table.tgt_feat),
                }
            )
        return group

    def to_networkx(self) -> nx.MultiDiGraph:
        """Return the connections as a graph.

        Returns
        -------
        networkx.MultiDiGraph
            Nodes are (column, feature) with their names ``concept`` and ``feature``, in which characters that XML
            does not have are escaped. Edges have the attributes ``branch``, ``segment`` and ``strength``, and the key
            ``branch * segments + segment``, an integer, so that networkx writes and reads them as GEXF, GraphML, GML
            and JSON. Its Pajek files have no strengths, and cannot be read where a name has an apostrophe.
        """
        import networkx as nx

        table, segments = self.connections, self._reader.manifest().specification.segments
        graph = nx.MultiDiGraph(concept=xml_text(self.name), commit=self._reader.commit)
        rows = zip(*(getattr(table, name).tolist() for name in (*COORDINATES, "strength")), strict=True)
        for source, feature, branch, segment, *target, strength in rows:
            values = {"branch": branch, "segment": segment, "strength": strength}
            graph.add_edge((source, feature), tuple(target), key=branch * segments + segment, **values)
        for (column, feature), node in graph.nodes(data=True):
            names = self._vocabulary.concepts[column], self._word(column, feature)
            node.update(zip(("concept", "feature"), map(xml_text, names), strict=True))
        return graph

    def summary(self) -> Summary:
        """Return the lines that represent the column."""
        features, targets = self.features, self.strongest(_SHOWN)
        workers = len(set(self.workers.values()))
        words = [feature.name for feature in sorted(features[1:], key=lambda each: -each.connections)[:_SHOWN]]
        more = "" if len(features) <= _SHOWN + 1 else ", …"
        rows = (
            ("column", f"{self.index:,}"),
            ("regions" if len(self.regions) > 1 else "region", ", ".join(map(str, self.regions))),
            ("in memory of", f"{workers or 'no'} worker{'s' if workers > 1 else ''}"),
            ("connections", f"{len(self.connections):,}"),
            ("features", f"{len(features):,}: {', '.join(words)}{more}" if words else str(len(features))),
            ("strongest", "\n".join(f"{t.feature} in {t.concept}  {t.strength:,.1f}" for t in targets) or "none"),
        )
        return Summary(f"Column {self.name}", rows)

    def _repr_html_(self) -> str:
        """Return the summary with a small picture, for notebooks."""
        if not len(self.connections):
            return super()._repr_html_()
        from giaann_dask.diagnostics.pictures.draw_options import rendered
        from giaann_dask.diagnostics.pictures.drawing import draw_column

        picture = base64.b64encode(rendered(draw_column(self.connections, self.index), "svg", text=True)).decode()
        # As an image, whose identifiers are its own on a page with several.
        style = "display:block;max-width:100%;height:auto"
        return f'{super()._repr_html_()}<img style="{style}" alt="" src="data:image/svg+xml;base64,{picture}">'


class Columns(Summarised, Mapping[str, Column]):
    """Concept columns of a network by concept, in the order of their numbers.

    Concepts are spelled as the dictionary has them: mostly lemmas of nouns, in the singular. Nothing is read until
    it is asked for, and of connections no more than those of a column.

    Parameters
    ----------
    reader : CommitReader
        The commit.

    Raises
    ------
    OptionError
        If the network is of profile ``contexts``, which has no columns.
    """

    def __init__(self, reader: CommitReader) -> None:
        require_columns(reader)
        self._reader = reader

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._reader.saved_vocabulary()

    def __getitem__(self, concept: str) -> Column:
        """Return a column.

        Raises
        ------
        ConceptMissingError
            If there is no such concept; the message names those that are spelled alike. It is a KeyError.
        """
        index = self._vocabulary.concept(concept) if isinstance(concept, str) else None
        if index is None:
            raise missing_concept(concept, self._vocabulary.concepts)
        return Column(self._reader, self._vocabulary, index)

    def __contains__(self, concept: object) -> bool:
        return isinstance(concept, str) and self._vocabulary.concept(concept) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._vocabulary.concepts)

    def __len__(self) -> int:
        return len(self._vocabulary.concepts)

    def summary(self) -> Summary:
        """Return the lines that represent the columns."""
        some = self._vocabulary.concepts[:_SHOWN]
        more = "" if len(self) <= _SHOWN else ", …"
        rows = (("concepts", f"{len(self):,}"), ("first", ", ".join(some) + more))
        return Summary(f"Columns of network {self._reader.path}", rows)


def _used(names: Any, *numbers: npt.NDArray[np.integer[Any]]) -> dict[str, str]:
    """Return the names of the numbers that occur, by number."""
    return {str(at): names[at] for at in np.unique(np.concatenate(numbers)).tolist()}


def coordinate_columns(reader: CommitReader) -> dict[str, ColumnArray]:
    """Return how the arrays of a table are made of connections."""
    specification = reader.manifest().specification
    return model_of(specification).coordinates(specification)


def to_records(reader: CommitReader, run: Run) -> npt.NDArray[np.void]:
    """Return the connections of a run as an array of records, with the fields and types of an export."""
    columns = coordinate_columns(reader)
    records = np.empty(len(run), record_type(columns))
    for name, column in columns.items():
        records[name] = column.values(run)
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
    arrays = {name: column.values(run) for name, column in coordinate_columns(reader).items()}
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
    """Return the merged runs of all live regions, under keys that depend on the commit alone."""
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
