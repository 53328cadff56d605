"""Read the stored delimiter flags of a commit, change them by a prompt's words, and attach auxiliary source neurons.

Flags decide how a step predicts (`giaann_dask.models.columns.state.session.FlagTable`).

Features that connect to similar sets of neurons are found by MinHash. A signature has the least hash of a feature's
neighbours in each of 64 parts of the hashes (one-permutation min-hashing, Li, Owen and Zhang 2012). The minimum over
all regions is that of the network, so regions can be read in any order and any number of times. The share of
neighbours that two features have in common, of all that they have, is estimated by the share of equal parts. Only
features that agree in three consecutive parts are compared (banding), so that of those which share half of their
neighbours about nine in ten are found. `giaann_dask.text.attachments` uses similar features in inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import merge_region, open_region, region_places, submit_by_region
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import NEURON_MASK, Integers, unpack_neuron
from giaann_dask.lazy import jit
from giaann_dask.models.columns.state.inference_options import POOLED
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.models.columns.state.word_rows import WordPairs, WordRows, pool_region
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.run import Run, readable
from giaann_dask.spec import BRANCH_BITS
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.attachments import NEIGHBOURS, attach
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future


@dataclass(frozen=True, slots=True, eq=False)
class FlagChange:
    """Difference of an expanded vocabulary's flags from those of a commit.

    Attributes
    ----------
    features : int
        Features of the commit's saved dictionaries.
    delimiter : ndarray
        Delimiter flag of each feature added since; bool.
    changed : ndarray
        Features whose probable flag has been set since; int64.
    since : ndarray
        Sequence that set each of them; int64.
    delimited, delimited_since : ndarray
        The same of delimiter flags that can be set later than at the first occurrence; int64.
    """

    features: int
    delimiter: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.int64]
    since: npt.NDArray[np.int64]
    delimited: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    delimited_since: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def between(
        cls, base: FlagTable, vocabulary: Vocabulary, features: npt.NDArray[np.integer] | None = None
    ) -> FlagChange:
        """Return the difference of a vocabulary from the flags of the saved one.

        Parameters
        ----------
        base : FlagTable
            Saved flags.
        vocabulary : Vocabulary
            One that has grown from the saved one.
        features : ndarray of int, optional
            Those by which it has, when it is known: only their flags are looked at.
        """
        known = len(base.probable_since)
        used = np.arange(len(vocabulary.features)) if features is None else np.unique(features).astype(np.int64)
        since = np.array([vocabulary.probable_since[f] for f in used.tolist()], np.int64)
        before = np.where(used < known, base.probable_since[np.minimum(used, known - 1)], -1)
        added = np.array(vocabulary.delimiter[known:], np.bool_)
        if vocabulary.delimiter_since is None or base.delimiter_since is None:
            return cls(known, added, used[since != before], since[since != before])
        # Where delimiter flags can be set later, all features are known from the beginning.
        later = np.array([vocabulary.delimiter_since[f] for f in used.tolist()], np.int64)
        new = later != base.delimiter_since[used]
        return cls(known, added, used[since != before], since[since != before], used[new], later[new])


def open_flags(
    path: str,
    commit: str,
    tables: tuple[str, ...] = (),
    signatures: Sequence[MinHashes] = (),
    pooled: Sequence[WordPairs] = (),
) -> FlagTable:
    """Read the stored flags from which inference starts, as a task; see `with_tables`."""
    reader = open_commit(path, commit)
    vocabulary = reader.saved_vocabulary()
    flags = flags_of(vocabulary, reader.manifest().specification.is_order_free)
    return with_tables(flags, vocabulary, tables, signatures, pooled)


def flags_of(vocabulary: Vocabulary, by_name: bool = False) -> FlagTable:
    """Return the flags that a vocabulary has stored, and whether equally active neurons are in the order of names."""
    later = vocabulary.delimiter_since
    return FlagTable(
        np.array(vocabulary.delimiter, np.bool_),
        np.array(vocabulary.probable_since, np.int64),
        None if later is None else np.array(later, np.int64),
        order=NameOrder.of(vocabulary) if by_name else NameOrder(),
    )


def changed_flags(base: FlagTable, change: FlagChange) -> FlagTable:
    """Return the stored flags with a change applied."""
    since = np.concatenate([base.probable_since, np.full(len(change.delimiter), -1, np.int64)])
    since[change.changed] = change.since
    delimiter = np.concatenate([base.delimiter, change.delimiter])
    if base.delimiter_since is None:
        return replace(base, delimiter=delimiter, probable_since=since)
    later = base.delimiter_since.copy()
    later[change.delimited] = change.delimited_since
    return replace(base, delimiter=delimiter, probable_since=since, delimiter_since=later)


def submit_flags(client: Client, reader: CommitReader, tables: tuple[str, ...] = (), **where: Any) -> Future:
    """Submit the reading of the stored flags, with what rules of inference ask for (`with_tables`).

    Further arguments are those of `Client.submit` that say where tasks run.
    """
    signed: list[Future] = []
    pooled: list[Future] = []
    if NEIGHBOURS in tables:
        signed = submit_by_region(client, reader, minhash_runs, "minhash_region", **where)
    if POOLED in tables:
        last = reader.manifest().specification.last_segment
        pooled = submit_by_region(client, reader, partial(pool_runs, last), "pool_region", **where)
    place = (str(reader.path), reader.commit, tables)
    return client.submit(open_flags, *place, signed, pooled, key=task_key("open_flags", *place), **where)


def minhash_runs(*runs: PackedRegionRun) -> MinHashes:
    """Return the MinHash signatures of the features' neighbours in the runs of a region, as a task."""
    return minhash_neighbours(merge_region(*runs))


