"""A corpus that has lost a file, or has another one in its place, is refused instead of read as other numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.errors import StoreDamagedError, StoreFormatError, StoreMissingError
from giaann_dask.store.corpus import EncodedCorpus, is_corpus


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with gd.connect(workers=0) as client:
        return gd.encode(sample_text(), tmp_path_factory.mktemp("whole") / "corpus", client=client).path


def everything(path: Path) -> list[Any]:
    corpus = EncodedCorpus(path)
    block = corpus.encoded()
    counts = {name: value for name, value in corpus.describe().items() if name != "bytes_on_disk"}
    values = [getattr(block, name).tobytes() for name in ("column", "feature", "branch", "surface", "document")]
    return [counts, vars(corpus.vocabulary()), corpus.ledger(), corpus.ever_pos().as_dict(), values]


@pytest.mark.parametrize("version", [1, 3])
def test_a_corpus_of_an_earlier_version_is_refused_by_name(whole: Path, tmp_path: Path, version: int) -> None:
    place = tmp_path / "corpus"
    if version == 1:
        group = zarr.open_group(place, mode="w")
        group.attrs.update({"format": "giaann-dask corpus", "version": 1})
    else:
        shutil.copytree(whole, place)
        session = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place))).writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        del group.attrs["file_digests"]
        group.attrs["version"] = version
        session.commit("earlier")
    assert is_corpus(place), "who reads it says what is wrong"
    with pytest.raises(StoreFormatError, match=rf"version {version}.*version 4; encode the text again"):
        EncodedCorpus(place)


def exchange_arrays(group: zarr.Group) -> None:
    column, feature = np.asarray(group["column"][:]), np.asarray(group["feature"][:])
    group["column"][:], group["feature"][:] = feature, column


def lose_values(group: zarr.Group) -> None:
    group["status"].resize((0,))
    group["status"].resize((405,))


def resize_an_array(group: zarr.Group) -> None:
    group["status"].resize((404,))


def change_an_option(group: zarr.Group) -> None:
    group.attrs["branches"] = 7


@pytest.mark.parametrize("damage", [exchange_arrays, lose_values, resize_an_array, change_an_option])
def test_a_changed_repository_is_refused(whole: Path, tmp_path: Path, damage: Callable[[Any], None]) -> None:
    copy = shutil.copytree(whole, tmp_path / "corpus")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(copy)))
    session = repository.writable_session("main")
    damage(zarr.open_group(session.store, mode="a"))
    session.commit("changed")
    with pytest.raises(StoreDamagedError, match="not what was written"):
        everything(copy)
    assert is_corpus(copy), "who reads it says what is wrong"


def test_lost_files_are_refused(whole: Path, tmp_path: Path) -> None:
    for folder in ("chunks", "manifests", "snapshots", "refs"):
        copy = shutil.copytree(whole, tmp_path / folder)
        for file in list((copy / folder).rglob("*")):
            if file.is_file():
                file.unlink()
        with pytest.raises(StoreMissingError if folder == "refs" else StoreDamagedError):
            everything(copy)
