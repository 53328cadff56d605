"""Answer ``/v1/documents``: a served network learns and forgets texts, exactly; later prompts see each change.

The ids, texts and certificates of documents are in a table beside the network. It is an SQLite database, so that an
acknowledged change survives a crash: a change of the network is noted before it begins, and completed or taken back
when the server starts again. Does not cover: keys (`giaann_dask.serving.app`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from giaann_dask.algebra.documents import identities_of
from giaann_dask.algebra.removal import (
    PreparedCommit,
    digest_of_documents,
    forget_documents,
    forget_few,
    leave_out_names,
    prepare_purge,
    remove_earlier,
)
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import as_sources, sources_of
from giaann_dask.api.training import train
from giaann_dask.cluster.persistence import is_published
from giaann_dask.cluster.submitting import low_priority
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.errors import (
    EmptyInputError,
    GiaannError,
    OptionError,
    StoreDamagedError,
    StoreMissingError,
    StoreWriteError,
)
from giaann_dask.models.exporting import digest_of
from giaann_dask.object_urls import is_object_store
from giaann_dask.serving.document_bodies import LINES, NewDocument, document_batches, read_documents
from giaann_dask.serving.models import SharedClient
from giaann_dask.serving.requests import HttpError, read_bytes, read_object, shown, wrong_field
from giaann_dask.serving.serving_options import Limits
from giaann_dask.serving.turns import Turns
from giaann_dask.spec import Specification
from giaann_dask.store.beside import DOCUMENTS
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.training.small_changes import SmallChanges

if TYPE_CHECKING:
    from distributed import Client

_PAGE = 100
TEXT = TextOptions()
"""How the texts of documents are read."""
_TRUE, _FALSE = {"true", "1"}, {"", "false", "0"}
Answer = TypeVar("Answer")
_LOG = logging.getLogger(__name__)
_NICE = 10
# How often the commit of a purge is computed while changes go on; then they wait for it.
_COMPUTED_BESIDE = 5
# Digests wait until no change has come for so long, and no longer than that.
_QUIET_S, _LONGEST_S = 2.0, 30.0
State = Literal["adding", "stored", "removing"]
_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    id TEXT PRIMARY KEY, state TEXT, parts TEXT, characters INTEGER, added REAL, metadata TEXT, text BLOB
);
CREATE TABLE IF NOT EXISTS certificates (id TEXT PRIMARY KEY, report TEXT);
CREATE TABLE IF NOT EXISTS purges (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS owners (part TEXT, id TEXT, PRIMARY KEY (part, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts ON owners (id);
"""
# Owner of the parts that the network was trained on before a document had them; no document has this id.
_NETWORK = ""
# Other owners that the description of a document names at most.
_SHOWN_OWNERS = 10
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
        where = "JOIN documents ON documents.id = owners.id WHERE state = 'stored' ORDER BY part, owners.id"
        for part, name in self._rows(f"SELECT part, owners.id FROM owners {where}"):
            found.setdefault(part, []).append(name)
        return found

    def other_owners(self, name: str) -> dict[str, list[str]]:
        """Return who else has parts of a document: ids by part, an empty one for the network itself."""
        found: dict[str, list[str]] = {}
        where = "WHERE own.id = ? AND other.id != own.id ORDER BY own.part, other.id"
        query = f"SELECT own.part, other.id FROM owners own JOIN owners other ON own.part = other.part {where}"
        for part, other in self._rows(query, name):
            found.setdefault(part, []).append(other)
        return found

    def note_held(self, held: Mapping[str, bool]) -> None:
        """Note which parts the network has, before documents have them: what no document has is its own."""
        own = [(part, part) for part, is_held in held.items() if is_held]
        gone = [(part,) for part, is_held in held.items() if not is_held]
        with self._changing() as database:
            is_free = "NOT EXISTS (SELECT 1 FROM owners WHERE part = ?)"
            database.executemany(f"INSERT INTO owners SELECT ?, '{_NETWORK}' WHERE {is_free}", own)
            database.executemany(f"DELETE FROM owners WHERE part = ? AND id = '{_NETWORK}'", gone)

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
            parts = [(part, each.id) for each in documents for part in each.parts]
            database.executemany("INSERT OR IGNORE INTO owners VALUES (?, ?)", parts)

    def remove(self, names: Sequence[str]) -> None:
        """Remove documents by their ids."""
        with self._changing() as database:
            for table in ("documents", "owners"):
                database.executemany(f"DELETE FROM {table} WHERE id = ?", [(name,) for name in names])

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

    def _rows(self, query: str, *values: object) -> list[tuple[str, str]]:
        with self._lock, self._reported():
            return self._database.execute(query, values).fetchall()

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
                "check the disk and the permissions of the file",
            ) from error


