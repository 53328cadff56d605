"""Read the stored delimiter flags of a commit, change them by a prompt's words, and attach auxiliary source neurons.

Flags decide how a step predicts (`giaann_dask.models.columns.state.session.FlagTable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import merge_region, open_region, region_places, submit_by_region
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.runs.minhash import MinHashes, merge_minhashes, minhash_neighbours, similar_by_neighbours
from giaann_dask.runs.packing import PackedRegionRun
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
    path: str, commit: str, auxiliary: tuple[str, ...] = (), signatures: Sequence[MinHashes] = ()
) -> FlagTable:
    """Read the stored flags from which inference starts, as a task; see `with_auxiliary`."""
    reader = open_commit(path, commit)
    vocabulary = reader.saved_vocabulary()
    flags = flags_of(vocabulary, reader.manifest().specification.is_order_free)
    return with_auxiliary(flags, vocabulary, auxiliary, signatures) if auxiliary else flags


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


def submit_flags(client: Client, reader: CommitReader, auxiliary: tuple[str, ...] = (), **where: Any) -> Future:
    """Submit the reading of the stored flags, with the auxiliary source neurons of these kinds.

    Further arguments are those of `Client.submit` that say where tasks run.
    """
    signs = NEIGHBOURS in auxiliary
    signed = submit_by_region(client, reader, minhash_runs, "minhash_region", **where) if signs else []
    place = (str(reader.path), reader.commit, auxiliary)
    return client.submit(open_flags, *place, signed, key=task_key("open_flags", *place), **where)


def minhash_runs(*runs: PackedRegionRun) -> MinHashes:
    """Return the MinHash signatures of the features' neighbours in the runs of a region, as a task."""
    return minhash_neighbours(merge_region(*runs))


def with_auxiliary(
    flags: FlagTable, vocabulary: Vocabulary, auxiliary: tuple[str, ...], signatures: Sequence[MinHashes] = ()
) -> FlagTable:
    """Return flags with auxiliary source neurons of these kinds; signatures are those of all regions."""
    alike = similar_by_neighbours(merge_minhashes(signatures))
    subwords = vocabulary.delimiter_since is not None
    return replace(flags, auxiliary=attach(vocabulary.features, auxiliary, subwords=subwords, neighbours=alike))


def open_flags_with(reader: CommitReader, flags: FlagTable, auxiliary: tuple[str, ...]) -> FlagTable:
    """Return flags with auxiliary source neurons of these kinds, computed in this process."""
    regions = region_places(reader) if NEIGHBOURS in auxiliary else ()
    signed = [minhash_neighbours(open_region(*place)) for _, place in regions]
    return with_auxiliary(flags, reader.saved_vocabulary(), auxiliary, signed)
