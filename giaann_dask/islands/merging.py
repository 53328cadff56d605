"""Verify bundles and add their increments to a network, a commit for each bundle.

All bundles are verified before the first is added, so that one that fails changes nothing. Each is then added as new
runs of the regions, as a round of training is: the cost does not depend on the size of the network. What a network
holds already is known from its ledger, so that adding again, also after a kill, adds what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client, Future

from giaann_dask.algebra.algebra_options import OVERLAPS, Overlap
from giaann_dask.algebra.parts import add_parts, divide_parts, placement_for, submit_parts
from giaann_dask.algebra.renumbering import used_names
from giaann_dask.cluster import attempt, result, results, send, task_key, wait_all
from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.errors import BundleError, GiaannError, OptionError, StrengthOverflowError, require_one_of
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.islands.auditing import AuditOptions, audit_bundle
from giaann_dask.islands.bundle import Bundle, BundleGroup, open_bundle
from giaann_dask.islands.definition import Island, append_words
from giaann_dask.islands.packing import require_member, some_ahead
from giaann_dask.keys import Integers, word_key, word_keys
from giaann_dask.models import totals_of
from giaann_dask.models.totals import LARGEST_STRENGTH, GroupCounts
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.renaming import Renaming, find_names
from giaann_dask.runs.summing import sum_in_blocks
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.committing import CommitContents, commit_regions, load_regions
from giaann_dask.training.region_budgets import BudgetPolicy
from giaann_dask.training.regions import Regions
from giaann_dask.training.training_options import TrainingOptions

_NONE: Integers = np.zeros(0, np.int64)
# Sequences of a round of training, by which ranks of runs are counted.
_ROUND = 8192
# Tokens of groups that are divided among the regions and added up as one round.
_TOGETHER = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """Result of merging a bundle.

    Attributes
    ----------
    bundle : str
        The file.
    identity : str
        SHA-256 of its manifest.
    signer : str
        Name of the key.
    sequences, tokens : int
        What was added.
    groups, merged : int
        Groups of the bundle, and those that were added; none if the network holds all of it already.
    audited : tuple of int
        Groups of the sampled sequences, which were counted again.
    audit_seed : int or None
        Seed of the sample.
    commit : str
        Commit of the network that holds it; empty if nothing was added.
    """

    bundle: str
    identity: str
    signer: str
    sequences: int
    tokens: int
    groups: int
    merged: int
    audited: tuple[int, ...] = ()
    audit_seed: int | None = None
    commit: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**vars(self), "audited": list(self.audited)}


class Checked(NamedTuple):
    """Increments that have been checked.

    Attributes
    ----------
    fault : str
        What is wrong with them, if anything.
    names : tuple of (ndarray, ndarray)
        Concepts and features, or keys of words, that they use; int64 each.
    largest : int
        Largest strength, of several groups the sum of their largest ones.
    """

    fault: str = ""
    names: tuple[Integers, Integers] = (_NONE, _NONE)
    largest: int = 0


class _Verified(NamedTuple):
    """A bundle that may be added: its groups that are new, what was found of these, and which were audited."""

    bundle: Bundle
    groups: list[int]
    checked: Checked
    audited: list[int]


@attempt()
def merge_bundles(
    client: Client,
    store: NetworkStore,
    island: Island,
    paths: Sequence[Path],
    audit: AuditOptions,
    overlap: Overlap = "refuse",
    observer: Observer = ignore,
) -> list[MergeReport]:
    """Verify bundles, and add those that a network does not hold yet, a commit for each.

    Parameters
    ----------
    client : Client
        Where they are verified and added.
    store : NetworkStore
        The network.
    island : Island
        Whose bundles they are.
    paths : sequence of Path
        The bundles, in any order.
    audit : AuditOptions
        How many sequences of each are drawn, to count their groups again.
    overlap : {"refuse", "once"}
        What to do with a bundle of which the network, or an earlier bundle, holds a part: refuse it, or add its other
        groups.
    observer : callable, optional
        Notified of every group that has been verified, and of every bundle that has been added.

    Returns
    -------
    list of MergeReport
        One for each bundle, in order.

    Raises
    ------
    BundleError
        If a bundle is refused; nothing has been changed.
    StrengthOverflowError
        If all together have more names, or larger strengths, than a network can have; nothing has been changed.
    OptionError
        If the network holds a part of a bundle, or text for the audit is missing; nothing has been changed.
    SpecificationError
        If the network does not count as the island says.
    """
    require_one_of("overlap", overlap, OVERLAPS)
    with store.lock() as held:
        SharedPlace(client, held).require()
        reader = store.open(store.head())
        require_member(reader, island)
        known = {entry.identity: entry for entry in reader.ledger()}
        verified = []
        for path in paths:
            bundle = open_bundle(path, island)
            groups = _new_groups(bundle, known, overlap)
            bundle.require_intact(set(range(len(bundle.groups))) - set(groups))
            checked = _verify(client, bundle, island, groups, observer)
            verified.append(_Verified(bundle, groups, checked, audit_bundle(client, bundle, island, groups, audit)))
            known |= {entry.identity: entry for number in groups for entry in bundle.groups[number].entries}
        new = [each for each in verified if each.groups]
        _require_capacity(client, reader, island, new)
        commits = _add_bundles(client, store, island, new, audit.seed, observer)
        # A bundle that is named twice is added once.
        return [_report(each, audit, commits[each.bundle.identity] if each.groups else "") for each in verified]


def _report(verified: _Verified, audit: AuditOptions, commit: str) -> MergeReport:
    bundle = verified.bundle
    chosen = [bundle.groups[number] for number in verified.groups]
    return MergeReport(
        bundle=str(bundle.path),
        identity=bundle.identity,
        signer=bundle.signer,
        sequences=sum(group.counts.sequences for group in chosen),
        tokens=sum(group.counts.tokens for group in chosen),
        groups=len(bundle.groups),
        merged=len(chosen),
        audited=tuple(verified.audited),
        audit_seed=audit.seed if verified.audited else None,
        commit=commit,
    )


def _new_groups(bundle: Bundle, known: dict[bytes, LedgerEntry], overlap: Overlap) -> list[int]:
    """Return the groups that a network does not hold: all, none, or some where that is allowed."""
    held = [sum(entry.identity in known for entry in group.entries) for group in bundle.groups]
    new = [number for number, parts in enumerate(held) if not parts]
    total = len(bundle.entries)
    other = sum(known.get(entry.identity, entry).sequences != entry.sequences for entry in bundle.entries)
    if other:
        raise BundleError(
            f"{bundle.path} has {other:,} parts of which the network holds another number of sequences",
            "text that it holds completely, or not at all",
            "let the network's training of this text end first",
        )
    if not new and sum(held) == total:
        return []
    if not sum(held):
        return new
    if overlap == "once" and all(
        parts in (0, len(group.entries)) for parts, group in zip(held, bundle.groups, strict=True)
    ):
        return new
    raise OptionError(
        f"{bundle.path} has {sum(held):,} of {total:,} parts of text that the network or an earlier bundle holds",
        "text that it does not hold, or a bundle that it holds completely",
        "set overlap to once to add the groups that it does not hold, where groups are not divided",
        names=("overlap",),
    )


def _verify(client: Client, bundle: Bundle, island: Island, groups: Sequence[int], observer: Observer) -> Checked:
    """Check the increments of groups, and return what all of them use."""
    sizes = (len(island.concepts) + len(bundle.concepts), 1 + len(island.features) + len(bundle.features))
    found: list[Checked] = [Checked()]
    submitted = ((number, _submit_check(client, bundle, number, island.specification, sizes)) for number in groups)
    for number, checking in some_ahead(client, submitted):
        checked: Checked = result(checking)
        if checked.fault:
            raise BundleError(
                f"group {number} of {bundle.path} has {checked.fault}", "what giaann-dask island pack writes"
            )
        found.append(checked)
        observer(StageAdvanced("verify", len(found) - 1, len(groups), "groups"))
    columns, features = (np.unique(np.concatenate(part)) for part in zip(*(each.names for each in found), strict=True))
    if not island.specification.traits.columns:
        _check_words(bundle, island, features, whole=len(groups) == len(bundle.groups))
    return Checked("", (columns, features), sum(each.largest for each in found))


def _submit_check(
    client: Client, bundle: Bundle, number: int, specification: Specification, sizes: tuple[int, int]
) -> Future:
    run = _send(client, bundle, number)
    key = task_key("check", bundle.identity, number, run.key)
    return client.submit(check_increments, run, bundle.groups[number].counts, specification, sizes, key=key)


def _send(client: Client, bundle: Bundle, number: int) -> Future:
    """Send the increments of a group to a worker."""
    return send(client, task_key("increments", bundle.identity, number), bundle.run(number))


def check_increments(
    packed: PackedRegionRun, counts: GroupCounts, specification: Specification, sizes: tuple[int, int]
) -> Checked:
    """Check the increments of a group (a task)."""
    try:
        run = tasks.decode(packed)
        totals_of(specification).check_run(run, counts, sizes)
        largest = max(int(table.strength.max(initial=0)) for table in (run.connections, run.neurons))
        return Checked("", used_names(specification, run), largest)
    except GiaannError as error:
        return Checked(f"{error.received}, not {error.expected}")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        return Checked(f"increments that do not decode ({type(error).__name__})")


def _check_words(bundle: Bundle, island: Island, used: Integers, *, whole: bool) -> None:
    """Check that words that groups of a model of words count have names, and all groups every new name."""
    new = word_keys(bundle.features)
    known = np.concatenate([new, word_keys(island.features)])
    if not np.isin(used, known).all() or (whole and not np.isin(new, used).all()):
        raise BundleError(f"{bundle.path} names other words than it counts", "each counted word once")


def _require_capacity(client: Client, reader: CommitReader, island: Island, verified: Sequence[_Verified]) -> None:
    """Check that a network can hold the names and strengths of all bundles together.

    Raises
    ------
    StrengthOverflowError
        If it cannot.
    """
    if not verified:
        return
    vocabulary = reader.vocabulary()
    for each in verified:
        _append_names(vocabulary, each, island)
    counts = [each.bundle.groups[number].counts for each in verified for number in each.groups]
    tokens = reader.manifest().tokens + sum(each.tokens for each in counts)
    if totals_of(island.specification).bound(tokens) <= LARGEST_STRENGTH:
        return
    runs = submit_parts(client, reader, reader.placement())
    held = [client.submit(largest_strength, *each, key=task_key("largest", [run.key for run in each]))
            for each in runs.values()]  # fmt: skip
    largest = max(results(held), default=0) + sum(each.checked.largest for each in verified)
    if largest > LARGEST_STRENGTH:
        raise StrengthOverflowError(
            f"bundles and network {reader.path} may together have strengths of {largest:,}",
            f"sums up to {LARGEST_STRENGTH:,}",
            "merge fewer bundles, and audit those with the largest counts",
        )


def largest_strength(*runs: PackedRegionRun) -> int:
    """Return the largest strength in the sum of some runs of a region (a task)."""
    largest = 0
    for tables in zip(*(run[:2] for run in runs), strict=True):
        for block in sum_in_blocks(tables):
            largest = max(largest, int(run_of_blocks([block]).strength.max(initial=0)))
    return largest


def _append_names(vocabulary: Vocabulary, verified: _Verified, island: Island) -> Renaming | None:
    """Append the names that a bundle uses to dictionaries, and return their new identifiers."""
    bundle, (columns, used) = verified.bundle, verified.checked.names
    concepts, features = (*island.concepts, *bundle.concepts), (*island.features, *bundle.features)
    if not island.specification.traits.columns:
        keys = set(used.tolist())
        append_words(vocabulary, (), [word for word in features if word_key(word) in keys], island)
        return None
    used = used[used > 0]
    names = [concepts[at] for at in columns.tolist()], [features[at - 1] for at in used.tolist()]
    append_words(vocabulary, *names, island)
    return find_names(island.vocabulary(bundle.concepts, bundle.features), vocabulary)


def _add_bundles(
    client: Client, store: NetworkStore, island: Island, bundles: Sequence[_Verified], seed: int, observer: Observer
) -> dict[str, str]:
    """Add verified bundles to a network that this process has locked; return the identity of each one's commit."""
    reader = store.open(store.head())
    commits: dict[str, str] = {}
    # A merge that was killed between two commits has not counted distinct connections.
    if not bundles and reader.manifest().exact:
        return commits
    regions = Regions(client, reader.placement(), reader.manifest().rounds)
    load_regions(reader, regions)
    policy = BudgetPolicy(regions, reader.manifest().specification, TrainingOptions())
    for done, each in enumerate(bundles, 1):
        last = done == len(bundles)
        contents = _add_bundle(client, regions, reader, island, each, seed)
        if last:
            policy.split_all()
        snapshot = regions.snapshot(whole=True)
        commits[each.bundle.identity] = commit_regions(store, regions, snapshot, contents, last=last, before=reader)
        reader = store.open(commits[each.bundle.identity])
        observer(StageAdvanced("merge", done, len(bundles), "bundles"))
    if not bundles:
        contents = CommitContents(reader.manifest(), reader.vocabulary(), Ledger(reader.ledger()))
        commit_regions(store, regions, regions.snapshot(whole=True), contents, last=True)
    return commits


