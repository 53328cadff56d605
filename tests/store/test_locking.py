"""The lock file of a network: its tokens, its permissions, and what is refused beside it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import icechunk
import pytest

from giaann_dask.errors import (
    StoreExistsError,
    StoreFullError,
    StoreRefusedError,
    StoreUnsharedError,
    StoreWriteError,
)
from giaann_dask.spec import Specification
from giaann_dask.store import network_store
from giaann_dask.store.icechunk_library import create_repository
from giaann_dask.store.locking import FolderState, LockToken, inspect_folder, locked, require_place
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace
from giaann_dask.store.unfinished import LOCK_FILE, UNFINISHED, is_vacant
from giaann_dask.text.ever_pos import EverPos


def test_the_last_256_tokens_are_valid(tmp_path: Path) -> None:
    with locked(tmp_path / "net") as held:
        tokens = [held.mark().token for _ in range(300)]
        assert (held.path / LOCK_FILE).stat().st_size == 256 * 33
        assert set(inspect_folder(str(held.path)).tokens) == set(tokens[-256:])
        assert len(set(tokens)) == 300
        held.unmark()
        assert inspect_folder(str(held.path)).tokens == ()
        (held.path / LOCK_FILE).write_text("0" * 10**6)
        assert len(inspect_folder(str(held.path)).tokens[0]) == 256 * 33, "no more is read of another file"


def test_tokens_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "net"
    path.mkdir()
    (path / LOCK_FILE).write_text("old\n")
    require_place(LockToken(str(path), "old"))
    with locked(path), pytest.raises(StoreUnsharedError, match="sees another folder") as failure:
        require_place(LockToken(str(path), "old"))
    assert "file system that all of them share" in failure.value.remedy


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_whoever_may_write_the_folder_may_write_the_lock_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with locked(tmp_path / "net"):
            mode = stat.S_IMODE((tmp_path / "net" / LOCK_FILE).stat().st_mode)
    finally:
        os.umask(before)
    assert mode == 0o666 & ~mask


def test_the_second_of_two_writers_is_refused_with_its_cause(tmp_path: Path) -> None:
    with locked(tmp_path / "net") as held:
        token = held.mark()
        with pytest.raises(StoreWriteError, match="another process") as failure, locked(tmp_path / "net"):
            pass
        assert isinstance(failure.value.__cause__, BlockingIOError)
        assert "wait" in failure.value.remedy
        require_place(token)


def test_a_lock_file_that_was_replaced_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes the file after it was opened: a third one would lock a new file."""
    file, opened = tmp_path / LOCK_FILE, os.open

    def open_and_remove(path: Path, flags: int, mode: int) -> int:
        found = opened(path, flags, mode)
        if not replaced:
            replaced.append(path)
            file.unlink()
        return found

    replaced: list[Path] = []
    monkeypatch.setattr(os, "open", open_and_remove)
    with locked(tmp_path) as held:
        assert replaced == [file]
        assert held.mark().token in inspect_folder(str(tmp_path)).tokens


def test_a_folder_as_one_process_sees_it(tmp_path: Path) -> None:
    folder, link, file = tmp_path / "net", tmp_path / "link", tmp_path / "file"
    folder.mkdir()
    link.symlink_to(folder)
    file.write_text("no folder")
    assert inspect_folder(str(link)) == FolderState(socket.gethostname(), str(folder), True, ())
    (folder / LOCK_FILE).write_bytes(b"\xff\n")
    assert inspect_folder(str(folder)).tokens == (), "bytes that are no token"
    anything = LockToken(str(link), "")
    assert inspect_folder(str(link)).problem(anything) == ""
    assert inspect_folder(str(file)).problem(anything) == f"sees no folder at {link} (there {file})"
    wanted = LockToken(str(folder), "token")
    assert inspect_folder(str(folder)).problem(wanted) == f"sees another folder at {folder}"
    assert inspect_folder(str(link)).problem(LockToken(str(link), "token")).endswith(f"at {link} (there {folder})")
    # A token alone does not help where the folder has gone.
    assert FolderState("host", str(folder), False, ("token",)).problem(wanted) == f"sees no folder at {folder}"


