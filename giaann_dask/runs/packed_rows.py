"""Read some rows of a packed run by source neuron, decoding only the chunks that have them.

`packing` has the arrays of a packed run, and decodes it as a whole or in blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron, unpack_neuron
from giaann_dask.runs.packed_arrays import (
    GROUP_KEY,
    VERSION_GAPS,
    ArrayLayout,
    decode_array,
    decode_chunk,
    decode_frames,
    read_header,
    read_layout,
    require_intact,
)
from giaann_dask.runs.packing import TARGET_ARRAYS, decode_targets, target_key
from giaann_dask.runs.run import Run, join_ranges

# Rows of a run between two marks of `RowReader`.
_MARKED = 1 << 10
# Bytes of decoded frames that a reader keeps for further rows: those of some rows, a small part of a region.
_KEPT_BYTES = 4 << 20
Segments: TypeAlias = npt.NDArray[np.uint32]
# Returns the encoded bytes of the entries with these names; entries that do not exist are left out.
ReadEntries: TypeAlias = Callable[[Sequence[str]], Mapping[str, bytes]]
# An array, one of its chunks, and one of the frames of that.
_Frame: TypeAlias = tuple[str, int, int]

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
    *fields, segments = _values_at(read, TARGET_ARRAYS, join_ranges(begins, lengths))
    return source[rows], pointer, target_key(*fields), segments.astype(np.uint32)


class RowReader:
    """Read rows of a packed run by source neuron, decoding only the frames of chunks that have their targets.

    Sources and numbers of targets are read at once, and kept as narrow as they are stored. Of the segments, which also
    say where the changes of strength begin, all chunks up to the last row are read if there are any changes. Frames
    used last are kept within `_KEPT_BYTES`, until `release`.

    Parameters
    ----------
    read : callable
        Reads entries of the run.

    Attributes
    ----------
    decoded : int
        Values that were decoded for rows so far, those of frames that were decoded again included.

    Raises
    ------
    StoreDamagedError
        As far as the arrays show it that are needed.
    """

    def __init__(self, read: ReadEntries) -> None:
        self._read = read
        header = read_header(read([GROUP_KEY]))
        self._strength = np.int32 if header["strength_bits"] == 32 else np.int64
        self._size, self._gaps = header["connections"], header["version"] == VERSION_GAPS
        column, feature, counts = _decoded(read, (*_SOURCE_ARRAYS, "row_targets"))
        require_intact(len(column) == len(feature) == len(counts), "the rows of a run contradict each other")
        self._column, self._feature, self._counts = column, feature, counts
        # Targets before every so many rows: few, because there may be more rows than can be kept as wide integers.
        whole = len(counts) - len(counts) % _MARKED
        sums = counts[:whole].reshape(-1, _MARKED).sum(axis=1, dtype=np.int64)
        self._marks = np.cumsum([0, *sums.tolist()])
        names = (*TARGET_ARRAYS, "strength", "strength_change")
        self._layouts = dict(zip(names, _layouts(read, names)[1], strict=True))
        self._frames: OrderedDict[_Frame, npt.NDArray[Any]] = OrderedDict()
        self._kept_bytes = 0
        self.decoded = 0
        # Connections before each chunk of the segments, as far as they are counted.
        self._connections = [0]

    def between(self, low: int, high: int) -> Run:
        """Return the rows whose source neurons lie between two keys, the second not included.

        Raises
        ------
        StoreDamagedError
            As far as the arrays show it that are needed.
        """
        from giaann_dask.runs.target_sets import spread_targets

        rows = slice(self._row_at(low), self._row_at(high))
        if rows.start >= rows.stop:
            return replace(Run.empty(), strength=np.zeros(0, self._strength))
        begin, end = self._targets_before(rows.start), self._targets_before(rows.stop)
        changing = bool(self._layouts["strength_change"].length)
        parts = [(name, begin, end) for name in (*TARGET_ARRAYS, "strength")]
        parts.append(self._segments_before(begin) if changing else ("target_segments", begin, begin))
        *fields, segments, strength, before = self._values(parts)
        size = int(np.bitwise_count(segments).sum(dtype=np.int64))
        changes = self._connections_before(begin, before) - begin if changing else 0
        (change,) = self._values([("strength_change", changes, changes + size - (end - begin))])
        row_targets = self._counts[rows].astype(np.int64)
        sets = decode_targets(row_targets, fields, (segments, strength, change), gaps=self._gaps)
        pointer = np.zeros(rows.stop - rows.start + 1, np.int64)
        source = pack_neuron(self._column[rows], self._feature[rows])
        run = Run(source, pointer, np.empty(size, np.int64), np.empty(size, self._strength))
        intact = spread_targets(sets, run.pointer, run.target, run.strength)
        require_intact(intact, "the targets, segments and strengths of a run contradict each other")
        return run

    @property
    def values(self) -> int:
        """Number of all values that rows are made of."""
        return sum(layout.length for layout in self._layouts.values())

    @property
    def source(self) -> Integers:
        """Source neurons, ascending; int64, shape ``(rows,)``."""
        return pack_neuron(self._column, self._feature)

    @property
    def row_targets(self) -> Integers:
        """Numbers of distinct targets of the sources; int64, shape ``(rows,)``."""
        return self._counts.astype(np.int64)

    def release(self) -> None:
        """Let decoded frames go; what is needed of them again is read again."""
        self._frames.clear()
        self._kept_bytes = 0

    def require_complete(self) -> None:
        """Check that the run has as many connections as it says, which reads its segments.

        Raises
        ------
        StoreDamagedError
            If it has not, or has targets of no row.
        """
        targets = self._targets_before(len(self._counts))
        (segments,) = self._values([self._segments_before(targets)])
        found = self._layouts["target_segments"].length, self._connections_before(targets, segments)
        require_intact(found == (targets, self._size), f"a run has {found} targets and connections")

    def _row_at(self, neuron: int) -> int:
        """Return the first row whose source is not below a neuron."""
        column, feature = (int(part) for part in unpack_neuron(neuron))
        rows = slice(*(_place(self._column, column + more) for more in (0, 1)))
        return int(rows.start) + _place(self._feature[rows], feature)

    def _targets_before(self, row: int) -> int:
        """Return the number of targets of the rows before one."""
        mark = row // _MARKED
        return int(self._marks[mark]) + int(self._counts[mark * _MARKED : row].sum(dtype=np.int64))

    def _values(self, parts: Sequence[tuple[str, int, int]]) -> list[npt.NDArray[Any]]:
        """Return the values of arrays, each from one place to another, reading what is missing of them together."""
        needed = [self._frames_of(*part) for part in parts]
        found = self._decode(frame for frames in needed for frame in frames)
        values = []
        for (name, begin, end), frames in zip(parts, needed, strict=True):
            layout = self._layouts[name]
            _, number, frame = frames[0] if frames else (name, 0, 0)
            first = number * layout.chunk + frame * layout.frame
            arrays = [found[each] for each in frames]
            joined = arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros(0, layout.dtype), *arrays])
            values.append(joined[begin - first : end - first])
        return values

    def _frames_of(self, name: str, begin: int, end: int) -> list[_Frame]:
        """Return the frames of an array that have its values from one place to another."""
        layout = self._layouts[name]
        intact = 0 <= begin <= end <= layout.length
        require_intact(intact, f"{name} of a run has {layout.length} values", f"{end} or more")
        frames = []
        while begin < end:
            number, inside = divmod(begin, layout.chunk)
            frame = inside // layout.frame
            frames.append((name, number, frame))
            begin = number * layout.chunk + min((frame + 1) * layout.frame, layout.chunk)
        return frames

    def _decode(self, wanted: Iterable[_Frame]) -> dict[_Frame, npt.NDArray[Any]]:
        """Return frames by name, those that are kept and those that are read now."""
        found: dict[_Frame, npt.NDArray[Any]] = {}
        missing: dict[tuple[str, int], list[int]] = {}
        for each in dict.fromkeys(wanted):
            if each in self._frames:
                self._frames.move_to_end(each)
                found[each] = self._frames[each]
            else:
                missing.setdefault(each[:2], []).append(each[2])
        entries = self._read([self._layouts[name].entry(number) for name, number in missing]) if missing else {}
        for (name, number), frames in missing.items():
            decoded = decode_frames(self._layouts[name], number, entries, frames)
            for frame, values in zip(frames, decoded, strict=True):
                found[name, number, frame] = self._frames[name, number, frame] = values
                self._kept_bytes += values.nbytes
                self.decoded += len(values)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._frames.popitem(last=False)[1].nbytes
        return found

    def _segments_before(self, target: int) -> tuple[str, int, int]:
        """Return the part of the segments before a target that lies in its chunk, as `_values` takes it."""
        return "target_segments", target - target % self._layouts["target_segments"].chunk, target

    def _connections_before(self, target: int, segments: npt.NDArray[Any]) -> int:
        """Return the number of connections before a target, given the segments before it in its chunk."""
        layout = self._layouts["target_segments"]
        whole = target // layout.chunk
        counted = range(len(self._connections) - 1, whole)
        entries = self._read([layout.entry(number) for number in counted]) if counted else {}
        for number in counted:
            inside = np.bitwise_count(decode_chunk(layout, number, entries)).sum(dtype=np.int64)
            self._connections.append(self._connections[-1] + int(inside))
        return self._connections[whole] + int(np.bitwise_count(segments).sum(dtype=np.int64))


def _place(values: npt.NDArray[Any], wanted: int) -> int:
    """Return the first place of ascending unsigned values that is not below a wanted one, of any size."""
    if wanted > np.iinfo(values.dtype).max:
        return len(values)
    # A wider type would have the values copied.
    return int(np.searchsorted(values, values.dtype.type(wanted)))


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
    """Return the values of arrays of one length at ascending places, decoding only the frames that have them."""
    _, layouts = _layouts(read, names)
    needed = [_frames_at(layout, places) for layout in layouts]
    entries = read([layout.entry(each) for layout, chunks in zip(layouts, needed, strict=True) for each in chunks])
    found = []
    for layout, chunks in zip(layouts, needed, strict=True):
        values = np.empty(len(places), layout.dtype)
        for number, parts in chunks.items():
            frames = decode_frames(layout, number, entries, [frame for frame, _ in parts])
            for (frame, part), decoded in zip(parts, frames, strict=True):
                values[part] = decoded[places[part] - number * layout.chunk - frame * layout.frame]
        found.append(values)
    return found


def _frames_at(layout: ArrayLayout, places: Integers) -> dict[int, list[tuple[int, slice]]]:
    """Return the chunks of an array that have some ascending places, with their frames and which places each has."""
    end = int(places[-1]) + 1 if len(places) else 0
    require_intact(end <= layout.length, f"{layout.name} of a run has {layout.length} values", f"{end} or more")
    chunk, inside = np.divmod(places, layout.chunk)
    frame = inside // layout.frame
    begins = np.flatnonzero(np.diff(chunk, prepend=-1) | np.diff(frame, prepend=-1))
    found: dict[int, list[tuple[int, slice]]] = {}
    for begin, end in pairwise([*begins.tolist(), len(places)]):
        found.setdefault(int(chunk[begin]), []).append((int(frame[begin]), slice(begin, end)))
    return found


def _layouts(read: ReadEntries, names: Sequence[str]) -> tuple[Mapping[str, bytes], list[ArrayLayout]]:
    """Return the stored metadata of arrays, and the layouts in it."""
    entries = read([f"{name}/zarr.json" for name in names])
    return entries, [read_layout(name, entries) for name in names]
