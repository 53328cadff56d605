"""Read Zarr groups with a check of every chunk against the digest that was recorded when it was written.

Zarr reads a missing chunk as zeros, and a chunk that closes with its own checksum keeps it where it is taken for a
chunk of another array: without the digests, a lost or exchanged chunk would yield other numbers without an error. The
digests are an attribute of the group, and so is one of all other attributes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from giaann_dask.errors import StoreDamagedError

_METADATA = "zarr.json"
# The attributes: digests of chunks, and of all other attributes.
_FILES, _OTHERS = "file_digests", "digest"
_Store = TypeVar("_Store", bound=Store)


class CheckedStore(WrapperStore[_Store]):
    """Zarr store that compares what it reads with digests.

    Parameters
    ----------
    store : Store
        Holds the group at its root.
    digests : mapping of str to str
        Digest by key, as `RecordingStore` computes them; metadata has none.
    where : str
        Name of the store, for errors.
    """

    def __init__(self, store: _Store, digests: Mapping[str, str], where: str) -> None:
        super().__init__(store)
        self._digests = digests
        self._where = where

    def _with_store(self, store: _Store) -> CheckedStore[_Store]:
        return type(self)(store, self._digests, self._where)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the content of a key, or a byte range of it; None for one that neither exists nor has a digest.

        Raises
        ------
        StoreDamagedError
            If it is missing or was changed since it was written.
        """
        whole = await self._store.get(key, prototype)
        found = None if whole is None else _digest(whole.to_bytes())
        if found != self._digests.get(key) and not key.endswith(_METADATA):
            raise _damage(self._where, key)
        return whole if byte_range is None else await self._store.get(key, prototype, byte_range)


class RecordingStore(WrapperStore[_Store]):
    """Zarr store that records the digests of the chunks that are written.

    Attributes
    ----------
    digests : dict of str to str
        Digest by key.
    """

    def __init__(self, store: _Store) -> None:
        super().__init__(store)
        self.digests: dict[str, str] = {}

    def _with_store(self, store: _Store) -> RecordingStore[_Store]:
        other = type(self)(store)
        other.digests = self.digests
        return other

    async def set(self, key: str, value: Buffer) -> None:
        """Write a key."""
        if not key.endswith(_METADATA):
            self.digests[key] = _digest(value.to_bytes())
        await self._store.set(key, value)


def seal_group(group: zarr.Group, attributes: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Write the attributes of a group with the digests of its chunks, the shapes of its arrays and a digest of all."""
    with_files = {**attributes, _FILES: dict(digests), "shapes": _shapes(group)}
    group.update_attributes({**with_files, _OTHERS: _digest_of(with_files)})


def open_checked_group(store: Store, where: str) -> tuple[zarr.Group, dict[str, Any]]:
    """Return a group whose chunks are checked when they are read, and its attributes without the digests.

    A group without digests, which is no corpus, is returned as it is.

    Parameters
    ----------
    store : Store
        Holds the group at its root.
    where : str
        Name of the store, for errors.

    Raises
    ------
    StoreDamagedError
        If the attributes or the shape of an array were changed since they were written.
    """
    group = zarr.open_group(store, mode="r")
    attributes = dict(group.attrs)
    if _FILES not in attributes:
        return group, attributes
    digest = attributes.pop(_OTHERS, None)
    if digest != _digest_of(attributes) or attributes.pop("shapes") != _shapes(group):
        raise _damage(where, _METADATA)
    sums: Any = attributes.pop(_FILES)
    return zarr.open_group(CheckedStore(store, sums, where), mode="r"), attributes


def _shapes(group: zarr.Group) -> dict[str, list[Any]]:
    """Return the type and the shape of each array of a group."""
    return {name: [str(array.dtype), *array.shape] for name, array in sorted(group.arrays())}


def _digest_of(attributes: Mapping[str, Any]) -> str:
    return _digest(json.dumps(attributes, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    # A chunk ends with its CRC-32C, so the CRC-32C of the whole is the same for all chunks.
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _damage(where: str, key: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{where}/{key} is missing or not what was written", "an intact store", "restore it from a copy"
    )
