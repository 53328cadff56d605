"""Lock a network for writing, and identify its folder to workers by a token in the lock file.

A path alone identifies nothing: on several machines it can be a folder of each machine, even one with a copy of the
same network, and what a worker writes there is lost to the others. So the process with the lock writes a random token
into the lock file before every commit and before every check of the workers, and a worker that does not find it there
writes nothing. A copy of the folder has the tokens of its time only. Tokens are removed with the lock: a task that is
left over from a killed process writes nothing either once another process has taken the lock. The folder of a network
that does not exist yet is removed again when no network is made in it. In an object store a lease object takes the
place of the lock file (`lease`). `giaann_dask.cluster.sharing` checks workers.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from giaann_dask.errors import (
    GiaannError,
    StoreExistsError,
    StoreRefusedError,
    StoreUnsharedError,
    StoreWriteError,
)
from giaann_dask.object_urls import is_in_memory, is_object_store
from giaann_dask.printable import text_fault
from giaann_dask.storage import absolute_place, first_line, writing
from giaann_dask.store.lease import Lease, read_token
from giaann_dask.store.places import StorePlace

LOCK_FILE = "writer.lock"
# Where a new network is made before it is moved to its place; left by a process that was killed while it did.
UNFINISHED = "giaann-unfinished"
# What such a process may have moved already; what makes it a network comes last.
_PARTS = {LOCK_FILE, UNFINISHED, "chunks", "manifests", "snapshots", "transactions"}
# How Icechunk names a chunk.
_CHUNK = re.compile("[0-9A-Z]{20}")
# Size of a token, and how many of the last ones the file has: more than workers can be checking for concurrently.
_TOKEN_BYTES, _TOKENS = 16, 256
# A folder that another process removes while this one takes the lock is made again so often.
_ATTEMPTS = 10
_PAUSE_S = 1.0


@dataclass(frozen=True)
class LockToken:
    """Token by which a process verifies that a path is the same folder as for the process that has its lock.

    Attributes
    ----------
    path : str
        Folder of the network, absolute.
    token : str
        Random; a line of the lock file.
    """

    path: str
    token: str


@dataclass(frozen=True)
class FolderState:
    """State of a path as one process sees it.

    Attributes
    ----------
    host : str
        Name of its machine.
    path : str
        The path with all links followed.
    there : bool
        Whether the folder exists, or the object store can be read.
    tokens : tuple of str
        Lines of the lock file, or the token of the lease; none where there is none or it cannot be read.
    reason : str
        Why an object store cannot be read.
    """

    host: str
    path: str
    there: bool
    tokens: tuple[str, ...]
    reason: str = ""

    def problem(self, expected: LockToken) -> str:
        """Return a description of the problem, or ""; without an expected token, any folder is accepted."""
        if self.there and (not expected.token or expected.token in self.tokens):
            return ""
        if is_in_memory(expected.path):
            return f"does not see {expected.path}"
        if is_object_store(expected.path):
            return f"sees another lease at {expected.path}" if self.there else f"cannot read it: {self.reason}"
        followed = "" if self.path == expected.path else f" (there {self.path})"
        return f"sees {'another folder' if self.there else 'no folder'} at {expected.path}{followed}"


def inspect_folder(path: str) -> FolderState:
    """Return the state of a folder as this process sees it; nothing is created or changed."""
    tokens: tuple[str, ...] = ()
    if is_object_store(path):
        try:
            token = read_token(absolute_place(path))
        except Exception as error:
            # Clients of object stores raise errors of their own, of many lines.
            reason = error.received if isinstance(error, GiaannError) else first_line(error)
            return FolderState(socket.gethostname(), path, False, (), reason)
        return FolderState(socket.gethostname(), path, True, () if token is None else (token,))
    with suppress(OSError, UnicodeDecodeError), open(os.path.join(path, LOCK_FILE), encoding="ascii") as file:
        tokens = tuple(file.read(_TOKENS * (2 * _TOKEN_BYTES + 1)).split())
    return FolderState(socket.gethostname(), os.path.realpath(path), os.path.isdir(path), tokens)


def require_place(expected: LockToken) -> None:
    """Check that this process sees the locked folder.

    Raises
    ------
    StoreUnsharedError
        If it sees another one, or none, or the lock was released.
    """
    if problem := inspect_folder(expected.path).problem(expected):
        raise unshared(f"this process {problem}", expected.path)


def unshared(problem: str, path: str | Path) -> StoreUnsharedError:
    """Return the error for a process that does not see the place of a network as the process with the lock does."""
    if is_in_memory(path):
        return StoreUnsharedError(
            problem,
            "a place that all workers see; what is in memory:// only threads of the same process see",
            "use a folder or an object store, or work in this process alone (no scheduler, and 0 workers)",
        )
    if is_object_store(path):
        return StoreUnsharedError(
            problem,
            "an object store that this process and all workers reach",
            "start the workers with the same credentials, region and endpoint in their environment, or give these by "
            "storage_options",
        )
    return StoreUnsharedError(
        problem,
        "one folder that this process and all workers see",
        "put it on a file system that all of them share, under the same path, or start the workers on this machine",
    )


class WriteLock(Protocol):
    """Right of this process to write a network, from `locked`."""

    @property
    def path(self) -> Path:
        """Place of the network."""

    def mark(self) -> LockToken:
        """Return a token by which workers recognise the place; raise a `StoreConflictError` if the right was lost."""

    def is_held(self) -> bool:
        """Look whether this process still has the right."""


class _FolderLock:
    """Locked folder of a network.

    Parameters
    ----------
    path : Path
        Folder of the network.
    file : file
        Of the lock.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._marks = 0

    def mark(self) -> LockToken:
        """Write a new token into the lock file and return it; earlier ones stay valid for a while.

        Raises
        ------
        StoreWriteError
            If the disk is full.
        """
        token = secrets.token_hex(_TOKEN_BYTES)
        line = f"{token}\n".encode()
        with writing(f"network {self.path}"):
            # Replaces the oldest one, so that concurrent readers find all others.
            os.pwrite(self._file.fileno(), line, self._marks % _TOKENS * len(line))
            # Other machines read it immediately.
            os.fsync(self._file.fileno())
        self._marks += 1
        return LockToken(str(self.path), token)

    def is_held(self) -> bool:
        """Return that it is: the system keeps it for this process."""
        return True

    def unmark(self) -> None:
        """Remove all tokens, so that no worker writes any more."""
        with suppress(OSError):
            self._file.truncate(0)


