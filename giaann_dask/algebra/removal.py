"""Subtract documents from a network, exactly: the result equals training without them.

The documents are trained into a network of their own, which is then subtracted region by region. A strength can never
become negative: what is subtracted must be in the network, and the ledger must hold every part of the documents
completely.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from distributed import Client, Future

from giaann_dask.algebra.certificates import KeptCertificates, RemovalReport
from giaann_dask.algebra.documents import find_documents, identities_of, require_found
from giaann_dask.algebra.parts import add_parts, divide_parts, submit_parts
from giaann_dask.cluster import attempt, results, task_key
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.encoding.sources import RAW, SourceOptions
from giaann_dask.errors import OptionError, parameter
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, word_key
from giaann_dask.models import model_of
from giaann_dask.models.base import UsedNames
from giaann_dask.models.exporting import digest_of
from giaann_dask.runs.merging import merge_encoded
from giaann_dask.runs.packing import PackedRegionRun, pack, pack_targets
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import SequenceNumbers, renumber_postings
from giaann_dask.runs.renaming import close_gaps, key_renaming
from giaann_dask.runs.run import RegionRun
from giaann_dask.runs.summing import sum_in_blocks
from giaann_dask.spec import Specification
from giaann_dask.storage import write_file
from giaann_dask.store.beside import made_of
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.locking import locked
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import scratch_place
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.committing import CommitContents, commit_regions
from giaann_dask.training.regions import Regions
from giaann_dask.training.target import NetworkTarget
from giaann_dask.training.trainer import Trainer
from giaann_dask.training.training_options import TrainingOptions

_NONE: Integers = np.zeros(0, np.int64)


@attempt()
def forget_documents(
    client: Client,
    store: NetworkStore,
    inputs: Sequence[Source],
    sources: SourceOptions,
    *,
    texts: Sequence[Source] = (),
    renumber: bool = False,
    purge: bool = False,
    certificate: Path | None = None,
    digest: bool = True,
    observer: Observer = ignore,
) -> RemovalReport:
    """Subtract the text of inputs from a network and commit the result.

    Where a commit has subtracted this very text, as by a call that was interrupted afterwards, only the rest is done:
    purging and the certificate, which is kept beside the network from before the purge until it has been written.

    Parameters
    ----------
    client : Client
        Where the text is counted and subtracted.
    store : NetworkStore
        The network, trained on all tokens of its text, with canonical flags or of profile ``contexts``.
    inputs : sequence of str or MemoryInput
        The documents, as they were given to training: whole files, or whole texts; or identities of parts of text in
        the ledger, whose text is in `texts`, or in a network with an index is read where training read it.
    sources : SourceOptions
        How they are read; with the network's own specification and lexicon.
    texts : sequence of str or MemoryInput
        Inputs that hold the text of the identities.
    renumber : bool
        Leave out names that no remaining text has, and number the others anew. Without it the dictionaries keep them;
        in profile ``contexts``, and with `purge`, they are always left out.
    purge : bool
        Remove all earlier commits, which still hold the documents, with their files, and their tables in the user's
        cache folder here and on all workers.
    certificate : Path, optional
        File that the report is written to as JSON.
    digest : bool
        Whether the report has the digest of the network without the documents, which reads all of it; else empty.
    observer : callable, optional
        Notified of the training on the documents.

    Raises
    ------
    SpecificationError
        If the network depends on the order of its text.
    OptionError
        If the network does not hold a part of the documents, or holds it incompletely.
    StoreDamagedError
        If a connection would become negative; the network stays as it was.
    """
    with store.lock() as held:
        place = SharedPlace(client, held)
        place.require()
        reader = store.open(store.head())
        reader.manifest().require_sum(reader.path)
        kept = KeptCertificates(store.path)
        report = _begun(kept, reader, inputs, sources)
        with scratch_place(store.path, "forget", held=True) as documents:
            if report is None:
                text = (inputs, sources, texts)
                report = _remove(client, store, reader, documents, text, observer, renumber=renumber or purge)
                if digest:
                    report = replace(report, digest=digest_of(store.open(report.commit)))
                if purge:
                    others = tuple(sorted(store.other_commits()))
                    report = replace(report, purged_commits=len(others), purged=others)
                    kept.keep(report)
        if purge or report.commit == store.head():
            report = _purge(client, store, report) if report.purged else report
        elif store.other_commits().intersection(report.purged):
            raise OptionError(
                f"the purge of these documents from network {store.path} was interrupted",
                "the same command",
                f"give it again with {parameter('purge')}",
            )
        if certificate is not None:
            write_file(certificate, json.dumps(report.as_dict(), indent=1) + "\n", "the certificate")
        kept.drop(report)
    return report


def _begun(
    kept: KeptCertificates, reader: CommitReader, inputs: Sequence[Source], sources: SourceOptions
) -> RemovalReport | None:
    """Return the certificate of a removal of these documents whose purge has begun; None where there is none."""
    parts = identities_of(inputs, sources) if kept else None
    report = None if parts is None else kept.find(parts)
    if report is None or report.commit == reader.commit:
        return report
    # What was trained again since then is removed again.
    held = {entry.identity.hex() for entry in reader.ledger()}
    return None if held.intersection(report.parts) else report


def _purge(client: Client, store: NetworkStore, report: RemovalReport) -> RemovalReport:
    """Remove all commits but the last one, and the tables of others; return the report of a removal with where."""
    store.purge()
    model = model_of(store.open(store.head()).manifest().specification)
    caches = model.clear_tables(client, str(store.path), (store.head(),), report.purged)
    return replace(report, caches=tuple(caches), elsewhere=tuple(sorted({*report.elsewhere, *made_of(store.path)})))


def _remove(
    client: Client,
    store: NetworkStore,
    reader: CommitReader,
    place: Path,
    text: tuple[Sequence[Source], SourceOptions, Sequence[Source]],
    observer: Observer,
    *,
    renumber: bool,
) -> RemovalReport:
    """Subtract documents, whose network is trained at a place, if that has not been done, and report it."""
    earlier = _before_removal(store, reader)
    named = find_documents(earlier or reader, *text)
    removed = train_apart(client, reader, place, named.inputs, named.sources, observer)
    ledger = removed.ledger()
    require_found(ledger, named)
    if earlier is not None and _is_removed(removed, earlier, reader):
        before, commit = earlier, reader.commit
        if renumber and _has_unused_names(client, reader):
            commit = _subtract(client, store, reader, None, set(), renumber=True)
    else:
        before, parts = reader, find_parts(reader, ledger)
        commit = _subtract(client, store, reader, removed, parts, renumber=renumber)
    after, gone, tokenizer = store.open(commit), removed.manifest(), reader.tokenizer()
    return RemovalReport(
        network=str(store.path),
        commit_before=before.commit,
        commit=commit,
        specification={**gone.specification.without_regions(), "profile": gone.specification.profile},
        ever_pos=reader.ever_pos().identity(),
        tokenizer="" if tokenizer is None else tokenizer.identity(),
        tagger="" if named.sources.tagger == RAW else named.sources.tagger,
        parts=tuple(sorted(entry.identity.hex() for entry in ledger)),
        sequences=gone.sequences,
        trained=gone.trained,
        tokens=gone.tokens,
        connections_before=before.manifest().connections,
        connections=after.manifest().connections,
        purged_commits=0,
        digest_removed=digest_of(removed),
        digest="",
        elsewhere=_read_from(before, {entry.identity for entry in ledger}),
    )


def _read_from(reader: CommitReader, identities: Collection[bytes]) -> tuple[str, ...]:
    """Return where training read parts of text, as far as a network with an index knows."""
    origins = reader.origins()
    if origins is None:
        return ()
    parts = [part for part, entry in enumerate(reader.ledger()) if entry.identity in identities]
    places = [json.loads(place) for place in map(origins.place, parts) if place is not None]
    return tuple(sorted({str(place.get("corpus", place.get("name", ""))) for place in places}))


def _before_removal(store: NetworkStore, reader: CommitReader) -> CommitReader | None:
    """Return the last commit with another ledger, if this one has removed parts of text since; else None."""
    ledger = Counter(reader.ledger())
    for identity, _ in store.commits()[1:]:
        earlier = store.open(identity)
        before = Counter(earlier.ledger())
        if before != ledger:
            return earlier if ledger < before else None
    return None


def _is_removed(removed: CommitReader, before: CommitReader, after: CommitReader) -> bool:
    """Return whether a removal has removed these documents and nothing else, and none of them is left."""
    documents = _countable(removed.ledger(), {entry.identity for entry in before.ledger()})
    left = Counter(after.ledger())
    return Counter(before.ledger()) == documents + left and not documents <= left


def _has_unused_names(client: Client, reader: CommitReader) -> bool:
    """Return whether the dictionaries of a network have names that no text has."""
    runs = [run for each in submit_parts(client, reader, reader.placement()).values() for run in each]
    vocabulary = reader.vocabulary()
    return not all(kept.all() for kept in _names_in_use(client, runs, vocabulary, reader))


def train_apart(
    client: Client,
    reader: CommitReader,
    path: Path,
    inputs: Sequence[Source],
    sources: SourceOptions,
    observer: Observer,
    *,
    specification: Specification | None = None,
) -> CommitReader:
    """Train a network of the specification of another one on some documents alone, and return its commit.

    Parameters
    ----------
    client : Client
        Where it is trained.
    reader : CommitReader
        The other network.
    path : Path
        Folder of the new one, absolute.
    inputs, sources
        See `forget_documents`.
    observer : callable
        Notified of the training.
    specification : Specification, optional
        Another one.
    """
    with locked(path) as held:
        place = SharedPlace(client, held)
        wanted = specification or reader.manifest().specification
        target = NetworkTarget(place, wanted, reader.ever_pos(), reader.tokenizer())
        Trainer(client, target, TrainingOptions(), observer).train(inputs, sources, check=False)
        return target.ensure()[1]


def find_parts(reader: CommitReader, documents: Sequence[LedgerEntry]) -> set[int]:
    """Return the places of documents in a network's ledger; raise an error where it does not hold them completely."""
    held = {entry.identity: entry for entry in reader.ledger()}
    wanted = _countable(documents, held)
    if not wanted:
        raise OptionError("documents without a sequence of enough tokens", "text that was trained", "check the inputs")
    missing = sum(entry.identity not in held for entry in wanted)
    partial = sum(entry.identity in held and held[entry.identity] != entry for entry in wanted)
    if missing or partial:
        raise OptionError(
            f"of {len(wanted):,} parts of the documents network {reader.path} holds {missing:,} not at all and "
            f"{partial:,} in part",
            "documents that it was trained on completely",
            "name whole files as they were given to train, with the same tagger",
        )
    parts = set()
    for part, entry in enumerate(reader.ledger()):
        if wanted[entry]:
            wanted[entry] -= 1
            parts.add(part)
    if repeated := sum(wanted.values()):
        raise OptionError(
            f"{repeated:,} parts of the documents occur more often than network {reader.path} counted them",
            "every document once",
            "name it once",
        )
    return parts


