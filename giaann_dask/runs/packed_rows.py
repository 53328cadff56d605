"""Read some rows of a packed run by source neuron, decoding only the chunks that have them.

`packing` has the arrays of a packed run, and decodes it as a whole or in blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron, unpack_neuron
from giaann_dask.runs.packed_arrays import (
    GROUP_KEY,
    ReadEntries,
    decode_array,
    decode_frames,
    has_gaps,
    has_names,
    read_header,
    read_layout,
    require_intact,
)
from giaann_dask.runs.packing import (
    FRAMINGS,
    NAME_ARRAYS,
    ROW_ARRAYS,
    RUN_ARRAYS,
    TARGET_ARRAYS,
    arrays_of,
    decode_targets,
    name_number,
    target_key,
)
from giaann_dask.runs.run import Run, join_ranges, pointer_of
from giaann_dask.spec import BRANCH_BITS, NEURON_BITS

Segments: TypeAlias = npt.NDArray[np.uint32]
# An array, one of its chunks, and one of the frames of that.
_Frame: TypeAlias = tuple[str, int, int]


def read_sources(read: ReadEntries | RowReader) -> Integers:
    """Return the source neurons of a run, ascending; int64, shape ``(rows,)``.

    Raises
    ------
    StoreDamagedError
        As `RowReader`.
    """
    return _reader_of(read).sources()


def _reader_of(read: ReadEntries | RowReader) -> RowReader:
    return read if isinstance(read, RowReader) else RowReader(read)


def read_rows(read: ReadEntries | RowReader, wanted: Integers) -> tuple[Integers, Integers, Integers, Segments]:
    """Return the rows of a run that belong to some source neurons, without their strengths.

    Parameters
    ----------
    read : callable or RowReader
        Reads entries of the run, or its rows.
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
        As `RowReader`.
    """
    reader = _reader_of(read)
    source, row_targets = reader.rows()
    rows = np.flatnonzero(among(source, wanted))
    begins = pointer_of(row_targets)[rows]
    *fields, segments = reader.values_at(TARGET_ARRAYS, join_ranges(begins, row_targets[rows]))
    return source[rows], pointer_of(row_targets[rows]), reader.target_keys(fields), segments.astype(np.uint32)


def row_bounds(readers: Sequence[RowReader], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of source neurons, ends not included, whose rows have about so many targets in some runs together.

    One row at least. All rows of the runs are in some range.
    """
    rows = [each.rows() for each in readers]
    none = np.zeros(0, np.int64)
    source, counts = (np.concatenate(each) for each in zip((none, none), *rows, strict=True))
    if not len(source):
        return
    order = np.argsort(source, kind="stable")
    targets = np.cumsum(counts[order])
    first = np.searchsorted(targets, np.arange(0, targets[-1], size))
    yield from pairwise([*np.unique(source[order[first]]).tolist(), int(source.max()) + 1])


class RowPart(NamedTuple):
    """Some successive targets of one row of a packed run.

    Attributes
    ----------
    begin, end : int
        Their places among the targets of the run.
    first, last : int
        Neuron keys of the first and the last one, or of some below and above.
    before : int
        Neuron key of the target before, 0 for the first one of the row.
    """

    begin: int
    end: int
    first: int
    last: int
    before: int


