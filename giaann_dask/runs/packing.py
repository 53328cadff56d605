"""Pack a run into the encoded bytes of a chunked Zarr group, and unpack it.

This is the form in which runs are sent, stored and kept in memory while they are not in use. `packed_arrays` has the
codecs, `target_sets` the order of connections in the packed form, and `run` the decoded table.

A target neuron is mostly reached on several segments, always on one of the column segments and on
one of the feature segments, with strengths that are often equal. So within each row the packed
form names a target once, with a bit for every segment, and gives the strength on the first of
these segments and the differences from there on. Unpacking distributes the connections to the
segments again, which restores the run exactly. The arrays of the group, all of unsigned integers as narrow
as their values allow:

==================== ================== ======================================================
array                one value for each meaning
==================== ================== ======================================================
``source_column``    row                concept column of the source neuron
``source_feature``   row                feature of the source neuron
``row_targets``      row                number of targets; they follow row after row
``target_column``    target             concept column
``target_feature``   target             feature
``target_branch``    target             dendritic branch
``target_segments``  target             bit s is set where there is a connection on segment s
``strength``         target             strength units on the lowest of these segments
``strength_change``  further segment    difference from the segment before, zigzag: 0, -1, 1, -2
==================== ================== ======================================================

Of a table with ``gaps`` (postings, see `giaann_dask.runs.postings`), ``target_column`` and ``target_feature`` are
those of the difference from the target before in the same row, which is small where targets are dense.

Chunks are compressed by Zstandard, without a shuffle, and closed by a CRC-32C checksum (`packed_arrays`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import Integers, pack_neuron, unpack_neuron
from giaann_dask.runs.packed_arrays import (
    GROUP_KEY,
    VERSION,
    VERSION_GAPS,
    ArrayLayout,
    damage,
    decode_array,
    decode_chunk,
    encode_array,
    group_metadata,
    read_header,
    read_layout,
    require_intact,
    to_json,
)
from giaann_dask.runs.run import Run
from giaann_dask.spec import (
    BRANCH_BITS,
    FEATURE_BITS,
    MAXIMUM_BRANCHES,
    MAXIMUM_CONCEPTS,
    MAXIMUM_FEATURES,
    MAXIMUM_SEGMENTS,
)

if TYPE_CHECKING:
    from giaann_dask.runs.target_sets import TargetBlock, TargetSets


CHUNK = 262_144
# Values that are computed in one go, so that they stay in the processor's caches.
_BLOCK = 1 << 15
# Connections, or targets, of the rows that are packed or restored in one go: new memory costs more than this work.
_ROW_BLOCK = 1 << 16
# Rows of a run between two marks of `RowReader`.
_MARKED = 1 << 10
# What a target is, without its strengths.
TARGET_ARRAYS = ("target_column", "target_feature", "target_branch", "target_segments")
_LIMITS = {
    "source_column": MAXIMUM_CONCEPTS,
    "source_feature": MAXIMUM_FEATURES,
    "row_targets": 1 << 62,
    "target_column": MAXIMUM_CONCEPTS,
    "target_feature": MAXIMUM_FEATURES,
    "target_branch": MAXIMUM_BRANCHES,
    "target_segments": 1 << MAXIMUM_SEGMENTS,
    "strength": 1 << 63,
    "strength_change": 1 << 64,
}
# The arrays of a table of a run.
RUN_ARRAYS = tuple(_LIMITS)
_ROW_ARRAYS = ("source_column", "source_feature", "row_targets")


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class PackedRun:
    """The encoded bytes of a run's Zarr group.

    Attributes
    ----------
    entries : dict of str to bytes
        Encoded metadata and chunks by Zarr key, relative to the group.
    rows : int
        Number of source neurons.
    connections : int
        Number of connections.
    nbytes : int
        Bytes of all entries.
    """

    entries: dict[str, bytes]
    rows: int
    connections: int
    nbytes: int

    @classmethod
    def from_entries(cls, entries: Mapping[str, bytes]) -> PackedRun:
        """Return a packed run from its stored entries; only the group's header is decoded.

        Raises
        ------
        StoreDamagedError
            If there is no header, or it cannot be read.
        StoreFormatError
            If the run is of another format version.
        """
        header = read_header(entries)
        nbytes = sum(map(len, entries.values()))
        return cls(dict(entries), header["rows"], header["connections"], nbytes)

    def __len__(self) -> int:
        """Return the number of connections."""
        return self.connections

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the entries with these names; those that do not exist are left out."""
        return {name: self.entries[name] for name in names if name in self.entries}


