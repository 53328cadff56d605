"""What a killed process, or a full disk, leaves of a new network is no network, and the same command makes it.

A copy of the folder at some moment is what a process that is killed at this moment leaves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import giaann_dask as gd
from giaann_dask.api.islands import create_island, join_island
from giaann_dask.errors import SpecificationError, StoreExistsError, StoreMissingError, StoreWriteError
from giaann_dask.object_urls import absolute_place
from giaann_dask.spec import Specification
from giaann_dask.store import backup
from giaann_dask.store.backup import copy_commit
from giaann_dask.store.corpus_writing import new_corpus, require_absent
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace
from giaann_dask.store.unfinished import is_blank, is_vacant, removed_unless_finished
from giaann_dask.text.ever_pos import EverPos

ONE = "The old dog slept in the warm sun all day long."
TWO = "A young cat sat on the grey mat in the cold hall."


class Given(NamedTuple):
    """Two networks, and the island file of the first one."""

    one: Path
    two: Path
    island: Path


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    folder = tmp_path_factory.mktemp("given")
    made = Given(folder / "one", folder / "two", folder / "one.island")
    with gd.connect(workers=0):
        for path, text in ((made.one, ONE), (made.two, TWO)):
            gd.train([text], path, profile="contexts", regions=2)
        create_island(made.one, made.island, {"mill": "ab" * 32})
        yield made


def copy(source: Path, out: Path) -> None:
    copy_commit(StorePlace(str(source)), StorePlace(str(out)))


MAKERS: dict[str, Callable[[Given, Path], Any]] = {
    "train": lambda given, out: gd.train([ONE], out, profile="contexts"),
    "add": lambda given, out: gd.add([given.one, given.two], out),
    "prune": lambda given, out: gd.prune(given.one, out, min_strength=1),
    "join": lambda given, out: join_island(given.island, out),
    "copy": lambda given, out: copy(given.one, out),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_killed_command_makes_its_network_when_it_is_repeated(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out, moments = tmp_path / "out", list[Path]()

    def kept(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            moments.append(shutil.copytree(out, tmp_path / f"killed-{len(moments)}"))
            return function(*arguments, **more)

        return call

    with monkeypatch.context() as patched:
        for owner, method in ((NetworkStore, "commit"), (backup, "_write"), (backup, "_verify")):
            patched.setattr(owner, method, kept(getattr(owner, method)))
        MAKERS[name](given, out)
    assert moments
    for killed in moments:
        with pytest.raises(StoreMissingError, match="holds no commit yet"):
            gd.Network(killed)
        MAKERS[name](given, killed)
        assert gd.Network(killed).digest() == gd.Network(out).digest()
    # A network that is whole is not replaced.
    if name not in ("train", "copy"):
        with pytest.raises(StoreExistsError):
            MAKERS[name](given, out)


@pytest.mark.parametrize("name", ["add", "join"])
def test_a_full_disk_leaves_nothing_of_a_new_network(
    given: Given, small_disk: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out, filler, create = small_disk / "out", small_disk / "filler", NetworkStore.create

    def then_full(*arguments: Any, **more: Any) -> NetworkStore:
        made = create(*arguments, **more)
        with filler.open("wb", buffering=0) as file:
            while room := os.statvfs(small_disk).f_bavail:
                file.write(b"\0" * room * os.statvfs(small_disk).f_frsize)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(NetworkStore, "create", then_full)
        with pytest.raises(StoreWriteError):
            MAKERS[name](given, out)
    # Tasks that still write may leave a folder; it is no network, and the next attempt replaces it.
    with pytest.raises(StoreMissingError):
        gd.open(out)
    filler.unlink()
    MAKERS[name](given, out)
    assert gd.Network(out).digest()


def test_chunks_that_workers_write_after_an_attempt_was_removed_are_no_network(given: Given, tmp_path: Path) -> None:
    place = tmp_path / "net"
    (place / "chunks").mkdir(parents=True)
    (place / "chunks" / "0123456789ABCDEFGHJK").write_bytes(b"late")
    assert is_vacant(place)
    MAKERS["train"](given, place)
    (tmp_path / "own" / "chunks").mkdir(parents=True)
    (tmp_path / "own" / "chunks" / "notes.txt").touch()
    with pytest.raises(StoreExistsError, match="not a network"):
        is_vacant(tmp_path / "own")


def test_an_island_whose_file_cannot_be_written_has_no_network(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreWriteError("full")

    with monkeypatch.context() as patched:
        patched.setattr("giaann_dask.api.islands.write_island", full)
        for network in (tmp_path / "net", given.one):
            with pytest.raises(StoreWriteError):
                create_island(network, tmp_path / "a.island", {}, specification=Specification(profile="contexts"))
    assert list(tmp_path.iterdir()) == []
    assert gd.Network(given.one).manifest.sequences, "a network that was there stays"
    create_island(
        tmp_path / "net", tmp_path / "a.island", {}, specification=Specification(profile="contexts", regions=2)
    )


def test_an_island_that_was_killed_before_its_file_is_made_or_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, left, rule = tmp_path / "net", tmp_path / "left", Specification(profile="contexts")
    with monkeypatch.context() as patched:
        patched.setattr("giaann_dask.api.islands.write_island", lambda *_: shutil.copytree(network, left))
        create_island(network, tmp_path / "a.island", {}, specification=rule)
    with pytest.raises(SpecificationError, match=r"holds no text.*remove the network, or name a new network"):
        create_island(left, tmp_path / "b.island", {}, specification=Specification())
    assert create_island(left, tmp_path / "b.island", {}, specification=rule).specification.profile == "contexts"


def begin(place: str) -> NetworkStore:
    return NetworkStore.create(place, Manifest(specification=Specification()), EverPos(), finished=False)


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_network_that_was_only_begun_is_none(given: Given, tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "net") if kind == "folder" else "memory://begun"
    assert begin(place).head(), "to who makes it"
    for open_it in (NetworkStore.head, lambda store: store.open("main")):
        with pytest.raises(StoreMissingError, match="run that command again"):
            open_it(NetworkStore(place))
    with pytest.raises(StoreMissingError, match="no commit yet"):
        copy_commit(StorePlace(place), StorePlace(str(tmp_path / "copy")))
    assert [message for _, message in begin(place).commits()] == ["created"]
    copy_commit(StorePlace(str(given.one)), StorePlace(place))
    assert len(NetworkStore(place).commits()) == 1
    with pytest.raises(StoreExistsError):
        begin(place)


def test_a_network_that_was_set_back_to_its_beginning_is_kept(given: Given, tmp_path: Path) -> None:
    shutil.copytree(given.one, tmp_path / "net")
    store = NetworkStore(tmp_path / "net")
    with store.lock():
        store.reset(store.log()[-1].identity)
        with pytest.raises(KeyError), removed_unless_finished(store.path):
            raise KeyError
    assert not store.blank()
    with pytest.raises(StoreExistsError):
        begin(str(store.path))


def test_what_is_left_of_a_corpus_in_an_object_store_is_replaced() -> None:
    place = absolute_place("memory://corpus-left-unfinished")
    assert is_blank(StorePlace(str(place)).repository(make=True))
    require_absent(place)
    with pytest.raises(KeyError), new_corpus(place):
        raise KeyError