class _LeasedPlace:
    """Leased place of a network in an object store."""

    def __init__(self, lease: Lease) -> None:
        self.path = lease.path
        self._lease = lease

    def mark(self) -> LockToken:
        """Return the token of the lease, which has to be valid still."""
        self._lease.require()
        return LockToken(str(self.path), self._lease.token)

    def is_held(self) -> bool:
        """Return whether the object still has the token of this process."""
        return self._lease.check()


@contextmanager
def locked_within(path: Path, seconds: float) -> Iterator[WriteLock]:
    """Lock a network as `locked` does, and wait so many seconds for another process to end."""
    deadline = time.monotonic() + seconds
    with ExitStack() as opened:
        while True:
            try:
                held = opened.enter_context(locked(path))
                break
            except StoreWriteError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(min(_PAUSE_S, seconds))
        yield held


def is_vacant(path: Path) -> bool:
    """Return whether a network can be made at a path: it does not exist, or has only the remains of an attempt.

    Raises
    ------
    StoreExistsError
        If the path has other content.
    """
    if is_object_store(path):
        return not StorePlace(str(path)).exists()
    if not path.exists():
        return True
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if "refs" in names:
            return False
        if names <= {LOCK_FILE} or (UNFINISHED in names and names <= _PARTS):
            return True
        # A worker may end the writing of a chunk after the failed attempt was removed.
        if names <= {LOCK_FILE, "chunks"} and all(_CHUNK.fullmatch(each.name) for each in (path / "chunks").iterdir()):
            return True
    raise StoreExistsError(f"{path} exists and is no network", "a new path or a network", "name one of these")


def clear_attempt(path: Path) -> None:
    """Remove the remains of an attempt to make a network, or of an empty one; the caller has the lock."""
    new = path / UNFINISHED
    # There until the end, so that others see at any moment, also after a kill, what the rest is.
    with writing(f"network {path}"):
        if (path / "refs").exists():
            # What makes it a network goes in one step, which needs no room on a full disk.
            shutil.rmtree(new, ignore_errors=True)
            (path / "refs").rename(new)
        new.mkdir(exist_ok=True)
    for left in (*sorted(_PARTS - {LOCK_FILE, UNFINISHED}), UNFINISHED):
        shutil.rmtree(path / left, ignore_errors=True)


def require_text(path: Path) -> None:
    """Raise a `StoreRefusedError` where a path is not UTF-8: icechunk writes nothing there."""
    if (fault := text_fault(str(path))) is not None:
        received = f"the path {str(path)!r} holds {fault}"
        raise StoreRefusedError(received, "a path in UTF-8", "rename the folder, or name one in UTF-8")


@contextmanager
def locked(path: Path) -> Iterator[WriteLock]:
    """Lock a network for writing, existing or yet to be made, until the context ends.

    The folder is made if it does not exist, and removed again at the end if there is no network in it.

    Parameters
    ----------
    path : Path
        Folder of the network, absolute.

    Yields
    ------
    WriteLock

    Raises
    ------
    StoreWriteError
        If another process, or another thread of this one, has the lock.
    StoreRefusedError
        If this user may not write here.
    StoreExistsError
        If the path exists and is no network.
    """
    if is_object_store(path):
        lease = Lease(path)
        try:
            yield _LeasedPlace(lease)
        finally:
            lease.release()
        return
    is_vacant(path)
    made = _missing(path)
    try:
        with _open_locked(path) as file:
            held = _FolderLock(path, file)
            # Tokens of a process that was killed.
            held.unmark()
            try:
                yield held
            finally:
                held.unmark()
                if not (path / "refs").exists():
                    (path / LOCK_FILE).unlink(missing_ok=True)
    finally:
        # Folders that have got other content meanwhile stay.
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def _missing(path: Path) -> list[Path]:
    """Return a folder and those above it that do not exist, the lowest first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def _open_locked(path: Path) -> IO[bytes]:
    """Return the opened and locked file of a network; its folder is made if need be."""
    for _ in range(_ATTEMPTS):
        with writing(f"network {path}"):
            path.mkdir(parents=True, exist_ok=True)
            try:
                # Not truncated: the process with the lock may have written into it.
                file = os.fdopen(os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
            except FileNotFoundError:
                continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise _held_elsewhere(path) from error
        with suppress(FileNotFoundError):
            # Another process may have removed the file between the two.
            if os.path.samestat(os.fstat(file.fileno()), (path / LOCK_FILE).stat()):
                return file
        file.close()
    raise _held_elsewhere(path)


def _held_elsewhere(path: Path) -> StoreWriteError:
    return StoreWriteError(
        f"{path} is being written by another process", "one writer at a time", "wait until it has finished"
    )
