"""Make the arrays and dictionaries of an export from a network of columns, and name its segments and neurons.

Columns and features of a network with canonical flags are numbered in the order of their names, and names that no
trained neuron has are left out, so that the export does not depend on the order of the text.
`giaann_dask.models.columns.connection_table` defines the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, ignore
from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.models.base import NameTable
from giaann_dask.models.columns.connection_table import ConnectionTable
from giaann_dask.runs.renaming import ABSENT, Renaming, rank_names
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray, ExportContents, computed_table, read_whole
from giaann_dask.store.ordered_connections import OrderedConnections, ordered_connections
from giaann_dask.store.table_files import Table
from giaann_dask.text.vocabulary import Vocabulary


def export_contents(reader: CommitReader) -> ExportContents:
    """Return the contents of an export of a commit."""
    specification = reader.manifest().specification
    renaming = None
    if specification.is_order_free:
        neurons_of = (reader.rows(run.identity, "neurons").source for run in reader.manifest().runs)
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
    columns = {name: column.of(run).astype(column.dtype) for name, column in connection_columns(specification).items()}
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
