"""Read the encoded entries of stored runs, and write runs from workers into a commit in progress.

Workers write through forks of the driver's session; `network_store` opens the session, merges the forks and commits.
Decoding entries is left to `giaann_dask.runs.packing`.
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from zarr.abc.buffer import Buffer as AnyBuffer
from zarr.abc.buffer import BufferPrototype
from zarr.buffer.cpu import Buffer, NDBuffer
from zarr.storage import WrapperStore

from giaann_dask.library_internals import sync
from giaann_dask.object_urls import is_in_memory
from giaann_dask.runs.joined_tables import JOINED_ENTRIES, is_joined, join_tables, split_tables
from giaann_dask.runs.packing import PackedRegionRun, PackedRun
from giaann_dask.storage import writing
from giaann_dask.store.icechunk_library import CONCURRENT, icechunk
from giaann_dask.store.locking import LockToken, require_place

_GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
# Sessions of commits in memory, which tasks in threads of this process write through, as these cannot be pickled.
_sessions: WeakValueDictionary[str, icechunk.Session] = WeakValueDictionary()
# Chunks of no more bytes are part of Icechunk's manifests.
_INLINE = 512


class WrittenObjects(NamedTuple):
    """Objects that were written into a store, a request each; in a folder they are files.

    Attributes
    ----------
    requests, nbytes : int
        How many, and their bytes as far as they are known.
    joined_runs : frozenset of str
        Identities of the runs among them whose tables are one array (`giaann_dask.runs.joined_tables`).
    groups : frozenset of str
        Paths of the groups that they are in; each has one writer.
    """

    requests: int = 0
    nbytes: int = 0
    joined_runs: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def plus(self, other: WrittenObjects) -> WrittenObjects:
        """Return the objects of both."""
        joined, groups = self.joined_runs | other.joined_runs, self.groups | other.groups
        return WrittenObjects(self.requests + other.requests, self.nbytes + other.nbytes, joined, groups)


def is_object(key: str, nbytes: int) -> bool:
    """Return whether Icechunk writes the value of a key as an object; metadata and small chunks are in its own."""
    return not key.endswith("zarr.json") and nbytes > _INLINE


class CountingStore(WrapperStore["icechunk.IcechunkStore"]):
    """Zarr store that counts the objects that are written through it.

    Attributes
    ----------
    sizes : list of int
        Bytes of each.
    """

    def __init__(self, store: icechunk.IcechunkStore) -> None:
        super().__init__(store)
        self.sizes: list[int] = []

    def _with_store(self, store: icechunk.IcechunkStore) -> CountingStore:
        other = type(self)(store)
        other.sizes = self.sizes
        return other

    async def set(self, key: str, value: AnyBuffer) -> None:
        """Write a key."""
        if is_object(key, len(value)):
            self.sizes.append(len(value))
        await self._store.set(key, value)

    @property
    def written(self) -> WrittenObjects:
        """Objects so far."""
        return WrittenObjects(len(self.sizes), sum(self.sizes))


class _AsRead:
    """Values as Icechunk reads them: bytes, or None where there is no such entry, which a buffer cannot be."""

    @staticmethod
    def from_bytes(value: bytes | None) -> bytes | None:
        return value


_PROTOTYPE: Any = BufferPrototype(_AsRead, NDBuffer)  # type: ignore[arg-type]


class StoredEntries:
    """The encoded entries of a store below a prefix, such as those of one table of a stored run.

    Parameters
    ----------
    store : zarr.abc.store.Store
        Store of the network.
    prefix : str
        Path of the table in the store, with the slash at the end; empty for all of the store.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the entries with these names, relative to the prefix; those that do not exist are left out."""
        # One call for all of them: each call of Icechunk takes about 0.3 ms of the processor.
        wanted = [(self._prefix + name, None) for name in names]
        values = sync(self._store.get_partial_values(_PROTOTYPE, wanted))
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


class JoinedTables:
    """The encoded entries of all tables of a small run, which are one array that is read once.

    Parameters
    ----------
    run : StoredEntries
        Entries of the run.
    """

    def __init__(self, run: StoredEntries) -> None:
        self._run = run

    @cached_property
    def entries(self) -> dict[str, dict[str, bytes]]:
        """Entries of each table; none where there is no such run.

        Raises
        ------
        StoreDamagedError
            If the array is not what was written.
        """
        found = self._run.read(JOINED_ENTRIES)
        return split_tables(found) if found else {}


class JoinedEntries:
    """The encoded entries of one table of such a run; no other table is kept for it once the first entry was read.

    Parameters
    ----------
    tables : JoinedTables
        All of them.
    name : str
        Name of the table.
    """

    def __init__(self, tables: JoinedTables, name: str) -> None:
        self._tables: JoinedTables | None = tables
        self._name = name
        self._entries: dict[str, bytes] = {}

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the entries with these names, relative to the table; those that do not exist are left out.

        Raises
        ------
        StoreDamagedError
            If the array is not what was written.
        """
        if self._tables is not None:
            self._entries, self._tables = self._tables.entries.get(self._name, {}), None
        return {name: self._entries[name] for name in names if name in self._entries}