class PackedRegionRun(NamedTuple):
    """The tables of a region's run in packed form (see `giaann_dask.runs.run.RegionRun`)."""

    connections: PackedRun
    neurons: PackedRun
    postings: PackedRun | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return self.connections.nbytes + self.neurons.nbytes + self.index_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the postings; 0 where there are none."""
        return self.postings.nbytes if self.postings is not None and len(self.postings) else 0


def pack(run: Run, chunk: int = CHUNK, *, gaps: bool = False) -> PackedRun:
    """Encode a run.

    Parameters
    ----------
    run : Run
        Valid as its description says; it is not changed.
    chunk : int
        Largest number of values in a chunk of an array, at least 1.
    gaps : bool
        Whether targets are encoded as differences within their row.

    Returns
    -------
    PackedRun
        The same bytes for the same run, always.

    Examples
    --------
    >>> packed = pack(Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([7, 9], np.int32)))
    >>> packed.connections, unpack(packed).strength
    (2, array([7, 9], dtype=int32))
    """
    return pack_blocks(_row_blocks(run), chunk, gaps=gaps)


def pack_blocks(blocks: Iterable[Run], chunk: int = CHUNK, *, gaps: bool = False) -> PackedRun:
    """Encode a run that is given in blocks of rows, at least one, without taking memory for the whole of it.

    The bytes are those of `pack`, however the rows are divided.
    """
    from giaann_dask.runs.target_sets import block_of_run

    return pack_targets(map(block_of_run, blocks), chunk, gaps=gaps)


def pack_targets(blocks: Iterable[TargetBlock], chunk: int = CHUNK, *, gaps: bool = False) -> PackedRun:
    """Encode a run whose connections are collected by target; otherwise as `pack_blocks`."""
    assert chunk >= 1, "a chunk holds at least one value"
    sources, columns, connections, bits = [], [], 0, 32
    for block in blocks:
        sources.append(block.source)
        sets = block.sets
        columns.append(_columns(replace(sets, key=_as_gaps(sets.key, sets.row_targets)) if gaps else sets))
        connections += block.connections
        bits = max(bits, block.bits)
    source = np.concatenate(sources)
    version = VERSION_GAPS if gaps else VERSION
    header = {"version": version, "rows": len(source), "connections": connections, "strength_bits": bits}
    entries = {GROUP_KEY: to_json(group_metadata(header))}
    pieces = (*([_narrow(part)] for part in unpack_neuron(source)), *zip(*columns, strict=True))
    for name, arrays in zip(_LIMITS, pieces, strict=True):
        entries.update(encode_array(name, arrays, chunk))
    return PackedRun(entries, len(source), connections, sum(map(len, entries.values())))


def unpack(packed: PackedRun) -> Run:
    """Decode a run.

    Parameters
    ----------
    packed : PackedRun
        What `pack` returned, here or in another process.

    Returns
    -------
    Run
        The run that was packed, array by array and bit by bit.

    Raises
    ------
    StoreDamagedError
        If entries are missing or too many, do not decode, or contradict each other.
    StoreFormatError
        If the run is of another format version.
    """
    return _restore(*_decode(packed))


def unpack_block(packed: PackedRun) -> TargetBlock:
    """Decode a run without distributing its connections to the segments; errors are those of `unpack`."""
    from giaann_dask.runs.target_sets import TargetBlock, TargetSets

    arrays, header = _decode(packed)
    row_targets, segments = arrays["row_targets"].astype(np.int64), arrays["target_segments"].astype(np.uint32)
    further = int(np.bitwise_count(segments).sum(dtype=np.int64)) - len(segments)
    intact = int(row_targets.max(initial=0)) <= len(segments) and int(row_targets.sum()) == len(segments)
    require_intact(intact and further == len(arrays["strength_change"]), "the targets of a run contradict each other")
    key = target_key(*(arrays[name] for name in ("target_column", "target_feature", "target_branch")))
    sets = TargetSets(
        row_targets,
        _from_gaps(key, row_targets) if header["version"] == VERSION_GAPS else key,
        segments,
        arrays["strength"].astype(np.int64),
        arrays["strength_change"].astype(np.uint64),
    )
    return TargetBlock(pack_neuron(arrays["source_column"], arrays["source_feature"]), sets, header["strength_bits"])


def _decode(packed: PackedRun) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, int]]:
    """Return the arrays of a run, whose lengths and values can be those of one, and its header."""
    layouts, header = _checked_layouts(packed)
    arrays = {name: decode_array(name, packed.entries)[0] for name in layouts}
    for name, array in arrays.items():
        _check_values(name, array)
    return arrays, header


def _checked_layouts(packed: PackedRun) -> tuple[dict[str, ArrayLayout], Mapping[str, int]]:
    """Return the layouts of the arrays of a run, whose lengths agree, and its header."""
    header = read_header(packed.entries)
    layouts = {name: read_layout(name, packed.entries) for name in _LIMITS}
    used = 1 + sum(1 + layout.chunks for layout in layouts.values())
    require_intact(used == len(packed.entries), f"a run has {len(packed.entries)} entries", f"{used}")
    rows, targets = layouts["source_column"].length, layouts["target_column"].length
    found = (rows, targets + layouts["strength_change"].length)
    require_intact(found == (header["rows"], header["connections"]), f"a run has {found} rows and connections")
    for name in ("source_feature", "row_targets"):
        require_intact(layouts[name].length == rows, f"{name} of a run has {layouts[name].length} values", f"{rows}")
    for name in ("target_feature", "target_branch", "target_segments", "strength"):
        length = layouts[name].length
        require_intact(length == targets, f"{name} of a run has {length} values", f"{targets}")
    return layouts, header


def _check_values(name: str, values: npt.NDArray[Any]) -> None:
    """Check that no value of an array of a run is too large."""
    if np.iinfo(values.dtype).max >= _LIMITS[name]:
        largest = int(values.max(initial=0))
        require_intact(
            largest < _LIMITS[name], f"{name} of a run has the value {largest}", f"less than {_LIMITS[name]}"
        )


class BlockReader:
    """Read a packed run from beginning to end in blocks of rows, without decoding it as a whole.

    Sources and numbers of targets are decoded at once, and of each other array one chunk at a time.

    Parameters
    ----------
    packed : PackedRun
        What `pack` returned, here or in another process.

    Raises
    ------
    StoreDamagedError, StoreFormatError
        As `unpack`, here or when a block is taken.
    """

    def __init__(self, packed: PackedRun) -> None:
        layouts, header = _checked_layouts(packed)
        self._bits, self._gaps = header["strength_bits"], header["version"] == VERSION_GAPS
        rows = {name: _Values(layouts[name], packed.entries).take(header["rows"]) for name in _ROW_ARRAYS}
        self.source = pack_neuron(rows["source_column"], rows["source_feature"])
        self.row_targets = rows["row_targets"].astype(np.int64)
        targets = layouts["target_column"].length
        intact = bool(np.all(self.source[1:] > self.source[:-1])) and int(self.row_targets.max(initial=0)) <= targets
        require_intact(intact and int(self.row_targets.sum()) == targets, "the rows of a run contradict each other")
        self._values = {name: _Values(layouts[name], packed.entries) for name in _LIMITS if name not in _ROW_ARRAYS}
        self._taken = 0

    def take(self, rows: int) -> TargetBlock:
        """Return the next rows; targets and strengths that contradict each other are not noticed.

        Parameters
        ----------
        rows : int
            No more than there are left.
        """
        from giaann_dask.runs.target_sets import TargetBlock, TargetSets

        part = slice(self._taken, self._taken + rows)
        self._taken = part.stop
        row_targets = self.row_targets[part]
        targets = int(row_targets.sum())
        *fields, segments, strength = (self._values[name].take(targets) for name in (*TARGET_ARRAYS, "strength"))
        further = int(np.bitwise_count(segments).sum(dtype=np.int64)) - targets
        change = self._values["strength_change"].take(further)
        key = target_key(*fields)
        sets = TargetSets(
            row_targets,
            _from_gaps(key, row_targets) if self._gaps else key,
            segments.astype(np.uint32),
            strength.astype(np.int64),
            change.astype(np.uint64),
        )
        return TargetBlock(self.source[part], sets, self._bits)

    def finish(self) -> None:
        """Check that all has been taken.

        Raises
        ------
        StoreDamagedError
            If there are connections of no row.
        """
        left = sum(values.left for values in self._values.values())
        require_intact(not left, f"a run has {left} values of no row")


class _Values:
    """Values of an array, chunk after chunk."""

    def __init__(self, layout: ArrayLayout, entries: Mapping[str, bytes]) -> None:
        self._layout, self._entries = layout, entries
        self._chunk, self._decoded, self.left = np.zeros(0, layout.dtype), 0, layout.length

    def take(self, count: int) -> npt.NDArray[Any]:
        """Return the next values, as a view of a chunk where they lie in one."""
        require_intact(0 <= count <= self.left, f"{self._layout.name} of a run has too few values")
        self.left -= count
        parts = []
        while True:
            parts.append(self._chunk[:count])
            self._chunk = self._chunk[count:]
            count -= len(parts[-1])
            if not count:
                break
            self._chunk = decode_chunk(self._layout, self._decoded, self._entries)
            _check_values(self._layout.name, self._chunk)
            self._decoded += 1
        return parts[-1] if len(parts) == 1 else np.concatenate(parts)


def unpack_rows(packed: PackedRun) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Decode the rows of a run without their connections.

    Returns
    -------
    source, targets : ndarray of int64
        Source neuron keys, ascending, and the number of distinct targets of each; shape ``(rows,)``.

    Raises
    ------
    StoreDamagedError, StoreFormatError
        As `unpack`, as far as these arrays show it.
    """
    read_header(packed.entries)
    column, feature, targets = (
        decode_array(name, packed.entries)[0] for name in ("source_column", "source_feature", "row_targets")
    )
    require_intact(
        len(column) == len(feature) == len(targets) == packed.rows, "the rows of a run contradict each other"
    )
    return pack_neuron(column, feature), targets.astype(np.int64)


