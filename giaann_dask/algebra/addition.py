"""Add networks that were trained apart, or what a training could not commit: the sum equals one training on all text.

The runs of all networks are read and merged region by region by the workers of a cluster. Names that a later network
adds are numbered after those of the earlier ones, as if its text had been read after theirs. Text that several
networks hold is subtracted again: its counts are those of an earlier commit that holds nothing else, or of the text.

Two processes train the same network when one of them has lost its lease, as by a cut link, and the other has taken
it. What the first one has counted since its last commit is written to a network of its own beside the network, which
needs no right to write there, and is then added to the last commit.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from distributed import Client, Future

from giaann_dask.algebra.algebra_options import OverlapOptions
from giaann_dask.algebra.differences import submit_differences, subtract
from giaann_dask.algebra.parts import (
    add_parts,
    placement_for,
    require_same_index,
    require_same_rules,
    submit_parts,
    write_network,
)
from giaann_dask.algebra.removal import counts_without, train_apart
from giaann_dask.cluster import attempt, wait_all
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.errors import GiaannError, OptionError, StoreConflictError
from giaann_dask.events import Observer, ignore
from giaann_dask.runs.postings import SequenceNumbers
from giaann_dask.runs.renaming import Renaming, append_names, find_names
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.locking import WriteLock, locked_within
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.origins import Origins
from giaann_dask.store.places import place_beside, remove_place, scratch_place
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.training.committing import CommitContents, commit_regions, load_regions, placement_of
from giaann_dask.training.regions import Regions
from giaann_dask.training.trainer import UncommittedState

_LOG = logging.getLogger(__name__)
# How long the process that has the lease is waited for: as long as one that was killed has it, and a little more.
WAIT_S = 90.0


class Addend(NamedTuple):
    """Network to add to earlier ones.

    Attributes
    ----------
    reader : CommitReader
        The network.
    shared : CommitReader or None
        Sum over the text that earlier ones hold, too.
    held : frozenset of int
        Places of that text in its ledger.
    """

    reader: CommitReader
    shared: CommitReader | None = None
    held: frozenset[int] = frozenset()


@attempt()
def add_networks(
    client: Client,
    readers: Sequence[CommitReader],
    out: Path,
    options: OverlapOptions,
    observer: Observer = ignore,
) -> str:
    """Write the sum of networks to a new network, and return the identity of its commit.

    Parameters
    ----------
    client : Client
        Where runs are added.
    readers : sequence of CommitReader
        Two or more networks, of one specification but for regions and placement, which are those of the first one.
    out : Path
        Folder of the sum, absolute.
    options : OverlapOptions
        What to do where networks hold the same text.
    observer : callable, optional
        Notified of every region that has been added.

    Raises
    ------
    OptionError
        If there are not two networks, or two hold the same text, and the sum over it is not known.
    SpecificationError
        If the networks differ in their rules, or depend on the order of text.
    StoreDamagedError
        If what is subtracted was not added.
    StoreExistsError
        If there is a network at the path already.
    StoreWriteError, StoreUnsharedError
        If it cannot be written, or a worker cannot access it.
    """
    if len(readers) < 2:
        raise OptionError(f"{len(readers)} networks to add", "two or more", "name at least two networks")
    for reader in readers:
        reader.manifest().require_sum(reader.path)
        require_same_rules(readers[0], reader)
        require_same_index(readers[0], reader)
    with _addends(client, readers, out, options, observer) as added:
        first = added[0].reader
        contents, renamings = sum_dictionaries(added)
        origins, numbers = _sum_origins(added)
        contents = replace(contents, origins=origins)

        def submit(regions: Regions) -> dict[int, Future]:
            wholes: dict[int, list[Future]] = defaultdict(list)
            parts: dict[int, list[Future]] = defaultdict(list)
            for each, renaming, sequences in zip(added, renamings, numbers, strict=True):
                _collect(wholes, submit_parts(client, each.reader, placement, renaming, sequences))
                if each.shared is not None:
                    names = None if renaming is None else find_names(each.shared.vocabulary(), contents.vocabulary)
                    _collect(parts, submit_parts(client, each.shared, placement, names))
            return submit_differences(regions, wholes, parts) if parts else add_parts(regions, wholes)

        placement = placement_for(first, len(contents.vocabulary.concepts))
        return write_network(client, out, first, placement, contents, submit, observer)


def _collect(whole: dict[int, list[Future]], parts: Mapping[int, Sequence[Future]]) -> None:
    for region, futures in parts.items():
        whole[region].extend(futures)


@contextmanager
def _addends(
    client: Client, readers: Sequence[CommitReader], out: Path, options: OverlapOptions, observer: Observer
) -> Iterator[list[Addend]]:
    """Provide the networks to add; raise an error where two hold the same text and that cannot be left out."""
    with ExitStack() as stack:
        given: CommitReader | None = None
        if options.inputs and options.sources is not None:
            place = stack.enter_context(scratch_place(out, "add"))
            given = train_apart(client, readers[0], place, options.inputs, options.sources, observer)
        added: list[Addend] = []
        known: dict[bytes, LedgerEntry] = {}
        for reader in readers:
            ledger = reader.ledger()
            both = [entry for entry in ledger if entry.identity in known]
            if both and options.overlap == "refuse":
                raise OptionError(
                    f"{len(both):,} of {len(ledger):,} parts of text of network {reader.path} are in earlier ones, too",
                    "networks of different text",
                    "set overlap to once to count that text once",
                    names=("overlap",),
                )
            if len(both) == len(ledger) and ledger and all(known[entry.identity] == entry for entry in both):
                continue
            held = frozenset(place for place, entry in enumerate(ledger) if entry.identity in known)
            shared = None
            if both:
                _require_complete(reader, both, known)
                shared = _sum_over(both, reader, [*(each.reader for each in added), reader], given)
            added.append(Addend(reader, shared, held))
            known |= {entry.identity: entry for entry in ledger}
        yield added


def _require_complete(reader: CommitReader, both: Sequence[LedgerEntry], known: Mapping[bytes, LedgerEntry]) -> None:
    """Raise an `OptionError` where a network or an earlier one was trained on a part of shared text in part."""
    if partial := sum(not entry.complete or known[entry.identity] != entry for entry in both):
        raise OptionError(
            f"{partial:,} of {len(both):,} parts of text that network {reader.path} shares with earlier ones were "
            "trained in part",
            "shared text that each network was trained on completely",
            "let its training finish first",
        )


def _sum_over(
    both: Sequence[LedgerEntry], reader: CommitReader, readers: Sequence[CommitReader], given: CommitReader | None
) -> CommitReader:
    """Return a commit that holds some text and nothing else: one of the networks' own, or that of the given text."""
    wanted = Counter(both)
    for each in readers:
        store = NetworkStore(each.path)
        for commit in store.log(each.commit):
            found = store.open(commit.identity)
            if Counter(found.ledger()) == wanted:
                return found
    if given is not None and Counter(given.ledger()) == wanted:
        return given
    known = ", not exactly that of texts" if given is not None else ""
    raise OptionError(
        f"{len(both):,} of {len(reader.ledger()):,} parts of text of network {reader.path} are in earlier ones, too"
        f"{known}, and no commit of these holds them alone",
        "networks that share all of the text of one or of a commit, or none",
        "name the text that they share with texts, as it was given to train",
        names=("texts",),
    )


