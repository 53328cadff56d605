"""A folder of a Zarr group that is never written again, with the digest of every file in the group's attributes.

Covers: making the digests, and a store that compares what it reads with them. Zarr takes a chunk without a file for
one of zeros, and nothing checks what the metadata of an array says: a lost file or a changed digit would be other
numbers, without an error. Does not cover: what the arrays mean (`corpus`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, WrapperStore

from giaann_dask.errors import StoreDamagedError

_METADATA = "zarr.json"
# The attributes: digests of all files but the group's metadata, and the digest of all other attributes.
_FILES, _OTHERS = "file_digests", "digest"


class CheckedFolder(WrapperStore[LocalStore]):
    """A store that reads a folder, and compares every file but the group's metadata with its digest.

    Parameters
    ----------
    store : LocalStore
        Of the folder.
    digests : mapping of str to str
        Digest by path in the folder, as `seal` makes them.
    """

    def __init__(self, store: LocalStore, digests: Mapping[str, str]) -> None:
        super().__init__(store)
        self._digests = digests

    def _with_store(self, store: LocalStore) -> CheckedFolder:
        return type(self)(store, self._digests)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the content of a file, or a part of it; None where there is none and none is listed.

        Raises
        ------
        StoreDamagedError
            If the file is not what was written.
        """
        whole = await self._store.get(key, prototype)
        found = None if whole is None else _digest(whole.to_bytes())
        if key != _METADATA and found != self._digests.get(key):
            raise _damage(self._store.root, key)
        return whole if byte_range is None else await self._store.get(key, prototype, byte_range)


def seal(folder: Path, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a group with the digests of the files below its folder, and of themselves."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / _METADATA)
    sums = {file.relative_to(folder).as_posix(): _digest(file.read_bytes()) for file in files}
    sealed = {**attributes, _FILES: sums}
    return {**sealed, _OTHERS: _digest_of(sealed)}


def open_sealed(folder: Path) -> tuple[zarr.Group, dict[str, Any]]:
    """Return a group that checks what it reads, and its own attributes.

    A group that was written without digests is read without checks.

    Raises
    ------
    StoreDamagedError
        If the attributes are not what was written.
    """
    store = LocalStore(folder, read_only=True)
    group = zarr.open_group(store, mode="r")
    attributes = dict(group.attrs)
    digest = attributes.pop(_OTHERS, None)
    if digest is not None and digest != _digest_of(attributes):
        raise _damage(folder, _METADATA)
    sums: Any = attributes.pop(_FILES, None)
    return (group if sums is None else zarr.open_group(CheckedFolder(store, sums), mode="r")), attributes


def _digest_of(attributes: Mapping[str, Any]) -> str:
    return _digest(json.dumps(attributes, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    # A chunk ends with its CRC-32C, so the CRC-32C of the whole is the same for all chunks.
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _damage(folder: Path, name: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{folder / name} is missing or not what was written", "an intact store", "restore it from a copy"
    )
