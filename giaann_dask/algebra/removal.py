"""Subtract documents from a network, exactly: the result equals training without them; certify it, and purge.

The documents are counted, or trained into a network of their own, and subtracted region by region. A strength can never
become negative: what is subtracted must be in the network, and the ledger must hold every part of the documents
completely.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Client, Future

from giaann_dask.algebra.certificates import KeptCertificates, RemovalReport
from giaann_dask.algebra.differences import subtract_counts, subtract_from_latest
from giaann_dask.algebra.documents import (
    DocumentCounts,
    are_few,
    count_documents,
    find_documents,
    identities_of,
    require_found,
)
from giaann_dask.algebra.renumbering import (
    add_up_latest,
    names_in_use,
    rename_runs,
    select_names,
    submit_all_names,
    submit_used_names,
)
from giaann_dask.cluster import attempt
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.encoding.sources import RAW, SourceOptions, is_rereadable
from giaann_dask.encoding.stream import encode_here
from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.models import model_of
from giaann_dask.models.exporting import digest_of
from giaann_dask.runs.renaming import close_gaps
from giaann_dask.spec import Specification
from giaann_dask.storage import write_file
from giaann_dask.store.beside import made_of
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.locking import locked
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.origins import Origins
from giaann_dask.store.places import scratch_place
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training.committing import (
    CommitContents,
    commit_regions,
    compute_commit,
    known_counts,
    open_regions,
)
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import Snapshot
from giaann_dask.training.small_changes import RegionChange, SmallChanges, small_parts
from giaann_dask.training.target import NetworkTarget
from giaann_dask.training.trainer import Trainer
from giaann_dask.training.training_options import TrainingOptions


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
        Whether the report has its digests, for which documents are trained into a network of their own, and all of the
        network is read. Without them, few documents are counted alone.
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
                rules = {"renumber": renumber or purge, "digest": digest}
                report = _remove(client, store, reader, documents, text, observer, **rules)
                if digest:
                    report = replace(report, digest=digest_of(store.open(report.commit)))
                if purge:
                    others = tuple(sorted(store.other_commits()))
                    report = replace(report, purged_commits=len(others), purged=others)
                    kept.keep(report)
        if purge or report.commit == store.head():
            if report.purged:
                caches, made = _purge(client, store, report.purged)
                report = replace(report, caches=caches, elsewhere=tuple(sorted({*report.elsewhere, *made})))
        elif store.other_commits().intersection(report.purged):
            raise OptionError(
                f"removing these documents from earlier commits of network {store.path} was interrupted",
                "the same command",
                "run it again with purge",
                names=("purge",),
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


def _purge(
    client: Client, store: NetworkStore, others: Sequence[str]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Remove all commits but the last one, and the tables of others; return from where, and what was made of them."""
    store.purge()
    model = model_of(store.open(store.head()).manifest().specification)
    return tuple(model.clear_tables(client, str(store.path), (store.head(),), others)), tuple(made_of(store.path))


@dataclass(frozen=True, eq=False)
class PreparedCommit:
    """Commit that is to be made; what it writes is computed or being computed.

    Attributes
    ----------
    reader : CommitReader
        The commit that it continues.
    regions, snapshot, contents
        What it has; see `commit_regions`.
    computed : tuple of Future
        Results that are kept for it.
    """

    reader: CommitReader
    regions: Regions
    snapshot: Snapshot
    contents: CommitContents
    computed: tuple[Future, ...] = ()

    def make(self, store: NetworkStore) -> str:
        """Make the commit while holding the lock, and return its identity."""
        return commit_regions(store, self.regions, self.snapshot, self.contents, last=True, before=self.reader)


@attempt()
def prepare_purge(client: Client, store: NetworkStore) -> PreparedCommit:
    """Compute the commit that leaves out the names that no text of a network has; nobody need wait meanwhile.

    As long as its result is kept, another call computes only what later commits have changed. `leave_out_names` makes
    the commit, and `remove_earlier` completes a purge.

    Parameters
    ----------
    client : Client
        Where counts are renamed.
    store : NetworkStore
        The network; see `forget_documents`.
    """
    reader = store.open(store.head())
    reader.manifest().require_sum(reader.path)
    # Kept, too, so that another call does not read them again.
    opened = open_regions(client, reader)
    kept = [run.future for run in opened.runs.all()] + submit_used_names(opened, reader)
    if reader.manifest().specification.traits.columns:
        kept += submit_all_names(opened)
    prepared = _prepare(client, reader, None, set(), renumber=True)
    computed = compute_commit(prepared.regions, prepared.snapshot, (str(reader.path), reader.commit))
    return replace(prepared, computed=(*kept, *computed))


@attempt()
def leave_out_names(client: Client, store: NetworkStore, prepared: PreparedCommit) -> str:
    """Make the commit that `prepare_purge` has computed, and return its identity.

    Raises
    ------
    StoreConflictError
        If another commit was made since.
    """
    with store.lock() as held:
        SharedPlace(client, held).require()
        return prepared.make(store)


