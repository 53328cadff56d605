"""Create, open, read and commit networks: Icechunk commits over Zarr.

One commit is the specification, the dictionaries, the ledger of counted text, the manifest and the runs. Runs are
immutable and written once, so the cost of a commit is that of what is new, and a crash at any moment leaves the last
commit readable. Workers write runs through forked sessions (`run_io`); the driver merges these and commits. Storage
on a local filesystem is safe for one committer at a time, which a lock enforces (`locking`); in object stores
(`places`) a commit is a conditional request, too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import icechunk
import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import (
    OptionError,
    StoreConflictError,
    StoreDamagedError,
    StoreExistsError,
    StoreFormatError,
    StoreMissingError,
)
from giaann_dask.object_urls import is_object_store
from giaann_dask.runs.packed_arrays import GROUP_KEY
from giaann_dask.runs.packing import PackedRegionRun, PackedRun, RowReader
from giaann_dask.runs.placement import Placement
from giaann_dask.storage import (
    CHECKSUMS,
    RESTORE,
    absolute_place,
    append_values,
    checksum_of,
    checksum_of_json,
    create_array,
    read_array,
    read_json,
    reading,
    seal_arrays,
    write_json,
    writing,
)
from giaann_dask.store.icechunk_process import use_icechunk
from giaann_dask.store.locking import (
    UNFINISHED,
    WriteLock,
    clear_attempt,
    is_vacant,
    locked,
    move_into_place,
    require_text,
)
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.origins import ORIGIN_ARRAYS, Origins, append_origins, read_origins
from giaann_dask.store.places import StorePlace
from giaann_dask.store.run_commits import read_run_commits, seal_run_commits
from giaann_dask.store.run_io import CountingStore, StoredEntries, WrittenObjects, fork_session, merge_written
from giaann_dask.store.stored_repeats import TABLE as REPEATS
from giaann_dask.store.stored_repeats import StoredRepeats, read_repeats, remove_repeats, repeated_connections
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import LedgerEntry, append_entries, read_entries
from giaann_dask.text.strings import append_strings, read_strings
from giaann_dask.text.tokenizer import SubwordTokenizer, open_content
from giaann_dask.text.vocabulary import Vocabulary

# Of subwords alone: since when each is known as a delimiter.
_DELIMITER_SINCE = "delimiter_since"


def write_vocabulary(root: zarr.Group, vocabulary: Vocabulary, concepts: int, features: int) -> None:
    """Append the entries of a vocabulary beyond the stored sizes, and update changed flags.

    Parameters
    ----------
    root : zarr.Group
        Of the network.
    vocabulary : Vocabulary
        As of the commit.
    concepts, features : int
        Stored sizes.
    """
    append_strings(root, "concepts", vocabulary.concepts[concepts:])
    append_strings(root, "features", vocabulary.features[features:])
    delimiter = np.array(vocabulary.delimiter, np.bool_)
    append_values(root, "delimiter", delimiter[features:])
    since = np.array(vocabulary.probable_since, np.int64)
    append_values(root, "probable_since", since[features:])
    rewrite_changed(root, "probable_since", since)
    if vocabulary.delimiter_since is None:
        return
    later = np.array(vocabulary.delimiter_since, np.int64)
    if _DELIMITER_SINCE in root:
        rewrite_changed(root, "delimiter", delimiter)
        rewrite_changed(root, _DELIMITER_SINCE, later)
    else:
        create_array(root, _DELIMITER_SINCE, later)


def read_vocabulary(root: zarr.Group, sequences: int) -> Vocabulary:
    """Return the stored dictionaries after so many counted sequences.

    Raises
    ------
    StoreDamagedError
        If one of their arrays is missing or cannot be read.
    """
    concepts, features = (read_strings(root, name) for name in ("concepts", "features"))
    delimiter = read_array(root, "delimiter").tolist()
    since = read_array(root, "probable_since").tolist()
    later = read_array(root, _DELIMITER_SINCE).tolist() if _DELIMITER_SINCE in root else None
    return Vocabulary(concepts, features, delimiter, since, sequences, later)


def rewrite_changed(root: zarr.Group, name: str, values: npt.NDArray[Any]) -> None:
    """Make an array that is as long equal to some values, from the first that differs to the last."""
    changed = np.flatnonzero(read_array(root, name) != values)
    if len(changed):
        first, last = int(changed[0]), int(changed[-1]) + 1
        cast(Any, root[name])[first:last] = values[first:last]


FORMAT = "giaann-dask network"
# Version 3 is that of networks that began with fewer regions than their specification says, which readers of version 2
# would look for in the wrong places, version 4 that of pruned ones, which readers of version 3 would train. All others
# are version 2.
VERSION = 2
VERSION_JOINED = 3
VERSION_PRUNED = 4
_VERSIONS = (VERSION, VERSION_JOINED, VERSION_PRUNED)
BRANCH = "main"
# The placement's table of first regions by column.
ASSIGNED = "first_region"
# Arrays that only grow, but where documents were removed.
_REWRITTEN = (
    *("concepts_text", "concepts_end", "features_text", "features_end", "delimiter", "probable_since"),
    *("ledger_identity", "ledger_sequences", "ledger_complete", ASSIGNED),
)
# The checksum of the manifest among the attributes, and that of the message in the metadata of a commit.
_CHECKSUM = "checksum"
# What divides text into subwords, where these are the tokens.
_TOKENIZER = "tokenizer"

# The files of a commit besides chunks and manifests: snapshot, log of its changes, branch.
_COMMIT_FILES = 3

# What icechunk remembers of a repository. A commit is read once, so that more would only grow with every commit:
# each array has a list of chunks of its own, a kilobyte or so in memory for the one or two chunks that it names.
_CACHED = {
    "num_snapshot_nodes": 10_000,
    "num_chunk_refs": 4_000,
    "num_transaction_changes": 0,
    "num_bytes_attributes": 1 << 20,
    "num_bytes_chunks": 1 << 20,
}


# Identity of a commit: 96 bits in Crockford's base 32. No tag or branch can have such a name.
_IDENTITY = re.compile("[0-9A-HJKMNP-TV-Z]{20}")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Commit(NamedTuple):
    """Entry of a network's history.

    Attributes
    ----------
    identity, message : str
        Identity and description.
    written_at : datetime
        When it was made, in UTC.
    """

    identity: str
    message: str
    written_at: datetime


class Reference(NamedTuple):
    """Name of a commit.

    Attributes
    ----------
    name : str
        The name.
    kind : {"branch", "tag"}
        A tag stays at its commit; a branch moves with every commit that training makes on it.
    commit : str
        Identity of the commit.
    """

    name: str
    kind: str
    commit: str


class NetworkStore:
    """A network's repository at a path.

    Parameters
    ----------
    path : str or Path
        Folder or URL (``s3://BUCKET/PREFIX``) of an existing network.
    branch : str
        Branch whose last commit is the head, and that new commits are made on.

    Raises
    ------
    StoreMissingError, StoreDamagedError, StoreUnreachableError
        If there is none, or if it cannot be opened.

    Attributes
    ----------
    path : Path
        The folder, absolute, or the `giaann_dask.object_urls.ObjectPath`.
    branch : str
        Branch of the head.
    held : WriteLock or None
        The right to write, while this process has it (`lock`).
    written : WrittenObjects
        Objects of the last commit that was made here; bytes of its chunks and manifests.
    """

    def __init__(self, path: str | Path, branch: str = BRANCH) -> None:
        self.path = absolute_place(path)
        self.branch = branch
        self.held: WriteLock | None = None
        self.written = WrittenObjects()
        place = StorePlace(str(self.path))
        there = (self.path / "refs").exists() if place.folder is not None else place.exists()
        if not there:
            raise StoreMissingError(
                f"there is no network at {path}", "a place where train has made one", "check the path"
            )
        with reading(f"network {path}"):
            config = icechunk.RepositoryConfig(caching=icechunk.CachingConfig(**_CACHED))
            self._opened = icechunk.Repository.open(place.storage(), config=config)

    @property
    def _repository(self) -> icechunk.Repository:
        """The opened repository.

        Raises
        ------
        StoreForkedError
            In a process that was forked from one that used Icechunk, here and in all methods.
        """
        use_icechunk()
        return self._opened

    @classmethod
    def create(
        cls,
        path: str | Path,
        manifest: Manifest,
        ever_pos: EverPos,
        tokenizer: SubwordTokenizer | None = None,
        held: WriteLock | None = None,
    ) -> NetworkStore:
        """Create an empty network and commit it.

        Parameters
        ----------
        path : str or Path
            Folder that does not exist yet, or is empty but for what is left of an attempt to create a network.
        manifest : Manifest
            Of an empty network.
        ever_pos : EverPos
            Ever-POS lexicon.
        tokenizer : SubwordTokenizer, optional
            Of a network of subwords.
        held : WriteLock, optional
            Write lock of the folder; acquired for the duration of the call by default.

        Raises
        ------
        StoreExistsError
            If a network or something else is at the path.
        StoreWriteError
            If it cannot be written, or another process is about to.
        """
        place = absolute_place(path)
        require_text(place)
        with locked(place) if held is None else nullcontext(held):
            if not is_vacant(place) and not cls(place).blank():
                raise StoreExistsError(f"{place} is a network already", "a new path", "name one where nothing is")
            if is_object_store(place):
                with writing(f"network {place}"):
                    repository = StorePlace(str(place)).repository(make=True)
                    _write_empty(repository, manifest, ever_pos, tokenizer)
                return cls(place)
            clear_attempt(place)
            # Icechunk begins in empty folders only, and readers are to see a whole network or none.
            new = place / UNFINISHED
            with writing(f"network {place}"), _removed_on_failure(new):
                new.mkdir()
                repository = StorePlace(str(new)).repository(make=True)
                _write_empty(repository, manifest, ever_pos, tokenizer)
                move_into_place(new)
        return cls(place)

    @contextmanager
    def lock(self) -> Iterator[WriteLock]:
        """Lock the network for commits until the context ends.

        Raises
        ------
        StoreWriteError
            If another process has the lock.
        StoreRefusedError
            If this user may not write here, or nobody can, because of the path's name.
        """
        require_text(self.path)
        with locked(self.path) as held:
            self.held = held
            try:
                yield held
            finally:
                self.held = None

    def fork(self, session: icechunk.Session) -> bytes:
        """Return a pickled fork through which workers write runs into a session; this process has the lock."""
        assert self.held is not None, "runs are written only with the lock"
        return fork_session(session, self.held.mark())

    def head(self) -> str:
        """Return the identity of the last commit.

        Raises
        ------
        StoreMissingError
            If there is none yet: the network is being trained for the first time, or that was killed.
        """
        if self.blank():
            raise StoreMissingError(
                f"network {self.path} holds no commit yet",
                "a network with at least one",
                "wait for the first commit of its training, or train it again if that has ended",
            )
        return self._tip()

    def _tip(self) -> str:
        """Return the snapshot that the branch is at, also where nothing has been committed yet."""
        with reading(f"network {self.path}"):
            if self.branch != BRANCH and self.branch not in self._repository.list_branches():
                raise StoreMissingError(
                    f"network {self.path} has no branch {self.branch!r}",
                    f"one of {sorted(self._repository.list_branches())}",
                    "make it with giaann-dask branch",
                )
            return str(self._repository.lookup_branch(self.branch))

    def commits(self) -> list[tuple[str, str]]:
        """Return identity and message of all commits of the branch, the last one first."""
        return [(commit.identity, commit.message) for commit in self.log()]

    def log(self, commit: str | None = None) -> list[Commit]:
        """Return a commit and all before it, the last one first.

        Parameters
        ----------
        commit : str, optional
            Identity, tag or branch; the head by default.
        """
        head = self._tip() if commit is None else self.resolve(commit)
        with reading(f"network {self.path}"):
            found = list(self._repository.ancestry(snapshot_id=head))
        for info, named in zip(found, (head, *(info.parent_id for info in found)), strict=False):
            if info.id != named or info.metadata.get(_CHECKSUM, _message_checksum(info)) != _message_checksum(info):
                raise StoreDamagedError(f"commit {named} of network {self.path} is not what was written")
        return [Commit(str(info.id), str(info.message), info.written_at) for info in found[:-1]]

    def references(self) -> list[Reference]:
        """Return the branches and tags of the network, each kind in the order of the names."""
        with reading(f"network {self.path}"):
            branches = sorted(self._repository.list_branches())
            found = [Reference(name, "branch", str(self._repository.lookup_branch(name))) for name in branches]
            tags = sorted(self._repository.list_tags())
            return found + [Reference(name, "tag", str(self._repository.lookup_tag(name))) for name in tags]

    def resolve(self, name: str) -> str:
        """Return the identity of a commit that is given as such, or as a tag or branch."""
        with reading(f"network {self.path}"):
            return resolve_reference(self._repository, name)

    def add_reference(self, kind: Literal["tag", "branch"], name: str, commit: str) -> None:
        """Name a commit; call it while holding the lock.

        Parameters
        ----------
        kind : {"tag", "branch"}
            See `Reference`.
        name : str
            Letters, digits, ``.``, ``_`` and ``-``; not a name that the network has or had as a tag.
        commit : str
            Identity, tag or branch.

        Raises
        ------
        OptionError
            If the name cannot be one.
        StoreExistsError
            If there is such a name.
        StoreMissingError
            If there is no such commit.
        """
        if not _NAME.fullmatch(name) or _IDENTITY.fullmatch(name):
            raise OptionError(
                f"the name {name!r} of a {kind}",
                "up to 100 letters, digits, dots, underscores and hyphens, not like the identity of a commit",
                "take such a name",
            )
        identity = self.open(commit).commit
        repository = self._repository
        try:
            if self.resolve(name) != name:
                raise ValueError(name)
            with writing(f"network {self.path}"):
                (repository.create_tag if kind == "tag" else repository.create_branch)(name, identity)
        except (icechunk.IcechunkError, ValueError) as error:
            raise StoreExistsError(
                f"network {self.path} has a tag or branch {name!r}, or had this tag once",
                "a new name",
                "take another name",
            ) from error

    def remove_reference(self, name: str) -> None:
        """Remove a tag or a branch other than that of the head; call it while holding the lock.

        Raises
        ------
        StoreMissingError
            If there is no such tag or branch.
        """
        kinds = {each.name: each.kind for each in self.references() if each.name not in (BRANCH, self.branch)}
        if name not in kinds:
            raise StoreMissingError(
                f"network {self.path} has no tag or branch {name!r} that can be removed",
                f"one of {sorted(kinds)}",
                "list them with giaann-dask tag and giaann-dask branch",
            )
        with writing(f"network {self.path}"):
            (self._repository.delete_tag if kinds[name] == "tag" else self._repository.delete_branch)(name)

    def reset(self, commit: str) -> str:
        """Make another commit the head of the branch; call it while holding the lock.

        Parameters
        ----------
        commit : str
            Identity, tag or branch.

        Returns
        -------
        str
            Tag of the former head, so that its commits are kept.
        """
        identity, head = self.open(commit).commit, self.head()
        name = f"before-checkout-{head}"
        if all(each.name != name for each in self.references()):
            self.add_reference("tag", name, head)
        with writing(f"network {self.path}"):
            self._repository.reset_branch(self.branch, identity, from_snapshot_id=head)
        return name

    def open(self, commit: str) -> CommitReader:
        """Return a reader of one commit, which is given by its identity, a tag or a branch.

        Raises
        ------
        StoreMissingError
            If there is no such commit.
        StoreFormatError
            If the network is of another format version.
        """
        commit = self.resolve(commit)
        try:
            session = self._repository.readonly_session(snapshot_id=commit)
            # What a file of another commit holds is opened under this one's name.
            found = self._repository.lookup_snapshot(str(session.snapshot_id)).id
        except (icechunk.IcechunkError, ValueError) as error:
            known = [name for name, _ in self.commits()[:3]]
            if commit in known:
                raise StoreDamagedError(f"commit {commit} of network {self.path} cannot be read") from error
            raise StoreMissingError(
                f"network {self.path} has no commit {commit}",
                f"one such as {known}",
                "list them with inspect",
            ) from error
        # An identity can be spelled in more ways than one.
        if found != session.snapshot_id:
            raise StoreDamagedError(f"commit {commit} of network {self.path} holds commit {found}")
        return CommitReader(self.path, str(session.snapshot_id), session)

    def blank(self) -> bool:
        """Return whether a process died between making the folder and the first commit."""
        with reading(f"network {self.path}"):
            return len(list(islice(self._repository.ancestry(branch=BRANCH), 2))) == 1

    def collect(self, keep_commits: int | None = None) -> int:
        """Remove data that no commit needs; call it while holding the lock.

        Parameters
        ----------
        keep_commits : int, optional
            Forget all but the last so many commits first; all are kept by default.

        Returns
        -------
        int
            Bytes that were freed.

        Raises
        ------
        StoreWriteError, StoreDamagedError
            If the store cannot be written or read.
        """
        with reading(f"network {self.path}"), writing(f"network {self.path}"):
            commits = list(self._repository.ancestry(branch=self.branch))
            if keep_commits is not None and keep_commits < len(commits):
                self._repository.expire_snapshots(commits[keep_commits - 1].written_at)
            # With the lock, everything that is older than now and belongs to no commit is left over.
            summary = self._repository.garbage_collect(datetime.now(UTC))
        return int(summary.bytes_deleted)

    def purge(self) -> int:
        """Remove all commits but the head with their files, and return how many; call it while holding the lock.

        Tags and other branches, which would keep their commits, are removed too.
        """
        before = len(self.commits())
        for each in self.references():
            if each.name not in (BRANCH, self.branch):
                self.remove_reference(each.name)
        self.collect(keep_commits=1)
        return before - len(self.commits())

    def begin(self, before: str | None = None) -> icechunk.Session:
        """Return a session in which the next commit is written; `fork` it before changing anything.

        Raises
        ------
        StoreConflictError
            If the last commit is not the one before, where that is given.
        """
        session = self._repository.writable_session(self.branch)
        if before is not None and session.snapshot_id != before:
            raise self._conflict()
        return session

    def _conflict(self) -> StoreConflictError:
        return StoreConflictError(
            f"another process has committed to network {self.path} since this one began",
            "one writer at a time",
            "run the same command again; everything committed before is intact",
        )

    def commit(
        self, session: icechunk.Session, written: Sequence[bytes], before: CommitReader, change: CommitChange
    ) -> str:
        """Write everything but the runs, which were written into forks of the session, and commit.

        Returns
        -------
        str
            Identity of the commit.

        Raises
        ------
        StoreWriteError
            If the disk is full; the last commit stays as it was.
        StoreConflictError
            If another process has committed since, or has the lease; likewise.
        """
        with writing(f"network {self.path}"):
            counted = CountingStore(session.store)
            root = zarr.open_group(counted, mode="a")
            old, new = before.manifest(), change.manifest
            # Those of the commit before, which arrays no longer have while they are changed.
            root.attrs.pop(CHECKSUMS, None)
            remove_repeats(root)
            # Before anything else is there: what deleting costs grows with what a session has changed.
            for identity in {run.identity for run in old.runs} - {run.identity for run in new.runs}:
                del root[f"runs/{identity}"]
            objects = WrittenObjects()
            for fork in written:
                objects = objects.plus(merge_written(session, fork))
            concepts, features, ledger = old.concepts, old.features, before.ledger()
            if change.rewritten:
                for name in (*_REWRITTEN, *(ORIGIN_ARRAYS if change.origins is not None else ())):
                    del root[name]
                concepts = features = 0
                ledger = []
            write_vocabulary(root, change.vocabulary, concepts, features)
            _write_ledger(root, change.ledger, ledger)
            if change.origins is not None:
                append_origins(root, change.origins, None if change.rewritten else before.origins())
            if change.rewritten:
                create_array(root, ASSIGNED, np.zeros(0, np.int32))
            _write_assigned(root, change.placement.assigned)
            kept = {run.identity for run in new.runs} & {run.identity for run in old.runs}
            _write_header(root, new, change.repeats, {identity: before.commit_of(identity) for identity in kept})
            message = f"{new.sequences} sequences, {new.connections} connections"
            message += f"; {change.note}" if change.note else ""
            if self.held is not None:
                # A lease that was lost since the runs were written.
                self.held.mark()
            try:
                commit = str(session.commit(message, metadata={_CHECKSUM: checksum_of(message.encode())}))
            except icechunk.ConflictError as error:
                raise self._conflict() from error
            self.written = objects.plus(counted.written).plus(self._own_objects(commit, before.commit))
        return commit

    def _own_objects(self, commit: str, before: str) -> WrittenObjects:
        """Return the objects of Icechunk itself in a commit: new manifests, a snapshot, its log, and the branch."""
        new, old = (
            {manifest.id: manifest.size_bytes for manifest in self._repository.lookup_snapshot(each).manifests}
            for each in (commit, before)
        )
        manifests = [nbytes for name, nbytes in new.items() if name not in old]
        return WrittenObjects(len(manifests) + _COMMIT_FILES, sum(manifests))


class CommitChange:
    """Content of a commit, except its runs.

    Parameters
    ----------
    manifest : Manifest
        Counts, sizes and runs.
    vocabulary : Vocabulary
        Dictionaries; only as much of them as the manifest says is written.
    ledger : list of LedgerEntry
        All entries.
    placement : Placement
        Where neurons belong; its splits and load are those of the manifest.
    rewritten : bool
        Whether dictionaries, ledger, origins and placement are others than before, not only longer.
    origins : Origins, optional
        Where the sequences come from; as before by default.
    note : str
        Further text of the commit's message.
    repeats : StoredRepeats, optional
        What was written of all counts of profile ``best``.
    """

    def __init__(
        self,
        manifest: Manifest,
        vocabulary: Vocabulary,
        ledger: list[LedgerEntry],
        placement: Placement,
        *,
        rewritten: bool = False,
        origins: Origins | None = None,
        note: str = "",
        repeats: StoredRepeats | None = None,
    ) -> None:
        self.rewritten = rewritten
        self.origins = origins
        self.note = note
        self.repeats = repeats
        self.manifest = manifest
        self.placement = placement
        self.vocabulary = vocabulary.truncated(manifest.concepts, manifest.features, manifest.sequences - 1)
        self.ledger = list(ledger)


class CommitReader:
    """Reads one commit of a network; made by `NetworkStore.open`."""

    def __init__(self, path: Path, commit: str, session: icechunk.Session) -> None:
        self.path = path
        self.commit = commit
        self._read_from = session.store
        with reading(f"network {path}"):
            self._opened_root = zarr.open_group(self._store, mode="r")
            attributes = dict(self._root.attrs)
        if attributes.get("format") != FORMAT or attributes.get("version") not in _VERSIONS:
            raise StoreFormatError(
                f"{path} is {attributes.get('format')!r} version {attributes.get('version')!r}",
                f"{FORMAT!r} version {', '.join(map(str, _VERSIONS))}",
                "open it with the version of giaann_dask that wrote it",
            )
        stored: Any = attributes.get("manifest")
        # First: its errors name what is wrong with the manifest.
        self._manifest = Manifest.from_dict(stored, f"network {path}")
        checksum = checksum_of_json(stored)
        if attributes.get(_CHECKSUM, checksum) != checksum:
            raise StoreDamagedError(f"the manifest of network {path} is not what was written")
        self._run_commits = read_run_commits(attributes, checksum)
        self._repeats = read_repeats(attributes, checksum)
        self.repeated_connections = repeated_connections(attributes)

    @property
    def _store(self) -> icechunk.IcechunkStore:
        use_icechunk()
        return self._read_from

    @property
    def _root(self) -> zarr.Group:
        use_icechunk()
        return self._opened_root

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises
        ------
        StoreForkedError
            In a process that was forked from one that used Icechunk, here and in all methods.
        """
        use_icechunk()
        return self._manifest

    def commit_of(self, identity: str) -> str:
        """Return the identity of the commit that wrote a run, which is this one or an earlier one."""
        return self._run_commits.get(identity, self.commit)

    def zarr_store(self) -> icechunk.IcechunkStore:
        """Return the Zarr store of the commit, which is read-only."""
        return self._store

    def ever_pos(self) -> EverPos:
        """Return the ever-POS lexicon."""
        with reading(f"network {self.path}"):
            return EverPos.from_dict(read_json(self._root, "ever_pos"))

    def tokenizer(self) -> SubwordTokenizer | None:
        """Return the tokenizer of a network of subwords; None for words."""
        with reading(f"network {self.path}"):
            return open_content(read_json(self._root, _TOKENIZER)) if _TOKENIZER in self._root else None

    def vocabulary(self) -> Vocabulary:
        """Return the dictionaries as they were in memory at the commit."""
        with reading(f"network {self.path}"):
            found = read_vocabulary(self._root, self._manifest.sequences)
        expected = (self._manifest.concepts, *(self._manifest.features,) * 3)
        flags = len(found.delimiter), len(found.probable_since)
        sizes = (len(found.concepts), len(found.features), *flags)
        if sizes != expected:
            raise StoreDamagedError(f"the dictionaries of {self.path} have sizes {sizes}", f"{expected}")
        return found

    def saved_vocabulary(self) -> Vocabulary:
        """Return the dictionaries as of the last trained sequence, from which inference starts."""
        m = self._manifest
        return self.vocabulary().truncated(m.saved_concepts, m.saved_features, m.last_trained)

    def stored_runs(self) -> set[str]:
        """Return the identities of all runs in the commit; the manifest names the same."""
        with reading(f"network {self.path}"):
            return set(cast(zarr.Group, self._root["runs"]).group_keys())

    def ledger(self) -> list[LedgerEntry]:
        """Return the parts of text that the commit has counted."""
        with reading(f"network {self.path}"):
            return read_entries(self._root)

    def placement(self) -> Placement:
        """Return where neurons belong."""
        manifest = self._manifest
        with reading(f"network {self.path}"):
            assigned = read_array(self._root, ASSIGNED)
        load = np.array(manifest.load, np.int64)
        return Placement(manifest.first_regions, assigned, load, manifest.splits)

    def run(self, identity: str) -> PackedRegionRun:
        """Return the encoded chunks of a run, as they are stored."""
        return PackedRegionRun(self.connections(identity), self.neurons(identity), self.postings(identity))

    def connections(self, identity: str) -> PackedRun:
        """Return the encoded connections of a run alone."""
        return self._table(identity, "connections")

    def neurons(self, identity: str) -> PackedRun:
        """Return the encoded strengths of the neurons of a run alone."""
        return self._table(identity, "neurons")

    def postings(self, identity: str) -> PackedRun | None:
        """Return the encoded postings of a run alone; None where the network has no index."""
        return self._table(identity, "postings") if self._manifest.specification.trace else None

    def origins(self) -> Origins | None:
        """Return where the sequences of the commit come from; None where the network has no index."""
        if not self._manifest.specification.trace:
            return None
        with reading(f"network {self.path}"):
            return read_origins(self._root)

    def entries(self, identity: str) -> tuple[StoredEntries, StoredEntries]:
        """Return the connections and the neurons of a run, read on demand."""
        connections, neurons = (self._entries(identity, name) for name in ("connections", "neurons"))
        return connections, neurons

    def _entries(self, identity: str, table: str) -> StoredEntries:
        return StoredEntries(self._store, f"runs/{identity}/{table}/")

    def rows(self, identity: str, table: str = "connections") -> RowReader:
        """Return a reader of the rows of a run's ``connections``, ``neurons`` or ``postings``.

        Raises
        ------
        StoreDamagedError
            If the run is missing or does not decode.
        """
        return self._row_reader(self._entries(identity, table), identity, table)

    def repeats(self) -> StoredRepeats | None:
        """Return what is stored about all counts of profile ``best``; None where they have to be read instead."""
        return self._repeats

    def repeat_rows(self, region: int) -> RowReader:
        """Return a reader of the repeats of the contexts of a region, where `repeats` has some.

        Raises
        ------
        StoreDamagedError
            If they are missing or do not decode.
        """
        assert self._repeats is not None, "the commit has no repeats"
        path = self._repeats.path(region)
        return self._row_reader(StoredEntries(self._store, f"{path}/{REPEATS}/"), path, REPEATS)

    def _row_reader(self, entries: StoredEntries, identity: str, table: str) -> RowReader:
        with reading(f"network {self.path}"):
            if not entries.read([GROUP_KEY]):
                raise self._missing(identity, table)
            return RowReader(entries.read)

    def _table(self, identity: str, name: str) -> PackedRun:
        with reading(f"network {self.path}"):
            try:
                entries = StoredEntries(self._store, f"runs/{identity}/{name}/").read_all()
            except icechunk.IcechunkError:
                # What is not there cannot be listed.
                if f"runs/{identity}/{name}" in self._root:
                    raise
                entries = {}
            if not entries:
                raise self._missing(identity, name)
            return PackedRun.from_entries(entries)

    def _missing(self, identity: str, name: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"network {self.path} has no {name} of run {identity}", "every run that its manifest names", RESTORE
        )


def resolve_reference(repository: icechunk.Repository, name: str) -> str:
    """Return the identity of a commit that is given as such, or as a tag or branch; an unknown name as it is."""
    if _IDENTITY.fullmatch(name):
        return name
    if name in repository.list_tags():
        return str(repository.lookup_tag(name))
    return str(repository.lookup_branch(name)) if name in repository.list_branches() else name


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Remove a folder if writing into it fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _write_empty(
    repository: icechunk.Repository, manifest: Manifest, ever_pos: EverPos, tokenizer: SubwordTokenizer | None
) -> None:
    """Write an empty network into an empty repository."""
    session = repository.writable_session(BRANCH)
    root = zarr.open_group(session.store, mode="a")
    root.create_group("runs")
    write_vocabulary(root, Vocabulary(), 0, 0)
    _write_ledger(root, [], [])
    if manifest.specification.trace:
        append_origins(root, Origins(), None)
    create_array(root, ASSIGNED, np.zeros(0, np.int32))
    write_json(root, "ever_pos", ever_pos.as_dict())
    if tokenizer is not None:
        write_json(root, _TOKENIZER, tokenizer.content)
    _write_header(root, manifest)
    session.commit("created")


def _write_header(
    root: zarr.Group,
    manifest: Manifest,
    repeats: StoredRepeats | None = None,
    run_commits: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the attributes of a commit after its arrays."""
    values = manifest.as_dict()
    checksum = checksum_of_json(values)
    sums = {} if repeats is None else repeats.seal(checksum, manifest.connections)
    sums |= seal_run_commits(run_commits, checksum)
    version = VERSION if manifest.begun_with is None else VERSION_JOINED
    version = VERSION_PRUNED if manifest.pruned_below else version
    sealed: dict[str, Any] = {_CHECKSUM: checksum, CHECKSUMS: seal_arrays(root)}
    root.attrs.update({"format": FORMAT, "version": version, "manifest": values, **sealed, **sums})


def _message_checksum(info: icechunk.SnapshotInfo) -> int:
    return checksum_of(info.message.encode())


def _write_assigned(root: zarr.Group, assigned: npt.NDArray[np.int32]) -> None:
    """Append the regions of new columns; old columns may have one now that had none."""
    append_values(root, ASSIGNED, assigned[len(read_array(root, ASSIGNED)) :])
    rewrite_changed(root, ASSIGNED, assigned)


def _write_ledger(root: zarr.Group, ledger: list[LedgerEntry], stored: list[LedgerEntry]) -> None:
    """Append new entries and rewrite those that have grown."""
    for position, (old, new) in enumerate(zip(stored, ledger, strict=False)):
        if old != new:
            cast(Any, root["ledger_sequences"])[position] = new.sequences
            cast(Any, root["ledger_complete"])[position] = new.complete
    append_entries(root, ledger[len(stored) :])