class DocumentWriter:
    """Writer of the documents of a network; one change at a time.

    Parameters
    ----------
    path : Path
        Folder of the network.
    clients : SharedClient
        Of the cluster that trains.
    renew : callable
        Called with each new commit, to predict with it.
    keep_texts : bool
        Whether the texts that are needed to subtract documents are kept.

    Attributes
    ----------
    table : DocumentTable
        The documents.
    turns : Turns
        Of changes, and of purges.
    """

    def __init__(
        self, path: Path, clients: SharedClient, renew: Callable[[CommitReader], None], *, keep_texts: bool = True
    ) -> None:
        self.table = DocumentTable(path)
        self._path, self._clients, self._renew, self._keep_texts = path, clients, renew, keep_texts
        self.turns = Turns()
        self._changes = SmallChanges(path)
        # What a response does not wait for: purges, and the digests of certificates.
        self._later = ThreadPoolExecutor(1, "later", _lower_priority)
        self._digested: set[tuple[str, str]] = set()
        self._changed, self._closing = 0.0, threading.Event()

    def close(self) -> None:
        """Close the table, after a running change, purge or digest; a purge that waits is made at the next start."""
        self._closing.set()
        self._later.shutdown(cancel_futures=True)
        with self.turns.change():
            self.table.close()

    def recover(self) -> None:
        """Complete or take back the changes in which an earlier server was interrupted.

        A document whose text the network holds is stored; another one was never acknowledged. A removal is done again,
        or taken back where the text of the document is not kept. A purge is done again.
        """
        with self.turns.change():
            held = self._held()
            adding = self.table.in_state("adding")
            self.table.put([each for each in adding if held.issuperset(each.parts)], "stored")
            for document in adding:
                if not held.issuperset(document.parts):
                    self._take_back(document, document.text, held)
            for document in self.table.in_state("removing"):
                own = {*document.parts} - self.table.other_owners(document.id).keys()
                if document.text is not None and own:
                    self._subtract(document, document.text, own)
                elif own and held.issuperset(own):
                    self.table.put([document], "stored")
                else:
                    self.table.remove([document.id])
        if self.table.purges():
            self._later.submit(self._purge)

    def add(self, texts: Sequence[NewDocument]) -> list[Document]:
        """Train documents, and predict with them.

        Parameters
        ----------
        texts : sequence of (str, str, dict)
            Ids, texts and metadata. An id that is stored with the same text stays as it is.

        Raises
        ------
        FileExistsError
            If an id is stored with another text.
        EmptyInputError
            If a document has no sentence to train.
        GiaannError
            If they cannot be trained; then none of them is stored.
        """
        with self.turns.change():
            documents = [self._document(*each) for each in texts]
            stored = [self.table.find(each.id) for each in documents]
            for document, present in zip(documents, stored, strict=True):
                if present is not None and present.parts != document.parts:
                    raise FileExistsError(document.id)
            new = [each for each, present in zip(documents, stored, strict=True) if present is None]
            if new:
                self._train(new, {name: text for name, text, _ in texts})
            return [self.table.find(each.id) or each for each in documents]

    def _train(self, documents: Sequence[Document], texts: dict[str, str]) -> None:
        ledger = self._changes.opened().contents.ledger
        known = {part: bytes.fromhex(part) in ledger for each in documents for part in each.parts}
        self.table.note_held(known)
        self.table.put(documents, "adding")
        missing = frozenset(bytes.fromhex(part) for part, is_held in known.items() if not is_held)
        new = [each for each in documents if not all(known[part] for part in each.parts)]
        try:
            if new:
                inputs: list[Source] = [source for each in new for source in as_sources([texts[each.id]])]
                options = replace(self._options(inputs), only=missing)
                with self._clients.use() as client:
                    reader = self._change_here(client, lambda: self._changes.add(inputs, options))
                    if reader is None:
                        train(inputs, self._path, client=client, text=TEXT, progress=False)
        except BaseException:
            held = self._held()
            self.table.put([each for each in documents if held.issuperset(each.parts)], "stored")
            for each in new:
                if not held.issuperset(each.parts):
                    self._take_back(each, texts[each.id], held)
            raise
        self.table.put(documents, "stored")
        if new:
            self._renew(reader or self._head())
        self._changed = time.monotonic()

    def _take_back(self, document: Document, text: str | None, held: set[str]) -> None:
        """Remove a document that was trained in part, with the parts that no other owner has."""
        trained = {*document.parts} & held - self.table.other_owners(document.id).keys()
        if trained and text is not None:
            self.table.put([document], "removing")
            self._subtract(document, text, trained)
        else:
            self.table.remove([document.id])

    def _change_here(self, client: Client, change: Callable[[], Answer | None]) -> Answer | None:
        """Return what a small change made without the cluster, None where it cannot be; see `SmallChanges`."""
        with self._changes.store.lock():
            if is_published(client, str(self._path)):
                # Its workers keep the network for others, too.
                return None
            try:
                return change()
            except (StoreDamagedError, StoreMissingError):
                # What was opened earlier may have been removed since.
                self._changes.forget()
                return None

    def describe(self, document: Document) -> dict[str, Any]:
        """Return JSON-ready values of a document, with who else has parts of it; see `kept_for`."""
        return document.as_dict() | self.kept_for(document)

    def kept_for(self, document: Document) -> dict[str, Any]:
        """Return for whom parts of a document stay when it is removed.

        ``shared_with`` has ids of other documents with the same text or parts of it, ten at most, and ``shared_parts``
        how many parts these or the network have; ``held_before`` tells how many of them the network was trained on
        before any document had them.
        """
        others = self.table.other_owners(document.id)
        names = sorted({name for its in others.values() for name in its if name != _NETWORK})
        before = sum(_NETWORK in its for its in others.values())
        return {"shared_with": names[:_SHOWN_OWNERS], "shared_parts": len(others), "held_before": before}

    def remove(self, document: Document, text: str, *, purge: bool) -> dict[str, Any] | None:
        """Subtract the parts of a document that it alone has, and predict without them; return the certificate.

        None where others have all of them, which therefore stay.

        Parameters
        ----------
        document : Document
            A stored one.
        text : str
            Its text.
        purge : bool
            Whether earlier commits, which hold it, are removed then; the certificate says when that is done.

        Raises
        ------
        GiaannError
            If it cannot be subtracted; then it stays stored.
        """
        with self.turns.change():
            own = {*document.parts} - self.table.other_owners(document.id).keys()
            if not own:
                self.table.remove([document.id])
                return None
            self.table.put([document], "removing")
            certificate = self._subtract(document, text, own, purge=purge)
        if purge:
            self._later.submit(self._purge)
        self._later.submit(self._add_digest_removed, document.id, certificate["commit_before"], text, own)
        return certificate

    def _subtract(self, document: Document, text: str, own: set[str], *, purge: bool = False) -> dict[str, Any]:
        """Subtract the own parts of a document, and return the certificate, which says for whom others stay."""
        store, kept = NetworkStore(self._path), self.kept_for(document)
        inputs, options = self._sources(text, own)
        try:
            with self._clients.use() as client:
                report = self._change_here(client, lambda: forget_few(self._changes, inputs, options))
                report = report or forget_documents(client, store, inputs, options, digest=False)
        except BaseException:
            if self._held().issuperset(document.parts):
                self.table.put([document], "stored")
            raise
        certificate = report.as_dict() | {"kept": kept} | ({"purge": "running"} if purge else {})
        # Of this file the text is removed now.
        certificate["elsewhere"] = [place for place in certificate["elsewhere"] if place != str(self.table.file)]
        self.table.certify(document.id, certificate, purge=purge)
        self.table.remove([document.id])
        self._renew(self._head())
        self._changed = time.monotonic()
        return certificate

    def _purge(self) -> None:
        """Remove earlier commits, and complete the certificates of the documents that wait for it.

        Changes go on while the first commit is computed, and between both steps.
        """
        store = NetworkStore(self._path)
        try:
            with self._clients.use() as client:
                waiting = self._leave_out_names(client, store)
            if not waiting:
                # An earlier purge was theirs, too.
                return
            with self.turns.step(), self._clients.use() as client:
                done = remove_earlier(client, store)
                # Of what is open, files may have been removed.
                self._changes.forget()
                for name in waiting:
                    kept = self.table.certificate(name) or {}
                    if kept.get("purge") == "running":
                        elsewhere = sorted({*kept["elsewhere"], *done["elsewhere"]} - {str(self.table.file)})
                        kept |= {**done, "elsewhere": elsewhere, "purge": "done"}
                        self.table.certify(name, kept)
                self.table.end_purges(waiting)
        except GiaannError as error:
            # Done when the server starts again, or with the next purge.
            _LOG.warning("earlier commits are not removed yet: %s", error)

    def _leave_out_names(self, client: Client, store: NetworkStore) -> list[str]:
        """Make the commit of a purge, and return the ids of the documents that wait for it.

        It is computed without a turn. Where a change has come meanwhile, the rest is computed again.
        """
        if not self.table.purges():
            return []
        prepared = _prepare_beside(client, store)
        for _ in range(_COMPUTED_BESIDE):
            with self.turns.step():
                if store.head() == prepared.reader.commit:
                    return self._commit_purge(client, store, prepared)
            prepared = _prepare_beside(client, store)
        with self.turns.step():
            return self._commit_purge(client, store, prepare_purge(client, store))

    def _commit_purge(self, client: Client, store: NetworkStore, prepared: PreparedCommit) -> list[str]:
        """Make the commit of a purge, and return the ids of the documents that wait for it."""
        self._renew(store.open(leave_out_names(client, store, prepared)))
        return self.table.purges()

    def _wait_until_quiet(self) -> None:
        """Let changes that follow each other go first."""
        last = time.monotonic() + _LONGEST_S
        while (left := min(self._changed + _QUIET_S, last) - time.monotonic()) > 0 and not self._closing.wait(left):
            pass

    def _add_digest_removed(self, name: str, before: str, text: str, own: set[str]) -> None:
        """Add the digest of a document's own network to its certificate."""
        self._wait_until_quiet()
        try:
            reader = self._head()
            with self._clients.use() as client:
                digest = digest_of_documents(client, reader, *self._sources(text, own))
        except GiaannError as error:
            _LOG.warning("the certificate of document %r has no digest of its own: %s", name, error)
            return
        self._amend(name, "commit_before", before, digest_removed=digest)

    def certificate(self, name: str) -> dict[str, Any] | None:
        """Return the certificate of the last removal of a document of this id; begin to compute its digest."""
        kept = self.table.certificate(name)
        if kept is not None and not kept["digest"] and kept.get("purge") != "running":
            # Reading all of a large network takes a while, so that it is done for who asks, and once.
            key = (name, kept["commit"])
            if key not in self._digested:
                self._digested.add(key)
                self._later.submit(self._add_digest, *key)
        return kept

    def _add_digest(self, name: str, commit: str) -> None:
        """Add the digest of the network to a certificate."""
        self._wait_until_quiet()
        try:
            digest = digest_of(NetworkStore(self._path).open(commit))
        except GiaannError as error:
            # A later purge has removed the commit.
            _LOG.warning("the certificate of document %r has no digest: %s", name, error)
            return
        self._amend(name, "commit", commit, digest=digest)

    def _amend(self, name: str, field: str, commit: str, **fields: str) -> None:
        """Add fields to the certificate of a document, unless another one has taken its place."""
        with self.turns.step():
            kept = self.table.certificate(name)
            if kept is not None and kept[field] == commit:
                self.table.certify(name, {**kept, **fields})

    def is_text_of(self, document: Document, text: str) -> bool:
        """Return whether a text is that of a stored document."""
        return self._parts(text) == document.parts

    def texts(self) -> list[Source]:
        """Return the texts that are kept, in which tracing looks for training sentences."""
        kept = [each.text for each in self.table.in_state("stored") if each.text is not None]
        return [source for text in kept for source in as_sources([text])]

    def _document(self, name: str, text: str, metadata: dict[str, Any]) -> Document:
        parts = self._parts(text)
        if not parts:
            raise EmptyInputError(f"document {name!r} is empty", "some sentences")
        kept = text if self._keep_texts else None
        return Document(id=name, parts=parts, characters=len(text), text=kept, metadata=metadata)

    def _parts(self, text: str) -> tuple[str, ...]:
        """Return the identities of a text's parts in the ledger."""
        return tuple(sorted(identities_of(*self._sources(text)) or ()))

    def _sources(self, text: str, own: set[str] | None = None) -> tuple[Sequence[Source], SourceOptions]:
        """Return a text as an input, and how it is read, of its parts only some where these are named."""
        inputs = as_sources([text])
        only = None if own is None else frozenset(map(bytes.fromhex, own))
        return inputs, replace(self._options(inputs), only=only)

    def _options(self, inputs: Sequence[Source]) -> SourceOptions:
        """Return how inputs are read."""
        specification, lexicon = self._rules
        return sources_of(specification, TEXT.fitting(inputs), lexicon)

    @cached_property
    def _rules(self) -> tuple[Specification, EverPos | SubwordTokenizer]:
        """The specification of the network, and what it divides text by, which no commit changes."""
        reader = self._head()
        return reader.manifest().specification, reader.tokenizer() or reader.ever_pos()

    def _held(self) -> set[str]:
        """Return the identities of the parts of text that the network holds."""
        return {entry.identity.hex() for entry in self._head().ledger()}

    def _head(self) -> CommitReader:
        store = NetworkStore(self._path)
        return store.open(store.head())


