"""Add networks that were trained apart: their sum equals one training on all their text.

The runs of all networks are read and merged region by region by the workers of a cluster. Names that a later network
adds are numbered after those of the earlier ones, as if its text had been read after theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from distributed import Client, Future

from giaann_dask.algebra.parts import (
    add_parts,
    placement_for,
    require_same_index,
    require_same_rules,
    require_sum,
    submit_parts,
    write_network,
)
from giaann_dask.cluster import attempt
from giaann_dask.errors import OptionError, parameter
from giaann_dask.events import Observer, ignore
from giaann_dask.runs.postings import SequenceNumbers
from giaann_dask.runs.renaming import Renaming, append_names
from giaann_dask.store.network_store import CommitReader
from giaann_dask.store.origins import Origins
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.training.committing import Progress
from giaann_dask.training.regions import Regions

Overlap: TypeAlias = Literal["refuse", "once"]
OVERLAPS = get_args(Overlap)


@attempt()
def add_networks(
    client: Client,
    readers: Sequence[CommitReader],
    out: Path,
    overlap: Overlap = "refuse",
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
    overlap : {"refuse", "once"}
        What to do where networks hold the same text: refuse, or leave out a network all of whose text the earlier
        ones hold.
    observer : callable, optional
        Notified of every region that has been added.

    Raises
    ------
    OptionError
        If there are not two networks, or two hold the same text.
    SpecificationError
        If the networks differ in their rules, or depend on the order of text.
    StoreExistsError
        If there is a network at the path already.
    StoreWriteError, StoreUnsharedError
        If it cannot be written, or a worker cannot access it.
    """
    if len(readers) < 2:
        raise OptionError(f"{len(readers)} networks to add", "two or more", "name at least two networks")
    if overlap not in OVERLAPS:
        raise OptionError(f"{parameter('overlap')} is {overlap!r}", " or ".join(OVERLAPS), "use one of these")
    for reader in readers:
        require_sum(reader)
        require_same_rules(readers[0], reader)
        require_same_index(readers[0], reader)
    added = _without_overlap(readers, overlap)
    first = added[0]
    progress, renamings = sum_dictionaries(added)
    origins, numbers = _sum_origins(added)
    progress = replace(progress, origins=origins)

    def submit(regions: Regions) -> dict[int, Future]:
        parts: dict[int, list[Future]] = defaultdict(list)
        for reader, renaming, sequences in zip(added, renamings, numbers, strict=True):
            for region, futures in submit_parts(client, reader, first.placement(), renaming, sequences).items():
                parts[region].extend(futures)
        return add_parts(regions, parts)

    placement = placement_for(first, len(progress.vocabulary.concepts))
    return write_network(client, out, first, placement, progress, submit, observer)


def _without_overlap(readers: Sequence[CommitReader], overlap: Overlap) -> list[CommitReader]:
    """Return the networks to add; raise an error where two hold the same text and that cannot be left out."""
    added: list[CommitReader] = []
    known: dict[bytes, LedgerEntry] = {}
    for reader in readers:
        entries = {entry.identity: entry for entry in reader.ledger()}
        both = entries.keys() & known.keys()
        whole = len(both) == len(entries) and all(known[name] == entries[name] for name in both)
        if both and overlap == "refuse":
            raise OptionError(
                f"network {reader.path} holds {len(both):,} parts of text that an earlier one holds too",
                "networks of different text",
                f"set {parameter('overlap')} to once to count text of a network once that others hold completely",
            )
        if both and not whole:
            raise OptionError(
                f"{len(both):,} of {len(entries):,} parts of text of network {reader.path} are in earlier ones, too",
                "networks that share all of the text of one, or none",
                "forget the shared text on a branch of one of them, and add that branch (NETWORK@BRANCH)",
            )
        if not both or not entries:
            added.append(reader)
            known |= entries
    return added


def sum_dictionaries(readers: Sequence[CommitReader]) -> tuple[Progress, list[Renaming | None]]:
    """Return dictionaries, counts and ledger of a sum, and the new identifiers of each network's names."""
    whole, renamings = readers[0].vocabulary(), list[Renaming | None]([None])
    manifest, entries = readers[0].manifest(), readers[0].ledger()
    for reader in readers[1:]:
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
        entries = [*entries, *reader.ledger()]
        # Keys of profile best are hashes of words.
        renamings.append(renaming if other.specification.has_columns else None)
    manifest = replace(manifest, concepts=len(whole.concepts), features=len(whole.features))
    return Progress(manifest, whole, Ledger(entries)), renamings


def _sum_origins(readers: Sequence[CommitReader]) -> tuple[Origins | None, list[SequenceNumbers | None]]:
    """Return the origins of a sum, and the new numbers of each network's sequences; none without an index."""
    whole, numbers, parts = readers[0].origins(), list[SequenceNumbers | None]([None]), len(readers[0].ledger())
    for reader in readers[1:]:
        more = len(reader.ledger())
        whole, shifted = sum_origins(whole, reader.origins(), range(parts, parts + more))
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