def _countable(documents: Sequence[LedgerEntry], held: Collection[bytes]) -> Counter[LedgerEntry]:
    """Return the parts of documents that a ledger has to hold: bundles leave out those that have no sequences."""
    return Counter(entry for entry in documents if entry.sequences or entry.identity in held)


def _subtract(
    client: Client,
    store: NetworkStore,
    reader: CommitReader,
    removed: CommitReader | None,
    parts: set[int],
    *,
    renumber: bool,
) -> str:
    """Subtract a network, or none, from another and commit; return the identity of the commit."""
    manifest, vocabulary, placement = reader.manifest(), reader.vocabulary(), reader.placement()
    numbered = manifest.specification.traits.columns
    regions = Regions(client, placement, manifest.rounds)
    origins, sequences = reader.origins(), None
    if origins is not None:
        origins, sequences = origins.without(sorted(parts))
    gone: dict[int, list[Future]] = {}
    if removed is not None:
        names = key_renaming(manifest.specification, removed.vocabulary(), vocabulary)
        gone = submit_parts(client, removed, placement, names)
    sums = submit_differences(regions, submit_parts(client, reader, placement), gone, sequences)
    entries = [entry for part, entry in enumerate(reader.ledger()) if part not in parts]
    keeps = _names_in_use(client, list(sums.values()), vocabulary, reader)
    if renumber or not numbered:
        vocabulary = _select(vocabulary, *keeps)
    if renumber and numbered:
        # Numbers of columns decide their regions, so that these are made anew.
        placement = Placement(placement.first_regions)
        regions = Regions(client, placement, manifest.rounds)
        sums = add_parts(regions, divide_parts(client, list(sums.values()), placement, close_gaps(*keeps)))
    regions.replace_by(sums)
    less = Manifest.new(manifest.specification) if removed is None else removed.manifest()
    counts = counts_without(manifest, less, vocabulary)
    contents = CommitContents(counts, vocabulary, Ledger(entries), rewritten=True, origins=origins)
    return commit_regions(store, regions, regions.snapshot(whole=True), contents, last=True)


