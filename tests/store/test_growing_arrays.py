"""Arrays that are written without Zarr's functions are those that Zarr would write, and it reads them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.buffer.cpu import Buffer
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from giaann_dask.errors import StoreDamagedError
from giaann_dask.growing_arrays import StoredArray
from giaann_dask.storage import append_values, create_array, update_values, write_concurrently

KINDS = {"int64": (), "int32": (3,), "uint8": (), "bool": ()}


def asynchronous(group: zarr.Group) -> zarr.AsyncGroup:
    return zarr.AsyncGroup(metadata=group.metadata, store_path=group.store_path)


def some(kind: str, length: int, seed: int) -> Any:
    values = np.random.default_rng(seed).integers(0, 2, (length, *KINDS[kind]))
    return values.astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_and_chunks_are_those_of_zarr(kind: str) -> None:
    stored: dict[str, Any] = {}
    group, values = zarr.open_group(MemoryStore(stored), mode="a"), some(kind, 25, 1)
    create_array(group, "ours", values, chunk=10)
    size = values.dtype.itemsize
    blosc = BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle", typesize=size)
    theirs = group.create_array(
        "theirs", shape=values.shape, chunks=(10, *values.shape[1:]), dtype=kind, compressors=(blosc, Crc32cCodec())
    )
    theirs[:] = values
    entries = {key: value.to_bytes() for key, value in stored.items()}
    keys = [key.removeprefix("theirs/") for key in entries if key.startswith("theirs/")]
    assert len(keys) == 4
    for key in keys:
        ours, expected = entries[f"ours/{key}"], entries[f"theirs/{key}"]
        assert (json.loads(ours) == json.loads(expected)) if key == "zarr.json" else (ours == expected)


@given(st.sampled_from(sorted(KINDS)), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=5))
def test_any_writes_are_read_by_zarr(kind: str, writes: list[tuple[int, int]]) -> None:
    """Values replace others, or follow the last one; whole chunks of zeros are among them."""
    group = zarr.open_group(MemoryStore(), mode="a")
    expected = some(kind, 12, 0)
    array = sync(StoredArray.create(asynchronous(group), "a", expected, 8))
    for seed, (start, length) in enumerate(writes):
        begin, values = min(start, len(expected)), some(kind, length, seed) * (seed % 2)
        values = values.astype(kind)
        expected = np.concatenate([expected[:begin], values, expected[begin + length :]])
        sync(array.write(begin, values))
        assert np.array_equal(group["a"][:], expected)
        assert np.array_equal(sync(array.read()), expected)
        assert np.array_equal(sync(array.read(begin, begin + length)), expected[begin : begin + length])
        array = sync(StoredArray.find(asynchronous(group), "a"))
        assert len(array) == len(expected)


def test_values_are_appended_and_updated() -> None:
    group = zarr.open_group(MemoryStore(), mode="a")
    # More than one chunk of 256 KiB.
    first, more = np.arange(70_000), np.arange(5)
    for values in (first, more):
        write_concurrently(group, [lambda opened, values=values: append_values(opened, "a", values)])
    expected = np.concatenate([first, more])
    assert np.array_equal(group["a"][:], expected)
    expected[[3, 40_000]] = -1
    expected = np.concatenate([expected, more])
    write_concurrently(group, [lambda opened: update_values(opened, "a", expected)])
    assert np.array_equal(group["a"][:], expected)


@pytest.mark.parametrize("wrong", [b"", b"short", b"x" * 60])
def test_a_damaged_chunk_is_noticed(wrong: bytes) -> None:
    stored: dict[str, Any] = {}
    group = zarr.open_group(MemoryStore(stored), mode="a")
    array = sync(StoredArray.create(asynchronous(group), "a", np.arange(5)))
    stored["a/c/0"] = Buffer.from_bytes(wrong)
    with pytest.raises(StoreDamagedError, match="array a is not what was written"):
        sync(array.write(5, np.arange(2)))


@pytest.mark.parametrize("wrong", [b"{}", b'{"shape": 1}', b"[]", b"x"])
def test_damaged_metadata_are_noticed(wrong: bytes) -> None:
    stored: dict[str, Any] = {}
    group = zarr.open_group(MemoryStore(stored), mode="a")
    sync(StoredArray.create(asynchronous(group), "a", np.arange(5)))
    stored["a/zarr.json"] = Buffer.from_bytes(wrong)
    with pytest.raises(StoreDamagedError, match="array a is not what was written"):
        sync(StoredArray.find(asynchronous(group), "a"))
