"""Keep the documents that a server has learned in a table beside the network: their ids, texts and certificates.

The table is an SQLite database, so that an acknowledged change survives a crash. A change of the network is noted
before it begins, and completed or taken back when the server starts again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from giaann_dask.errors import OptionError, StoreWriteError
from giaann_dask.object_urls import is_object_store
from giaann_dask.store.beside import DOCUMENTS

State = Literal["adding", "stored", "removing"]

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    id TEXT PRIMARY KEY, state TEXT, parts TEXT, characters INTEGER, added REAL, metadata TEXT, text BLOB
);
CREATE TABLE IF NOT EXISTS certificates (id TEXT PRIMARY KEY, report TEXT);
CREATE TABLE IF NOT EXISTS purges (id TEXT PRIMARY KEY);
"""
# What is deleted is overwritten in the file, too.
_PRAGMAS = ("secure_delete=ON", "synchronous=FULL", "journal_mode=DELETE")
_BUSY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Document:
    """Document of a server.

    Attributes
    ----------
    id : str
        Its name in requests.
    parts : tuple of str
        Identities of its parts of text in the ledger, in hexadecimal digits.
    characters : int
        Length of its text.
    text : str or None
        The text; None where it is not kept.
    metadata : mapping
        What its sender has added, as of JSON.
    added : float
        When it was added, in seconds since 1970.
    """

    id: str
    parts: tuple[str, ...]
    characters: int
    text: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    added: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values without the text."""
        return {
            "id": self.id,
            "object": "document",
            "created": int(self.added),
            "characters": self.characters,
            "parts": list(self.parts),
            "metadata": dict(self.metadata),
        }


class DocumentTable:
    """Table of the documents of one network; safe for several threads.

    Parameters
    ----------
    network : Path
        Folder of the network.

    Raises
    ------
    OptionError
        If the network is in an object store.
    StoreWriteError
        If the file cannot be made or is no database.
    """

    def __init__(self, network: Path) -> None:
        if is_object_store(network):
            raise OptionError(
                f"network {network} is in an object store", "a network on a disk of this machine", "serve a copy of it"
            )
        self.file = network.with_name(network.name + DOCUMENTS)
        self._lock = threading.Lock()
        with self._reported():
            self.file.touch(0o600)
            self._database = sqlite3.connect(self.file, timeout=_BUSY_S, check_same_thread=False)
            for pragma in _PRAGMAS:
                self._database.execute(f"PRAGMA {pragma}")
            self._database.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def find(self, name: str, state: State = "stored") -> Document | None:
        """Return a document by its id, None where there is none in this state."""
        found = self._select("WHERE id = ? AND state = ?", name, state)
        return found[0] if found else None

    def page(self, after: str, limit: int) -> list[Document]:
        """Return stored documents in the order of their ids, those after one, without their texts."""
        return self._select("WHERE state = 'stored' AND id > ? ORDER BY id LIMIT ?", after, limit, text=False)

    def in_state(self, state: State, *, text: bool = True) -> list[Document]:
        """Return all documents in a state."""
        return self._select("WHERE state = ? ORDER BY id", state, text=text)

    def owners(self) -> dict[str, list[str]]:
        """Return the ids of stored documents by the identities of their parts of text."""
        found: dict[str, list[str]] = {}
        for document in self.in_state("stored", text=False):
            for part in document.parts:
                found.setdefault(part, []).append(document.id)
        return found

    def put(self, documents: Sequence[Document], state: State) -> None:
        """Write documents with a state, in place of those with their ids; all of them or none."""
        rows = [
            (
                *(each.id, state, json.dumps(each.parts), each.characters, each.added),
                *(json.dumps(dict(each.metadata)), None if each.text is None else zlib.compress(each.text.encode())),
            )
            for each in documents
        ]
        with self._changing() as database:
            database.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def remove(self, names: Sequence[str]) -> None:
        """Remove documents by their ids."""
        with self._changing() as database:
            database.executemany("DELETE FROM documents WHERE id = ?", [(name,) for name in names])

    def certify(self, name: str, certificate: Mapping[str, Any], *, purge: bool = False) -> None:
        """Keep the certificate of the removal of a document, in place of an earlier one, and whether a purge is due."""
        with self._changing() as database:
            database.execute("INSERT OR REPLACE INTO certificates VALUES (?, ?)", (name, json.dumps(certificate)))
            if purge:
                database.execute("INSERT OR REPLACE INTO purges VALUES (?)", (name,))

    def purges(self) -> list[str]:
        """Return the ids of removed documents whose earlier commits are to be removed."""
        with self._lock, self._reported():
            return [name for (name,) in self._database.execute("SELECT id FROM purges ORDER BY id").fetchall()]

    def end_purges(self, names: Sequence[str]) -> None:
        """Forget that earlier commits of removed documents are to be removed."""
        with self._changing() as database:
            database.executemany("DELETE FROM purges WHERE id = ?", [(name,) for name in names])

    def certificate(self, name: str) -> dict[str, Any] | None:
        """Return the certificate of the last removal of a document of this id."""
        with self._lock, self._reported():
            row = self._database.execute("SELECT report FROM certificates WHERE id = ?", (name,)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def _select(self, where: str, *values: object, text: bool = True) -> list[Document]:
        columns = "id, parts, characters, added, metadata, " + ("text" if text else "NULL")
        with self._lock, self._reported():
            rows = self._database.execute(f"SELECT {columns} FROM documents {where}", values).fetchall()
        return [
            Document(
                id=name,
                parts=tuple(json.loads(parts)),
                characters=characters,
                added=added,
                metadata=json.loads(metadata),
                text=None if content is None else zlib.decompress(content).decode(),
            )
            for name, parts, characters, added, metadata, content in rows
        ]

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._reported(), self._database:
            yield self._database

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreWriteError(
                f"the documents in {self.file} cannot be read or written ({error})",
                "a database of this server on a disk with room",
                "look at the disk and at the rights of the file",
            ) from error
