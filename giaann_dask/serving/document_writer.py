"""Add documents to a served network and subtract them exactly; each change is a commit that prompts see at once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from giaann_dask.algebra.documents import identities_of
from giaann_dask.algebra.removal import digest_of_documents, forget_documents, purge_network
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import as_sources, sources_of
from giaann_dask.api.training import train
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.errors import EmptyInputError, GiaannError
from giaann_dask.models.exporting import digest_of
from giaann_dask.serving.document_table import Document, DocumentTable
from giaann_dask.serving.opening import SharedClient
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.memory_inputs import Source

_LOG = logging.getLogger(__name__)
_NICE = 10
# Digests wait until no change has come for so long, and no longer than that.
_QUIET_S, _LONGEST_S = 2.0, 30.0


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
    """

    def __init__(
        self, path: Path, clients: SharedClient, renew: Callable[[CommitReader], None], *, keep_texts: bool = True
    ) -> None:
        self.table = DocumentTable(path)
        self._path, self._clients, self._renew, self._keep_texts = path, clients, renew, keep_texts
        self._lock = threading.Lock()
        # What a response does not wait for: purges, and the digests of certificates.
        self._later = ThreadPoolExecutor(1, "later", _lower_priority)
        self._digested: set[tuple[str, str]] = set()
        self._changed, self._closing = 0.0, threading.Event()

    def close(self) -> None:
        """Close the table, after a running change, purge or digest; a purge that waits is made at the next start."""
        self._closing.set()
        self._later.shutdown(cancel_futures=True)
        with self._lock:
            self.table.close()

    def recover(self) -> None:
        """Complete or take back the changes in which an earlier server was interrupted.

        A document whose text the network holds is stored; another one was never acknowledged. A removal is done again,
        or taken back where the text of the document is not kept. A purge is done again.
        """
        with self._lock:
            held = self._held()
            for document in self.table.in_state("adding"):
                if held.issuperset(document.parts):
                    self.table.put([document], "stored")
                else:
                    self.table.remove([document.id])
            for document in self.table.in_state("removing"):
                if document.text is not None:
                    self._subtract(document, document.text)
                elif held.issuperset(document.parts):
                    self.table.put([document], "stored")
                else:
                    self.table.remove([document.id])
        if self.table.purges():
            self._later.submit(self._purge)

    def add(self, texts: Sequence[tuple[str, str, dict[str, Any]]]) -> list[Document]:
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
        with self._lock:
            reader = self._head()
            documents = [self._document(reader, *each) for each in texts]
            stored = [self.table.find(each.id) for each in documents]
            for document, present in zip(documents, stored, strict=True):
                if present is not None and present.parts != document.parts:
                    raise FileExistsError(document.id)
            new = [each for each, present in zip(documents, stored, strict=True) if present is None]
            if new:
                self._train(new, {name: text for name, text, _ in texts})
            return [self.table.find(each.id) or each for each in documents]

    def _train(self, documents: Sequence[Document], texts: dict[str, str]) -> None:
        self.table.put(documents, "adding")
        try:
            inputs: list[Source] = [source for each in documents for source in as_sources([texts[each.id]])]
            with self._clients.use() as client:
                train(inputs, self._path, client=client, progress=False)
        except BaseException:
            held = self._held()
            self.table.remove([each.id for each in documents if not held.issuperset(each.parts)])
            raise
        self.table.put(documents, "stored")
        self._renew(self._head())
        self._changed = time.monotonic()

    def remove(self, document: Document, text: str, *, purge: bool) -> dict[str, Any] | None:
        """Subtract a document, and predict without it; return the certificate.

        None where another document has the same text, which therefore stays.

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
        with self._lock:
            owners = self.table.owners()
            if any(len(owners.get(part, ())) > 1 for part in document.parts):
                self.table.remove([document.id])
                return None
            self.table.put([document], "removing")
            certificate = self._subtract(document, text, purge=purge)
        if purge:
            self._later.submit(self._purge)
        self._later.submit(self._add_digest_removed, document.id, certificate["commit_before"], text)
        return certificate

    def _subtract(self, document: Document, text: str, *, purge: bool = False) -> dict[str, Any]:
        store = NetworkStore(self._path)
        inputs, options = self._sources(store.open(store.head()), text)
        try:
            with self._clients.use() as client:
                report = forget_documents(client, store, inputs, options, digest=False)
        except BaseException:
            if self._held().issuperset(document.parts):
                self.table.put([document], "stored")
            raise
        certificate = report.as_dict() | ({"purge": "running"} if purge else {})
        # Of this file the text is removed now.
        certificate["elsewhere"] = [place for place in certificate["elsewhere"] if place != str(self.table.file)]
        self.table.certify(document.id, certificate, purge=purge)
        self.table.remove([document.id])
        self._renew(self._head())
        self._changed = time.monotonic()
        return certificate

    def _purge(self) -> None:
        """Remove earlier commits, and complete the certificates of the documents that wait for it."""
        try:
            with self._lock, self._clients.use() as client:
                waiting = self.table.purges()
                if not waiting:
                    # An earlier purge was theirs, too.
                    return
                done = purge_network(client, NetworkStore(self._path))
                for name in waiting:
                    kept = self.table.certificate(name) or {}
                    if kept.get("purge") == "running":
                        elsewhere = sorted({*kept["elsewhere"], *done.elsewhere} - {str(self.table.file)})
                        kept |= {**done.as_dict(), "elsewhere": elsewhere, "purge": "done"}
                        self.table.certify(name, kept)
                self.table.end_purges(waiting)
                self._renew(self._head())
        except GiaannError as error:
            # Done when the server starts again, or with the next purge.
            _LOG.warning("earlier commits are not removed yet: %s", error)

    def _wait_until_quiet(self) -> None:
        """Let changes that follow each other go first."""
        last = time.monotonic() + _LONGEST_S
        while (left := min(self._changed + _QUIET_S, last) - time.monotonic()) > 0 and not self._closing.wait(left):
            pass

    def _add_digest_removed(self, name: str, before: str, text: str) -> None:
        """Add the digest of a document's own network to its certificate."""
        self._wait_until_quiet()
        try:
            reader = self._head()
            with self._clients.use() as client:
                digest = digest_of_documents(client, reader, *self._sources(reader, text))
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
        with self._lock:
            kept = self.table.certificate(name)
            if kept is not None and kept[field] == commit:
                self.table.certify(name, {**kept, **fields})

    def is_text_of(self, document: Document, text: str) -> bool:
        """Return whether a text is that of a stored document."""
        return self._parts(self._head(), text) == document.parts

    def texts(self) -> list[Source]:
        """Return the texts that are kept, in which tracing looks for training sentences."""
        kept = [each.text for each in self.table.in_state("stored") if each.text is not None]
        return [source for text in kept for source in as_sources([text])]

    def _document(self, reader: CommitReader, name: str, text: str, metadata: dict[str, Any]) -> Document:
        parts = self._parts(reader, text)
        if not parts:
            raise EmptyInputError(f"document {name!r} is empty", "some sentences")
        kept = text if self._keep_texts else None
        return Document(id=name, parts=parts, characters=len(text), text=kept, metadata=metadata)

    def _parts(self, reader: CommitReader, text: str) -> tuple[str, ...]:
        """Return the identities of a text's parts in the ledger."""
        return tuple(sorted(identities_of(*self._sources(reader, text)) or ()))

    @staticmethod
    def _sources(reader: CommitReader, text: str) -> tuple[Sequence[Source], SourceOptions]:
        """Return a text as an input, and how it is read."""
        inputs, lexicon = as_sources([text]), reader.tokenizer() or reader.ever_pos()
        return inputs, sources_of(reader.manifest().specification, TextOptions().fitting(inputs), lexicon)

    def _held(self) -> set[str]:
        """Return the identities of the parts of text that the network holds."""
        return {entry.identity.hex() for entry in self._head().ledger()}

    def _head(self) -> CommitReader:
        store = NetworkStore(self._path)
        return store.open(store.head())


def _lower_priority() -> None:
    """Let requests go first: on Linux, this thread and those that it starts get what others leave."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
