"""Keep networks and corpora in the memory of this process, at places ``memory://NAME``.

Icechunk's memory storage cannot be pickled, and neither can what is opened of it: so each place is opened once in a
process, and tasks in threads of this process write through the driver's own session instead of forks of it.

Does not cover: what a place is to the rest of the package (`places`).
"""

from __future__ import annotations

import pickle
import secrets
import threading
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from giaann_dask.store.icechunk_library import icechunk

if TYPE_CHECKING:
    from obstore.store import MemoryStore

_changing = threading.Lock()
_places: dict[str, MemoryPlace] = {}
_sessions: WeakValueDictionary[str, icechunk.Session] = WeakValueDictionary()
# What a task returns that has written through the session itself, so that nothing is left to merge.
_WRITTEN = b"written"


class PackedFork(bytes):
    """Pickled fork of a session, with the credentials of its store, which its representation does not show.

    Dask logs the representation of the arguments of a task that has failed.
    """

    def __repr__(self) -> str:
        """Return the number of bytes."""
        return f"PackedFork({len(self)} bytes)"


class MemoryPlace:
    """Storage of a repository in memory, and the objects beside it.

    Attributes
    ----------
    storage : icechunk.Storage
        Of the repository.
    """

    def __init__(self) -> None:
        self.storage: icechunk.Storage = icechunk.in_memory_storage()

    @cached_property
    def objects(self) -> MemoryStore:
        """Objects beside the repository, such as its lease."""
        from obstore.store import MemoryStore

        return MemoryStore()

    def clear(self) -> None:
        """Remove the repository; the objects beside it stay."""
        self.storage = icechunk.in_memory_storage()


def memory_place(name: str) -> MemoryPlace:
    """Return the place of a name in this process; it is made by the first call, and stays until the process ends."""
    with _changing:
        if name not in _places:
            _places[name] = MemoryPlace()
        return _places[name]


def pack_fork(session: icechunk.Session, *, in_memory: bool) -> bytes:
    """Return what `open_packed` opens in a task: a pickled fork of an empty session, or in memory its name."""
    if not in_memory:
        return pickle.dumps(session.fork())
    name = secrets.token_hex(8)
    _sessions[name] = session
    return pickle.dumps(name)


def open_packed(packed: bytes) -> icechunk.Session:
    """Open a fork; in memory this is the session itself."""
    found: icechunk.Session | str = pickle.loads(packed)
    return _sessions[found] if isinstance(found, str) else found


def pack_written(opened: icechunk.Session) -> bytes:
    """Return what a task has written, for `merge_packed`."""
    return PackedFork(pickle.dumps(opened)) if isinstance(opened, icechunk.ForkSession) else _WRITTEN


def merge_packed(session: icechunk.Session, written: bytes) -> None:
    """Merge what a task has written into its session."""
    if written != _WRITTEN:
        session.merge(pickle.loads(written))
