"""The network beside a network that a call needs is made by nobody else, and is gone when the call ends or is ended."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from giaann_dask.errors import StoreRefusedError
from giaann_dask.store.places import scratch_place

LEFT = "net.forget-0123abcd"


def fill(folder: Path) -> Path:
    (folder / "chunks").mkdir(parents=True)
    (folder / "chunks" / "words").write_text("secret")
    return folder


def use(folder: Path, work: Callable[[Path], object], *, interrupted: bool) -> None:
    with scratch_place(folder / "net", "forget") as place:
        work(place)
        if interrupted:
            raise KeyboardInterrupt


def test_a_scratch_folder_is_private_and_has_another_name_each_time(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with scratch_place(tmp_path / "new" / "net", "forget", held=True) as place:
            assert place.stat().st_mode & 0o777 == 0o700
            names.add(fill(place).name)
    assert len(names) == 3
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_call_has_left_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    mine = fill(tmp_path / "mine")
    fill(tmp_path / LEFT)
    (tmp_path / "net.forget-89abcdef").symlink_to(mine)
    kept = [fill(tmp_path / name) for name in ("net.index-0123abcd", "net.forget-0123abcd0", "other.forget-0123abcd")]
    with scratch_place(tmp_path / "net", "forget", held=True) as place:
        fill(place)
    assert {each.name for each in tmp_path.iterdir()} == {"mine", "net.forget-89abcdef", *(each.name for each in kept)}
    assert (mine / "chunks" / "words").exists()


@pytest.mark.parametrize("planted", ["link", "folder", "file"])
def test_what_somebody_has_planted_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    theirs, name = tmp_path / "theirs", tmp_path / "net.add-0123abcd"
    theirs.mkdir()
    {"link": lambda: name.symlink_to(theirs), "folder": name.mkdir, "file": name.touch}[planted]()
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0123abcd")
    with pytest.raises(StoreRefusedError, match="File exists"), scratch_place(tmp_path / "net", "add"):
        pytest.fail("nothing is written")
    assert list(theirs.iterdir()) == []
    assert name.exists()


def test_signals_while_it_is_removed_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, times = shutil.rmtree, 0

    def interrupted(*given: Any, **more: Any) -> None:
        nonlocal times
        times += 1
        if times == 1:
            raise KeyboardInterrupt
        remove(*given, **more)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    for signals in (1, 2):
        times = 0
        with pytest.raises(KeyboardInterrupt):
            use(tmp_path, fill, interrupted=signals == 2)
        assert list(tmp_path.iterdir()) == []


def test_a_worker_that_writes_on_leaves_nothing(tmp_path: Path) -> None:
    written, writers = list[Path](), list[threading.Thread]()

    def write(place: Path) -> None:
        fill(place)
        writers.append(threading.Thread(target=write_on, args=(place,)))
        writers[0].start()

    def write_on(place: Path) -> None:
        for _ in range(5):
            time.sleep(0.02)
            # Its folder may be removed while it makes it.
            if not place.exists():
                with suppress(FileNotFoundError):
                    written.append(fill(place))

    with pytest.raises(KeyboardInterrupt):
        use(tmp_path, write, interrupted=True)
    writers[0].join()
    assert written
    assert list(tmp_path.iterdir()) == []
