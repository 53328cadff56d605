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

Large tables whose targets are hashes have two more arrays, ``name_column`` and ``name_feature``: the distinct targets,
the most frequent ones first. ``target_column`` and ``target_feature`` are then the number of a target in these: without
its lowest 16 bits, and these (`target_names`).

Columns of sources and names are stored as differences from the value before, and segments as places among the distinct
values where these are few and wide (`packed_arrays`). Chunks are compressed by Zstandard, without a shuffle, and closed
by a CRC-32C checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import Integers, pack_neuron, unpack_neuron
from giaann_dask.runs.packed_arrays import (
    GROUP_KEY,
    LEVEL,
    LEVEL_OF_NAMES,
    VERSION,
    VERSION_GAPS,
    VERSION_NAMES,
    ArrayLayout,
    FrameSummary,
    Framing,
    ReadEntries,
    decode_chunk,
    encode_array,
    group_metadata,
    has_gaps,
    has_names,
    read_header,
    read_layout,
    require_intact,
    to_json,
)
from giaann_dask.runs.run import BLOCK, RegionTables, Run, pointer_of, row_blocks, rows_between
from giaann_dask.runs.target_names import LOW_BITS, number_targets
from giaann_dask.spec import BRANCH_BITS, MAXIMUM_BRANCHES, MAXIMUM_CONCEPTS, MAXIMUM_FEATURES, MAXIMUM_SEGMENTS

if TYPE_CHECKING:
    from giaann_dask.runs.target_sets import TargetBlock, TargetSets


CHUNK = 262_144
# What a row is, and what a target is without its strengths.
ROW_ARRAYS = ("source_column", "source_feature", "row_targets")
TARGET_ARRAYS = ("target_column", "target_feature", "target_branch", "target_segments")
NAME_ARRAYS = ("name_column", "name_feature")
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
    "name_column": MAXIMUM_CONCEPTS,
    "name_feature": MAXIMUM_FEATURES,
}
# Summaries find the row of a source neuron, its first target, and the first strength that changes. A row is searched in
# frames that are smaller than those that its targets are read from, where that costs no room.
FRAMINGS = {
    "source_column": Framing(16, FrameSummary.FIRST, differences=True),
    "source_feature": Framing(16, FrameSummary.FIRST),
    "row_targets": Framing(16, FrameSummary.SUM),
    "target_segments": Framing(summary=FrameSummary.BITS, distinct=True),
    "name_column": Framing(16, FrameSummary.FIRST, differences=True),
    "name_feature": Framing(16, FrameSummary.FIRST),
}
# The arrays of a table of a run, of which those of names may be missing.
RUN_ARRAYS = tuple(_LIMITS)


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

    @classmethod
    def read_from(cls, read: ReadEntries) -> PackedRun | None:
        """Return a packed run whose entries are read, without listing them; None where there is none.

        Parameters
        ----------
        read : callable
            Reads entries of the run.

        Raises
        ------
        StoreDamagedError, StoreFormatError
            As `from_entries`, or if metadata of an array are missing or damaged.
        """
        # A small run has no other chunks.
        first = read([GROUP_KEY, *(f"{name}/{entry}" for name in RUN_ARRAYS for entry in ("zarr.json", "c/0"))])
        if GROUP_KEY not in first:
            return None
        layouts = [read_layout(name, first) for name in arrays_of(read_header(first))]
        more = [layout.entry(number) for layout in layouts for number in range(1, layout.chunks)]
        entries = {**first, **read(more)} if more else first
        return cls.from_entries({name: entries[name] for name in sorted(entries)})

    def __len__(self) -> int:
        """Return the number of connections."""
        return self.connections

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the entries with these names; those that do not exist are left out."""
        return {name: self.entries[name] for name in names if name in self.entries}


class PackedRegionRun(RegionTables[PackedRun, PackedRun]):
    """Packed tables of a run of one region."""

    __slots__ = ()


def pack(run: Run, chunk: int = CHUNK, *, gaps: bool = False, block: int = BLOCK) -> PackedRun:
    """Encode a run.

    Parameters
    ----------
    run : Run
        Valid as its description says; it is not changed.
    chunk : int
        Largest number of values in a chunk of an array, at least 1.
    gaps : bool
        Whether targets are encoded as differences within their row.
    block : int
        Connections that are encoded at a time, as new memory costs more than this work; a row is never divided.

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
    blocks = [rows_between(run, *rows) for rows in row_blocks(run.pointer, block)]
    return pack_blocks(blocks or [run], chunk, gaps=gaps)


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
    source, arrays = np.concatenate(sources), [list(pieces) for pieces in zip(*columns, strict=True)]
    numbered = None if gaps else number_targets(*arrays[1:3])
    version, level = VERSION_GAPS if gaps else VERSION, LEVEL
    if numbered is not None:
        version, level, arrays[1:3] = VERSION_NAMES, LEVEL_OF_NAMES, [numbered.high, numbered.low]
        arrays += [[_narrow(part)] for part in unpack_neuron(numbered.names)]
    header = {"version": version, "rows": len(source), "connections": connections, "strength_bits": bits}
    entries = {GROUP_KEY: to_json(group_metadata(header))}
    arrays = [*([_narrow(part)] for part in unpack_neuron(source)), *arrays]
    for name, pieces in zip(arrays_of(header), arrays, strict=True):
        entries.update(encode_array(name, pieces, chunk, FRAMINGS.get(name, Framing()), level))
    return PackedRun(entries, len(source), connections, sum(map(len, entries.values())))


