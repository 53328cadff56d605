"""Read the connections of a network of columns: for an export, as a table, or region by region.

Columns and features of a network with canonical flags are numbered in the order of their names, and names that no
trained neuron has are left out, so that an export does not depend on the order of the text.
`giaann_dask.models.columns.connection_table` defines the table.

To find the connections among some columns, those that leave one column, and the columns with the strongest connections
between them, a network is scanned with no more than one region decoded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, pack_neuron, unpack_neuron, unpack_target
from giaann_dask.models.base import NameTable
from giaann_dask.models.columns.connection_table import ConnectionTable, best_of_pairs
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.renaming import ABSENT, Renaming, rank_names
from giaann_dask.runs.run import RegionRun, Run, join_ranges, pointer_of, rows_between
from giaann_dask.spec import Specification
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray, ExportContents, Table, computed_table, read_whole
from giaann_dask.store.ordered_connections import OrderedConnections, ordered_connections, read_runs
from giaann_dask.text.vocabulary import Vocabulary

_NONE: Integers = np.zeros(0, np.int64)


def export_contents(reader: CommitReader) -> ExportContents:
    """Return the contents of an export of a commit."""
    specification = reader.manifest().specification
    renaming = None
    if specification.is_order_free:
        neurons_of = (reader.rows(run.identity, "neurons").sources() for run in reader.manifest().runs)
        with reading(f"network {reader.path}"):
            renaming = rank_names(reader.saved_vocabulary(), neurons_of)

    @contextmanager
    def neurons(_: OrderedConnections, folder: Path) -> Iterator[Table]:
        with ordered_connections(reader, folder, renaming=renaming, table="neurons") as own:
            yield computed_table(neuron_columns(), len(own), own.blocks)

    return ExportContents(connection_columns(specification), lambda: dictionaries(reader, renaming), neurons, renaming)


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
    columns = {name: column.values(run) for name, column in connection_columns(specification).items()}
    return ConnectionTable(**columns, concepts=vocabulary.concepts.copy(), features=vocabulary.features.copy())


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


def _named(vocabulary: Vocabulary, ending: str) -> dict[str, Any]:
    values = {
        "concepts": list(vocabulary.concepts),
        "features": list(vocabulary.features),
        "det": vocabulary.delimiter,
        "prob": list(vocabulary.probable()),
    }
    return {name + ending: value for name, value in values.items()}


class NeuronNames:
    """Names of the neurons of a network of columns.

    Parameters
    ----------
    specification : Specification
        Of the network.
    vocabulary : Vocabulary
        Its dictionaries.
    """

    def __init__(self, specification: Specification, vocabulary: Vocabulary) -> None:
        self._specification, self._vocabulary = specification, vocabulary

    @cached_property
    def segments(self) -> list[str]:
        """See `ConnectionNames.segments`."""
        return segment_names(self._specification)

    def source(self, segment: int, key: int) -> str:
        """See `ConnectionNames.source`."""
        return self.target(key)

    def target(self, key: int) -> str:
        """Return a neuron as column and feature; its column alone for the prime concept neuron."""
        column, feature = (int(part) for part in unpack_neuron(key))
        concept = self._vocabulary.concepts[column]
        return concept if feature == 0 else f"{concept}/{self._vocabulary.features[feature]}"

    def of_arrays(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, NameTable]:
        """Return the concepts and words of both ends; the word of a prime concept neuron is the noun of its column."""
        names: dict[str, NameTable] = {}
        concepts, features = self._vocabulary.concepts, self._vocabulary.features
        words = [*features, *concepts]
        for end in ("src", "tgt"):
            column, feature = arrays[f"{end}_col"], arrays[f"{end}_feat"]
            names[f"{end}_col_name"] = (concepts, column)
            names[f"{end}_feat_name"] = (words, np.where(feature == 0, column + len(features), feature))
        return names


def segment_names(specification: Specification) -> list[str]:
    """Return a name for every segment.

    Examples
    --------
    >>> segment_names(Specification())[1:4]
    ['1 column before', 'same column', '5 or more tokens before']
    """
    columns, features = specification.column_segments, specification.feature_segments
    names = [_distance(columns - 1 - at, "column", specification.column_catch_all and at == 0) for at in range(columns)]
    names += [_distance(features - at, "token", specification.feature_catch_all and at == 0) for at in range(features)]
    return names + ["soma"] * (specification.segments - len(names))


def _distance(steps: int, what: str, catch_all: bool) -> str:
    if steps == 0:
        return "any column" if catch_all else f"same {what}"
    if catch_all:
        return f"{steps} or more {what}s before"
    return f"{steps} {what}{'s' if steps > 1 else ''} before"


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


def _connections_between(run: Run, chosen: npt.NDArray[np.bool_]) -> Run:
    """Return the connections of a run between chosen columns."""
    rows = np.flatnonzero(chosen[unpack_neuron(run.source)[0]])
    # Few rows are left, so that few targets are decoded.
    begin, end = run.pointer[rows], run.pointer[rows + 1]
    at = join_ranges(begin, end - begin)
    kept = chosen[unpack_neuron(unpack_target(run.target[at])[1])[0]]
    per_row = np.add.reduceat(kept.astype(np.int64), pointer_of(end - begin)[:-1]) if len(rows) else _NONE
    full = per_row > 0
    return Run(run.source[rows[full]], pointer_of(per_row[full]), run.target[at[kept]], run.strength[at[kept]])