def sum_dictionaries(added: Sequence[Addend]) -> tuple[CommitContents, list[Renaming | None]]:
    """Return dictionaries, counts and ledger of a sum, and the new identifiers of each network's names."""
    first = added[0].reader
    whole, renamings = first.vocabulary(), list[Renaming | None]([None])
    manifest, entries = first.manifest(), first.ledger()
    for reader, shared, held in added[1:]:
        other, vocabulary = reader.manifest(), reader.vocabulary()
        before = (len(whole.concepts), len(whole.features), whole.sequences)
        renaming = append_names(whole, vocabulary)
        if other.trained:
            saved = (renaming.concepts[: other.saved_concepts], renaming.features[: other.saved_features])
            manifest = replace(
                manifest,
                saved_concepts=max([before[0], *(saved[0] + 1).tolist()]),
                saved_features=max([before[1], *(saved[1] + 1).tolist()]),
                last_trained=before[2] + other.last_trained,
            )
        manifest = replace(
            manifest,
            by_status=tuple(a + b for a, b in zip(manifest.by_status, other.by_status, strict=True)),
            tokens=manifest.tokens + other.tokens,
        )
        if shared is not None:
            manifest = counts_without(manifest, shared.manifest(), whole)
        entries = [*entries, *(entry for place, entry in enumerate(reader.ledger()) if place not in held)]
        renamings.append(renaming if other.specification.traits.columns else None)
    manifest = replace(manifest, concepts=len(whole.concepts), features=len(whole.features))
    return CommitContents(manifest, whole, Ledger(entries)), renamings


