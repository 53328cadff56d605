"""Keep what a training could not commit, and add it to what another process has committed meanwhile.

Two processes train the same network when one of them has lost its lease, as by a cut link, and the other has taken
it. What the first one has counted since its last commit is written to a network of its own beside the network, which
needs no right to write there, and is then added to the last commit: exactly, because a network is a sum over its text.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distributed import Client, Future

from giaann_dask.algebra.addition import Addend, sum_dictionaries, sum_origins
from giaann_dask.algebra.differences import subtract
from giaann_dask.algebra.parts import add_parts, placement_for, submit_parts, write_network
from giaann_dask.algebra.removal import counts_without
from giaann_dask.cluster import wait_all
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.errors import GiaannError, StoreConflictError
from giaann_dask.events import Observer, ignore
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.locking import WriteLock, locked_within
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import place_beside, remove_place
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.training.committing import CommitContents, commit_regions, load_regions, placement_of
from giaann_dask.training.regions import Regions
from giaann_dask.training.trainer import UncommittedState

_LOG = logging.getLogger(__name__)
# How long the process that has the lease is waited for: as long as one that was killed has it, and a little more.
WAIT_S = 90.0


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
            raise _refused(kept, reason)
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


def _refused(kept: _Kept, reason: str) -> StoreConflictError:
    return StoreConflictError(f"{reason}, so that its sum with the commit after {kept.before.commit} is no training")


def _keep(client: Client, uncommitted: UncommittedState, place: Path, observer: Observer, *, whole: bool) -> _Kept:
    """Write what was trained since the last commit to a network; all of the network where that is no sum."""
    before = uncommitted.before
    old, contents = before.manifest(), uncommitted.contents
    manifest, entries = contents.manifest, contents.ledger.entries
    vocabulary = contents.vocabulary.truncated(manifest.concepts, manifest.features, manifest.sequences - 1)
    placement = placement_of(uncommitted.regions, uncommitted.snapshot)
    origins, numbers = contents.origins, None
    parts: dict[int, list[Future]] = defaultdict(list)
    for run in uncommitted.regions.with_stored(uncommitted.snapshot).references():
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
