"""Writing corpora: how many blocks are appended together changes no byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.text.corpus import CorpusWriter, EncodedCorpus


def rewritten(corpus: EncodedCorpus, path: Path, buffer_tokens: int) -> dict[str, bytes]:
    """Write the blocks of a corpus again; return the content of the files by name."""
    writer = CorpusWriter(path, buffer_tokens)
    for start in range(0, len(corpus), 50):
        writer.append(corpus.encoded(start, min(start + 50, len(corpus))))
    writer.finish(corpus.vocabulary(), corpus.ledger(), {}, corpus.ever_pos())
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_blocks_that_are_appended_together_make_the_same_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gd.connect(workers=0):
        corpus = gd.encode(sample_text(), tmp_path / "corpus")
    appended: list[str] = []
    append = zarr.Array.append
    monkeypatch.setattr(
        zarr.Array, "append", lambda array, *values: appended.append(array.name) or append(array, *values)
    )
    one_by_one = rewritten(corpus, tmp_path / "each", 1)
    most = len(appended)
    # Of the arrays that grow, only that of offsets has a value before.
    assert rewritten(corpus, tmp_path / "together", 1 << 20) == one_by_one
    assert len(appended) - most == 1 < most
    assert len(one_by_one) > 20
