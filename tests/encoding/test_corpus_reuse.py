"""Test that reusing a corpus's identifiers equals encoding it again: dictionaries, ledger, sizes, increments."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from support.summed_increments import connect_summed
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import result
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.vocabulary import Vocabulary

SPECIFICATION = Specification(flags="history")


@pytest.fixture(scope="module")
def client() -> Any:
    with gd.connect(workers=0) as client:
        yield client


@pytest.fixture(scope="module")
def corpora(client: Client, tmp_path_factory: pytest.TempPathFactory) -> list[gd.EncodedCorpus]:
    """Return two corpora of a few parts each, with sequences of every status."""
    folder, found = tmp_path_factory.mktemp("corpora"), []
    for seed in (2, 3):
        text = write_village(folder / f"{seed}.txt", 100, seed)
        text.write_text(
            text.read_text() + "\n\nIt was as we all had said it was , too .\n\nDogs dogs dogs dogs dogs dogs dogs !"
        )
        options = gd.TextOptions(reading=ReadOptions(part_characters=1000))
        corpus = folder / f"corpus-{seed}"
        found.append(gd.encode(text, corpus, client=client, specification=SPECIFICATION, text=options))
    return found


State = tuple[Vocabulary, Ledger]


def read(
    client: Client, inputs: list[gd.EncodedCorpus], branches: int = 2, state: State | None = None, **options: Any
) -> tuple[list[str], Any]:
    """Return the task names, and everything that training uses of the blocks of some corpora.

    The state of a network before is updated as training does.
    """
    vocabulary, ledger = state or (Vocabulary(), Ledger())
    specification, lexicon = replace(SPECIFICATION, branches=branches), inputs[0].ever_pos()
    sources = SourceOptions.of(specification, tagger="lexicon", lexicon=lexicon, reading=ReadOptions())
    stream = EncodingStream(client, vocabulary, sources, StreamOptions(**options), ledger)
    names, found, encoded = [], [], []
    for block in stream.blocks([str(corpus.path) for corpus in inputs]):
        names.append(block.encoded.key.rsplit("-", 1)[0])
        encoded.append(result(block.encoded))
        last = result(block.statistics).last_trained
        for entry, *_ in block.ledger:
            ledger.record(entry)
        place = (block.mapping.first_sequence, block.mapping.sequences, block.sizes, block.sizes_after(-1))
        sizes = [block.sizes_after(q) for q in range(block.mapping.sequences)]
        found.append((place, sizes, last, vars(result(block.statistics)), block.characters))
    runs = connect_summed(encoded, specification, Placement(specification.regions))
    runs_of = [table for run in runs.values() for table in run if table is not None]
    tables = [getattr(table, name).tobytes() for table in runs_of for name in ("source", "target", "strength")]
    flags = (vocabulary.delimiter, vocabulary.probable_since)
    counted = (vocabulary.sequences, stream.counted)
    return names, (vocabulary.concepts, vocabulary.features, flags, counted, ledger.entries, found, tables)


@pytest.mark.parametrize(("limit", "block"), [(None, 500), (1, 1_000_000), (102, 500), (None, 1_000_000)])
def test_reuse_equals_encoding_again(
    client: Client, corpora: list[gd.EncodedCorpus], limit: int | None, block: int
) -> None:
    options = {"max_sequences": limit, "block_characters": block}
    again, expected = read(client, corpora, words=True, **options)
    names, found = read(client, corpora, words=False, **options)
    assert set(again) == {"encode"}
    # The second corpus follows the first one, so its identifiers are not those of the network.
    assert names[0] in {"read", "cut"}
    assert (names[-1] == "encode") == (limit is None or limit > len(corpora[0]))
    assert found == expected


@pytest.fixture(scope="module")
def state_after(client: Client, corpora: list[gd.EncodedCorpus]) -> Callable[[int], State]:
    """Return copies of the state of a network after some sequences."""

    @functools.cache
    def build(before: int) -> State:
        state = (Vocabulary(), Ledger())
        read(client, corpora, state=state, words=True, max_sequences=before)
        return state

    return lambda before: copy.deepcopy(build(before))


@pytest.mark.parametrize(
    ("before", "limit", "block"), [(50, None, 500), (102, 103, 1_000_000), (102, 150, 500), (50, None, 1_000_000)]
)
def test_resuming_equals_encoding_again(
    client: Client,
    corpora: list[gd.EncodedCorpus],
    state_after: Callable[[int], State],
    before: int,
    limit: int | None,
    block: int,
) -> None:
    whole = len(corpora[0])
    states = [state_after(before) for _ in range(2)]
    options = {"max_sequences": limit, "block_characters": block}
    _, expected = read(client, corpora, state=states[0], words=True, **options)
    names, found = read(client, corpora, state=states[1], words=False, **options)
    assert (names[0] == "encode") == (before >= whole)
    assert (names[-1] == "encode") == (limit is None or limit > whole)
    assert found == expected


def test_resuming_before_the_last_part_equals_encoding_again(client: Client, corpora: list[gd.EncodedCorpus]) -> None:
    """After complete parts, the first group begins with a new part."""
    entries = corpora[0].ledger()
    before = sum(entry.sequences for entry in entries[:-1])
    states: list[State] = [(Vocabulary(), Ledger()) for _ in range(2)]
    for state in states:
        read(client, corpora[:1], state=state, words=True, max_sequences=before)
        assert [entry.complete for entry in state[1].entries] == [True] * (len(entries) - 1)
    _, expected = read(client, corpora[:1], state=states[0], words=True)
    names, found = read(client, corpora[:1], state=states[1], words=False)
    assert set(names) == {"read"}
    assert found == expected


def test_a_network_of_other_text_encodes_again(client: Client, corpora: list[gd.EncodedCorpus]) -> None:
    """Use the same number of sequences, with the first parts in the ledger but other words before them."""
    states: list[State] = [(Vocabulary(), Ledger()) for _ in range(2)]
    for state in states:
        read(client, corpora[1:], state=state, words=True, max_sequences=35)
        read(client, corpora[:1], state=state, words=True, max_sequences=35)
        state[0].sequences = 35
    _, expected = read(client, corpora[:1], state=states[0], words=True)
    names, found = read(client, corpora[:1], state=states[1], words=False)
    assert set(names) == {"encode"}
    assert found == expected


def test_prefix_compares_flags_as_of_the_same_sequence() -> None:
    whole = Vocabulary(["dog"], ["", "the", "of"], [False, False, True], [-1, -1, 7], 9)
    earlier = {"concepts": ["dog"], "features": ["", "the", "of"], "delimiter": [False, False, True]}
    for since, sequences, prefix in (([-1, -1, 7], 8, True), ([-1, -1, -1], 7, True), ([-1, 3, 7], 8, False)):
        assert Vocabulary(**earlier, probable_since=since, sequences=sequences).is_prefix_of(whole) == prefix
    assert not Vocabulary(
        **{**earlier, "delimiter": [False, True, True]}, probable_since=[-1, -1, 7], sequences=8
    ).is_prefix_of(whole)
    assert not Vocabulary(**earlier, probable_since=[-1, -1, 7], sequences=10).is_prefix_of(whole)
    assert not Vocabulary.of_subwords(["a"]).is_prefix_of(Vocabulary.of_subwords(["a"]))


def test_other_branches_are_encoded_again(client: Client, corpora: list[gd.EncodedCorpus]) -> None:
    names, _ = read(client, corpora[:1], branches=3, words=False)
    assert set(names) == {"encode"}


@pytest.mark.slow
def test_a_network_of_a_corpus_equals_one_of_its_text(
    client: Client, corpora: list[gd.EncodedCorpus], tmp_path: Path
) -> None:
    corpus = corpora[0]
    text = corpus.path.with_name("2.txt")
    reading = gd.TextOptions(reading=ReadOptions(part_characters=1000))
    for limit in (None, 41):
        options = gd.TrainingOptions(max_sequences=limit, block_characters=3000, batch_sequences=100)
        networks = [
            gd.train(
                source,
                tmp_path / f"{name}-{limit}",
                client=client,
                options=options,
                text=reading,
                specification=SPECIFICATION,
            )
            for name, source in (("text", text), ("corpus", corpus.path))
        ]
        for ours, theirs in zip(
            *(network.export(network.path.with_suffix(".npz")) for network in networks), strict=True
        ):
            assert ours.read_bytes() == theirs.read_bytes()
        assert networks[0].manifest.connections == networks[1].manifest.connections
        assert len({network.manifest.last_trained for network in networks}) == 1
    # The ledger identifies text by content, so resuming with the text trains the rest only.
    whole = gd.train(text, tmp_path / "corpus-41", client=client, text=reading)
    report = whole.training_report
    assert report.sequences == len(corpus) - 41
    for ours in whole.export(tmp_path / "continued.npz"):
        assert ours.read_bytes() == (tmp_path / ours.name.replace("continued", "text-None")).read_bytes()