def _prepare_beside(client: Client, store: NetworkStore) -> PreparedCommit:
    """Compute the commit of a purge by tasks before which those of changes and prompts run."""
    with low_priority():
        return prepare_purge(client, store)


def _lower_priority() -> None:
    """Let requests go first: on Linux, this thread and those that it starts get what others leave."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _is_true(http: Request, name: str) -> bool:
    """Return whether a parameter of the query is true; it is false where it is not there."""
    given = http.query_params.get(name, "").lower()
    if given not in _TRUE | _FALSE:
        raise wrong_field(name, f"is {shown(given)}", "true or false")
    return given in _TRUE


class DocumentHandlers:
    """Handlers of the paths of documents.

    Parameters
    ----------
    writer : DocumentWriter
        Of the network.
    limits : Limits
        Of requests.
    changed : callable
        Called after each change.
    """

    def __init__(self, writer: DocumentWriter, limits: Limits, changed: Callable[[], None]) -> None:
        self._writer, self._limits, self._changed = writer, limits, changed

    async def add(self, http: Request) -> Response:
        """Handle ``POST /v1/documents``."""
        kind = http.headers.get("content-type", "").split(";")[0].strip().lower()
        if _is_true(http, "stream"):
            return await self._add_stream(http, kind)
        body = await read_bytes(http, self._limits.document_bytes)
        texts = read_documents(kind, body, http.query_params.get("id"), self._limits)
        documents = await self._change(lambda: self._writer.add(texts))
        data = await asyncio.to_thread(lambda: [self._writer.describe(each) for each in documents])
        several = {"object": "list", "data": data} if kind == LINES else data[0]
        return JSONResponse(several, 201)

    async def _add_stream(self, http: Request, kind: str) -> Response:
        """Add the documents of a long body, commit after commit; the response names those that were added."""
        if kind != LINES:
            raise HttpError(415, f"the body has the Content-Type {kind[:60]!r}; expected {LINES} with stream")
        data: list[dict[str, Any]] = []
        try:
            async for texts in document_batches(http, self._limits):
                documents = await self._change(partial(self._writer.add, texts))
                data += [{"id": each.id, "object": "document", "characters": each.characters} for each in documents]
        except HttpError as error:
            # What was committed stays. The rest of the body is not received.
            headers = {**(error.headers or {}), "Connection": "close"}
            return JSONResponse({**error.as_dict(), "data": data}, error.status, headers)
        if not data:
            raise wrong_field("documents", "are 0", "one or more")
        return JSONResponse({"object": "list", "data": data}, 201)

    async def all(self, http: Request) -> Response:
        """Handle ``GET /v1/documents``: those after an id, up to a limit."""
        after, given = http.query_params.get("after", ""), http.query_params.get("limit", str(_PAGE))
        if not given.isdecimal() or not 1 <= int(given) <= self._limits.documents:
            raise wrong_field("limit", f"is {shown(given)}", f"a whole number from 1 to {self._limits.documents}")
        found = await asyncio.to_thread(self._writer.table.page, after, int(given) + 1)
        page, more = found[: int(given)], len(found) > int(given)
        data = await asyncio.to_thread(lambda: [self._writer.describe(each) for each in page])
        return JSONResponse({"object": "list", "data": data, "has_more": more})

    async def one(self, http: Request) -> Response:
        """Handle ``GET /v1/documents/ID``."""
        document = await self._find(http)
        described = await asyncio.to_thread(self._writer.describe, document)
        return JSONResponse({**described, "text": document.text})

    async def remove(self, http: Request) -> Response:
        """Handle ``DELETE /v1/documents/ID``: the answer has the certificate."""
        document = await self._find(http)
        purge = _is_true(http, "purge")
        text = await self._text_of(http, document)
        kept = await asyncio.to_thread(self._writer.kept_for, document)
        found = await self._change(lambda: self._writer.remove(document, text, purge=purge))
        deleted = {"id": document.id, "object": "document.deleted", "deleted": True}
        return JSONResponse({**deleted, "certificate": found, "kept": found["kept"] if found else kept})

    async def certificate(self, http: Request) -> Response:
        """Handle ``GET /v1/documents/ID/certificate``."""
        name = http.path_params["id"]
        found = await asyncio.to_thread(self._writer.certificate, name)
        if found is None:
            raise HttpError(404, f"no document {name[:60]!r} was removed", code="not_found")
        return JSONResponse(found)

    async def _find(self, http: Request) -> Document:
        name = http.path_params["id"]
        document = await asyncio.to_thread(self._writer.table.find, name)
        if document is None:
            raise HttpError(404, f"there is no document {name[:60]!r}", code="not_found")
        return document

    async def _text_of(self, http: Request, document: Document) -> str:
        """Return the text of a document, which a request has to give where it is not kept."""
        body = await read_bytes(http, self._limits.document_bytes)
        if document.text is not None and not body:
            return document.text
        text = read_object(body).get("text") if body else None
        if not isinstance(text, str) or not await asyncio.to_thread(self._writer.is_text_of, document, text):
            message = f"the text of document {document.id[:60]!r} is needed to subtract it; expected its field text"
            raise HttpError(400, message, param="text", code="text_needed")
        return text

    async def _change(self, change: Callable[[], Answer]) -> Answer:
        """Make a change in a thread, which ends also when the client has gone."""
        try:
            found = await asyncio.shield(asyncio.create_task(asyncio.to_thread(change)))
        except FileExistsError as error:
            message = f"document {str(error)[:60]!r} has another text; delete it first, or use another id"
            raise HttpError(409, message, param="id", code="exists") from error
        except (EmptyInputError, OptionError) as error:
            raise HttpError(422, str(error), code="unprocessable") from error
        except GiaannError as error:
            raise HttpError(503, str(error), code="unavailable") from error
        self._changed()
        return found
