"""Find the text of documents that are named by their identities in the ledger of a network, and count few of them.

The text itself is not stored. It is read again in inputs that are given, or where training read it; a network with an
index records where, and with which options. Only parts of text that have the identity are used.

Training documents apart takes a store, and names are numbered anew. So that is done where their text is long, or where
the digest of their own network is needed; few documents are counted in the network's own numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Client, Future

from giaann_dask.cluster import results, task_key
from giaann_dask.cluster.submitting import Submitted
from giaann_dask.encoding.sources import SourceOptions, is_rereadable, read_units, reading_of
from giaann_dask.encoding.stream import BlockHere, EncodingStream, StreamOptions
from giaann_dask.errors import OptionError
from giaann_dask.runs.placement import Placement, Split
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.text.inputs import Files, require_rereadable
from giaann_dask.text.ledger import Ledger, LedgerEntry, is_identity
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training import tasks
from giaann_dask.training.region_tasks import RegionTasks

# Text that is counted by a task or two.
_CHARACTERS = StreamOptions().block_characters


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Text of documents.

    Attributes
    ----------
    inputs : sequence of str or MemoryInput
        Where it is read.
    sources : SourceOptions
        How it is read; of documents that are named by identity, only these parts.
    """

    inputs: Sequence[Source]
    sources: SourceOptions


def find_documents(
    reader: CommitReader, documents: Sequence[Source], sources: SourceOptions, texts: Sequence[Source] = ()
) -> Documents:
    """Return the text of documents, which may all be named by their identities.

    Parameters
    ----------
    reader : CommitReader
        The network.
    documents : sequence of str or MemoryInput
        Inputs, or identities of parts of text in the ledger: 22 hexadecimal digits each, which are no file.
    sources : SourceOptions
        How inputs are read.
    texts : sequence of str or MemoryInput
        Inputs that hold the text of identities, in place of those that training read.

    Raises
    ------
    OptionError
        If both are named, texts are given for inputs, the ledger has no such part, or it is not known where its text
        was read.
    """
    named = [each for each in documents if isinstance(each, str) and is_identity(each)]
    ledger = Ledger(reader.ledger())
    sources = replace(sources, counted=ledger)
    if not named:
        if texts:
            raise OptionError(
                "texts and no identity of a document", "identities in them", "name the text alone", names=("texts",)
            )
        return Documents(inputs=documents, sources=sources)
    if len(named) < len(documents):
        raise OptionError(
            f"{len(named):,} identities and {len(documents) - len(named):,} inputs as documents",
            "identities alone, or inputs alone",
            "run a command for each kind",
        )
    wanted = frozenset(bytes.fromhex(each) for each in named)
    if missing := sorted(each.hex() for each in wanted if each not in ledger):
        raise OptionError(
            f"network {reader.path} holds no part of text with the identity {missing[0]}",
            "identities in its ledger, such as traces and certificates name",
            "name the file of the document",
        )
    origins = reader.origins()
    places = [None if origins is None else origins.place(ledger.number(each)) for each in sorted(wanted)]
    found = [json.loads(each) for each in places if each is not None]
    inputs = texts or _rereadable(found, unknown=None in places)
    return Documents(inputs=inputs, sources=replace(_as_recorded(sources, found), only=wanted))


def identities_of(documents: Sequence[Source], sources: SourceOptions) -> set[str] | None:
    """Return the identities of the parts of documents in hexadecimal digits; None of text that can be read once."""
    named = {each for each in documents if isinstance(each, str) and is_identity(each)}
    if named:
        return named
    try:
        require_rereadable(documents, "a removal that is finished")
    except OptionError:
        return None
    return {unit.identity.hex() for unit in read_units(documents, sources)}


def _rereadable(places: Sequence[Mapping[str, Any]], *, unknown: bool) -> Files:
    """Return the inputs that text was read from; raise an error where one is unknown or cannot be read again."""
    names = sorted({place.get("corpus", place.get("name", "")) for place in places})
    gone = [name for name in names if not is_rereadable(name) or (os.path.isabs(name) and not os.path.exists(name))]
    if unknown or gone:
        where = f"text that was read from {gone[0]}" if gone else "text that no place is known of"
        raise OptionError(
            f"documents by identity, with {where}",
            "a network that was trained on files or corpora with trace, which records their places",
            "name the file of the document, or texts that hold it",
            names=("trace", "texts"),
        )
    return Files(names)


