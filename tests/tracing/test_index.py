"""The index of a network and the network agree, after training, sums, differences and compaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.indexed_networks import assert_index_agrees
from support.plain_training import sentences
from support.stored_networks import reader_of
from support.summed_increments import connect_summed
from support.tagged_tokens import EVER, OPTIONS

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.errors import OptionError, SpecificationError
from giaann_dask.keys import unpack_target
from giaann_dask.models.columns.connections import TokenPlaces, pair_increments
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import pack, unpack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import (
    Postings,
    find_postings,
    join_postings,
    make_postings,
    read_postings,
    sequence_ranges,
)
from giaann_dask.spec import Specification
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tokens import TaggedSentence, TaggedText
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training.maintenance import compact_network

PARAGRAPHS = sample_text().read_text(encoding="utf-8").split("\n\n")
DOCUMENTS = ["\n\n".join(PARAGRAPHS[at::12]) for at in range(3)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@examples(25)
@given(
    text=sentences,
    cut=st.integers(0, 14),
    specification=st.sampled_from(
        [
            Specification(trace=True),
            Specification(trace=True, pos_factors={"VERB": 3.0}),
            Specification(trace=True, pos_factors={"VERB": 3.0, "DET": 2.0}, pos_scope="all"),
            Specification(profile="v2", trace=True),
            Specification(profile="v2", trace=True, lif=False, column_catch_all=True, self_transitions=True),
        ]
    ),
)
def test_postings_give_every_strength(text: list[TaggedSentence], cut: int, specification: Specification) -> None:
    vocabulary, found = Vocabulary(), []
    for part in (text[:cut], text[cut:]):
        builder = BlockBuilder(EVER, OPTIONS)
        builder.add_part(TaggedText.of(part))
        block = builder.build()
        encoded = encode_block(block, vocabulary.extend(summarise(block)), specification)
        found.extend(connect_summed([encoded], specification, Placement(1)).values())
    connections = merge_runs([run.connections for run in found])
    postings = merge_runs([run.postings for run in found if run.postings is not None])

    def places(neuron: int) -> TokenPlaces:
        row = postings.row(neuron)
        assert row is not None
        return TokenPlaces.of(read_postings(*row))

    segments, neurons, branches = unpack_target(connections.target)
    sources = np.repeat(connections.source, np.diff(connections.pointer))
    for source, target, segment, branch, strength in zip(
        *(each.tolist() for each in (sources, neurons, segments, branches, connections.strength)), strict=True
    ):
        _, units = pair_increments(places(source), places(target), segment, branch, specification)
        assert units.sum() == strength
        assert (units > 0).all()


@examples(40)
@given(
    places=st.sets(
        st.tuples(
            st.integers(0, 5),
            st.one_of(st.integers(0, 3), st.integers(0, (1 << 40) - 1)),
            st.one_of(st.integers(0, 300), st.integers(0, (1 << 23) - 1)),
        ),
        max_size=30,
    ),
    chunk=st.integers(1, 40),
    limit=st.integers(1, 30),
)
def test_postings_survive_packing(places: set[tuple[int, int, int]], chunk: int, limit: int) -> None:
    columns = np.array(sorted(places), np.int64).reshape(-1, 3).T
    run = make_postings(columns[0], Postings(columns[1], columns[2], columns[2] % 7))
    packed = pack(run, chunk, gaps=True)
    back = unpack(packed)
    assert all(
        np.array_equal(getattr(back, name), getattr(run, name)) for name in ("source", "pointer", "target", "strength")
    )
    for source in np.unique(columns[0]).tolist():
        row = back.row(source)
        assert row is not None
        of = columns[:, columns[0] == source]
        expected = [*of[1:].tolist(), (of[2] % 7).tolist()]
        assert [each.tolist() for each in read_postings(*row)] == expected
        parts = find_postings([RowReader(packed.read)], source, limit, 3)
        assert len(parts) == 1 or max(part.targets for part in parts) <= 3
        found = [join_postings(parts, low, high) for low, high in sequence_ranges(parts, limit)]
        assert [np.concatenate(each).tolist() for each in zip(*found, strict=True)] == expected


@pytest.mark.parametrize("profile", ["v2", "contexts"])
def test_index_follows_the_network(profile: str, client: Client, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if profile == "contexts" else {"flags": "canonical"}
    if profile == "v2":
        options["pos_factors"] = {"VERB": 3.0, "NOUN": 0.5}
    rules = gd.Specification(profile=profile, trace=True, regions=2, **options)
    plain = gd.Specification(profile=profile, regions=1, **options)
    parts = []
    for number, text in enumerate(DOCUMENTS[:2]):
        path = tmp_path / str(number)
        if not number:
            # In two trainings, the first of which ends within a part of text.
            some = gd.TrainingOptions(batch_sequences=10, max_sequences=15)
            gd.train([text], path, client=client, specification=rules, options=some)
        parts.append(gd.train([text], path, client=client, specification=rules))
    assert_index_agrees(reader_of(parts[0]))
    alone = gd.train([DOCUMENTS[0]], tmp_path / "alone", client=client, specification=plain)
    assert parts[0].digest() == alone.digest()
    whole = gd.add(parts, tmp_path / "sum", client=client)
    assert_index_agrees(reader_of(whole))
    with pytest.raises(SpecificationError, match="has an index of its sequences"):
        gd.add([parts[1], alone], tmp_path / "none", client=client)
    gd.forget(whole, [DOCUMENTS[1]], client=client, renumber=True)
    rest = gd.open(whole.path)
    assert_index_agrees(reader_of(rest))
    assert rest.digest() == parts[0].digest()
    again = gd.train([DOCUMENTS[1]], whole.path, client=client)
    compact_network(client, NetworkStore(again.path))
    compacted = gd.open(again.path)
    assert_index_agrees(reader_of(compacted))
    assert {run.index_bytes > 0 for run in compacted.manifest.runs} == {True}
    assert compacted.describe()["index"]["bytes"] <= compacted.describe()["index"]["network_bytes"]
    with pytest.raises(OptionError, match="has no index"):
        alone.trace("The old miller")


@pytest.mark.parametrize(("profile", "flags"), [("v1", "history"), ("contexts", "history")])
def test_an_index_made_afterwards_is_that_of_training_with_it(
    profile: Any, flags: Any, client: Client, tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(len(DOCUMENTS))]
    for file, text in zip(files, DOCUMENTS, strict=True):
        file.write_text(text, encoding="utf-8")
    rule = gd.Specification(profile=profile, flags=flags, regions=2)
    traced = gd.train(files, tmp_path / "traced", client=client, specification=replace(rule, trace=True))
    plain = gd.train(files[:1], tmp_path / "plain", client=client, specification=rule)
    plain = gd.train(files[1:], plain.path, client=client)
    other = tmp_path / "other.txt"
    other.write_text("A young cat sat on the grey mat in the cold hall of the old house.", encoding="utf-8")
    # In another order where the network does not depend on it, and with text that it was not trained on.
    given = files if flags == "history" and profile == "v1" else [files[2], other, files[0], files[1]]
    indexed = gd.index(plain, given, client=client)
    assert_index_agrees(reader_of(indexed))
    assert indexed.digest() == plain.digest() == traced.digest()
    assert indexed.commits()[0][1].endswith("with an index")
    options = {"max_tokens": 3, "sentences": 100, "client": client}
    one, two = (each.trace("The old miller carried the flour", **options) for each in (traced, indexed))
    assert one.tokens == two.tokens
    assert any(token.connections for token in one.tokens)
    assert gd.index(indexed, files[0], client=client).commit == indexed.commit, "it has one"
    # Later training extends it, and need not name it.
    later = gd.train(other, indexed.path, client=client, specification=rule)
    assert later.manifest.sequences == plain.manifest.sequences + 1
    assert_index_agrees(reader_of(later))


def test_an_index_of_other_text_is_refused(client: Client, tmp_path: Path) -> None:
    rule = gd.Specification(regions=1)
    net = gd.train([DOCUMENTS[0]], tmp_path / "net", client=client, specification=rule)
    with pytest.raises(OptionError, match=r"1 of 1 parts of text .* are not in the inputs"):
        gd.index(net, [DOCUMENTS[1]], client=client)
    few = gd.TrainingOptions(max_sequences=5)
    part = gd.train([DOCUMENTS[0]], tmp_path / "part", client=client, specification=rule, options=few)
    with pytest.raises(OptionError, match="trained on 1 of 1 parts of text in part"):
        gd.index(part, [DOCUMENTS[0]], client=client)
    small = gd.prune(net, tmp_path / "small", keep=0.5, client=client)
    with pytest.raises(SpecificationError, match="was pruned"):
        gd.index(small, [DOCUMENTS[0]], client=client)
    history = gd.Specification(flags="history", regions=1)
    ordered = [tmp_path / f"{number}.txt" for number in range(2)]
    texts = ("The dog was like the cat in the house of the man.", "The dog did like the cat in the house of the man.")
    for file, text in zip(ordered, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    net = gd.train(ordered, tmp_path / "ordered", client=client, specification=history)
    with pytest.raises(OptionError, match="differ from the connections"):
        gd.index(net, ordered[::-1], client=client)
    assert not net.specification.trace
    assert [path.name for path in tmp_path.iterdir() if "index" in path.name] == []
