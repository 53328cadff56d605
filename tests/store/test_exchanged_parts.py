"""Parts of a network that are intact, but of another array or commit, are refused instead of read as other numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.errors import StoreDamagedError
from giaann_dask.runs.packing import pack, unpack
from giaann_dask.runs.run import Run
from giaann_dask.store.network_store import NetworkStore


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two commits."""
    folder = tmp_path_factory.mktemp("whole")
    lines = sample_text().read_text(encoding="utf-8").splitlines()[:12]
    texts = [folder / "first.txt", folder / "second.txt"]
    for text, some in zip(texts, (lines[:6], lines[6:]), strict=True):
        text.write_text("\n".join(some), encoding="utf-8")
    with gd.connect(workers=0) as client:
        for text in texts:
            gd.train(text, folder / "net", client=client)
    return folder / "net"


def test_a_chunk_of_another_array() -> None:
    run = Run(np.array([5, 9]), np.array([0, 2, 3]), np.array([1, 3, 4]), np.array([7, 9, 8], np.int32))
    packed = pack(run)
    column, feature = "source_column/c/0", "source_feature/c/0"
    assert len(packed.entries[column]) == len(packed.entries[feature])
    exchanged = {**packed.entries, column: packed.entries[feature], feature: packed.entries[column]}
    with pytest.raises(StoreDamagedError, match="checksum"):
        unpack(replace(packed, entries=exchanged))


def change(network: Path, edit: Callable[[Any], None]) -> None:
    """Commit something that training does not commit."""
    session = NetworkStore(network).begin()
    edit(zarr.open_group(session.store, mode="a"))
    session.commit("by someone else")


def one_flag_more(root: Any) -> None:
    root["delimiter"][1] = not root["delimiter"][1]


def one_token_more(root: Any) -> None:
    manifest = dict(root.attrs["manifest"])
    root.attrs["manifest"] = {**manifest, "tokens": manifest["tokens"] + 1}


def no_manifest(root: Any) -> None:
    del root.attrs["manifest"]


def no_checksums(root: Any) -> None:
    del root.attrs["checksums"]


def another_commit_of_a_run(root: Any) -> None:
    root.attrs["run_commits"] = {"0" * 20: [run["identity"] for run in root.attrs["manifest"]["runs"]]}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        *((edit, "not what was written") for edit in (one_flag_more, one_token_more, no_checksums)),
        *((another_commit_of_a_run, "not what was written"), (no_manifest, "is missing")),
    ],
)
def test_an_array_or_a_manifest_that_training_did_not_write(
    whole: Path, tmp_path: Path, edit: Callable[[Any], None], message: str
) -> None:
    copy = shutil.copytree(whole, tmp_path / "net")
    change(copy, edit)
    with pytest.raises(StoreDamagedError, match=message):
        gd.Network(copy).export(tmp_path / "x.npz")


def test_a_commit_in_the_file_of_another(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "net")
    (last, _), (first, _), _ = gd.Network(copy).commits()
    files = [copy / "snapshots" / name for name in (last, first)]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        file.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=f"holds commit {first}"):
        gd.Network(copy)


def test_a_history_that_names_another_commit(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "net")
    (_, _), (first, _), (created, _) = gd.Network(copy).commits()
    (copy / "snapshots" / first).write_bytes((copy / "snapshots" / created).read_bytes())
    with pytest.raises(StoreDamagedError, match=first):
        gd.Network(copy).commits()