def _as_recorded(sources: SourceOptions, places: Sequence[Mapping[str, Any]]) -> SourceOptions:
    """Return options of reading with those that training recorded, which must be the same for all places."""
    how = {(place.get("tagger", sources.tagger), json.dumps(reading_of(place))) for place in places}
    if len(how) > 1:
        raise OptionError("documents that were read with different options", "the same ones", "run a command for each")
    if not how:
        return sources
    tagger, reading = how.pop()
    return replace(sources, tagger=tagger, reading=replace(sources.reading, **json.loads(reading)))


def require_found(ledger: Sequence[LedgerEntry], documents: Documents) -> None:
    """Raise an `OptionError` where the text of documents that are named by identity has not been found any more."""
    gone = (documents.sources.only or frozenset()) - {entry.identity for entry in ledger}
    if gone:
        raise OptionError(
            f"{', '.join(map(str, documents.inputs))} does not hold the text of {len(gone):,} documents as it was "
            f"trained, such as {min(gone).hex()}",
            "the same text, in the same parts, with the same tagger",
            "name a copy of it with texts",
            names=("texts",),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentCounts:
    """Counts of documents alone.

    Attributes
    ----------
    manifest : Manifest
        Of their sequences and tokens.
    ledger : sequence of LedgerEntry
        Their parts.
    blocks : tuple of Future
        Their `EncodedBlock`, in the numbers of the network that holds them; none with a network of their own.
    placement : Placement, optional
        Where neurons of that network belong.
    network : CommitReader, optional
        Network of their own.
    """

    manifest: Manifest
    ledger: Sequence[LedgerEntry]
    blocks: tuple[Future, ...] = ()
    placement: Placement | None = None
    network: CommitReader | None = None

    @classmethod
    def of(cls, network: CommitReader) -> DocumentCounts:
        """Return the counts of documents that were trained apart."""
        return cls(manifest=network.manifest(), ledger=network.ledger(), network=network)

    @classmethod
    def of_block(cls, block: BlockHere, specification: Specification) -> DocumentCounts:
        """Return the counts of documents that were encoded in this process."""
        manifest = replace(
            Manifest.new(specification), by_status=block.statistics.by_status, tokens=block.statistics.trained_tokens
        )
        return cls(manifest=manifest, ledger=[update.entry for update in block.ledger])

    def increments_of(self, blocks: Sequence[EncodedBlock], placement: Placement) -> dict[int, tasks.Increment]:
        """Return the increments by region of the documents, encoded in the numbers of the network that holds them."""
        return tasks.count_batch(blocks, *self._rules(placement))

    def _rules(self, placement: Placement) -> tuple[Placement, Specification, tuple[Split, ...]]:
        """Return the arguments of the task that counts besides the blocks; of postings nothing is subtracted."""
        specification = replace(self.manifest.specification, trace=False)
        return replace(placement, splits=()), specification, placement.splits

    def submit_increments(self, regions: RegionTasks) -> Submitted:
        """Submit the task that counts the documents of `blocks`; its result is their increments by region."""
        assert self.placement is not None, "documents without a network of their own"
        rules = self._rules(self.placement)
        key = task_key("count_batch", [block.key for block in self.blocks], *rules)
        where = regions.roles.computing()
        return regions.submitter.pass_on(key, tasks.count_batch, [*self.blocks], *rules, **where)


def are_few(documents: Documents) -> bool:
    """Return whether documents can be read again and are no longer than what a task encodes."""
    try:
        require_rereadable(documents.inputs, "counting them")
    except OptionError:
        return False
    characters = 0
    for unit in read_units(documents.inputs, documents.sources):
        characters += unit.weight
        if characters > _CHARACTERS:
            return False
    return True


def count_documents(client: Client, reader: CommitReader, documents: Documents) -> DocumentCounts:
    """Encode documents with the dictionaries of a network that holds them; names that it lacks get numbers beyond.

    Parameters
    ----------
    client : Client
        Where they are encoded.
    reader : CommitReader
        The network, whose counts do not depend on the order of text.
    documents : Documents
        Their text.
    """
    options = StreamOptions(words=False)
    stream = EncodingStream(client, reader.vocabulary(), documents.sources, options, Ledger())
    blocks = list(stream.blocks(documents.inputs))
    statistics = results([block.statistics for block in blocks])
    empty = Manifest.new(reader.manifest().specification)
    by_status = [empty.by_status, *(each.by_status for each in statistics)]
    return DocumentCounts(
        manifest=replace(
            empty,
            by_status=tuple(map(sum, zip(*by_status, strict=True))),
            tokens=sum(each.trained_tokens for each in statistics),
        ),
        ledger=[update.entry for block in blocks for update in block.ledger],
        blocks=tuple(block.encoded for block in blocks),
        placement=reader.placement(),
    )