def unpack_targets(packed: PackedRun) -> tuple[npt.NDArray[np.int64], TargetSets]:
    """Decode the rows and targets of a run without their strengths.

    Returns
    -------
    source : ndarray of int64
        Source neuron keys, ascending, shape ``(rows,)``.
    sets : TargetSets
        Their targets; its strengths and changes are empty.

    Raises
    ------
    StoreDamagedError, StoreFormatError
        As `unpack`, as far as these arrays show it.
    """
    from giaann_dask.runs.target_sets import TargetSets

    source, row_targets = unpack_rows(packed)
    column, feature, branch, segments = (decode_array(name, packed.entries)[0] for name in TARGET_ARRAYS)
    targets = int(row_targets.sum())
    lengths = {targets, len(column), len(feature), len(branch), len(segments)}
    require_intact(
        len(lengths) == 1, f"the targets of a run have the lengths {sorted(lengths)}", "the same one for all"
    )
    none = np.zeros(0, np.int64)
    key = target_key(column, feature, branch)
    return source, TargetSets(row_targets, key, segments.astype(np.uint32, copy=False), none, none.view(np.uint64))


def _row_blocks(run: Run) -> Iterator[Run]:
    """Yield views of a run's rows, about `_ROW_BLOCK` connections each; at least one."""
    begin = 0
    while begin < run.rows or begin == 0:
        end = int(np.searchsorted(run.pointer, run.pointer[begin] + _ROW_BLOCK, "right")) - 1
        end = min(max(end, begin + 1), run.rows)
        first, last = run.pointer[begin], run.pointer[end]
        pointer = run.pointer[begin : end + 1] - first
        yield Run(run.source[begin:end], pointer, run.target[first:last], run.strength[first:last])
        begin = max(end, 1)