def submit_differences(
    regions: Regions,
    wholes: Mapping[int, Sequence[Future]],
    parts: Mapping[int, Sequence[Future]],
    sequences: SequenceNumbers | None = None,
) -> dict[int, Future]:
    """Submit tasks that subtract packed runs from others, by region, with new numbers of these sequences."""
    sums = {}
    for region in sorted({*wholes, *parts}):
        whole, part = wholes.get(region, []), parts.get(region, [])
        key_of = [[future.key for future in futures] for futures in (whole, part)]
        key = [*key_of, sequences]
        sums[region] = regions.tasks.submit("subtract", subtract, len(whole), sequences, *whole, *part, key_of=key)
    return sums


def _names_in_use(
    client: Client, runs: Sequence[Future], vocabulary: Vocabulary, reader: CommitReader
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which concepts and features of dictionaries the trained neurons of packed runs have."""
    specification = reader.manifest().specification
    used = results([client.submit(used_names, specification, each, key=task_key("names", each.key)) for each in runs])
    columns, features = (np.unique(np.concatenate([_NONE, *found])) for found in zip(*used, strict=True))
    if specification.traits.columns:
        concepts = np.isin(np.arange(len(vocabulary.concepts)), columns)
        kept = np.isin(np.arange(len(vocabulary.features)), features)
    else:
        words = np.array([word_key(word) for word in vocabulary.features], np.int64)
        concepts, kept = np.zeros(len(vocabulary.concepts), np.bool_), np.isin(words, features)
    kept[0] = True
    return concepts, kept


def _select(vocabulary: Vocabulary, concepts: npt.NDArray[np.bool_], features: npt.NDArray[np.bool_]) -> Vocabulary:
    """Return the dictionaries with some of their names."""
    kept = features.tolist()
    return Vocabulary(
        list(compress(vocabulary.concepts, concepts.tolist())),
        list(compress(vocabulary.features, kept)),
        list(compress(vocabulary.delimiter, kept)),
        list(compress(vocabulary.probable_since, kept)),
    )


def counts_without(manifest: Manifest, removed: Manifest, vocabulary: Vocabulary) -> Manifest:
    """Return the counts of a network without those of another, and the state of its dictionaries.

    Flags depend on the word alone: they count as set by the first sequence, which no number is known of any more.
    """
    by_status = tuple(a - b for a, b in zip(manifest.by_status, removed.by_status, strict=True))
    concepts, features = len(vocabulary.concepts), len(vocabulary.features)
    vocabulary.probable_since = [min(since, 0) for since in vocabulary.probable_since]
    vocabulary.sequences = sum(by_status)
    return replace(
        manifest,
        by_status=by_status,
        tokens=manifest.tokens - removed.tokens,
        concepts=concepts,
        features=features,
        saved_concepts=concepts,
        saved_features=features,
        last_trained=sum(by_status) - 1,
    )


def subtract(wholes: int, sequences: SequenceNumbers | None, *runs: PackedRegionRun) -> PackedRegionRun:
    """Return the sum of the first runs of a region without that of the others (a task).

    Parameters
    ----------
    wholes : int
        How many of the runs come first.
    sequences : SequenceNumbers or None
        New numbers of the sequences in their postings, which those of the others are left out of.
    *runs : PackedRegionRun
        The runs.

    Raises
    ------
    StoreDamagedError
        If a connection would become negative.
    """
    tables = []
    for name in ("connections", "neurons"):
        whole, less = ([getattr(run, name) for run in part] for part in (runs[:wholes], runs[wholes:]))
        tables.append(pack_targets(sum_in_blocks(whole, less)))
    connections, neurons = tables
    indexes = [run.postings for run in runs[:wholes] if run.postings is not None]
    if not indexes:
        return PackedRegionRun(connections, neurons)
    postings = merge_encoded(indexes, tasks.decode_table)
    postings = postings if sequences is None else renumber_postings(postings, sequences)
    return PackedRegionRun(connections, neurons, pack(postings, gaps=True))


def used_names(specification: Specification, run: RegionRun | PackedRegionRun) -> UsedNames:
    """Return the names that the counts of a run use (a task)."""
    return model_of(specification).find_used(run)
