"""Profile v2 from text to connections against the golden files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden_training import check_connections
from support.golden_v2 import (
    WORDS,
    GoldenSet,
    check_sequences,
    check_table,
    connections_of,
    ewt_subwords,
    ewt_words,
    synthetic_subwords,
    synthetic_words,
)

import giaann_dask as gd
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import FilterOptions
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.subword_blocks import SubwordBlockBuilder
from giaann_dask.text.tagging import tag_part
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.vocabulary import Vocabulary, summarise


def encode(golden: GoldenSet, part_characters: int) -> tuple[Vocabulary, list[EncodedBlock]]:
    """Encode a set's text part by part, as the cluster does."""
    specification = golden.specification
    subwords = SubwordTokenizer.from_file(golden.tokenizer) if specification.tokens == "subwords" else None
    vocabulary = Vocabulary() if subwords is None else Vocabulary.of_subwords(subwords.names)
    blocks: list[EncodedBlock] = []
    left, options = golden.max_sequences, FilterOptions.of(specification)
    reading = ReadOptions(part_characters=part_characters, newdoc=True, group=specification.sentences_per_sequence)
    for part in read_parts([str(golden.text)], reading):
        if subwords is None:
            builder = BlockBuilder(EverPos.from_json(golden.ever_pos), options)
            builder.add_part(tag_part(part, "gold"))
        else:
            builder = SubwordBlockBuilder(subwords, options)
            builder.add_part(tag_part(part, "gold"))
        tagged = builder.build()
        mapping = vocabulary.extend(summarise(tagged), left)
        blocks.append(encode_block(tagged, mapping, specification))
        left -= len(blocks[-1])
    return vocabulary, blocks


def check_words(golden: GoldenSet) -> None:
    vocabulary, blocks = encode(golden, 20_000)
    assert len(blocks) > 2, "several blocks, so that the ordered merge is exercised"
    theirs = golden.dictionary()
    assert vocabulary.concepts == theirs["concepts"]
    assert vocabulary.features[1:] == theirs["features"][1:]
    assert vocabulary.delimiter == theirs["det"]
    assert list(vocabulary.probable()) == theirs["prob"]
    check_sequences(golden, blocks)
    check_table(connections_of(blocks, golden.specification), golden.folder / "connections.npz")


def test_synthetic_words(data_folder: Path) -> None:
    check_words(synthetic_words(data_folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_ewt_words(shared_folder: Path, name: str) -> None:
    check_words(ewt_words(shared_folder, name))


def check_subwords(golden: GoldenSet, over: int | None) -> None:
    vocabulary, blocks = encode(golden, 20_000)
    assert len(blocks) > 2, "several blocks, so that the ordered merge is exercised"
    theirs = golden.dictionary()
    assert (len(vocabulary.concepts), len(vocabulary.features)) == (theirs["n_concepts"], theirs["n_features"])
    assert [i for i, flag in enumerate(vocabulary.delimiter) if flag] == theirs["det_features"]
    assert [i for i, flag in enumerate(vocabulary.probable()) if flag] == theirs["prob_features"]
    check_sequences(golden, blocks, over)
    check_table(connections_of(blocks, golden.specification), golden.folder / "connections.npz")


def test_synthetic_subwords(data_folder: Path) -> None:
    pytest.importorskip("tokenizers")
    check_subwords(synthetic_subwords(data_folder), over=81)


@pytest.mark.slow
def test_ewt_subwords(shared_folder: Path) -> None:
    pytest.importorskip("tokenizers")
    check_subwords(ewt_subwords(shared_folder), over=None)


def train(golden: GoldenSet, network: Path, workers: int, limits: tuple[int, ...]) -> bytes:
    """Train in small parts, going on after each limit; check what is exported and return it."""
    words = golden.specification.tokens == "words"
    choice = {"ever_pos": str(golden.ever_pos)} if words else {"tokenizer": str(golden.tokenizer)}
    text = gd.TextOptions(tagger="gold", reading=ReadOptions(part_characters=9000), **choice)
    rule = golden.specification
    with gd.connect(workers=workers) as client:
        for limit in limits:
            options = gd.TrainingOptions(batch_sequences=32, block_characters=18_000, max_sequences=limit)
            trained = gd.train(golden.text, network, client=client, specification=rule, text=text, options=options)
    assert trained.manifest.sequences == golden.max_sequences
    exported = trained.export(network.with_suffix(".npz"))
    check_connections(exported.connections, golden.folder / "connections.npz")
    return exported.connections.read_bytes() + exported.dictionaries.read_bytes() + exported.neurons.read_bytes()


@pytest.mark.cluster
def test_words_on_a_cluster(data_folder: Path, tmp_path: Path) -> None:
    golden = synthetic_words(data_folder)
    train(golden, tmp_path / "net", 2, (50, golden.max_sequences))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("tokens", ["words", "subwords"])
def test_exports_do_not_depend_on_workers_and_stops(data_folder: Path, tmp_path: Path, tokens: str) -> None:
    if tokens == "subwords":
        pytest.importorskip("tokenizers")
    golden = synthetic_words(data_folder) if tokens == "words" else synthetic_subwords(data_folder)
    once = train(golden, tmp_path / "once", 0, (golden.max_sequences,))
    for workers in (1, 2, 4):
        assert train(golden, tmp_path / f"net{workers}", workers, (50, golden.max_sequences)) == once
