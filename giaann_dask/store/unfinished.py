"""Make new repositories so that what an interrupted process leaves of one is no network, and is replaced.

In a folder a repository is made apart and moved into place. The commit that begins a network says so, until another one
follows: a process that is killed between the two, or whose disk is full, leaves what readers and writers take for
nothing. Networks without sequences that are complete, as those of new islands, do not say so.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path

from giaann_dask.errors import GiaannError, StoreExistsError
from giaann_dask.object_urls import is_object_store
from giaann_dask.storage import writing
from giaann_dask.store.icechunk_library import icechunk
from giaann_dask.store.places import StorePlace

BRANCH = "main"
"""Branch of the head of a network or corpus."""
CLOCKS_DIFFER = timedelta(days=1)
"""More than the clocks of this machine and of a store may differ: Icechunk commits nothing from ten minutes on."""
LOCK_FILE = "writer.lock"
# Where a new network is made before it is moved to its place; left by a process that was killed while it did.
UNFINISHED = "giaann-unfinished"
# What such a process may have moved already; what makes it a network comes last.
_PARTS = {LOCK_FILE, UNFINISHED, "chunks", "manifests", "snapshots", "transactions"}
# How Icechunk names a chunk.
_CHUNK = re.compile("[0-9A-Z]{20}")
# Of the metadata of the commit that begins a network.
BEGUN = "giaann_begun"


def is_blank(repository: icechunk.Repository) -> bool:
    """Return whether a repository has no commit, or none but the one that begins a network."""
    last, *before = islice(repository.ancestry(branch=BRANCH), 2)
    if not before:
        return True
    # A network whose main was set back to its beginning has commits elsewhere.
    return bool(last.metadata.get(BEGUN)) and not repository.list_tags() and repository.list_branches() == {BRANCH}


def restart(repository: icechunk.Repository) -> None:
    """Make a blank repository one without any commit; the caller has the right to write it."""
    for name in repository.list_branches() - {BRANCH}:
        repository.delete_branch(name)
    commits = [commit.id for commit in repository.ancestry(branch=BRANCH)]
    if len(commits) > 1:
        repository.reset_branch(BRANCH, commits[-1], from_snapshot_id=commits[0])


def is_vacant(path: Path) -> bool:
    """Return whether a network can be made at a path: it does not exist, or has only the remains of an attempt.

    Raises
    ------
    StoreExistsError
        If the path has other content.
    """
    if is_object_store(path):
        return not StorePlace(str(path)).exists()
    if not path.exists():
        return True
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if "refs" in names:
            return False
        if names <= {LOCK_FILE} or (UNFINISHED in names and names <= _PARTS):
            return True
        # A worker may end the writing of a chunk after the failed attempt was removed.
        if names <= {LOCK_FILE, "chunks"} and all(_CHUNK.fullmatch(each.name) for each in (path / "chunks").iterdir()):
            return True
    raise StoreExistsError(f"{path} exists and is not a network", "a new path or a network", "name one of these")


def clear_attempt(path: Path) -> None:
    """Remove the remains of an attempt to make a network, or of an empty one; the caller has the lock."""
    new = path / UNFINISHED
    # There until the end, so that others see at any moment, also after a kill, what the rest is.
    with writing(f"network {path}"):
        if (path / "refs").exists():
            # What makes it a network goes in one step, which needs no room on a full disk.
            shutil.rmtree(new, ignore_errors=True)
            (path / "refs").rename(new)
        new.mkdir(exist_ok=True)
    for left in (*sorted(_PARTS - {LOCK_FILE, UNFINISHED}), UNFINISHED):
        shutil.rmtree(path / left, ignore_errors=True)


@contextmanager
def made_apart(path: Path) -> Iterator[Path]:
    """Yield a new folder to make a repository in, which is moved to a path at the end; the caller has the lock.

    Icechunk begins in empty folders only, and readers are to see a whole repository or none.
    """
    clear_attempt(path)
    new = path / UNFINISHED
    try:
        with writing(f"network {path}"):
            new.mkdir()
        yield new
        with writing(f"network {path}"):
            for part in sorted(new.iterdir(), key=lambda part: part.name == "refs"):
                part.rename(path / part.name)
            new.rmdir()
    except BaseException:
        if not (path / "refs").exists():
            clear_attempt(path)
        raise


@contextmanager
def removed_unless_finished(path: Path) -> Iterator[None]:
    """Remove what was begun in a folder if what finishes it fails; the caller has the lock."""
    try:
        yield
    except BaseException:
        with suppress(GiaannError, icechunk.IcechunkError, OSError):
            if not is_object_store(path) and is_blank(StorePlace(str(path)).repository()):
                clear_attempt(path)
        raise
