"""Copy a commit of a network to another store, and verify the copy.

Folders and object stores are supported. What differs is written, every byte is compared and every run of the copy is
decoded; only then does the copy become visible. A copy is a network of its own with commits of its own, one for each
copying. A process that is killed while copying leaves the last complete copy, or what the next one replaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zarr

from giaann_dask.errors import StoreDamagedError, StoreExistsError, StoreMissingError, require_option
from giaann_dask.library_internals import sync
from giaann_dask.object_urls import absolute_place
from giaann_dask.runs.packing import unpack
from giaann_dask.storage import reading, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.icechunk_library import CONCURRENT, icechunk
from giaann_dask.store.locking import locked
from giaann_dask.store.network_store import resolve_reference
from giaann_dask.store.places import StorePlace, answering
from giaann_dask.store.run_io import StoredEntries, write_entries
from giaann_dask.store.unfinished import BRANCH, CLOCKS_DIFFER, is_blank, is_vacant, made_apart, restart

# Where a copy is written and compared before the branch that is read moves to it.
_INCOMING = "incoming"
_ORIGIN = "giaann_copy_of"


@dataclass(frozen=True)
class CopyReport:
    """Cost and content of a copy.

    Attributes
    ----------
    commit, copy : str
        Identity of the commit in the network, and in its copy.
    keys, written : int
        Entries of the store, and those that the copy did not have already.
    nbytes : int
        Bytes of all entries.
    runs, regions, connections : int
        Runs that were decoded in the copy, the regions they belong to, and their connections.
    checksum : str
        BLAKE2b of the names and bytes of all entries.
    """

    commit: str
    copy: str
    keys: int
    written: int
    nbytes: int
    runs: int
    regions: int
    connections: int
    checksum: str

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


@dataclass(frozen=True)
class _BackupEntries:
    """The entries of a store: a digest of each, and their bytes in all."""

    digests: dict[str, bytes]
    nbytes: int

    def checksum(self) -> str:
        """Return one digest of all."""
        whole = hashlib.blake2b(digest_size=16)
        for key in sorted(self.digests):
            whole.update(key.encode() + b"\0" + self.digests[key])
        return whole.hexdigest()


@answering()
def copy_commit(
    source: StorePlace, destination: StorePlace, commit: str | None = None, keep: int | None = None
) -> CopyReport:
    """Copy a commit to another place and compare the copy with it, byte by byte.

    Parameters
    ----------
    source, destination : StorePlace
        A network, and a new place or one that holds earlier copies.
    commit : str, optional
        Identity of the commit, a tag or a branch; the last one by default.
    keep : int, optional
        Forget all but the last so many copies; all are kept by default.

    Returns
    -------
    CopyReport

    Raises
    ------
    StoreMissingError, StoreExistsError, OptionError
        If there is no such commit, or something else at the destination.
    StoreDamagedError
        If the copy differs from the commit or does not decode; then it is not to be seen.
    StoreWriteError, StoreUnreachableError
        If the disk is full, or a bucket does not respond.
    """
    require_option(keep is None or keep >= 1, "keep", keep, "1 or more, as the last copy is always kept")
    original = source.repository()
    if is_blank(original):
        raise StoreMissingError(f"network {source} holds no commit yet", "a network with one", "make it first")
    name = resolve_reference(original, BRANCH if commit is None else commit)
    try:
        read = original.readonly_session(snapshot_id=name)
    except (icechunk.IcechunkError, ValueError) as error:
        raise StoreMissingError(f"network {source} has no commit {name}", "one of its own", "list them") from error
    # What is no network, or a damaged one, is found before anything is written.
    CommitReader(Path(str(source)), name, read)
    target = _open_target(destination)
    with reading(f"network {source}"), writing(f"the copy {destination}"):
        before = str(target.lookup_branch(BRANCH))
        if _INCOMING in target.list_branches():
            # Left by a copy that did not end.
            target.delete_branch(_INCOMING)
        target.create_branch(_INCOMING, before)
        session = target.writable_session(_INCOMING)
        entries, written = _write(read, session)
        made = before
        if session.has_uncommitted_changes:
            made = str(session.commit(f"copy of commit {name}", metadata={_ORIGIN: str(source), "commit": name}))
    # Through a repository of its own: what is read is what was stored.
    again = destination.repository().readonly_session(snapshot_id=made)
    counts = _verify(again, entries, destination)
    with writing(f"the copy {destination}"):
        target.reset_branch(BRANCH, made, from_snapshot_id=before)
        target.delete_branch(_INCOMING)
        if keep is not None:
            _expire_copies(target, keep)
    sizes = len(entries.digests), written, entries.nbytes
    return CopyReport(name, made, *sizes, *counts, entries.checksum())


def _open_target(place: StorePlace) -> icechunk.Repository:
    """Return the repository of a place with copies or nothing yet.

    Raises
    ------
    StoreExistsError
        If the last commit there was made by training, or something else is there.
    """
    folder = place.folder
    if folder is not None and is_vacant(folder):
        with locked(folder), made_apart(folder) as new:
            StorePlace(str(new)).repository(make=True)
    target = place.repository(make=True)
    if is_blank(target):
        # Not while another process makes a network there.
        with locked(absolute_place(str(place))):
            restart(target)
        return target
    if _ORIGIN not in next(iter(target.ancestry(branch=BRANCH))).metadata:
        raise StoreExistsError(
            f"{place} is a network that was trained, not a copy",
            "a new place or earlier copies",
            "copy it to such a place",
        )
    return target


def _expire_copies(target: icechunk.Repository, keep: int) -> None:
    copies = list(target.ancestry(branch=BRANCH))
    if keep < len(copies):
        target.expire_snapshots(copies[keep - 1].written_at)
    target.garbage_collect(datetime.now(UTC) + CLOCKS_DIFFER)


def _write(read: icechunk.Session, session: icechunk.Session) -> tuple[_BackupEntries, int]:
    """Make the entries of a session those of another; return them, and how many were not there."""
    wanted = set(sync(_keys(read.store)))
    there = set(sync(_keys(session.store)))
    written = 0
    if there:
        root = zarr.open_group(session.store, mode="a")
        runs = {key.split("/")[1] for key in there if key.startswith("runs/") and key.count("/") > 1}
        for run in sorted(runs - {key.split("/")[1] for key in wanted if key.startswith("runs/")}):
            del root[f"runs/{run}"]
        there = set(sync(_keys(session.store)))
    digests: dict[str, bytes] = {}
    nbytes = 0
    # An array has to be there before its chunks.
    for batch in _batches(sorted(wanted, key=lambda key: (not key.endswith("zarr.json"), key))):
        values = StoredEntries(read.store, "").read(batch)
        known = StoredEntries(session.store, "").read([key for key in batch if key in there])
        changed = {key: value for key, value in values.items() if known.get(key) != value}
        write_entries(session.store, "", changed)
        written += len(changed)
        digests |= {key: _digest(value) for key, value in values.items()}
        nbytes += sum(map(len, values.values()))
    for key in sorted(there - wanted):
        sync(session.store.delete(key))
    return _BackupEntries(digests, nbytes), written


def _verify(session: icechunk.Session, entries: _BackupEntries, place: StorePlace) -> tuple[int, int, int]:
    """Compare a stored copy with the source and decode its runs; return runs, regions and connections.

    Raises
    ------
    StoreDamagedError
        At the first difference.
    """
    with reading(f"the copy {place}"):
        keys = set(sync(_keys(session.store)))
        _require(keys == set(entries.digests), place, f"{len(keys)} entries", f"{len(entries.digests)}")
        for batch in _batches(sorted(keys)):
            for key, value in StoredEntries(session.store, "").read(batch).items():
                _require(_digest(value) == entries.digests[key], place, f"another {key}", "that of the network")
    reader = CommitReader(Path(str(place)), str(session.snapshot_id), session)
    runs = reader.manifest().runs
    _require(reader.stored_runs() == {run.identity for run in runs}, place, "other runs", "those of its manifest")
    connections = 0
    for run in runs:
        decoded = unpack(reader.connections(run.identity))
        for table in (reader.neurons(run.identity), reader.postings(run.identity)):
            unpack(table) if table is not None else None
        found = int(decoded.pointer[-1])
        _require(
            found == run.connections,
            place,
            f"{found:,} connections in run {run.identity} of region {run.region}",
            f"{run.connections:,}",
        )
        connections += found
    return len(runs), len({run.region for run in runs}), connections


def _require(holds: bool, place: StorePlace, found: str, expected: str) -> None:
    if not holds:
        raise StoreDamagedError(f"the copy {place} has {found}", expected, "the earlier copies stay; copy it again")


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _batches(keys: list[str]) -> Iterable[list[str]]:
    return (keys[at : at + CONCURRENT] for at in range(0, len(keys), CONCURRENT))


async def _keys(store: Any) -> list[str]:
    names: AsyncIterator[str] = store.list_prefix("")
    return [name async for name in names]
