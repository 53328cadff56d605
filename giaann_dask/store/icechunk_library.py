"""Import Icechunk when it is first used, call what differs between its versions, and write what both of them read.

Icechunk 2 starts threads when it is imported. They do not exist in a worker, which is forked from a process that has
imported this package. It also writes format 2 by default, which Icechunk 1 cannot read; both read and write format 1.
Some of its functions wait for one of its threads without releasing the interpreter's lock, which that thread may need:
Python 3.14 then stops without end. They are replaced or not called here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from zarr.core.sync import sync

from giaann_dask.lazy import LazyModule

if TYPE_CHECKING:
    import icechunk as icechunk
else:
    icechunk = LazyModule("icechunk")

CONCURRENT = 32
"""Entries that are read or written concurrently.

From disks this takes half the time of one after the other, in object stores a small part of it. Some of them are
metadata and small chunks, which make no request.
"""


def is_second_version() -> bool:
    """Return whether Icechunk 2 is installed."""
    return hasattr(icechunk, "SpecVersion")


def prepare_icechunk() -> None:
    """Let names of Icechunk's stores, which Zarr puts into messages and keys, be found without asking its threads."""
    if is_second_version():
        for name in ("__str__", "__repr__"):
            setattr(icechunk.IcechunkStore, name, _name_of_store)


def _name_of_store(store: icechunk.IcechunkStore) -> str:
    return f"<icechunk.IcechunkStore at {id(store):#x}>"


def create_repository(storage: icechunk.Storage, config: icechunk.RepositoryConfig | None) -> icechunk.Repository:
    """Create a repository in format 1, as networks are copied between machines whose versions of Icechunk differ."""
    version: dict[str, Any] = {"spec_version": 1} if is_second_version() else {}
    return icechunk.Repository.create(storage, config=config, **version)


def manifest_sizes(repository: icechunk.Repository, snapshot: icechunk.SnapshotInfo) -> dict[str, int]:
    """Return the bytes of each manifest of a commit by its identity."""
    found: Any = getattr(snapshot, "manifests", None)
    if found is None:
        # Not `list_manifest_files`, which keeps the interpreter's lock.
        found = sync(cast(Any, repository).list_manifest_files_async(snapshot.id))
    return {each.id: each.size_bytes for each in found}
