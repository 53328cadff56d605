"""Give a network the index of its sequences that it was trained without, exactly.

The text is trained into a network of its own, with an index. Where both networks are the same, as their digests show,
the postings are taken over, with the network's own numbers of names and sequences; nothing else is changed.

Does not cover: what an index is (`giaann_dask.tracing`), and training with one from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distributed import Client

from giaann_dask.algebra.parts import submit_parts
from giaann_dask.algebra.removal import train_apart
from giaann_dask.cluster import attempt
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.models.exporting import digest_of
from giaann_dask.runs.packing import PackedRegionRun, pack
from giaann_dask.runs.renaming import key_renaming
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import scratch_place
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.memory_inputs import Source
from giaann_dask.training import tasks
from giaann_dask.training.committing import CommitContents, commit_regions
from giaann_dask.training.regions import Regions


@attempt()
def index_network(
    client: Client, store: NetworkStore, inputs: Sequence[Source], sources: SourceOptions, observer: Observer = ignore
) -> str:
    """Index the sequences of a network, commit the index, and return the identity of the commit.

    A network that has an index stays as it is. A call that was interrupted is repeated from the beginning.

    Parameters
    ----------
    client : Client
        Where the text is counted.
    store : NetworkStore
        The network.
    inputs : sequence of str or MemoryInput
        All of its text, with other text among it or not; for a network with flags of history in the order of training.
    sources : SourceOptions
        How the text is read; as in training.
    observer : callable, optional
        Notified of the training on the text.

    Raises
    ------
    SpecificationError
        If the network was pruned, or trained on misses.
    OptionError
        If the text is not that of the network; the network stays as it was.
    """
    with store.lock() as held:
        SharedPlace(client, held).require()
        reader = store.open(store.head())
        manifest = reader.manifest()
        if manifest.specification.trace:
            return reader.commit
        manifest.require_whole(reader.path)
        manifest.require_all_tokens(reader.path)
        wanted = replace(sources, only=frozenset(entry.identity for entry in reader.ledger()))
        with scratch_place(store.path, "index", held=True) as place:
            traced = replace(manifest.specification, trace=True)
            indexed = train_apart(client, reader, place, inputs, wanted, observer, specification=traced)
            parts = _parts_of(indexed, reader)
            if digest_of(indexed) != digest_of(reader):
                raise OptionError(
                    f"text whose counts differ from the connections of network {reader.path}",
                    "its text, read and tagged as in training, for flags of history in the same order",
                    "check tagger and the order of the inputs",
                    names=("tagger",),
                )
            return _take_over(client, store, reader, indexed, parts)


def _parts_of(indexed: CommitReader, reader: CommitReader) -> list[int]:
    """Return where the parts of the text are in a network's ledger; raise an error where it holds others or more."""
    found = {entry.identity: entry for entry in indexed.ledger()}
    ledger = reader.ledger()
    missing = [entry for entry in ledger if entry.sequences and entry.identity not in found]
    if missing:
        raise OptionError(
            f"{len(missing):,} of {len(ledger):,} parts of text of network {reader.path} are not in the inputs, such "
            f"as {missing[0].identity.hex()}",
            "all text that it was trained on, in the same files, with the same tagger",
            "name them all as they were given to train",
        )
    if partial := sum(found.get(entry.identity, entry) != entry for entry in ledger):
        raise OptionError(
            f"network {reader.path} was trained on {partial:,} of {len(ledger):,} parts of text in part",
            "text that it was trained on completely",
            "let its training finish first",
        )
    place = {entry.identity: part for part, entry in enumerate(ledger)}
    return [place[entry.identity] for entry in indexed.ledger()]


def _take_over(
    client: Client, store: NetworkStore, reader: CommitReader, indexed: CommitReader, parts: Sequence[int]
) -> str:
    """Commit the network with the postings of another one of the same text; return the identity of the commit."""
    manifest, vocabulary, placement = reader.manifest(), reader.vocabulary(), reader.placement()
    own = indexed.origins()
    assert own is not None, "it was trained with an index"
    origins, numbers = own.arranged(parts)
    names = key_renaming(manifest.specification, indexed.vocabulary(), vocabulary)
    regions = Regions(client, placement, manifest.rounds)
    postings = submit_parts(client, indexed, placement, names, numbers)
    indexed_runs = {}
    for region, runs in submit_parts(client, reader, placement).items():
        more = postings.get(region, [])
        key = [[future.key for future in futures] for futures in (runs, more)]
        indexed_runs[region] = regions.tasks.submit("index", index_region, len(runs), *runs, *more, key_of=key)
    regions.replace_by(indexed_runs)
    traced = replace(manifest, specification=replace(manifest.specification, trace=True))
    contents = CommitContents(traced, vocabulary, Ledger(reader.ledger()), origins=origins, note="with an index")
    return commit_regions(store, regions, regions.snapshot(whole=True), contents, last=True)


def index_region(wholes: int, *runs: PackedRegionRun) -> PackedRegionRun:
    """Return the sum of the first runs of a region with the postings of the others (a task)."""
    none = pack(Run.empty())
    whole = tasks.compact(*runs[:wholes])
    indexes = [run._replace(connections=none, neurons=none) for run in runs[wholes:]]
    index = tasks.compact(*indexes).postings if indexes else None
    return whole._replace(postings=pack(Run.empty(), gaps=True) if index is None else index)