def _add_bundle(
    client: Client, regions: Regions, reader: CommitReader, island: Island, verified: _Verified, seed: int
) -> CommitContents:
    """Add a bundle to regions, and return what else its commit holds."""
    bundle, groups = verified.bundle, [verified.bundle.groups[number] for number in verified.groups]
    vocabulary = reader.vocabulary()
    renaming = _append_names(vocabulary, verified, island)
    placement = placement_for(reader, len(vocabulary.concepts))
    sequences = sum(group.counts.sequences for group in groups)
    rank = (sequences // _ROUND).bit_length()
    for numbers in _batches(bundle, verified.groups):
        runs = [_send(client, bundle, number) for number in numbers]
        parts = divide_parts(regions.tasks.submitter, runs, placement, renaming)
        sums = add_parts(regions, parts)
        # One round at a time: what is divided among the regions is in memory until it is added up.
        wait_all(list(sums.values()))
        regions.add_round(sums, rank)
    if reader.manifest().specification.placement != "hash":
        regions.place_columns(replace(placement, splits=()))
    manifest = _counts_with(reader.manifest(), groups, vocabulary)
    vocabulary.sequences = manifest.sequences
    entries = [entry for group in groups for entry in group.entries]
    note = f"bundle {bundle.identity[:16]} of {bundle.signer}"
    if verified.audited:
        note += f", {len(verified.audited)} of {len(groups)} groups audited (seed {seed})"
    return CommitContents(manifest, vocabulary, Ledger([*reader.ledger(), *entries]), note=note)


def _batches(bundle: Bundle, groups: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups by bytes, so many that they are a round."""
    batch: list[int] = []
    for number in groups:
        batch.append(number)
        if sum(bundle.groups[each].counts.tokens for each in batch) > _TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


def _counts_with(manifest: Manifest, groups: Sequence[BundleGroup], vocabulary: Vocabulary) -> Manifest:
    """Return the counts of a network with those of groups, and the state of its dictionaries."""
    counts = [group.counts for group in groups]
    by_status = tuple(map(sum, zip(manifest.by_status, *(each.by_status for each in counts), strict=True)))
    concepts, features = len(vocabulary.concepts), len(vocabulary.features)
    saved: dict[str, Any] = {}
    if sum(each.by_status[0] for each in counts):
        saved = {"saved_concepts": concepts, "saved_features": features, "last_trained": sum(by_status) - 1}
    return replace(
        manifest,
        by_status=by_status,
        tokens=manifest.tokens + sum(each.tokens for each in counts),
        concepts=concepts,
        features=features,
        **saved,
    )
