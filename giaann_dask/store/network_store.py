"""Create, open, read and commit networks: Icechunk commits over Zarr.

`commits` writes and reads the content of a commit. Runs are immutable and written once, so the cost of a commit is that
of what is new, and a crash at any moment leaves the last commit readable. Workers write runs through forked sessions
(`run_io`); the driver merges these and commits. Storage on a local filesystem is safe for one committer at a time,
which a lock enforces (`locking`); in object stores (`places`) a commit is a conditional request, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import zarr

from giaann_dask.errors import (
    OptionError,
    StoreConflictError,
    StoreDamagedError,
    StoreExistsError,
    StoreFullError,
    StoreMissingError,
)
from giaann_dask.local_files import is_there
from giaann_dask.object_urls import absolute_place, is_object_store
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.storage import checksum_of, reading, writing
from giaann_dask.store.commits import (
    CommitContent,
    CommitReader,
    StoredRepeats,
    remove_replaced,
    write_content,
    write_empty,
    write_manifest,
)
from giaann_dask.store.icechunk_library import icechunk, manifest_sizes, use_icechunk
from giaann_dask.store.locking import WriteLock, locked, require_text
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.places import StorePlace, remembering
from giaann_dask.store.run_io import (
    CountingStore,
    WrittenObjects,
    fork_session,
    merge_written,
    write_runs_into,
)
from giaann_dask.store.unfinished import BEGUN, BRANCH, CLOCKS_DIFFER, is_blank, is_vacant, made_apart, restart
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.tokenizer import SubwordTokenizer

# The checksum of the message in the metadata of a commit.
_CHECKSUM = "checksum"
# The files of a commit besides chunks and manifests: snapshot, log of its changes, branch.
_COMMIT_FILES = 3

# What icechunk remembers of a repository. A commit is read once, so that more would only grow with every commit:
# each array has a list of chunks of its own, a kilobyte or so in memory for the one or two chunks that it names.
_CACHED = {
    "num_chunk_refs": 4_000,
    "num_transaction_changes": 0,
    "num_bytes_attributes": 1 << 20,
    "num_bytes_chunks": 1 << 20,
}
# Groups and arrays of snapshots that it remembers, half a kilobyte each in memory: so many, and more where a snapshot
# has more. One for which there is no room is read and decoded again for every key that is read, written or deleted.
_NODES = 10_000
# Every array with values has a manifest, and few nodes have none.
_NODES_OF_A_MANIFEST = 2


# Identity of a commit: 96 bits in Crockford's base 32. No tag or branch can have such a name.
_IDENTITY = re.compile("[0-9A-HJKMNP-TV-Z]{20}")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class CommitEntry(NamedTuple):
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
    kind: Literal["tag", "branch"]
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
        # Of the session: checksums of its arrays without those of runs, once they are written.
        self._sums: dict[str, int] | None = None
        place = StorePlace(str(self.path))
        there = is_there(self.path / "refs") if place.folder is not None else place.exists()
        if not there:
            raise StoreMissingError(
                f"there is no network at {path}", "a place where train has made one", "check the path"
            )
        with reading(f"network {path}"):
            self._nodes = _NODES
            self._opened = icechunk.Repository.open(
                place.storage(), config=remembering(num_snapshot_nodes=_NODES, **_CACHED)
            )
        self._begun = False

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

    def _look_up(self, commit: str) -> str:
        """Let Icechunk remember the snapshot of a commit, and return the identity that it has there."""
        found = self._repository.lookup_snapshot(commit)
        nodes = _NODES_OF_A_MANIFEST * len(manifest_sizes(self._repository, found))
        if nodes > self._nodes:
            # The next commits will be larger.
            self._nodes = 2 * nodes
            self._opened = self._repository.reopen(config=remembering(num_snapshot_nodes=self._nodes, **_CACHED))
        return str(found.id)

    @classmethod
    def create(
        cls,
        path: str | Path,
        manifest: Manifest,
        ever_pos: EverPos,
        tokenizer: SubwordTokenizer | None = None,
        held: WriteLock | None = None,
        *,
        finished: bool = True,
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
        finished : bool
            Whether the empty network is one. Else a commit follows that makes it one: until then it has no head but for
            the store that is returned, and the next call replaces it.

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
                raise StoreExistsError(f"{place} is a network already", "a new path", "name a path that does not exist")
            apart = nullcontext(place) if is_object_store(place) else made_apart(place)
            with apart as new, writing(f"network {place}"):
                repository = StorePlace(str(new)).repository(make=True)
                restart(repository)
                session = repository.writable_session(BRANCH)
                write_empty(zarr.open_group(session.store, mode="a"), manifest, ever_pos, tokenizer)
                session.commit("created", metadata={} if finished else {BEGUN: True})
        made = cls(place)
        made._begun = not finished
        return made

    def reopen(self) -> NetworkStore:
        """Return the store as it is now; one that began the network sees its head still."""
        store = NetworkStore(self.path, self.branch)
        store._begun = self._begun
        return store

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
            If there is none yet: the network is being made, or that was killed.
        """
        self._require_commit()
        return self._tip()

    def _require_commit(self) -> None:
        if not self._begun and self.blank():
            raise StoreMissingError(
                f"network {self.path} holds no commit yet",
                "a network with at least one",
                "wait for the command that makes it, or run that command again if it was interrupted",
            )

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

    def log(self, commit: str | None = None) -> list[CommitEntry]:
        """Return a commit and all before it, the last one first.

        Parameters
        ----------
        commit : str, optional
            Identity, tag or branch; the head by default.

        Raises
        ------
        StoreMissingError
            If there is no such commit.
        """
        head = self._tip() if commit is None else self.open(commit).commit
        with reading(f"network {self.path}"):
            found = list(self._repository.ancestry(snapshot_id=head))
        for info, named in zip(found, (head, *(info.parent_id for info in found)), strict=False):
            if info.id != named or info.metadata.get(_CHECKSUM, _message_checksum(info)) != _message_checksum(info):
                raise StoreDamagedError(f"commit {named} of network {self.path} is not what was written")
        return [CommitEntry(str(info.id), str(info.message), info.written_at) for info in found[:-1]]

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

    def remove_reference(self, kind: Literal["tag", "branch"], name: str) -> None:
        """Remove a tag or a branch other than that of the head; call it while holding the lock.

        Raises
        ------
        StoreMissingError
            If there is none of this kind and name.
        """
        kept = (BRANCH, self.branch)
        names = [each.name for each in self.references() if each.kind == kind and each.name not in kept]
        if name not in names:
            raise StoreMissingError(
                f"network {self.path} has no {kind} {name!r} that can be removed",
                f"one of {names}" if names else f"a {kind} that was made, but there is none",
                f"list them with giaann-dask {kind}",
            )
        with writing(f"network {self.path}"):
            (self._repository.delete_tag if kind == "tag" else self._repository.delete_branch)(name)

    def reset(self, commit: str) -> str | None:
        """Make another commit the head of the branch; call it while holding the lock.

        Parameters
        ----------
        commit : str
            Identity, tag or branch.

        Returns
        -------
        str or None
            Tag of the former head, so that its commits are kept; None where the commit is the head already.
        """
        identity, head = self.open(commit).commit, self.head()
        if identity == head:
            return None
        name = self._tag_before_checkout(head)
        with writing(f"network {self.path}"):
            self._repository.reset_branch(self.branch, identity, from_snapshot_id=head)
        return name

    def _tag_before_checkout(self, head: str) -> str:
        """Return the tag of a head that a branch leaves; the names of removed tags cannot be used again."""
        present = {(each.name, each.commit) for each in self.references()}
        name, number = f"before-checkout-{head}", 1
        while (name, head) not in present:
            try:
                self.add_reference("tag", name, head)
            except StoreExistsError:
                number += 1
                name = f"before-checkout-{head}-{number}"
            else:
                break
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
        if commit == BRANCH:
            self._require_commit()
        commit = self.resolve(commit)
        try:
            # What a file of another commit holds is opened under this one's name.
            found = self._look_up(commit)
            session = self._repository.readonly_session(snapshot_id=commit)
        except (icechunk.IcechunkError, ValueError) as error:
            known = [name for name, _ in self.commits()[:3]]
            if commit in known:
                raise StoreDamagedError(f"commit {commit} of network {self.path} cannot be read") from error
            names = [] if _IDENTITY.fullmatch(commit) else [each.name for each in self.references()]
            raise StoreMissingError(
                f"network {self.path} has no commit{', tag or branch' if names else ''} {commit}",
                f"one such as {', '.join([*names[:3], *known])}",
                "list them with inspect, tag and branch",
            ) from error
        # An identity can be spelled in more ways than one.
        if found != session.snapshot_id:
            raise StoreDamagedError(f"commit {commit} of network {self.path} holds commit {found}")
        return CommitReader(self.path, str(session.snapshot_id), session)

    def blank(self) -> bool:
        """Return whether a network is still to be made here, or a process died while it made one."""
        with reading(f"network {self.path}"):
            return is_blank(self._repository)

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
        try:
            return self._collect(keep_commits)
        except StoreFullError:
            # To forget commits, files are written. What failed commits have left may be the space for them.
            freed = self._collect(None)
            return freed + self._collect(keep_commits)

    def _collect(self, keep_commits: int | None) -> int:
        with reading(f"network {self.path}"), writing(f"network {self.path}"):
            commits = list(self._repository.ancestry(branch=self.branch))
            if keep_commits is not None and keep_commits < len(commits):
                self._repository.expire_snapshots(commits[keep_commits - 1].written_at)
            # With the lock, everything that belongs to no commit is left over, however new it is by the store's clock.
            summary = self._repository.garbage_collect(datetime.now(UTC) + CLOCKS_DIFFER)
        return int(summary.bytes_deleted)

    def other_commits(self) -> set[str]:
        """Return the identities of all commits but the head, of all branches and tags."""
        return {commit.identity for each in self.references() for commit in self.log(each.commit)} - {self.head()}

    def purge(self) -> None:
        """Remove all commits but the head with their files; call it while holding the lock.

        Tags and other branches, which would keep their commits, are removed too.
        """
        for each in self.references():
            if each.name not in (BRANCH, self.branch):
                self.remove_reference(each.kind, each.name)
        self.collect(keep_commits=1)

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
        self.written, self._sums = WrittenObjects(), None
        return session

    def _conflict(self) -> StoreConflictError:
        return StoreConflictError(
            f"another process has committed to network {self.path} since this one began",
            "one writer at a time",
            "run the same command again; everything committed before is intact",
        )

    def write_content(self, session: icechunk.Session, before: CommitReader, content: CommitContent) -> None:
        """Write the content of the next commit into its session, while workers write runs into forks of it.

        Raises
        ------
        StoreWriteError
            If the disk is full; the last commit stays as it was.
        """
        with writing(f"network {self.path}"):
            counted = CountingStore(session.store)
            self._sums = write_content(zarr.open_group(counted, mode="a"), before, content)
        self.written = self.written.plus(counted.written)

    def write_runs(self, session: icechunk.Session, runs: Mapping[str, PackedRegionRun]) -> None:
        """Write runs, by identity, into the session of the next commit, in this process; small ones as one array each.

        Raises
        ------
        StoreWriteError
            If the disk is full; the last commit stays as it was.
        """
        self.written = self.written.plus(write_runs_into(session.store, runs))

    def commit(
        self,
        session: icechunk.Session,
        written: Sequence[bytes],
        before: CommitReader,
        manifest: Manifest,
        *,
        repeats: StoredRepeats | None = None,
        note: str = "",
    ) -> str:
        """Merge the runs, which were written into forks of the session, and commit them with the content in it.

        Parameters
        ----------
        session : icechunk.Session
            In which `write_content` has written all else.
        written : sequence of bytes
            What writing into the forks has returned.
        before : CommitReader
            The commit before.
        manifest : Manifest
            Counts, sizes and runs of the new one.
        repeats : StoredRepeats, optional
            What was written of all counts of profile ``contexts``.
        note : str
            Further text of the commit's message.

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
            root = zarr.open_group(session.store, mode="a")
            remove_replaced(root, before, manifest)
            # Icechunk warns of a session that was forked when nothing was merged, which is so where all runs are empty.
            session.merge()
            objects = self.written.plus(merge_written(session, written))
            write_manifest(root, before, manifest, repeats, joined=objects.joined_runs, sums=self._sums)
            message = f"{manifest.sequences} sequences, {manifest.connections} connections"
            message += f"; {note}" if note else ""
            if self.held is not None:
                # A lease that was lost since the runs were written.
                self.held.mark()
            try:
                commit = str(session.commit(message, metadata={_CHECKSUM: checksum_of(message.encode())}))
            except icechunk.ConflictError as error:
                raise self._conflict() from error
            self.written = objects.plus(self._own_objects(commit, before.commit))
        return commit

    def _own_objects(self, commit: str, before: str) -> WrittenObjects:
        """Return the objects of Icechunk itself in a commit: new manifests, a snapshot, its log, and the branch."""
        snapshots = map(self._repository.lookup_snapshot, (commit, before))
        new, old = (manifest_sizes(self._repository, each) for each in snapshots)
        manifests = [nbytes for name, nbytes in new.items() if name not in old]
        return WrittenObjects(len(manifests) + _COMMIT_FILES, sum(manifests))


def resolve_reference(repository: icechunk.Repository, name: str) -> str:
    """Return the identity of a commit that is given as such, or as a tag or branch; an unknown name as it is."""
    if _IDENTITY.fullmatch(name):
        return name
    if name in repository.list_tags():
        return str(repository.lookup_tag(name))
    return str(repository.lookup_branch(name)) if name in repository.list_branches() else name


def _message_checksum(info: icechunk.SnapshotInfo) -> int:
    return checksum_of(info.message.encode())