def _sum_origins(added: Sequence[Addend]) -> tuple[Origins | None, list[SequenceNumbers | None]]:
    """Return the origins of a sum, and the new numbers of each network's sequences; none without an index."""
    first = added[0].reader
    whole, numbers, parts = first.origins(), list[SequenceNumbers | None]([None]), len(first.ledger())
    for reader, _, held in added[1:]:
        more, other, kept = len(reader.ledger()) - len(held), reader.origins(), None
        if other is not None and held:
            other, kept = other.without(sorted(held))
        whole, shifted = sum_origins(whole, other, range(parts, parts + more))
        if kept is not None and shifted is not None:
            begins = np.where(kept.begins < 0, -1, kept.begins + shifted.begins[0])
            shifted = SequenceNumbers(kept.edges, begins)
        numbers.append(shifted)
        parts += more
    return whole, numbers


def sum_origins(
    whole: Origins | None, other: Origins | None, parts: Sequence[int]
) -> tuple[Origins | None, SequenceNumbers | None]:
    """Return the origins of two networks, and the new numbers of the other's sequences; none without an index.

    Parameters
    ----------
    whole, other : Origins or None
        Of both.
    parts : sequence of int
        Where each part of the other is in the ledger of both.
    """
    if whole is None or other is None:
        return whole, None
    edges = np.array([0, other.sequences], np.int64)
    return whole.joined(other, parts), SequenceNumbers(edges, np.array([whole.sequences], np.int64))


@dataclass(frozen=True)
class _Kept:
    """Network of the increments that a training could not commit.

    Attributes
    ----------
    reader : CommitReader
        Of that network.
    before : CommitReader
        Commit that the training had continued.
    continued : dict of int to LedgerEntry
        By number of a part in its ledger, what the commit before held of the part already.
    """

    reader: CommitReader
    before: CommitReader
    continued: dict[int, LedgerEntry]


def rebase(client: Client, uncommitted: UncommittedState, reason: str = "", observer: Observer = ignore) -> str:
    """Commit what a training could not commit on top of the last commit, and return the identity of the new commit.

    Parameters
    ----------
    client : Client
        Whose workers have the runs.
    uncommitted : UncommittedState
        From the training, which has ended.
    reason : str
        Why what was trained is no sum, if it is none.
    observer : callable, optional
        Notified of every region that is written.

    Raises
    ------
    StoreConflictError
        If it is no sum over its text, the other process has counted some of the same text, or does not end in time. It
        names the network in which everything is kept.
    """
    place = place_beside(uncommitted.store.path, "kept")
    kept = _keep(client, uncommitted, place, observer, whole=bool(reason))
    _LOG.warning(
        "network %s was committed to by another process; this one's work is in %s", uncommitted.store.path, place
    )
    before = kept.before.commit
    try:
        if reason:
            raise StoreConflictError(f"{reason}, so its sum with the commit after {before} would not equal a training")
        kept.before.manifest().require_sum(kept.before.path)
        with locked_within(uncommitted.store.path, WAIT_S) as held:
            commit = _add(client, uncommitted.store, held, kept)
    except GiaannError as error:
        raise StoreConflictError(
            f"another process has committed to network {uncommitted.store.path} since commit {before}, "
            f"and what this one has trained since cannot be added: {error.received}",
            "",
            f"its work is kept in the network {place}: run the same command again, which counts the text again where "
            "the other process has not, or add that network when the other process has ended; then remove it",
        ) from error
    remove_place(place)
    _LOG.warning("added it as commit %s", commit)
    return commit


