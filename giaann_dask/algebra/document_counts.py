"""Count documents that a network holds: in its own numbers, without a network of their own, where they are few.

Training documents apart takes a store, and names are numbered anew. So that is done where their text is long, or where
the digest of their own network is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distributed import Client, Future

from giaann_dask.algebra.documents import Documents
from giaann_dask.cluster import results, task_key
from giaann_dask.cluster.submitting import Submitted
from giaann_dask.encoding.sources import read_units
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.errors import OptionError
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.ledger import LedgerEntry
from giaann_dask.training import tasks
from giaann_dask.training.region_tasks import RegionTasks

# Text that is counted by a task or two.
_CHARACTERS = StreamOptions().block_characters


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

    def submit_increments(self, regions: RegionTasks) -> Submitted:
        """Submit the task that counts the documents of `blocks`; its result is their increments by region."""
        assert self.placement is not None, "documents without a network of their own"
        # Of postings nothing is subtracted.
        rules: Specification = replace(self.manifest.specification, trace=False)
        columns, splits = replace(self.placement, splits=()), self.placement.splits
        key = task_key("count_batch", [block.key for block in self.blocks], columns, rules, splits)
        arguments = ([*self.blocks], columns, rules, splits)
        return regions.submitter.pass_on(key, tasks.count_batch, *arguments, **regions.roles.computing())


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
    stream = EncodingStream(client, reader.vocabulary(), documents.sources, options)
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
