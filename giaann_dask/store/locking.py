"""Lock a network for writing, and identify its folder to workers by a token in the lock file.

A path alone identifies nothing: on several machines it can be a folder of each machine, even one with a copy of the
same network, and what a worker writes there is lost to the others. So the process with the lock writes a random token
into the lock file before every commit and before every check of the workers, and a worker that does not find it there
writes nothing. A copy of the folder has the tokens of its time only. Tokens are removed with the lock: a task that is
left over from a killed process writes nothing either once another process has taken the lock. The folder of a network
that does not exist yet is removed again when no network is made in it. `giaann_dask.cluster.sharing` checks workers.

In an object store, a lease object with an owner and an end takes the place of the lock file. It is made and renewed by
conditional requests (compare and swap), so two processes never both get it. A lease that its owner does not renew,
because the process was killed or lost its network, ends by itself. Commits are safe without it, because Icechunk moves
a branch by a conditional request, too; the lease refuses a second writer before it has worked for hours, and protects
new files from garbage collection.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from giaann_dask.errors import (
    GiaannError,
    MissingDependencyError,
    StoreConflictError,
    StoreRefusedError,
    StoreUnsharedError,
    StoreWriteError,
)
from giaann_dask.object_urls import absolute_place, is_in_memory, is_object_store
from giaann_dask.representations import text_fault
from giaann_dask.storage import first_line, is_unreachable, unreachable, writing
from giaann_dask.store.places import StorePlace, answering
from giaann_dask.store.unfinished import LOCK_FILE, is_vacant

_LOG = logging.getLogger(__name__)
# Size of a token, and how many of the last ones the file has: more than workers can be checking for concurrently.
_TOKEN_BYTES, _TOKENS = 16, 256
# A folder that another process removes while this one takes the lock is made again so often.
_ATTEMPTS = 10
_PAUSE_S = 1.0
# The lease object is beside the objects of the network: Icechunk begins under empty prefixes only.
_SUFFIX = ".writer.lease"
# A lease that is not renewed ends after so many seconds; it is renewed so often in that time.
LEASE_S = 60.0


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


class StoredLease(NamedTuple):
    """Content of a lease object, and the version of the object."""

    owner: str
    token: str
    until: float
    version: Any


def read_token(path: Path) -> str | None:
    """Return the token of the lease of a place, None where there is no lease.

    Raises
    ------
    StoreUnreachableError, MissingDependencyError
        If the object store cannot be read.
    """
    found = LeaseObject(path).read()
    return None if found is None else found.token


class Lease:
    """Lease of a place that this process acquires, holds and renews in a thread.

    Parameters
    ----------
    path : Path
        URL of the network.
    renewals : int
        How often it is renewed while it lasts.

    Raises
    ------
    StoreWriteError
        If another process has it.
    StoreUnreachableError, StoreRefusedError, MissingDependencyError
        If the object store cannot be written.

    Attributes
    ----------
    token : str
        Random, by which workers recognise the place.
    """

    def __init__(self, path: Path, *, renewals: int = 3) -> None:
        self.path = path
        self._pause_s = LEASE_S / renewals
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self._object = LeaseObject(path)
        self._lost = False
        with _writing(path):
            self._version = self._acquire()
        self._until = time.monotonic() + LEASE_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="giaann-lease", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether another process has taken the lease, or it could not be renewed in time."""
        return self._lost or time.monotonic() > self._until

    def require(self) -> None:
        """Raise a `StoreConflictError` if the lease has been lost."""
        if self.lost:
            raise StoreConflictError(
                f"the lease of network {self.path} was lost",
                f"an object store that answers within {LEASE_S:.0f} s",
                "run the same command again; everything committed before is intact",
            )

    def mark(self) -> LockToken:
        """Return the token of the lease, which has to be valid still."""
        self.require()
        return LockToken(str(self.path), self.token)

    def is_held(self) -> bool:
        """Read the object, and return whether this process still has the lease."""
        found = self._object.read()
        self._lost |= found is None or found.token != self.token
        return not self.lost

    def release(self) -> None:
        """Stop renewing and remove the object, unless another process has the lease by now."""
        self._stop.set()
        self._thread.join(timeout=LEASE_S)
        with suppress(Exception):
            found = self._object.read()
            if found is not None and found.token == self.token:
                self._object.delete()

    def _content(self) -> bytes:
        fields = {"owner": f"process {os.getpid()} on {socket.gethostname()}", "token": self.token}
        return json.dumps({**fields, "until": time.time() + LEASE_S}).encode()

    def _acquire(self) -> Any:
        """Create the object, or take over one that has ended; return its version."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            return self._object.put(self._content(), "create")
        except (AlreadyExistsError, PreconditionError):
            found = self._object.read()
        if found is not None and found.until > time.time():
            raise self._held(found)
        try:
            mode: Any = "create" if found is None else found.version
            taken = self._object.put(self._content(), mode)
        except (AlreadyExistsError, PreconditionError) as error:
            raise self._held(found) from error
        if found is not None:
            _LOG.warning("the lease of network %s by %s had expired and was taken over", self.path, found.owner)
        return taken

    def _held(self, found: StoredLease | None) -> StoreWriteError:
        owner = "another process" if found is None else found.owner
        return StoreWriteError(
            f"{self.path} is being written by {owner}",
            "one writer at a time",
            f"wait until it has finished; after a crash, {LEASE_S:.0f} s",
        )

    def _renew(self) -> None:
        """Renew the lease until it is released or lost."""
        while not self._lost and not self._stop.wait(self._pause_s):
            try:
                self._renew_once()
            except Exception as error:
                # The next attempt may succeed; `require` knows when it is too late.
                _LOG.warning("the lease of network %s could not be renewed: %s", self.path, error)

    def _renew_once(self) -> None:
        """Renew the lease, or find that another process has it."""
        from obstore.exceptions import NotFoundError, PreconditionError

        begun = time.monotonic()
        try:
            self._version = self._object.put(self._content(), self._version)
            self._until = begun + LEASE_S
        except (NotFoundError, PreconditionError):
            # The answer to an earlier renewal may have been lost.
            found = self._object.read()
            if found is None or found.token != self.token:
                self._lost = True
            else:
                self._version = found.version


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Translate the errors of an object store that does not respond or refuses to write."""
    from obstore.exceptions import BaseError

    try:
        yield
    except GiaannError:
        raise
    # Where nothing is found, obstore raises an error of Python.
    except (BaseError, OSError) as error:
        if is_unreachable(error):
            raise unreachable(f"network {path}", error) from error
        raise StoreRefusedError(
            f"network {path} cannot be written: {first_line(error)}",
            "an existing bucket, and permission to write to it",
            "check the name and the credentials, in the environment or in storage_options",
        ) from error