def _columns(sets: TargetSets) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays of some rows that follow those of their source neurons."""
    return (
        _narrow(sets.row_targets),
        _field(sets.key, BRANCH_BITS + FEATURE_BITS, MAXIMUM_CONCEPTS),
        _field(sets.key, BRANCH_BITS, MAXIMUM_FEATURES),
        _field(sets.key, 0, MAXIMUM_BRANCHES),
        *(_narrow(array) for array in (sets.segments, sets.strength, sets.change)),
    )


def _restore(arrays: Mapping[str, npt.NDArray[Any]], header: Mapping[str, int]) -> Run:
    """Build the run of arrays whose lengths agree."""
    source = pack_neuron(arrays["source_column"], arrays["source_feature"])
    require_intact(bool(np.all(source[1:] > source[:-1])), "the source neurons of a run do not ascend")
    kind = np.int32 if header["strength_bits"] == 32 else np.int64
    connections = header["connections"]
    run = Run(source, np.zeros(len(source) + 1, np.int64), np.empty(connections, np.int64), np.empty(connections, kind))
    if not _fill(run, arrays, gaps=header["version"] == VERSION_GAPS):
        raise damage("the targets, segments and strengths of a run contradict each other")
    return run


def _fill(run: Run, arrays: Mapping[str, npt.NDArray[Any]], *, gaps: bool) -> bool:
    """Fill a run with its connections, block by block; return False where the arrays contradict each other."""
    row_targets, targets = arrays["row_targets"].astype(np.int64), len(arrays["target_segments"])
    # Also keeps the sums below from overflowing.
    from giaann_dask.runs.target_sets import TargetSets, spread_targets

    if row_targets.max(initial=0) > targets:
        return False
    ends = np.concatenate([[0], np.cumsum(row_targets)])
    if ends[-1] != targets:
        return False
    begin = filled = changed = 0
    while begin < len(row_targets):
        end = max(int(np.searchsorted(ends, ends[begin] + _ROW_BLOCK, "right")) - 1, begin + 1)
        items = slice(ends[begin], ends[end])
        size = int(np.bitwise_count(arrays["target_segments"][items]).sum(dtype=np.int64))
        changes = slice(changed, changed + size - (items.stop - items.start))
        rows, connections = slice(begin, end + 1), slice(filled, filled + size)
        if connections.stop > len(run) or changes.stop > len(arrays["strength_change"]):
            return False
        key = target_key(*(arrays[name][items] for name in ("target_column", "target_feature", "target_branch")))
        sets = TargetSets(
            row_targets[begin:end],
            _from_gaps(key, row_targets[begin:end]) if gaps else key,
            arrays["target_segments"][items].astype(np.uint32, copy=False),
            arrays["strength"][items].astype(np.int64),
            arrays["strength_change"][changes].astype(np.uint64, copy=False),
        )
        if not spread_targets(sets, run.pointer[rows], run.target[connections], run.strength[connections]):
            return False
        run.pointer[rows] += filled
        begin, filled, changed = end, filled + size, changes.stop
    return filled == len(run) and changed == len(arrays["strength_change"])


def target_key(column: npt.NDArray[Any], feature: npt.NDArray[Any], branch: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return target keys without their segments.

    Parameters
    ----------
    column, feature, branch : ndarray
        Of each target, unsigned integers of any width, of one length.

    Returns
    -------
    ndarray
        See `TargetSets`; int64.
    """
    key = pack_neuron(column, feature)
    key <<= BRANCH_BITS
    key |= branch
    return key


