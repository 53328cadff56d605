"""Decode some rows of a packed run, without its other chunks.

The caller passes a function that returns encoded entries of the run by name (`ReadEntries`), so nothing here depends
on where a run is stored. Whole runs are decoded by `packing`; `giaann_dask.store.run_io` reads entries of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.runs.packed_arrays import ArrayLayout, decode_array, decode_chunk, read_layout, require_intact
from giaann_dask.runs.packing import TARGET_ARRAYS, target_key

Segments: TypeAlias = npt.NDArray[np.uint32]
# Returns the encoded bytes of the entries with these names; entries that do not exist are left out.
ReadEntries: TypeAlias = Callable[[Sequence[str]], Mapping[str, bytes]]

_SOURCE_ARRAYS = ("source_column", "source_feature")


def read_sources(read: ReadEntries) -> Integers:
    """Return the source neurons of a run, ascending; int64, shape ``(rows,)``.

    Raises
    ------
    StoreDamagedError
        If they cannot be read.
    """
    column, feature = _decoded(read, _SOURCE_ARRAYS)
    require_intact(len(column) == len(feature), "the rows of a run contradict each other")
    return pack_neuron(column, feature)


def read_rows(read: ReadEntries, wanted: Integers) -> tuple[Integers, Integers, Integers, Segments]:
    """Return the rows of a run that belong to some source neurons, without their strengths.

    Parameters
    ----------
    read : callable
        Reads entries of the run.
    wanted : ndarray
        Source neurons, ascending; int64.

    Returns
    -------
    source : ndarray
        Those of them that the run has; int64, shape ``(rows,)``.
    pointer : ndarray
        Where the targets of each begin and, at the end, how many there are; int64, shape ``(rows + 1,)``.
    key, segments : ndarray
        See `giaann_dask.runs.target_sets.TargetSets`; int64 and uint32, shape ``(targets,)``.

    Raises
    ------
    StoreDamagedError
        As far as the arrays show it that are needed.
    """
    column, feature, counts = _decoded(read, (*_SOURCE_ARRAYS, "row_targets"))
    require_intact(len(column) == len(feature) == len(counts), "the rows of a run contradict each other")
    source, row_targets = pack_neuron(column, feature), counts.astype(np.int64)
    rows = np.flatnonzero(among(source, wanted))
    lengths, begins = row_targets[rows], (np.cumsum(row_targets) - row_targets)[rows]
    pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.repeat(begins - pointer[:-1], lengths) + np.arange(pointer[-1])
    *fields, segments = _values_at(read, TARGET_ARRAYS, places)
    return source[rows], pointer, target_key(*fields), segments.astype(np.uint32)


def among(values: Integers, sorted_values: Integers) -> npt.NDArray[np.bool_]:
    """Return which values are among others, which ascend.

    Examples
    --------
    >>> among(np.array([1, 4, 9]), np.array([2, 4])).tolist()
    [False, True, False]
    """
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(sorted_values, values)
    return np.equal(sorted_values[np.minimum(places, len(sorted_values) - 1)], values)


def _decoded(read: ReadEntries, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Return whole arrays of a run."""
    entries, layouts = _layouts(read, names)
    chunks = [layout.entry(number) for layout in layouts for number in range(layout.chunks)]
    entries = {**entries, **read(chunks)}
    return [decode_array(name, entries)[0] for name in names]


def _values_at(read: ReadEntries, names: Sequence[str], places: Integers) -> list[npt.NDArray[Any]]:
    """Return the values of arrays of one length at ascending places, without reading chunks that have none of them."""
    _, layouts = _layouts(read, names)
    needed = [_chunks_of(layout, places) for layout in layouts]
    entries = read([layout.entry(each) for layout, parts in zip(layouts, needed, strict=True) for each in parts])
    found = []
    for layout, parts in zip(layouts, needed, strict=True):
        values = np.empty(len(places), layout.dtype)
        for number, part in parts.items():
            values[part] = decode_chunk(layout, number, entries)[places[part] - number * layout.chunk]
        found.append(values)
    return found


def _chunks_of(layout: ArrayLayout, places: Integers) -> dict[int, slice]:
    """Return the chunks of an array that have some ascending places, and which of the places each has."""
    end = int(places[-1]) + 1 if len(places) else 0
    require_intact(end <= layout.length, f"{layout.name} of a run has {layout.length} values", f"{end} or more")
    begins = np.searchsorted(places, np.arange(0, layout.length + layout.chunk, layout.chunk)).tolist()
    parts = {number: slice(*pair) for number, pair in enumerate(pairwise(begins))}
    return {number: part for number, part in parts.items() if part.start < part.stop}


def _layouts(read: ReadEntries, names: Sequence[str]) -> tuple[Mapping[str, bytes], list[ArrayLayout]]:
    """Return the metadata of arrays as they are stored, and what they say."""
    entries = read([f"{name}/zarr.json" for name in names])
    return entries, [read_layout(name, entries) for name in names]
