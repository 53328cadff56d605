"""Encode arrays of unsigned integers as the bytes of a chunked Zarr group, and decode them.

Metadata, chunks, checksums and the header of such a group are written and read without Zarr, whose cost for every
array is more than that of a small run. `packing` defines what the arrays mean.

Large chunks are several Zstandard frames and a table of their sizes, in Zstandard's seekable format
(https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md): any decoder
reads a chunk as a whole, and `decode_frames` only the frames that a row lies in.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs.zstd import Zstd

from giaann_dask.array_metadata import array_metadata
from giaann_dask.errors import StoreDamagedError, StoreFormatError
from giaann_dask.lazy import compiled, jit_inner, runs_plainly
from giaann_dask.lazy import numba_types as nb
from giaann_dask.runs.run import readable

VERSION = 5
# Of a table whose targets are given as differences within their row, or as numbers in a table of their names.
VERSION_GAPS, VERSION_NAMES = 6, 7
# Of compression. Targets that are hashes do not repeat: their tables take as many bytes at the second level as at the
# first, which takes half as long again.
LEVEL, LEVEL_OF_NAMES = 3, 1

_HEADER = "giaann_run"
GROUP_KEY = "zarr.json"
# Returns the encoded bytes of the entries with these names; entries that do not exist are left out.
ReadEntries: TypeAlias = Callable[[Sequence[str]], Mapping[str, bytes]]
# The attributes of an array that list the checksums of its chunks, and, where its values are differences, have the one
# of what they begin with.
_CHECKSUMS, _DIFFERENCES = "crc32c", "differences"
# The attribute of an array that lists its distinct values, whose places are stored, and their checksum at the end.
_DISTINCT = "distinct"
_MOST_DISTINCT = 256
# Slots of the table in which they are looked up, as many as `_slot` has numbers, and how many of few values NumPy looks
# up in a microsecond.
_SLOTS, _PLAIN_PER_US = 1 << 10, 20
_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64")}
# Of values that are stored as differences.
_RESTORED = _TYPES["uint32"]
_CODECS = {level: Zstd(level=level) for level in (LEVEL, LEVEL_OF_NAMES)}
_CODEC = _CODECS[LEVEL]
# A smaller chunk is one frame.
_FRAMED_VALUES = 1 << 16
# The table of a seekable chunk: a skippable frame of compressed and decompressed sizes, closed by number and flags.
_SKIPPABLE = struct.Struct("<II")
_SIZES = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_SKIPPABLE_MAGIC, _SEEKABLE_MAGIC = 0x184D2A5E, 0x8F92EAB1
# Values of a chunk at most: many times as many as any version wrote.
_MOST_VALUES = 1 << 24


class FrameSummary(Enum):
    """Summaries that an array stores of its frames, so that values are found without decoding those before.

    Values are the names of the attributes of a Zarr array that list it.
    """

    FIRST = "frame_first"
    SUM = "frame_sum"
    BITS = "frame_bits"

    def of(self, values: npt.NDArray[Any]) -> int:
        """Return the first value of a frame, their sum, or the number of bits that are set in them."""
        if self is FrameSummary.FIRST:
            return int(values[0])
        return int((values if self is FrameSummary.SUM else np.bitwise_count(values)).sum(dtype=np.int64))


class Framing(NamedTuple):
    """Division of the large chunks of an array into frames.

    Attributes
    ----------
    frames : int
        Frames of a chunk: with more of them a chunk may get larger, with one a value costs a whole chunk.
    summary : FrameSummary or None
        What is stored of each frame, if anything.
    differences : bool
        Whether values, which fit 32 bits, are stored as the difference from the one before modulo 2 ** 32, the first
        one of each frame as 0: the summary, `FrameSummary.FIRST`, has it.
    distinct : bool
        Whether a byte with the place among all distinct values is stored of each value, where these are few and wide.
    """

    frames: int = 4
    summary: FrameSummary | None = None
    differences: bool = False
    distinct: bool = False


def encode_array(
    name: str, pieces: Sequence[npt.NDArray[Any]], chunk: int, framing: Framing, level: int = LEVEL
) -> dict[str, bytes]:
    """Return metadata and chunks of one array, which is given piece after piece, at least one.

    The chunks are even, so that padding stays small, and of the widest type of all pieces.
    """
    summary, differences = framing.summary, framing.differences
    values, kind = sum(map(len, pieces)), _widest_difference(pieces) if differences else np.result_type(*pieces)
    count = -(-values // chunk)
    length = max(-(-values // max(count, 1)), 1)
    chunks: dict[str, bytes] = {}
    checksums, summaries = [], []
    chunk_values = np.zeros(length, _RESTORED if differences else kind.newbyteorder("<"))
    distinct = _few_values(pieces) if framing.distinct and kind.itemsize > 1 else None
    if distinct is not None:
        kind = np.dtype(np.uint8)
    for number, piece in enumerate(_even_chunks(pieces, chunk_values, repeats_last=differences)):
        parts = divide_chunk(piece, _frame_values(len(piece), framing.frames))
        encoded = _encode_chunk([_as_stored(part, kind, distinct, differences) for part in parts], level)
        checksums.append(google_crc32c.value(encoded))
        chunks[f"{name}/c/{number}"] = encoded + checksums[-1].to_bytes(4, "little")
        summaries += [summary.of(part) for part in parts] if summary else []
    attributes: dict[str, Any] = {_CHECKSUMS: checksums, **({summary.value: summaries} if summary else {})}
    attributes |= {_DIFFERENCES: _checksum_of(summaries)} if differences else {}
    attributes |= {} if distinct is None else {_DISTINCT: [*distinct.tolist(), _checksum_of(distinct.tolist())]}
    return {f"{name}/zarr.json": to_json(_array_metadata(values, length, kind.name, attributes, level)), **chunks}


def _as_stored(
    values: npt.NDArray[Any], kind: np.dtype[Any], distinct: npt.NDArray[Any] | None, differences: bool
) -> npt.NDArray[Any]:
    """Return what is stored of the values of a frame; see `Framing`."""
    if distinct is not None:
        return _places(values, distinct)
    return _differences(values).astype(kind) if differences else values


def _few_values(pieces: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """Return the distinct values of pieces and 0, with which chunks are padded, ascending; None where they are many."""
    found, used = np.zeros(_MOST_DISTINCT, _RESTORED), 1
    slots = _slots_of(found[:1])
    for piece in pieces:
        if runs_plainly(len(piece) // _PLAIN_PER_US):
            values = np.union1d(found[:used], piece)
            used = len(values)
            if used <= _MOST_DISTINCT:
                found[:used], slots = values, _slots_of(values)
        else:
            used = _number_values(readable(piece, np.uint32), slots, found, used, np.empty(len(piece), np.uint8))
        if used > _MOST_DISTINCT:
            return None
    return np.sort(found[:used])


def _places(values: npt.NDArray[Any], distinct: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the place of each value among distinct ones."""
    if runs_plainly(len(values) // _PLAIN_PER_US):
        return np.searchsorted(distinct, values).astype(np.uint8)
    places = np.empty(len(values), np.uint8)
    _number_values(readable(values, np.uint32), _slots_of(distinct), distinct, len(distinct), places)
    return places


def _slots_of(values: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """Return the hash table of values, which are numbered as they stand."""
    slots = np.full(_SLOTS, -1, np.int16)
    for place, value in enumerate(values.tolist()):
        slot = _slot(value)
        while slots[slot] >= 0:
            slot = (slot + 1) & (_SLOTS - 1)
        slots[slot] = place
    return slots


@jit_inner
def _slot(value: int) -> int:
    """Return the first slot of a value of 32 bits."""
    return ((value * 0x9E3779B1) & 0xFFFFFFFF) >> 22


@compiled(
    nb.int64(nb.types.Array(nb.uint32, 1, "C", readonly=True), nb.int16[::1], nb.uint32[::1], nb.int64, nb.uint8[::1])
)
def _number_values(
    values: npt.NDArray[Any],
    slots: npt.NDArray[np.int16],
    found: npt.NDArray[Any],
    used: int,
    places: npt.NDArray[np.uint8],
) -> int:
    """Fill in the place of each value among those that were found; new ones are added, one too many at most."""
    for at in range(len(values)):
        value = np.int64(values[at])
        slot = _slot(value)
        while slots[slot] >= 0 and found[slots[slot]] != value:
            slot = (slot + 1) & (_SLOTS - 1)
        if slots[slot] < 0:
            if used == len(found):
                return used + 1
            slots[slot], found[used] = used, value
            used += 1
        places[at] = slots[slot]
    return used


def _checksum_of(values: Sequence[int]) -> int:
    """Return the checksum of values of 32 bits that no chunk has."""
    return int(google_crc32c.value(np.array(values, _RESTORED).tobytes()))


def _differences(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the difference of each value of 32 bits from the one before, modulo 2 ** 32; of the first one 0."""
    return np.diff(values, prepend=values[:1])


def _widest_difference(pieces: Sequence[npt.NDArray[Any]]) -> np.dtype[Any]:
    """Return the narrowest type that differences of values fit."""
    values = np.concatenate([np.zeros(0, _RESTORED), *pieces]).astype(_RESTORED)
    return np.min_scalar_type(int(_differences(values).max(initial=0))).newbyteorder("<")


def _even_chunks(
    pieces: Sequence[npt.NDArray[Any]], chunk: npt.NDArray[Any], *, repeats_last: bool
) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of pieces as chunks in the same memory; the last one is padded with 0, or its last value.

    An array of all values would be new memory, which costs more than this.
    """
    filled = 0
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            taken = min(len(piece) - begin, len(chunk) - filled)
            chunk[filled : filled + taken] = piece[begin : begin + taken]
            begin, filled = begin + taken, filled + taken
            if filled == len(chunk):
                yield chunk
                filled = 0
    if filled:
        chunk[filled:] = chunk[filled - 1] if repeats_last else 0
        yield chunk


def _encode_chunk(parts: Sequence[npt.NDArray[Any]], level: int) -> bytes:
    """Compress the frames of a chunk; several are followed by their table."""
    frames = [_CODECS[level].encode(part) for part in parts]
    if len(frames) == 1:
        encoded: bytes = frames[0]
        return encoded
    sizes = b"".join(_SIZES.pack(len(each), part.nbytes) for each, part in zip(frames, parts, strict=True))
    table = sizes + _FOOTER.pack(len(frames), 0, _SEEKABLE_MAGIC)
    return b"".join([*frames, _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(table)), table])


def divide_chunk(chunk: npt.NDArray[Any], frame: int) -> list[npt.NDArray[Any]]:
    """Return the frames of a chunk, of so many values but the last one."""
    return [chunk[begin : begin + frame] for begin in range(0, len(chunk), frame)]


def _frame_values(chunk: int, frames: int) -> int:
    """Return the number of values of a frame, but the last one, of a chunk of so many."""
    return -(-chunk // frames) if chunk >= _FRAMED_VALUES else chunk


class ArrayLayout(NamedTuple):
    """Metadata of an array.

    Attributes
    ----------
    name : str
        Of the array.
    length, chunk : int
        Number of its values, and of those of a chunk.
    dtype, stored : numpy.dtype
        Of its values, and of what is stored of them.
    checksums : list of int
        Of its chunks: a chunk of another array is intact, too.
    summary : FrameSummary or None
        What is stored of each frame, if anything.
    summaries : list of int
        That, of all frames of all chunks in order.
    differences : bool
        See `Framing`.
    distinct : ndarray or None
        All distinct values, where places among these are stored.
    """

    name: str
    length: int
    chunk: int
    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    checksums: list[int]
    summary: FrameSummary | None = None
    summaries: Sequence[int] = ()
    differences: bool = False
    distinct: npt.NDArray[Any] | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.length // self.chunk)

    @property
    def frame(self) -> int:
        """Number of values that are decoded at a time where a chunk is not needed as a whole."""
        # As many frames as have summaries: the number of values is the same for what was asked for and what came of it.
        stored = len(self.summaries) // self.chunks if self.summaries and self.chunks else Framing().frames
        return _frame_values(self.chunk, stored)

    @property
    def frames(self) -> int:
        """Number of frames of a chunk."""
        return -(-self.chunk // self.frame)

    @property
    def begins(self) -> list[int]:
        """Places at which the frames begin that have values, ascending."""
        inside = range(0, self.chunk, self.frame)
        begins = (number * self.chunk + begin for number in range(self.chunks) for begin in inside)
        return [begin for begin in begins if begin < self.length]

    def begin_of(self, number: int, frame: int) -> int:
        """Return the place at which a frame of a chunk begins."""
        return number * self.chunk + frame * self.frame

    def frame_of(self, place: int) -> tuple[int, int]:
        """Return the number of the frame that has a value, of all frames in order, and where that frame begins."""
        number, inside = divmod(place, self.chunk)
        frame = inside // self.frame
        return number * self.frames + frame, number * self.chunk + frame * self.frame

    def entry(self, number: int) -> str:
        """Return the Zarr key of a chunk."""
        return f"{self.name}/c/{number}"


def read_layout(name: str, entries: Mapping[str, bytes]) -> ArrayLayout:
    """Return the layout in the metadata of an array.

    Raises
    ------
    StoreDamagedError
        If there is none, or it is not what was written.
    """
    document = _from_json(name, entries.get(f"{name}/zarr.json"))
    try:
        (length,) = document["shape"]
        (chunk,) = document["chunk_grid"]["configuration"]["chunk_shape"]
        kind = document["data_type"]
        attributes = document["attributes"]
        checksums = attributes[_CHECKSUMS]
        summary = next((each for each in FrameSummary if each.value in attributes), None)
        summaries = attributes[summary.value] if summary else []
        stored = {_CHECKSUMS: checksums, **({summary.value: summaries} if summary else {})}
        differences = summary is FrameSummary.FIRST and _DIFFERENCES in attributes
        stored |= {_DIFFERENCES: _checksum_of(summaries)} if differences else {}
        distinct = None
        if _DISTINCT in attributes:
            *values, _ = attributes[_DISTINCT]
            distinct = np.array(values, _RESTORED)
            stored[_DISTINCT] = [*distinct.tolist(), _checksum_of(values)]
        level = document["codecs"][1]["configuration"]["level"]
        intact = document == _array_metadata(length, chunk, kind, stored, level) and kind in _TYPES
        intact = intact and type(level) is int and level in _CODECS
        intact = intact and type(length) is int and type(chunk) is int and length >= 0 and 1 <= chunk <= _MOST_VALUES
        intact = intact and len(checksums) == -(-length // chunk)
        intact = intact and all(type(value) is int and 0 <= value < 1 << 63 for value in summaries)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        intact = False
    require_intact(intact, f"the metadata of {name} of a run is {str(document)[:200]}")
    dtype = _TYPES[kind] if distinct is None and not differences else _RESTORED
    layout = ArrayLayout(name, length, chunk, dtype, _TYPES[kind], checksums, summary, summaries, differences, distinct)
    frames = layout.chunks * layout.frames if summary else 0
    require_intact(len(summaries) == frames, f"{name} of a run has {len(summaries)} summaries", f"{frames}")
    return layout


def decode_array(layout: ArrayLayout, entries: Mapping[str, bytes]) -> npt.NDArray[Any]:
    """Return the values of one array."""
    chunks = [decode_chunk(layout, number, entries) for number in range(layout.chunks)]
    return np.concatenate([np.zeros(0, layout.dtype), *chunks])[: layout.length]


def decode_chunk(layout: ArrayLayout, number: int, entries: Mapping[str, bytes]) -> npt.NDArray[Any]:
    """Return the values of one chunk, including the padding of the last one.

    Raises
    ------
    StoreDamagedError
        If it is missing, or not what was written.
    """
    values = _decode(layout, number, _intact_chunk(layout, number, entries), layout.chunk)
    parts = [_restored(layout, number, *each) for each in enumerate(divide_chunk(values, layout.frame))]
    return np.concatenate(parts) if layout.differences or layout.distinct is not None else values


def decode_frames(
    layout: ArrayLayout, number: int, entries: Mapping[str, bytes], frames: Sequence[int]
) -> list[npt.NDArray[Any]]:
    """Return the values of some frames of one chunk, `ArrayLayout.frame` values each but the last one.

    Raises
    ------
    StoreDamagedError
        As `decode_chunk`; the checksum is that of the whole chunk.
    """
    encoded = _intact_chunk(layout, number, entries)
    bounds, size = _frame_bounds(layout, number, encoded), layout.frame
    lengths = [min(size, layout.chunk - each * size) for each in frames]
    parts = [encoded[slice(*bounds[each])] for each in frames]
    found = [_decode(layout, number, *part) for part in zip(parts, lengths, strict=True)]
    return [_restored(layout, number, *each) for each in zip(frames, found, strict=True)]


def _restored(layout: ArrayLayout, number: int, frame: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of a frame, after checking that it is the one that its array has a summary of, if any."""
    if layout.distinct is not None:
        most = int(values.max(initial=0))
        require_intact(most < len(layout.distinct), f"{layout.entry(number)} of a run has the place {most}")
        values = layout.distinct[values]
    if layout.summary is None:
        return values
    stored, expected = layout.summaries[number * layout.frames + frame], layout.summary.of(values)
    name = f"{layout.summary.value} of {layout.entry(number)}"
    if layout.differences:
        require_intact(expected == 0, f"the first difference of {name} of a run is {expected}", "0")
        restored: npt.NDArray[Any] = np.cumsum(values, dtype=_RESTORED) + _RESTORED.type(stored)
        return restored
    require_intact(stored == expected, f"{name} of a run is {stored}", f"{expected}")
    return values


def _frame_bounds(layout: ArrayLayout, number: int, encoded: memoryview) -> list[tuple[int, int]]:
    """Return where the frames of a chunk lie."""
    count = layout.frames
    if count == 1:
        return [(0, len(encoded))]
    table = count * _SIZES.size + _FOOTER.size
    end = len(encoded) - table - _SKIPPABLE.size
    intact = end >= 0 and _FOOTER.unpack(encoded[-_FOOTER.size :]) == (count, 0, _SEEKABLE_MAGIC)
    intact = intact and _SKIPPABLE.unpack_from(encoded, end) == (_SKIPPABLE_MAGIC, table)
    require_intact(intact, f"chunk {layout.entry(number)} of a run has no table of {count} frames")
    sizes = [size for size, _ in _SIZES.iter_unpack(encoded[end + _SKIPPABLE.size : -_FOOTER.size])]
    ends = [*accumulate(sizes, initial=0)]
    require_intact(ends[-1] == end, f"the frames of chunk {layout.entry(number)} of a run end at {ends[-1]}", f"{end}")
    return [*pairwise(ends)]


def _intact_chunk(layout: ArrayLayout, number: int, entries: Mapping[str, bytes]) -> memoryview:
    """Return a compressed chunk without its checksum, which is right."""
    key = layout.entry(number)
    stored = entries.get(key, b"")
    encoded, checksum = memoryview(stored)[:-4], int.from_bytes(stored[-4:], "little")
    intact = len(stored) > 4 and google_crc32c.value(bytes(encoded)) == checksum
    intact = intact and layout.checksums[number] == checksum
    require_intact(intact, f"chunk {key} of a run is missing or its checksum is wrong")
    return encoded


def _decode(layout: ArrayLayout, number: int, encoded: memoryview, values: int) -> npt.NDArray[Any]:
    """Return so many values of a compressed chunk or frame."""
    decoded = np.zeros(values, layout.stored)
    try:
        # So little can be made to decompress to no more.
        _CODEC.decode(encoded, decoded)
    except (RuntimeError, ValueError) as error:
        raise damage(f"chunk {layout.entry(number)} of a run does not decode: {error}") from error
    return decoded


def group_metadata(header: dict[str, int]) -> dict[str, Any]:
    """Return the metadata document of the group."""
    return {"attributes": {_HEADER: header}, "zarr_format": 3, "node_type": "group"}


def _array_metadata(length: int, chunk: int, kind: str, attributes: Mapping[str, Any], level: int) -> dict[str, Any]:
    """Return the metadata of an array of one dimension."""
    codec = {"name": "zstd", "configuration": {"level": level, "checksum": False}}
    return array_metadata([length], [chunk], kind, codec, attributes)


def read_header(entries: Mapping[str, bytes]) -> dict[str, int]:
    """Return the header of a packed run after checking it."""
    document = _from_json("the group", entries.get(GROUP_KEY))
    attributes = document.get("attributes")
    header = attributes.get(_HEADER) if isinstance(attributes, dict) else None
    require_intact(isinstance(header, dict), "a run's group has no header")
    assert isinstance(header, dict)
    names = {"version", "rows", "connections", "strength_bits"}
    numbers = all(type(value) is int and value >= 0 for value in header.values())
    intact = set(header) == names and numbers and document == group_metadata(header)
    require_intact(intact, f"the header of a run is {str(document)[:200]}")
    if header["version"] not in (VERSION, VERSION_GAPS, VERSION_NAMES):
        raise StoreFormatError(
            f"a run is of format version {header['version']}",
            f"version {VERSION}, {VERSION_GAPS} or {VERSION_NAMES}",
            "open it with the version of giaann_dask that wrote it",
        )
    require_intact(header["strength_bits"] in (32, 64), f"a run has {header['strength_bits']}-bit strengths")
    return header


def has_gaps(header: Mapping[str, int]) -> bool:
    """Return whether the targets of a table are differences within their row, given its header."""
    return header["version"] == VERSION_GAPS


def has_names(header: Mapping[str, int]) -> bool:
    """Return whether the targets of a table are numbers of names, given its header."""
    return header["version"] == VERSION_NAMES


def to_json(document: dict[str, Any]) -> bytes:
    """Return a metadata document as it is stored."""
    return json.dumps(document, separators=(",", ":")).encode()


def _from_json(name: str, entry: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(entry or b"")
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise damage(f"the metadata of {name} of a run is missing or no JSON")
    return document


def damage(received: str, expected: str = "") -> StoreDamagedError:
    """Return the error of a damaged run."""
    return StoreDamagedError(received, expected, "restore it from a copy")


def require_intact(intact: bool, received: str, expected: str = "") -> None:
    """Raise a StoreDamagedError when not intact."""
    if not intact:
        raise damage(received, expected)