class LeaseObject:
    """Lease object of a place.

    Raises
    ------
    MissingDependencyError
        If obstore is not installed.
    """

    def __init__(self, path: Path) -> None:
        place = StorePlace(str(path))
        self._key = place.key + _SUFFIX
        try:
            self._objects = place.objects()
        except ImportError as error:
            raise MissingDependencyError(
                f"{path} needs the package obstore, which is not installed",
                "this package",
                "pip install 'giaann-dask[cloud]'",
            ) from error

    def put(self, content: bytes, mode: Any) -> Any:
        """Write the object if it does not exist (mode "create") or still has a version; return the new version."""
        if mode != "create":
            # Of an object without versions only the tag says which one it is.
            mode = {name: value for name, value in mode.items() if value is not None}
        return self._objects.put(self._key, content, mode=mode)

    def delete(self) -> None:
        """Remove the object."""
        self._objects.delete(self._key)

    def read(self) -> StoredLease | None:
        """Return the content of the object, None where there is none."""
        with answering():
            try:
                response = self._objects.get(self._key)
            except FileNotFoundError:
                return None
            content, meta = bytes(response.bytes()), response.meta
        try:
            fields = json.loads(content)
            found = str(fields["owner"]), str(fields["token"]), float(fields["until"])
        except (ValueError, KeyError, TypeError):
            # Written by no process of this package: it never ends by itself.
            found = "an unknown process", "", float("inf")
        return StoredLease(*found, {"e_tag": meta["e_tag"], "version": meta["version"]})


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
            yield lease
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
