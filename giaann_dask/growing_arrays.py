"""Write Zarr arrays that grow, and read them again to change them.

Zarr's own functions take milliseconds of the processor for an array, more than all else of a small commit. Arrays are
the same as Zarr would write them, and it reads them: compressed by Zstandard after a bit shuffle, each chunk closed by
a CRC-32C checksum. Chunks divide the first axis alone.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs.blosc import Blosc
from zarr.buffer import default_buffer_prototype

from giaann_dask.array_metadata import array_metadata
from giaann_dask.errors import RESTORE, StoreDamagedError

# Bytes of a chunk: small, as a chunk is compressed as a whole, however little is in it.
_CHUNK_BYTES = 1 << 18
_LEVEL = 5
_CODEC = Blosc(cname="zstd", clevel=_LEVEL, shuffle=Blosc.BITSHUFFLE)
# Chunks that are compressed at the same time, by threads.
_TOGETHER = 8
_METADATA = "zarr.json"


class StoredArray:
    """Array of a group of integers or booleans, whose first axis grows.

    Parameters
    ----------
    group : zarr.AsyncGroup
        Where it is.
    name : str
        Its name.
    document : dict
        Its metadata.
    """

    def __init__(self, group: zarr.AsyncGroup, name: str, document: dict[str, Any]) -> None:
        self._store = group.store_path.store
        self._path = f"{group.store_path.path}/{name}".lstrip("/")
        self._document = document
        try:
            self._chunk: tuple[int, ...] = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
            self.dtype: np.dtype[Any] = np.dtype(document["data_type"]).newbyteorder("<")
            intact = document["codecs"] == _document((0, *self._chunk[1:]), self._chunk[0], self.dtype)["codecs"]
            intact = intact and tuple(document["shape"][1:]) == self._chunk[1:]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error
        if not intact:
            raise self._damaged()

    @classmethod
    async def find(cls, group: zarr.AsyncGroup, name: str) -> StoredArray | None:
        """Return an array of a group, None if it does not exist."""
        path = f"{group.store_path.path}/{name}/{_METADATA}".lstrip("/")
        found = await group.store_path.store.get(path, default_buffer_prototype())
        if found is None:
            return None
        try:
            document = json.loads(found.to_bytes())
        except ValueError:
            document = {}
        return cls(group, name, document)

    @classmethod
    async def create(
        cls, group: zarr.AsyncGroup, name: str, values: npt.NDArray[Any], chunk: int | None = None
    ) -> StoredArray:
        """Create an array, which does not exist, with its first values.

        Parameters
        ----------
        group : zarr.AsyncGroup
            Where to create it.
        name : str
            Its name.
        values : ndarray
            Integers or booleans.
        chunk : int, optional
            Length of a chunk; by default of 256 KiB.
        """
        length = chunk or max(1, _CHUNK_BYTES // (values.dtype.itemsize * math.prod(values.shape[1:])))
        made = cls(group, name, _document((0, *values.shape[1:]), length, values.dtype))
        await made.write(0, values)
        return made

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return int(self._document["shape"][0])

    async def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return the values from a place on, up to another or to the end.

        Raises
        ------
        StoreDamagedError
            If a chunk is not what was written.
        """
        end, length = len(self) if stop is None else min(stop, len(self)), self._chunk[0]
        values = np.zeros((max(end - start, 0), *self._chunk[1:]), self.dtype)
        numbers = range(start // length, -(-end // length) if len(values) else 0)

        async def read(number: int) -> None:
            chunk, begin = await self._read_chunk(number, len(numbers) > 1), number * length
            first, last = max(start, begin), min(end, begin + length)
            values[first - start : last - start] = chunk[first - begin : last - begin]

        for place in range(0, len(numbers), _TOGETHER):
            await asyncio.gather(*map(read, numbers[place : place + _TOGETHER]))
        return values

    async def write(self, start: int, values: npt.NDArray[Any]) -> None:
        """Write values from a place on; the array grows where they reach beyond its end.

        Raises
        ------
        StoreDamagedError
            If a chunk that keeps some of its values is not what was written.
        """
        before, stop, length = len(self), start + len(values), self._chunk[0]
        if stop > before or not before:
            self._document["shape"][0] = stop
            await self._set(_METADATA, json.dumps(self._document, separators=(",", ":")).encode())
        numbers = range(start // length, -(-stop // length) if len(values) else 0)
        for begin in range(0, len(numbers), _TOGETHER):
            few = numbers[begin : begin + _TOGETHER]
            await asyncio.gather(*(self._write_chunk(number, before, start, values, len(few) > 1) for number in few))

    async def _write_chunk(self, number: int, before: int, start: int, values: npt.NDArray[Any], threads: bool) -> None:
        """Write the values of one chunk, which keeps what it has besides them, given the length before."""
        begin, end = number * self._chunk[0], (number + 1) * self._chunk[0]
        first, last = max(start, begin), min(start + len(values), end)
        keeps = begin < min(first, before) or last < min(before, end)
        chunk = await self._read_chunk(number, threads) if keeps else np.zeros(self._chunk, self.dtype)
        chunk[first - begin : last - begin] = values[first - start : last - start]
        key = self._key(number)
        if not chunk.any():
            # As in Zarr, what is missing is zeros.
            if begin < before:
                await self._store.delete(f"{self._path}/{key}")
            return
        encoded = await asyncio.to_thread(_CODEC.encode, chunk) if threads else _CODEC.encode(chunk)
        await self._set(key, encoded + google_crc32c.value(encoded).to_bytes(4, "little"))

    async def _read_chunk(self, number: int, threads: bool) -> npt.NDArray[Any]:
        """Return the values of one chunk, with those beyond the end."""
        key = self._key(number)
        found = await self._store.get(f"{self._path}/{key}", default_buffer_prototype())
        if found is None:
            return np.zeros(self._chunk, self.dtype)
        entry = found.to_bytes()
        return await asyncio.to_thread(self._decode, entry) if threads else self._decode(entry)

    def _decode(self, entry: bytes) -> npt.NDArray[Any]:
        """Return the values of a stored chunk."""
        chunk = np.zeros(self._chunk, self.dtype)
        if google_crc32c.value(entry[:-4]) != int.from_bytes(entry[-4:], "little"):
            raise self._damaged()
        try:
            _CODEC.decode(entry[:-4], chunk)
        except (RuntimeError, ValueError) as error:
            raise self._damaged() from error
        return chunk

    async def _set(self, key: str, value: bytes) -> None:
        await self._store.set(f"{self._path}/{key}", default_buffer_prototype().buffer.from_bytes(value))

    def _key(self, number: int) -> str:
        return "/".join(["c", str(number), *("0" for _ in self._chunk[1:])])

    def _damaged(self) -> StoreDamagedError:
        return StoreDamagedError(f"array {self._path} is not what was written", "", RESTORE)


def _document(shape: Sequence[int], chunk: int, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the metadata of an array that Zarr would write."""
    settings = {"typesize": dtype.itemsize, "cname": "zstd", "clevel": _LEVEL, "shuffle": "bitshuffle", "blocksize": 0}
    codec = {"name": "blosc", "configuration": settings}
    document = array_metadata(shape, (chunk, *shape[1:]), dtype.name, codec, {})
    return document | {"storage_transformers": []}