@attempt()
def remove_earlier(client: Client, store: NetworkStore) -> dict[str, Any]:
    """Remove all commits of a network but the last one.

    Parameters
    ----------
    client : Client
        On whose workers tables of the others are removed.
    store : NetworkStore
        The network.

    Returns
    -------
    dict of str to Any
        Fields of a `RemovalReport`, ready for JSON.
    """
    with store.lock():
        others = sorted(store.other_commits())
        caches, made = _purge(client, store, others)
        found = {"commit": store.head(), "purged_commits": len(others), "purged": others}
        return {**found, "caches": list(caches), "elsewhere": list(made)}


@attempt()
def digest_of_documents(client: Client, reader: CommitReader, inputs: Sequence[Source], sources: SourceOptions) -> str:
    """Train documents apart by the rules of a network, and return the digest of theirs; see `forget_documents`."""
    with scratch_place(reader.path, "digest") as place:
        return digest_of(train_apart(client, reader, place, inputs, sources, ignore))


def _remove(
    client: Client,
    store: NetworkStore,
    reader: CommitReader,
    place: Path,
    text: tuple[Sequence[Source], SourceOptions, Sequence[Source]],
    observer: Observer,
    *,
    renumber: bool,
    digest: bool,
) -> RemovalReport:
    """Subtract documents, whose network may be trained at a place, if that has not been done, and report it."""
    earlier = _before_removal(store, reader)
    named = find_documents(earlier or reader, *text)
    if not digest and are_few(named):
        removed = count_documents(client, earlier or reader, named)
    else:
        removed = DocumentCounts.of(train_apart(client, reader, place, named.inputs, named.sources, observer))
    ledger = removed.ledger
    require_found(ledger, named)
    if earlier is not None and _is_removed(removed, earlier, reader):
        before, commit = earlier, reader.commit
        if renumber and _has_unused_names(client, reader):
            commit = _subtract(client, store, reader, None, set(), renumber=True)
    else:
        before, parts = reader, find_parts(reader, ledger)
        commit = _subtract(client, store, reader, removed, parts, renumber=renumber)
    digest_removed = "" if removed.network is None else digest_of(removed.network)
    return _report(before, store.open(commit), removed, named.sources, digest_removed)


def _report(
    before: CommitReader, after: CommitReader, removed: DocumentCounts, sources: SourceOptions, digest_removed: str = ""
) -> RemovalReport:
    """Return the certificate of a removal, given the commits before and after."""
    gone, tokenizer = removed.manifest, before.tokenizer()
    return RemovalReport(
        network=str(before.path),
        commit_before=before.commit,
        commit=after.commit,
        specification={**gone.specification.without_regions(), "profile": gone.specification.profile},
        ever_pos=sources.ever_pos.identity(),
        tokenizer="" if tokenizer is None else tokenizer.identity(),
        tagger="" if sources.tagger == RAW else sources.tagger,
        parts=tuple(sorted(entry.identity.hex() for entry in removed.ledger)),
        sequences=gone.sequences,
        trained=gone.trained,
        tokens=gone.tokens,
        connections_before=before.manifest().connections,
        connections=after.manifest().connections,
        purged_commits=0,
        digest_removed=digest_removed,
        digest="",
        elsewhere=_read_from(before, {entry.identity for entry in removed.ledger}),
    )


def forget_few(changes: SmallChanges, inputs: Sequence[Source], sources: SourceOptions) -> RemovalReport | None:
    """Subtract a small text from a network of columns that is kept open, without a cluster; hold the lock meanwhile.

    Parameters
    ----------
    changes : SmallChanges
        The network.
    inputs, sources
        See `forget_documents`.

    Returns
    -------
    RemovalReport or None
        The certificate without digests; None where `forget_documents` has to subtract it: a long text, one that the
        network does not hold, or one that its latest runs do not hold.
    """
    opened = changes.opened()
    reader, contents = opened.reader, opened.contents
    group = small_parts(inputs, replace(sources, counted=contents.ledger))
    if group is None or not opened.is_counted or any(unit.identity not in contents.ledger for unit in group.units):
        return None
    if not sources.specification.traits.columns:
        # What other names occur, all runs say.
        return None
    reader.manifest().require_sum(reader.path)
    block = encode_here(group, contents.vocabulary.copy(), sources)
    removed = DocumentCounts.of_block(block, sources.specification)
    parts, origins, sequences = find_parts(reader, removed.ledger), contents.origins, None
    if origins is not None:
        origins, sequences = origins.without(sorted(parts))
    increments = removed.increments_of([block.encoded], opened.placement)
    made = subtract_from_latest(reader, changes.runs, sequences, increments)
    if made.rest:
        return None
    known = known_counts(reader.manifest())
    after = {
        region: RegionChange(kept, made.runs.get(region), known[region][1].without(made.lost[region]))
        for region, kept in made.kept.items()
    }
    left = _contents_without(contents, removed, contents.vocabulary.copy(), parts, origins)
    commit = changes.commit(replace(opened, contents=left), after)
    return None if commit is None else _report(reader, commit, removed, sources)


