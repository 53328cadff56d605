"""Read immutable Zarr groups with a check of every file against the digest that was stored when it was written.

Zarr reads a missing chunk file as zeros, and the metadata of an array has no checksum: without the digests, a lost
file or a changed digit would yield other numbers without an error. The digests are attributes of the group.
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
    """Zarr store of a folder that compares every file except the group's metadata with its digest.

    Parameters
    ----------
    store : LocalStore
        Store of the folder.
    digests : mapping of str to str
        Digest by path within the folder, as `add_digests` computes them.
    """

    def __init__(self, store: LocalStore, digests: Mapping[str, str]) -> None:
        super().__init__(store)
        self._digests = digests

    def _with_store(self, store: LocalStore) -> CheckedFolder:
        return type(self)(store, self._digests)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the content of a file, or a byte range of it; None for a file that neither exists nor has a digest.

        Raises
        ------
        StoreDamagedError
            If the file is missing or was changed since it was written.
        """
        whole = await self._store.get(key, prototype)
        found = None if whole is None else _digest(whole.to_bytes())
        if key != _METADATA and found != self._digests.get(key):
            raise _damage(self._store.root, key)
        return whole if byte_range is None else await self._store.get(key, prototype, byte_range)


def add_digests(folder: Path, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a group with the digests of the files below its folder and of the attributes."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / _METADATA)
    sums = {file.relative_to(folder).as_posix(): _digest(file.read_bytes()) for file in files}
    with_files = {**attributes, _FILES: sums}
    return {**with_files, _OTHERS: _digest_of(with_files)}


def open_checked_group(folder: Path) -> tuple[zarr.Group, dict[str, Any]]:
    """Return a group whose files are checked when they are read, and its attributes without the digests.

    A group that was written without digests is read without checks.

    Raises
    ------
    StoreDamagedError
        If the attributes were changed since they were written.
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
