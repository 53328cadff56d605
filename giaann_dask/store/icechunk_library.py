"""Import Icechunk when it is first used, in the process with its threads alone, and hide what its versions differ in.

Icechunk 2 starts threads when it is imported, Icechunk 1 when it is used. They do not exist in a process that is forked
afterwards, which would wait for them without end. Dask's workers are not affected: they are forked from a process that
has imported this package and never used it. Icechunk 2 also writes format 2 by default, which Icechunk 1 cannot read;
both read and write format 1. Some of its functions wait for one of its threads without releasing the interpreter's
lock, which that thread may need: Python 3.14 then stops without end. They are replaced or not called here.
"""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Any, cast

from giaann_dask.errors import StoreForkedError
from giaann_dask.lazy import LazyModule
from giaann_dask.library_internals import foreign_frames, sync

if TYPE_CHECKING:
    import icechunk as icechunk
else:
    icechunk = LazyModule("icechunk")

CONCURRENT = 32
"""Entries that are read or written concurrently.

From disks this takes half the time of one after the other, in object stores a small part of it. Some of them are
metadata and small chunks, which make no request.
"""
_user: int | None = None


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


def use_icechunk() -> None:
    """Check that this process may use Icechunk; call it before anything of Icechunk that reads or writes.

    Raises
    ------
    StoreForkedError
        If the process was forked from one that had used it.
    """
    global _user
    process = os.getpid()
    if _user is None:
        _user = process
        # Its errors are exceptions, too, which are told in one line.
        icechunk.set_logs_filter(os.environ.get("ICECHUNK_LOG", "off"))
        prepare_icechunk()
        atexit.register(await_icechunk)
    elif _user != process:
        raise StoreForkedError(
            "a network is used in a process that was forked from one that had used a network",
            "a process that was not, because threads that read the store do not live on in a forked one",
            'use the start method "spawn" of multiprocessing, or fork before a network is opened',
        )


def await_icechunk(limit_s: float = 2.0) -> bool:
    """Wait until no thread of Icechunk hands over to an event loop what it has read; return whether none does.

    A thread needs microseconds for it, unless the machine is overloaded. It does so by a method of the loop, so that
    the process may end before this method has returned. The interpreter would end the thread there, which aborts the
    process.
    """
    deadline = time.monotonic() + limit_s
    while hands_over := _hands_over():
        if time.monotonic() >= deadline:
            break
        time.sleep(0.001)
    return not hands_over


def _hands_over() -> bool:
    """Return whether a thread that Python did not start has called asyncio."""
    return any(frame.f_globals.get("__name__", "").startswith("asyncio.") for frame in foreign_frames())