def _as_gaps(key: Integers, row_targets: Integers) -> Integers:
    """Return keys with the differences of their neurons from those before in the same row; branches stay.

    Examples
    --------
    >>> keys = np.array([5 << BRANCH_BITS | 1, 7 << BRANCH_BITS | 2, 6 << BRANCH_BITS])
    >>> gaps = _as_gaps(keys, np.array([2, 1]))
    >>> (gaps >> BRANCH_BITS).tolist(), _from_gaps(gaps, np.array([2, 1])).tolist() == keys.tolist()
    ([5, 2, 6], True)
    """
    neuron = key >> BRANCH_BITS
    before = np.concatenate([np.zeros(1, np.int64), neuron[:-1]])[: len(neuron)]
    before[(np.cumsum(row_targets) - row_targets)[row_targets > 0]] = 0
    gaps: Integers = ((neuron - before) << BRANCH_BITS) | (key & (MAXIMUM_BRANCHES - 1))
    return gaps


def _from_gaps(key: Integers, row_targets: Integers) -> Integers:
    """Return the keys that `_as_gaps` was given."""
    # The sum over many rows may wrap around; the differences that are left do not.
    total = np.cumsum(key >> BRANCH_BITS)
    begins = np.cumsum(row_targets) - row_targets
    earlier = np.concatenate([np.zeros(1, np.int64), total])[begins]
    neuron = total - np.repeat(earlier, row_targets)
    keys: Integers = (neuron << BRANCH_BITS) | (key & (MAXIMUM_BRANCHES - 1))
    return keys


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return non-negative values in the narrowest unsigned type that they fit into."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def _field(key: npt.NDArray[np.int64], shift: int, values: int) -> npt.NDArray[Any]:
    """Return a part of keys that has so many values, as `_narrow` does.

    Block by block: memory that is touched for the first time costs several times this work.
    """
    blocks = [slice(begin, begin + _BLOCK) for begin in range(0, len(key), _BLOCK)]
    largest = max((int(((key[block] >> shift) & (values - 1)).max()) for block in blocks), default=0)
    field = np.empty(len(key), np.min_scalar_type(largest))
    for block in blocks:
        field[block] = (key[block] >> shift) & (values - 1)
    return field


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