def arrays_of(header: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the arrays of a table, given its header."""
    return RUN_ARRAYS if has_names(header) else RUN_ARRAYS[: -len(NAME_ARRAYS)]


def unpack(packed: PackedRun, *, block: int = BLOCK) -> Run:
    """Decode a run.

    Parameters
    ----------
    packed : PackedRun
        What `pack` returned, here or in another process.
    block : int
        Targets that are decoded at a time.

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
    from giaann_dask.runs.target_sets import fill_run

    reader = BlockReader(packed)
    run = fill_run(reader.blocks(block), packed.rows, packed.connections, reader.bits)
    reader.finish()
    return run


class BlockReader:
    """Read a packed run from beginning to end in blocks of rows, without decoding it as a whole.

    Sources and numbers of targets are decoded at once, and of each other array one chunk at a time.

    Parameters
    ----------
    packed : PackedRun
        What `pack` returned, here or in another process.

    Attributes
    ----------
    source, row_targets : ndarray
        Source neuron keys, ascending, and the number of distinct targets of each; int64, shape ``(rows,)``.
    bits : int
        Width of the strengths, 32 or 64.
    gaps : bool
        Whether targets are differences within their row.
    names : ndarray or None
        Target neurons by number, where targets are numbers; int64.

    Raises
    ------
    StoreDamagedError, StoreFormatError
        As `unpack`, here or when a block is taken.
    """

    def __init__(self, packed: PackedRun) -> None:
        header = read_header(packed.entries)
        layouts = {name: read_layout(name, packed.entries) for name in arrays_of(header)}
        _check_lengths(layouts, header, len(packed.entries))
        self.bits, self.gaps = header["strength_bits"], has_gaps(header)
        self._values = {name: _Values(layout, packed.entries) for name, layout in layouts.items()}
        column, feature, counts = (self.rest(name) for name in ROW_ARRAYS)
        self.source, self.row_targets = pack_neuron(column, feature), counts.astype(np.int64)
        self.names = pack_neuron(*map(self.rest, NAME_ARRAYS)) if has_names(header) else None
        require_intact(bool(np.all(self.source[1:] > self.source[:-1])), "the source neurons of a run do not ascend")
        targets = layouts["target_column"].length
        # Also keeps the sum from overflowing.
        intact = int(self.row_targets.max(initial=0)) <= targets and int(self.row_targets.sum()) == targets
        require_intact(intact, "the rows of a run contradict each other")
        self._taken = 0

    def blocks(self, targets: int, end: int | None = None) -> Iterator[TargetBlock]:
        """Yield the rows up to one, by default all that are left, in blocks of about so many targets."""
        for first, last in row_blocks(pointer_of(self.row_targets), targets, self._taken, end):
            yield self.take(last - first)

    def rest(self, name: str) -> npt.NDArray[Any]:
        """Return what has not been taken of an array."""
        values = self._values[name]
        return values.take(values.left)

    def take(self, rows: int) -> TargetBlock:
        """Return the next rows; targets and strengths that contradict each other are not noticed.

        Parameters
        ----------
        rows : int
            No more than there are left.
        """
        from giaann_dask.runs.target_sets import TargetBlock

        part = slice(self._taken, self._taken + rows)
        self._taken = part.stop
        row_targets = self.row_targets[part]
        targets = int(row_targets.sum())
        *fields, segments, strength = (self._values[name].take(targets) for name in (*TARGET_ARRAYS, "strength"))
        further = int(np.bitwise_count(segments).sum(dtype=np.int64)) - targets
        change = self._values["strength_change"].take(further)
        key = target_key(*fields, names=self.names)
        sets = decode_targets(row_targets, key, (segments, strength, change), gaps=self.gaps)
        return TargetBlock(self.source[part], sets, self.bits)

    def finish(self) -> None:
        """Check that all has been taken.

        Raises
        ------
        StoreDamagedError
            If there are connections of no row.
        """
        left = sum(values.left for values in self._values.values())
        require_intact(not left, f"a run has {left} values of no row")


def _check_lengths(layouts: Mapping[str, ArrayLayout], header: Mapping[str, int], entries: int) -> None:
    """Check that the numbers of values of the arrays of a run, and of its entries, agree."""
    used = 1 + sum(1 + layout.chunks for layout in layouts.values())
    require_intact(used == entries, f"a run has {entries} entries", f"{used}")
    targets = layouts["target_column"].length
    found = targets + layouts["strength_change"].length
    require_intact(found == header["connections"], f"a run has {found} connections", f"{header['connections']}")
    lengths = [(ROW_ARRAYS, header["rows"]), ((*TARGET_ARRAYS, "strength"), targets)]
    if has_names(header):
        lengths.append((NAME_ARRAYS, layouts["name_column"].length))
    for names, length in lengths:
        for name in names:
            has = layouts[name].length
            require_intact(has == length, f"{name} of a run has {has} values", f"{length}")


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
            most = _LIMITS[self._layout.name]
            if np.iinfo(self._chunk.dtype).max >= most:
                largest = int(self._chunk.max(initial=0))
                require_intact(
                    largest < most, f"{self._layout.name} of a run has the value {largest}", f"less than {most}"
                )
            self._decoded += 1
        return parts[-1] if len(parts) == 1 else np.concatenate(parts)


def unpack_rows(packed: PackedRun) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Decode the rows of a run without their connections.

    Returns
    -------
    source, targets : ndarray of int64
        See `BlockReader`.

    Raises
    ------
    StoreDamagedError, StoreFormatError
        As `unpack`, as far as these arrays show it.
    """
    reader = BlockReader(packed)
    return reader.source, reader.row_targets


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
    reader, none = BlockReader(packed), np.zeros(0, np.int64)
    *fields, segments = (reader.rest(name) for name in TARGET_ARRAYS)
    strengths = (segments, none, none)
    key = target_key(*fields, names=reader.names)
    return reader.source, decode_targets(reader.row_targets, key, strengths, gaps=reader.gaps)


def _columns(sets: TargetSets) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays of some rows that follow those of their source neurons."""
    return (
        _narrow(sets.row_targets),
        *(_narrow(part) for part in unpack_neuron(sets.key >> BRANCH_BITS)),
        _narrow(sets.key & (MAXIMUM_BRANCHES - 1)),
        *(_narrow(array) for array in (sets.segments, sets.strength, sets.change)),
    )


def decode_targets(
    row_targets: Integers,
    key: Integers,
    strengths: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]],
    *,
    gaps: bool,
) -> TargetSets:
    """Return the targets of some rows, given their parts of the encoded arrays.

    Parameters
    ----------
    row_targets : ndarray
        Number of targets of each row, int64.
    key : ndarray
        See `target_key`.
    strengths : tuple of ndarray
        Segments and lowest strength of each target, and the changes; unsigned integers of any width.
    gaps : bool
        Whether targets are encoded as differences within their row.
    """
    from giaann_dask.runs.target_sets import TargetSets

    segments, strength, change = strengths
    return TargetSets(
        row_targets,
        _from_gaps(key, row_targets) if gaps else key,
        segments.astype(np.uint32),
        strength.astype(np.int64),
        change.astype(np.uint64),
    )


def target_key(
    column: npt.NDArray[Any], feature: npt.NDArray[Any], branch: npt.NDArray[Any], *, names: Integers | None = None
) -> Integers:
    """Return target keys without their segments.

    Parameters
    ----------
    column, feature, branch : ndarray
        Of each target, unsigned integers of any width, of one length.
    names : ndarray, optional
        Target neurons by number, where `column` and `feature` are numbers.

    Returns
    -------
    ndarray
        See `TargetSets`; int64.

    Raises
    ------
    StoreDamagedError
        If a number has no name.
    """
    if names is None:
        key = pack_neuron(column, feature)
    else:
        number = name_number(column, feature)
        most = int(number.max(initial=-1))
        require_intact(most < len(names), f"a run has the name {most}", f"{len(names)} names")
        key = names[number]
    key <<= BRANCH_BITS
    key |= branch
    return key


def name_number(high: npt.NDArray[Any], low: npt.NDArray[Any]) -> Integers:
    """Return the numbers of names, given their two parts."""
    number = high.astype(np.int64)
    number <<= LOW_BITS
    number |= low
    return number


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