@pytest.mark.parametrize(
    ("names", "vacant"),
    [
        ((), True),
        ((LOCK_FILE,), True),
        ((LOCK_FILE, UNFINISHED, "chunks", "manifests"), True),
        ((LOCK_FILE, "chunks"), True),
        ((LOCK_FILE, "chunks", "chunks/letter"), None),
        ((UNFINISHED, "letters"), None),
        (("refs", "chunks"), False),
    ],
)
def test_where_a_network_can_be_made(tmp_path: Path, names: tuple[str, ...], vacant: bool | None) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    if vacant is not None:
        assert is_vacant(tmp_path) is vacant
        return
    for attempt in (lambda: is_vacant(tmp_path), lambda: locked(tmp_path).__enter__()):
        with pytest.raises(StoreExistsError, match="is not a network") as failure:
            attempt()
        assert failure.value.remedy == "name one of these"
    assert {str(entry.relative_to(tmp_path)) for entry in tmp_path.rglob("*")} == set(names)


def test_folders_above_a_network_stay_where_they_have_other_content(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b") as held:
        (tmp_path / "a" / "letter").write_text("mine")
    assert not held.path.exists()
    assert (tmp_path / "a" / "letter").read_text() == "mine"


def test_paths_that_cannot_be_locked(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StoreRefusedError, match=f"network {file}/net"), locked(file / "net"):
        pass
    assert list(tmp_path.iterdir()) == [file]


def test_an_attempt_in_remains_makes_a_whole_network(tmp_path: Path) -> None:
    for name in (LOCK_FILE, f"{UNFINISHED}/snapshots", "chunks", "snapshots"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch() if name == LOCK_FILE else (tmp_path / name).mkdir()
    manifest = Manifest(specification=Specification())
    store = NetworkStore.create(tmp_path, manifest, EverPos())
    assert [message for _, message in store.commits()] == ["created"]
    assert not (tmp_path / UNFINISHED).exists()
    assert (tmp_path / LOCK_FILE).read_bytes() == b"", "the lock file of a network stays"
    with pytest.raises(StoreExistsError):
        NetworkStore.create(tmp_path, manifest, EverPos())
    with store.lock() as held:
        assert store.held is held
        held.mark()
    assert store.held is None
    assert (tmp_path / LOCK_FILE).read_bytes() == b"", "no token is left without the lock"


def test_a_repository_without_a_commit_is_made_again(tmp_path: Path) -> None:
    create_repository(icechunk.local_filesystem_storage(str(tmp_path)), None)
    store = NetworkStore.create(tmp_path, Manifest(specification=Specification()), EverPos())
    assert [message for _, message in store.commits()] == ["created"]


@pytest.mark.parametrize("left", ["nothing", "an attempt", "an empty network"])
def test_a_second_writer_is_told_at_any_moment_that_a_network_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    place = tmp_path / "net"
    if left == "an attempt":
        (place / UNFINISHED / "chunks").mkdir(parents=True)
        (place / "manifests").mkdir()
    if left == "an empty network":
        place.mkdir()
        StorePlace(str(place)).repository(make=True)
    moments, looks = 0, False

    def look() -> None:
        nonlocal moments, looks
        if looks:
            return
        moments, looks = moments + 1, True
        with pytest.raises(StoreWriteError, match="is being written by another process"), locked(place):
            pass
        looks = False

    def looking(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            result = function(*given, **more)
            look()
            return result

        return call

    with locked(place) as held:
        monkeypatch.setattr(network_store, "write_empty", looking(network_store.write_empty))
        monkeypatch.setattr(shutil, "rmtree", looking(shutil.rmtree))
        for name in ("rename", "rmdir", "mkdir"):
            monkeypatch.setattr(Path, name, looking(getattr(Path, name)))
        NetworkStore.create(place, Manifest(specification=Specification(regions=2)), EverPos(), held=held)
        monkeypatch.undo()
    assert moments > 8
    assert NetworkStore(place).head()


def test_a_token_that_cannot_be_written_is_a_full_disk(tmp_path: Path) -> None:
    before, signals = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with locked(tmp_path / "net") as held:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            with pytest.raises(StoreFullError, match=f"network {held.path} could not be written"):
                held.mark()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, signals)
