"""Writing corpora: the sizes of chunks and blocks change no value, and what is left of a failure is no corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.encoding import corpus_encoding
from giaann_dask.encoding.corpus_encoding import BlockPiece, ChunkedAxis, sequence_arrays, write_sequences, write_tokens
from giaann_dask.errors import StoreExistsError, StoreRefusedError
from giaann_dask.store import corpus_writing
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.store.corpus_writing import CorpusContent, new_corpus
from giaann_dask.store.unfinished import UNFINISHED


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> EncodedCorpus:
    with gd.connect(workers=0) as client:
        return gd.encode(sample_text(), tmp_path_factory.mktemp("corpora") / "corpus", client=client)


def arrays(corpus: EncodedCorpus) -> dict[str, npt.NDArray[Any]]:
    return {name: np.asarray(array[:]) for name, array in corpus.group.arrays()}


def content(corpus: EncodedCorpus) -> CorpusContent:
    return CorpusContent(
        tokens=corpus.tokens,
        sequences=len(corpus),
        vocabulary=corpus.vocabulary(),
        surfaces=corpus.strings("surfaces"),
        ledger=corpus.ledger(),
        attributes={},
        ever_pos=corpus.ever_pos(),
    )


def written_again(
    corpus: EncodedCorpus, path: Path, chunk: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> EncodedCorpus:
    """Write a corpus again, with chunks and blocks of other sizes, without a cluster."""
    monkeypatch.setattr(corpus_encoding, "CHUNK", chunk)
    monkeypatch.setattr(corpus_writing, "_LONGEST", chunk << 20)
    created = corpus_writing.create_array
    monkeypatch.setattr(corpus_writing, "create_array", lambda *given: created(*given, chunk=chunk))
    tokens, sequences = ChunkedAxis(), ChunkedAxis()
    known = np.arange(len(corpus.strings("surfaces")), dtype=np.int32)
    written = []
    with new_corpus(path) as writer:
        fork = writer.fork()

        def write(function: Any, cut: Any, argument: Any) -> None:
            blocks, ranges = [piece.block for piece in cut.pieces], [(piece.low, piece.high) for piece in cut.pieces]
            written.append(function(fork, cut.start, blocks, ranges, argument))

        def write_cut(cut: Any) -> None:
            if cut is not None and cut.pieces:
                write(write_tokens, cut, [piece.numbers for piece in cut.pieces])

        for start in range(0, len(corpus), block):
            encoded = corpus.encoded(start, min(start + block, len(corpus)))
            origins = sequence_arrays(encoded, tokens.length)
            write_cut(tokens.add(BlockPiece(encoded, 0, int(encoded.offsets[-1]), known)))  # type: ignore[arg-type]
            cut = sequences.add(BlockPiece(origins, 0, len(encoded)))  # type: ignore[arg-type]
            if cut is not None:
                write(write_sequences, cut, None)
        write_cut(tokens.rest())
        write(write_sequences, sequences.rest(), tokens.length)
        # A chunk has one writer.
        keys = [key for each in written for key in each.digests]
        assert len(keys) == len(set(keys))
        assert not is_corpus(path), "it is there when it is complete"
        writer.finish(written, content(corpus))
    return EncodedCorpus(path)


@pytest.mark.parametrize(("chunk", "block"), [(1 << 18, 50), (64, 7), (81, 405)])
def test_chunks_and_blocks_of_any_size_make_the_same_corpus(
    corpus: EncodedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, block: int
) -> None:
    assert len(corpus) == 405
    again = written_again(corpus, tmp_path / "again", chunk, block, monkeypatch)
    expected, found = arrays(corpus), arrays(again)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert values.dtype == found[name].dtype
        np.testing.assert_array_equal(values, found[name])


def test_a_failure_leaves_no_corpus_and_a_killed_process_does_not_block_another(
    corpus: EncodedCorpus, tmp_path: Path
) -> None:
    def fail() -> None:
        raise KeyError("a failure")

    path = tmp_path / "new"
    with pytest.raises(KeyError), new_corpus(path):
        fail()
    assert not path.exists()
    (path / UNFINISHED / "chunks").mkdir(parents=True)
    (path / "writer.lock").touch()
    with new_corpus(path) as writer:
        end = write_sequences(writer.fork(), 0, [], [], 0)
        empty = CorpusContent(**{**vars(content(corpus)), "tokens": 0, "sequences": 0})
        writer.finish([end], empty)
    assert (is_corpus(path), len(EncodedCorpus(path)), (path / UNFINISHED).exists()) == (True, 0, False)
    with pytest.raises(StoreExistsError, match="exists already"), new_corpus(path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(StoreExistsError, match="exists already"), new_corpus(tmp_path / "file"):
        pass
    with pytest.raises(StoreRefusedError, match="UTF-8"), new_corpus(tmp_path / "c\udcff"):
        pass


def test_two_tasks_that_have_written_one_chunk_are_refused(corpus: EncodedCorpus, tmp_path: Path) -> None:
    """Icechunk keeps the last of two forks that have written one chunk (`findings/icechunk_merge_one_chunk.sh`)."""
    block = sequence_arrays(corpus.encoded(0, 50), 0)
    with pytest.raises(RuntimeError, match="two tasks have written "), new_corpus(tmp_path / "new") as writer:  # noqa: PT012
        written = [write_sequences(writer.fork(), 0, [block], [part], None) for part in ((0, 25), (25, 50))]
        writer.finish(written, content(corpus))
    assert not is_corpus(tmp_path / "new")


def test_a_network_is_no_corpus(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        network = gd.train(sample_text(), tmp_path / "net", client=client)
    assert not is_corpus(network.path)
    assert zarr.open_group(network.zarr_store(), mode="r").attrs["format"] == "giaann-dask network"