def _read_from(reader: CommitReader, identities: Collection[bytes]) -> tuple[str, ...]:
    """Return the files, data sets and corpora that training read parts of text from, if the network has an index.

    Text that was given in memory, or by standard input, has no place that another process can read.
    """
    origins = reader.origins()
    if origins is None:
        return ()
    parts = [part for part, entry in enumerate(reader.ledger()) if entry.identity in identities]
    places = [json.loads(place) for place in map(origins.place, parts) if place is not None]
    named = {str(place.get("corpus", place.get("name", ""))) for place in places}
    return tuple(sorted(filter(is_rereadable, named)))


def _before_removal(store: NetworkStore, reader: CommitReader) -> CommitReader | None:
    """Return the last commit with another ledger, if this one has removed parts of text since; else None."""
    ledger = Counter(reader.ledger())
    for identity, _ in store.commits()[1:]:
        earlier = store.open(identity)
        before = Counter(earlier.ledger())
        if before != ledger:
            return earlier if ledger < before else None
    return None


def _is_removed(removed: DocumentCounts, before: CommitReader, after: CommitReader) -> bool:
    """Return whether a removal has removed these documents and nothing else, and none of them is left."""
    documents = _countable(removed.ledger, {entry.identity for entry in before.ledger()})
    left = Counter(after.ledger())
    return Counter(before.ledger()) == documents + left and not documents <= left


def _has_unused_names(client: Client, reader: CommitReader) -> bool:
    """Return whether the dictionaries of a network have names that no text has."""
    regions = open_regions(client, reader)
    vocabulary = reader.vocabulary()
    return not all(kept.all() for kept in names_in_use(regions, vocabulary, reader))


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
        raise OptionError("documents without a long enough sequence", "text that was trained", "check the inputs")
    missing = sum(entry.identity not in held for entry in wanted)
    partial = sum(entry.identity in held and held[entry.identity] != entry for entry in wanted)
    if missing or partial:
        raise OptionError(
            f"of {len(wanted):,} parts of the documents network {reader.path} holds {missing:,} not at all and "
            f"{partial:,} in part",
            "documents that it was trained on completely",
            "name whole files as they were given to train, with the same tagger",
        )
    return {part for part, entry in enumerate(reader.ledger()) if entry in wanted}


def _countable(documents: Sequence[LedgerEntry], held: Collection[bytes]) -> Counter[LedgerEntry]:
    """Return the parts of documents that a ledger has to hold: bundles leave out those that have no sequences."""
    return Counter(entry for entry in documents if entry.sequences or entry.identity in held)


def _subtract(
    client: Client,
    store: NetworkStore,
    reader: CommitReader,
    removed: DocumentCounts | None,
    parts: set[int],
    *,
    renumber: bool,
) -> str:
    """Subtract documents, or none, from a network and commit; return the identity of the commit."""
    return _prepare(client, reader, removed, parts, renumber=renumber).make(store)


def _prepare(
    client: Client, reader: CommitReader, removed: DocumentCounts | None, parts: set[int], *, renumber: bool
) -> PreparedCommit:
    """Submit what subtracts documents, or none, from a network, and return the commit that is to be made of it."""
    manifest, vocabulary = reader.manifest(), reader.vocabulary()
    numbered = manifest.specification.traits.columns
    origins, sequences = reader.origins(), None
    if origins is not None:
        origins, sequences = origins.without(sorted(parts))
    regions = open_regions(client, reader) if removed is None else subtract_counts(client, reader, removed, sequences)
    if renumber or not numbered:
        renaming = close_gaps(*names_in_use(regions, vocabulary, reader))
        if renumber and numbered and not renaming.is_identity:
            regions, renaming = rename_runs(regions, reader, renaming)
        elif renumber:
            add_up_latest(regions)
        vocabulary = select_names(vocabulary, renaming)
    before = CommitContents(manifest, vocabulary, Ledger(reader.ledger()))
    contents = _contents_without(before, removed, vocabulary, parts, origins)
    return PreparedCommit(reader, regions, regions.snapshot(whole=True), contents)


def _contents_without(
    before: CommitContents,
    removed: DocumentCounts | None,
    vocabulary: Vocabulary,
    parts: Collection[int],
    origins: Origins | None,
) -> CommitContents:
    """Return the contents of a commit without documents, given the dictionaries and the origins that are left."""
    less = Manifest.new(before.manifest.specification) if removed is None else removed.manifest
    entries = [entry for part, entry in enumerate(before.ledger.entries) if part not in parts]
    counts = counts_without(before.manifest, less, vocabulary)
    return CommitContents(counts, vocabulary, Ledger(entries), rewritten=True, origins=origins)


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