def pool_runs(last_segment: int, *runs: PackedRegionRun) -> WordPairs:
    """Return the pooled connections of the runs of a region, as a task."""
    return pool_region(merge_region(*runs), last_segment)


def with_tables(
    flags: FlagTable,
    vocabulary: Vocabulary,
    tables: tuple[str, ...],
    signatures: Sequence[MinHashes] = (),
    pooled: Sequence[WordPairs] = (),
) -> FlagTable:
    """Return flags with what rules of inference ask for: auxiliary source neurons of some kinds, or pooled words.

    The last arguments are what tasks have found in all regions.
    """
    kinds = tuple(kind for kind in tables if kind != POOLED)
    if kinds:
        alike = similar_by_neighbours(merge_minhashes(signatures))
        subwords = vocabulary.delimiter_since is not None
        flags = replace(flags, auxiliary=attach(vocabulary.features, kinds, subwords=subwords, neighbours=alike))
    return replace(flags, pooled=WordRows.of(pooled)) if POOLED in tables else flags


def open_flags_with(reader: CommitReader, flags: FlagTable, tables: tuple[str, ...]) -> FlagTable:
    """Return flags with what rules of inference ask for, computed in this process."""
    last, signed, pooled = reader.manifest().specification.last_segment, list[MinHashes](), list[WordPairs]()
    for _, place in region_places(reader) if {NEIGHBOURS, POOLED} & {*tables} else ():
        run = open_region(*place)
        if NEIGHBOURS in tables:
            signed.append(minhash_neighbours(run))
        if POOLED in tables:
            pooled.append(pool_region(run, last))
    return with_tables(flags, reader.saved_vocabulary(), tables, signed, pooled)


Hashes = npt.NDArray[np.uint64]

PARTS = 64
LEAST_SHARE = 0.5
# Features with fewer filled parts have too few neighbours for an estimate.
LEAST_FILLED = 8
_BAND = 3
# What more features than these have in common says little; those that are alike agree elsewhere, too.
_MOST_TOGETHER = 256
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class MinHashes:
    """MinHashes of the neighbours of features.

    Attributes
    ----------
    feature : ndarray
        Features that have connections, ascending, without 0, the prime concept neuron; int64.
    least : ndarray
        Least hash in every part, the largest number where there is none; uint64, shape ``(features, PARTS)``.
    """

    feature: Integers
    least: Hashes


def minhash_neighbours(run: Run) -> MinHashes:
    """Return the signatures of the features that are sources in a region.

    Parameters
    ----------
    run : Run
        Connections of the region.
    """
    feature = unpack_neuron(run.source)[1]
    known = np.unique(feature[feature > 0])
    least = np.full((len(known), PARTS), _EMPTY, np.uint64)
    row = np.where(feature > 0, np.searchsorted(known, feature), -1)
    _sign(row, readable(run.pointer, np.int64), readable(run.target, np.int64), least)
    return MinHashes(known, least)


def merge_minhashes(parts: Sequence[MinHashes]) -> MinHashes:
    """Return the signatures of several regions together, whatever their order."""
    known = np.unique(np.concatenate([np.zeros(0, np.int64), *(part.feature for part in parts)]))
    least = np.full((len(known), PARTS), _EMPTY, np.uint64)
    for part in parts:
        at = np.searchsorted(known, part.feature)
        least[at] = np.minimum(least[at], part.least)
    return MinHashes(known, least)


def similar_by_neighbours(signatures: MinHashes) -> dict[int, list[int]]:
    """Return for each feature the other features that share at least half of their neighbours with it.

    Parameters
    ----------
    signatures : MinHashes
        Of the whole network.

    Returns
    -------
    dict of int to list of int
        By feature; features without any are left out.
    """
    filled = signatures.least != _EMPTY
    enough = filled.sum(axis=1) >= LEAST_FILLED
    feature, least, filled = signatures.feature[enough], signatures.least[enough], filled[enough]
    found: dict[int, list[int]] = {}
    for one, other in sorted(set(_candidates(least))):
        either = filled[one] | filled[other]
        shared = filled[one] & (least[one] == least[other])
        if shared.sum() >= LEAST_SHARE * either.sum():
            for this, that in ((one, other), (other, one)):
                found.setdefault(int(feature[this]), []).append(int(feature[that]))
    return {each: sorted(found[each]) for each in sorted(found)}


def _candidates(least: Hashes) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows that agree in some band; rows ascend within a pair."""
    for begin in range(0, PARTS - _BAND + 1, _BAND):
        band = least[:, begin : begin + _BAND]
        rows = np.flatnonzero((band != _EMPTY).any(axis=1))
        _, group = np.unique(band[rows], axis=0, return_inverse=True)
        order = np.argsort(group, kind="stable")
        edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if 1 < end - first <= _MOST_TOGETHER:
                yield from combinations(rows[order[first:end]].tolist(), 2)


@jit
def _sign(row: Integers, pointer: Integers, target: Integers, least: Any) -> None:
    """Lower the signature of every row's feature to the hashes of its targets' neurons; rows of -1 have none."""
    for source in range(len(row)):
        if row[source] < 0:
            continue
        for entry in range(pointer[source], pointer[source + 1]):
            key = np.uint64((target[entry] >> BRANCH_BITS) & NEURON_MASK)
            # The finaliser of SplitMix64.
            key *= np.uint64(0x9E3779B97F4A7C15)
            key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            key ^= key >> np.uint64(31)
            part = np.int64(key >> np.uint64(58))
            least[row[source], part] = min(least[row[source], part], key & np.uint64(0x03FFFFFFFFFFFFFF))
