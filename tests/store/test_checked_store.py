"""A corpus that has lost a file, or has another one in its place, is refused instead of read as other numbers."""

from __future__ import annotations

import hashlib
import json
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
from giaann_dask.errors import StoreDamagedError, StoreMissingError
from giaann_dask.storage import create_array
from giaann_dask.store.corpus import EncodedCorpus, is_corpus


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with gd.connect(workers=0) as client:
        return gd.encode(sample_text(), tmp_path_factory.mktemp("whole") / "corpus", client=client).path


@pytest.fixture(scope="module")
def earlier(whole: Path) -> Path:
    """Return the corpus in format 1, a folder with a Zarr group and digests of its files."""
    corpus, folder = EncodedCorpus(whole), whole.with_name("earlier")
    group = zarr.open_group(folder, mode="w")
    for name, array in corpus._group.arrays():
        create_array(group, name, np.asarray(array[:]))
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / "zarr.json")
    sums = {file.relative_to(folder).as_posix(): digest(file.read_bytes()) for file in files}
    attributes = {**corpus.attributes, "version": 1, "file_digests": sums}
    group.attrs.update({**attributes, "digest": digest(json.dumps(attributes, sort_keys=True).encode())})
    return folder


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def everything(path: Path) -> list[Any]:
    corpus = EncodedCorpus(path)
    block = corpus.encoded()
    counts = {name: value for name, value in corpus.describe().items() if name != "bytes_on_disk"}
    values = [getattr(block, name).tobytes() for name in ("column", "feature", "branch", "surface", "document")]
    return [counts, vars(corpus.vocabulary()), corpus.ledger(), corpus.ever_pos().as_dict(), values]


def lose_a_chunk(corpus: Path) -> None:
    (corpus / "column" / "c" / "0").unlink()


def exchange_chunks(corpus: Path) -> None:
    column, feature = (corpus / name / "c" / "0" for name in ("column", "feature"))
    content = column.read_bytes()
    column.write_bytes(feature.read_bytes())
    feature.write_bytes(content)


def shorten_an_array(corpus: Path) -> None:
    metadata = corpus / "status" / "zarr.json"
    document = json.loads(metadata.read_text())
    document["shape"][0] -= 1
    metadata.write_text(json.dumps(document))


def change_an_attribute(corpus: Path) -> None:
    metadata = corpus / "zarr.json"
    document = json.loads(metadata.read_text())
    document["attributes"]["branches"] += 1
    metadata.write_text(json.dumps(document))


@pytest.mark.parametrize("damage", [lose_a_chunk, exchange_chunks, shorten_an_array, change_an_attribute])
def test_a_damaged_folder_is_refused(earlier: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    copy = shutil.copytree(earlier, tmp_path / "corpus")
    damage(copy)
    with pytest.raises(StoreDamagedError, match="not what was written"):
        everything(copy)


def test_a_corpus_of_format_1_is_read(whole: Path, earlier: Path) -> None:
    assert is_corpus(whole)
    assert is_corpus(earlier)
    assert everything(earlier) == everything(whole)


def test_a_corpus_from_before_there_were_digests_is_read(earlier: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(earlier, tmp_path / "corpus")
    document = json.loads((copy / "zarr.json").read_text())
    for name in ("file_digests", "digest"):
        del document["attributes"][name]
    (copy / "zarr.json").write_text(json.dumps(document))
    assert everything(copy) == everything(earlier)
    assert EncodedCorpus(copy).attributes == EncodedCorpus(earlier).attributes


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
