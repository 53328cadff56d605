"""Test dictionaries, flags, skip reasons, segmentation and branches against the golden files; no cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.conformance import golden_run, read_json
from support.golden_training import EWT_NAMES, STATUS, GoldenSet, ewt_set, golden_sequences, synthetic_set
from support.summed_increments import connect_summed

from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import CANDIDATE, FilterOptions
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tagging import tag_part
from giaann_dask.text.vocabulary import Vocabulary, summarise


def encode(golden: GoldenSet, part_characters: int) -> tuple[Vocabulary, list[EncodedBlock]]:
    ever_pos = EverPos.from_json(golden.ever_pos)
    vocabulary, blocks, left = Vocabulary(), [], golden.max_sequences
    options = FilterOptions(seed_tokens=golden.seed_tokens, maximum_tokens=80)
    for part in read_parts([str(golden.text)], ReadOptions(part_characters=part_characters)):
        builder = BlockBuilder(ever_pos, options)
        builder.add_part(tag_part(part, "gold"))
        tagged = builder.build()
        blocks.append(encode_block(tagged, vocabulary.extend(summarise(tagged), left), Specification()))
        left -= len(blocks[-1])
    return vocabulary, blocks


def check(golden: GoldenSet) -> None:
    vocabulary, blocks = encode(golden, 20_000)
    assert len(blocks) > 2, "several blocks, so that the ordered merge is exercised"
    theirs = read_json(golden.folder / "dictionary.json.gz")
    assert vocabulary.concepts == theirs["concepts_mem"]
    assert vocabulary.features == theirs["features_mem"]
    assert vocabulary.delimiter == theirs["det_mem"]
    assert list(vocabulary.probable()) == theirs["prob_mem"]
    lines = iter(golden_sequences(golden.folder))
    for block in blocks:
        for q in range(len(block)):
            line, where = next(lines), slice(*block.offsets[q : q + 2])
            assert block.status[q] == STATUS[str(line["status"])]
            if block.status[q] == CANDIDATE:
                assert block.column[where].tolist() == line["col"]
                assert block.feature[where].tolist() == line["feat"]
                assert block.branch[where].tolist() == line["branch"]
                assert block.occurrence[where].tolist() == line["occ"]
    assert next(lines, None) is None
    check_connections(golden, blocks)


def check_connections(golden: GoldenSet, blocks: list[EncodedBlock]) -> None:
    specification = Specification(flags="history", seed_tokens=golden.seed_tokens)
    placement = Placement(specification.regions)
    runs = connect_summed(blocks, specification, placement)
    ours, theirs = merge_runs([run.connections for run in runs.values()]), golden_run(golden.folder)
    np.testing.assert_array_equal(ours.source, theirs.source)
    np.testing.assert_array_equal(ours.pointer, theirs.pointer)
    np.testing.assert_array_equal(ours.target, theirs.target)
    np.testing.assert_allclose(ours.strength, theirs.strength, rtol=1e-5)


def test_encoding_of_the_synthetic_set(data_folder: Path) -> None:
    check(synthetic_set(data_folder))


@pytest.mark.parametrize("name", EWT_NAMES)
def test_encoding_of_the_treebank(shared_folder: Path, name: str) -> None:
    check(ewt_set(shared_folder, name))
