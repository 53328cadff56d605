"""Files appear when they are complete, an older one stays until then, and what kept them from it is told rightly."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.diagnostics.pictures.draw_options import save_figure
from giaann_dask.encoding.lexicon import save_tokenizer
from giaann_dask.errors import StoreFullError, StoreRefusedError
from giaann_dask.storage import replacing, write_file, writing
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.training.maintenance import compact_network


def fill(disk: Path, left: int = 0) -> None:
    """Leave so many bytes, about, on a disk."""
    with (disk / "filler").open("wb") as file:
        block = os.statvfs(disk).f_frsize
        while os.statvfs(disk).f_bavail * block > left:
            file.write(b"\0" * block)
            file.flush()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    """A network of 2 commits, some of whose regions have several runs."""
    folder = tmp_path_factory.mktemp("written")
    with gd.connect(workers=0) as client:
        for number, sentences in enumerate((300, 40)):
            text = write_village(folder / f"{number}.txt", sentences, number)
            options = gd.TrainingOptions(batch_sequences=40, block_characters=2000)
            network = gd.train(text, folder / "net", client=client, options=options)
    assert len(network.manifest.runs) > len(network.manifest.runs_by_region())
    return network


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.EROFS, "Read-only file system"), StoreRefusedError, "file system that may be written"),
        (RuntimeError("x session error: snapshot timestamp is invalid, please"), StoreRefusedError, "set the clock of"),
        (RuntimeError("x session error: invalid snapshot timestamp ordering"), StoreRefusedError, "set the clock of"),
        (RuntimeError("x object store: Read-only file system (os error 30)"), StoreRefusedError, "file system that"),
        (OSError(errno.EACCES, "Permission denied"), StoreRefusedError, "a path that may be written"),
        (RuntimeError("x object store: Permission denied (os error 13)"), StoreRefusedError, "a path that may"),
        (OSError(errno.ENOSPC, "No space left on device"), StoreFullError, "room on the disk"),
        (RuntimeError("x object store: No space left on device (os error 28)"), StoreFullError, "room on the disk"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StoreFullError, "room within the disk quota"),
        (RuntimeError("x object store: Disk quota exceeded (os error 122)"), StoreFullError, "disk quota; remove"),
    ],
)
def test_why_something_was_not_written(error: Exception, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said), writing("the network"):
        raise error


@pytest.mark.cluster
def test_a_read_only_file_system_is_no_full_disk(
    small_disk: Path, network: gd.Network, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(network.path, small_disk / "net")
    text = write_village(small_disk / "more.txt", 30, 9)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for arguments in (
        ("train", str(text), "--network", str(small_disk / "net"), "--workers", "0"),
        ("compact", str(small_disk / "net"), "--workers", "0"),
        ("export", str(small_disk / "net"), "--out", str(small_disk / "net.npz")),
        ("report", str(small_disk / "net"), "--out", str(small_disk / "net.html")),
    ):
        assert run(arguments) == 2
        said = capsys.readouterr().err
        assert "ead-only file system" in said, said
        assert "mount this one for writing" in said, said
        assert "space" not in said


@pytest.mark.cluster
def test_compaction_on_a_full_disk_says_what_helps(small_disk: Path, network: gd.Network) -> None:
    store = NetworkStore(shutil.copytree(network.path, small_disk / "net"))
    before = store.head()
    fill(small_disk)
    with gd.connect(workers=0) as client:
        with pytest.raises(StoreFullError, match=r"compact") as failure:
            compact_network(client, store)
        said = str(failure.value)
        assert "B of free space" in said, said
        assert "larger one" in said, said
        assert "free some space" not in said
        assert store.head() == before
        # As what a failed commit has left.
        (small_disk / "filler").rename(small_disk / "net" / "chunks" / ("0" * 20))
        assert compact_network(client, store, 1).runs == len(network.manifest.runs_by_region())


def writers(network: gd.Network, folder: Path) -> dict[str, Callable[[], object]]:
    """What writes a file, by the name of the file."""
    tokenizer = SubwordTokenizer.learn(["the old miller carried the flour " * 9], 280)
    # Drawing the pictures takes seconds.
    report = functools.cache(network.report)
    return {
        "net.npz": lambda: network.export(folder / "net.npz"),
        "picture.svg": lambda: save_figure(network.draw(["miller"]), folder / "picture.svg"),
        "report.html": lambda: report().save(folder / "report.html"),
        "tokens.json": lambda: save_tokenizer(tokenizer, folder / "tokens.json"),
    }


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["net.npz", "picture.svg", "report.html", "tokens.json"])
def test_a_full_disk_leaves_no_part_of_a_file(small_disk: Path, network: gd.Network, name: str) -> None:
    write = writers(network, small_disk)[name]
    fill(small_disk)
    with pytest.raises(StoreFullError, match=name):
        write()
    assert [file.name for file in small_disk.iterdir()] == ["filler"]
    (small_disk / "filler").unlink()
    write()
    before = {file: file.read_bytes() for file in small_disk.iterdir()}
    fill(small_disk)
    with pytest.raises(StoreFullError, match=name):
        write()
    assert {file: file.read_bytes() for file in small_disk.iterdir() if file.name != "filler"} == before


def fail_after(partial: Path) -> None:
    partial.write_text("half")
    raise OSError("later")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_text("old")
    old.chmod(0o640)
    link.symlink_to(old)
    with pytest.raises(OSError, match="later"), replacing(link) as partial:
        fail_after(partial)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "old"]
    assert old.read_text() == "old"
    write_file(link, "new")
    assert link.is_symlink()
    assert (old.read_text(), old.stat().st_mode & 0o777) == ("new", 0o640)
    write_file(Path(os.devnull), "nothing")


def test_the_files_of_an_export_are_replaced_together(
    tmp_path: Path, network: gd.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = network.export(tmp_path / "net.npz")
    for file in files:
        file.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("giaann_dask.store.export.save_dictionaries", fail)
    with pytest.raises(StoreFullError, match=r"net\.json could not be written"):
        network.export(tmp_path / "net.npz")
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert {file.read_text() for file in files} == {"old"}