class RowReader:
    """Read rows of a packed run by source neuron, decoding only the frames of chunks that have them.

    Opening reads the metadata alone: summaries of the frames say where a row lies. Frames used last are kept
    until `release`.

    Parameters
    ----------
    read : callable
        Reads entries of the run.
    cache_bytes : int
        Bytes of frames that are kept for further rows at most: those of some rows, a small part of a region.

    Attributes
    ----------
    decoded : int
        Values that were decoded for rows so far, those of frames that were decoded again included.
    kept_bytes : int
        Bytes of the frames that are kept.

    Raises
    ------
    StoreDamagedError
        If it has not as many connections as it says, or targets of no row; otherwise as far as the arrays show it that
        are needed.
    """

    def __init__(self, read: ReadEntries, *, cache_bytes: int = 8 << 20) -> None:
        self._read, self._cache_bytes = read, cache_bytes
        metadata = read([GROUP_KEY, *(f"{name}/zarr.json" for name in RUN_ARRAYS)])
        header = read_header(metadata)
        self._strength = np.int32 if header["strength_bits"] == 32 else np.int64
        self._gaps, self._named = has_gaps(header), has_names(header)
        self._layouts = {name: read_layout(name, metadata) for name in arrays_of(header)}
        column, feature, counts, segments = (self._layouts[name] for name in (*ROW_ARRAYS, "target_segments"))
        for name, layout in self._layouts.items():
            summary = FRAMINGS[name].summary if name in FRAMINGS else None
            require_intact(layout.summary is summary, f"{name} of a run has other summaries")
        intact = (column.length, column.chunk) == (feature.length, feature.chunk) and column.length == counts.length
        require_intact(intact, "the rows of a run contradict each other")
        self._begins = (*column.begins, column.length)
        first = [layout.summaries[: len(self._begins) - 1] for layout in (column, feature)]
        self._first = pack_neuron(*(np.array(each, np.int64) for each in first))
        targets, connections = counts.summaries, segments.summaries
        found, expected = (sum(targets), sum(connections)), (segments.length, header["connections"])
        require_intact(found == expected, f"a run has {found} targets and connections", f"{expected}")
        require_intact(bool(np.all(np.diff(self._first) > 0)), "the source neurons of a run do not ascend")
        # Targets before each frame of the rows, and connections before each frame of the targets.
        self._targets, self._connections = ([*accumulate(each, initial=0)] for each in (targets, connections))
        self._frames: OrderedDict[_Frame, npt.NDArray[Any]] = OrderedDict()
        self.kept_bytes = 0
        self.decoded = 0

    def between(self, low: int, high: int) -> Run:
        """Return the rows whose source neurons lie between two keys, the second not included.

        Raises
        ------
        StoreDamagedError
            As far as the arrays show it that are needed.
        """
        rows = slice(self._row_at(low), self._row_at(high))
        if rows.start >= rows.stop:
            return replace(Run.empty(), strength=np.zeros(0, self._strength))
        return self._connections_of(*self._rows(rows))

    def row_parts(self, neuron: int, size: int | None = None) -> list[RowPart]:
        """Return parts of the row of a source neuron, with at most so many targets each; by default the whole row.

        The targets of a row are only read to divide it.
        """
        rows = slice(self._row_at(neuron), self._row_at(neuron + 1))
        if rows.start >= rows.stop:
            return []
        _, row_targets, begin = self._rows(rows)
        end = begin + int(row_targets[0])
        if size is None or end - begin <= size:
            return [RowPart(begin, end, 0, (1 << NEURON_BITS) - 1, 0)]
        parts, before = [], 0
        for start in range(begin, end, size):
            stop = min(start + size, end)
            *fields, branch = self._values([(name, start, stop) for name in TARGET_ARRAYS[:3]])
            keys = self.target_keys([*fields, branch]) >> BRANCH_BITS
            ends = (before + int(keys[0]), before + int(keys.sum())) if self._gaps else (int(keys[0]), int(keys[-1]))
            parts.append(RowPart(start, stop, *ends, before))
            before = ends[1]
        return parts

    def part(self, neuron: int, part: RowPart) -> Run:
        """Return a part of the row of a source neuron; see `row_parts`."""
        targets = np.array([part.end - part.begin], np.int64)
        return self._connections_of(np.array([neuron], np.int64), targets, part.begin, part.before)

    def _connections_of(self, source: Integers, row_targets: Integers, begin: int, before: int = 0) -> Run:
        """Return rows, given the place of their first target, and the neuron before it in the first row."""
        from giaann_dask.runs.target_sets import spread_targets

        end = begin + int(row_targets.sum())
        parts = [(name, begin, end) for name in (*TARGET_ARRAYS, "strength")]
        frame, first = self._layouts["target_segments"].frame_of(begin)
        *fields, segments, strength, earlier = self._values([*parts, ("target_segments", first, begin)])
        size = int(np.bitwise_count(segments).sum(dtype=np.int64))
        changes = self._connections[frame] + int(np.bitwise_count(earlier).sum(dtype=np.int64)) - begin
        (change,) = self._values([("strength_change", changes, changes + size - (end - begin))])
        key = self.target_keys(fields)
        if self._gaps:
            key[:1] += before << BRANCH_BITS
        sets = decode_targets(row_targets, key, (segments, strength, change), gaps=self._gaps)
        pointer = np.zeros(len(source) + 1, np.int64)
        run = Run(source, pointer, np.empty(size, np.int64), np.empty(size, self._strength))
        intact = spread_targets(sets, run.pointer, run.target, run.strength)
        require_intact(intact, "the targets, segments and strengths of a run contradict each other")
        return run

    @property
    def values(self) -> int:
        """Number of all values of the run."""
        return sum(layout.length for layout in self._layouts.values())

    def rows(self) -> tuple[Integers, Integers]:
        """Read the source neurons, ascending, and their numbers of distinct targets; int64, shape ``(rows,)`` each."""
        column, feature, counts = self._whole(ROW_ARRAYS)
        return pack_neuron(column, feature), counts.astype(np.int64)

    def sources(self) -> Integers:
        """Read the source neurons alone."""
        return pack_neuron(*self._whole(ROW_ARRAYS[:2]))

    def names(self) -> tuple[Integers, Integers]:
        """Return the distinct columns and features of source neurons, and of targets that are neurons; ascending."""
        ends = ("source", "name" if self._named else "target")[: 2 - self._gaps]
        found = []
        for name in ("column", "feature"):
            # One array at a time, as all targets of a region may be many.
            arrays = (self._whole([f"{end}_{name}"])[0] for end in ends)
            present = [np.flatnonzero(np.bincount(array)) for array in arrays]
            found.append(np.unique(np.concatenate(present)).astype(np.int64))
        return found[0], found[1]

    def target_keys(self, fields: Sequence[npt.NDArray[Any]]) -> Integers:
        """Return target keys without their segments, given what the arrays of targets have; see `target_key`."""
        if not self._named:
            return target_key(*fields)
        high, low, branch = fields
        wanted, which = np.unique(name_number(high, low), return_inverse=True)
        keys: Integers = pack_neuron(*self.values_at(NAME_ARRAYS, wanted))[which] << BRANCH_BITS | branch
        return keys

    def values_at(self, names: Sequence[str], places: Integers) -> list[npt.NDArray[Any]]:
        """Return the values of arrays of one length at ascending places, decoding only the frames that have them."""
        needed = [self._frames_at(name, places) for name in names]
        found = self._decode(frame for frames in needed for frame, _ in frames)
        values = []
        for name, frames in zip(names, needed, strict=True):
            layout = self._layouts[name]
            values.append(np.empty(len(places), layout.dtype))
            for frame, part in frames:
                values[-1][part] = found[frame][places[part] - layout.begin_of(*frame[1:])]
        return values

    def release(self) -> None:
        """Let decoded frames go; what is needed of them again is read again."""
        self._frames.clear()
        self.kept_bytes = 0

    def _row_at(self, neuron: int) -> int:
        """Return the first row whose source is not below a neuron."""
        frame = int(np.searchsorted(self._first, neuron))
        if frame == 0 or (frame < len(self._first) and self._first[frame] == neuron):
            return self._begins[frame]
        begin, end = self._begins[frame - 1 : frame + 1]
        # Numbers of targets are read with the sources, whose rows they belong to.
        sources, features, _ = self._values([(name, begin, end) for name in ROW_ARRAYS])
        column, feature = (int(part) for part in unpack_neuron(neuron))
        rows = slice(*(_place(sources, column + more) for more in (0, 1)))
        return begin + int(rows.start) + _place(features[rows], feature)

    def _rows(self, rows: slice) -> tuple[Integers, Integers, int]:
        """Return sources and numbers of targets of some rows, and the number of targets before them."""
        frame, first = self._layouts["row_targets"].frame_of(rows.start)
        parts = [(name, rows.start, rows.stop) for name in ROW_ARRAYS[:2]]
        column, feature, counts = self._values([*parts, ("row_targets", first, rows.stop)])
        counts, before = counts.astype(np.int64), rows.start - first
        return pack_neuron(column, feature), counts[before:], self._targets[frame] + int(counts[:before].sum())

    def _values(self, parts: Sequence[tuple[str, int, int]]) -> list[npt.NDArray[Any]]:
        """Return the values of arrays, each from one place to another, reading what is missing of them together."""
        needed = [self._frames_of(*part) for part in parts]
        found = self._decode(frame for frames in needed for frame in frames)
        values = []
        for (name, begin, end), frames in zip(parts, needed, strict=True):
            layout = self._layouts[name]
            first = layout.begin_of(*frames[0][1:]) if frames else 0
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

    def _frames_at(self, name: str, places: Integers) -> list[tuple[_Frame, slice]]:
        """Return the frames of an array that have values at ascending places, and which of the places each has."""
        layout = self._layouts[name]
        end = int(places[-1]) + 1 if len(places) else 0
        require_intact(end <= layout.length, f"{name} of a run has {layout.length} values", f"{end} or more")
        chunk, inside = np.divmod(places, layout.chunk)
        frame = inside // layout.frame
        begins = np.flatnonzero(np.diff(chunk, prepend=-1) | np.diff(frame, prepend=-1))
        parts = pairwise([*begins.tolist(), len(places)])
        return [((name, int(chunk[begin]), int(frame[begin])), slice(begin, end)) for begin, end in parts]

    def _whole(self, names: Sequence[str]) -> list[npt.NDArray[Any]]:
        layouts = [self._layouts[name] for name in names]
        entries = self._read([layout.entry(number) for layout in layouts for number in range(layout.chunks)])
        return [decode_array(layout, entries) for layout in layouts]

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
                self.kept_bytes += values.nbytes
                self.decoded += len(values)
        while self.kept_bytes > self._cache_bytes:
            self.kept_bytes -= self._frames.popitem(last=False)[1].nbytes
        return found


class KeptRowReader(RowReader):
    """Reader that keeps the source neurons, too, for many questions about one run."""

    @cached_property
    def _kept_rows(self) -> tuple[Integers, Integers]:
        return super().rows()

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps now: decoded frames and source neurons."""
        rows: tuple[Integers, ...] = self.__dict__.get("_kept_rows", ())
        return self.kept_bytes + sum(int(each.nbytes) for each in rows)

    def rows(self) -> tuple[Integers, Integers]:
        """Return what `RowReader.rows` reads."""
        return self._kept_rows

    def sources(self) -> Integers:
        """Return the source neurons alone."""
        return self._kept_rows[0]


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