async def _each(call: Callable[[str], Awaitable[None]], names: Collection[str]) -> None:
    """Call a function with every name, for some of them concurrently; the first error ends all."""
    remaining = iter(names)

    async def work() -> None:
        for name in remaining:
            await call(name)

    tasks = [asyncio.create_task(work()) for _ in range(min(CONCURRENT, len(names)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class PackedFork(bytes):
    """Pickled fork of a session, with the credentials of its store, which its representation does not show.

    Dask logs the representation of the arguments of a task that has failed.
    """

    def __repr__(self) -> str:
        """Return the number of bytes."""
        return f"PackedFork({len(self)} bytes)"


def fork_session(session: icechunk.Session, place: LockToken) -> bytes:
    """Return a pickled fork of an empty session, for `write_tables`.

    Parameters
    ----------
    session : icechunk.Session
        Of the next commit.
    place : LockToken
        Identifies the folder, so that a worker can check that it sees the same one.
    """
    # Forks travel as bytes. An opened one takes megabytes, which Dask's estimate of sizes does not include, and Dask
    # keeps arguments and results of a task as long as it may have to run again: a worker with hundreds of runs had no
    # memory left for them. So each task opens a fork of its own, and no attempt sees another's.
    if not is_in_memory(place.path):
        return PackedFork(pickle.dumps((place, pickle.dumps(session.fork()))))
    name = secrets.token_hex(8)
    _sessions[name] = session
    return pickle.dumps((place, name))


def open_fork(fork: bytes) -> icechunk.Session:
    """Open a fork on a worker; in memory, this is the session itself.

    Parameters
    ----------
    fork : bytes
        What `fork_session` returned.

    Raises
    ------
    StoreUnsharedError
        If this process does not see the place that the session is of.
    """
    place, packed = pickle.loads(fork)
    # Before the fork is opened, which would create a missing folder.
    require_place(place)
    fork_or_session: icechunk.Session = _sessions[packed] if isinstance(packed, str) else pickle.loads(packed)
    return fork_or_session


def pack_written(opened: icechunk.Session) -> bytes:
    """Return what a task has written, for `merge_packed`; nothing where it has written through the session itself."""
    return PackedFork(pickle.dumps(opened)) if isinstance(opened, icechunk.ForkSession) else b""


def merge_packed(session: icechunk.Session, written: bytes) -> None:
    """Merge what a task has written into its session."""
    if written:
        session.merge(pickle.loads(written))


def write_run(fork: bytes, identity: str, packed: PackedRegionRun) -> bytes:
    """Write a run through a fork; see `write_runs`."""
    return write_runs(fork, {identity: packed})


def write_runs(fork: bytes, runs: Mapping[str, PackedRegionRun]) -> bytes:
    """Write runs, by identity, through a fork as `write_runs_into` does; see `write_tables`."""
    return _write_into(fork, lambda store: write_runs_into(store, runs))


def _groups_of(runs: Mapping[str, PackedRegionRun]) -> dict[str, dict[str, PackedRun]]:
    """Return the tables of runs by the path of their group in the store, given the runs by identity."""
    return {
        f"runs/{identity}": {name: table for name, table in packed._asdict().items() if table is not None}
        for identity, packed in runs.items()
    }


def write_tables(fork: bytes, groups: Mapping[str, Mapping[str, PackedRun]]) -> bytes:
    """Write groups of tables through a fork, on the worker that has them in memory.

    Parameters
    ----------
    fork : bytes
        What `fork_session` returned.
    groups : mapping of str to mapping of str to PackedRun
        By path of the group in the store, which is new, its tables by name.

    Returns
    -------
    bytes
        The pickled fork with the changes, and what was written, for `merge_written`.

    Raises
    ------
    StoreWriteError
        If the disk is full.
    StoreUnsharedError
        If this process does not see the folder that the session is of; then nothing is written.
    """
    return _write_into(fork, lambda store: _write_groups(store, groups))


def _write_into(fork: bytes, write: Callable[[Any], WrittenObjects]) -> bytes:
    """Write through a fork by a function of its store; return what `write_tables` does."""
    opened = open_fork(fork)
    written = write(opened.store)
    return PackedFork(pickle.dumps((pack_written(opened), written)))


def write_runs_into(store: Any, runs: Mapping[str, PackedRegionRun]) -> WrittenObjects:
    """Write runs, by identity, into the store of a session; the tables of a small one as one array."""
    small = {identity: run for identity, run in runs.items() if is_joined(run)}
    joined = {
        f"runs/{identity}/{key}": value for identity, run in small.items() for key, value in join_tables(run).items()
    }
    with writing("the network"):
        write_entries(store, "", {f"runs/{identity}/zarr.json": _GROUP for identity in small})
        write_entries(store, "", joined)
    chunks = [len(value) for name, value in joined.items() if is_object(name, len(value))]
    large = {identity: run for identity, run in runs.items() if identity not in small}
    written = WrittenObjects(len(chunks), sum(chunks), frozenset(small), frozenset(f"runs/{each}" for each in small))
    return written.plus(_write_groups(store, _groups_of(large)))


def _write_groups(store: Any, groups: Mapping[str, Mapping[str, PackedRun]]) -> WrittenObjects:
    """Write groups of tables into the store of a session; see `write_tables`."""
    chunks: list[int] = []
    for path, tables in groups.items():
        entries = {f"{name}/{key}": value for name, table in tables.items() for key, value in table.entries.items()}
        with writing("the network"):
            # A group of its own, so that it can be listed and deleted as one.
            sync(store.set(f"{path}/zarr.json", Buffer.from_bytes(_GROUP)))
            write_entries(store, f"{path}/", entries)
        chunks += [len(value) for name, value in entries.items() if is_object(name, len(value))]
    return WrittenObjects(len(chunks), sum(chunks), groups=frozenset(groups))


def write_entries(store: Any, prefix: str, entries: Mapping[str, bytes]) -> None:
    """Write encoded entries below a prefix of a store, metadata before the chunks that it describes."""

    async def write(name: str) -> None:
        await store.set(prefix + name, Buffer.from_bytes(entries[name]))

    for metadata in (True, False):
        sync(_each(write, [name for name in entries if name.endswith("zarr.json") == metadata]))


def merge_written(session: icechunk.Session, written: Iterable[bytes]) -> WrittenObjects:
    """Merge the changes of forks, as `write_tables` returned them, into their session; return the objects.

    Raises
    ------
    RuntimeError
        If two of them have written one group.
    """
    objects = WrittenObjects()
    for each in written:
        packed, own = pickle.loads(each)
        require_one_writer(objects.groups, own.groups)
        merge_packed(session, packed)
        objects = objects.plus(own)
    return objects


def require_one_writer(merged: Collection[str], more: Iterable[str]) -> None:
    """Check that a task has written nothing that is merged: Icechunk keeps the last of two forks without an error.

    Parameters
    ----------
    merged, more : paths of groups or keys of chunks
        Those of the tasks before, and those of the next one.

    Raises
    ------
    RuntimeError
        If both have one of them.
    """
    if twice := sorted(set(more).intersection(merged)):
        raise RuntimeError(f"two tasks have written {twice[0]}; nothing is committed")
