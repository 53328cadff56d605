"""A corpus that has lost a file, or has another one in its place, is refused instead of read as other numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.errors import StoreDamagedError
from giaann_dask.text.corpus import EncodedCorpus


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with gd.connect(workers=0) as client:
        return gd.encode(sample_text(), tmp_path_factory.mktemp("whole") / "corpus", client=client).path


def read_everything(path: Path) -> None:
    corpus = EncodedCorpus(path)
    corpus.describe()
    corpus.vocabulary()
    corpus.encoded()
    corpus.ledger()
    corpus.ever_pos()


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
def test_a_damaged_corpus_is_refused(whole: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    read_everything(whole)
    copy = shutil.copytree(whole, tmp_path / "corpus")
    damage(copy)
    with pytest.raises(StoreDamagedError, match="not what was written"):
        read_everything(copy)


def test_a_corpus_from_before_there_were_digests_is_read(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "corpus")
    document = json.loads((copy / "zarr.json").read_text())
    for name in ("file_digests", "digest"):
        del document["attributes"][name]
    (copy / "zarr.json").write_text(json.dumps(document))
    read_everything(copy)
    assert EncodedCorpus(copy).attributes == EncodedCorpus(whole).attributes