def _keep(client: Client, uncommitted: UncommittedState, place: Path, observer: Observer, *, whole: bool) -> _Kept:
    """Write what was trained since the last commit to a network; all of the network where that is no sum."""
    before = uncommitted.before
    old, contents = before.manifest(), uncommitted.contents
    manifest, entries = contents.manifest, contents.ledger.entries
    vocabulary = contents.vocabulary.truncated(manifest.concepts, manifest.features, manifest.sequences - 1)
    placement = placement_of(uncommitted.regions, uncommitted.snapshot)
    origins, numbers = contents.origins, None
    parts: dict[int, list[Future]] = defaultdict(list)
    for run in uncommitted.regions.pending.with_stored(uncommitted.snapshot).references():
        parts[run.region].append(uncommitted.regions.tasks.alone(run))
    changed = list(range(len(entries)))
    stored = before.ledger()
    difference = old.specification.is_order_free and not whole
    if difference:
        changed = [part for part in changed if part >= len(stored) or entries[part] != stored[part]]
        earlier = before.origins()
        if origins is not None and earlier is not None:
            origins, numbers = origins.since(earlier, changed)
        manifest = counts_without(manifest, old, vocabulary)
    kept = CommitContents(manifest, vocabulary, Ledger([entries[part] for part in changed]), origins=origins)

    def submit(regions: Regions) -> dict[int, Future]:
        if not difference:
            return add_parts(regions, parts)
        gone, sums = submit_parts(client, before, placement), {}
        for region, own in parts.items():
            less = gone.get(region, [])
            key = [[part.key for part in own], [part.key for part in less], numbers]
            sums[region] = regions.tasks.submit("subtract", subtract, len(own), numbers, *own, *less, key_of=key)
        return sums

    write_network(client, place, before, placement, kept, submit, observer)
    store = NetworkStore(place)
    continued = {at: stored[part] for at, part in enumerate(changed) if part < len(stored)}
    return _Kept(store.open(store.head()), before, continued)


def _add(client: Client, store: NetworkStore, held: WriteLock, kept: _Kept) -> str:
    """Add a network to the last commit of another one, whose lock this process has, as a round of training is added."""
    SharedPlace(client, held).require()
    # As it is now; the store may have been opened long ago.
    store = store.reopen()
    store.held = held
    tip = store.open(store.head())
    tip.manifest().require_sum(tip.path)
    ledger, positions = _joined(tip.ledger(), kept)
    contents, renamings = sum_dictionaries([Addend(tip), Addend(kept.reader)])
    origins, numbers = sum_origins(tip.origins(), kept.reader.origins(), positions)
    placement = placement_for(tip, len(contents.vocabulary.concepts))
    regions = Regions(client, tip.placement(), tip.manifest().rounds)
    load_regions(tip, regions)
    sums = add_parts(regions, submit_parts(client, kept.reader, placement, renamings[1], numbers))
    wait_all(list(sums.values()))
    regions.add_round(sums, kept.reader.manifest().rounds.bit_length())
    if tip.manifest().specification.placement != "hash":
        regions.place_columns(replace(placement, splits=()))
    contents = replace(contents, ledger=Ledger(ledger), origins=origins, note="with the work of another process")
    return commit_regions(store, regions, regions.snapshot(whole=True), contents, last=True, before=tip)


def _joined(ledger: Sequence[LedgerEntry], kept: _Kept) -> tuple[list[LedgerEntry], list[int]]:
    """Return a ledger with the parts of another network, and where each of these is in it.

    Raises
    ------
    StoreConflictError
        If a part of them has been counted since both networks were one.
    """
    joined, positions = list(ledger), list[int]()
    added = Counter(entry.identity for entry in ledger) - Counter(entry.identity for entry in kept.before.ledger())
    counted = 0
    for part, entry in enumerate(kept.reader.ledger()):
        before = kept.continued.get(part)
        if before is None:
            counted += added[entry.identity] > 0
            positions.append(len(joined))
            joined.append(entry)
        elif before in joined:
            positions.append(joined.index(before))
            joined[positions[-1]] = entry
        else:
            counted += 1
    if counted:
        raise StoreConflictError(
            f"{counted:,} of {len(kept.reader.ledger()):,} parts of its text were counted by the other process, too"
        )
    return joined, positions
