"""Give one process at a time the right to write to a place in an object store: a lease object with an owner and an end.

The object is made and renewed by conditional requests (compare and swap), so two processes never both get it. A lease
that its owner does not renew, because the process was killed or lost its network, ends by itself. Commits are safe
without it, because Icechunk moves a branch by a conditional request, too; the lease refuses a second writer before it
has worked for hours, and protects new files from garbage collection.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from giaann_dask.errors import (
    GiaannError,
    MissingDependencyError,
    StoreConflictError,
    StoreRefusedError,
    StoreWriteError,
)
from giaann_dask.storage import first_line, is_unreachable, unreachable
from giaann_dask.store.places import StorePlace, answering

_LOG = logging.getLogger(__name__)
# Beside the objects of the network: Icechunk begins under empty prefixes only.
_SUFFIX = ".writer.lease"
# A lease that is not renewed ends after so many seconds; it is renewed so often in that time.
LEASE_S = 60.0
_RENEWALS = 3
_TOKEN_BYTES = 16


class _Found(NamedTuple):
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
    found = _LeaseObject(path).read()
    return None if found is None else found.token


class Lease:
    """Lease of a place that this process acquires, holds and renews in a thread.

    Parameters
    ----------
    path : Path
        URL of the network.

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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self._object = _LeaseObject(path)
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

    def check(self) -> bool:
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
            _LOG.warning("the lease of network %s by %s had ended and was taken over", self.path, found.owner)
        return taken

    def _held(self, found: _Found | None) -> StoreWriteError:
        owner = "another process" if found is None else found.owner
        return StoreWriteError(
            f"{self.path} is being written by {owner}",
            "one writer at a time",
            f"wait until it has finished; after a crash, {LEASE_S:.0f} s",
        )

    def _renew(self) -> None:
        """Renew the lease until it is released or lost."""
        while not self._lost and not self._stop.wait(LEASE_S / _RENEWALS):
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
            "a bucket that is there, and the right to write to it",
            "check the name and the credentials, in the environment or in storage_options",
        ) from error


class _LeaseObject:
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
                f"{path} is in an object store, and obstore is not installed",
                "the obstore package",
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

    def read(self) -> _Found | None:
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
        return _Found(*found, {"e_tag": meta["e_tag"], "version": meta["version"]})