class RowReader:
    """Read rows of a packed run by source neuron, decoding only the chunks of their targets.

    Sources and numbers of targets are read at once, and kept as narrow as they are stored. Of the segments, which also
    say where the changes of strength begin, all chunks up to the last row are read if there are any changes. Decoded
    chunks are kept until `release`.

    Parameters
    ----------
    read : callable
        Reads entries of the run.

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
        self._chunks: dict[str, npt.NDArray[Any]] = {}
        # Connections before each chunk of the segments, as far as they are counted.
        self._connections = [0]

    def between(self, low: int, high: int) -> Run:
        """Return the rows whose source neurons lie between two keys, the second not included.

        Raises
        ------
        StoreDamagedError
            As far as the arrays show it that are needed.
        """
        from giaann_dask.runs.target_sets import TargetSets, spread_targets

        rows = slice(self._row_at(low), self._row_at(high))
        if rows.start >= rows.stop:
            return replace(Run.empty(), strength=np.zeros(0, self._strength))
        begin, end = self._targets_before(rows.start), self._targets_before(rows.stop)
        names = (*TARGET_ARRAYS, "strength")
        self._load([(self._layouts[name], number) for name in names for number in self._numbers(name, begin, end)])
        column, feature, branch, segments, strength = (self._values(name, begin, end) for name in names)
        size = int(np.bitwise_count(segments).sum(dtype=np.int64))
        changes = self._connections_before(begin) - begin if self._layouts["strength_change"].length else 0
        change = self._values("strength_change", changes, changes + size - (end - begin))
        key = target_key(column, feature, branch)
        sets = TargetSets(
            self._counts[rows].astype(np.int64),
            _from_gaps(key, self._counts[rows].astype(np.int64)) if self._gaps else key,
            segments.astype(np.uint32),
            strength.astype(np.int64),
            change.astype(np.uint64),
        )
        pointer = np.zeros(rows.stop - rows.start + 1, np.int64)
        source = pack_neuron(self._column[rows], self._feature[rows])
        run = Run(source, pointer, np.empty(size, np.int64), np.empty(size, self._strength))
        intact = spread_targets(sets, run.pointer, run.target, run.strength)
        require_intact(intact, "the targets, segments and strengths of a run contradict each other")
        return run

    @property
    def source(self) -> Integers:
        """Source neurons, ascending; int64, shape ``(rows,)``."""
        return pack_neuron(self._column, self._feature)

    @property
    def row_targets(self) -> Integers:
        """Numbers of distinct targets of the sources; int64, shape ``(rows,)``."""
        return self._counts.astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded chunks that are kept."""
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def release(self) -> None:
        """Let decoded chunks go; what is needed of them again is read again."""
        self._chunks.clear()

    def require_complete(self) -> None:
        """Check that the run has as many connections as it says, which reads its segments.

        Raises
        ------
        StoreDamagedError
            If it has not, or has targets of no row.
        """
        targets = self._targets_before(len(self._counts))
        found = self._layouts["target_segments"].length, self._connections_before(targets)
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

    def _values(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the values of an array from one place to another."""
        layout, numbers = self._layouts[name], self._numbers(name, begin, end)
        self._load([(layout, number) for number in numbers])
        parts = [self._chunks[layout.entry(number)] for number in numbers]
        if len(parts) == 1:
            return parts[0][begin - numbers.start * layout.chunk : end - numbers.start * layout.chunk]
        first = numbers.start * layout.chunk
        return np.concatenate([np.zeros(0, layout.dtype), *parts])[begin - first : end - first]

    def _numbers(self, name: str, begin: int, end: int) -> range:
        """Return the chunks of an array that have its values from one place to another."""
        layout = self._layouts[name]
        intact = 0 <= begin <= end <= layout.length
        require_intact(intact, f"{name} of a run has {layout.length} values", f"{end} or more")
        return range(begin // layout.chunk, -(-end // layout.chunk) if begin < end else 0)

    def _load(self, wanted: Sequence[tuple[ArrayLayout, int]]) -> None:
        """Read and decode chunks that are not kept yet."""
        missing = [(layout, number) for layout, number in wanted if layout.entry(number) not in self._chunks]
        entries = self._read([layout.entry(number) for layout, number in missing]) if missing else {}
        for layout, number in missing:
            self._chunks[layout.entry(number)] = decode_chunk(layout, number, entries)

    def _connections_before(self, target: int) -> int:
        """Return the number of connections before a target."""
        layout = self._layouts["target_segments"]
        whole = target // layout.chunk
        counted = len(self._connections) - 1
        self._load([(layout, number) for number in range(counted, whole)])
        for number in range(counted, whole):
            inside = np.bitwise_count(self._chunks[layout.entry(number)]).sum(dtype=np.int64)
            self._connections.append(self._connections[-1] + int(inside))
        rest = self._values("target_segments", whole * layout.chunk, target)
        return self._connections[whole] + int(np.bitwise_count(rest).sum(dtype=np.int64))


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
    """Return the stored metadata of arrays, and the layouts in it."""
    entries = read([f"{name}/zarr.json" for name in names])
    return entries, [read_layout(name, entries) for name in names]
